"""Finds everything that a cell and its losses can reach, and takes snapshots of it.

A *reach* has all holders and tensors. A *snapshot* has the content of all holders at one moment, by reference.
Snapshots are quick to take and to compare, and they can be restored.
"""

from __future__ import annotations

import dis
import random
import sys
from collections import deque
from collections.abc import Callable, Iterable, Mapping
from contextvars import ContextVar
from dataclasses import dataclass, field
from functools import _lru_cache_wrapper, cached_property, lru_cache, partial
from types import BuiltinMethodType, CellType, CodeType, FunctionType, MethodType, ModuleType
from typing import Any
from weakref import ReferenceType

import numpy
import torch
import torch.nn.utils.parametrize
from torch import Tensor
from torch.nn.modules import module as torch_module
from torch.nn.parameter import is_lazy

from ckptplan.torch.state.digests import digest
from ckptplan.torch.state.nests import (
    CONTAINERS,
    PLAIN_TYPES,
    find_copy_kind,
    has_memory,
    is_copied,
    is_object,
    list_slots,
    overwrite,
    read_versions,
)
from ckptplan.torch.state.places import (
    AttributeHolder,
    CacheHolder,
    ClassHolder,
    ContentHolder,
    CopyHolder,
    GlobalHolder,
    Holder,
    ParameterHookHolder,
    Place,
    SlotHolder,
    TupleHolder,
    VariableHolder,
    has_graph,
    is_user_code,
)

#: The most holders, and the most elements of a container, that are visited.
_MAX_HOLDERS, _MAX_ELEMENTS = 4096, 4096
#: The most bytes of buffers, and again of other tensors, that are copied before a first call, so that writes in
#: place can be undone.
MAX_SNAPSHOT_BYTES = 2**26
#: The most bytes of a tensor whose numbers are compared, and of all such tensors. The version counters of
#: tensors miss writes into running statistics, writes through ``tensor.data`` and writes by numpy.
_SMALL_BYTES, _MAX_SMALL_BYTES = 2**16, 2**20
#: The attributes that PyTorch keeps in every module.
_MODULE_INTERNALS = frozenset(vars(torch.nn.Module())) - {"training"}
#: The attributes that PyTorch's compiler sets on a parameter.
_COMPILER_ATTRIBUTES = frozenset({"_dynamo_static_input_type"})
_MODULE_HOOKS = tuple(name for name in vars(torch.nn.Module()) if name.endswith("_hooks"))
#: Where PyTorch keeps the hooks of all modules.
_GLOBAL_HOOKS = {
    name: hooks
    for name, hooks in vars(torch_module).items()
    if name.startswith("_global_") and isinstance(hooks, dict)
}
#: The generators that any function may draw from.
_GLOBAL_GENERATORS: dict[str, Any] = {
    "torch's random generator": torch.default_generator,
    "Python's random generator": random._inst,
    "numpy's random generator": numpy.random.mtrand._rand,
}

#: The types of random generators.
GENERATORS = (torch.Generator, random.Random, numpy.random.RandomState, numpy.random.BitGenerator)


def is_generator(place: Any) -> bool:
    """Return whether a place of a part of the state is the state of a random generator."""
    return isinstance(place, Place) and isinstance(place.holder.owner, GENERATORS)


@dataclass
class Snapshot:
    """The content of all holders at one moment, with the versions, some digests and some copies of tensors."""

    contents: list[Any]
    versions: list[int]
    digests: dict[int, Any]
    #: Copies of tensors by their numbers, to undo what steps wrote in place.
    copies: dict[int, Tensor] = field(default_factory=dict)


