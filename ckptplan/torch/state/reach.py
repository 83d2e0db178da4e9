"""Finds everything that a cell and its losses can reach, and takes snapshots of it.

A *reach* has all holders and tensors. A *snapshot* has the content of all holders at one moment, by reference.
Snapshots are quick to take and to compare, and they can be restored.
"""

from __future__ import annotations

import dis
import random
import sys
from collections import deque
from collections.abc import Iterable, Mapping
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
    LIBRARIES,
    MAX_COPIED_BYTES,
    PLAIN_TYPES,
    find_copy_kind,
    has_memory,
    is_object,
    list_slots,
    overwrite,
    read_versions,
)
from ckptplan.torch.state.places import (
    AttributeHolder,
    CacheHolder,
    ClassHolder,
    ContainerHolder,
    ContentHolder,
    CopyHolder,
    Holder,
    IteratorHolder,
    NamedHolder,
    ParameterHookHolder,
    Place,
    SlotHolder,
    TupleHolder,
    VariableHolder,
    has_graph,
)

#: The most holders, and the most elements of a container, that are visited.
_MAX_HOLDERS, _MAX_ELEMENTS = 4096, 4096
#: Bytes of buffers that are copied before a first call, so that writes in place can be undone.
MAX_SNAPSHOT_BYTES = 2**26
#: The most bytes of a tensor whose numbers are compared, and of all such tensors. The versions of PyTorch miss
#: writes into running statistics, writes through ``tensor.data`` and writes by numpy.
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

    def take_snapshot(
        self, *, all_digests: bool = False, copied_bytes: int = 0, copies_large: bool = False
    ) -> Snapshot:
        """Return a snapshot of the current content.

        Arguments:
            all_digests: whether it has the digests of all tensors, or only of small ones that are no
                parameters.
            copied_bytes: bytes of small parameters that it may copy besides other tensors; 0 for no copies.
            copies_large: whether it may copy large tensors that are no buffers, too.
        """
        contents = [holder.read() for holder in self.holders]
        digested = range(len(self.tensors)) if all_digests else self._small
        digests = {number: digest(self.tensors[number]) for number in digested}
        snapshot = Snapshot(contents, read_versions(self.tensors), digests)
        if copied_bytes:
            states = self._list_states(MAX_SNAPSHOT_BYTES) if copies_large else self._states
            chosen = (*states, *self._choose(copied_bytes, self._small_parameters))
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
        in_memory = [(number, tensor) for number, tensor in enumerate(self.tensors) if has_memory(tensor)]
        in_buffers = [number for number, tensor in in_memory if id(tensor) in buffers]
        no_buffers = [
            number
            for number, tensor in in_memory
            if not (id(tensor) in buffers or isinstance(tensor, torch.nn.Parameter))
            and _size(tensor) <= largest
        ]
        return [*self._choose(MAX_SNAPSHOT_BYTES, in_buffers), *self._choose(MAX_SNAPSHOT_BYTES, no_buffers)]

    @cached_property
    def _small_parameters(self) -> list[int]:
        return [
            number
            for number, tensor in enumerate(self.tensors)
            if isinstance(tensor, torch.nn.Parameter) and _size(tensor) <= _SMALL_BYTES and has_memory(tensor)
        ]

    @cached_property
    def _small(self) -> list[int]:
        small = [
            number
            for number, tensor in enumerate(self.tensors)
            if not isinstance(tensor, torch.nn.Parameter) and _size(tensor) <= _SMALL_BYTES
        ]
        return self._choose(_MAX_SMALL_BYTES, small)

    def _choose(self, limit: int, numbers: Iterable[int]) -> list[int]:
        """Return the numbers of as many tensors as fit into a limit of bytes, the smallest first."""
        chosen = []
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
        """Return the place that stands for the numbers of a tensor."""
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

        Caches and iterators do not count.
        """
        pairs = zip(self.holders, snapshot.contents, strict=True)
        return [
            (holder, old)
            for holder, old in pairs
            if not isinstance(holder, CacheHolder | IteratorHolder) and holder.list_changes(old, holder.read())
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


_Waiting = Iterable[tuple[str, Any, "Place | None"]]


def walk(roots: Mapping[str, Any], *, generators: bool = True) -> Reach:
    """Return everything that can be reached from named objects, and the random generators of the process.

    Without ``generators``, random generators are left out, wherever they are.
    """
    reach, visited = Reach(), dict[int, Any]()
    waiting: deque[tuple[str, Any, Place | None]] = deque((name, root, None) for name, root in roots.items())
    # Weights that torch.nn.utils.parametrize.cached() keeps from step to step.
    cached = AttributeHolder("parametrize", vars(torch.nn.utils.parametrize), only=("_cache", "_cache_enabled"))
    waiting += _add(reach, cached)
    waiting += ((name, generator, None) for name, generator in _GLOBAL_GENERATORS.items())
    reach.holders += [ContainerHolder(name, hooks) for name, hooks in _GLOBAL_HOOKS.items()]
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
        if visit is not None:
            visited[id(value)] = value
            waiting += visit(reach, name, value, place)
    return reach


def _add(reach: Reach, holder: Holder) -> _Waiting:
    """Add a holder; return its values, which are to be visited."""
    reach.holders.append(holder)
    if isinstance(holder, NamedHolder):
        return [(holder.describe(key), value, Place(holder, key)) for key, value in holder.read().items()]
    values = holder.owner.values() if isinstance(holder.owner, dict) else holder.owner
    return [(f"{holder.name}[...]", value, Place(holder)) for value in values]


def _visit_tensor(reach: Reach, name: str, value: Tensor, place: Place | None) -> _Waiting:
    if is_lazy(value):
        reach.has_lazy = True
        return ()
    reach.tensors.append(value)
    reach.names.append(name)
    reach.places[id(value)] = [] if place is None else [place]
    if isinstance(value, torch.nn.Parameter):
        reach.holders.append(ParameterHookHolder(name, value))
        return _add(reach, AttributeHolder(name, vars(value), without=_COMPILER_ATTRIBUTES))
    return ()


def _visit_module(reach: Reach, name: str, value: torch.nn.Module, place: Place | None) -> _Waiting:
    reach.modules.append(value)
    attributes = vars(value)
    waiting = list(_add(reach, AttributeHolder(name, attributes, without=_MODULE_INTERNALS)))
    for part in ("_parameters", "_buffers", "_modules"):
        if isinstance(attributes.get(part), dict):
            waiting += _add(reach, AttributeHolder(name, attributes[part]))
    if isinstance(value, torch.jit.ScriptModule):
        named = (*value.named_parameters(), *value.named_buffers())
        waiting += [(f"{name}.{path}", tensor, None) for path, tensor in named]
    for part in _MODULE_HOOKS:
        if isinstance(attributes.get(part), dict):
            reach.holders.append(ContainerHolder(f"{name}.{part}", attributes[part]))
            waiting += [(f"a hook of {name}", hook, None) for hook in attributes[part].values()]
    return [*waiting, (type(value).__name__, type(value), None)]


def _visit_function(reach: Reach, name: str, value: FunctionType, place: Place | None) -> _Waiting:
    # Visit the original function of a compiled one.
    if (original := vars(value).get("_torchdynamo_orig_callable")) is not None:
        return [(name, original, place)]
    variables = zip(value.__code__.co_freevars, value.__closure__ or (), strict=False)
    waiting: list[Any] = [(variable, cell, None) for variable, cell in variables]
    waiting += _add(reach, AttributeHolder(name, vars(value)))
    if value.__defaults__:
        defaults = TupleHolder(
            f"the defaults of {name}",
            value,
            lambda: value.__defaults__ or (),
            partial(setattr, value, "__defaults__"),
        )
        waiting += _add(reach, defaults)
    if value.__kwdefaults__:
        waiting += _add(reach, AttributeHolder(name, value.__kwdefaults__))
    return [*waiting, *_visit_globals(reach, value)] if is_user_code(value.__module__) else waiting


def _visit_globals(reach: Reach, function: FunctionType) -> _Waiting:
    """Visit the globals that a function names, and the attributes that it names of modules and classes."""
    names, variables = _list_names(function.__code__), function.__globals__
    # Names that a step may set need not exist yet.
    waiting = list(_add(reach, AttributeHolder("", variables, only=_list_globals(function.__code__))))
    for name, value, _ in waiting[:]:
        if isinstance(value, ModuleType):
            waiting += _visit_named(reach, name, value, names)
    for name, value, _ in waiting[:]:
        if isinstance(value, type) and not is_user_code(value.__module__):
            attributes = vars(value)
            reach.holders.append(
                ClassHolder(
                    name, value, only=tuple(attribute for attribute in names if attribute in attributes)
                )
            )
    for name in _list_imports(function.__code__):
        if name in sys.modules and is_user_code(name):
            waiting += _visit_named(reach, name, sys.modules[name], names)
    # The attributes of modules that the function names were visited above.
    return [pair for pair in waiting if _is_users(pair[1]) and not isinstance(pair[1], ModuleType)]


def _visit_named(reach: Reach, name: str, module: ModuleType, names: tuple[str, ...]) -> _Waiting:
    attributes = vars(module)
    return _add(
        reach,
        AttributeHolder(
            name, attributes, only=tuple(attribute for attribute in names if attribute in attributes)
        ),
    )


def _is_users(value: Any) -> bool:
    """Return whether a global is no function or class of a library."""
    return not isinstance(value, FunctionType | type) or is_user_code(value.__module__)


@lru_cache(maxsize=1024)
def is_user_code(module: str | None) -> bool:
    """Return whether a module is a user's: neither installed nor of the standard library."""
    root = module.partition(".")[0] if isinstance(module, str) else ""
    file = getattr(sys.modules.get(root), "__file__", None) or ""
    return root not in LIBRARIES and root != "builtins" and "site-packages" not in file


