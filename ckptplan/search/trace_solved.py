"""Finds the front of a solved strategy, and lower bounds on the time of any schedule.

A strategy lists the schedules of all budgets (``Solved.list_ranges``). So its front and its plan within a
budget, which is in the list, never disagree. If listed schedules need more remote memory than there is, budgets
are solved one after another, each as if it were asked for alone:

- all budgets, if there are few levels of memory;
- else a few, evenly spaced in the logarithm, and the budget of the question.
"""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from ckptplan.cost.arrays import COUNT_ROUNDING, Integers
from ckptplan.model.step_costs import StepCosts
from ckptplan.search.objective import least_time
from ckptplan.search.question import Question
from ckptplan.search.trace_closed import Front, drop_dominated
from ckptplan.strategies.answer import Answer
from ckptplan.strategies.protocol import Strategy
from ckptplan.strategies.solved import BudgetRange, Solved

#: With up to this many levels of memory, every budget is solved.
_FEW_LEVELS = 256
#: Parts of a range in which progress is reported.
_PARTS = 1_000
#: The number of budgets that are solved if there are more levels.
_FEW_BUDGETS = 24


@dataclass(frozen=True, kw_only=True)
class LowerBounds:
    """Every schedule within ``local_bytes`` takes at least ``seconds``; arrays of shape (n,).

    Local bytes of one unit ascend, seconds descend. Without a budget, n is 0.
    """

    local_bytes: Integers
    seconds: npt.NDArray[np.float64]

    def __len__(self) -> int:
        return len(self.seconds)

    def within(self, local_bytes: Integers) -> npt.NDArray[np.float64]:
        """Return the bound of each budget: that of the next larger budget that has a bound, else 0."""
        places = np.searchsorted(self.local_bytes, local_bytes, side="left")
        least: npt.NDArray[np.float64] = np.append(self.seconds, 0.0)[places]
        return least


NO_BOUNDS = LowerBounds(local_bytes=np.zeros(0, dtype=np.int64), seconds=np.zeros(0))


@dataclass(frozen=True, kw_only=True)
class StrategyFront:
    """The front of one strategy."""

    strategy: Strategy
    front: Front
    #: Returns the answer behind a point, by its index.
    answer: Callable[[int], Answer]
    #: Whether every point of the front is included, or no schedule within any budget is faster.
    exact: bool
    #: Lower bounds on the time of any schedule, if the strategy proves them.
    bounds: LowerBounds = NO_BOUNDS


def trace_solved_front(
    question: Question, *, known: Front | None = None, budgets: Integers | None = None
) -> StrategyFront:
    """Return the front of the question's only strategy, or its best schedules within ``budgets``.

    ``known`` is the front of other strategies. Schedules that it beats are left out, and so are budgets within
    which no schedule can beat it by more than the resolution.
    """
    (strategy,) = question.strategies
    if not isinstance(strategy, Solved):
        raise TypeError(f"{strategy.name} has a closed form")
    costs = question.costs
    levels = costs.steps * costs.tape_bytes // math.gcd(costs.state_bytes, costs.tape_bytes)
    search = _Search(question=question, strategy=strategy, known=known, budgets=budgets)
    answers, bounds, most = search.list_all()
    if most:
        answers += search.walk() if levels <= _FEW_LEVELS else search.spread(most)
    front, chosen = _arrange(answers, costs=costs, names=strategy.parameter_names)
    return StrategyFront(
        strategy=strategy,
        front=front,
        answer=chosen.__getitem__,
        exact=_is_proved(front, bounds),
        bounds=bounds,
    )


