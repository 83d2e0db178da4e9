"""Solves the general problem: the least cost of reversing t steps within m units of local memory.

The module tabulates the recursion (R0) to (R3) of docs/optimality.md for all t and m at once. With states
of M_s and tapes of M_a units, and ``prices`` r, w and r_d of running a step again, writing and reading a state,
and a, k, s and l of a run of steps, a recorded chunk, a local save and a local load:

    (R0) chunk(t, m) = min of  chunk(t - 1, m - M_a);  free(t - 1, m - M_a); infinite if M_a > m
    (R1) free(t, m)  = min of  k + chunk(t, m);  s + owned(t, m - M_s);  w + far(t, m)
    (R2) owned(t, m) = min of  k + chunk(t, m + M_s);  a + y r + free(t - y, m) + l + owned(y, m),  1 <= y < t
    (R3) far(t, m)   = min of  k + chunk(t, m);  min(s, l) + owned(t, m - M_s);
                               a + y r + free(t - y, m) + r_d + far(y, m),  1 <= y < t

Here free is ``unstored``, owned is ``local`` and far is ``remote``; in chunk, at least one more step is to be
recorded at once, and k is paid already; all are 0 for t = 0. Each schedule runs each step once for the first
time, so only the cost beyond that counts, and one value serves the first sweep and every later one.

The two minima over all splits dominate the work, with T^2 M / 2 sums each. Both read rows that are adjacent
in memory, in pieces that fit the cache. The sums of (R3) are left out where they cannot be least: if r_d >= l,
far(t, m) >= owned(t, m) by induction over t, so that each sum of (R3) is at least r_d - l more than the same
sum of (R2), whose least value is known.
"""

from __future__ import annotations

import copy
from dataclasses import InitVar, dataclass
from functools import partial
from typing import Literal, TypeAlias

import numpy as np
import numpy.typing as npt

from ckptplan.cost.arrays import SUM_ROUNDING
from ckptplan.model.progress import Progress
from ckptplan.model.split import Choice, Where
from ckptplan.recursion.prices import PromisingSplits
from ckptplan.recursion.problem import Prices
from ckptplan.recursion.tree import Decide, Decision, Part, UnitSizes

Values: TypeAlias = npt.NDArray[np.float64]

#: Entries of a piece: four pieces fit a second-level cache of a MiB.
_PIECE = 2**15
_INFINITE = float("inf")
#: With fewer than this share of the columns, rows that are not adjacent are quicker to read.
_FEW = 1 / 8


@dataclass(kw_only=True, eq=False)
class PartValues:
    """The least costs of parts of a sequence beyond the first run of their steps, and their decisions."""

    #: T, the longest part.
    steps: int
    #: The most units of free local memory.
    units: int
    sizes: UnitSizes
    prices: Prices
    #: Called with the work done and the total work.
    progress: InitVar[Progress | None] = None

    def __post_init__(self, progress: Progress | None) -> None:
        """Fill in the least costs."""
        raise NotImplementedError


