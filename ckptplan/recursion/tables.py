"""Solves the general problem: the least cost of reversing t steps within m units of local memory.

The module tabulates the recursion (R1) to (R3) of docs/optimality.md for all t and m at once. With states
of M_s and tapes of M_a units, r = ``recompute``, w = ``write`` and r_d = ``read``:

    (R1) free(t, m)  = min of  0 if t M_a <= m;  owned(t, m - M_s);  free(t - 1, m - M_a);  w + far(t, m)
    (R2) owned(t, m) = min of  0 if t M_a <= m + M_s;  free(t - 1, m + M_s - M_a);
                               y r + owned(t - y, m - M_s) + owned(y, m),           1 <= y < t;
                               (y - 1) r + free(t - y, m - M_a) + owned(y - 1, m),  2 <= y <= t
    (R3) far(t, m)   = min of  0 if t M_a <= m;  owned(t, m - M_s);  free(t - 1, m - M_a);
                               y r + r_d + free(t - y, m) + far(y, m),                  1 <= y < t;
                               (y - 1) r + r_d + free(t - y, m - M_a) + far(y - 1, m),  2 <= y <= t

Here free is ``unstored``, owned is ``local`` and far is ``remote``. Each schedule runs each step once for the
first time, so only the cost beyond that counts, and one value serves the first sweep and every later one.

The two minima over all splits dominate the work, with T^2 M / 2 sums each. Both read rows that are adjacent
in memory, in pieces that fit the cache.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TypeAlias

import numpy as np
import numpy.typing as npt

from ckptplan.model.split import Choice, Where
from ckptplan.recursion.tree import Decision, Part, UnitSizes

Values: TypeAlias = npt.NDArray[np.float64]

#: Rows of a piece: with tens of units a row, it fits the second-level cache.
_ROWS = 256
_INFINITE = float("inf")
#: Largest number of entries of one table; there are seven tables of eight bytes an entry.
CELLS = 5 * 10**6


class Tables:
    """Values of every part of up to ``steps`` steps and ``units`` units; infinite if it cannot be reversed.

    Arguments:
        steps: T, the longest part.
        units: the most units of free local memory.
        sizes: units of a state and of a tape.
        recompute: cost of running a step again.
        write: cost of writing a state to remote memory; infinite without remote memory.
        read: cost of reading a state from remote memory.
        progress: called with the work done and the total work.

    ``unstored``, ``local`` and ``remote`` have shape (steps + 1, units + 1).
    """

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
        # A split at y leaves a rest of t - y steps, stored in descending order, and a head of y steps.
        rests_local, rests = (np.full((last + 1, width), _INFINITE) for _ in range(2))
        heads_local, heads_remote = (np.full((last + 1, width), _INFINITE) for _ in range(2))
        split_local = Splits(rests_local, heads_local)
        split_remote = Splits(rests, heads_remote)
        for t in range(1, last + 1):
            before = self.unstored[t - 1]
            local, common = self.local[t], np.full(width, _INFINITE)
            # (R2) 0; free(t - 1, m + M_s - M_a); the least over all splits.
            local[max(0, t * tape - state) :] = 0
            np.minimum(local, shift(before, tape - state), out=local)
            if t > 1:
                np.minimum(local, split_local.least(t), out=local)
            # The terms that (R1) and (R3) share: 0; owned(t, m - M_s); free(t - 1, m - M_a).
            common[t * tape :] = 0
            np.minimum(common, shift(local, state), out=common)
            taped = shift(before, tape)
            np.minimum(common, taped, out=common)
            # (R3) the least over all splits.
            remote, unstored = self.remote[t], self.unstored[t]
            np.minimum(common, split_remote.least(t), out=remote) if t > 1 else np.copyto(remote, common)
            # (R1) w + far(t, m).
            np.minimum(common, self.write + remote, out=unstored)
            # Heads: y r + owned(y, m) and y r + r_d + far(y, m). Rests of t - y steps: owned(t - y, m - M_s)
            # or free(t - y, m); with the last step of the head recorded, free(t - y - 1, m - M_a).
            np.add(local, t * self.recompute, out=heads_local[t])
            np.add(remote, t * self.recompute + self.read, out=heads_remote[t])
            np.minimum(shift(local, state), taped, out=rests_local[last - t])
            np.minimum(unstored, taped, out=rests[last - t])
            if progress is not None and t % 64 == 0:
                progress(t * t, last * last)

    def decide(self, part: Part) -> Decision:
        """Return the decision that attains the value of a part; ties are broken in a fixed order.

        Sums are formed in the same order as for the tables, so that equal values compare equal.
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
        heads = table[1:steps, units] + (lengths * self.recompute + back)
        best: tuple[float, Decision] = (_INFINITE, Decision(Choice.SPLIT))
        rest_units = units - state if where is Where.LOCAL else units
        if rest_units >= 0:
            rests = (self.local if where is Where.LOCAL else self.unstored)[steps - 1 : 0 : -1, rest_units]
            place = int(np.argmin(rests + heads))
            best = (float(rests[place] + heads[place]), Decision(Choice.SPLIT, place + 1))
        if tape <= units:
            rests = self.unstored[steps - 2 :: -1, units - tape][: steps - 1] if steps > 1 else heads[:0]
            place = int(np.argmin(rests + heads))
            if rests[place] + heads[place] < best[0]:
                best = (float(rests[place] + heads[place]), Decision(Choice.SPLIT_RECORD, place + 2))
        return best[1]


class Splits:
    """The least of ``rests[t - y] + heads[y]`` over y = 1..t-1, for all units at once.

    ``rests`` is stored in reverse, so that both are read forwards.
    """

    def __init__(self, rests: Values, heads: Values) -> None:
        self.last, self.width = rests.shape[0] - 1, rests.shape[1]
        self.rests, self.heads = rests.reshape(-1), heads.reshape(-1)
        self.piece = min(_ROWS, rests.shape[0]) * self.width
        self.sums, self.least_sums = np.empty(self.piece), np.empty(self.piece)

    def least(self, t: int) -> Values:
        """Return the minimum for every number of units."""
        width, piece = self.width, self.piece
        rests = self.rests[(self.last - t + 1) * width : self.last * width]
        heads = self.heads[width : t * width]
        length = len(rests)
        best = self.least_sums[: min(length, piece)]
        np.add(rests[:piece], heads[:piece], out=best)
        for begin in range(piece, length, piece):
            end = min(begin + piece, length)
            sums = self.sums[: end - begin]
            np.add(rests[begin:end], heads[begin:end], out=sums)
            np.minimum(best[: end - begin], sums, out=best[: end - begin])
        rows = len(best) // width
        while rows > 8:
            half = (rows + 1) // 2
            upper = best[half * width : rows * width]
            np.minimum(best[: len(upper)], upper, out=best[: len(upper)])
            rows = half
        least: Values = best[: rows * width].reshape(rows, width).min(axis=0)
        return least


def shift(row: Values, by: int) -> Values:
    """Return ``row[m - by]`` for every m, infinite where m - by is negative; shape (units + 1,)."""
    if by == 0:
        return row
    result = np.full_like(row, _INFINITE)
    if by > 0:
        result[by:] = row[: max(0, len(row) - by)]
    else:
        result[:by] = row[-by:]
        # Memory beyond the last entry does not help.
        result[by:] = row[-1]
    return result