@dataclass
class Reach:
    """Everything that a cell and its losses can reach."""

    holders: list[Holder] = field(default_factory=list)
    #: All tensors, and the name of each.
    tensors: list[Tensor] = field(default_factory=list)
    names: list[str] = field(default_factory=list)
    #: The places of each tensor, by its id.
    places: dict[int, list[Place]] = field(default_factory=dict)
    modules: list[torch.nn.Module] = field(default_factory=list)
    #: Whether a lazy module has yet to create parameters.
    has_lazy: bool = False

    def add(self, name: str, value: Any, place: Place | None) -> None:
        """Add an object that was reached, if it is a module or a tensor."""
        if isinstance(value, torch.nn.Module):
            self.modules.append(value)
        elif isinstance(value, Tensor) and is_lazy(value):
            self.has_lazy = True
        elif isinstance(value, Tensor):
            self.tensors.append(value)
            self.names.append(name)
            self.places[id(value)] = [] if place is None else [place]

    def take_snapshot(self, *, all_digests: bool = False, copied_bytes: int = 0) -> Snapshot:
        """Return a snapshot of the current content.

        Arguments:
            all_digests: whether it has the digests of all tensors, or only of small ones that are no
                parameters.
            copied_bytes: bytes of small parameters that it may copy besides other tensors; 0 for no copies.
                With ``MAX_SNAPSHOT_BYTES``, it may copy large tensors that are no buffers, too.
        """
        contents = [holder.read() for holder in self.holders]
        digested = range(len(self.tensors)) if all_digests else self._small
        digests = {number: digest(self.tensors[number]) for number in digested}
        snapshot = Snapshot(contents, read_versions(self.tensors), digests)
        if copied_bytes:
            copies_large = copied_bytes == MAX_SNAPSHOT_BYTES
            states = self._list_states(MAX_SNAPSHOT_BYTES) if copies_large else self._states
            weights = self._choose(copied_bytes, lambda tensor: _is_small(tensor) and _is_weight(tensor))
            chosen = (*states, *weights)
            snapshot.copies = {number: self.tensors[number].detach().clone() for number in chosen}
        return snapshot

    @property
    def copied_bytes(self) -> int:
        """The bytes that a snapshot with copies takes, without copies of parameters."""
        return sum(_size(self.tensors[number]) for number in self._states)

    @cached_property
    def _states(self) -> list[int]:
        return self._list_states(_SMALL_BYTES)

    def _list_states(self, largest: int) -> list[int]:
        """Return the numbers of buffers, and of other non-parameters up to ``largest`` bytes, that fit."""
        buffers = {id(buffer) for module in self.modules for buffer in module.buffers(recurse=False)}

        def is_other(tensor: Tensor) -> bool:
            return not (id(tensor) in buffers or _is_weight(tensor)) and _size(tensor) <= largest

        in_buffers = self._choose(MAX_SNAPSHOT_BYTES, lambda tensor: id(tensor) in buffers)
        return [*in_buffers, *self._choose(MAX_SNAPSHOT_BYTES, is_other)]

    @cached_property
    def _small(self) -> list[int]:
        return self._choose(_MAX_SMALL_BYTES, lambda tensor: _is_small(tensor) and not _is_weight(tensor))

    def _choose(self, limit: int, is_chosen: Callable[[Tensor], bool]) -> list[int]:
        """Return the numbers of as many chosen tensors as fit into a limit of bytes, the smallest first."""
        chosen = []
        numbers = [n for n, tensor in enumerate(self.tensors) if is_chosen(tensor) and has_memory(tensor)]
        for number in sorted(numbers, key=lambda candidate: _size(self.tensors[candidate])):
            limit -= _size(self.tensors[number])
            if limit < 0:
                break
            chosen.append(number)
        return chosen

    def list_changes(self, before: Snapshot, after: Snapshot) -> list[Place]:
        """Return the places whose values differ between two snapshots."""
        changes: list[Place] = []
        for holder, old, new in zip(self.holders, before.contents, after.contents, strict=True):
            changes += [Place(holder, key) for key in holder.list_changes(old, new)]
        return changes + [self.get_content(number) for number in self.list_written(before, after)]

    def list_written(self, before: Snapshot, after: Snapshot) -> list[int]:
        """Return the numbers of the tensors that were written in place between two snapshots."""
        pairs = zip(before.versions, after.versions, strict=True)
        counted = {number for number, (old, new) in enumerate(pairs) if old != new}
        digests = ((n, new) for n, new in after.digests.items() if n not in counted and n in before.digests)
        return sorted({*counted, *(number for number, new in digests if new != before.digests[number])})

    def get_content(self, number: int) -> Place:
        """Return the place that stands for the values of a tensor."""
        return Place(ContentHolder(self.names[number], self.tensors[number]))

    def restore(self, snapshot: Snapshot) -> list[str]:
        """Restore a snapshot; return the names of written tensors of which the snapshot has no copy."""
        for holder, old in zip(self.holders, snapshot.contents, strict=True):
            content = holder.read()
            if holder.list_changes(old, content) or (isinstance(holder, CacheHolder) and content != old):
                holder.write(old)
        current = self.take_snapshot(all_digests=bool(snapshot.copies))
        missing = []
        for number in self.list_written(snapshot, current):
            tensor = self.tensors[number]
            if number not in snapshot.copies:
                missing.append(self.names[number])
                continue
            if tensor.grad_fn is not None:
                tensor.detach_()
            overwrite(tensor, snapshot.copies[number], snapshot.versions[number])
        return missing

    def list_differing(self, snapshot: Snapshot) -> list[tuple[Holder, Any]]:
        """Return the holders whose content differs from a snapshot, each with its content there.

        Caches do not count.
        """
        pairs = zip(self.holders, snapshot.contents, strict=True)
        return [
            (holder, old)
            for holder, old in pairs
            if not isinstance(holder, CacheHolder) and holder.list_changes(old, holder.read())
        ]

    def list_filled_caches(self, snapshot: Snapshot) -> list[CacheHolder]:
        """Return the caches that were filled since a snapshot, and that keep differentiable tensors."""
        pairs = zip(self.holders, snapshot.contents, strict=True)
        return [
            holder
            for holder, old in pairs
            if isinstance(holder, CacheHolder) and holder.read() != old and holder.list_tensors()
        ]

    def list_parameters(self) -> list[Tensor]:
        """Return the leaves that require a gradient."""
        return [tensor for tensor in self.tensors if tensor.requires_grad and tensor.is_leaf]

    def list_graph_places(self) -> list[Place]:
        """Return the places that hold a tensor that was computed with a graph before the call."""
        places = [place for tensor in self.tensors if has_graph(tensor) for place in self.places[id(tensor)]]
        return list(dict.fromkeys(places))


