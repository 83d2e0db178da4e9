"""Remembers surroundings at a moment, lists what has changed since, and puts it back; runs steps aside.

A snapshot has the content of each holder. What is found later is in no snapshot that was taken before.
"""

from __future__ import annotations

from collections.abc import Container, Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from numbers import Number
from typing import Any, TypeAlias

import torch

from ckptplan.torch.ambient import Generators, RandomSource
from ckptplan.torch.pages import Pages
from ckptplan.torch.surroundings.holders import (
    ABSENT,
    LEFT,
    Content,
    Holder,
    Key,
    NamedValues,
    SequenceHolder,
    TensorHolder,
    tap_iterators,
)
from ckptplan.torch.surroundings.walk import MOST_COPIED, Reached, walk

#: What holders hold at a moment.
Snapshot: TypeAlias = Mapping[Holder, Content]


@dataclass(frozen=True, eq=False)
class Place:
    """Where steps may change something: a holder, and a key within it. Holders of the same thing are equal."""

    holder: Holder
    key: Key

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Place) and self._identity == other._identity

    def __hash__(self) -> int:
        return hash(self._identity)

    @property
    def _identity(self) -> tuple[Any, ...]:
        return self.holder.identity, self.key

    @property
    def name(self) -> str:
        """What it is called, as a user would write it."""
        return self.holder.name_of(self.key)

    @property
    def value(self) -> Any:
        """The present value."""
        return self.holder.value_of(self.key)

    @property
    def has_number(self) -> bool:
        """Whether it is a name that has a number by now."""
        named = isinstance(self.holder, NamedValues)
        return named and isinstance(self.holder.read_count(self.key), Number | torch.Tensor)

    @property
    def is_set_back(self) -> bool:
        """Whether steps that run again find all of it as it was, if it is known that they change it."""
        count = self.holder.read_count(self.key)
        return count is not LEFT and not (isinstance(self.holder, SequenceHolder) and isinstance(count, int))


def list_counts(changed: Iterable[Place], *, with_graph: Container[Place]) -> list[RandomSource]:
    """Return a source for each place that steps change and may count by.

    Records of tensors ``with_graph`` stay as they are: what lies there is guarded.
    """

    def set_back(place: Place, count: Any) -> None:
        if count is not LEFT:
            place.holder.write_count(place.key, count)

    return [
        RandomSource(partial(one.holder.read_count, one.key), partial(set_back, one))
        for one in changed
        if one not in with_graph
    ]


class Surroundings:
    """What a cell and a loss can reach.

    Arguments:
        holders: what a walk found.
        room: bytes of copies of tensors that a snapshot has in memory; others go to a file.
    """

    def __init__(self, holders: Iterable[Holder], *, room: int = MOST_COPIED) -> None:
        # A copy: what is found later is found by these alone.
        self.holders, self._room = [*holders], room

    @property
    def can_put_back(self) -> bool:
        """Whether all that steps may change can be undone; parameters they may not."""
        return all(one.can_put_back or isinstance(one.thing, torch.nn.Parameter) for one in self.holders)

    def find_more(self, places: Iterable[Place]) -> list[Holder]:
        """Add what places lead to that was made since the search, and return it."""
        known = {id(holder.thing) for holder in self.holders}
        found = walk({place.name: place.value for place in places}).holders
        more = [holder for holder in found if id(holder.thing) not in known]
        self.holders += more
        return more

    def take(
        self,
        *,
        copies: bool | Container[Holder] = False,
        since: Snapshot | None = None,
        of: Iterable[Holder] | None = None,
    ) -> Snapshot:
        """Remember the present contents.

        Arguments:
            copies: whether the numbers of all tensors are copied, or the holders whose are; those of small
                ones always are.
            since: an earlier snapshot; tensors that are as they were then share what it remembers.
            of: the holders that are looked at, all if None.
        """
        before, pages, room = since or {}, Pages(in_file=True), self._room

        def read(holder: Holder) -> Content:
            nonlocal room
            if not isinstance(holder, TensorHolder):
                return holder.read()
            wanted, known = copies if isinstance(copies, bool) else holder in copies, before.get(holder)
            if known is not None and holder.is_as(known):
                return known
            if not holder.can_put_back or not (wanted or holder.small):
                return holder.read()
            if (copied := holder.find_shared_copy()) is not None:
                return copied
            near = holder.thing.nbytes <= room
            room -= holder.thing.nbytes if near else 0
            return holder.read(copy=torch.Tensor.clone if near else pages.keep)

        return {holder: read(holder) for holder in (self.holders if of is None else of)}


def list_changes(before: Snapshot, after: Snapshot) -> list[Place]:
    """Return the places that differ."""
    return [
        Place(holder, key)
        for holder, content in before.items()
        if holder in after
        for key in holder.list_changes(content, after[holder])
    ]


def put_back(snapshot: Snapshot) -> None:
    """Put contents back."""
    for holder, content in snapshot.items():
        holder.write(content)


def mix_in(snapshot: Snapshot, places: Iterable[Place]) -> None:
    """Give places what they have in a snapshot; tensors leave their graphs behind."""
    for place in places:
        holder = place.holder
        if holder not in snapshot:
            # It was made later.
            continue
        content = snapshot[holder]
        if isinstance(holder, NamedValues):
            value = content.get(place.key, ABSENT)
            holder.give(place.key, value.detach() if isinstance(value, torch.Tensor) else value)
        else:
            holder.write(content)


def is_put_back(before: Snapshot) -> bool:
    """Return whether all is as in a snapshot that was put back: large tensors and caches may not be."""
    return all(
        holder.can_write(content) or not any(True for _ in holder.list_changes(content, holder.read()))
        for holder, content in before.items()
    )


@contextmanager
def aside(
    reached: Reached, generators: Generators, *, room: int = MOST_COPIED, spares_parameters: bool = False
) -> Iterator[tuple[Surroundings, Snapshot]]:
    """Yield what steps can reach, and what they find there; on exit all is as it was, iterators included.

    Arguments:
        reached: what a walk found.
        generators: the random generators.
        room: bytes of copies that lie in memory.
        spares_parameters: whether no step changes parameters, as a trial has shown: they are not copied.
    """
    with generators.aside(), tap_iterators(reached.holders) as taps:
        surroundings = Surroundings([*reached.holders, *taps], room=room)
        copied = {
            one
            for one in surroundings.holders
            if not (spares_parameters and isinstance(one.thing, torch.nn.Parameter))
        }
        world = surroundings.take(copies=copied)
        try:
            yield surroundings, world
        finally:
            put_back(world)
