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

from collections.abc import Callable, Sequence
from math import comb, inf
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

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
    """For k = ``runs``: C(s + k - 1, s), C(s + k, s) and C(s + k - 1, s + 1); arrays of shape (n,)."""

    runs: Integers
    before: Integers
    reach: Integers
    below: Integers


def climb(
    slots: Integers,
    most: Integers,
    is_short: Callable[[Level, Integers], npt.NDArray[np.bool_]],
    *,
    most_runs: float = inf,
) -> Level:
    """Return the level of the least k >= 1 that is not short, for each number of slots.

    Beyond ``most_runs`` levels are 0.

    Arguments:
        slots: local checkpoints, shape (n,).
        most: values at which C(s + k, s) saturates, shape (n,).
        is_short: tells which levels are short; it gets those that are still open, and their places.
        most_runs: the most levels to look at.
    """
    level = Level(*np.zeros((len(Level._fields), len(slots)), dtype=np.int64))
    places, runs = np.arange(len(slots)), 1
    before, reach, below = np.ones_like(slots), np.minimum(slots + 1, most), np.zeros_like(slots)
    while len(places) and runs <= most_runs:
        here = Level(np.full_like(places, runs), before, reach, below)
        open_ = is_short(here, places)
        if not open_.all():
            for column, values in zip(level, here, strict=True):
                column[places[~open_]] = values[~open_]
            places, before, reach, below = (column[open_] for column in (places, before, reach, below))
        runs += 1
        below, before = below + before, reach
        # Exact and without overflow: the quotient is a binomial coefficient.
        reach = np.minimum(multiply(reach, slots[places] + runs, runs), most[places])
    return level


def _climb_to(pieces: Integers, slots: Integers) -> Level:
    """Return the levels at which so many pieces can be reversed, 0 where more than ``_FEW`` are needed."""
    return climb(slots, pieces, lambda level, places: level.reach < pieces[places], most_runs=_FEW)


def count_sweeps_at(pieces: Integers, *, slots: Integers) -> Integers:
    """Return an upper bound of ``least_sweeps`` for arrays that broadcast."""
    pieces, slots = np.broadcast_arrays(pieces, slots)
    runs = _climb_to(pieces.ravel(), slots.ravel()).runs.reshape(pieces.shape)
    sweeps: Integers = np.where(runs > 0, runs, np.maximum(pieces - 1, 0))
    return sweeps


def count_at(steps: Integers, *, chunk: Integers, slots: Integers) -> tuple[Integers, Integers]:
    """Return ``count_recomputed`` and ``count_saves`` for arrays that broadcast.

    Recomputed steps saturate at 2**62; where they do, the saves are 0.
    """
    shape = np.broadcast_shapes(steps.shape, chunk.shape, slots.shape)
    steps, chunk, slots = (column.ravel() for column in np.broadcast_arrays(steps, chunk, slots))
    pieces = -(-steps // chunk)
    result, saves = np.where(pieces > 1, MOST, 0), np.zeros_like(steps)
    # One slot keeps the first state alone: n pieces take n - 1 sweeps, too many to count one by one.
    single = np.flatnonzero((pieces > 1) & (slots == 1) & (steps < 2**31))
    n, c = pieces[single], chunk[single]
    result[single], saves[single] = (n - 1) * steps[single] - c * (n * (n - 1) // 2), 1
    others = np.setdiff1d(np.flatnonzero((pieces > 1) & (slots > 0)), single, assume_unique=True)
    n, c, s = pieces[others], chunk[others], slots[others]
    runs, before, _, below = _climb_to(n, s)
    result[others] = runs * steps[others] - c * (below + before)
    saves[others] = np.maximum(multiply(before, s, np.maximum(s + runs - 1, 1)), n - before)
    for place in others[runs == 0].tolist():
        one = {"chunk": int(chunk[place]), "slots": int(slots[place])}
        result[place] = count_recomputed(int(steps[place]), **one)
        saves[place] = count_saves(int(pieces[place]), slots=one["slots"])
    return result.reshape(shape), saves.reshape(shape)


#: Up to this many sweeps, all entries are counted together; only one or two slots need more.
_FEW = 64


def multiply(value: Integers, factor: Integers, divisor: Integers | int) -> Integers:
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
