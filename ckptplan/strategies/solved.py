"""The base class of strategies that search for a full decision tree instead of a few parameters.

Such a strategy does itself what the search does for closed forms: it returns a schedule for a budget, its
cost, and a lower bound on the cost of any schedule. The plan contains the decisions.
"""

from __future__ import annotations

from abc import abstractmethod
from bisect import bisect_left
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property

import numpy as np

from ckptplan.cost.exact import Cost, cost_of, join_costs
from ckptplan.model.budget import Budget
from ckptplan.model.prediction import Totals
from ckptplan.model.progress import Progress
from ckptplan.model.record import Parameters
from ckptplan.model.split import Split
from ckptplan.model.step_costs import StepCosts
from ckptplan.recursion.pricing import price_tree
from ckptplan.recursion.problem import Candidate, Family
from ckptplan.recursion.schedule_tree import Tree, read_tree, write_parameters, write_splits
from ckptplan.schedule.actions import Action
from ckptplan.strategies.protocol import Splits, Strategy

#: Chooses among schedules with these costs: returns the index of the best, None if none is acceptable.
Choose = Callable[[Cost], int | None]
#: Whether a known schedule within some local bytes takes less than some seconds.
IsBeaten = Callable[[int, float], bool]


@dataclass(frozen=True, kw_only=True)
class Solution:
    """A schedule, as a tree or as decisions, and its cost.

    ``least_seconds`` is a proven lower bound for every schedule within the budget, None if there is none.
    ``proved`` says that no legal schedule within the limits is better by what the chooser prefers.
    """

    parameters: Parameters
    schedule: Tree | tuple[Split, ...]
    totals: Totals
    least_seconds: float | None
    regular: bool = False
    notes: tuple[str, ...] = ()
    proved: bool = False

    @cached_property
    def splits(self) -> tuple[Split, ...]:
        """The decisions, which are written when they are asked for."""
        return write_splits(self.schedule) if isinstance(self.schedule, Tree) else self.schedule

    def settle(self) -> None:
        """Let go of the table behind the tree, once all schedules that share it have their cost."""
        if isinstance(self.schedule, Tree):
            self.schedule.settle()

    @property
    def cost(self) -> Cost:
        """The cost as arrays of one element."""
        return cost_of(self.totals)


@dataclass(frozen=True, kw_only=True)
class Rung:
    """Schedules of some local budgets.

    ``bounds`` are local budgets and the seconds that no schedule within them is faster than; the bound of a
    budget is that of the next larger one that any rung lists.
    """

    solutions: Iterable[Solution]
    bounds: Iterable[tuple[int, float]] = ()


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
        """Return the schedule that ``choose`` prefers, None if none fits.

        Arguments:
            costs: the costs of the elementary actions.
            budget: the limits of both memories.
            choose: selects among schedules by their cost.
            effort: how much work to allow: 'quick' or 'thorough'.
            front: whether ``choose`` may prefer less memory to less time.
            progress: called with the work done and the total work.
        """

    def least_local_bytes(self, costs: StepCosts) -> int:
        """Return the least local memory in bytes with which any schedule exists, whatever the other limits."""
        least = costs.tape_bytes
        if costs.overlaps_compute:
            # Transfers would need two buffers; one local slot, or all tapes, need less.
            least = min(least + costs.state_bytes, costs.steps * costs.tape_bytes)
        return costs.resident_bytes + least

    def list_rungs(
        self,
        *,
        costs: StepCosts,
        remote_bytes: int | None,
        effort: str = "quick",
        is_beaten: IsBeaten,
        progress: Progress | None = None,
    ) -> Iterator[Rung] | None:
        """Yield the schedules of all local budgets: what ``solve`` returns for any of them, and maybe others.

        They may need more remote memory than there is. Schedules for which ``is_beaten`` is true may be left
        out. Returns None if the schedules of one budget are no help for another, unless overridden.
        """
        return None

    @abstractmethod
    def has_schedule(self, *, costs: StepCosts, budget: Budget, effort: str = "quick") -> bool:
        """Return whether ``solve`` finds a schedule within the budget, however long it takes to execute.

        Searches call this many times: it builds no schedule and, if possible, fills no table.
        """

    def most_steps(self, costs: StepCosts, budget: Budget, *, effort: str = "quick") -> int:
        """Return the longest sequence, up to the given one, that has a schedule; 0 if none has.

        All other costs stay the same, including the resident bytes.
        """

        def lacks(steps: int) -> bool:
            shorter = costs.model_copy(update={"steps": steps})
            return not self.has_schedule(costs=shorter, budget=budget, effort=effort)

        return bisect_left(range(1, costs.steps + 1), True, key=lacks)

    def check(self, parameters: Parameters, *, steps: int, splits: Splits = None) -> None:
        super().check(parameters, steps=steps)
        read_tree(parameters, splits or (), steps=steps)

    def actions(self, parameters: Parameters, *, steps: int, splits: Splits = None) -> Iterator[Action]:
        return read_tree(parameters, splits or (), steps=steps).actions()


