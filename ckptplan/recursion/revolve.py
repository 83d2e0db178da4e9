"""Computes binomial checkpointing in closed form (Griewank and Walther 2000), for chunks of steps.

With s local checkpoints, including that of the first state, beta(s, k) = C(s + k, s) pieces can be reversed
so that no piece runs more than k times without a tape. With pieces of c steps, the ragged one first,

    R(T) = max over k of  k T - c C(s + k, s + 1)

steps run again. For c = 1 this is the classical count, k T - C(s + k, s + 1) with the least k such that
C(s + k, s) >= T. R is convex in T, and falls with c and with s. The formula holds for the ragged first piece
because ``split`` leaves more than C(s + k - 2, s) pieces to the left: the first piece runs again k times, as
often as any piece does.

Of the schedules that run so few steps again, ``split`` chooses one that saves the fewest states. Each split
of a part is one run, one load and one part more, so that n pieces take n - 1 of each. A part of a single
piece is not saved. With x = n - C(s + k - 1, s) pieces beyond those that k - 1 sweeps reverse,

    max(C(s + k - 2, s - 1), x)

states are saved: the first C(s + k - 2, s - 1) further pieces split parts whose first state is saved anyway,
and each one after them splits a part that is not (docs/optimality.md).
"""

from __future__ import annotations

from collections.abc import Sequence
from math import comb
from typing import Any, NamedTuple

import numpy as np

from ckptplan.cost.arrays import Integers, Quantity
from ckptplan.model.split import Choice, Where
from ckptplan.recursion.tree import Decision, Part, Tree, UnitSizes, grow_tree

#: Counts saturate at this value, which is more steps than can be priced.
MOST = 2**62


