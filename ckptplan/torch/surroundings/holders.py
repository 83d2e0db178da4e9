"""Objects whose content steps may change, one class for each kind, and what is remembered of each.

The *content* of a holder is a copy of what it holds directly: names or positions with references to values, or
the numbers of a tensor. Holders compare two contents, and put one back. What is taken from iterators during the
trial is recorded, so that it can be given again: most cannot be copied or compared.

A step may do something else only after many: detach its state by a *count* of its own, or change a slope. No
value shows that. So small contents that steps change are a part of each checkpoint, as random generators are:
numbers, texts and short tuples of them under a name, tensors and arrays of a few elements, and lists of
numbers. Of other lists only what was added is dropped.
"""

from __future__ import annotations

import io
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Iterator, MutableMapping
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass
from enum import Enum
from itertools import chain
from numbers import Number
from operator import is_
from types import CellType, GeneratorType
from typing import Any, TypeAlias
from weakref import ref

import numpy
import torch

from ckptplan.torch.surroundings.signature import hash_numbers, is_freed, is_passed_over, list_kept, read_cache
from ckptplan.torch.trees import find_tensors

#: A name, a key or an index within a holder; None stands for all of its content.
Key: TypeAlias = Any
#: What ``Holder.read`` returned at some moment.
Content: TypeAlias = Any


class Absent(Enum):
    """The value of a key that a mapping does not have. A state may hold it: steps may make an attribute."""

    ABSENT = "absent"


ABSENT: Any = Absent.ABSENT
#: What a checkpoint has of a value that it leaves alone.
LEFT = object()
#: The most elements of a tensor, an array or a tuple that steps may count by, and of a list.
_MOST_COUNTED, _MOST_LISTED = 16, 1_024


def _is_plain(value: Any) -> bool:
    if isinstance(value, tuple):
        return len(value) <= _MOST_COUNTED and all(map(_is_plain, value))
    return value is None or value is ABSENT or isinstance(value, Number | str | bytes)


class Holder(ABC):
    """An object whose content steps may change. ``name`` is how a user would write it, e.g. ``net.1``."""

    #: Whether a change can be undone; of tensors, whether there is room for a copy.
    can_put_back = True

    def __init__(self, name: str, thing: Any) -> None:
        self.name, self.thing = name, thing

    @property
    def identity(self) -> tuple[Any, ...]:
        """What tells it from other holders, as long as what it holds is alive."""
        return type(self), id(self.thing)

    @abstractmethod
    def read(self) -> Content:
        """Return the present content."""

    def list_changes(self, before: Content, after: Content) -> Iterator[Key]:
        """Yield the keys whose values differ between two contents."""
        if before != after:
            yield None

    @abstractmethod
    def write(self, content: Content) -> None:
        """Put a content back."""

    def can_write(self, content: Content) -> bool:
        """Return whether ``write`` puts all of a content back."""
        del content
        return self.can_put_back

    def read_count(self, key: Key) -> Any:
        """Return what a checkpoint has of a key, ``LEFT`` if it is left alone."""
        del key
        return LEFT

    def write_count(self, key: Key, count: Any) -> None:
        """Set a key back to what a checkpoint has, which is not ``LEFT``."""
        del key, count

    def value_of(self, key: Key) -> Any:
        """Return the present value of a key."""
        del key
        return self.thing

    def name_of(self, key: Key) -> str:
        """Return the name of a value, as a user would write it."""
        if key is None:
            return self.name
        # The numbers of a parameter, a key in the state of an optimizer, take long to print, and change.
        return f"{self.name}[{type(key).__name__ if isinstance(key, torch.Tensor) else repr(key)}]"


