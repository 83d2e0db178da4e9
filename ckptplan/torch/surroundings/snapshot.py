"""Remembers all surroundings at a moment, lists what has changed since, and puts it back.

Looks for tensors with graphs in values that steps leave behind.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Container, Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any, TypeAlias

import torch

from ckptplan.torch.surroundings.holders import (
    ABSENT,
    ArrayHolder,
    CacheHolder,
    Content,
    Holder,
    IteratorHolder,
    Key,
    NamedValues,
    TensorHolder,
)
from ckptplan.torch.surroundings.walk import walk

#: How far into nested values tensors are looked for.
_DEPTH = 4


def find_tensors(value: Any, depth: int = _DEPTH) -> Iterator[torch.Tensor]:
    """Yield the tensors in a value: itself, or in containers and in the attributes of plain objects."""
    if isinstance(value, torch.Tensor):
        yield value
    elif depth and isinstance(value, list | tuple | deque | set):
        for one in value:
            yield from find_tensors(one, depth - 1)
    elif depth and isinstance(value, dict):
        for one in value.values():
            yield from find_tensors(one, depth - 1)
    elif depth and _is_plain_object(value):
        for one in vars(value).values():
            yield from find_tensors(one, depth - 1)


def holds_graph(value: Any) -> bool:
    """Return whether a value holds a tensor that was computed, with its graph."""
    return any(tensor.grad_fn is not None for tensor in find_tensors(value))


def replace_tensors(value: Any, change: Callable[[torch.Tensor], torch.Tensor], depth: int = _DEPTH) -> Any:
    """Return a value with its tensors replaced; lists, dicts and objects are changed in place."""
    if isinstance(value, torch.Tensor):
        return change(value)
    if not depth:
        return value
    if isinstance(value, list | deque):
        for place, one in enumerate(value):
            value[place] = replace_tensors(one, change, depth - 1)
    elif isinstance(value, tuple) and hasattr(value, "_replace"):
        return type(value)(*(replace_tensors(one, change, depth - 1) for one in value))
    elif type(value) is tuple:
        return tuple(replace_tensors(one, change, depth - 1) for one in value)
    elif isinstance(value, dict):
        for key, one in value.items():
            value[key] = replace_tensors(one, change, depth - 1)
    elif _is_plain_object(value):
        for key, one in vars(value).items():
            object.__setattr__(value, key, replace_tensors(one, change, depth - 1))
    return value


def _is_plain_object(value: Any) -> bool:
    attributes = getattr(value, "__dict__", None)
    return (
        isinstance(attributes, dict) and not isinstance(value, torch.nn.Module | type) and not callable(value)
    )


#: The contents of all holders, in their order.
Snapshot: TypeAlias = tuple[Content, ...]
#: The contents of some holders, by their numbers.
Contents: TypeAlias = Mapping[int, Content]
#: Larger tensors than this in total, smallest first, are compared by version and cannot be put back.
_MOST_COPIED_BYTES = 2**26


@dataclass(frozen=True)
class Place:
    """Where something changed: a holder, by its number, and a key within it."""

    holder: int
    key: Key
    name: str


class Surroundings:
    """What a cell and a loss can reach."""

    def __init__(self, holders: list[Holder]) -> None:
        # A copy: what is found later is found by these alone.
        self.holders = [*holders]
        self._kinds = [type(holder.thing) for holder in self.holders]
        #: The numbers of the tensors that can be copied, and so be put back.
        self.copyable = _choose_copied(self.holders)

    def find_more(self, places: Iterable[Place]) -> range:
        """Add what places lead to that was made since the search; return the numbers of the new holders.

        Snapshots that were taken before know nothing of it.
        """
        known = {id(holder.thing) for holder in self.holders}
        found = walk({place.name: self.value_of(place) for place in places}).holders
        more = [holder for holder in found if id(holder.thing) not in known]
        first = len(self.holders)
        self.holders += more
        self._kinds += [type(holder.thing) for holder in more]
        self.copyable |= {first + number for number in _choose_copied(more)}
        return range(first, len(self.holders))

    def take(self, *, copies: bool | Container[int] = False, since: Snapshot = ()) -> Snapshot:
        """Remember the present contents.

        Arguments:
            copies: whether the numbers of large tensors are remembered, too, or the ids of holders whose are.
            since: an earlier snapshot; tensors that are as they were then share what it remembers.
        """

        def read(number: int, holder: Holder) -> Content:
            if not isinstance(holder, TensorHolder):
                return holder.read()
            if number < len(since) and holder.is_as(since[number]):
                return since[number]
            wanted = copies if isinstance(copies, bool) else id(holder) in copies
            return holder.read(copies=wanted and number in self.copyable)

        return tuple(read(number, holder) for number, holder in enumerate(self.holders))

    def list_changes(self, before: Snapshot, after: Snapshot) -> list[Place]:
        """Return the places that differ."""
        return [
            Place(number, key, holder.name_of(key))
            for number, (holder, kind, one, other) in enumerate(
                # What was found later is not in earlier snapshots.
                zip(self.holders, self._kinds, before, after, strict=False)
            )
            # A lazy module becomes another one in its first call.
            if type(holder.thing) is kind
            for key in holder.list_changes(one, other)
        ]

    def put_back(self, snapshot: Snapshot, *, but: Container[int] = ()) -> None:
        """Put contents back, but not those of objects with some ids."""
        for holder, kind, content in zip(self.holders, self._kinds, snapshot, strict=False):
            if type(holder.thing) is kind and id(holder.thing) not in but:
                holder.write(content)

    def read_places(self, numbers: Iterable[int]) -> dict[int, Content]:
        """Return the present contents of some holders, with the numbers of tensors."""
        some = ((number, self.holders[number]) for number in numbers)
        return {
            number: one.read(copies=True) if isinstance(one, TensorHolder) else one.read()
            for number, one in some
        }

    def write_places(self, contents: Contents) -> None:
        """Put contents of some holders back."""
        for number, content in contents.items():
            self.holders[number].write(content)

    def list_places(self, held: Iterable[tuple[Holder, Key]]) -> list[Place]:
        """Return the places of holders, with keys."""
        numbers = {holder.identity: number for number, holder in enumerate(self.holders)}
        return [Place(numbers[holder.identity], key, holder.name_of(key)) for holder, key in held]

    def identify(self, place: Place) -> tuple[Any, Any]:
        """Return what tells a place from others, in other surroundings, too."""
        return self.holders[place.holder].identity, place.key

    def value_of(self, place: Place) -> Any:
        """Return the present value of a place."""
        return self.holders[place.holder].value_of(place.key)

    def mix_in(self, contents: Contents, places: Iterable[Place]) -> None:
        """Give places what they have among some contents; tensors leave their graphs behind."""
        for place in places:
            holder = self.holders[place.holder]
            if place.holder not in contents:
                # It was made later.
                continue
            content = contents[place.holder]
            if isinstance(holder, NamedValues):
                value = content.get(place.key, ABSENT)
                present = holder.read()
                present.pop(place.key, None)
                if value is not ABSENT:
                    present[place.key] = value.detach() if isinstance(value, torch.Tensor) else value
                content = present
            holder.write(content)

    def can_put_back(self, place: Place) -> bool:
        """Return whether a change of a place can be undone."""
        holder = self.holders[place.holder]
        if isinstance(holder, IteratorHolder):
            return False
        if isinstance(holder, TensorHolder):
            return holder.small or place.holder in self.copyable
        return not isinstance(holder, ArrayHolder) or holder.small

    def can_return(self, place: Place, before: Snapshot) -> bool:
        """Return whether a place can be put back to what it was in a snapshot."""
        holder = self.holders[place.holder]
        content = before[place.holder]
        if isinstance(holder, CacheHolder):
            # It is emptied if it was empty. Of others, tensors matter: they have a graph, or lack one.
            return content[1] == 0 or not any(True for _ in find_tensors(holder.list_kept()))
        kept = not isinstance(holder, TensorHolder) or content.copy is not None
        return kept and self.can_put_back(place)

    def is_put_back(self, before: Snapshot) -> bool:
        """Return whether all is as in a snapshot that was put back: large tensors and caches may not be."""
        for number, (holder, content) in enumerate(zip(self.holders, before, strict=False)):
            if isinstance(holder, TensorHolder):
                same = content.copy is not None or holder.is_as(content)
            else:
                place = Place(number, None, holder.name)
                same = not isinstance(holder, CacheHolder) or holder.read() == content
                same = same or self.can_return(place, before)
            if not same:
                return False
        return True


def _choose_copied(holders: list[Holder]) -> set[int]:
    """Return the numbers of the tensors that are copied when all are remembered, smallest first."""
    tensors = [(number, holder) for number, holder in enumerate(holders) if isinstance(holder, TensorHolder)]
    room, chosen = _MOST_COPIED_BYTES, set()
    for number, holder in sorted(tensors, key=lambda pair: pair[1].thing.nbytes):
        room -= holder.thing.nbytes
        if room >= 0:
            chosen.add(number)
    return chosen
