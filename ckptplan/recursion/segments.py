"""Solves Disk-Revolve and Periodic: remote segments, each read once, with Revolve inside.

**Disk-Revolve.** This is the problem of Aupy et al. 2016 in closed form. Let R(y) be the binomial count for y
steps and s local slots (``revolve``), and w + r_d the cost of a transfer both ways. With segments of y_1, ...,
y_n steps before a last part of y_0 steps, which is never loaded, the cost beyond the first sweep is

    R(y_0) r + sum over i of (w + r_d + y_i r + R(y_i) r).

A part of up to C(s + k, s) steps runs none of them more than k times. So k runs of a step, the first sweep not
counted, are enough for C(s + k, s) steps of the last part and C(s + k - 1, s) steps of each segment. With the
least k that is enough for all T steps,

    R(y_0) + sum over i of (y_i + R(y_i)) = k T - C(s + k, s + 1) - n C(s + k - 1, s + 1).

This is convex in n: one segment more saves C(s + k - 1, s + 1) runs. So the best number of segments is the
least one for which the last k is enough that saves no more than a transfer costs, or one less.

The closed form does not know what saves cost, nor transfers that run beside compute. Where there are any, each
number of slots is combined with each number of segments, and priced as it is executed (docs/optimality.md).

**Periodic.** With n segments of L = p c steps (a period of p chunks of c steps), the first of
L_0 = T - (n - 1) L steps, the cost beyond the first sweep is

    (n - 1) (w + r_d) + (R(L) + (n - 2) (L + R(L)) + L_0 + R(L_0)) r  for n > 1,  R(T) r  for n = 1.

Up to ``_EVERY`` steps, every setting of c, p and the slots is evaluated; beyond, those of a grid, which
includes all short chunks and periods. The grid depends on the budget only in the most slots that it holds, and
in the longest chunk that leaves room for a checkpoint before each. More memory allows more of both, so that it
is never slower if saves are free.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from math import sqrt
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

from ckptplan.cost.arrays import Integers, ceil_div, spread_out
from ckptplan.cost.exact import Cost, Counts, price
from ckptplan.cost.overlap import wait_for
from ckptplan.model.budget import Budget
from ckptplan.model.step_costs import StepCosts
from ckptplan.recursion import revolve
from ckptplan.recursion.pricing import MOST_PLAYED
from ckptplan.recursion.problem import Family
from ckptplan.recursion.tree import Tree

#: The most recomputed steps that a time in floating point can represent exactly.
_COUNTABLE = 4 * 10**15
#: The longest sequence for which one or two slots can be counted: they need too many runs of a step.
MOST_STEPS = 1_000_000
#: Up to so many slots, each number is tried if the closed form gives the segments.
_EACH = 2**18
#: Up to so many steps, every setting is tried; beyond, they are spread out.
_EVERY, _SOME = 256, 64
_RATIO = 1.03


class Segments(NamedTuple):
    """``number`` segments of ``length`` steps, ``longer`` of them one step longer, before a last part.

    Numbers, or arrays of shape (n,) of them.
    """

    number: Integers
    length: Integers
    longer: Integers
    last: Integers
    #: Recomputed steps of the whole schedule.
    recomputed_steps: Integers
    #: How often a step runs again at most.
    runs: Integers


def deal_steps(steps: int, *, slots: Integers, number: Integers) -> Segments:
    """Return the segments that recompute least for each number of slots and of segments.

    Without a slot, there are T - 1 segments.
    """
    slots, number = np.broadcast_arrays(slots, number)

    # With one slot, C(1 + k, 1) = k + 1: no need to climb as many levels as there are steps.
    runs = np.maximum(1, ceil_div(steps - 1, number + 1))
    level = revolve.Level(runs, runs.copy(), runs + 1, runs * (runs - 1) // 2)
    several = np.flatnonzero(slots > 1)

    def is_short(level: revolve.Level, places: Integers) -> npt.NDArray[np.bool_]:
        # The product may exceed 2^63; as a float it is exact where it is near T.
        covered = level.reach + number[several[places]] * level.before.astype(np.float64)
        short: npt.NDArray[np.bool_] = covered < steps
        return short

    reached = revolve.climb(slots[several], np.full_like(several, steps), is_short)
    for column, values in zip(level, reached, strict=True):
        column[several] = values
    runs, before, _, below = level
    last = np.maximum(before, steps - np.minimum(number, steps // before + 1) * before)
    length, longer = np.divmod(steps - last, np.maximum(number, 1))
    recomputed = runs * steps - (below + before) - number * below
    return Segments(number, length, longer, last, recomputed, runs)


def choose_segments(
    *, steps: int, slots: Integers, transfer: float, recompute: float, most: int | None = None
) -> Segments:
    """Return the segments that cost least for each number of slots; arrays of shape (n,).

    Arguments:
        steps: T.
        slots: local checkpoints; with one or none, the sequence has at most ``MOST_STEPS`` steps.
        transfer: cost of writing and reading one state.
        recompute: cost of running a step again.
        most: the most segments; without a slot there are T - 1 all the same.
    """
    most = steps - 1 if most is None else min(most, steps - 1)
    if transfer < 0:
        return deal_steps(steps, slots=slots, number=np.where(slots > 0, most, steps - 1))

    def pays_off(level: revolve.Level, _: Integers) -> npt.NDArray[np.bool_]:
        # The next level has C(s + k, s + 1) = below + before.
        pays: npt.NDArray[np.bool_] = (level.reach < steps) & (
            (level.below + level.before) * recompute <= transfer
        )
        return pays

    several = slots > 1
    number = np.zeros_like(slots)
    level = revolve.climb(slots[several], np.full(several.sum(), steps), pays_off)
    number[several] = ceil_div(steps - level.reach, level.before)
    if not several.all():
        numbers = np.arange(most + 1)
        cost = (
            numbers * transfer
            + recompute * deal_steps(steps, slots=np.ones_like(numbers), number=numbers).recomputed_steps
        )
        number[~several] = np.argmin(cost)
    number = np.where(slots > 0, np.minimum(number, most), steps - 1)
    fewer = np.where(slots > 0, np.maximum(number - 1, 0), number)
    both = [deal_steps(steps, slots=slots, number=one) for one in (fewer, number)]
    less, more = (one.number * transfer + one.recomputed_steps * recompute for one in both)
    return Segments(*(np.where(less <= more, *columns) for columns in zip(*both, strict=True)))


class _Parts(NamedTuple):
    """The parts of schedules, with the actions that reverse each: two kinds of segments, and the last part.

    Columns have shape (n,), those of parts (3, n), with the last part first, then the segments of either kind
    in the order of the sequence. ``number`` has shape (2, n).
    """

    chunk: Integers
    slots: Integers
    number: Integers
    steps: Integers
    #: Steps that run again while a part is reversed, and states that are saved; 0 if they do not matter.
    again: Integers
    saves: Integers
    #: Of the whole schedule.
    recomputed_steps: Integers

    def take(self, places: npt.NDArray[Any]) -> _Parts:
        """Return the schedules at some places, given as indices or as a mask."""
        return _Parts(*(column[..., places] for column in self))

    def pieces(self) -> Integers:
        """Return the chunks of each part; shape (3, n)."""
        pieces: Integers = ceil_div(self.steps, self.chunk)
        return pieces

    def most_pieces(self) -> Integers:
        """Return the chunks of the longest part that occurs."""
        last, *segments = self.pieces()
        most: Integers = np.maximum(last, (np.minimum(self.number, 1) * segments).max(axis=0))
        return most

    def count_actions(self, steps: int) -> Counts:
        """Return the counts of each schedule."""
        segments, pieces = self.number.sum(axis=0), ceil_div(steps, self.chunk)
        return Counts(
            recomputed_steps=self.recomputed_steps,
            remote_writes=segments,
            remote_reads=segments,
            messages=2 * segments,
            # Each chunk but the last has a run, and a local load or a remote read.
            advances=pieces - 1,
            chunks=pieces,
            local_saves=self.saves[0] + (self.number * self.saves[1:]).sum(axis=0),
            local_loads=pieces - 1 - segments,
            largest_message=np.minimum(segments, 1),
            tapes=self.chunk,
            local_checkpoints=np.minimum(self.slots, self.most_pieces() - 1),
            remote_checkpoints=segments,
        )

    def price(self, costs: StepCosts) -> Cost:
        """Return the cost of each schedule as it is executed."""
        counts = self.count_actions(costs.steps)
        cost = price(counts, costs)
        if not costs.overlaps_compute:
            return cost
        # The parts in reverse: what follows the forward run of the last one, and the read of each other.
        a, k, s, back = costs.advance_seconds, costs.chunk_seconds, costs.save_seconds, costs.load_seconds
        pieces = self.pieces()
        reverse = self.steps * (costs.record_overhead_seconds + costs.backward_seconds) + pieces * k
        reverse = reverse + self.again * costs.recompute_seconds + (pieces - 1) * (a + back) + self.saves * s
        forward = self.steps * costs.forward_seconds
        write, read = costs.message_seconds + costs.write_seconds, costs.message_seconds + costs.read_seconds
        gaps, between = forward[1:] + a, reverse[1:] + self.steps[1:] * costs.recompute_seconds
        first, others = self.number
        turn = np.where(others > 0, gaps[1], gaps[0]) + forward[0] + reverse[0]
        waits = (
            np.where(others > 0, first, first - 1) * wait_for(write, gaps[0])
            + np.maximum(others - 1, 0) * wait_for(write, gaps[1])
            + wait_for(write + read, turn)
            + (first - 1) * wait_for(read, between[0])
            + others * wait_for(read, between[1])
        )
        compute = costs.compute_seconds(counts)
        return replace(cost, seconds=np.where(first > 0, compute + waits, compute))


def find_segments(costs: StepCosts, budget: Budget) -> Family:
    """Return the schedules of this form for each number of local slots that the budget holds."""
    steps = costs.steps
    most = steps - 1
    if budget.local_bytes is not None:
        free = budget.local_bytes - costs.resident_bytes - costs.tape_bytes
        most = max(-1, min(most, free // costs.state_bytes))
    slots, segments = _combine(costs, most=most, room=min(_count_room(costs, budget), steps - 1))
    parts = _part_segments(segments, slots, counted=costs.overlaps_compute or costs.save_seconds > 0)
    cost = parts.price(costs)
    keeps = cost.within(budget) & (segments.recomputed_steps <= _COUNTABLE)
    keeps &= revolve.is_listable(parts.most_pieces(), slots=slots, sweeps=segments.runs)
    slots, segments = slots[keeps], Segments(*(column[keeps] for column in segments))

    def build(place: int) -> Tree:
        number, length, longer = (int(column[place]) for column in segments[:3])
        cuts = [(length, number - longer), (length + 1, longer)]
        return revolve.make_revolve_tree(int(slots[place]), cuts, steps=steps)

    return Family(
        cost=cost.take(keeps),
        regular=np.zeros(len(slots), dtype=np.bool_),
        build=build,
    )


def _count_room(costs: StepCosts, budget: Budget) -> int:
    """Return the states that remote memory holds; none where only a simulation that is too long gives times."""
    if costs.overlaps_compute and costs.steps > MOST_PLAYED:
        return 0
    remote = budget.remote_bytes
    return costs.steps if remote is None else remote // costs.remote_state_bytes


def _part_segments(segments: Segments, slots: Integers, *, counted: bool) -> _Parts:
    """Return the parts, with their actions if these are to be ``counted``."""
    steps = np.stack([segments.last, segments.length, segments.length + 1])
    one, zeros = np.ones_like(slots), np.zeros_like(steps)
    again, saves = revolve.count_at(steps, chunk=one, slots=slots) if counted else (zeros, zeros)
    number = np.stack([segments.number - segments.longer, segments.longer])
    return _Parts(one, slots, number, steps, again, saves, segments.recomputed_steps)


def _combine(costs: StepCosts, *, most: int, room: int) -> tuple[Integers, Segments]:
    """Return numbers of slots up to ``most``, each with its segments, at most ``room`` of them."""
    steps = costs.steps
    few = 3 if steps > MOST_STEPS else 0 if room == steps - 1 else 1
    if not costs.overlaps_compute and not costs.save_seconds:
        slots = np.append(0, spread_out(most, dense=_EACH, ratio=_RATIO))
        slots = slots[(slots >= few) & (slots <= most)]
        # All pieces have a run and, if it is not read, a local load.
        transfer = costs.write_seconds + costs.read_seconds + 2 * costs.message_seconds - costs.load_seconds
        return slots, choose_segments(
            steps=steps, slots=slots, transfer=transfer, recompute=costs.recompute_seconds, most=room
        )
    slots = np.append(0, spread_out(steps - 1, dense=_EVERY, ratio=_RATIO))
    dense = _EVERY if steps <= _EVERY else _SOME
    number = np.append(0, spread_out(steps - 1, dense=dense, ratio=_RATIO))
    slots, number = slots[(slots >= few) & (slots <= most)], number[number <= room]
    slots, number = (pairs.ravel() for pairs in np.meshgrid(slots, number, indexing="ij"))
    # More slots than the parts can use are as good as fewer; without any, each step but the last is read.
    useful = np.where(slots > 0, slots + number < steps, number == steps - 1)
    return slots[useful], deal_steps(steps, slots=slots[useful], number=number[useful])


def find_periods(costs: StepCosts, budget: Budget, *, front: bool) -> Family:
    """Return the schedules of this form that a budget holds; for a ``front``, with fewer slots, too."""
    empty = np.zeros((3, 0), dtype=np.int64)
    chunk, period, slots = np.concatenate([empty, *_list_settings(costs, budget, front=front)], axis=1)
    parts = _part_periods(chunk, period, slots, steps=costs.steps)
    # In floating point: there may be too many recomputed steps to count.
    longest = (parts.steps + parts.again.astype(np.float64)).max(axis=0)
    sweeps = revolve.count_sweeps_at(period, slots=slots)
    keeps = (parts.number.sum(axis=0) + 1) * longest < revolve.MOST
    keeps &= revolve.is_listable(period, slots=slots, sweeps=sweeps)
    parts, settings = parts.take(keeps), np.stack([chunk, period, slots])[:, keeps]
    cost = parts.price(costs)
    keeps = cost.within(budget)
    chunk, period, slots = settings[:, keeps]

    def build(place: int) -> Tree:
        setting = (int(column[place]) for column in (chunk, period, slots))
        return make_period_tree(*setting, steps=costs.steps)

    return Family(cost=cost.take(keeps), regular=period <= slots + 1, build=build)


def _list_settings(costs: StepCosts, budget: Budget, *, front: bool) -> Iterator[Integers]:
    """Yield the settings of each chunk that fits, as rows of chunks, periods and slots."""
    steps = costs.steps
    every = steps <= _EVERY
    free = None if budget.local_bytes is None else budget.local_bytes - costs.resident_bytes
    longest = steps if free is None else min(steps, max(0, free) // costs.tape_bytes)
    room = _count_room(costs, budget)
    chunks = spread_out(steps, dense=_EVERY if every else _SOME, ratio=1.1)
    chunks = np.union1d(chunks[chunks <= longest], _with_all_checkpoints(longest, free, costs))
    for chunk in chunks.tolist():
        pieces = -(-steps // chunk)
        periods = spread_out(pieces, dense=_EVERY, ratio=1.02)
        states = ceil_div(pieces, periods) - 1
        slots = np.full_like(periods, pieces)
        if free is not None:
            # What moves beside compute needs two buffers.
            buffers = 2 * np.minimum(states, 1) if costs.overlaps_compute else 0
            slots = (free - chunk * costs.tape_bytes) // costs.state_bytes - buffers
        # A period of one chunk needs no slot.
        fits = (states <= room) & (slots >= np.minimum(periods - 1, 1))
        periods, slots = periods[fits], np.maximum(1, np.minimum(slots, periods - 1)[fits])
        fewer = np.arange(1, pieces) if every else 2 ** np.arange(pieces.bit_length() if front else 0)
        which, rung = np.nonzero(fewer < slots[:, None])
        periods, slots = np.append(periods[which], periods), np.append(fewer[rung], slots)
        yield np.stack([np.full_like(periods, chunk), periods, slots])


def _with_all_checkpoints(longest: int, free: int | None, costs: StepCosts) -> Integers:
    """Return the longest chunks c that leave room for a checkpoint before each, as Standard's best does.

    The number of states, ceil(T / c) - 1, is between T / c - 1 and T / c. Both ends give a quadratic in c.
    """
    if free is None:
        return np.array([], dtype=np.int64)
    state, tape = costs.state_bytes, costs.tape_bytes
    roots = []
    for room in (free, free + state):
        inside = float(room) ** 2 - 4.0 * tape * state * costs.steps
        roots.append((room + sqrt(max(0.0, inside))) / (2 * tape))
    chunks = np.unique(np.linspace(roots[0] - 1, roots[1] + 1, 32).astype(np.int64))
    result: Integers = chunks[(chunks >= 1) & (chunks <= longest)]
    return result


def _part_periods(chunk: Integers, period: Integers, slots: Integers, *, steps: int) -> _Parts:
    """Return the parts: the first segment, whose chunk and length may be ragged, the others, and the last."""
    segments = ceil_div(ceil_div(steps, chunk), period) - 1
    length = np.minimum(period * chunk, steps)
    lengths = np.stack([length, steps - segments * length, length])
    again, saves = revolve.count_at(lengths, chunk=chunk, slots=slots)
    number = np.stack([np.minimum(segments, 1), np.maximum(segments - 1, 0)])
    # R(L) + (n - 2) (L + R(L)) + L_0 + R(L_0), or R(T) for a single segment.
    recomputed = again[0] + (number * (lengths + again)[1:]).sum(axis=0)
    return _Parts(chunk, slots, number, lengths, again, saves, recomputed)


def make_period_tree(chunk: int, period: int, slots: int, *, steps: int) -> Tree:
    """Return the schedule of a setting."""
    pieces = -(-steps // chunk)
    segments = -(-pieces // period)
    first = pieces - (segments - 1) * period
    # Segments of one length are one decision.
    cuts = [(first, 1), (period, segments - 2)] if first < period else [(period, segments - 1)]
    return revolve.make_revolve_tree(slots, cuts if segments > 1 else (), steps=steps, chunk=chunk)
