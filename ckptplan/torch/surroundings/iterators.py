"""Records what is taken from iterators during the trial, so that it can be given again.

Most iterators cannot be copied or compared. For the trial, each one that an attribute, a variable or a dict
holds is replaced by a tap, which counts and remembers what it gives.
"""

from __future__ import annotations

import io
from collections.abc import Iterator
from contextlib import contextmanager
from itertools import chain
from typing import Any

import torch

from ckptplan.torch.surroundings.holders import Content, Holder, Key, NamedValues
from ckptplan.torch.surroundings.signature import is_passed_over


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


class TapHolder(Holder):
    """How much was taken from an iterator."""

    thing: TappedIterator

    def read(self, *, copies: bool) -> Content:
        del copies
        return self.thing.position

    def list_changes(self, before: Content, after: Content) -> Iterator[Key]:
        if before != after:
            yield None

    def write(self, content: Content) -> None:
        self.thing.position = content

    def disturb(self, content: Content, key: Key, leaves: list[torch.Tensor]) -> Content:
        del key, leaves
        return content


@contextmanager
def tap_iterators(holders: list[Holder]) -> Iterator[list[Holder]]:
    """Replace the iterators in some holders by taps; yield the holders of these, and put all back on exit."""
    places = [
        (holder, key, value)
        for holder in holders
        if isinstance(holder, NamedValues)
        for key, value in holder.read(copies=False).items()
        if _can_tap(value)
    ]
    taps = {id(value): TapHolder(holder.name_of(key), TappedIterator(value)) for holder, key, value in places}
    for holder, key, value in places:
        _replace(holder, key, taps[id(value)].thing)
    try:
        yield list(taps.values())
    finally:
        closed = {number: tap.thing.close() for number, tap in taps.items()}
        for holder, key, value in places:
            _replace(holder, key, closed[id(value)])


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
    holder.write({**holder.read(copies=False), key: value})
