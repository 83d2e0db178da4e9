"""Computes binomial checkpointing in closed form (Griewank and Walther 2000), for chunks of steps.

With s local checkpoints, including that of the first state, beta(s, k) = C(s + k, s) pieces can be reversed
so that no piece runs more than k times without a tape. With pieces of c steps, the ragged one first,

    R(T) = max over k of  k T - c C(s + k, s + 1)

steps run again. For c = 1 this is the classical count, k T - C(s + k, s + 1) with the least k such that
C(s + k, s) >= T. R is convex in T, and falls with c and with s. The formula holds for the ragged first piece
because ``split`` puts as many pieces as possible to the left: the first piece runs again k times, as often
as any piece does.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from math import comb

import numpy as np

from ckptplan.cost.arrays import Integers
from ckptplan.model.split import Choice, Where
from ckptplan.recursion.schedule_tree import Tree
from ckptplan.recursion.tree import Decision, Part, UnitSizes

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


def is_listable(pieces: int, slots: int) -> bool:
    """Return whether the schedule has few enough distinct parts to list their decisions in a plan."""
    return slots >= 1 and min(slots, pieces) * least_sweeps(pieces, slots) <= _DECISIONS


def split(pieces: int, slots: int) -> int:
    """Return how many of at least two pieces to put to the left of the next checkpoint: as many as possible.

    The left side must be reversible with no piece run more than k - 1 times, the right side with k times:
    at most C(s + k - 1, s) pieces to the left, and at least C(s + k - 2, s - 1) to the right.
    """
    if slots == 1:
        return pieces - 1
    sweeps = least_sweeps(pieces, slots)
    fewest_right = comb(slots + sweeps - 2, slots - 1)
    return min(comb(slots + sweeps - 1, slots), pieces - fewest_right)


def count_recomputed_at(steps: Integers, *, chunk: Integers, slots: Integers) -> Integers:
    """Return ``count_recomputed`` for arrays that broadcast; counts saturate at 2**62."""
    steps, chunk, slots = np.broadcast_arrays(steps, chunk, slots)
    result = np.zeros(steps.shape, dtype=np.int64)
    open_ = np.flatnonzero((steps > chunk) & (slots >= 1))
    result[(steps > chunk) & (slots < 1)] = MOST
    total, c, s = steps[open_], chunk[open_], slots[open_]
    pieces = -(-total // c)
    # For k = 0, 1, ...: reach = C(s + k, s), and below = sum of C(s + i, s) for i < k = C(s + k, s + 1).
    reach, below = np.ones_like(total), np.zeros_like(total)
    sweeps = 0
    while len(open_):
        done = reach >= pieces
        if done.any():
            result[open_[done]] = sweeps * total[done] - c[done] * below[done]
            keep = ~done
            open_, total, c, s, pieces, reach, below = (
                column[keep] for column in (open_, total, c, s, pieces, reach, below)
            )
        sweeps += 1
        if sweeps > _FEW:
            for place, one in zip(open_, zip(total.tolist(), c.tolist(), s.tolist(), strict=True), strict=True):
                result[place] = count_recomputed(one[0], chunk=one[1], slots=one[2])
            break
        below = below + reach
        # Exact and without overflow: reach is at most T, and the quotient is a binomial coefficient.
        reach = np.minimum(_multiply(reach, s + sweeps, sweeps), total)
    return result


#: Up to this many sweeps, all entries are counted together; only one or two slots need more.
_FEW = 64


def _multiply(value: Integers, factor: Integers, divisor: int) -> Integers:
    """Return value * factor / divisor, saturated at 2**62; for binomials the division is exact."""
    whole, rest = np.divmod(value, divisor)
    large = whole.astype(np.float64) * factor > MOST
    product = np.where(large, MOST, whole * np.where(large, 0, factor) + rest * factor // divisor)
    exact: Integers = product
    return exact


class Binomial(Mapping[Part, Decision]):
    """The decisions of binomial checkpointing; a part's ``units`` are its slots besides the first state's."""

    def __getitem__(self, part: Part) -> Decision:
        if part.steps == 1:
            return Decision(Choice.TAPE)
        if part.where is not Where.LOCAL:
            return Decision(Choice.CHECKPOINT)
        length = split(part.steps, part.units + 1)
        # The last piece needs no checkpoint.
        last = length == part.steps - 1
        return Decision(Choice.SPLIT_RECORD, part.steps) if last else Decision(Choice.SPLIT, length)

    def __iter__(self) -> Iterator[Part]:
        raise NotImplementedError("decisions are computed on demand and cannot be listed")

    def __len__(self) -> int:
        raise NotImplementedError("decisions are computed on demand and cannot be listed")


def make_binomial_tree(*, steps: int, chunk: int, slots: int, where: Where = Where.UNSTORED) -> Tree:
    """Return the tree of binomial checkpointing for ``steps`` steps in chunks, with ``slots`` checkpoints."""
    root = Part(where, -(-steps // chunk), slots)
    return Tree(decisions=Binomial(), root=root, sizes=UnitSizes(1, 0), chunk=chunk, steps=steps)
