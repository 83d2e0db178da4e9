"""Nests of tensors: takes a value apart into its tensors and a structure, and puts it together again.

A checkpoint has the tensors of a value as ``leaves``, and everything else as a ``Nest``: containers and objects
with their content, and plain values. A value is put together in one of two ways. ``fresh=True`` makes new
containers, for a state that steps pass on. ``fresh=False`` fills the containers and objects of which the value
consisted, so that every object that refers to them finds their earlier content.
"""

from __future__ import annotations

import copy
import math
import operator
import random
import sys
import threading
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import nullcontext
from enum import Enum
from functools import lru_cache, partial
from itertools import repeat
from types import FunctionType, MethodType, ModuleType
from typing import Any, NamedTuple

import numpy
import torch
from torch import Tensor
from torch.utils.hooks import RemovableHandle

_preserve_version: Any = torch.autograd._unsafe_preserve_version_counter  # type: ignore[attr-defined]
#: Packages of libraries. Their classes and functions are not searched for values that steps keep.
LIBRARIES = frozenset({*sys.stdlib_module_names, "torch", "numpy", "ckptplan"})
#: Arrays of at most this size are copied.
MAX_COPIED_BYTES = 2**20
#: Values that never change.
PLAIN_TYPES = (int, float, complex, bool, str, bytes, type(None))


class Absent(Enum):
    """Stands for the value of a name that does not exist."""

    ABSENT = "absent"


ABSENT = Absent.ABSENT


class Nest:
    """The structure of a value: everything but its tensors."""

    __slots__ = ()

    def fill(self, leaves: Iterator[Tensor], filled: dict[int, Any], fresh: bool) -> Any:
        """Return the value with the next tensors of ``leaves``; ``filled`` has the containers filled before."""
        raise NotImplementedError

    def describe(self) -> Any:
        """Return the kinds of containers and the plain values, for ``are_alike``."""
        return type(self)

    def release(self, released: set[int]) -> None:
        """Drop references to containers, which hold tensors. Afterwards ``fill`` can only make new containers.

        ``released`` has the ids of nests that were released already.
        """


class _LeafNest(Nest):
    __slots__ = ()

    def fill(self, leaves: Iterator[Tensor], filled: dict[int, Any], fresh: bool) -> Any:
        return next(leaves)


LEAF = _LeafNest()


class _PlainNest(Nest):
    """A value that is kept by reference."""

    __slots__ = ("value",)

    def __init__(self, value: Any) -> None:
        self.value = value

    def fill(self, leaves: Iterator[Tensor], filled: dict[int, Any], fresh: bool) -> Any:
        return self.value

    def describe(self) -> Any:
        return self.value if isinstance(self.value, PLAIN_TYPES) else type(self.value)


def overwrite(tensor: Tensor, content: Tensor, version: int) -> None:
    """Give a tensor back the values that it had at ``version``, and its shape if it was resized.

    PyTorch does not count some writes, such as those of running statistics. If the version is still the same,
    this write is not counted either, since graphs of other calls may have saved the tensor. Equal numbers are
    not written at all.
    """
    if tensor.shape == content.shape and torch.equal(tensor, content):
        return
    uncounted = read_version(tensor) == version and not tensor.is_inference()
    with (
        torch.no_grad(),
        _preserve_version(tensor) if uncounted else nullcontext(),
    ):
        if tensor.shape != content.shape:
            # A step may resize a buffer, as observers of quantisation do.
            tensor.resize_(content.shape)
        tensor.copy_(content)