@lru_cache(maxsize=4096)
def _list_names(code: CodeType) -> tuple[str, ...]:
    """Return the names that code may look up as globals or attributes, including functions within it."""
    inner = (
        name for constant in code.co_consts if isinstance(constant, CodeType) for name in _list_names(constant)
    )
    return tuple(dict.fromkeys((*code.co_names, *inner)))


@lru_cache(maxsize=4096)
def _list_globals(code: CodeType) -> tuple[str, ...]:
    """Return the names of globals that code reads or sets, including functions within it."""
    direct = [
        instruction.argval
        for instruction in dis.get_instructions(code)
        if instruction.opname.endswith(("_GLOBAL", "_NAME"))
    ]
    inner = (constant for constant in code.co_consts if isinstance(constant, CodeType))
    return tuple(dict.fromkeys((*direct, *(name for constant in inner for name in _list_globals(constant)))))


@lru_cache(maxsize=4096)
def _list_imports(code: CodeType) -> tuple[str, ...]:
    """Return the names of modules that code imports, including functions within it."""
    direct = [
        instruction.argval for instruction in dis.get_instructions(code) if instruction.opname == "IMPORT_NAME"
    ]
    inner = (constant for constant in code.co_consts if isinstance(constant, CodeType))
    return tuple(dict.fromkeys((*direct, *(name for constant in inner for name in _list_imports(constant)))))


