"""The base class of strategies that search for a full decision tree instead of a few parameters.

Such a strategy does itself what the search does for closed forms: it returns a schedule for a budget, its
cost, and a lower bound on the cost of any schedule. The plan contains the decisions.
"""

from __future__ import annotations

from abc import abstractmethod
from bisect import bisect_left
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, replace

import numpy as np

from ckptplan.cost.exact import Cost, join_costs
from ckptplan.model.budget import Budget
from ckptplan.model.goal import CacheName
from ckptplan.model.prediction import Totals
from ckptplan.model.progress import Progress
from ckptplan.model.record import Parameters
from ckptplan.model.step_costs import StepCosts
from ckptplan.recursion.pricing import price_tree
from ckptplan.recursion.problem import Family
from ckptplan.recursion.tree import Tree, read_tree, write_parameters
from ckptplan.schedule.actions import Action
from ckptplan.strategies.answer import Answer
from ckptplan.strategies.protocol import Splits, Strategy

#: Chooses among schedules with these costs: returns the index of the best, None if none is acceptable.
Choose = Callable[[Cost], int | None]
#: Called with local bytes and seconds: whether a known schedule within these bytes takes less time.
IsBeaten = Callable[[int, float], bool]


@dataclass(frozen=True, kw_only=True)
class Task:
    """A schedule to find: the one that ``choose`` prefers within ``budget``.

    Arguments:
        costs: the costs of the elementary actions, with the workspace of chunks of several steps.
        budget: the limits of both memories.
        choose: selects among schedules by their cost.
        effort: how much work to allow: 'quick' or 'thorough'.
        front: whether ``choose`` may prefer less memory to less time.
        alone: whether this is the only task at these costs, so that no table is kept for another one.
        progress: called with the work done and the total work.
        single: the costs of schedules that record each step by itself; None if ``costs`` hold for them, too.
        resolution: the share of time below which two schedules cannot be told apart.
        cache: the caches that schedules have to keep, if steps have caches; None leaves the choice open.
    """

    costs: StepCosts
    budget: Budget
    choose: Choose
    effort: str = "quick"
    front: bool = False
    alone: bool = False
    progress: Progress | None = None
    single: StepCosts | None = None
    resolution: float = 0.0
    cache: CacheName | None = None

    def allows(self, answer: Answer) -> bool:
        """Return whether a schedule keeps the caches that it has to keep."""
        return not self.costs.cache_bytes or self.cache is None or answer.cache == self.cache

    def best_of(self, answers: Sequence[Answer]) -> Answer | None:
        """Return the answer that is chosen by the actual costs, None if none is acceptable."""
        if not answers:
            return None
        place = self.choose(join_costs([answer.cost(self.costs) for answer in answers]))
        return None if place is None else answers[place]


@dataclass(frozen=True, kw_only=True)
class BudgetRange:
    """Schedules of some local budgets.

    ``bounds`` are local budgets, each with the least seconds of any schedule within it. The bound of a listed
    budget also holds for smaller ones. If they are about schedules that record each step by itself,
    ``single_bound`` is the least seconds of any such schedule within any budget.
    """

    answers: Iterable[Answer]
    bounds: Iterable[tuple[int, float]] = ()
    single_bound: float | None = None


