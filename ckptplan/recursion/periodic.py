"""Solves Periodic: equal segments in remote memory, each read once, with chunked Revolve inside.

With n segments of L = p c steps (a period of p chunks of c steps), the first of L_0 = T - (n - 1) L steps,
and R(y) the binomial count of y steps (``revolve``), the cost beyond the first sweep is

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
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from ckptplan.cost.arrays import Integers, ceil_div, spread_out
from ckptplan.cost.exact import Cost, Counts, price
from ckptplan.cost.overlap import Seconds, TransferTiming, overlapped_seconds
from ckptplan.model.budget import Budget
from ckptplan.model.step_costs import StepCosts
from ckptplan.recursion import revolve
from ckptplan.recursion.pricing import MOST_PLAYED
from ckptplan.recursion.problem import Family
from ckptplan.recursion.tree import Tree

#: Up to so many steps, every setting is evaluated.
_EVERY = 256


class Settings(NamedTuple):
    """Segments of ``period`` chunks of ``chunk`` steps, with ``slots`` local checkpoints.

    Numbers, or arrays of shape (n,) of them.
    """

    chunk: Integers
    period: Integers
    slots: Integers


def find_periods(costs: StepCosts, budget: Budget, *, front: bool) -> Family:
    """Return the schedules of this form that a budget holds; for a ``front``, with fewer slots, too."""
    empty = np.zeros((len(Settings._fields), 0), dtype=np.int64)
    columns = np.concatenate([empty, *_list_settings(costs, budget, front=front)], axis=1)
    settings = Settings(*columns[:, _is_countable(Settings(*columns), steps=costs.steps)])
    cost = _price(settings, costs)
    keeps = cost.within(budget)
    settings = Settings(*(column[keeps] for column in settings))

    def build(place: int) -> Tree:
        return make_period_tree(*(int(column[place]) for column in settings), steps=costs.steps)

    return Family(cost=cost.take(keeps), regular=settings.period <= settings.slots + 1, build=build)


def _list_settings(costs: StepCosts, budget: Budget, *, front: bool) -> Iterator[Integers]:
    """Yield the settings of each chunk that fits, as rows of chunks, periods and slots."""
    steps = costs.steps
    every = steps <= _EVERY
    free = None if budget.local_bytes is None else budget.local_bytes - costs.resident_bytes
    longest = steps if free is None else min(steps, max(0, free) // costs.tape_bytes)
    room = steps if budget.remote_bytes is None else budget.remote_bytes // costs.remote_state_bytes
    if costs.overlaps_compute and steps > MOST_PLAYED:
        room = 0
    chunks = spread_out(steps, dense=_EVERY if every else 64, ratio=1.1)
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


class _Parts(NamedTuple):
    """Segments of each setting: their number, the steps of each but the first, and those of the first.

    ``again`` and ``saves`` count both kinds of segments, the first one last; shape (2, n).
    """

    number: Integers
    length: Integers
    first: Integers
    again: Integers
    saves: Integers


def _cut(settings: Settings, *, steps: int) -> _Parts:
    chunk, period, slots = settings
    number = ceil_div(ceil_div(steps, chunk), period)
    length = np.minimum(period * chunk, steps)
    first = steps - (number - 1) * length
    again, saves = revolve.count_at(np.stack([length, first]), chunk=chunk, slots=slots)
    return _Parts(number, length, first, again, saves)


def _is_countable(settings: Settings, *, steps: int) -> npt.NDArray[np.bool_]:
    """Return which settings recompute a number of steps that can be counted, and can be listed in a plan."""
    number, length, _, again, _ = _cut(settings, steps=steps)
    recomputed = number * (length + again.max(axis=0).astype(np.float64))
    period, slots = settings.period, settings.slots
    sweeps = revolve.count_sweeps_at(period, slots=slots)
    listed = revolve.has_few_decisions(period, slots=slots, sweeps=sweeps)
    countable: npt.NDArray[np.bool_] = (recomputed < revolve.MOST) & listed
    return countable


def _price(settings: Settings, costs: StepCosts) -> Cost:
    """Return the cost of each schedule as it is executed; ragged chunk and ragged segment come first."""
    number, length, first, again, saves = _cut(settings, steps=costs.steps)
    chunk, period, slots = settings
    pieces = ceil_div(costs.steps, chunk)
    states = number - 1
    # R(L) + (n - 2) (L + R(L)) + L_0 + R(L_0), or R(T) for a single segment.
    several = again[0] + (number - 2) * (length + again[0]) + first + again[1]
    counts = Counts(
        recomputed_steps=np.where(states > 0, several, again[1]),
        remote_writes=states,
        remote_reads=states,
        messages=2 * states,
        # Each chunk but the last has a run, and a local load or a remote read.
        advances=pieces - 1,
        chunks=pieces,
        local_saves=states * saves[0] + saves[1],
        local_loads=pieces - number,
        largest_message=np.minimum(states, 1),
        tapes=chunk,
        local_checkpoints=np.minimum(slots, period - 1),
        remote_checkpoints=states,
    )
    cost = price(counts, costs)
    if not costs.overlaps_compute:
        return cost
    # A whole segment: its actions, and its reversal if its first run is not part of the first sweep.
    actions = period * costs.chunk_seconds + saves[0] * costs.save_seconds
    actions = actions + (period - 1) * (costs.advance_seconds + costs.load_seconds)
    backward = length * (costs.record_overhead_seconds + costs.backward_seconds)
    reverse: Seconds = backward + again[0] * costs.recompute_seconds + actions
    forward, run = length * costs.forward_seconds, costs.advance_seconds
    one = np.ones_like(chunk)
    timing = TransferTiming(
        messages=states,
        first_states=one,
        states=one,
        first_gap=first * costs.forward_seconds + run,
        gap=forward + run,
        turn=np.where(states == 1, first * costs.forward_seconds, forward) + run + forward + reverse,
        between_reads=length * costs.recompute_seconds + reverse,
    )
    return replace(cost, seconds=overlapped_seconds(timing, counts=counts, costs=costs))


def make_period_tree(chunk: int, period: int, slots: int, *, steps: int) -> Tree:
    """Return the schedule of a setting."""
    pieces = -(-steps // chunk)
    segments = -(-pieces // period)
    first = pieces - (segments - 1) * period
    # Segments of one length are one decision.
    cuts = [(first, 1), (period, segments - 2)] if first < period else [(period, segments - 1)]
    return revolve.make_revolve_tree(slots, cuts if segments > 1 else (), steps=steps, chunk=chunk)