def _visit_imported(reach: Reach, name: str, value: ModuleType, place: Place | None) -> _Waiting:
    """Visit a module of a user that a variable or a container holds."""
    if not is_user_code(value.__name__):
        return ()
    without = frozenset(key for key in vars(value) if key.startswith("__"))
    return [
        pair for pair in _add(reach, AttributeHolder(name, vars(value), without=without)) if _is_users(pair[1])
    ]


def _visit_method(reach: Reach, name: str, value: MethodType, place: Place | None) -> _Waiting:
    return [(name, value.__self__, None), (name, value.__func__, None)]


def _visit_partial(reach: Reach, name: str, value: Any, place: Place | None) -> _Waiting:
    def set_args(args: tuple[Any, ...]) -> None:
        value.__setstate__((value.func, args, value.keywords, vars(value)))

    args = TupleHolder(f"the arguments of {name}", value, lambda: value.args, set_args)
    arguments = [*_add(reach, args), *_add(reach, AttributeHolder(name, value.keywords))]
    return [(name, value.func, None), *arguments, *_add(reach, AttributeHolder(name, vars(value)))]


def _visit_object(reach: Reach, name: str, value: Any, place: Place | None) -> _Waiting:
    waiting: list[Any] = []
    if hasattr(value, "__dict__"):
        waiting += _add(reach, AttributeHolder(name, vars(value)))
    if list_slots(value.__class__):
        waiting += _add(reach, SlotHolder(name, value))
    return [*waiting, (type(value).__name__, type(value), None)]