class NamedValues(Holder):
    """A holder whose content is a dict of values by their keys; ``ABSENT`` stands for none."""

    #: Whether keys are names of attributes.
    attributes = True

    def list_changes(self, before: Content, after: Content) -> Iterator[Key]:
        return _list_changed_keys(before, after)

    def write(self, content: Content) -> None:
        for key in list(_list_changed_keys(content, self.read())):
            self.give(key, content.get(key, ABSENT))

    @abstractmethod
    def give(self, key: Key, value: Any) -> None:
        """Give a key a value; ``ABSENT`` removes it."""

    def get(self, key: Key) -> Any:
        """Return the value of a key, ``ABSENT`` if there is none."""
        return self.read().get(key, ABSENT)

    def read_count(self, key: Key) -> Any:
        value = self.get(key)
        if isinstance(value, torch.Tensor):
            # It may be bound anew in each step, or changed in place.
            return value.clone() if value.numel() <= _MOST_COUNTED and not value.requires_grad else LEFT
        return value if _is_plain(value) else LEFT

    def write_count(self, key: Key, count: Any) -> None:
        self.give(key, count.clone() if isinstance(count, torch.Tensor) else count)

    def value_of(self, key: Key) -> Any:
        return self.read().get(key)

    def name_of(self, key: Key) -> str:
        if key is None or not self.attributes:
            return super().name_of(key)
        return f"{self.name}.{key}" if self.name else str(key)


def are_same(one: Any, other: Any) -> bool:
    """Return whether two references are to one object, or to equal numbers or texts."""
    if one is other:
        return True
    if type(one) is not type(other) or not isinstance(one, Number | str | bytes):
        return False
    return bool(one == other or (one != one and other != other))  # noqa: PLR0124 - NaN equals itself


def _hold_same_objects(before: dict[Key, Any], after: dict[Key, Any]) -> bool:
    """Return whether nothing changed, quickly: a closure may hold a whole data set."""
    return (
        len(before) == len(after)
        and all(map(is_, before, after))
        and all(map(is_, before.values(), after.values()))
    )


def _list_changed_keys(before: dict[Key, Any], after: dict[Key, Any]) -> Iterator[Key]:
    if _hold_same_objects(before, after):
        return
    for key, value in before.items():
        if not are_same(value, after.get(key, ABSENT)):
            yield key
    yield from (key for key in after if key not in before)


class MappingHolder(NamedValues):
    """A dict, or the attributes of an object.

    Arguments:
        name: how a user would write it.
        thing: the dict.
        attributes: whether its items are attributes.
        of_module: whether they are those of a module, which keeps the dict as long as it lives.
        without: keys to leave out: they belong to the machinery.
        only: the keys to look at, as the globals that a function uses; None for all.
    """

    def __init__(
        self,
        name: str,
        thing: MutableMapping[Any, Any],
        *,
        attributes: bool,
        of_module: bool = False,
        without: frozenset[str] = frozenset(),
        only: tuple[str, ...] | None = None,
    ) -> None:
        super().__init__(name, thing)
        self.is_of_module = of_module
        self.attributes, self._without, self._only = attributes, without, only

    @property
    def identity(self) -> tuple[Any, ...]:
        # Functions may use different names of one module.
        return (*super().identity, self._only)

    def read(self) -> Content:
        if self._only is not None:
            return {key: self.thing[key] for key in self._only if key in self.thing}
        if not self._without:
            return dict(self.thing)
        return {key: value for key, value in self.thing.items() if key not in self._without}

    def write(self, content: Content) -> None:
        super().write(content)
        if not self.attributes and list(self.thing) != list(content):
            # The order of a dict is part of it.
            self.thing.clear()
            self.thing.update(content)

    def get(self, key: Key) -> Any:
        # A copy of a large dict takes time.
        return self.thing.get(key, ABSENT)

    def give(self, key: Key, value: Any) -> None:
        if value is not ABSENT:
            self.thing[key] = value
        elif key in self.thing:
            del self.thing[key]


class SlotsHolder(NamedValues):
    """The attributes of an object that has slots in place of a dict."""

    def __init__(self, name: str, thing: Any, slots: Iterable[str]) -> None:
        super().__init__(name, thing)
        self._slots = tuple(slots)

    def read(self) -> Content:
        return {slot: getattr(self.thing, slot) for slot in self._slots if hasattr(self.thing, slot)}

    def give(self, key: Key, value: Any) -> None:
        if value is not ABSENT:
            object.__setattr__(self.thing, key, value)
        elif hasattr(self.thing, key):
            object.__delattr__(self.thing, key)