@dataclass(kw_only=True, eq=False)
class Tables(PartValues):
    """Values of every part of up to ``steps`` steps and ``units`` units; infinite if it cannot be reversed.

    ``unstored``, ``local``, ``remote`` and ``chunk`` have shape (steps + 1, units + 1). With ``promising``
    splits only, values are exact in the schedules that these are made for, and may be too large elsewhere.
    ``known`` are the exact tables of no fewer steps and of fewer units, whose splits are not examined again.

    ``kept`` are the values of the same parts if they keep the caches of their steps, in units without these
    caches. Each step that is reversed releases ``released`` units: its cache. Columns of t steps then end
    t ``released`` units before the last one.

    Values of single precision take half the time and memory. They may be too large or too small by rounding.
    """

    promising: PromisingSplits | None = None
    known: InitVar[Tables | None] = None
    kept: Tables | None = None
    released: int = 0
    single_precision: bool = False

    def narrow(self, units: int) -> Tables:
        """Return the tables for at most ``units`` units: a view of these tables, or these tables themselves.

        The value of a part depends on its own units only, so one table answers every smaller budget. (Parts
        whose first state is held locally borrow its room, up to the last column. In the columns where that is
        cut off, the part and its state need more than ``units``, and no schedule reaches them.)
        """
        if units >= self.units:
            return self
        narrow = copy.copy(self)
        narrow.units = units
        columns = slice(units + 1)
        narrow.unstored, narrow.local = self.unstored[:, columns], self.local[:, columns]
        narrow.remote, narrow.chunk = self.remote[:, columns], self.chunk[:, columns]
        return narrow

    def value(self, part: Part) -> float:
        """Return the least cost of a part beyond the first run of its steps."""
        table = {Where.UNSTORED: self.unstored, Where.LOCAL: self.local, Where.REMOTE: self.remote}[part.where]
        return float(table[part.steps, part.units])

    def __post_init__(self, progress: Progress | None, known: Tables | None) -> None:
        state, tape, _ = self.sizes
        width, last, released = self.units + 1, self.steps, self.released
        # In the last columns of known tables, the room of the first state is cut off (``narrow``).
        done = max(0, known.units + 1 - state) if known else 0
        precision = np.float32 if self.single_precision else np.float64
        fill = partial(np.full, fill_value=_INFINITE, dtype=precision)
        self.unstored, self.local, self.remote, self.chunk = (fill((last + 1, width)) for _ in range(4))
        self.unstored[0] = self.local[0] = self.remote[0] = self.chunk[0] = 0
        #: The cost of running 0, 1, 2, ... steps again.
        prices = self.prices
        recompute, write, read, fetch_price = prices.recompute, prices.write, prices.read, prices.fetch_price
        self.reruns: Values = (np.arange(last + 1) * recompute).astype(precision)
        has_remote = write < _INFINITE
        # A split at y leaves a rest of t - y steps, stored in descending order, and a head of y steps.
        order: Literal["C", "F"] = "F" if self.promising else "C"
        rests, heads_local = (fill((last + 1, width - done), order=order) for _ in range(2))
        heads_remote = fill((last + 1 if has_remote else 1, width - done), order=order)
        split_local, split_remote = Splits(rests, heads_local), Splits(rests, heads_remote)
        a, k, s, back = prices.actions
        for t in range(1, last + 1):
            chunk, local, remote, unstored = self.chunk[t], self.local[t], self.remote[t], self.unstored[t]
            # (R0) the chunk goes on, or another part follows it.
            np.minimum(self.chunk[t - 1, :-tape], self.unstored[t - 1, :-tape], out=chunk[tape:])
            recorded = chunk + k if k else chunk
            # (R2) k + chunk(t, m + M_s); the least over all splits. Memory beyond the last entry does not help.
            local[:-state], local[-state:] = recorded[state:], recorded[-1]
            least, first, stop = self.promising.ranges[t] if self.promising else (0, 1, t)
            # The caches of the t steps are also held.
            caches = t * released
            new_local, new_remote = local[done : width - caches], remote[done : width - caches]
            if first < stop:
                least_local = split_local.least(t, first, stop, slice(least, len(new_local)), more=caches)
                np.minimum(new_local[least:], least_local, out=new_local[least:])
            self._keep(local, "local", t)
            if known:
                local[:done] = known.local[t, :done]
            # (R3) k + chunk(t, m); min(s, l) + owned(t, m - M_s); the least over all splits.
            held = local[:-state]
            remote[:state] = recorded[:state]
            np.minimum(recorded[state:], held + fetch_price if fetch_price else held, out=remote[state:])
            if first < stop and has_remote and (count := self._count_columns(least_local, new_remote[least:])):
                columns = slice(least, least + count)
                least_remote = split_remote.least(t, first, stop, columns, more=caches)
                np.minimum(new_remote[columns], least_remote, out=new_remote[columns])
            self._keep(remote, "remote", t)
            if known:
                remote[:done] = known.remote[t, :done]
            # (R1) k + chunk(t, m); s + owned(t, m - M_s); w + far(t, m).
            unstored[:state] = recorded[:state]
            np.minimum(recorded[state:], held + s if s else held, out=unstored[state:])
            if has_remote:
                np.minimum(unstored, write + remote, out=unstored)
                np.add(new_remote, t * recompute + (a + read), out=heads_remote[t, caches:])
            # Heads: a + y r + l + owned(y, m) and a + y r + r_d + far(y, m). Rests: free(t - y, m).
            np.add(new_local, t * recompute + (a + back), out=heads_local[t, caches:])
            rests[last - t] = unstored[done:]
            if progress is not None and t % 64 == 0:
                progress(t * t, last * last)

    def _keep(self, row: Values, name: Literal["local", "remote"], steps: int) -> None:
        """Lower the values of parts of ``steps`` steps to their values if they keep their caches."""
        if self.kept is not None and steps <= self.kept.steps:
            row = row[steps * self.kept.released :]
            np.minimum(row, getattr(self.kept, name)[steps, : len(row)], out=row)

    def _count_columns(self, least_local: Values, remote: Values) -> int:
        """Return the first units beyond which no split of (R3) costs less than ``remote``.

        Arguments:
            least_local: the least of the splits of (R2), shape (units + 1,).
            remote: the least of the other terms of (R3), likewise.
        """
        dearer = self.prices.read - self.prices.load
        if dearer < 0:
            return len(remote)
        # Sums in another order may differ by rounding.
        places = np.flatnonzero(least_local + dearer <= remote * (1 + SUM_ROUNDING))
        return int(places[-1]) + 1 if len(places) else 0

    def decide(self, part: Part) -> Decision:
        """Return the decision that attains the value of a part; ties are broken in a fixed order.

        Sums are formed in the same order as for the tables, so that equal values compare equal.
        """
        where, steps, units, cached = part
        if cached and self.kept is not None:
            return self.kept.decide(Part(where, steps, units - steps * self.kept.released))
        state, prices = self.sizes.state, self.prices
        value = self.value(part)
        room = min(units + (state if where is Where.LOCAL else 0), self.units)
        if self.chunk[steps, room] + prices.chunk == value:
            return self._decide_chunk(steps, room)
        fetch_price = prices.fetch_price if where is Where.REMOTE else prices.save
        if (
            where is not Where.LOCAL
            and state <= units
            and self.local[steps, units - state] + fetch_price == value
        ):
            return Decision(Choice.FETCH if fetch_price < prices.save else Choice.CHECKPOINT)
        if where is Where.UNSTORED:
            return choose_store(self.decide, part)
        if self._value_kept(part) == value:
            return Decision(Choice.KEEP)
        return self._decide_split(part)

    def _value_kept(self, part: Part) -> float:
        """Return the value of a part whose first state is stored if it keeps its caches from here on."""
        kept = self.kept
        if kept is None or part.steps > kept.steps or part.units < part.steps * kept.released:
            return _INFINITE
        return kept.value(part._replace(units=part.units - part.steps * kept.released))

    def _decide_chunk(self, steps: int, room: int) -> Decision:
        """Return how many steps to record at once: as many as cost no more than another part after them."""
        lengths = np.arange(1, min(steps - 1, room // self.sizes.tape) + 1)
        rests, left = steps - lengths, room - lengths * self.sizes.tape
        ends = lengths[self.unstored[rests, left] < self.chunk[rests, left]]
        return Decision(Choice.RECORD, int(ends[0])) if len(ends) else Decision(Choice.TAPE)

    def _decide_split(self, part: Part) -> Decision:
        where, steps, units, _ = part
        prices, is_local = self.prices, where is Where.LOCAL
        table, back = (self.local, prices.load) if is_local else (self.remote, prices.read)
        values = table[1:steps, units]
        if self.released:
            # The caches of the rest are released before a head is reversed.
            lengths = np.arange(1, steps)
            values = table[lengths, units + (steps - lengths) * self.released]
        heads = values + (self.reruns[1:steps] + (prices.advance + back))
        length = int(np.argmin(self.unstored[steps - 1 : 0 : -1, units] + heads)) + 1
        if is_local:
            # A split whose rest is saved stands for two decisions.
            after = self.decide(Part(Where.UNSTORED, steps - length, units))
            saved = after.choice is Choice.CHECKPOINT
            return Decision(Choice.SPLIT if saved else Choice.ADVANCE, length)
        return Decision(Choice.SPLIT, length)


def choose_store(decide: Decide, part: Part) -> Decision:
    """Return how to store the first state of a part if a local copy was not found to be as cheap.

    A state that is written and fetched back at once costs as much as a local copy where s = w + l, and rounding
    tells them apart.
    """
    fetches = decide(part._replace(where=Where.REMOTE)).choice is Choice.FETCH
    return Decision(Choice.CHECKPOINT if fetches else Choice.OFFLOAD)


class Splits:
    """The least of ``rests[t - y] + heads[y]`` over y = 1..t-1, for all units at once.

    ``rests`` is stored in reverse, so that both are read forwards.
    """

    def __init__(self, rests: Values, heads: Values) -> None:
        self.last, self.width = rests.shape[0] - 1, rests.shape[1]
        self.rests, self.heads = rests, heads
        self.piece = min(max(1, _PIECE // self.width), rests.shape[0]) * self.width
        self.sums, self.least_sums = np.empty((2, self.piece), dtype=rests.dtype)

    def least(self, t: int, first: int, stop: int, columns: slice = slice(None), *, more: int = 0) -> Values:
        """Return the minimum over y = first..stop-1 for some numbers of units; heads have ``more`` units."""
        begin, width, piece = self.last - t, self.width, self.piece
        rests, heads = self.rests[begin + first : begin + stop], self.heads[first:stop]
        chosen = range(width)[columns]
        if more:
            return _add_least(
                rests[:, chosen.start : chosen.stop], heads[:, chosen.start + more : chosen.stop + more]
            )
        if not rests.flags.c_contiguous or len(chosen) < _FEW * width:
            few: Values = np.min(rests[:, columns] + heads[:, columns], axis=0)
            return few
        rests, heads = rests.reshape(-1), heads.reshape(-1)
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
        return least[columns]


def _add_least(rests: Values, heads: Values) -> Values:
    """Return the least sum of each column; few rows at a time fit the cache."""
    rows = max(1, _PIECE // rests.shape[1])
    parts = [slice(first, first + rows) for first in range(0, len(rests), rows)]
    least: Values = np.min([np.min(rests[part] + heads[part], axis=0) for part in parts], axis=0)
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
