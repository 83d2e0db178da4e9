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
from collections import Counter, OrderedDict, deque
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import nullcontext
from enum import Enum
from functools import lru_cache, partial
from itertools import repeat
from types import FunctionType, MethodType, ModuleType
from typing import Any

import numpy
import torch
from torch import Tensor
from torch.utils.hooks import RemovableHandle

_preserve_version: Any = torch.autograd._unsafe_preserve_version_counter  # type: ignore[attr-defined]
#: Packages whose classes and functions keep no values of a user's code from step to step.
LIBRARIES = frozenset({*sys.stdlib_module_names, "torch", "numpy", "ckptplan"})
#: Arrays of at most this size are copied. Larger arrays are taken for data that steps only read.
MAX_COPIED_BYTES = 2**20
#: Values that never change.
PLAIN_TYPES = (int, float, complex, bool, str, bytes, type(None))


class Absent(Enum):
    """Stands for the value of a name that does not exist."""

    ABSENT = "absent"


ABSENT = Absent.ABSENT


class TensorContent:
    """A tensor that steps write in place: its numbers are the value, not the tensor object."""

    __slots__ = ("tensor",)

    def __init__(self, tensor: Tensor) -> None:
        self.tensor = tensor


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


class _ContentNest(Nest):
    """The numbers of a tensor that steps write in place."""

    __slots__ = ("tensor", "version")

    def __init__(self, tensor: Tensor) -> None:
        self.tensor, self.version = tensor, read_version(tensor)

    def fill(self, leaves: Iterator[Tensor], filled: dict[int, Any], fresh: bool) -> Any:
        content = next(leaves)
        if content is not self.tensor:
            overwrite(self.tensor, content, self.version)
        return self.tensor