def _visit_class(reach: Reach, name: str, value: type, place: Place | None) -> _Waiting:
    waiting: list[Any] = []
    for base in value.__mro__:
        if is_user_code(base.__module__):
            waiting += _add(reach, ClassHolder(base.__name__, base))
            functions = (
                function for attribute in vars(base).values() for function in _list_functions(attribute)
            )
            waiting += [(base.__name__, function, None) for function in functions]
    return waiting


def _list_functions(attribute: Any) -> tuple[Any, ...]:
    """Return the functions of a method or a property."""
    if isinstance(attribute, staticmethod | classmethod):
        return (attribute.__func__,)
    if isinstance(attribute, property):
        return attribute.fget, attribute.fset, attribute.fdel
    return (attribute,) if isinstance(attribute, FunctionType) else ()


def _visit_container(reach: Reach, name: str, value: Any, place: Place | None) -> _Waiting:
    attributes = _add(reach, AttributeHolder(name, vars(value))) if hasattr(value, "__dict__") else ()
    if len(value) > _MAX_ELEMENTS:
        return attributes
    return [*_add(reach, ContainerHolder(name, value)), *attributes]


def _visit_tuple(reach: Reach, name: str, value: Any, place: Place | None) -> _Waiting:
    return () if len(value) > _MAX_ELEMENTS else [(f"{name}[...]", element, place) for element in value]


def _visit_copied(reach: Reach, name: str, value: Any, place: Place | None) -> _Waiting:
    is_large = isinstance(value, set | bytearray) and len(value) > _MAX_ELEMENTS
    is_data = isinstance(value, numpy.ndarray) and (
        value.nbytes > MAX_COPIED_BYTES or not value.flags.writeable
    )
    if not (is_large or is_data):
        reach.holders.append(CopyHolder(name, value))
    return ()


def _visit_variable(reach: Reach, name: str, value: CellType, place: Place | None) -> _Waiting:
    return _add(reach, VariableHolder(name, value))


def _visit_context_variable(reach: Reach, name: str, value: Any, place: Place | None) -> _Waiting:
    return _add(reach, VariableHolder(value.name, value))


def _visit_iterator(reach: Reach, name: str, value: Any, place: Place | None) -> _Waiting:
    reach.holders.append(IteratorHolder(name, value))
    return ()


def _visit_cache(reach: Reach, name: str, value: Any, place: Place | None) -> _Waiting:
    reach.holders.append(CacheHolder(name, value))
    return [(name, value.__wrapped__, None)]


def _visit_reference(reach: Reach, name: str, value: Any, place: Place | None) -> _Waiting:
    return [(name, value(), None)]


def _visit_builtin(reach: Reach, name: str, value: Any, place: Place | None) -> _Waiting:
    return [(name, value.__self__, None)]


def _visit_numpy_generator(reach: Reach, name: str, value: Any, place: Place | None) -> _Waiting:
    return [(name, value.bit_generator, None)]


_VISITORS: tuple[tuple[Any, Any], ...] = (
    (Tensor, _visit_tensor),
    (torch.nn.Module, _visit_module),
    (FunctionType, _visit_function),
    (MethodType, _visit_method),
    (BuiltinMethodType, _visit_builtin),
    (partial, _visit_partial),
    (_lru_cache_wrapper, _visit_cache),
    (type, _visit_class),
    (ModuleType, _visit_imported),
    (CellType, _visit_variable),
    (ContextVar, _visit_context_variable),
    (ReferenceType, _visit_reference),
    (numpy.random.Generator, _visit_numpy_generator),
    (list | deque | dict, _visit_container),
    (tuple | frozenset, _visit_tuple),
)


@lru_cache(maxsize=4096)
def _find_visitor(kind: type) -> Any:
    """Return the function that visits objects of a kind, None if these hold nothing."""
    for base, visit in _VISITORS:
        if issubclass(kind, base):
            return visit
    if find_copy_kind(kind) is not None:
        return _visit_copied
    if is_object(kind):
        return _visit_object
    return _visit_iterator if hasattr(kind, "__next__") else None
