"""Implements Periodic: remote segments of equal length, each read once, with Revolve inside."""

from __future__ import annotations

from ckptplan.model.budget import Budget
from ckptplan.model.progress import Progress
from ckptplan.model.step_costs import StepCosts
from ckptplan.recursion.periodic import find_periods
from ckptplan.strategies.solved import Choose, Solution, Solved, choose_of_families


class Periodic(Solved):
    """Periodic checkpointing of Aupy and Herrmann 2017; a grid of chunks and periods is searched."""

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


STRATEGY = Periodic()