class ClassHolder(NamedValues):
    """The attributes of a class, methods included."""

    def read(self) -> Content:
        return {key: value for key, value in vars(self.thing).items() if not key.startswith(("__", "_abc_"))}

    def give(self, key: Key, value: Any) -> None:
        if value is not ABSENT:
            setattr(self.thing, key, value)
        elif key in vars(self.thing):
            delattr(self.thing, key)


def is_class_data(key: str, value: Any) -> bool:
    """Return whether an attribute of a class is data, which steps may change; what ``abc`` keeps is none."""
    return not (key.startswith(("__", "_abc_")) or callable(value) or hasattr(value, "__get__"))


class VariableHolder(NamedValues):
    """A variable of an enclosing function, or a context variable."""

    thing: CellType | ContextVar[Any]

    def __init__(self, name: str, thing: CellType | ContextVar[Any]) -> None:
        super().__init__(name, thing)
        #: Whether a first value, once there, cannot be taken away.
        self.keeps_value = isinstance(thing, ContextVar) and read_variable(thing) is ABSENT

    def read(self) -> Content:
        return {None: read_variable(self.thing)}

    def give(self, key: Key, value: Any) -> None:
        if isinstance(self.thing, ContextVar):
            # Steps that give one its first value are refused.
            if value is not ABSENT:
                self.thing.set(value)
        elif value is not ABSENT:
            self.thing.cell_contents = value
        elif read_variable(self.thing) is not ABSENT:
            del self.thing.cell_contents


def read_variable(variable: CellType | ContextVar[Any]) -> Any:
    """Return the value of a variable of an enclosing function, or of a context variable."""
    try:
        return variable.cell_contents if isinstance(variable, CellType) else variable.get()
    except (ValueError, LookupError):
        # It has no value yet.
        return ABSENT


class SequenceHolder(Holder):
    """A list or a deque. Of one that steps may count by, a checkpoint has plain values, else the length."""

    def read(self) -> Content:
        return list(self.thing)

    def list_changes(self, before: Content, after: Content) -> Iterator[Key]:
        if len(before) == len(after) and all(map(is_, before, after)):
            return
        if len(before) != len(after) or not all(map(are_same, before, after)):
            yield None

    def write(self, content: Content) -> None:
        if list(self.list_changes(content, list(self.thing))):
            self.thing.clear()
            self.thing.extend(content)

    def read_count(self, key: Key) -> Any:
        values = self.thing
        return tuple(values) if len(values) <= _MOST_LISTED and all(map(_is_plain, values)) else len(values)

    def write_count(self, key: Key, count: Any) -> None:
        if isinstance(count, tuple):
            self.write(list(count))
        else:
            while len(self.thing) > count:
                self.thing.pop()


class SetHolder(Holder):
    """A set."""

    def read(self) -> Content:
        return set(self.thing)

    def write(self, content: Content) -> None:
        if self.thing != content:
            self.thing.clear()
            self.thing.update(content)


class IteratorHolder(Holder):
    """An iterator: most can be compared, and none can be put back."""

    can_put_back = False

    def read(self) -> Content:
        if isinstance(self.thing, GeneratorType):
            frame = self.thing.gi_frame
            return None if frame is None else (frame.f_lasti, {**frame.f_locals})
        # As ``count(3)``; of other iterators the text is always the same.
        hint = getattr(self.thing, "__length_hint__", None)
        return repr(self.thing), None if hint is None else hint()

    def list_changes(self, before: Content, after: Content) -> Iterator[Key]:
        if isinstance(self.thing, GeneratorType) and before is not None and after is not None:
            changed = before[0] != after[0] or bool(list(_list_changed_keys(before[1], after[1])))
        else:
            changed = before != after
        if changed:
            yield None

    def write(self, content: Content) -> None:
        """Do nothing: the values that it gave are gone."""


#: Arrays up to this size are copied whenever they are looked at; the numbers that are looked at in larger ones.
_MOST_ARRAY_BYTES, _SAMPLE = 2**20, 2**14


@dataclass(frozen=True)
class _Numbers:
    """What is remembered of a tensor: its version and perhaps its numbers."""

    version: int
    #: Whether it had a graph.
    has_graph: bool
    #: What tells the numbers from others, None if they were not looked at.
    hash: Any
    copy: torch.Tensor | None