def make_solution(
    tree: Tree,
    *,
    costs: StepCosts,
    least_seconds: float | None = None,
    regular: bool = False,
    notes: tuple[str, ...] = (),
) -> Solution:
    """Return a schedule as data, with its cost."""
    return Solution(
        parameters=write_parameters(tree),
        schedule=tree,
        totals=price_tree(tree, costs=costs),
        least_seconds=least_seconds,
        regular=regular,
        notes=notes,
    )


def choose_candidate(
    candidates: Sequence[Candidate], *, costs: StepCosts, choose: Choose, notes: tuple[str, ...] = ()
) -> Solution | None:
    """Build and return the candidate that ``choose`` prefers by the costs known before it is built."""

    def build(place: int) -> Solution:
        chosen = candidates[place]
        return make_solution(chosen.build(), costs=costs, regular=chosen.regular, notes=notes)

    return _choose_built(_estimate_costs(candidates, costs), build, choose)


def choose_of_families(families: Sequence[Family], *, costs: StepCosts, choose: Choose) -> Solution | None:
    """Build and return the schedule of some families that ``choose`` prefers, None if none is acceptable."""
    starts = np.cumsum([0, *map(len, families)])

    def build(place: int) -> Solution:
        which = int(np.searchsorted(starts, place, side="right")) - 1
        family, index = families[which], place - int(starts[which])
        return make_solution(family.build(index), costs=costs, regular=bool(family.regular[index]))

    return _choose_built(join_costs([family.cost for family in families]), build, choose)


def _choose_built(cost: Cost, build: Callable[[int], Solution], choose: Choose) -> Solution | None:
    """Build the schedule that ``choose`` prefers by ``cost``.

    If it exceeds a limit once it is built, as messages add to its cost, faster ones are tried.
    """
    places = np.arange(len(cost.seconds))
    for _ in range(_TRIES):
        place = choose(cost.take(places)) if len(places) else None
        if place is None:
            return None
        best = int(places[place])
        solution = build(best)
        places = places[cost.seconds[places] < cost.seconds[best]]
        if not len(places) or choose(solution.cost) is not None:
            return solution
    return None


_TRIES = 20


def _estimate_costs(candidates: Sequence[Candidate], costs: StepCosts) -> Cost:
    remote_states = np.array([candidate.remote_states for candidate in candidates], dtype=np.int64)
    local_bytes = np.array([candidate.local_bytes for candidate in candidates], dtype=np.int64)
    return Cost(
        seconds=costs.sweep_seconds + np.array([candidate.extra for candidate in candidates]),
        local_peak_bytes=local_bytes + costs.resident_bytes,
        remote_peak_bytes=remote_states * costs.remote_state_bytes,
    )


def best_solution(choose: Choose, solutions: Sequence[Solution]) -> Solution | None:
    """Return the solution that ``choose`` prefers by the actual costs."""
    if not solutions:
        return None
    place = choose(join_costs([solution.cost for solution in solutions]))
    return None if place is None else solutions[place]


def prefer_quickest(budget: Budget) -> Choose:
    """Return a chooser of the fastest schedule within a budget."""

    def choose(cost: Cost) -> int | None:
        fits = cost.within(budget)
        return int(np.argmin(np.where(fits, cost.seconds, np.inf))) if fits.any() else None

    return choose
