"""Remote checkpoints in the first sweep only, each read once; binomial checkpointing between them."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np

from ckptplan.cost.exact import Cost
from ckptplan.model.budget import Budget
from ckptplan.model.step_costs import StepCosts
from ckptplan.recursion.disk_revolve import MOST_STEPS, Segments, best_segments
from ckptplan.recursion.search import Tree, grown
from ckptplan.recursion.single_tape import binomial_decision
from ckptplan.recursion.tree import Choice, Decision, Part, Sizes, Where
from ckptplan.strategies.solved import (
    Choose,
    Progress,
    Solution,
    SolvedStrategy,
    better,
    solution_of,
    ways,
)


class DiskRevolve(SolvedStrategy):
    """Aupy, Herrmann, Hovland and Robert 2016, one tape at a time; its recurrence in closed form."""

    name = "disk-revolve"
    rank = 9

    def solve(
        self,
        *,
        costs: StepCosts,
        budget: Budget,
        choose: Choose,
        effort: str = "quick",
        progress: Progress | None = None,
    ) -> Solution | None:
        found = [list(_settings(costs, budget, remote=remote)) for remote in ways(costs)]
        places = [choose(_costs(settings, costs)) if settings else None for settings in found]
        solutions = [
            solution_of(_tree(*settings[place], costs=costs), costs=costs)
            for settings, place in zip(found, places, strict=True)
            if place is not None
        ]
        return better(choose, solutions)

    def least_local_bytes(self, costs: StepCosts) -> int:
        # One tape at a time, so that all tapes are no way to do without a slot.
        slot = costs.state_bytes if costs.overlaps_compute and costs.steps > 1 else 0
        return costs.resident_bytes + costs.tape_bytes + slot

    def most_steps(self, costs: StepCosts, budget: Budget) -> int:
        return MOST_STEPS


def _settings(costs: StepCosts, budget: Budget, *, remote: bool) -> Iterator[tuple[int, Segments]]:
    """Return the best segments for each number of local slots, or the way of each to do without any."""
    buffers = 2 * costs.state_bytes if costs.overlaps_compute and remote else 0
    most = costs.steps - 1
    if budget.local_bytes is not None:
        free = budget.local_bytes - costs.resident_bytes - buffers - costs.tape_bytes
        most = -1 if free < 0 else min(most, free // costs.state_bytes)
    if most < 0:
        return
    transfer = costs.write_seconds + costs.read_seconds + 2 * costs.message_seconds
    # All slots are quickest; fewer are for those who ask for less memory.
    for slots in sorted({most, 0, *(2**k for k in range(most.bit_length()))}, reverse=True):
        segments = best_segments(
            steps=costs.steps,
            slots=slots,
            transfer=transfer,
            recompute=costs.recompute_seconds,
            most=None if remote else 0,
        )
        if segments is not None and _kept(segments, budget, costs):
            yield slots, segments


def _kept(segments: Segments, budget: Budget, costs: StepCosts) -> bool:
    countable = segments.again <= 4 * 10**15
    return countable and (
        budget.remote_bytes is None or segments.number * costs.remote_state_bytes <= budget.remote_bytes
    )


def _costs(found: list[tuple[int, Segments]], costs: StepCosts) -> Cost:
    transfer = costs.write_seconds + costs.read_seconds + 2 * costs.message_seconds
    extra = [one.number * transfer + one.again * costs.recompute_seconds for _, one in found]
    local = [slots * costs.state_bytes + costs.tape_bytes + costs.resident_bytes for slots, _ in found]
    remote = [one.number * costs.remote_state_bytes for _, one in found]
    return Cost(
        seconds=costs.base_seconds + np.array(extra),
        local_peak_bytes=np.array(local, dtype=np.int64),
        remote_peak_bytes=np.array(remote, dtype=np.int64),
    )


def _tree(slots: int, segments: Segments, *, costs: StepCosts) -> Tree:
    # Slots and the tape in units: a tape is as large as no slot, so that slots alone are counted.
    sizes = Sizes(1, 1)
    units = slots + 1
    plain = segments.number - segments.longer
    left = [(segments.length, plain), (segments.length + 1, segments.longer)]
    cuts: dict[int, Decision] = {}
    steps = costs.steps
    for length, count in left:
        if count:
            cuts[steps] = Decision(Choice.SEGMENTS, length, count)
            steps -= length * count

    def decide(part: Part) -> Decision:
        if part.where is Where.FREE and part.steps in cuts:
            return cuts[part.steps]
        return binomial_decision(part, sizes)

    return grown(Part(Where.FREE, costs.steps, units), decide, sizes=sizes)


STRATEGY = DiskRevolve()