class TensorHolder(Holder):
    """The numbers of a tensor. Those of ``small`` ones are looked at whenever they are read."""

    def __init__(self, name: str, thing: torch.Tensor, *, small: bool) -> None:
        super().__init__(name, thing)
        self.small = small
        self._latest: ref[_Numbers] | None = None

    def can_write(self, content: Content) -> bool:
        return content.copy is not None

    def read_count(self, key: Key) -> Any:
        return self.thing.detach().clone() if self.thing.numel() <= _MOST_COUNTED else LEFT

    def write_count(self, key: Key, count: Any) -> None:
        self._set(count)

    @property
    def _version(self) -> int:
        return 0 if self.thing.is_inference() else self.thing._version

    def read(self, *, copy: Callable[[torch.Tensor], torch.Tensor] | None = None) -> Content:
        """Return the present content, with the numbers if something makes a ``copy`` of them."""
        numbers = None if copy is None or is_freed(self.thing) else copy(self.thing.detach())
        looked = hash_numbers(self.thing) if self.small or copy is not None else None
        content = _Numbers(self._version, self.thing.grad_fn is not None, looked, numbers)
        if numbers is not None:
            self._latest = ref(content)
        return content

    def find_shared_copy(self) -> Content | None:
        """Return what a snapshot that is still held remembers, if the numbers are the same; else None."""
        found = None if self._latest is None else self._latest()
        if found is None or found.has_graph != (self.thing.grad_fn is not None) or not self.is_as(found):
            return None
        return found

    def is_as(self, content: Content) -> bool:
        """Return whether nothing has changed since a content was read."""
        # Some kernels, and ``tensor.data``, write without counting it as a change.
        return self._version == content.version and (
            content.hash is None or content.hash == hash_numbers(self.thing)
        )

    def list_changes(self, before: Content, after: Content) -> Iterator[Key]:
        looked = before.hash is not None and after.hash is not None
        if before.version != after.version or (looked and before.hash != after.hash):
            yield None

    def write(self, content: Content) -> None:
        if content.copy is None or self.thing.is_inference():
            return
        if content.hash != hash_numbers(self.thing):
            self._set(content.copy)
        if not content.has_graph and self.thing.grad_fn is not None and not self.thing._is_view():
            # A step wrote into it with a gradient.
            self.thing.detach_()

    def _set(self, numbers: torch.Tensor) -> None:
        """Put numbers back, and the shape."""
        # Not counted as a change: a graph that was recorded before may need the tensor as it is again.
        with torch.no_grad():
            if self.thing.shape == numbers.shape:
                self.thing.data.copy_(numbers)
            else:
                self.thing.data = numbers.to(self.thing.device, copy=True)


class CacheHolder(Holder):
    """What ``functools.lru_cache`` remembers: put back by forgetting all, if it was empty."""

    def read(self) -> Content:
        return read_cache(self.thing)

    def can_write(self, content: Content) -> bool:
        # It is emptied if it was empty. Of others, tensors matter: they have a graph, or lack one.
        return content[1] == 0 or not any(True for _ in find_tensors(list_kept(self.thing)))

    def write(self, content: Content) -> None:
        if content[1] == 0 and self.read()[1]:
            self.thing.cache_clear()


class GradientHolder(Holder):
    """The gradient of a parameter and the hooks on it: what no step may write, since it runs again."""

    thing: torch.nn.Parameter
    GRADIENT, HOOKS = "grad", "hooks"

    def read(self) -> Content:
        gradient = self.thing.grad
        return gradient, None if gradient is None else gradient._version, dict(self.thing._backward_hooks or {})

    def list_changes(self, before: Content, after: Content) -> Iterator[Key]:
        if before[0] is not after[0] or before[1] != after[1]:
            yield self.GRADIENT
        if before[2].keys() != after[2].keys():
            yield self.HOOKS

    def write(self, content: Content) -> None:
        (gradient, _, hooks), present = content, self.thing._backward_hooks
        if self.thing.grad is not gradient:
            self.thing.grad = gradient
        if present is not None and present.keys() != hooks.keys():
            present.clear()
            present.update(hooks)

    def name_of(self, key: Key) -> str:
        return f"{self.name}.grad" if key == self.GRADIENT else self.name


