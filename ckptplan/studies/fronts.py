"""Traces the front of each strategy: closed forms completely, then those that are solved."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import overload

import numpy as np

from ckptplan.cost.arrays import Integers
from ckptplan.model.budget import Budget
from ckptplan.model.progress import StagedProgress
from ckptplan.model.record import Parameters
from ckptplan.model.step_costs import StepCosts
from ckptplan.search.adoption import adopt_answer
from ckptplan.search.answer import Answer, ClosedFormAnswer
from ckptplan.search.box import Limits
from ckptplan.search.front import Front, merge_fronts, trace_front
from ckptplan.search.objective import least_time
from ckptplan.search.question import Question, order_of_search
from ckptplan.search.solved_front import LowerBounds, SolvedFront, trace_solved_front
from ckptplan.strategies.adopted import adopt_columns, can_name
from ckptplan.strategies.closed_form import ClosedForm
from ckptplan.strategies.protocol import Columns, Strategy
from ckptplan.strategies.registry import select_strategies
from ckptplan.strategies.solved import Solved

#: Points are priced in lots of this size, which fit the cache.
_LOT = 2**16


@dataclass(frozen=True, kw_only=True, eq=False)
class GridPoints:
    """The points of a closed form's front as its parameters, which are much shorter than its columns."""

    strategy: ClosedForm
    parameters: Columns
    costs: StepCosts
    points: int
    resolution: float

    def __len__(self) -> int:
        return self.points


@lru_cache(maxsize=1)
def _price(settings: GridPoints) -> Front:
    """Return the columns of a front. They are needed for one strategy after the other."""
    local, remote = (np.empty(settings.points, dtype=np.int64) for _ in range(2))
    seconds = np.empty(settings.points)
    for start in range(0, settings.points, _LOT):
        lot = slice(start, start + _LOT)
        columns = {name: column[lot].astype(np.int64) for name, column in settings.parameters.items()}
        cost = settings.strategy.evaluate(low=columns, high=columns, costs=settings.costs, model="exact")
        local[lot], seconds[lot], remote[lot] = cost.local_peak_bytes, cost.seconds, cost.remote_peak_bytes
    return Front(
        local_peak_bytes=local,
        seconds=seconds,
        remote_peak_bytes=remote,
        parameters=settings.parameters,
        resolution=settings.resolution,
    )


@dataclass(frozen=True, kw_only=True)
class StrategyFront:
    """The front of one strategy, with the answers of its points."""

    strategy: Strategy
    points: Front | GridPoints
    #: The answers behind the points.
    answers: Sequence[Answer]
    #: Whether every point of the front is included.
    exact: bool
    #: What no schedule at all can be faster than, if the strategy proves that.
    bounds: LowerBounds | None = None

    def __len__(self) -> int:
        return len(self.points)

    @property
    def front(self) -> Front:
        """The points as columns; those of a closed form are computed anew, unless they were the last ones."""
        return _price(self.points) if isinstance(self.points, GridPoints) else self.points


@dataclass(frozen=True, kw_only=True)
class ClosedFormAnswers(Sequence[Answer]):
    """The answers behind the points of a closed form's front, each made on demand from its columns."""

    settings: GridPoints

    def __len__(self) -> int:
        return len(self.settings)

    @overload
    def __getitem__(self, index: int) -> Answer: ...
    @overload
    def __getitem__(self, index: slice) -> list[Answer]: ...
    def __getitem__(self, index: int | slice) -> Answer | list[Answer]:
        """Return an answer; a slice is a list of answers. Raises IndexError."""
        if isinstance(index, slice):
            return [self[place] for place in range(*index.indices(len(self)))]
        strategy, costs = self.settings.strategy, self.settings.costs
        columns = self.settings.parameters
        parameters = Parameters({name: int(column[index]) for name, column in columns.items()})
        key = least_time(strategy.cost(parameters, costs=costs))
        return ClosedFormAnswer(
            strategy=strategy,
            parameters=parameters,
            key=tuple(column[0].item() for column in key),
            steps=costs.steps,
        )


@dataclass(frozen=True, kw_only=True)
class AdoptedAnswers(Sequence[Answer]):
    """The answers of a strategy that adopts others' schedules: its own, and those of ``sources`` on demand.

    ``origins`` has shape (2, n): the index of the source of each point, and of the point in it.
    """

    strategy: Solved
    sources: Sequence[StrategyFront]
    origins: Integers
    bounds: LowerBounds
    costs: StepCosts

    def __len__(self) -> int:
        return len(self.origins[0])

    @overload
    def __getitem__(self, index: int) -> Answer: ...
    @overload
    def __getitem__(self, index: slice) -> list[Answer]: ...
    def __getitem__(self, index: int | slice) -> Answer | list[Answer]:
        """Return an answer; a slice is a list of answers. Raises IndexError."""
        if isinstance(index, slice):
            return [self[place] for place in range(*index.indices(len(self)))]
        which, place = (int(row[index]) for row in self.origins)
        source = self.sources[which]
        answer = source.answers[place]
        if source.strategy is self.strategy:
            return answer
        adopted = adopt_answer(answer, strategy=self.strategy, own=None, objective=least_time, costs=self.costs)
        peak = answer.totals(self.costs).local_peak_bytes
        least = float(self.bounds.within(np.array([peak]))[0])
        return dataclasses.replace(
            adopted, solution=dataclasses.replace(adopted.solution, least_seconds=least or None)
        )


