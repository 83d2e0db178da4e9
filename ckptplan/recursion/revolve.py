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
from typing import Any

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


def count_sweeps_at(pieces: Integers, *, slots: Integers) -> Integers:
    """Return an upper bound of ``least_sweeps`` for arrays that broadcast."""
    pieces, slots = np.broadcast_arrays(pieces, slots)
    most = np.maximum(pieces - 1, 0)
    sweeps = most.copy()
    reach = np.ones_like(most)
    for count in range(1, _FEW + 1):
        reach = np.minimum(multiply(reach, slots + count, count), pieces)
        sweeps = np.where((reach >= pieces) & (sweeps > count), count, sweeps)
        if (sweeps <= count).all():
            break
    return sweeps


def count_at(steps: Integers, *, chunk: Integers, slots: Integers) -> tuple[Integers, Integers]:
    """Return ``count_recomputed`` and ``count_saves`` for arrays that broadcast.

    Recomputed steps saturate at 2**62; where they do, the saves are 0.
    """
    shape = np.broadcast_shapes(steps.shape, chunk.shape, slots.shape)
    steps, chunk, slots = (column.ravel() for column in np.broadcast_arrays(steps, chunk, slots))
    result, saves = np.zeros_like(steps), np.zeros_like(steps)
    open_ = np.flatnonzero((steps > chunk) & (slots >= 1))
    result[(steps > chunk) & (slots < 1)] = MOST
    # One slot keeps the first state alone: n pieces take n - 1 sweeps, too many to count one by one.
    single = open_[(slots[open_] == 1) & (steps[open_] < 2**31)]
    pieces = -(-steps[single] // chunk[single])
    result[single] = (pieces - 1) * steps[single] - chunk[single] * (pieces * (pieces - 1) // 2)
    saves[single] = 1
    open_ = np.setdiff1d(open_, single, assume_unique=True)
    total, c, s = steps[open_], chunk[open_], slots[open_]
    pieces = -(-total // c)
    # For k = 0, 1, ...: reach = C(s + k, s), and below = sum of C(s + i, s) for i < k = C(s + k, s + 1).
    reach, below = np.ones_like(total), np.zeros_like(total)
    # C(s + k - 1, s) and C(s + k - 2, s - 1), their difference to the one before.
    last, grown = np.zeros_like(total), np.zeros_like(total)
    sweeps = 0
    while len(open_):
        done = reach >= pieces
        if done.any():
            result[open_[done]] = sweeps * total[done] - c[done] * below[done]
            saves[open_[done]] = np.maximum(grown[done], pieces[done] - last[done])
            keep = ~done
            open_, total, c, s, pieces, reach, below, last = (
                column[keep] for column in (open_, total, c, s, pieces, reach, below, last)
            )
        sweeps += 1
        if sweeps > _FEW:
            for place, one in zip(open_, zip(total.tolist(), c.tolist(), s.tolist(), strict=True), strict=True):
                result[place] = count_recomputed(one[0], chunk=one[1], slots=one[2])
                saves[place] = count_saves(-(-one[0] // one[1]), slots=one[2])
            break
        below = below + reach
        grown, last = reach - last, reach
        # Exact and without overflow: reach is at most T, and the quotient is a binomial coefficient.
        reach = np.minimum(multiply(reach, s + sweeps, sweeps), total)
    return result.reshape(shape), saves.reshape(shape)


#: Up to this many sweeps, all entries are counted together; only one or two slots need more.
_FEW = 64


def multiply(value: Integers, factor: Integers, divisor: int) -> Integers:
    """Return value * factor / divisor, saturated at 2**62; for binomials the division is exact."""
    whole, rest = np.divmod(value, divisor)
    large = whole.astype(np.float64) * factor > MOST
    product = np.where(large, MOST, whole * np.where(large, 0, factor) + rest * factor // divisor)
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

    ``segments`` are their lengths in chunks, each with a number of times that it occurs.
    """
    # With a tape as large as a state, units count slots, and one unit is the tape's.
    sizes = UnitSizes(1, 1)
    cuts: dict[int, Decision] = {}
    rest = pieces = -(-steps // chunk)
    for length, count in segments:
        if count:
            cuts[rest] = Decision(Choice.SEGMENTS, length, count)
            rest -= length * count

    def decide(part: Part) -> Decision:
        if part.where is Where.UNSTORED and part.steps in cuts:
            return cuts[part.steps]
        return binomial_decision(part, sizes)

    return grow_tree(Part(Where.UNSTORED, pieces, slots + 1), decide, sizes=sizes, chunk=chunk, steps=steps)