class ArrayHolder(Holder):
    """The numbers of an array of numpy; of a large one, as a data set, a sample is looked at."""

    def __init__(self, name: str, thing: numpy.ndarray[Any, Any]) -> None:
        super().__init__(name, thing)
        # All numbers are remembered then.
        self.can_put_back = thing.nbytes <= _MOST_ARRAY_BYTES

    def read_count(self, key: Key) -> Any:
        return self.thing.copy() if self.thing.size <= _MOST_COUNTED else LEFT

    def write_count(self, key: Key, count: Any) -> None:
        self.thing[...] = count

    def read(self) -> Content:
        if self.can_put_back:
            return self.thing.copy()
        return self.thing.flat[:: -(-self.thing.size // _SAMPLE)]

    def list_changes(self, before: Content, after: Content) -> Iterator[Key]:
        if before.tobytes() != after.tobytes():
            yield None

    def write(self, content: Content) -> None:
        if self.can_put_back and self.thing.tobytes() != content.tobytes():
            self.thing[...] = content


class TappedIterator:
    """An iterator that can be set back to what it has given since it was tapped."""

    def __init__(self, inner: Iterator[Any]) -> None:
        self.inner = inner
        self.taken: list[Any] = []
        self.position = 0

    def __iter__(self) -> TappedIterator:
        return self

    def __next__(self) -> Any:
        if self.position == len(self.taken):
            self.taken.append(next(self.inner))
        self.position += 1
        return self.taken[self.position - 1]

    def __getattr__(self, name: str) -> Any:
        return getattr(self.inner, name)

    def close(self) -> Iterator[Any]:
        """Return an iterator that gives everything again."""
        return chain(self.taken, self.inner) if self.taken else self.inner


class TapHolder(IteratorHolder):
    """How much was taken from an iterator."""

    thing: TappedIterator

    def read(self) -> Content:
        return self.thing.position

    def write(self, content: Content) -> None:
        self.thing.position = content


@contextmanager
def tap_iterators(holders: list[Holder]) -> Iterator[list[Holder]]:
    """Replace the iterators in some holders by taps; yield the holders of these, and put all back on exit."""
    taps: dict[int, TapHolder] = {}
    changed: list[tuple[Holder, Key, Any]] = []

    def tap(value: Any, name: str) -> Any:
        if not _can_tap(value):
            return value
        return taps.setdefault(id(value), TapHolder(name, TappedIterator(value))).thing

    for holder in holders:
        if isinstance(holder, NamedValues | SequenceHolder):
            content = holder.read()
            for key, value in content.items() if isinstance(content, dict) else enumerate(content):
                tapped = _exchange(value, holder.name_of(key), tap)
                if tapped is not value:
                    changed.append((holder, key, value))
                    _replace(holder, key, tapped)
    try:
        yield list(taps.values())
    finally:
        closed = {number: tap.thing.close() for number, tap in taps.items()}
        for holder, key, value in changed:
            _replace(holder, key, _exchange(value, "", lambda one, _: closed.get(id(one), one)))


def _exchange(value: Any, name: str, find: Callable[[Any, str], Any]) -> Any:
    """Return a value with others in place of iterators, itself or in tuples: lists and dicts are holders."""
    if type(value) is tuple:
        parts = tuple(_exchange(one, f"{name}[{number}]", find) for number, one in enumerate(value))
        return value if all(map(is_, parts, value)) else parts
    return find(value, name)


def _can_tap(value: object) -> bool:
    """Return whether nothing but the numbers that an iterator gives can matter.

    The attributes of iterators of the user's own classes are searched, as those of other objects. A file that
    is written to (a log) is no source of values, though files can be iterated over.
    """
    kind = type(value)
    if not hasattr(kind, "__next__") or not is_passed_over(kind):
        return False
    return not (isinstance(value, io.IOBase) and (value.closed or value.writable()))


def _replace(holder: Holder, key: Key, value: Any) -> None:
    content = holder.read()
    content[key] = value
    holder.write(content)
