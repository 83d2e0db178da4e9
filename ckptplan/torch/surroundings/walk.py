"""Finds what a cell and a loss can reach: modules, attributes, containers, closures, globals, generators.

The search is breadth first, so that near objects are found if there are too many. Objects and functions of
packages that keep nothing between steps (PyTorch's own, the standard library, ...) are not searched; modules of
PyTorch are.
"""

from __future__ import annotations

import random
import sys
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Mapping, MutableMapping
from contextvars import ContextVar
from dataclasses import dataclass, field
from dis import get_instructions
from functools import _lru_cache_wrapper, cached_property, lru_cache, partial
from types import (
    BuiltinFunctionType,
    CellType,
    CodeType,
    FunctionType,
    GeneratorType,
    MethodType,
    MethodWrapperType,
    ModuleType,
)
from typing import Any, TypeAlias

import numpy
import torch
from torch.nn.parameter import is_lazy

from ckptplan.torch.graphs import storage_of
from ckptplan.torch.surroundings.holders import (
    ABSENT,
    ArrayHolder,
    CacheHolder,
    ClassHolder,
    GradientHolder,
    Holder,
    IteratorHolder,
    MappingHolder,
    SequenceHolder,
    SetHolder,
    SlotsHolder,
    TensorHolder,
    VariableHolder,
    is_class_data,
    read_variable,
)
from ckptplan.torch.surroundings.signature import (
    GENERATORS,
    Signature,
    is_array,
    is_passed_over,
    is_passed_over_module,
    is_searched,
)
from ckptplan.torch.trees import holds_graph

#: How the names of operations end that look a name up as a global; those of class bodies may.
_GLOBAL = ("_GLOBAL", "_GLOBALS", "_NAME")
#: Of those that give a global its first value, perhaps.
_STORE = ("STORE_GLOBAL",)
#: Objects that are looked at, and elements of one container.
_MOST_OBJECTS, _MOST_ELEMENTS = 4_000, 512
#: The numbers of tensors up to this size are looked at, of larger ones the version.
_SMALL_BYTES = 2**16
#: Larger tensors than this in total, smallest first, are compared by version and cannot be put back.
MOST_COPIED = 2**26
#: Lists of classes in which a library notes all objects that were ever made: other networks' are not searched.
_REGISTRIES = frozenset({("snntorch", "instances")})
#: What every module has, and what PyTorch keeps in it.
_OWN = (frozenset(vars(torch.nn.Module())) - {"training"}) | {"_memories"}
#: What is read as attributes of a module; SpikingJelly's neurons have memories.
_PARTS = ("_parameters", "_buffers", "_modules", "_memories")
_IMMUTABLE = (
    int, float, complex, str, bytes, type(None), torch.dtype, torch.device, torch.Size, ModuleType,
    property, range, slice,
)  # fmt: skip
_Found: TypeAlias = Iterator[tuple[str, Any]]


@dataclass
class Reached:
    """What a walk found."""

    holders: list[Holder] = field(default_factory=list)
    #: By name.
    modules: list[tuple[str, torch.nn.Module]] = field(default_factory=list)
    #: Random generators, as ``torch.Generator`` and ``numpy.random.Generator`` objects.
    generators: list[object] = field(default_factory=list)
    #: Parameters that a lazy module has yet to make.
    lazy: bool = False

    @cached_property
    def storages(self) -> frozenset[int]:
        """The storages of the tensors that were met."""
        return frozenset(storage_of(one.thing) for one in self.holders if isinstance(one, TensorHolder))


def walk(roots: Mapping[str, object], *, signature: Signature | None = None) -> Reached:
    """Return what can be reached from named objects, from losses last; a ``signature`` notes what is met."""
    found = Reached()
    losses: deque[tuple[str, Any]] = deque(one for one in roots.items() if one[0].endswith("loss"))
    waiting: deque[tuple[str, Any]] = deque(one for one in roots.items() if not one[0].endswith("loss"))
    met: dict[int, int] = {}
    # Holders refer to what they hold; all else that is created on the way must stay alive, or ids repeat.
    alive: list[Any] = []
    while (waiting or losses) and len(met) < _MOST_OBJECTS:
        if not waiting:
            waiting, losses = losses, deque()
        name, thing = waiting.popleft()
        visit = _find_visit(thing.__class__)
        if visit is None:
            if signature is not None:
                signature.note_constant(name, thing)
            continue
        number = met.get(id(thing))
        if number is not None:
            if signature is not None:
                signature.note_again(name, number)
            continue
        met[id(thing)] = len(met)
        alive.append(thing)
        parts = list(visit(name, thing, found))
        waiting.extend(parts)
        if signature is not None:
            signature.note(name, thing, len(parts))
    if signature is not None and (waiting or losses):
        signature.complete = False
    tensors = (one for one in found.holders if isinstance(one, TensorHolder))
    copied = 0
    for one in sorted(tensors, key=lambda one: one.thing.nbytes):
        copied += one.thing.nbytes
        one.can_put_back = copied <= MOST_COPIED
    return found