@dataclass(frozen=True, kw_only=True)
class _Search:
    question: Question
    strategy: Solved
    known: Front | None
    #: The local bytes for which schedules are wanted, ascending; None for all.
    budgets: Integers | None

    def list_all(self) -> tuple[list[Answer], LowerBounds, int]:
        """Return the answers and bounds that the strategy lists, and the budget up to which some are missing.

        Schedules with little local memory may need more remote memory than there is.
        """
        question, ranges = self.question.replace(local_bytes=None), list[BudgetRange]()
        task = dataclasses.replace(
            question.task(self.strategy, least_time),
            progress=lambda done, total: self._report(len(ranges) + done / max(1, total)),
        )
        budgets = None if self.budgets is None else self.budgets.tolist()
        answers, most = list[Answer](), 0
        for budget_range in self.strategy.list_ranges(task, is_beaten=self._is_beaten, budgets=budgets):
            ranges.append(budget_range)
            self._report(len(ranges))
            for listed_answer in filter(task.allows, budget_range.answers):
                answer = listed_answer.without_chunk_workspace(question.costs)
                cost = answer.cost(question.costs)
                if question.limits.keeps(cost)[0]:
                    key = tuple(column[0].item() for column in least_time(cost))
                    answers.append(dataclasses.replace(answer, key=key))
                elif not cost.within(question.budget)[0]:
                    most = max(most, int(cost.local_peak_bytes[0]))
        bounds = _bound_ranges(ranges) if question.releases_caches(self.strategy) else NO_BOUNDS
        return answers, bounds, most

    def _report(self, ranges: float) -> None:
        """Report the number of ranges that are done; the total is not known."""
        if self.question.progress is not None:
            self.question.progress(int(_PARTS * ranges), int(_PARTS * (ranges + 1)))

    def walk(self) -> Iterator[Answer]:
        """Solve every level: the next budget is just below the memory that the last schedule needs."""
        budget = _most_useful_bytes(self.question)
        while (answer := self._solve(budget)) is not None:
            yield answer
            budget = answer.totals(self.question.costs).local_peak_bytes - 1

    def spread(self, most: int) -> Iterator[Answer]:
        """Solve a few budgets up to ``most`` bytes, and the budget of the question, the largest first."""
        given = self.question.goal.local_bytes
        chosen = [budget for budget in self._choose_budgets() if budget <= most]
        budgets = sorted({*chosen, *([] if given is None else [given])}, reverse=True)
        for place, budget in enumerate(budgets):
            answer = self._solve(budget)
            if answer is not None:
                yield answer
            if self.question.progress is not None:
                self.question.progress(place + 1, len(budgets))

    def _choose_budgets(self) -> list[int]:
        """Return budgets that are evenly spaced in the logarithm."""
        costs, budgets, count = self.question.costs, self.budgets, _FEW_BUDGETS
        if budgets is None:
            most = _most_useful_bytes(self.question) - costs.resident_bytes
            free = np.geomspace(costs.tape_bytes, most, count).round()
            budgets = costs.resident_bytes + free.astype(np.int64)
        chosen: list[int] = budgets[spread_places(budgets - costs.resident_bytes, count)].tolist()
        return chosen

    def _solve(self, local_bytes: int) -> Answer | None:
        # Progress counts budgets, so the search within a budget reports nothing.
        return self.question.replace(local_bytes=local_bytes, objective="time", progress=None).best()

    def _is_beaten(self, local_bytes: int, seconds: float) -> bool:
        """Return whether a point of ``known`` within ``local_bytes`` takes less than ``seconds``."""
        if self.known is None:
            return False
        # A schedule of single steps needs less than it was charged.
        local_bytes -= self.question.costs.chunk_bytes
        place = int(np.searchsorted(self.known.local_peak_bytes, local_bytes, side="right")) - 1
        return place >= 0 and float(self.known.seconds[place]) < seconds


def _most_useful_bytes(question: Question) -> int:
    """Return the memory that plain backpropagation needs; more memory never helps."""
    costs = question.costs.with_chunk_workspace
    return costs.resident_bytes + costs.steps * costs.recorded_bytes


def spread_places(memory: Integers, most: int) -> Integers:
    """Return at most ``most`` indices of ascending bytes, evenly spaced in their logarithm, with both ends."""
    if len(memory) <= most:
        return np.arange(len(memory))
    logs = np.log(memory)
    # Between equal ends linspace may round to values above them, beyond the last point.
    wanted = np.clip(np.linspace(logs[0], logs[-1], most), logs[0], logs[-1])
    return np.unique(np.searchsorted(logs, wanted))


def _is_proved(front: Front, bounds: LowerBounds) -> bool:
    """Return whether no schedule within any budget is faster than the front there."""
    places = np.searchsorted(front.local_peak_bytes, bounds.local_bytes, side="right")
    reached = np.concatenate([[np.inf], front.seconds])[places]
    return bool(len(bounds)) and bool((reached <= bounds.seconds * (1 + COUNT_ROUNDING)).all())


def _arrange(
    answers: Sequence[Answer], *, costs: StepCosts, names: Sequence[str]
) -> tuple[Front, tuple[Answer, ...]]:
    """Return the front of ``answers``, and the answer behind each point."""
    totals = [answer.totals(costs) for answer in answers]
    keys = (
        np.array([total.local_peak_bytes for total in totals], dtype=np.int64),
        np.array([total.seconds for total in totals]),
        np.array([total.remote_peak_bytes for total in totals], dtype=np.int64),
        np.arange(len(answers)),
    )
    local, seconds, remote, places = drop_dominated(keys)
    chosen = tuple(answers[place] for place in places.tolist())
    columns = {name: np.array([answer.parameters[name] for answer in chosen], dtype=np.int64) for name in names}
    front = Front(local_peak_bytes=local, seconds=seconds, remote_peak_bytes=remote, parameters=columns)
    return front, chosen


def _collect_bounds(listed: Iterable[tuple[int, float]]) -> LowerBounds:
    """Return the bounds of the budgets. The bound of a larger budget also holds for every smaller one."""
    pairs = sorted(pair for pair in listed if np.isfinite(pair[1]))
    bounds = np.array([bound for _, bound in pairs], dtype=np.float64)
    return LowerBounds(
        local_bytes=np.array([budget for budget, _ in pairs], dtype=np.int64),
        seconds=np.maximum.accumulate(bounds[::-1])[::-1],
    )


def _bound_ranges(ranges: Sequence[BudgetRange]) -> LowerBounds:
    """Combine the bounds on schedules of single steps with the bounds on other schedules."""
    least_single = max(
        (budget_range.single_bound for budget_range in ranges if budget_range.single_bound is not None),
        default=None,
    )
    general, single = (
        _collect_bounds(
            pair
            for budget_range in ranges
            if (budget_range.single_bound is None) is mixed
            for pair in budget_range.bounds
        )
        for mixed in (True, False)
    )
    if least_single is None:
        return general
    budgets = np.union1d(general.local_bytes, single.local_bytes)
    seconds = np.minimum(general.within(budgets), np.maximum(single.within(budgets), least_single))
    return LowerBounds(local_bytes=budgets, seconds=seconds)
