"""Implements Disk-Revolve and Periodic: remote segments, each read once, with Revolve inside."""

from __future__ import annotations

from ckptplan.model.budget import Budget
from ckptplan.model.progress import Progress
from ckptplan.model.step_costs import StepCosts
from ckptplan.recursion.disk_revolve import find_segments
from ckptplan.recursion.periodic import find_periods
from ckptplan.strategies.solved import Choose, Solution, Solved, choose_of_families


class DiskRevolve(Solved):
    """Remote checkpoints in the first sweep only, Revolve between them.

    Disk-Revolve of Aupy, Herrmann, Hovland and Robert 2016, with one tape at a time, in closed form.
    """

    name = "disk-revolve"
    rank = 9

    def solve(
        self,
        *,
        costs: StepCosts,
        budget: Budget,
        choose: Choose,
        effort: str = "quick",
        front: bool = False,
        progress: Progress | None = None,
    ) -> Solution | None:
        return choose_of_families([find_segments(costs, budget)], costs=costs, choose=choose)

    def has_schedule(self, *, costs: StepCosts, budget: Budget, effort: str = "quick") -> bool:
        return len(find_segments(costs, budget)) > 0

    def least_local_bytes(self, costs: StepCosts) -> int:
        # With one tape at a time, keeping all tapes is not an alternative to a slot.
        slot = costs.state_bytes if costs.overlaps_compute and costs.steps > 1 else 0
        return costs.resident_bytes + costs.tape_bytes + slot


class Periodic(Solved):
    """Remote segments of equal length, each read once, with Revolve inside.

    Periodic checkpointing of Aupy and Herrmann 2017; a grid of chunks and periods is searched.
    """

    name = "periodic"
    rank = 10

    def solve(
        self,
        *,
        costs: StepCosts,
        budget: Budget,
        choose: Choose,
        effort: str = "quick",
        front: bool = False,
        progress: Progress | None = None,
    ) -> Solution | None:
        return choose_of_families([find_periods(costs, budget, front=front)], costs=costs, choose=choose)

    def has_schedule(self, *, costs: StepCosts, budget: Budget, effort: str = "quick") -> bool:
        return len(find_periods(costs, budget, front=False)) > 0


STRATEGIES = (DiskRevolve(), Periodic())
