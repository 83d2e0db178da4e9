"""Solves Disk-Revolve: remote checkpoints in the first sweep only, binomial checkpointing between them.

This is the problem of Aupy et al. 2016 in closed form. Let R(y) be the binomial count for y steps and s
local slots, and w + r_d the cost of a transfer both ways. With segments of y_1, ..., y_n steps before a last
part of y_0 steps, which is never loaded, the cost beyond the first sweep is

    R(y_0) r + sum over i of (w + r_d + y_i r + R(y_i) r).

R is convex, so the optimal segments differ by at most one step, and the last part is longer by one sweep.
The cost is also convex in the number of segments, which a bisection therefore finds.

Saves are priced only when the schedules for several numbers of slots are compared (docs/optimality.md).
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Callable, Iterator, Sequence
from functools import cache, partial
from math import comb
from typing import NamedTuple

from ckptplan.model.budget import Budget
from ckptplan.model.split import Choice, Where
from ckptplan.model.step_costs import StepCosts
from ckptplan.recursion import revolve
from ckptplan.recursion.action_costs import ActionCosts
from ckptplan.recursion.problem import Candidate
from ckptplan.recursion.schedule_tree import Tree, grow_tree
from ckptplan.recursion.single_tape import binomial_decision
from ckptplan.recursion.tree import Decision, Part, UnitSizes

#: The most recomputed steps that a time in floating point can represent exactly.
_COUNTABLE = 4 * 10**15
#: The longest sequence for which one or two slots can be counted.
MOST_STEPS = 1_000_000


class Segments(NamedTuple):
    """``number`` segments of ``length`` steps, ``longer`` of them one step longer, before a last part."""

    number: int
    length: int
    longer: int
    last: int
    #: Recomputed steps of the whole schedule.
    recomputed_steps: int


class Binomials:
    """The binomial counts for one number of slots and any number of steps up to ``steps``."""

    def __init__(self, slots: int, steps: int) -> None:
        self.slots = slots
        #: C(s + k, s) for k = 0, 1, ...: the steps that can be reversed in k sweeps.
        self.reaches: Sequence[int] = _reaches(slots, steps)

    def sweeps(self, steps: int) -> int:
        """Return the least k with C(s + k, s) >= steps."""
        return bisect_left(self.reaches, steps)

    def recomputed_steps(self, steps: int) -> int:
        """Return R(steps) = k steps - C(s + k, s + 1), the steps that run again."""
        sweeps = self.sweeps(steps)
        if sweeps == len(self.reaches):
            return revolve.MOST
        return sweeps * steps - comb(self.slots + sweeps, self.slots + 1)


def _reaches(slots: int, steps: int) -> Sequence[int]:
    if slots == 1:
        # C(1 + k, 1) = k + 1: no need to list as many numbers as steps.
        return range(1, steps + 1)
    reaches = [1]
    while reaches[-1] < steps and slots:
        reaches.append(comb(slots + len(reaches), slots))
    return reaches


def segment_candidates(costs: StepCosts, budget: Budget, *, remote: bool) -> Iterator[Candidate]:
    """Yield the best segments for several numbers of local slots; with ``remote`` False, no segments."""
    buffers = 2 * costs.state_bytes if costs.overlaps_compute and remote else 0
    most = costs.steps - 1
    if budget.local_bytes is not None:
        free = budget.local_bytes - costs.resident_bytes - buffers - costs.tape_bytes
        most = -1 if free < 0 else min(most, free // costs.state_bytes)
    if most < 0:
        return
    room = costs.steps if budget.remote_bytes is None else budget.remote_bytes // costs.remote_state_bytes
    transfer = costs.write_seconds + costs.read_seconds + 2 * costs.message_seconds
    # All pieces have a run and, if it is not read, a local load.
    beyond_load = transfer - costs.load_seconds
    # All slots give the shortest time; fewer slots serve goals that prefer less memory.
    for slots in sorted({most, 0, *(2**k for k in range(most.bit_length()))}, reverse=True):
        segments = choose_segments(
            steps=costs.steps,
            slots=slots,
            transfer=beyond_load,
            recompute=costs.recompute_seconds,
            most=room if remote else 0,
        )
        if segments is None:
            continue
        if segments.recomputed_steps <= _COUNTABLE and _is_listable(segments, slots):
            yield Candidate(
                extra=segments.number * transfer
                + segments.recomputed_steps * costs.recompute_seconds
                + _action_seconds(segments, slots, costs),
                local_bytes=slots * costs.state_bytes + costs.tape_bytes,
                build=partial(make_segments_tree, slots, segments, steps=costs.steps),
                remote_states=segments.number,
            )


def _action_seconds(segments: Segments, slots: int, costs: StepCosts) -> float:
    """Return what actions add: each piece is a chunk, each but the last has a run and a load or a read."""
    if not any(ActionCosts.of(costs)):
        return 0.0
    pieces = costs.steps
    saves = (
        revolve.count_saves(segments.last, slots=slots)
        + segments.longer * revolve.count_saves(segments.length + 1, slots=slots)
        + (segments.number - segments.longer) * revolve.count_saves(max(segments.length, 1), slots=slots)
    )
    return (
        pieces * costs.chunk_seconds
        + (pieces - 1) * costs.advance_seconds
        + (pieces - 1 - segments.number) * costs.load_seconds
        + saves * costs.save_seconds
    )


def _is_listable(segments: Segments, slots: int) -> bool:
    longest = max(segments.length + 1, segments.last)
    return longest <= 2 or revolve.is_listable(longest, slots)


def choose_segments(
    *, steps: int, slots: int, transfer: float, recompute: float, most: int | None = None
) -> Segments | None:
    """Return the segments that cost least; ``transfer`` is the cost of writing and reading one state.

    Returns None if there is no slot and ``most`` segments are too few, or if the sequence is too long for one
    or two slots.
    """
    most = steps - 1 if most is None else min(most, steps - 1)
    if slots < 1:
        if most < steps - 1:
            return None
        return Segments(number=steps - 1, length=1, longer=0, last=1, recomputed_steps=steps - 1)
    # With one or two slots, the binomials grow so slowly that there are too many to list.
    if slots < 3 and steps > MOST_STEPS:
        return None
    binomials = Binomials(slots, steps)

    @cache
    def segments(count: int) -> Segments:
        return _balance(binomials, steps=steps, count=count)

    def cost(count: int) -> float:
        return count * transfer + segments(count).recomputed_steps * recompute

    return segments(_minimise_convex(cost, 0, most))


def _minimise_convex(value: Callable[[int], float], low: int, high: int) -> int:
    while low < high:
        middle = (low + high) // 2
        if value(middle) <= value(middle + 1):
            high = middle
        else:
            low = middle + 1
    return low


def _balance(binomials: Binomials, *, steps: int, count: int) -> Segments:
    """Lengthen the last part while that costs less than the same step in a segment."""
    if count == 0:
        return Segments(0, 0, 0, steps, binomials.recomputed_steps(steps))
    low, high = 1, steps - count
    while low < high:
        last = (low + high) // 2
        longest = -(-(steps - last) // count)
        if binomials.sweeps(last + 1) < 1 + binomials.sweeps(longest):
            low = last + 1
        else:
            high = last
    length, longer = divmod(steps - low, count)
    recomputed = (
        binomials.recomputed_steps(low)
        + (steps - low)
        + longer * binomials.recomputed_steps(length + 1)
        + (count - longer) * binomials.recomputed_steps(length)
    )
    return Segments(count, length, longer, low, recomputed)


def make_segments_tree(slots: int, segments: Segments, *, steps: int) -> Tree:
    """Return the schedule of such segments."""
    # With a tape as large as a state, units count slots, and one unit is the tape's.
    sizes = UnitSizes(1, 1)
    units = slots + 1
    plain = segments.number - segments.longer
    left = [(segments.length, plain), (segments.length + 1, segments.longer)]
    cuts: dict[int, Decision] = {}
    rest = steps
    for length, count in left:
        if count:
            cuts[rest] = Decision(Choice.SEGMENTS, length, count)
            rest -= length * count

    def decide(part: Part) -> Decision:
        if part.where is Where.UNSTORED and part.steps in cuts:
            return cuts[part.steps]
        return binomial_decision(part, sizes)

    return grow_tree(Part(Where.UNSTORED, steps, units), decide, sizes=sizes)
