"""Finds the front of a solved strategy, one budget after another, and bounds it between these.

Every answer is the one that a question about its budget alone has, so a front and a plan never disagree. The
budgets are:

- all, if there are few levels of memory;
- otherwise those that one table answers exactly (``Solved.tabulated_bytes``): the table is filled once, and
  every smaller budget is read from it;
- beyond the table, one for each doubling of the memory, and the question's own.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from ckptplan.cost.arrays import Integers
from ckptplan.model.budget import Budget
from ckptplan.model.step_costs import StepCosts
from ckptplan.search.answer import Answer
from ckptplan.search.dominance import drop_dominated
from ckptplan.search.front import Front
from ckptplan.search.question import Question
from ckptplan.strategies.solved import Solved

#: With up to this many levels of memory, every budget is solved.
_EVERY = 256
#: The most budgets of a table that are solved; more are thinned out evenly in the logarithm.
_LISTED = 128
#: Between the budgets that are solved, the bound without a search is computed for this many.
_BOUNDED = 512
#: The number of budgets of a strategy without a table.
_SOME = 24


@dataclass(frozen=True, kw_only=True)
class LowerBounds:
    """What no schedule can be faster than: at least ``seconds`` within ``local_bytes``; arrays of shape (n,).

    Local bytes of one unit ascend, seconds descend. Without a budget, n is 0.
    """

    local_bytes: Integers
    seconds: npt.NDArray[np.float64]

    def within(self, local_bytes: Integers) -> npt.NDArray[np.float64]:
        """Return the bound for each of some budgets: that of the next larger one that has a bound, else 0."""
        if not len(self.seconds):
            return np.zeros(len(local_bytes))
        places = np.searchsorted(self.local_bytes, local_bytes, side="left")
        beyond = places == len(self.seconds)
        found: npt.NDArray[np.float64] = np.where(beyond, 0.0, self.seconds[np.where(beyond, 0, places)])
        return found


NO_BOUNDS = LowerBounds(local_bytes=np.zeros(0, dtype=np.int64), seconds=np.zeros(0))


@dataclass(frozen=True, kw_only=True)
class SolvedFront:
    """The front of a solved strategy, the answer of each point, and the bounds of all schedules."""

    front: Front
    answers: tuple[Answer, ...]
    #: Whether each answer is proved to be the fastest and no budget is left out.
    exact: bool
    bounds: LowerBounds


def trace_solved_front(question: Question, *, known: Front | None = None) -> SolvedFront:
    """Return the front of the question's only strategy.

    ``known`` is the front of the closed forms whose schedules the strategy may adopt. Beyond the table, no
    budget is solved for which one of them is proved to be within the resolution of the fastest schedule.
    """
    (strategy,) = question.strategies
    if not isinstance(strategy, Solved):
        raise TypeError(f"{strategy.name} has a closed form")
    costs = question.costs
    levels = costs.steps * costs.tape_bytes // math.gcd(costs.state_bytes, costs.tape_bytes)
    search = _Search(question=question, strategy=strategy, known=known)
    solved = list(search.walk() if levels <= _EVERY else [*search.spread(), *search.bound_between()])
    answers = [answer for _, _, answer in solved if answer is not None]
    complete = levels <= _EVERY and all(_is_proved(answer, costs) for answer in answers)
    front, kept = _arrange(answers, costs=costs, names=strategy.parameter_names)
    return SolvedFront(front=front, answers=kept, exact=complete, bounds=_collect_bounds(solved))


#: A budget, what no schedule within it can be faster than, and the answer if it was solved.
_Solved = tuple[int, float, Answer | None]


@dataclass(frozen=True, kw_only=True)
class _Search:
    question: Question
    strategy: Solved
    known: Front | None

    def walk(self) -> Iterator[_Solved]:
        """Solve every level: the next budget is just below the memory that the last schedule needs."""
        budget = _most_useful_bytes(self.question)
        while (answer := self._solve(budget)) is not None:
            yield budget, self._bound(answer, budget), answer
            budget = answer.totals(self.question.costs).local_peak_bytes - 1

    def spread(self) -> Iterator[_Solved]:
        """Solve some budgets, the largest first, so that a table serves all that follow."""
        budgets = sorted(self._choose_budgets(), reverse=True)
        for place, budget in enumerate(budgets):
            if self._is_known(budget):
                yield budget, self._bound(None, budget), None
            else:
                answer = self._solve(budget)
                yield budget, self._bound(answer, budget), answer
            if self.question.progress is not None:
                self.question.progress(place + 1, len(budgets))

    def bound_between(self) -> Iterator[_Solved]:
        """Yield the bounds of budgets that are not solved, evenly spaced in the memory and in its logarithm."""
        resident, most = self.question.costs.resident_bytes, _most_useful_bytes(self.question)
        evenly = np.linspace(resident, most, _BOUNDED, dtype=np.int64)[1:].tolist()
        logs = _space_evenly(self.question.costs.tape_bytes, most - resident, _BOUNDED, above=resident)
        yield from ((budget, self._bound(None, budget), None) for budget in {*evenly, *logs})

    def _choose_budgets(self) -> set[int]:
        question = self.question
        resident, most = question.costs.resident_bytes, _most_useful_bytes(question)
        table = self.strategy.tabulated_bytes(question.costs, effort=question.goal.effort)
        budgets = set() if question.goal.local_bytes is None else {question.goal.local_bytes}
        if not table:
            return budgets | _space_evenly(question.costs.tape_bytes, most - resident, _SOME, above=resident)
        budgets |= set(_thin_out(table, resident=resident))
        doublings = math.ceil(math.log2(max(1, most - resident) / max(1, table[-1] - resident)))
        return budgets | _space_evenly(table[-1] - resident, most - resident, doublings + 1, above=resident)

    def _solve(self, local_bytes: int) -> Answer | None:
        # The budgets are what is counted; the search for each of them reports nothing.
        alone = self.question.replace(
            local_bytes=local_bytes, objective="time", interruptions=[], progress=None, keeps_best=False
        )
        return alone.best()

    def _bound(self, answer: Answer | None, local_bytes: int) -> float:
        least = None if answer is None else answer.least_seconds
        if least is not None:
            return least
        limit = Budget(local_bytes=local_bytes, remote_bytes=self.question.goal.remote_bytes)
        return self.strategy.bound_seconds(self.question.costs, limit)

    def _is_known(self, local_bytes: int) -> bool:
        """Return whether a closed form is proved to be as fast as can be told apart."""
        if self.known is None or local_bytes == self.question.goal.local_bytes:
            return False
        place = int(np.searchsorted(self.known.local_peak_bytes, local_bytes, side="right")) - 1
        limit = self._bound(None, local_bytes)
        return place >= 0 and float(self.known.seconds[place]) * (1 - self.question.resolution) <= limit


def _thin_out(budgets: range, *, resident: int) -> Sequence[int]:
    if len(budgets) <= _LISTED:
        return budgets
    chosen = np.geomspace(budgets[0] - resident, budgets[-1] - resident, _LISTED)
    places = np.unique(np.rint((chosen - chosen[0]) / budgets.step).astype(np.int64))
    return [budgets[place] for place in places.tolist()]


def _space_evenly(low: int, high: int, count: int, *, above: int) -> set[int]:
    """Return ``above`` plus ``count`` sizes from low to high, evenly spaced in the logarithm."""
    if high <= low or count < 2:
        return {above + high}
    return {above + round(size) for size in np.geomspace(low, high, count).tolist()}


def _most_useful_bytes(question: Question) -> int:
    """Return the memory that plain backpropagation needs; more memory never helps."""
    return question.costs.resident_bytes + question.costs.steps * question.costs.tape_bytes


def _is_proved(answer: Answer, costs: StepCosts) -> bool:
    """Return whether the answer is proved to be the fastest legal schedule."""
    least = answer.least_seconds
    return least is not None and answer.totals(costs).seconds <= least * (1 + 1e-9)


def _arrange(
    answers: Sequence[Answer], *, costs: StepCosts, names: Sequence[str]
) -> tuple[Front, tuple[Answer, ...]]:
    """Return the front of some answers, and the answer of each of its points."""
    totals = [answer.totals(costs) for answer in answers]
    keys = (
        np.array([total.local_peak_bytes for total in totals], dtype=np.int64),
        np.array([total.seconds for total in totals]),
        np.array([total.remote_peak_bytes for total in totals], dtype=np.int64),
        np.arange(len(answers)),
    )
    local, seconds, remote, places = drop_dominated(keys)
    kept = tuple(answers[place] for place in places.tolist())
    columns = {name: np.array([answer.parameters[name] for answer in kept], dtype=np.int64) for name in names}
    front = Front(local_peak_bytes=local, seconds=seconds, remote_peak_bytes=remote, parameters=columns)
    return front, kept


def _collect_bounds(solved: Sequence[_Solved]) -> LowerBounds:
    """Return the bounds of the budgets; that of a larger budget also holds for every smaller one."""
    pairs = sorted((budget, bound) for budget, bound, _ in solved if np.isfinite(bound))
    bounds = np.array([bound for _, bound in pairs], dtype=np.float64)
    return LowerBounds(
        local_bytes=np.array([budget for budget, _ in pairs], dtype=np.int64),
        seconds=np.maximum.accumulate(bounds[::-1])[::-1],
    )
