"""Defines a set of steps as few disjoint ranges, whatever the length of the sequence."""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections.abc import Iterator


class StepSet:
    """Steps as disjoint ranges (start, stop) in ascending order; ranges that touch are joined.

    ``len`` is the number of steps, and iteration yields the ranges. Each method takes time in the logarithm of
    the number of ranges, and in the ranges that it removes.
    """

    __slots__ = ("_length", "_starts", "_stops")

    def __init__(self) -> None:
        self._starts: list[int] = []
        self._stops: list[int] = []
        self._length = 0

    def __len__(self) -> int:
        return self._length

    def __iter__(self) -> Iterator[tuple[int, int]]:
        return zip(self._starts, self._stops, strict=True)

    def count(self, start: int, stop: int) -> int:
        """Return how many steps from ``start`` to ``stop - 1`` are in the set."""
        first, last = bisect_right(self._stops, start), bisect_left(self._starts, stop)
        if first >= last:
            return 0
        if self._starts[first] <= start and stop <= self._stops[first]:
            return stop - start
        overlaps = zip(self._starts[first:last], self._stops[first:last], strict=True)
        return sum(min(stop, end) - max(start, begin) for begin, end in overlaps)

    def add(self, start: int, stop: int) -> None:
        """Add steps from ``start`` to ``stop - 1``; steps that are in the set stay."""
        if self._stops and self._stops[-1] == start:
            # Most runs start where the last run ended.
            self._stops[-1] = stop
            self._length += stop - start
            return
        if self.find_last_missing(start, stop) is None:
            return
        self._length += stop - start - self.count(start, stop)
        first, last = bisect_left(self._stops, start), bisect_right(self._starts, stop)
        joined = slice(first, last)
        self._starts[joined], self._stops[joined] = (
            [min([start, *self._starts[joined]])],
            [max([stop, *self._stops[joined]])],
        )

    def remove(self, start: int, stop: int) -> None:
        """Remove steps from ``start`` to ``stop - 1``; steps that are not in the set are ignored."""
        if self._stops and self._stops[-1] == stop and self._starts[-1] < start:
            # Steps are reversed from the last one.
            self._stops[-1] = start
            self._length -= stop - start
            return
        first, last = bisect_right(self._stops, start), bisect_left(self._starts, stop)
        if first >= last:
            return
        self._length -= self.count(start, stop)
        ends = [(self._starts[first], start), (stop, self._stops[last - 1])]
        remaining = [(begin, end) for begin, end in ends if begin < end]
        cut = slice(first, last)
        self._starts[cut], self._stops[cut] = [begin for begin, _ in remaining], [end for _, end in remaining]

    def find_last_missing(self, start: int, stop: int) -> int | None:
        """Return the last step from ``start`` to ``stop - 1`` that is not in the set, None if all are."""
        place = bisect_left(self._starts, stop) - 1
        if place < 0 or self._stops[place] < stop:
            return stop - 1
        begin = self._starts[place]
        return begin - 1 if begin > start else None