@lru_cache(maxsize=4096)
def _find_visit(kind: type) -> Callable[[str, Any, Reached], _Found] | None:
    """Return what notes an object of a class, and yields what it refers to; None if it has no parts."""
    if issubclass(kind, _IMMUTABLE):
        return None
    return next((visit for kinds, visit in _VISITS if issubclass(kind, kinds)), _visit_object)


def _visit_generator(name: str, thing: object, found: Reached) -> _Found:
    del name
    found.generators.append(thing)
    yield from ()


def _visit_array(name: str, thing: numpy.ndarray[Any, Any], found: Reached) -> _Found:
    if is_array(thing):
        found.holders.append(ArrayHolder(name, thing))
    else:
        yield from _visit_object(name, thing, found)


def _visit_tensor(name: str, tensor: torch.Tensor, found: Reached) -> _Found:
    if is_lazy(tensor):
        found.lazy = True
        return
    if isinstance(tensor, torch.nn.Parameter):
        found.holders.append(GradientHolder(name, tensor))
    if isinstance(tensor, torch.nn.Parameter) or vars(tensor):
        # Of parameters even if there is none yet.
        yield from _visit_attributes(name, vars(tensor), found)
    if type(tensor) in (torch.Tensor, torch.nn.Parameter, torch.nn.Buffer) and not tensor.is_sparse:
        small = tensor.nbytes <= _SMALL_BYTES and not isinstance(tensor, torch.nn.Parameter)
        found.holders.append(TensorHolder(name, tensor, small=small))


def _visit_attributes(name: str, values: dict[str, Any], found: Reached, *, of_module: bool = False) -> _Found:
    found.holders.append(MappingHolder(name, values, attributes=True, of_module=of_module))
    yield from ((_join(name, key), value) for key, value in list(values.items()))


def _visit_dict(name: str, thing: MutableMapping[Any, Any], found: Reached) -> _Found:
    found.holders.append(MappingHolder(name, thing, attributes=False))
    if len(thing) <= _MOST_ELEMENTS:
        yield from ((f"{name}[{key!r}]", value) for key, value in list(thing.items()))


def _visit_sequence(name: str, thing: Any, found: Reached) -> _Found:
    if not isinstance(thing, tuple | frozenset):
        found.holders.append((SetHolder if isinstance(thing, set) else SequenceHolder)(name, thing))
    if len(thing) <= _MOST_ELEMENTS:
        yield from ((f"{name}[{number}]", value) for number, value in enumerate(thing))


def _visit_module(name: str, thing: torch.nn.Module, found: Reached) -> _Found:
    found.modules.append((name, thing))
    attributes = vars(thing)
    found.holders.append(MappingHolder(name, attributes, attributes=True, of_module=True, without=_OWN))
    for part in _PARTS:
        values = attributes.get(part)
        # A step may register the first buffer.
        if values or (part == "_buffers" and values is not None):
            yield from _visit_attributes(name, values, found, of_module=True)
    for key, value in list(attributes.items()):
        # Hooks may keep something, too.
        if key not in _OWN or (key.endswith("_hooks") and value):
            yield _join(name, key), value
    yield from _visit_class(type(thing))


def _visit_object(name: str, thing: object, found: Reached) -> _Found:
    """Visit an object of a class that is not known here."""
    if not is_searched(type(thing)):
        if hasattr(thing, "__next__"):
            found.holders.append(IteratorHolder(name, thing))
        if isinstance(thing, GeneratorType) and thing.gi_frame is not None:
            yield from thing.gi_frame.f_locals.items()
        if isinstance(thing, _lru_cache_wrapper):
            found.holders.append(CacheHolder(name, thing))
        if hasattr(thing, "__wrapped__"):
            yield name, thing.__wrapped__
        return
    attributes = getattr(thing, "__dict__", None)
    if isinstance(attributes, dict):
        yield from _visit_attributes(name, attributes, found)
    slots = [slot for one in type(thing).__mro__ for slot in _list_slots(one)]
    if slots:
        found.holders.append(SlotsHolder(name, thing, slots))
        yield from ((_join(name, slot), getattr(thing, slot)) for slot in slots if hasattr(thing, slot))
    yield from _visit_class(type(thing))


def _list_slots(one: type) -> list[str]:
    slots = vars(one).get("__slots__", ())
    names = [slots] if isinstance(slots, str) else list(slots)
    # Python knows a private slot by the name of its class, too.
    private = f"_{one.__name__.lstrip('_')}"
    return [private + name if name.startswith("__") else name for name in names if not name.endswith("__")]


def _visit_class(one: type) -> _Found:
    """Yield the classes that an object's class is made of."""
    yield from ((part.__name__, part) for part in one.__mro__ if not is_passed_over(part))