def trace_fronts(question: Question, *, resolution: float) -> list[StrategyFront]:
    """Return the front of each strategy of a question, in the question's order.

    A strategy that adopts the schedules of others comes last, and takes over whatever any of them finds: so no
    strategy beats it. It also adopts the strategies that are compared by default, asked for or not.
    """
    adopts = any(isinstance(one, Solved) and one.adopts_others for one in question.strategies)
    others = [one for one in select_strategies(None) if adopts and one not in question.strategies]
    traced = sorted([*question.strategies, *others], key=order_of_search)
    closed = [one for one in traced if isinstance(one, ClosedForm)]
    found = dict(zip(closed, _trace_closed_forms(closed, question, resolution=resolution), strict=True))
    solved = [one for one in traced if isinstance(one, Solved)]
    stages = StagedProgress(question.progress, stages=len(solved))
    fronts: dict[Strategy, StrategyFront] = dict(found.items())
    for strategy in solved:
        stages.begin_next(strategy.name)
        alone = question.for_strategy(strategy).replace(
            progress=None if question.progress is None else stages.report_solve
        )
        sources = [fronts[one] for one in fronts if strategy.adopts_others and _is_adoptable(one)]
        fronts[strategy] = _trace_solved(strategy, alone, sources)
    return [fronts[strategy] for strategy in question.strategies]


def _is_adoptable(strategy: Strategy) -> bool:
    return isinstance(strategy, Solved) or (isinstance(strategy, ClosedForm) and can_name(strategy))


def _trace_closed_forms(
    strategies: Sequence[ClosedForm], question: Question, *, resolution: float
) -> list[StrategyFront]:
    def trace(strategy: ClosedForm) -> StrategyFront:
        return _trace_closed_form(strategy, question, resolution=resolution)

    return [trace(strategy) for strategy in strategies]


def _trace_closed_form(strategy: ClosedForm, question: Question, *, resolution: float) -> StrategyFront:
    limits = Limits(
        budget=Budget(remote_bytes=question.goal.remote_bytes),
        max_overhead=question.goal.max_overhead,
        base_seconds=question.base_seconds,
    )
    front = trace_front(strategy, costs=question.costs, limits=limits, resolution=resolution)
    settings = GridPoints(
        strategy=strategy,
        parameters={name: _shorten(column) for name, column in front.parameters.items()},
        costs=question.costs,
        points=len(front),
        resolution=front.resolution,
    )
    answers = ClosedFormAnswers(settings=settings)
    return StrategyFront(strategy=strategy, points=settings, answers=answers, exact=not front.resolution)


def _shorten(column: Integers) -> Integers:
    """Return integers of 32 bits where they fit."""
    fits = not len(column) or int(column.max()) < 2**31
    return column.astype(np.int32) if fits else column


def _trace_solved(strategy: Solved, question: Question, sources: Sequence[StrategyFront]) -> StrategyFront:
    """Return the front of a solved strategy, with the points of the sources whose schedules it adopts."""
    known = merge_fronts(source.front for source in sources)[0] if sources else None
    solved = trace_solved_front(question, known=known)
    own = StrategyFront(
        strategy=strategy,
        points=solved.front,
        answers=solved.answers,
        exact=solved.exact,
        bounds=solved.bounds if strategy.adopts_others else None,
    )
    return _adopt(strategy, own, solved, sources, question.costs) if sources and not solved.exact else own


def _adopt(
    strategy: Solved,
    own: StrategyFront,
    solved: SolvedFront,
    sources: Sequence[StrategyFront],
    costs: StepCosts,
) -> StrategyFront:
    together = [own, *sources]
    merged, origins = merge_fronts(one.front for one in together)
    columns = [
        one.points.parameters
        if isinstance(one.points, Front)
        else adopt_columns(one.points.parameters, count=len(one), costs=costs)
        for one in together
    ]
    resolution = max(one.points.resolution for one in together)
    return dataclasses.replace(
        own,
        points=dataclasses.replace(
            merged,
            parameters={
                name: _pick_column([one[name] for one in columns], origins) for name in strategy.parameter_names
            },
            resolution=resolution,
        ),
        answers=AdoptedAnswers(
            strategy=strategy, sources=together, origins=origins, bounds=solved.bounds, costs=costs
        ),
    )


def _pick_column(columns: Sequence[Integers], origins: Integers) -> Integers:
    """Return the entry of each point from the column of its source."""
    picked: Integers = origins[1].copy()
    for place, column in enumerate(columns):
        chosen = origins[0] == place
        picked[chosen] = column[origins[1][chosen]]
    return picked
