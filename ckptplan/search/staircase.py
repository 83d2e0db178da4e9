"""Points of memory and time that no other point beats: those seen by a search, and those of any array."""

from __future__ import annotations

import math
from typing import Any, TypeAlias

import numpy as np
import numpy.typing as npt

from ckptplan.cost.arrays import SUM_ROUNDING, Integers
from ckptplan.model.step_costs import StepCosts

#: Columns in the order of comparison: local bytes, seconds, remote bytes, then the parameters.
Key: TypeAlias = tuple[npt.NDArray[Any], ...]

#: The most levels of memory that a search distinguishes.
_LEVELS = 2**22


class SeenPoints:
    """The points seen so far that may be on the front, and the least time within each amount of memory.

    Memory is counted in levels of a unit that divides states and tapes or, if that makes too many levels, of a
    larger unit. The memory of points is rounded up and that of bounds down, so that no box is dropped wrongly.
    """

    def __init__(self, *, costs: StepCosts) -> None:
        most = costs.steps * costs.tape_bytes
        self.resident_bytes = costs.resident_bytes
        # Overlapped times are summed in several orders: a difference by rounding alone is not a gain.
        self.share = 1 - SUM_ROUNDING if costs.overlaps_compute else 1.0
        self.unit = max(math.gcd(costs.state_bytes, costs.tape_bytes), -(-most // _LEVELS))
        #: least(m): the least time seen with at most m levels of memory.
        self.least = np.full(most // self.unit + 2, np.inf)
        self._points: list[Key] = []

    def add(self, keys: Key) -> None:
        """Add the points that no point seen so far beats."""
        gaining = self.gain(keys) > 0
        if not gaining.any():
            return
        keys = tuple(column[gaining] for column in keys)
        level = -(-(keys[0] - self.resident_bytes) // self.unit)
        # Points that need more memory than plain BPTT have no level.
        within = level < len(self.least)
        np.minimum.at(self.least, level[within], keys[1][within])
        above = self.least[level.min() :]
        np.minimum.accumulate(above, out=above)
        self._points.append(self._best_of(keys))

    def gain(self, keys: Key) -> npt.NDArray[np.float64]:
        """Return max(0, least(M) - S): how much faster bounds are than all points within their memory."""
        level = np.minimum((keys[0] - self.resident_bytes) // self.unit, len(self.least) - 1)
        result: npt.NDArray[np.float64] = np.maximum(0.0, self.share * self.least[level] - keys[1])
        return result

    def front(self) -> Key:
        """Return the front of the points seen, which are given up."""
        if not self._points:
            return ()
        # There may be millions: no part is held twice.
        parts = [list(columns) for columns in zip(*self._points, strict=True)]
        self._points.clear()
        columns: list[npt.NDArray[Any]] = []
        while parts:
            columns.append(np.concatenate(parts.pop(0)))
        return drop_dominated(self._best_of(tuple(columns)))

    def _best_of(self, keys: Key) -> Key:
        """Drop points that a faster one on the same or a lower level beats."""
        level = np.minimum((keys[0] - self.resident_bytes) // self.unit, len(self.least) - 1)
        unbeaten = keys[1] <= self.least[level]
        return tuple(column[unbeaten] for column in keys)


def drop_dominated(keys: Key) -> Key:
    """Return the points of the front in order of memory; of equal points, the first by the key."""
    if not len(keys[0]):
        return keys
    # A stable sort is fast on concatenated fronts, since each is already sorted.
    order = np.argsort(keys[0], kind="stable")
    local, seconds = keys[0][order], keys[1][order]
    new = np.concatenate([[True], local[1:] != local[:-1]])
    least = np.minimum.reduceat(seconds, np.flatnonzero(new))
    front = least < np.concatenate([[np.inf], np.minimum.accumulate(least)[:-1]])
    group = np.cumsum(new) - 1
    best = np.flatnonzero(front[group] & (seconds == least[group]))
    chosen = order[best]
    if len(best) > np.count_nonzero(front):
        chosen = _choose_first_of_each(keys, chosen, group[best])
    return tuple(column[chosen] for column in keys)


def _choose_first_of_each(keys: Key, places: npt.NDArray[np.intp], group: Integers) -> npt.NDArray[np.intp]:
    """Return the first point of each group, by the columns after memory and time."""
    order = np.lexsort((*(column[places] for column in keys[:1:-1]), group))
    places, group = places[order], group[order]
    first: npt.NDArray[np.intp] = places[np.concatenate([[True], group[1:] != group[:-1]])]
    return first