class _PartsNest(Nest):
    """A tuple, a list, a deque, a dict or an object: its elements, and then its attributes.

    ``container`` is the value, or only its class if it is a tuple, of which filling always makes a new one.
    ``keys`` are the keys of a dict, None without keys. ``names`` are the names of the attributes.
    """

    __slots__ = ("container", "keys", "names", "parts")

    def __init__(self, value: Any) -> None:
        is_tuple = isinstance(value, tuple)
        self.container: Any = value.__class__ if is_tuple else value
        self.keys = tuple(value) if isinstance(value, dict) else None
        self.names = () if is_tuple else list_attributes(value)
        self.parts: tuple[Nest, ...] = ()

    def fill(self, leaves: Iterator[Tensor], filled: dict[int, Any], fresh: bool) -> Any:
        if id(self) in filled:
            return filled[id(self)]
        if isinstance(self.container, type):
            parts, kind = [part.fill(leaves, filled, fresh) for part in self.parts], self.container
            is_named = hasattr(kind, "_fields")
            filled[id(self)] = tuple(parts) if kind is tuple else kind(*parts) if is_named else kind(parts)
            return filled[id(self)]
        container = filled[id(self)] = self._make_empty() if fresh else self.container
        parts = [part.fill(leaves, filled, fresh) for part in self.parts]
        count = len(parts) - len(self.names)
        if isinstance(container, CONTAINERS):
            elements = parts[:count]
            refill(container, elements if self.keys is None else dict(zip(self.keys, elements, strict=True)))
        for name in list_attributes(container):
            if name not in self.names:
                object.__delattr__(container, name)
        for name, part in zip(self.names, parts[count:], strict=True):
            object.__setattr__(container, name, part)
        return container

    def describe(self) -> Any:
        kind = self.container if isinstance(self.container, type) else type(self.container)
        return kind, [part.describe() for part in self.parts]

    def release(self, released: set[int]) -> None:
        if id(self) in released:
            return
        released.add(id(self))
        if not isinstance(self.container, type):
            self.container = self._make_empty()
        for part in self.parts:
            part.release(released)

    def _make_empty(self) -> Any:
        """Return an empty container, or an object without attributes, of the same kind."""
        kind = type(self.container)
        if kind is list or kind is dict:
            return kind()
        try:
            return object.__new__(kind)
        except TypeError:
            # Only their own types make containers, and other objects that are written in C.
            empty = copy.copy(self.container)
            if isinstance(empty, CONTAINERS):
                empty.clear()
            return empty


class _CopyNest(Nest):
    """An object whose content is copied: an array, a set, a random generator."""

    __slots__ = ("container", "content", "kind")

    def __init__(self, container: Any) -> None:
        kind: Any = find_copy_kind(container.__class__)
        self.container, self.kind, self.content = container, kind, kind.read(container)

    def fill(self, leaves: Iterator[Tensor], filled: dict[int, Any], fresh: bool) -> Any:
        container = copy.deepcopy(self.container) if fresh else self.container
        if not are_equal(self.kind.read(container), self.content):
            self.kind.write(container, self.content)
        return container


def refill(container: Any, content: Any) -> None:
    """Replace the elements of a container."""
    container.clear()
    if isinstance(container, dict):
        # Not by update, which counts in a Counter.
        for key, value in content.items():
            container[key] = value
    elif isinstance(container, set):
        container.update(content)
    else:
        container.extend(content)


def _fill_array(array: Any, content: Any) -> None:
    array[...] = content


def _fill_bytes(array: Any, content: Any) -> None:
    array[:] = content


def is_copied(value: Any) -> bool:
    """Return whether the content of an object is copied. Large arrays count as data that steps only read."""
    if isinstance(value, numpy.ndarray) and (value.nbytes > MAX_COPIED_BYTES or not value.flags.writeable):
        return False
    return find_copy_kind(value.__class__) is not None


def are_equal(first: Any, other: Any) -> bool:
    """Return whether two copied contents are equal."""
    if isinstance(first, Tensor):
        return torch.equal(first, other)
    if isinstance(first, dict):
        return first.keys() == other.keys() and all(are_equal(first[name], other[name]) for name in first)
    if isinstance(first, numpy.ndarray) and first.dtype == object:
        return first.shape == other.shape and all(map(operator.is_, first.flat, other.flat))
    equality = first == other
    return equality if isinstance(equality, bool) else bool(numpy.all(equality))


def are_same(first: Any, other: Any) -> bool:
    """Return whether two references are to one object, or to equal numbers or texts."""
    if first is other:
        return True
    is_plain = type(first) is type(other) and isinstance(first, PLAIN_TYPES)
    return is_plain and (first == other or first != first)  # noqa: PLR0124 - NaN differs from itself


def _have_same_elements(first: Any, other: Any) -> bool:
    if len(first) != len(other) or not all(map(are_same, first, other)):
        return False
    return not isinstance(first, dict) or all(map(are_same, first.values(), other.values()))


class CopyKind(NamedTuple):
    """The functions that read the content of a kind of objects as a copy, write it back, and compare it."""

    read: Callable[[Any], Any]
    write: Callable[[Any, Any], object]
    are_equal: Callable[[Any, Any], bool] = are_equal


#: Containers whose elements may be of any kind.
CONTAINERS = (list, deque, dict)
COPY_KINDS: dict[type, CopyKind] = {
    dict: CopyKind(lambda container: dict(container.items()), refill, _have_same_elements),
    list: CopyKind(list, refill, _have_same_elements),
    deque: CopyKind(list, refill, _have_same_elements),
    set: CopyKind(set, refill),
    bytearray: CopyKind(bytes, _fill_bytes),
    numpy.ndarray: CopyKind(numpy.ndarray.copy, _fill_array),
    torch.Generator: CopyKind(torch.Generator.get_state, torch.Generator.set_state),
    random.Random: CopyKind(random.Random.getstate, random.Random.setstate),
    numpy.random.RandomState: CopyKind(
        lambda generator: generator.get_state(legacy=False), numpy.random.RandomState.set_state
    ),
    numpy.random.BitGenerator: CopyKind(
        lambda generator: generator.state, lambda generator, state: setattr(generator, "state", state)
    ),
}


