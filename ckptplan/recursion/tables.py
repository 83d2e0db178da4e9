"""The general problem: least cost of reversing t steps with m units, tapes and states of different size.

The recursion of docs/optimality.md, over all t and m at once. What a sweep costs for the first time is the
same for every schedule, so that only what is added counts here: steps run again at ``recompute``, states
written at ``write`` and read at ``read``. One value serves the first sweep and every later one.

Two minima over all splits dominate: T^2 M / 2 sums each. Both are taken over rows that lie side by side in
memory, in pieces that fit the cache; that, and not cleverness, is what makes the tables quick.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TypeAlias

import numpy as np
import numpy.typing as npt

from ckptplan.model.split import Choice, Where
from ckptplan.recursion.tree import Decision, Part, UnitSizes

Values: TypeAlias = npt.NDArray[np.float64]

#: Rows of a piece: with some tens of units it fits the second-level cache.
_ROWS = 256
_INFINITE = float("inf")
#: Entries of one table that may be kept; there are seven of eight bytes each.
CELLS = 5 * 10**6


class Tables:
    """Values of every part of up to ``steps`` steps and ``units`` units; infinite where it cannot be done."""

    def __init__(
        self,
        *,
        steps: int,
        units: int,
        sizes: UnitSizes,
        recompute: float,
        write: float,
        read: float,
        progress: Callable[[int, int], None] | None = None,
    ) -> None:
        self.steps, self.units, self.sizes = steps, units, sizes
        self.recompute, self.write, self.read = recompute, write, read
        shape = (steps + 1, units + 1)
        self.unstored = np.full(shape, _INFINITE)
        self.local = np.full(shape, _INFINITE)
        self.remote = np.full(shape, _INFINITE)
        self.unstored[0] = self.local[0] = self.remote[0] = 0
        self._fill(progress)

    def value(self, part: Part) -> float:
        """Return the least cost of a part beyond the first run of its steps."""
        table = {Where.UNSTORED: self.unstored, Where.LOCAL: self.local, Where.REMOTE: self.remote}[part.where]
        return float(table[part.steps, part.units])

    def _fill(self, progress: Callable[[int, int], None] | None) -> None:
        state, tape = self.sizes
        width, last = self.units + 1, self.steps
        # What a split at y leaves behind, in the order of falling t - y, and what it takes to come back.
        rests_local, rests = (np.full((last + 1, width), _INFINITE) for _ in range(2))
        again_local, again_remote = (np.full((last + 1, width), _INFINITE) for _ in range(2))
        split_local = Splits(rests_local, again_local)
        split_remote = Splits(rests, again_remote)
        for t in range(1, last + 1):
            before = self.unstored[t - 1]
            local, common = self.local[t], np.full(width, _INFINITE)
            local[max(0, t * tape - state) :] = 0
            np.minimum(local, shift(before, tape - state), out=local)
            common[t * tape :] = 0
            if t > 1:
                np.minimum(local, split_local.least(t), out=local)
            np.minimum(common, shift(local, state), out=common)
            taped = shift(before, tape)
            np.minimum(common, taped, out=common)
            remote, unstored = self.remote[t], self.unstored[t]
            np.minimum(common, split_remote.least(t), out=remote) if t > 1 else np.copyto(remote, common)
            np.minimum(common, self.write + remote, out=unstored)
            # y steps run again and then reversed; with a tape on the way, one step less.
            np.add(local, t * self.recompute, out=again_local[t])
            np.add(remote, t * self.recompute + self.read, out=again_remote[t])
            np.minimum(shift(local, state), taped, out=rests_local[last - t])
            np.minimum(unstored, taped, out=rests[last - t])
            if progress is not None and t % 64 == 0:
                progress(t * t, last * last)

    def decide(self, part: Part) -> Decision:
        """Return the decision that attains the value of a part; of several, always the same.

        Sums are formed as they were for the tables, so that equal means equal.
        """
        where, steps, units = part
        state, tape = self.sizes
        value = self.value(part)
        room = units + (state if where is Where.LOCAL else 0)
        if steps * tape <= room:
            return Decision(Choice.TAPE)
        if tape <= room and self.unstored[steps - 1, min(room - tape, self.units)] == value:
            return Decision(Choice.RECORD)
        if where is not Where.LOCAL and state <= units and self.local[steps, units - state] == value:
            return Decision(Choice.CHECKPOINT)
        if where is Where.UNSTORED:
            return Decision(Choice.OFFLOAD)
        return self._decide_split(part)

    def _decide_split(self, part: Part) -> Decision:
        where, steps, units = part
        state, tape = self.sizes
        table, back = (self.local, 0.0) if where is Where.LOCAL else (self.remote, self.read)
        lengths = np.arange(1, steps)
        again = table[1:steps, units] + (lengths * self.recompute + back)
        best: tuple[float, Decision] = (_INFINITE, Decision(Choice.SPLIT))
        rest_units = units - state if where is Where.LOCAL else units
        if rest_units >= 0:
            rests = (self.local if where is Where.LOCAL else self.unstored)[steps - 1 : 0 : -1, rest_units]
            place = int(np.argmin(rests + again))
            best = (float(rests[place] + again[place]), Decision(Choice.SPLIT, place + 1))
        if tape <= units:
            rests = self.unstored[steps - 2 :: -1, units - tape][: steps - 1] if steps > 1 else again[:0]
            place = int(np.argmin(rests + again))
            if rests[place] + again[place] < best[0]:
                best = (float(rests[place] + again[place]), Decision(Choice.SPLIT_RECORD, place + 2))
        return best[1]


class Splits:
    """The least of ``rests[t - y] + again[y]`` over y = 1..t-1, for all units at once.

    ``rests`` is stored from its end, so that both are read forwards.
    """

    def __init__(self, rests: Values, again: Values) -> None:
        self.last, self.width = rests.shape[0] - 1, rests.shape[1]
        self.rests, self.again = rests.reshape(-1), again.reshape(-1)
        self.piece = min(_ROWS, rests.shape[0]) * self.width
        self.sums, self.least_sums = np.empty(self.piece), np.empty(self.piece)

    def least(self, t: int) -> Values:
        """Return the minimum for every number of units."""
        width, piece = self.width, self.piece
        rests = self.rests[(self.last - t + 1) * width : self.last * width]
        again = self.again[width : t * width]
        length = len(rests)
        found = self.least_sums[: min(length, piece)]
        np.add(rests[:piece], again[:piece], out=found)
        for begin in range(piece, length, piece):
            end = min(begin + piece, length)
            sums = self.sums[: end - begin]
            np.add(rests[begin:end], again[begin:end], out=sums)
            np.minimum(found[: end - begin], sums, out=found[: end - begin])
        rows = len(found) // width
        while rows > 8:
            half = (rows + 1) // 2
            upper = found[half * width : rows * width]
            np.minimum(found[: len(upper)], upper, out=found[: len(upper)])
            rows = half
        least: Values = found[: rows * width].reshape(rows, width).min(axis=0)
        return least


def shift(row: Values, by: int) -> Values:
    """Return ``row[m - by]`` for every m, infinite where memory does not suffice."""
    if by == 0:
        return row
    result = np.full_like(row, _INFINITE)
    if by > 0:
        result[by:] = row[: max(0, len(row) - by)]
    else:
        result[:by] = row[-by:]
        # More than all there is helps no more.
        result[by:] = row[-1]
    return result
