"""Arithmetic of chunks that grow towards the start as reversal frees checkpoints (docs/optimality.md).

The j-th chunk from the end has c + floor(j p / q) steps. As p / q is at most M_s / M_a, the longer tape fits
in the memory of the j checkpoints that are free by then, and the peak is the same as for equal chunks.

If steps have caches of M_r bytes, reversed steps free theirs, too. A chunk before the last K steps makes its
caches when it is recorded. With d steps reversed before it, the j-th chunk has the most steps x that fit:

    x M_a + max(x, K - d) M_r <= c M_a + K M_r + j M_s
"""

from __future__ import annotations

from functools import lru_cache
from math import gcd
from threading import Lock
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from ckptplan.cost.arrays import Integers

#: Largest denominator of the growth; a finer ratio would gain less than one step per chunk.
_MOST = 64


def growth_ratio(*, state: int, tape: int) -> tuple[int, int]:
    """Return p and q with p / q at most state / tape; q is at most 64, or p is 1."""
    if state >= tape:
        return state // tape, 1
    best = (1, -(-tape // state))
    if best[1] > _MOST:
        return best
    for q in range(1, _MOST + 1):
        p = q * state // tape
        if p and p * best[1] > best[0] * q:
            best = (p, q)
    return best


def sum_steps(count: Integers, *, chunk: Integers, p: Integers, q: Integers) -> Integers:
    """Return the steps of ``count`` chunks: count c + sum of floor(j p / q) over j < count."""
    # j = a q + i gives floor(j p / q) = a p + floor(i p / q).
    whole, remainder = np.divmod(count, q)
    # Over a period of q terms, i p mod q takes each multiple of gcd(p, q) below q equally often.
    period = (p * (q - 1) - (q - np.gcd(p, q))) // 2
    periods = whole * period + p * q * (whole * (whole - 1) // 2)
    total: Integers = count * chunk + periods + whole * p * remainder + _sum_tail(remainder, p, q)
    return total


def _sum_tail(rest: Integers, p: Integers, q: Integers) -> Integers:
    """Return the sum of floor(i p / q) over i < rest, for rest < q; p and q are the same everywhere."""
    # One problem has one growth: tabulate all its sums. (If q > 64, p is 1 and the sums are 0.)
    terms = np.arange(_MOST) * p.max(initial=0) // q.max(initial=1)
    sums: Integers = np.concatenate([[0], np.cumsum(terms)])[np.minimum(rest, _MOST)]
    return sums


def count_chunks(steps: Integers, *, chunk: Integers, p: Integers, q: Integers) -> Integers:
    """Return the least number of chunks that cover ``steps``; arguments broadcast."""
    steps, chunk, p, q = np.broadcast_arrays(steps, chunk, p, q)
    # Rounding down shortens each chunk but the first by at most 1 - gcd(p, q) / q steps. So the number lies
    # between the number of unrounded chunks and of chunks shortened by this much. Rounded floats may shift
    # either end by one.
    shorter = chunk - (1 - np.gcd(p, q) / q)
    most = -(-steps // chunk)
    low = np.maximum(1, _solve_smooth(steps, chunk, p / q).astype(np.int64) - 1)
    high = np.minimum(most, _solve_smooth(steps, shorter, p / q).astype(np.int64) + 2)
    low = np.minimum(low, high)
    while np.any(low < high):
        middle = (low + high) // 2
        enough = sum_steps(middle, chunk=chunk, p=p, q=q) >= steps
        low, high = np.where(enough, low, middle + 1), np.where(enough, middle, high)
    least: Integers = low
    return least


def _solve_smooth(
    steps: Integers, chunk: Integers | npt.NDArray[np.float64], slope: npt.NDArray[np.float64]
) -> npt.NDArray[np.float64]:
    """Return the real n that solves n chunk + slope n (n - 1) / 2 = steps."""
    first = chunk - slope / 2
    # This form of the root avoids cancellation where chunks hardly grow.
    root = np.sqrt(first * first + 2 * slope * steps)
    n: npt.NDArray[np.float64] = np.where(
        first > 0, 2 * steps / np.maximum(first + root, 1e-300), (root - first) / slope
    )
    return n


def list_chunk_ends(steps: int, *, chunk: int, p: int, q: int) -> list[int]:
    """Return the ends of all chunks of a range from 0 except the last, ascending."""
    ends: list[int] = []
    end, number = steps - chunk, 1
    while end > 0:
        ends.append(end)
        end -= chunk + number * p // q
        number += 1
    return ends[::-1]


class CachedGrowth(NamedTuple):
    """The sizes that chunks grow by if steps have caches: M_s, M_a and M_r in units that divide all three."""

    state: int
    tape: int
    cache: int

    @classmethod
    def of(cls, *, state: int, tape: int, cache: int) -> CachedGrowth:
        """Return the sizes in the largest unit that divides them."""
        unit = gcd(state, tape, cache)
        return cls(state // unit, tape // unit, cache // unit)

    def count_chunks(self, steps: Integers, *, chunk: Integers, cached: Integers) -> Integers:
        """Return the least number of chunks that cover ``steps`` with the last chunk and K given.

        Arguments broadcast. The chunks within the last K steps are looked up, and the earlier chunks are
        counted by a sum.
        """
        columns = np.broadcast_arrays(steps, chunk, np.minimum(cached, steps))
        flat = [column.ravel() for column in columns]
        parts = (
            self._count_batch(*(column[first : first + _AT_ONCE] for column in flat))
            for first in range(0, len(flat[0]), _AT_ONCE)
        )
        counted: Integers = np.concatenate([flat[0][:0], *parts]).reshape(columns[0].shape)
        return counted

    def list_chunk_ends(self, steps: int, *, chunk: int, cached: int) -> list[int]:
        """Return the ends of all chunks of a range from 0 except the last, ascending."""
        cached = min(cached, steps)
        last, caches = np.array([chunk]), np.array([cached])
        ends, end = [steps], steps
        for whole in range(int(self._count_within(last, caches)[0][0])):
            end -= (chunk * self.tape + whole * self.state + (steps - end) * self.cache) // self.tape
            ends.append(end)
        while end > 0:
            number = len(ends) - 1
            end -= int(
                self._reach_back(np.array([number]), np.array([steps - end]), chunk=last, cached=caches)[0]
            )
            ends.append(end)
        return ends[-2:0:-1]

    def _count_batch(self, steps: Integers, chunk: Integers, cached: Integers) -> Integers:
        number, done = self._count_within(chunk, cached)
        # One more chunk begins within the last K steps, and may end before them.
        begins = done < cached
        reach = self._reach_back(number, done, chunk=chunk, cached=cached)
        number, done = number + begins, done + np.where(begins, reach, 0)
        first = chunk * self.tape + cached * self.cache + number * self.state
        left = np.maximum(0, steps - done)
        further = _count_terms(left, first=first, step=self.state, divisor=self.tape + self.cache)
        counted: Integers = number + further
        return counted

    def _count_within(self, chunk: Integers, cached: Integers) -> tuple[Integers, Integers]:
        """Return the number and the steps of the chunks that lie within the last K steps."""
        number, done = _find_runs(self).look_up(chunk, cached)
        # x M_a <= c M_a + j M_s + d M_r, for the chunks of the run that K ends.
        length = (chunk * self.tape + number * self.state + done * self.cache) // self.tape
        whole = (cached - done) // length
        return number + whole, done + whole * length

    def _reach_back(self, number: Integers, done: Integers, *, chunk: Integers, cached: Integers) -> Integers:
        """Return the length of the next chunk, which reaches the steps before the last K.

        Arguments:
            number: the chunks that are reversed already.
            done: the steps of these chunks.
            chunk: the steps of the last chunk.
            cached: K, the last steps whose caches the first sweep keeps.
        """
        # x (M_a + M_r) <= c M_a + K M_r + j M_s.
        before = (chunk * self.tape + cached * self.cache + number * self.state) // (self.tape + self.cache)
        length: Integers = np.maximum(before, cached - done)
        return length


#: The number of settings that are counted at once, as the runs of equal chunks are listed for each.
_AT_ONCE = 8192
#: The most numbers in the lists of runs that are kept for later calls.
_MOST_KEPT = 2**19


class _Runs:
    """Runs of equally long chunks, as if all steps had their caches, by the length c of the last chunk.

    Row ``rows[c]`` belongs to c. Column i of ``numbers`` and ``ends`` has the number of chunks and of steps up
    to the end of run i, from 0 on; shape (rows, runs + 1). All rows end after ``reach`` steps. Threads
    share the rows: one of them adds rows at a time, and arrays are replaced, never changed.
    """

    def __init__(self, growth: CachedGrowth) -> None:
        self.growth, self.reach = growth, 0
        self.rows: dict[int, int] = {}
        self.numbers = self.ends = np.zeros((0, 1), dtype=np.int64)
        self._keys, self._spacing = np.zeros(0, dtype=np.int64), 1
        self._adding = Lock()

    def look_up(self, chunk: Integers, steps: Integers) -> tuple[Integers, Integers]:
        """Return the chunks, and the steps, of all runs that end within the last ``steps``; shape (n,)."""
        with self._adding:
            row = self._find_rows(chunk, reach=int(steps.max(initial=0)))
            numbers, ends, keys, spacing = self.numbers, self.ends, self._keys, self._spacing
        place = np.searchsorted(keys, row * spacing + steps, side="right") - 1
        return numbers.ravel()[place], ends.ravel()[place]

    def _find_rows(self, chunk: Integers, *, reach: int) -> Integers:
        """Return the row of each chunk length; make rows that are missing or too short."""
        chunks, places = np.unique(chunk, return_inverse=True)
        if reach > self.reach or self.ends.size > _MOST_KEPT:
            self.reach = max(reach, self.reach)
            self.rows, self.numbers, self.ends = {}, self.numbers[:0], self.ends[:0]
        missing = [length for length in chunks.tolist() if length not in self.rows]
        if missing:
            numbers, ends = self._list_runs(np.array(missing))
            first = len(self.numbers)
            self.numbers, self.ends = _join_rows(self.numbers, numbers), _join_rows(self.ends, ends)
            self.rows.update(zip(missing, range(first, len(self.numbers)), strict=True))
            # All rows one after the other, as one ascending array: row r begins at r times the spacing.
            self._spacing = int(self.ends.max()) + 1
            self._keys = (self.ends + self._spacing * np.arange(len(self.ends))[:, None]).ravel()
        rows: Integers = np.array([self.rows[length] for length in chunks.tolist()], dtype=np.int64)[places]
        return rows

    def _list_runs(self, chunk: Integers) -> tuple[Integers, Integers]:
        """Return the rows of chunk lengths; rows that reach far enough are filled up with their last number."""
        state, tape, cache = self.growth
        number = done = np.zeros_like(chunk)
        numbers, ends = [number], [done]
        while np.any(goes_on := done < self.reach):
            length, remainder = np.divmod(chunk * tape + number * state + done * cache, tape)
            run = np.where(goes_on, (tape - 1 - remainder) // (state + length * cache) + 1, 0)
            number, done = number + run, done + run * length
            numbers.append(number)
            ends.append(done)
        return np.stack(numbers, axis=1), np.stack(ends, axis=1)


def _join_rows(first: Integers, second: Integers) -> Integers:
    """Join arrays of rows; shorter rows are filled up with their last number."""
    if not len(first):
        return second
    width = max(first.shape[1], second.shape[1])
    padded = (np.pad(rows, ((0, 0), (0, width - rows.shape[1])), mode="edge") for rows in (first, second))
    joined: Integers = np.concatenate(list(padded))
    return joined


#: Caches the runs of the growths that were used last.
_find_runs = lru_cache(maxsize=16)(_Runs)


def _count_terms(total: Integers, *, first: Integers, step: int, divisor: int) -> Integers:
    """Return the least n whose terms floor((first + i step) / divisor), i < n, add up to ``total``.

    The first term is at least 1.
    """
    # Terms lose less than 1 by rounding down, and rounded floats may shift the root by one.
    slope = np.array(step / divisor)
    low = _solve_smooth(total, first / divisor, slope).astype(np.int64) - 1
    high = _solve_smooth(total, np.maximum(0, first - divisor + 1) / divisor, slope).astype(np.int64) + 2
    low = np.where(total > 0, np.maximum(1, low), 0)
    high = np.maximum(low, np.minimum(high, -(-total // (first // divisor))))
    while np.any(low < high):
        middle = (low + high) // 2
        enough = _sum_terms(middle, first=first, step=step, divisor=divisor) >= total
        low, high = np.where(enough, low, middle + 1), np.where(enough, middle, high)
    return low


def _sum_terms(count: Integers, *, first: Integers, step: int, divisor: int) -> Integers:
    """Return the sum of floor((first + i step) / divisor) over i < count, by Euclid's algorithm.

    The sum counts the points of a lattice below a line. Exchanging its axes exchanges step and divisor.
    """
    total = np.zeros_like(count)
    while True:
        whole, step = divmod(step, divisor)
        quotient, first = np.divmod(first, divisor)
        total = total + (count * (count - 1) // 2 * whole + count * quotient)
        # Points below the rest of the line: columns i < count, rows up to the row of the last column.
        rows, first_of_rows = np.divmod(step * count + first, divisor)
        if not step or not rows.any():
            return total
        count, first, step, divisor = rows, first_of_rows, divisor, step