@lru_cache(maxsize=1024)
def find_copy_kind(kind: type) -> CopyKind | None:
    """Return the functions that copy the content of a kind of objects, None if it is not copied."""
    if issubclass(kind, random.SystemRandom):
        return None
    return next((copying for base, copying in COPY_KINDS.items() if issubclass(kind, base)), None)


def are_alike(first: Any, other: Any, rounding: float) -> bool:
    """Return whether two descriptions have the same containers, and plain values equal up to rounding."""
    if isinstance(first, tuple | list) and type(first) is type(other) and len(first) == len(other):
        return all(map(are_alike, first, other, repeat(rounding)))
    if isinstance(first, float) and isinstance(other, float):
        return math.isclose(first, other, rel_tol=rounding) or (math.isnan(first) and math.isnan(other))
    return type(first) is type(other) and bool(first == other)


#: Packages whose objects are not opened, since they refer to most objects of a process.
_MACHINERY = (
    "logging", "threading", "concurrent", "asyncio", "torch._dynamo", "torch._inductor", "torch.distributed",
    "_pytest",
)  # fmt: skip
_CLOSED_TYPES = (
    type, ModuleType, FunctionType, MethodType, Enum, torch.nn.Module, Tensor, BaseException, partial, Nest,
    RemovableHandle,
)  # fmt: skip


@lru_cache(maxsize=4096)
def is_object(kind: type) -> bool:
    """Return whether instances of a class are plain objects, which consist of their attributes."""
    if kind in PLAIN_TYPES or issubclass(kind, _CLOSED_TYPES) or kind.__module__.startswith(_MACHINERY):
        return False
    if kind.__dictoffset__ != 0 or issubclass(kind, threading.local):
        return True
    is_library = kind.__module__.partition(".")[0] in LIBRARIES
    return not is_library and any("__slots__" in vars(base) for base in kind.__mro__)


@lru_cache(maxsize=1024)
def list_slots(kind: type) -> tuple[str, ...]:
    """Return the names of the slots of a class, and private names as Python mangles them."""
    names: list[str] = []
    for base in kind.__mro__:
        slots = vars(base).get("__slots__", ())
        for name in (slots,) if isinstance(slots, str) else slots:
            is_private = name.startswith("__") and not name.endswith("__")
            names.append(f"_{base.__name__.lstrip('_')}{name}" if is_private else name)
    return tuple(name for name in names if name not in ("__dict__", "__weakref__"))


def list_attributes(container: Any) -> tuple[str, ...]:
    """Return the names of the attributes that an object has."""
    if container.__class__ is list or container.__class__ is dict:
        return ()
    slots = (name for name in list_slots(container.__class__) if hasattr(container, name))
    return (*slots, *getattr(container, "__dict__", ()))


class NestMemo(dict[int, Nest]):
    """The nests of opened containers by their ids; ``parameters`` says whether parameters are leaves, too."""

    parameters = False


def open_nest(value: Any, leaves: list[Tensor], memo: NestMemo) -> Nest:
    """Append the tensors of a value to ``leaves``, and return its nest."""
    kind = value.__class__
    if kind is Tensor:
        leaves.append(value)
        return LEAF
    if kind in PLAIN_TYPES:
        return _PlainNest(value)
    base = _find_base(kind)
    if base is None or (base is torch.nn.Parameter and not memo.parameters):
        return _PlainNest(value)
    if base is Tensor or base is torch.nn.Parameter:
        leaves.append(value)
        return LEAF
    if id(value) not in memo:
        if base is tuple or base is object:
            _open_parts(value, leaves, memo)
        else:
            memo[id(value)] = _CopyNest(value) if is_copied(value) else _PlainNest(value)
    return memo[id(value)]


@lru_cache(maxsize=4096)
def _find_base(kind: Any) -> type | None:
    """Return the class as whose instance an object is opened, None if it is kept by reference."""
    if issubclass(kind, torch.Size):
        return None
    bases: tuple[Any, ...] = (torch.nn.Parameter, Tensor, tuple, CONTAINERS, *COPY_KINDS)
    base: Any = next((base for base in bases if issubclass(kind, base)), None)
    is_opened = is_object(kind) if base is None else base is CONTAINERS
    return object if is_opened else base