def _visit_type(name: str, thing: type, found: Reached) -> _Found:
    if is_passed_over(thing):
        return
    package = thing.__module__.partition(".")[0]
    data = {
        key: value
        for key, value in vars(thing).items()
        if is_class_data(key, value) and (package, key) not in _REGISTRIES
    }
    found.holders.append(ClassHolder(name, thing))
    yield from ((f"{name}.{key}", value) for key, value in data.items())
    for value in vars(thing).values():
        function = value.fget if isinstance(value, property) else getattr(value, "__func__", value)
        if isinstance(function, FunctionType):
            yield function.__name__, function


def _visit_function(name: str, thing: FunctionType, found: Reached) -> _Found:
    yield from zip(thing.__code__.co_freevars, thing.__closure__ or (), strict=False)
    yield from ((f"{name}'s default", one) for one in thing.__defaults__ or ())
    yield from (thing.__kwdefaults__ or {}).items()
    if thing.__dict__ or not is_passed_over(thing):
        yield from _visit_attributes(name, thing.__dict__, found)
    if not is_passed_over(thing):
        yield from _visit_globals(thing, found)


def _visit_variable(name: str, thing: CellType | ContextVar[Any], found: Reached) -> _Found:
    found.holders.append(VariableHolder(name, thing))
    value = read_variable(thing)
    # What an enclosing function has given no value tells calls from others by being none.
    if value is not ABSENT:
        yield name, value


def _visit_globals(thing: FunctionType, found: Reached) -> _Found:
    names = _list_names(thing.__code__)
    spaces = _find_namespaces(thing, names)
    for space in spaces.values():
        known, made = [one for one in names if one in space], frozenset[str]()
        if space is thing.__globals__:
            # An attribute may be called as a result is, which a notebook has as a global variable.
            own, written = (_list_globals(thing.__code__, ends) for ends in (_GLOBAL, _STORE))
            known = [one for one in known if one in own or not holds_graph(space[one])]
            made = written - space.keys()
        data = (*(one for one in known if not isinstance(space[one], ModuleType)), *sorted(made))
        if data:
            found.holders.append(MappingHolder("", space, attributes=True, only=data))
        yield from ((one, space[one]) for one in known)


def _find_namespaces(thing: FunctionType, names: Iterable[str]) -> dict[str, dict[str, Any]]:
    """Return the globals of a function, and those of modules of which it uses names, as ``helpers.step``."""
    spaces: dict[str, dict[str, Any]] = {thing.__module__: thing.__globals__}
    enclosed = [read_variable(cell) for cell in thing.__closure__ or ()]
    # A function may import a module itself.
    waiting = [*enclosed, *map(thing.__globals__.get, names), *map(sys.modules.get, names)]
    while waiting:
        module = waiting.pop()
        if not isinstance(module, ModuleType) or module.__name__ in spaces:
            continue
        if not is_passed_over_module(module.__name__):
            spaces[module.__name__] = vars(module)
            waiting.extend(map(vars(module).get, names))
    return spaces


@lru_cache(maxsize=4096)
def _list_names(code: CodeType) -> tuple[str, ...]:
    """Return the names that a function may look up, those of functions within it included."""
    inner = [one for one in code.co_consts if isinstance(one, CodeType)]
    return tuple(dict.fromkeys((*code.co_names, *(name for one in inner for name in _list_names(one)))))


@lru_cache(maxsize=4096)
def _list_globals(code: CodeType, ends: tuple[str, ...]) -> frozenset[str]:
    """Return the globals of operations whose names end so, those of functions within one included."""
    inner = [_list_globals(one, ends) for one in code.co_consts if isinstance(one, CodeType)]
    own = (one.argval for one in get_instructions(code) if one.opname.endswith(ends))
    return frozenset(own).union(*inner)


def _visit_method(name: str, thing: Any, found: Reached) -> _Found:
    del found
    # The cell is a method: its object is what the user knows by name.
    yield name, thing.__self__
    if isinstance(thing, MethodType):
        yield name, thing.__func__


def _visit_partial(name: str, thing: partial[Any], found: Reached) -> _Found:
    del found
    yield name, thing.func
    yield from ((f"{name}.args[{number}]", value) for number, value in enumerate(thing.args))
    yield from thing.keywords.items()


def _join(name: str, key: object) -> str:
    return f"{name}.{key}" if name else str(key)


#: What to do with each kind of object.
_VISITS: tuple[tuple[Any, Callable[[str, Any, Reached], _Found]], ...] = (
    ((random.Random, *GENERATORS), _visit_generator),
    (numpy.ndarray, _visit_array),
    (torch.Tensor, _visit_tensor),
    (torch.nn.Module, _visit_module),
    (dict, _visit_dict),
    ((list, deque, tuple, set, frozenset), _visit_sequence),
    (FunctionType, _visit_function),
    ((CellType, ContextVar), _visit_variable),
    ((MethodType, BuiltinFunctionType, MethodWrapperType), _visit_method),
    (partial, _visit_partial),
    (type, _visit_type),
)