class Solved(Strategy):
    """A strategy that finds its schedule by itself."""

    parameter_names = ("block_size", "state_units", "tape_units", "local_units")
    is_closed_form = False
    always_regular = False
    #: Whether its schedules may drop and release caches; otherwise all caches count until the end of the run.
    knows_caches = False
    #: Whether it searches schedules that record each step by itself at costs of their own (``Task.single``).
    records_one_by_one = False

    @abstractmethod
    def find(self, task: Task) -> Sequence[Family]:
        """Return schedules within the budget, whose cost is known before they are built."""

    def solve(self, task: Task) -> Answer | None:
        """Return the schedule that the task asks for, None if none fits."""
        return self.build_best(self.find(task), task)

    def least_local_bytes(self, costs: StepCosts) -> int:
        """Return the least local memory in bytes with which any schedule exists, whatever the other limits."""
        least = costs.recorded_bytes
        if costs.overlaps_compute:
            # Transfers would need two buffers; one local slot, or all tapes, need less.
            least = min(least + costs.state_bytes, costs.steps * costs.recorded_bytes)
        return costs.resident_bytes + least

    @abstractmethod
    def list_ranges(
        self, task: Task, *, is_beaten: IsBeaten, budgets: Sequence[int] | None = None
    ) -> Iterator[BudgetRange]:
        """Yield the schedules that ``solve`` returns for all local budgets, or for each of ``budgets``.

        It may yield other schedules, too, and some may need more remote memory than there is. Schedules for
        which ``is_beaten`` is true may be left out.
        """

    def has_schedule(self, task: Task) -> bool:
        """Return whether ``solve`` finds a schedule for a task that limits only the memory.

        Searches call this many times: it builds no schedule and, if possible, fills no table.
        """
        return any(map(len, self.find(task)))

    def most_steps(self, task: Task) -> int:
        """Return the longest sequence, up to the given one, that has a schedule; 0 if none has.

        All other costs stay the same, including the resident bytes.
        """

        def lacks(steps: int) -> bool:
            shorter = task.costs.model_copy(update={"steps": steps})
            return not self.has_schedule(replace(task, costs=shorter))

        return bisect_left(range(1, task.costs.steps + 1), True, key=lacks)

    def totals(self, parameters: Parameters, *, costs: StepCosts, splits: Splits = None) -> Totals:
        return price_tree(read_tree(parameters, splits or (), steps=costs.steps), costs=self.costs_of(costs))

    def costs_of(self, costs: StepCosts) -> StepCosts:
        return costs if self.knows_caches else costs.with_resident_caches

    def check(self, parameters: Parameters, *, steps: int, splits: Splits = None) -> None:
        super().check(parameters, steps=steps)
        read_tree(parameters, splits or (), steps=steps)

    def actions(self, parameters: Parameters, *, steps: int, splits: Splits = None) -> Iterator[Action]:
        return read_tree(parameters, splits or (), steps=steps).actions()

    def answer_with(self, tree: Tree, *, costs: StepCosts, notes: tuple[str, ...] = ()) -> Answer:
        """Return a schedule with its cost."""
        return Answer(
            strategy=self,
            parameters=write_parameters(tree),
            solved_at=costs,
            schedule=tree,
            solved=price_tree(tree, costs=costs),
            notes=notes,
        )

    def build_best(
        self, families: Sequence[Family], task: Task, *, notes: tuple[str, ...] = ()
    ) -> Answer | None:
        """Build and return the schedule that is chosen by the costs of the families, None if none fits.

        If it exceeds a limit once it is built, as messages add to its cost, faster ones are tried. If none
        keeps the limits by the costs of the families, the fastest within the budget is tried: a ragged first
        block costs less than its family says.
        """
        cost = join_costs([family.cost for family in families])
        starts = np.cumsum([0, *map(len, families)])

        def build(best: int) -> Answer:
            family = int(np.searchsorted(starts, best, side="right")) - 1
            tree = families[family].build(best - int(starts[family]))
            return self.answer_with(tree, costs=task.costs, notes=notes)

        places = np.arange(len(cost.seconds))
        place = task.choose(cost) if len(places) else None
        if place is None:
            within = np.flatnonzero(cost.within(task.budget))
            if not len(within):
                return None
            answer = build(int(within[np.argmin(cost.seconds[within])]))
            return answer if task.choose(answer.cost(task.costs)) is not None else None
        for _ in range(_TRIES):
            if place is None:
                return None
            best = int(places[place])
            answer = build(best)
            places = places[cost.seconds[places] < cost.seconds[best]]
            if not len(places) or task.choose(answer.cost(task.costs)) is not None:
                return answer
            place = task.choose(cost.take(places))
        return None


_TRIES = 20