def _open_parts(value: Any, leaves: list[Tensor], memo: NestMemo) -> None:
    # A part may refer to the value.
    nest = memo[id(value)] = _PartsNest(value)
    is_nest = isinstance(value, (tuple, *CONTAINERS))
    elements = value.values() if isinstance(value, dict) else value if is_nest else ()
    parts = [*elements, *(getattr(value, name) for name in nest.names)]
    nest.parts = tuple([open_nest(part, leaves, memo) for part in parts])


def flatten(value: Any, *, parameters: bool = False) -> tuple[list[Tensor], Nest]:
    """Return the tensors of a value and its nest; ``parameters`` says whether parameters count as tensors."""
    memo, leaves = NestMemo(), list[Tensor]()
    memo.parameters = parameters
    return leaves, open_nest(value, leaves, memo)


def list_opaque(value: Any) -> tuple[Any, ...]:
    """Return the objects within a value that checkpoints keep by reference, such as modules and iterators."""
    memo = NestMemo()
    nests = [open_nest(value, [], memo)]
    opaque: list[Any] = []
    visited: set[int] = set()
    # The list grows while the loop runs over it.
    for nest in nests:
        if isinstance(nest, _PlainNest) and not isinstance(nest.value, PLAIN_TYPES):
            opaque.append(nest.value)
        elif isinstance(nest, _PartsNest) and id(nest) not in visited:
            visited.add(id(nest))
            nests += nest.parts
    return tuple(opaque)


def fill(nest: Nest, leaves: Iterable[Any], *, fresh: bool = True) -> Any:
    """Return the value of a nest with other tensors, in new containers or in its own.

    The leaves may be gradients, some of which are None.
    """
    return nest.fill(iter(leaves), {}, fresh)


def list_leaves(value: Any) -> list[Tensor]:
    """Return the tensors of a value, without parameters."""
    return [value] if value.__class__ is Tensor else flatten(value)[0]


def map_leaves(change: Callable[[Tensor], Tensor], value: Any) -> Any:
    """Return a value in new containers, with each tensor replaced by ``change(tensor)``."""
    leaves, nest = flatten(value)
    return fill(nest, map(change, leaves))


def stack(values: Sequence[Any]) -> Any:
    """Return the values of several steps as one value, whose tensors have time as the first axis."""
    if values[0].__class__ is Tensor:
        return torch.stack(list(values))
    flat = [flatten(value) for value in values]
    return fill(flat[0][1], [torch.stack(group) for group in zip(*(leaves for leaves, _ in flat), strict=True)])


def unstack(leaves: Sequence[Tensor], nest: Nest) -> Iterator[Any]:
    """Yield the value of each step, from the nest of a value and its tensors with time as the first axis.

    The tensors are unbound at once: an index would give each step a gradient as large as the whole tensor.
    """
    if nest is LEAF:
        yield from leaves[0].unbind(0)
        return
    for parts in zip(*(leaf.unbind(0) for leaf in leaves), strict=True):
        yield fill(nest, parts)


def is_differentiable(tensor: Tensor) -> bool:
    """Return whether gradients can flow through a tensor."""
    return tensor.is_floating_point() or tensor.is_complex()


def count_bytes(tensors: Iterable[Tensor]) -> int:
    """Return the bytes of tensors, each object once."""
    return sum({id(tensor): tensor.numel() * tensor.element_size() for tensor in tensors}.values())


def has_memory(tensor: Tensor) -> bool:
    """Return whether the numbers of a tensor lie in memory. They do not if FSDP, for example, freed them."""
    if tensor.layout is not torch.strided or tensor._is_zerotensor():
        return False
    if tensor.__class__ is not Tensor:
        # The memory of a DTensor is the memory of its local part.
        tensor = getattr(tensor, "_local_tensor", tensor)
    return tensor.numel() == 0 or tensor.is_meta or tensor.untyped_storage().nbytes() > 0


def get_storage(tensor: Tensor) -> int:
    """Return a number that tensors share if they lie in the same memory."""
    return tensor.untyped_storage()._cdata if has_memory(tensor) else id(tensor)


def compact(tensor: Tensor) -> Tensor:
    """Return a copy of a tensor that would keep a larger storage alive; return other tensors themselves."""
    storage_bytes = tensor.untyped_storage().nbytes() if tensor.layout is torch.strided else 0
    return tensor.clone() if storage_bytes > tensor.numel() * tensor.element_size() else tensor


def read_version(tensor: Tensor) -> int:
    """Return a number that grows with each counted write into a tensor; tensors of inference mode have none."""
    return 0 if tensor.is_inference() else tensor._version


def read_versions(tensors: Iterable[Tensor]) -> list[int]:
    """Return the versions of tensors."""
    return [read_version(tensor) for tensor in tensors]
