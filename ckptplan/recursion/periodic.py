"""Solves Periodic: equal segments in remote memory, each read once, with chunked Revolve inside.

With n segments of L = p c steps (a period of p chunks of c steps), the first of L_0 = T - (n - 1) L steps,
and R(y) the binomial count of y steps (``revolve``), the cost beyond the first sweep is

    (n - 1) (w + r_d) + (R(L) + (n - 2) (L + R(L)) + L_0 + R(L_0)) r  for n > 1,  R(T) r  for n = 1.

It is evaluated on a grid of chunks and periods, which includes all short ones.
"""

from __future__ import annotations

from collections.abc import Iterator
from functools import partial
from math import inf, sqrt
from typing import NamedTuple

import numpy as np

from ckptplan.cost.arrays import Integers
from ckptplan.cost.overlap import Seconds
from ckptplan.model.budget import Budget
from ckptplan.model.split import Choice, Where
from ckptplan.model.step_costs import StepCosts
from ckptplan.recursion import revolve
from ckptplan.recursion.action_costs import ActionCosts
from ckptplan.recursion.problem import Candidate
from ckptplan.recursion.schedule_tree import Tree, grow_tree
from ckptplan.recursion.single_tape import binomial_decision
from ckptplan.recursion.tree import Decision, Part, UnitSizes


class Setting(NamedTuple):
    """Segments of ``period`` chunks of ``chunk`` steps, with ``slots`` local checkpoints; ``extra`` seconds."""

    chunk: int
    slots: int
    period: int
    extra: float


def period_candidates(costs: StepCosts, budget: Budget, *, remote: bool) -> Iterator[Candidate]:
    """Yield the best period for each chunk that fits; with ``remote`` False, the period is the sequence."""
    for setting in find_settings(costs, budget, remote=remote):
        pieces = -(-costs.steps // setting.chunk)
        period = min(setting.period, pieces)
        if period > 1 and not revolve.is_listable(period, setting.slots):
            continue
        checkpoints = min(setting.slots, period - 1)
        yield Candidate(
            extra=setting.extra,
            local_bytes=checkpoints * costs.state_bytes + setting.chunk * costs.tape_bytes,
            build=partial(make_period_tree, setting, steps=costs.steps),
            remote_states=-(-pieces // setting.period) - 1,
            regular=period <= setting.slots + 1,
        )


def find_settings(costs: StepCosts, budget: Budget, *, remote: bool) -> Iterator[Setting]:
    """Yield the setting of each of these candidates."""
    buffers = 2 * costs.state_bytes if costs.overlaps_compute and remote else 0
    free = None if budget.local_bytes is None else budget.local_bytes - costs.resident_bytes - buffers
    longest = costs.steps if free is None else min(costs.steps, max(0, free) // costs.tape_bytes)
    chunks = np.union1d(_grid(longest, dense=16, most=28), _with_all_checkpoints(longest, free, costs))
    for chunk in chunks.tolist():
        pieces = -(-costs.steps // chunk)
        slots = pieces if free is None else (free - chunk * costs.tape_bytes) // costs.state_bytes
        slots = min(slots, pieces)
        periods = _grid(pieces, dense=256, most=700)
        if budget.remote_bytes is not None:
            room = budget.remote_bytes // costs.remote_state_bytes
            periods = periods[-(-pieces // periods) - 1 <= room]
        if not remote:
            periods = periods[periods == pieces]
        if slots < 1:
            periods = periods[periods == 1]
        if len(periods):
            extra = _extra(periods, chunk=chunk, slots=slots, costs=costs)
            best = int(np.argmin(extra))
            if extra[best] < inf:
                yield Setting(chunk, slots, int(periods[best]), float(extra[best]))


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


def _grid(longest: int, *, dense: int, most: int) -> Integers:
    """Return all lengths up to ``dense``, up to ``most`` spread over the logarithm, and the longest."""
    if longest < 1:
        return np.array([], dtype=np.int64)
    sparse = np.geomspace(1, longest, most).astype(np.int64)
    lengths = np.unique(np.concatenate([np.arange(1, dense + 1), sparse, [longest]]))
    result: Integers = lengths[lengths <= longest]
    return result


def _extra(periods: Integers, *, chunk: int, slots: int, costs: StepCosts) -> Seconds:
    """Return the seconds that each period adds; the ragged chunk and the ragged segment come first."""
    pieces = -(-costs.steps // chunk)
    segments = -(-pieces // periods)
    first = costs.steps - (segments - 1) * periods * chunk
    chunks, counts = np.array([chunk]), np.array([slots])

    def count(steps: Integers) -> Seconds:
        recomputed = revolve.count_recomputed_at(steps, chunk=chunks, slots=counts)
        return np.where(recomputed >= revolve.MOST, inf, recomputed.astype(np.float64))

    length = periods * chunk
    # R(L) + (n - 2) (L + R(L)) + L_0 + R(L_0), or R(T) for a single segment.
    whole = count(np.minimum(length, costs.steps))
    between = (segments - 2) * (length + whole) + first + count(first)
    rerun = np.where(segments > 1, whole + between, count(np.array([costs.steps])))
    transfer = costs.write_seconds + costs.read_seconds + 2 * costs.message_seconds
    extra: Seconds = (segments - 1) * transfer + rerun * costs.recompute_seconds
    if any(ActionCosts.of(costs)):
        extra = extra + _action_seconds(periods, segments, pieces, slots=counts, costs=costs)
    return extra


def _action_seconds(
    periods: Integers, segments: Integers, pieces: int, *, slots: Integers, costs: StepCosts
) -> Seconds:
    """Return what actions add: each chunk but the last has a run, and a local load or a remote read."""
    whole = np.minimum(periods, pieces)
    first = pieces - (segments - 1) * periods
    one = np.array([1])
    saves = (segments - 1) * revolve.count_at(whole, chunk=one, slots=slots)[1]
    saves = saves + revolve.count_at(first, chunk=one, slots=slots)[1]
    return (
        pieces * costs.chunk_seconds
        + (pieces - 1) * costs.advance_seconds
        + (pieces - segments) * costs.load_seconds
        + saves * costs.save_seconds
    )


def make_period_tree(setting: Setting, *, steps: int) -> Tree:
    """Return the schedule of a setting."""
    sizes = UnitSizes(1, 1)
    pieces = -(-steps // setting.chunk)
    segments = -(-pieces // setting.period)
    first = pieces - (segments - 1) * setting.period
    cuts: dict[int, Decision] = {}
    if segments > 1:
        cuts[pieces] = Decision(Choice.SEGMENTS, first, 1)
    if segments > 2:
        cuts[pieces - first] = Decision(Choice.SEGMENTS, setting.period, segments - 2)
    if segments > 1 and first == setting.period:
        cuts = {pieces: Decision(Choice.SEGMENTS, setting.period, segments - 1)}

    def decide(part: Part) -> Decision:
        if part.where is Where.UNSTORED and part.steps in cuts:
            return cuts[part.steps]
        return binomial_decision(part, sizes)

    return grow_tree(
        Part(Where.UNSTORED, pieces, setting.slots + 1),
        decide,
        sizes=sizes,
        chunk=setting.chunk,
        steps=steps,
    )