def _size(tensor: Tensor) -> int:
    return tensor.numel() * tensor.element_size()


def _is_small(tensor: Tensor) -> bool:
    return _size(tensor) <= _SMALL_BYTES


def _is_weight(tensor: Tensor) -> bool:
    return isinstance(tensor, torch.nn.Parameter)


def walk(roots: Mapping[str, Any], *, generators: bool = True) -> Reach:
    """Return everything that can be reached from named objects, and the random generators of the process.

    Without ``generators``, random generators are left out, wherever they are.
    """
    reach, visited = Reach(), dict[int, Any]()
    waiting: deque[tuple[str, Any, Place | None]] = deque((name, root, None) for name, root in roots.items())
    # Weights that torch.nn.utils.parametrize.cached() keeps from step to step.
    cached = AttributeHolder("parametrize", vars(torch.nn.utils.parametrize), only=("_cache", "_cache_enabled"))
    waiting += cached.list_values()
    waiting += ((name, generator, None) for name, generator in _GLOBAL_GENERATORS.items())
    reach.holders += [cached, *(CopyHolder(name, hooks) for name, hooks in _GLOBAL_HOOKS.items())]
    if torch.cuda.is_initialized():
        devices = enumerate(torch.cuda.default_generators)
        waiting += [(f"the generator of cuda:{number}", generator, None) for number, generator in devices]
    while waiting and len(reach.holders) < _MAX_HOLDERS:
        name, value, place = waiting.popleft()
        kind = value.__class__
        if kind in PLAIN_TYPES or (not generators and isinstance(value, GENERATORS)):
            continue
        if id(value) in visited:
            if place is not None and id(value) in reach.places:
                reach.places[id(value)].append(place)
            continue
        visit = _find_visitor(kind)
        if visit is None:
            continue
        visited[id(value)] = value
        reach.add(name, value, place)
        # The elements of a tuple are in the place of the tuple.
        outer = place if isinstance(value, tuple | frozenset) else None
        for part in visit(name, value):
            if isinstance(part, Holder):
                reach.holders.append(part)
                waiting += part.list_values()
            else:
                waiting.append((*part, outer))
    return reach


