"""One remote period: segments of equal length, each read once, with binomial checkpointing inside."""

from __future__ import annotations

from ckptplan.model.budget import Budget
from ckptplan.model.progress import Progress
from ckptplan.model.step_costs import StepCosts
from ckptplan.recursion.periodic import period_candidates
from ckptplan.recursion.pricing import memory_variants
from ckptplan.strategies.solved import Choose, Solution, Solved, choose_among_groups, is_any_within


class Periodic(Solved):
    """Aupy and Herrmann 2017; chunk and period are the best of a grid, both exact where they are short."""

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
        groups = [list(period_candidates(costs, budget, remote=remote)) for remote in memory_variants(costs)]
        return choose_among_groups(groups, costs=costs, choose=choose)

    def has_schedule(self, *, costs: StepCosts, budget: Budget, effort: str = "quick") -> bool:
        groups = (period_candidates(costs, budget, remote=remote) for remote in memory_variants(costs))
        return is_any_within(groups, costs=costs, budget=budget)


STRATEGY = Periodic()
