"""One remote period: segments of equal length, each read once, with chunked binomial checkpointing inside.

A grid of chunks and periods, all of the short ones among them: settings, what each adds, and its schedule.
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
from ckptplan.recursion.problem import Candidate
from ckptplan.recursion.schedule_tree import Tree, grow_tree
from ckptplan.recursion.single_tape import binomial_decision
from ckptplan.recursion.tree import Decision, Part, UnitSizes


class Setting(NamedTuple):
    """``period`` chunks of ``chunk`` steps, ``slots`` local checkpoints within; ``again`` steps rerun."""

    chunk: int
    slots: int
    period: int
    extra: float


def period_candidates(costs: StepCosts, budget: Budget, *, remote: bool) -> Iterator[Candidate]:
    """Return the best period for each chunk that has room; without remote memory, the whole sequence."""
    for one in find_settings(costs, budget, remote=remote):
        pieces = -(-costs.steps // one.chunk)
        if min(one.period, pieces) > 1 and not revolve.is_listable(min(one.period, pieces), one.slots):
            continue
        checkpoints = min(one.slots, min(one.period, pieces) - 1)
        yield Candidate(
            extra=one.extra,
            local_bytes=checkpoints * costs.state_bytes + one.chunk * costs.tape_bytes,
            build=partial(make_period_tree, one, steps=costs.steps),
            remote_states=-(-pieces // one.period) - 1,
            regular=min(one.period, pieces) <= one.slots + 1,
        )


def find_settings(costs: StepCosts, budget: Budget, *, remote: bool) -> Iterator[Setting]:
    """Return the setting of each such candidate."""
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
    """Return the longest chunks c with room for a checkpoint before each: Standard's best is among them.

    ceil(T / c) - 1 states are less than T / c, and at least that less one.
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
    """Return all lengths up to ``dense``, then ever sparser ones, and the longest."""
    if longest < 1:
        return np.array([], dtype=np.int64)
    sparse = np.geomspace(1, longest, most).astype(np.int64)
    lengths = np.unique(np.concatenate([np.arange(1, dense + 1), sparse, [longest]]))
    result: Integers = lengths[lengths <= longest]
    return result


def _extra(periods: Integers, *, chunk: int, slots: int, costs: StepCosts) -> Seconds:
    """Return what each period adds; the ragged chunk, and the ragged segment, come first."""
    pieces = -(-costs.steps // chunk)
    segments = -(-pieces // periods)
    first = costs.steps - (segments - 1) * periods * chunk
    one, count = np.array([chunk]), np.array([slots])

    def again(steps: Integers) -> Seconds:
        found = revolve.count_recomputed_at(steps, chunk=one, slots=count)
        return np.where(found >= revolve.MOST, inf, found.astype(np.float64))

    length = periods * chunk
    whole = again(np.minimum(length, costs.steps))
    between = (segments - 2) * (length + whole) + first + again(first)
    rerun = np.where(segments > 1, whole + between, again(np.array([costs.steps])))
    transfer = costs.write_seconds + costs.read_seconds + 2 * costs.message_seconds
    extra: Seconds = (segments - 1) * transfer + rerun * costs.recompute_seconds
    return extra


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