#: What a visitor of an object yields: holders, and names and values of further objects.
_Parts = Iterable[Holder | tuple[str, Any]]


def _visit_tensor(name: str, value: Tensor) -> _Parts:
    if isinstance(value, torch.nn.Parameter) and not is_lazy(value):
        yield ParameterHookHolder(name, value)
        yield AttributeHolder(name, vars(value), without=_COMPILER_ATTRIBUTES)


def _visit_module(name: str, value: torch.nn.Module) -> _Parts:
    attributes = vars(value)
    yield AttributeHolder(name, attributes, without=_MODULE_INTERNALS)
    for part in ("_parameters", "_buffers", "_modules"):
        if isinstance(attributes.get(part), dict):
            yield AttributeHolder(name, attributes[part])
    if isinstance(value, torch.jit.ScriptModule):
        named = (*value.named_parameters(), *value.named_buffers())
        yield from ((f"{name}.{path}", tensor) for path, tensor in named)
    for part in _MODULE_HOOKS:
        if isinstance(attributes.get(part), dict):
            yield CopyHolder(f"{name}.{part}", attributes[part])
    yield type(value).__name__, type(value)


def _visit_function(name: str, value: FunctionType) -> _Parts:
    # Visit the original function of a compiled one.
    if (original := vars(value).get("_torchdynamo_orig_callable")) is not None:
        yield name, original
        return
    yield from zip(value.__code__.co_freevars, value.__closure__ or (), strict=False)
    yield AttributeHolder(name, vars(value))
    if value.__defaults__:
        yield TupleHolder(f"the defaults of {name}", value)
    if value.__kwdefaults__:
        yield AttributeHolder(name, value.__kwdefaults__)
    if is_user_code(value.__module__):
        yield from _visit_globals(value)


def _visit_globals(function: FunctionType) -> _Parts:
    """Visit the globals that a function names, and the attributes that it names of modules and classes."""
    names, variables, imports = _list_names(function.__code__)
    # Names that a step may set need not exist yet.
    holders = [GlobalHolder("", function.__globals__, only=variables)]
    modules = {name: value for name, value in holders[0].read().items() if isinstance(value, ModuleType)}
    modules |= {name: sys.modules[name] for name in imports if name in sys.modules and is_user_code(name)}
    for name, module in modules.items():
        attributes = vars(module)
        holders.append(GlobalHolder(name, attributes, only=[name for name in names if name in attributes]))
    for holder in holders:
        yield holder
        for key, value in holder.read().items():
            if isinstance(value, type) and not is_user_code(value.__module__):
                named = [name for name in names if name in vars(value)]
                yield ClassHolder(holder.describe(key), value, only=named)


@lru_cache(maxsize=4096)
def _list_names(code: CodeType) -> tuple[tuple[str, ...], tuple[str, ...], tuple[str, ...]]:
    """Return the names that code, and functions in it, may look up: all, only globals, and only imports."""
    codes = [code]
    names, variables, imports = dict[str, None](), dict[str, None](), dict[str, None]()
    # The list grows while the loop runs over it.
    for current in codes:
        codes += [constant for constant in current.co_consts if isinstance(constant, CodeType)]
        names |= dict.fromkeys(current.co_names)
        for instruction in dis.get_instructions(current):
            if instruction.opname == "IMPORT_NAME":
                imports[instruction.argval] = None
            elif instruction.opname.endswith(("_GLOBAL", "_NAME")):
                variables[instruction.argval] = None
    return tuple(names), tuple(variables), tuple(imports)