def overwrite(tensor: Tensor, content: Tensor, version: int) -> None:
    """Write numbers into a tensor, which had them at ``version``; a tensor that was resized is resized back.

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
    """A container or an object with parts; ``keys`` are the keys of a dict, or the names of attributes."""

    __slots__ = ("container", "keys", "parts")

    def __init__(self, container: Any) -> None:
        self.container: Any = container
        self.keys: tuple[Any, ...] = ()
        self.parts: tuple[Nest, ...] = ()

    def fill(self, leaves: Iterator[Tensor], filled: dict[int, Any], fresh: bool) -> Any:
        if id(self) in filled:
            return filled[id(self)]
        container = filled[id(self)] = self.make_empty() if fresh else self.container
        self.put([part.fill(leaves, filled, fresh) for part in self.parts], container)
        return container

    def describe(self) -> Any:
        return type(self.container), [part.describe() for part in self.parts]

    def release(self, released: set[int]) -> None:
        if id(self) not in released:
            released.add(id(self))
            self.container = self.make_empty()
            for part in self.parts:
                part.release(released)

    def make_empty(self) -> Any:
        """Return an empty container or object of the same kind."""
        container = copy.copy(self.container)
        container.clear()
        return container

    def put(self, parts: list[Any], container: Any) -> None:
        """Replace the content of a container or an object by ``parts``."""
        raise NotImplementedError


class _ListNest(_PartsNest):
    """A list or a deque."""

    __slots__ = ()

    def make_empty(self) -> Any:
        return [] if type(self.container) is list else super().make_empty()

    def put(self, parts: list[Any], container: Any) -> None:
        container.clear()
        container.extend(parts)


class _TupleNest(_PartsNest):
    """A tuple. Filling always makes a new tuple, so that the nest needs only the class."""

    __slots__ = ("kind",)

    def __init__(self, container: Any) -> None:
        super().__init__(None)
        self.kind: Any = type(container)

    def describe(self) -> Any:
        return self.kind, [part.describe() for part in self.parts]

    def make_empty(self) -> Any:
        return None

    def fill(self, leaves: Iterator[Tensor], filled: dict[int, Any], fresh: bool) -> Any:
        if id(self) not in filled:
            parts, kind = [part.fill(leaves, filled, fresh) for part in self.parts], self.kind
            is_named = hasattr(kind, "_fields")
            filled[id(self)] = tuple(parts) if kind is tuple else kind(*parts) if is_named else kind(parts)
        return filled[id(self)]


class _DictNest(_PartsNest):
    __slots__ = ()

    def make_empty(self) -> Any:
        return {} if type(self.container) is dict else super().make_empty()

    def put(self, parts: list[Any], container: Any) -> None:
        container.clear()
        # Not by update, which counts in a Counter.
        for key, part in zip(self.keys, parts, strict=True):
            container[key] = part


class _ObjectNest(_PartsNest):
    """An object with attributes, such as a data class or a distribution."""

    __slots__ = ()

    def make_empty(self) -> Any:
        try:
            return object.__new__(type(self.container))
        except TypeError:
            return copy.copy(self.container)

    def put(self, parts: list[Any], container: Any) -> None:
        for name in list_attributes(container):
            if name not in self.keys:
                object.__delattr__(container, name)
        for name, part in zip(self.keys, parts, strict=True):
            object.__setattr__(container, name, part)


class _AttributedNest(_ObjectNest):
    """A list, a deque or a dict that also has attributes; its first part has the elements."""

    __slots__ = ()

    def make_empty(self) -> Any:
        return copy.copy(self.container)

    def put(self, parts: list[Any], container: Any) -> None:
        container.clear()
        if isinstance(container, dict):
            for key, part in parts[0].items():
                container[key] = part
        else:
            container.extend(parts[0])
        super().put(parts[1:], container)


class _CopyNest(Nest):
    """An object whose content is copied: an array, a set, a random generator."""

    __slots__ = ("container", "content", "kind")

    def __init__(self, container: Any, kind: CopyKind, content: Any) -> None:
        self.container, self.kind, self.content = container, kind, content

    def fill(self, leaves: Iterator[Tensor], filled: dict[int, Any], fresh: bool) -> Any:
        container = copy.deepcopy(self.container) if fresh else self.container
        if not are_equal(self.kind.read(container), self.content):
            self.kind.write(container, self.content)
        return container


class CopyKind:
    """The functions that read the content of a kind of objects as a copy, and that write it back."""

    def __init__(self, read: Callable[[Any], Any], write: Callable[[Any, Any], object]) -> None:
        self.read, self.write = read, write


def _refill(container: Any, content: Any) -> None:
    container.clear()
    container.update(content)


def _fill_array(array: Any, content: Any) -> None:
    array[...] = content


def _fill_bytes(array: Any, content: Any) -> None:
    array[:] = content


COPY_KINDS: dict[type, CopyKind] = {
    set: CopyKind(set, _refill),
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
#: Containers whose attributes nobody sets, though each instance could have some.
_PLAIN_CONTAINERS = (OrderedDict, Counter)
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
    opener = _find_opener(value.__class__)
    if opener is None:
        return _PlainNest(value)
    return memo.get(id(value)) or opener(value, leaves, memo)


_Opener = Callable[[Any, list[Tensor], NestMemo], Nest]


def _open_plain(value: Any, leaves: list[Tensor], memo: NestMemo) -> Nest:
    return _PlainNest(value)


def _open_tensor(value: Tensor, leaves: list[Tensor], memo: NestMemo) -> Nest:
    leaves.append(value)
    return LEAF


def _open_parameter(value: Tensor, leaves: list[Tensor], memo: NestMemo) -> Nest:
    return _open_tensor(value, leaves, memo) if memo.parameters else _PlainNest(value)


def _open_content(value: TensorContent, leaves: list[Tensor], memo: NestMemo) -> Nest:
    leaves.append(value.tensor)
    return _ContentNest(value.tensor)


def _open_copied(value: Any, leaves: list[Tensor], memo: NestMemo) -> Nest:
    kind = find_copy_kind(value.__class__)
    if kind is None or (
        isinstance(value, numpy.ndarray) and (value.nbytes > MAX_COPIED_BYTES or not value.flags.writeable)
    ):
        return _PlainNest(value)
    nest = memo[id(value)] = _CopyNest(value, kind, kind.read(value))
    return nest


def _make_opener(make: Callable[[Any], Any], list_parts: Callable[[Any, Any], Iterable[Any]]) -> _Opener:
    def open_parts(value: Any, leaves: list[Tensor], memo: NestMemo) -> Nest:
        nest = memo[id(value)] = make(value)
        nest.parts = tuple([open_nest(part, leaves, memo) for part in list_parts(nest, value)])
        return memo[id(value)]

    return open_parts


def _list_values(nest: Any, value: Any) -> Any:
    nest.keys = tuple(value)
    return value.values()


def _list_attribute_values(nest: Any, value: Any) -> Iterable[Any]:
    nest.keys = list_attributes(value)
    return [getattr(value, name) for name in nest.keys]


def _list_all_parts(nest: Any, value: Any) -> Iterable[Any]:
    return [dict(value) if isinstance(value, dict) else list(value), *_list_attribute_values(nest, value)]


def _list_elements(nest: Any, value: Any) -> Any:
    return value


_OPENERS: tuple[tuple[Any, _Opener], ...] = (
    (torch.nn.Parameter, _open_parameter),
    (Tensor, _open_tensor),
    (TensorContent, _open_content),
    (torch.Size, _open_plain),
    (tuple, _make_opener(_TupleNest, _list_elements)),
    (list | deque, _make_opener(_ListNest, _list_elements)),
    (dict, _make_opener(_DictNest, _list_values)),
    (tuple(COPY_KINDS), _open_copied),
)
_open_attributed = _make_opener(_AttributedNest, _list_all_parts)
_open_object = _make_opener(_ObjectNest, _list_attribute_values)


@lru_cache(maxsize=4096)
def _find_opener(kind: type) -> _Opener | None:
    if kind.__dictoffset__ != 0 and issubclass(kind, list | deque | dict) and kind not in _PLAIN_CONTAINERS:
        return _open_attributed
    opener = next((opener for base, opener in _OPENERS if issubclass(kind, base)), None)
    return opener or (_open_object if is_object(kind) else None)


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