def count_recomputed(steps: int, *, chunk: int, slots: int) -> int:
    """Return R(steps), the steps that run again; ``slots`` may be 0 if one chunk holds all steps."""
    if steps <= chunk:
        return 0
    if slots < 1:
        return MOST
    sweeps = least_sweeps(-(-steps // chunk), slots)
    return min(MOST, sweeps * steps - chunk * comb(slots + sweeps, slots + 1))


def least_sweeps(pieces: int, slots: int) -> int:
    """Return the least k with C(slots + k, slots) >= pieces."""
    low, high = 0, 1
    while comb(slots + high, slots) < pieces:
        low, high = high, 2 * high
    while low < high:
        middle = (low + high) // 2
        if comb(slots + middle, slots) >= pieces:
            high = middle
        else:
            low = middle + 1
    return high


#: The most decisions that a plan may hold; making or reading them takes a second or two.
_DECISIONS = 200_000


def is_listable(pieces: Quantity, *, slots: Quantity, sweeps: Quantity) -> Any:
    """Return whether a schedule has few enough distinct parts to list their decisions in a plan."""
    return np.minimum(slots, pieces) * sweeps <= _DECISIONS


def split(pieces: int, slots: int) -> int:
    """Return how many of at least two pieces to put to the left of the next checkpoint.

    The left side must be reversible with no piece run more than k - 1 times, the right side with k times: from
    C(s + k - 2, s) to C(s + k - 1, s) pieces to the left, from C(s + k - 2, s - 1) to C(s + k - 1, s - 1) to
    the right. Both sides have some of the x pieces beyond the fewest: as many to the left as keep the saves of
    both sides, max(A, x_left) + max(B, x_right), at their minimum max(A + B, x).
    """
    if slots == 1:
        return pieces - 1
    sweeps = least_sweeps(pieces, slots)
    if sweeps == 1:
        return 1
    # C(s + k - 1, s) = fewest + left + right: each is the sum of two neighbours in Pascal's triangle.
    fewest, left = comb(slots + sweeps - 2, slots), comb(slots + sweeps - 3, slots - 1)
    right = left * (slots - 1) // (sweeps - 1)
    beyond = pieces - fewest - left - right
    return fewest + (min(beyond, left) if beyond <= left + right else min(left + right, beyond - right))


def count_saves(pieces: int, *, slots: int) -> int:
    """Return the states that are saved, the first one included; 0 for a single piece."""
    if pieces == 1 or slots < 1:
        return 0
    sweeps = least_sweeps(pieces, slots)
    return max(comb(slots + sweeps - 2, slots - 1), pieces - comb(slots + sweeps - 1, slots))


class Level(NamedTuple):
    """For k = ``runs``: C(s + k - 1, s) and C(s + k - 1, s + 1); arrays of shape (n,)."""

    runs: Integers
    before: Integers
    below: Integers

    def count_recomputed(self, steps: Integers, *, chunk: Integers, number: Integers) -> Integers:
        """Return k T - c C(s + k, s + 1) - n c C(s + k - 1, s + 1), saturated at ``MOST``.

        ``number`` is the number n of segments that run once more, in chunks of ``chunk`` steps.
        """
        runs, before, below = (column.astype(np.float64) for column in self)
        saved = below + before + number * below
        is_countable = runs * steps - chunk * saved < MOST
        # Products may wrap around; their difference does not if it is countable.
        exact = self.runs * steps - chunk * (self.below + self.before + number * self.below)
        counted: Integers = np.where(is_countable, exact, MOST)
        return counted


#: Up to this many levels are climbed; only a few slots need more.
_FEW = 64
#: The most pieces whose products floats hold exactly.
_FLOATS = 2**26


def find_level(pieces: Integers, *, slots: Integers, number: Integers) -> Level:
    """Return the level of the least k >= 1 with C(s + k, s) + n C(s + k - 1, s) >= ``pieces``; shape (n,).

    With s slots and n segments besides the last part, a schedule then runs no piece more than k times again.
    """
    runs, before = np.ones_like(pieces), np.ones_like(pieces)
    if pieces.max(initial=0) <= _FLOATS:
        # Products of two numbers up to the pieces are exact as floats, and quotients that are whole, too.
        before = before.astype(np.float64)
    is_short = slots > 2
    for k in range(1, _FEW + 1):
        # C(s + k, s) = C(s + k - 1, s) (s + k) / k; beyond the pieces, it need not be exact.
        reach = before * (slots + k) / k if before.dtype == np.float64 else multiply(before, slots + k, k)
        # As floats the sum is exact where it is near the pieces.
        is_short &= reach + number * before.astype(np.float64) < pieces
        if not is_short.any():
            break
        runs = runs + is_short
        before = np.where(is_short, reach, before)
    before = before.astype(np.int64)
    few = slots <= 2
    if few.any():
        runs[few], before[few] = _solve_few(pieces[few], slots=slots[few], number=number[few])
    if is_short.any():
        levels = _find_runs(pieces[is_short], slots=slots[is_short], number=number[is_short])
        runs[is_short], before[is_short] = levels, _count_reach(slots[is_short], levels - 1)
    return Level(runs, before, multiply(before, runs - 1, slots + 1))


def _solve_few(pieces: Integers, *, slots: Integers, number: Integers) -> tuple[Integers, Integers]:
    """Return k of ``find_level`` and C(s + k - 1, s) for one or two slots, which need many levels.

    With one, (n + 1) k + 1 pieces are enough; with two, (k + 1) ((n + 1) k + 2) / 2.
    """
    n = number.astype(np.float64)
    root = np.sqrt((n + 3) ** 2 + 8 * (n + 1) * (pieces - 1.0)) - (n + 3)
    runs = np.maximum(1, np.where(slots == 1, (pieces - 1) / (n + 1), root / (2 * n + 2)).astype(np.int64) - 1)
    # The quotient is rounded down, and roots to within one.
    for _ in range(4):
        reach = np.where(slots == 1, (n + 1) * runs + 1, (runs + 1) * ((n + 1) * runs + 2) / 2)
        runs = runs + (reach < pieces)
    return runs, np.where(slots == 1, runs, runs * (runs + 1) // 2)


def _find_runs(pieces: Integers, *, slots: Integers, number: Integers) -> Integers:
    """Return the least k of ``find_level`` by bisection, where it is more than ``_FEW``."""
    low, high = np.full_like(pieces, _FEW), np.maximum(pieces, _FEW + 1)
    while (high - low > 1).any():
        middle = low + (high - low) // 2
        reach, before = (_count_reach(slots, k).astype(np.float64) for k in (middle, middle - 1))
        is_short = reach + number * before < pieces
        low, high = np.where(is_short, middle, low), np.where(is_short, high, middle)
    return high


def _count_reach(slots: Integers, runs: Integers) -> Integers:
    """Return C(s + k, s) for few slots, saturated at ``MOST``."""
    reach = np.ones_like(slots)
    for place in range(1, int(slots.max()) + 1):
        reach = np.where(place <= slots, multiply(reach, runs + place, place), reach)
    return reach


def count_sweeps_at(pieces: Integers, *, slots: Integers) -> Integers:
    """Return ``least_sweeps`` for arrays that broadcast; 0 for a single piece."""
    pieces, slots = np.broadcast_arrays(pieces, slots)
    level = find_level(pieces.ravel(), slots=slots.ravel(), number=np.zeros_like(pieces).ravel())
    return np.where(pieces > 1, level.runs.reshape(pieces.shape), 0)


def count_at(steps: Integers, *, chunk: Integers, slots: Integers) -> tuple[Integers, Integers]:
    """Return ``count_recomputed`` and ``count_saves`` for arrays that broadcast.

    Recomputed steps saturate at 2**62.
    """
    shape = np.broadcast_shapes(steps.shape, chunk.shape, slots.shape)
    steps, chunk, slots = (column.ravel() for column in np.broadcast_arrays(steps, chunk, slots))
    pieces = -(-steps // chunk)
    result, saves = np.where(pieces > 1, MOST, 0), np.zeros_like(steps)
    places = np.flatnonzero((pieces > 1) & (slots > 0))
    n, s = pieces[places], slots[places]
    level = find_level(n, slots=s, number=np.zeros_like(n))
    result[places] = level.count_recomputed(steps[places], chunk=chunk[places], number=np.zeros_like(n))
    # C(s + k - 2, s - 1) = C(s + k - 1, s) s / (s + k - 1)
    saves[places] = np.maximum(multiply(level.before, s, s + level.runs - 1), n - level.before)
    return result.reshape(shape), saves.reshape(shape)


def multiply(value: Integers, factor: Integers, divisor: Integers | int) -> Integers:
    """Return value * factor / divisor, saturated at 2**62; for binomials the division is exact."""
    whole, remainder = np.divmod(value, divisor)
    large = whole.astype(np.float64) * factor > MOST
    product = np.where(large, MOST, whole * np.where(large, 0, factor) + remainder * factor // divisor)
    exact: Integers = product
    return exact


def binomial_decision(part: Part, sizes: UnitSizes) -> Decision:
    """Return the decision of binomial checkpointing for a part; a tape takes some of its local memory."""
    if part.steps == 1:
        return Decision(Choice.TAPE)
    if part.where is not Where.LOCAL:
        return Decision(Choice.CHECKPOINT)
    length = split(part.steps, 1 + (part.units - sizes.tape) // sizes.state)
    # The last step needs no checkpoint.
    last = length == part.steps - 1
    return Decision(Choice.SPLIT_RECORD, part.steps) if last else Decision(Choice.SPLIT, length)


def make_revolve_tree(
    slots: int, segments: Sequence[tuple[int, int]] = (), *, steps: int, chunk: int = 1
) -> Tree:
    """Return binomial checkpointing of ``steps`` steps in chunks, in the last part and in remote segments.

    ``segments`` are the lengths of remote segments in chunks, each with the number of such segments.
    """
    # With a tape as large as a state, units count slots, and one unit is the tape's.
    sizes = UnitSizes(1, 1)
    cuts: dict[int, Decision] = {}
    left = pieces = -(-steps // chunk)
    for length, count in segments:
        if count:
            cuts[left] = Decision(Choice.SEGMENTS, length, count)
            left -= length * count

    def decide(part: Part) -> Decision:
        if part.where is Where.UNSTORED and part.steps in cuts:
            return cuts[part.steps]
        return binomial_decision(part, sizes)

    return grow_tree(Part(Where.UNSTORED, pieces, slots + 1), decide, sizes=sizes, chunk=chunk, steps=steps)