def _visit_held_module(name: str, value: ModuleType) -> _Parts:
    """Visit a module of a user that a variable or a container holds."""
    if is_user_code(value.__name__):
        without = frozenset(key for key in vars(value) if key.startswith("__"))
        yield GlobalHolder(name, vars(value), without=without)


def _visit_partial(name: str, value: Any) -> _Parts:
    yield name, value.func
    yield TupleHolder(f"the arguments of {name}", value)
    yield AttributeHolder(name, value.keywords)
    yield AttributeHolder(name, vars(value))


def _visit_object(name: str, value: Any) -> _Parts:
    if hasattr(value, "__dict__"):
        yield AttributeHolder(name, vars(value))
    if list_slots(value.__class__):
        yield SlotHolder(name, value)
    yield type(value).__name__, type(value)


def _visit_class(name: str, value: type) -> _Parts:
    for base in value.__mro__:
        if is_user_code(base.__module__):
            yield ClassHolder(base.__name__, base)
            for attribute in vars(base).values():
                yield from ((base.__name__, function) for function in _list_functions(attribute))


def _list_functions(attribute: Any) -> tuple[Any, ...]:
    """Return the functions of a method or a property."""
    if isinstance(attribute, staticmethod | classmethod):
        return (attribute.__func__,)
    if isinstance(attribute, property):
        return attribute.fget, attribute.fset, attribute.fdel
    return (attribute,) if isinstance(attribute, FunctionType) else ()


def _visit_container(name: str, value: Any) -> _Parts:
    if len(value) <= _MAX_ELEMENTS:
        yield CopyHolder(name, value)
    if hasattr(value, "__dict__"):
        yield AttributeHolder(name, vars(value))


def _visit_tuple(name: str, value: Any) -> _Parts:
    return () if len(value) > _MAX_ELEMENTS else [(f"{name}[...]", element) for element in value]


def _visit_copied(name: str, value: Any) -> _Parts:
    is_large = isinstance(value, set | bytearray) and len(value) > _MAX_ELEMENTS
    return [CopyHolder(name, value)] if is_copied(value) and not is_large else ()


_VISITORS: tuple[tuple[Any, Callable[[str, Any], _Parts]], ...] = (
    (Tensor, _visit_tensor),
    (torch.nn.Module, _visit_module),
    (FunctionType, _visit_function),
    (MethodType, lambda name, value: [(name, value.__self__), (name, value.__func__)]),
    (BuiltinMethodType, lambda name, value: [(name, value.__self__)]),
    (partial, _visit_partial),
    (_lru_cache_wrapper, lambda name, value: [CacheHolder(name, value), (name, value.__wrapped__)]),
    (type, _visit_class),
    (ModuleType, _visit_held_module),
    (CellType, lambda name, value: [VariableHolder(name, value)]),
    (ContextVar, lambda _, value: [VariableHolder(value.name, value)]),
    (ReferenceType, lambda name, value: [(name, value())]),
    (numpy.random.Generator, lambda name, value: [(name, value.bit_generator)]),
    (CONTAINERS, _visit_container),
    (tuple | frozenset, _visit_tuple),
)


@lru_cache(maxsize=4096)
def _find_visitor(kind: type) -> Callable[[str, Any], _Parts] | None:
    """Return the function that visits objects of a kind, None if these hold nothing."""
    for base, visit in _VISITORS:
        if issubclass(kind, base):
            return visit
    if find_copy_kind(kind) is not None:
        return _visit_copied
    return _visit_object if is_object(kind) else None
