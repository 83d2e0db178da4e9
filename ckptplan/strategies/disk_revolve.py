"""Remote checkpoints in the first sweep only, each read once; binomial checkpointing between them."""

from __future__ import annotations

from ckptplan.model.budget import Budget
from ckptplan.model.progress import Progress
from ckptplan.model.step_costs import StepCosts
from ckptplan.recursion.disk_revolve import segment_candidates
from ckptplan.recursion.pricing import memory_variants
from ckptplan.strategies.solved import Choose, Solution, Solved, choose_among_groups, is_any_within


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
        return choose_among_groups(groups, costs=costs, choose=choose)

    def has_schedule(self, *, costs: StepCosts, budget: Budget, effort: str = "quick") -> bool:
        groups = (segment_candidates(costs, budget, remote=remote) for remote in memory_variants(costs))
        return is_any_within(groups, costs=costs, budget=budget)

    def least_local_bytes(self, costs: StepCosts) -> int:
        # One tape at a time, so that all tapes are no way to do without a slot.
        slot = costs.state_bytes if costs.overlaps_compute and costs.steps > 1 else 0
        return costs.resident_bytes + costs.tape_bytes + slot


STRATEGY = DiskRevolve()
