"""Strategies that search for a full decision tree instead of a few parameters.

What the search does for closed forms, such a strategy does itself: it returns one schedule for a budget,
with what it costs and what any schedule costs at least. The decisions travel in the plan.
"""

from __future__ import annotations

from abc import abstractmethod
from bisect import bisect_left
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass

import numpy as np

from ckptplan.cost.exact import Cost, cost_of
from ckptplan.model.budget import Budget
from ckptplan.model.progress import Progress as Progress  # noqa: PLC0414 - others import it from here
from ckptplan.model.record import Parameters
from ckptplan.model.split import Split
from ckptplan.model.step_costs import StepCosts
from ckptplan.model.totals import Totals
from ckptplan.recursion.plan_data import read_tree, write_parameters, write_splits
from ckptplan.recursion.pricing import price_tree
from ckptplan.recursion.problem import Candidate
from ckptplan.recursion.schedule_tree import Tree
from ckptplan.schedule.actions import Action
from ckptplan.strategies.protocol import Strategy

#: Chooses among schedules with these costs: the index of the best, None where none will do.
Choose = Callable[[Cost], int | None]


@dataclass(frozen=True, kw_only=True)
class Solution:
    """A schedule and what it costs.

    ``least_seconds`` is proved of every schedule within the budget; None where nothing is.
    """

    parameters: Parameters
    splits: tuple[Split, ...]
    totals: Totals
    least_seconds: float | None
    regular: bool = False
    notes: tuple[str, ...] = ()

    @property
    def cost(self) -> Cost:
        """The cost as arrays of one element."""
        return cost_of(self.totals)


class Solved(Strategy):
    """A strategy that finds its schedule by itself."""

    parameter_names = ("chunk_size", "state_units", "tape_units", "local_units")
    is_closed_form = False
    always_regular = False

    @abstractmethod
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
        """Return the schedule that ``choose`` likes best, None where none fits.

        With ``front`` it may like those best that take more time and less memory.
        """

    def least_local_bytes(self, costs: StepCosts) -> int:
        """Return the local memory below which it has no schedule, whatever the other limits."""
        least = costs.tape_bytes
        if costs.overlaps_compute:
            # Buffers of transfers need more than a slot that does without them, or than all tapes.
            least = min(least + costs.state_bytes, costs.steps * costs.tape_bytes)
        return costs.resident_bytes + least

    @abstractmethod
    def has_schedule(self, *, costs: StepCosts, budget: Budget, effort: str = "quick") -> bool:
        """Return whether ``solve`` finds a schedule within the budget, whatever time that schedule takes.

        No schedule is built and, where that can be helped, no table is filled: searches ask this many times.
        """

    def most_steps(self, costs: StepCosts, budget: Budget, *, effort: str = "quick") -> int:
        """Return the longest sequence, up to the one given, that has a schedule; 0 where none has.

        All other costs are kept, the resident bytes among them.
        """

        def lacks(steps: int) -> bool:
            shorter = costs.model_copy(update={"steps": steps})
            return not self.has_schedule(costs=shorter, budget=budget, effort=effort)

        return bisect_left(range(1, costs.steps + 1), True, key=lacks)

    def check(self, parameters: Parameters, *, steps: int, splits: Sequence[Split] | None = None) -> None:
        super().check(parameters, steps=steps)
        read_tree(parameters, splits or (), steps=steps)

    def actions(
        self, parameters: Parameters, *, steps: int, splits: Sequence[Split] | None = None
    ) -> Iterator[Action]:
        return read_tree(parameters, splits or (), steps=steps).actions()


def make_solution(
    tree: Tree,
    *,
    costs: StepCosts,
    least_seconds: float | None = None,
    regular: bool = False,
    notes: tuple[str, ...] = (),
) -> Solution:
    """Return a schedule as data, with what it costs."""
    return Solution(
        parameters=write_parameters(tree),
        splits=write_splits(tree),
        totals=price_tree(tree, costs=costs),
        least_seconds=least_seconds,
        regular=regular,
        notes=notes,
    )


def choose_candidate(
    candidates: Sequence[Candidate], *, costs: StepCosts, choose: Choose, notes: tuple[str, ...] = ()
) -> Solution | None:
    """Return the candidate that ``choose`` likes best by what is known of it before it is built.

    Where it breaks a limit once it is built (messages are paid then), a quicker one is looked for.
    """
    for _ in range(_TRIES):
        place = choose(_estimate_costs(candidates, costs)) if candidates else None
        if place is None:
            return None
        best = candidates[place]
        solution = make_solution(best.build(), costs=costs, regular=best.regular, notes=notes)
        candidates = [one for one in candidates if one.extra < best.extra]
        if not candidates or choose(solution.cost) is not None:
            return solution
    return None


_TRIES = 20


def _estimate_costs(candidates: Sequence[Candidate], costs: StepCosts) -> Cost:
    remote_states = np.array([one.remote_states for one in candidates], dtype=np.int64)
    return Cost(
        seconds=costs.base_seconds + np.array([one.extra for one in candidates]),
        local_peak_bytes=np.array([one.local_bytes for one in candidates], dtype=np.int64)
        + costs.resident_bytes,
        remote_peak_bytes=remote_states * costs.remote_state_bytes,
    )


def choose_among_groups(
    groups: Iterable[Sequence[Candidate]], *, costs: StepCosts, choose: Choose
) -> Solution | None:
    """Return the best of each group's best, once they are built."""
    found = (choose_candidate(group, costs=costs, choose=choose) for group in groups)
    return best_solution(choose, [one for one in found if one is not None])


def best_solution(choose: Choose, solutions: Sequence[Solution]) -> Solution | None:
    """Return the solution that ``choose`` likes best by what its schedule was seen to cost."""
    if not solutions:
        return None
    costs = [one.cost for one in solutions]
    place = choose(
        Cost(
            seconds=np.concatenate([one.seconds for one in costs]),
            local_peak_bytes=np.concatenate([one.local_peak_bytes for one in costs]),
            remote_peak_bytes=np.concatenate([one.remote_peak_bytes for one in costs]),
        )
    )
    return None if place is None else solutions[place]


def prefer_quickest(budget: Budget) -> Choose:
    """Return what likes the quickest schedule within a budget best."""

    def choose(cost: Cost) -> int | None:
        kept = np.ones(len(cost.seconds), dtype=np.bool_)
        if budget.local_bytes is not None:
            kept &= cost.local_peak_bytes <= budget.local_bytes
        if budget.remote_bytes is not None:
            kept &= cost.remote_peak_bytes <= budget.remote_bytes
        return int(np.argmin(np.where(kept, cost.seconds, np.inf))) if kept.any() else None

    return choose


def is_any_within(groups: Iterable[Iterable[Candidate]], *, costs: StepCosts, budget: Budget) -> bool:
    """Return whether any candidate keeps the budget by what is known of it before it is built."""
    local, remote = budget.local_bytes, budget.remote_bytes
    return any(
        (local is None or one.local_bytes + costs.resident_bytes <= local)
        and (remote is None or one.remote_states * costs.remote_state_bytes <= remote)
        for group in groups
        for one in group
    )
