"""Remote checkpoints in the first sweep only, each read once; binomial checkpointing between them."""

from __future__ import annotations

from ckptplan.model.budget import Budget
from ckptplan.model.step_costs import StepCosts
from ckptplan.recursion.disk_revolve import MOST_STEPS, segment_candidates
from ckptplan.recursion.pricing import memory_variants
from ckptplan.strategies.solved import Choose, Progress, Solution, Solved, best_of


class DiskRevolve(Solved):
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
        front: bool = False,
        progress: Progress | None = None,
    ) -> Solution | None:
        groups = [list(segment_candidates(costs, budget, remote=remote)) for remote in memory_variants(costs)]
        return best_of(groups, costs=costs, choose=choose)

    def least_local_bytes(self, costs: StepCosts) -> int:
        # One tape at a time, so that all tapes are no way to do without a slot.
        slot = costs.state_bytes if costs.overlaps_compute and costs.steps > 1 else 0
        return costs.resident_bytes + costs.tape_bytes + slot

    def most_steps(self, costs: StepCosts, budget: Budget) -> int:
        return MOST_STEPS


STRATEGY = DiskRevolve()
