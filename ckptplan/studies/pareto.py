"""The use case ``pareto``: what another byte of local memory buys, for each strategy and for all together."""

from __future__ import annotations

import dataclasses
import os
from collections.abc import Callable, Iterable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from functools import cached_property
from typing import overload

import numpy as np
import numpy.typing as npt

from ckptplan.cost.arrays import Integers
from ckptplan.cost.exact import Cost, overhead
from ckptplan.errors import Infeasible, InputError
from ckptplan.model.budget import Budget
from ckptplan.model.plan import Plan
from ckptplan.model.profile import HardwareProfile
from ckptplan.model.progress import Progress
from ckptplan.model.record import Parameters
from ckptplan.model.workload import Workload
from ckptplan.planning.ranking import rank_strategies
from ckptplan.planning.request import Request
from ckptplan.search.answer import Answer, ClosedFormAnswer
from ckptplan.search.box import Limits
from ckptplan.search.front import COARSE, Front, merge_fronts, trace_front
from ckptplan.search.objective import Knee
from ckptplan.search.question import Question
from ckptplan.search.reasons import find_reason
from ckptplan.search.solved_front import trace_solved_front
from ckptplan.strategies.closed_form import ClosedForm
from ckptplan.strategies.protocol import Strategy
from ckptplan.units import parse_bytes, parse_fraction

#: A sequence up to so many steps has every point of its front listed, unless a resolution is asked for.
MOST_EXACT = 2_000_000
#: Sequences from here on have their strategies searched side by side.
_LONG = 100_000
#: A finer resolution than this would be more points than there is memory for.
_FINEST = 0.0001


def pareto(
    workload: Workload,
    profile: HardwareProfile,
    *,
    strategies: Iterable[str] | str | None = None,
    local_bytes: int | str | None = None,
    remote_bytes: int | str | None = None,
    max_overhead: float | str | None = None,
    resolution: float | str | None = None,
    effort: str = "quick",
    progress: Progress | None = None,
    command: str = "ckptplan.pareto",
) -> ParetoFront:
    """Return the plans that no other plan beats in local memory and time, local memory ascending.

    The result is a sequence of plans, each made when it is asked for; its columns are arrays.
    ``strategies`` are names or groups, None for 'closed': those whose cost is a closed form, which answer at
    once. Strategies that are solved decision by decision (``optimal`` and its like) are solved for some
    budgets, for every one where there are few. ``local_bytes`` (one unit) is the budget that ``best`` and
    ``knee`` keep and no limit of the front; ``remote_bytes`` (in all) and ``max_overhead`` limit it.
    ``resolution`` 0 lists every point, 0.01 those that differ by a hundredth in memory or time; None is 0 up to
    2,000,000 steps, else 0.001.

    Raises InputError.
    """
    request = Request.of(
        workload,
        profile,
        command=command,
        unless_named="closed",
        strategies=strategies,
        local_bytes=local_bytes,
        remote_bytes=remote_bytes,
        max_overhead=max_overhead,
        effort=effort,
        progress=progress,
    )
    fineness = _read_resolution(resolution, steps=workload.steps)
    fronts = _trace_fronts(request.question(), resolution=fineness)
    return ParetoFront(request, tuple(fronts), resolution=fineness)


def _read_resolution(wanted: float | str | None, *, steps: int) -> float:
    if wanted is None:
        return 0.0 if steps <= MOST_EXACT else COARSE
    try:
        value = parse_fraction(wanted)
    except InputError as error:
        raise error.inside(prefix="resolution") from None
    least = 0.0 if steps <= MOST_EXACT else _FINEST
    if not least <= value <= 0.5:
        raise InputError(
            f"{wanted} cannot be had for {steps:,} steps" if value < least else f"{wanted} is out of range",
            field="resolution",
            value=wanted,
            accepted=f"a share from {least:g} to 0.5, as 0.01 or '1%'",
        )
    return value


@dataclass(frozen=True, kw_only=True)
class StrategyFront:
    """The front of one strategy, and how each of its points was obtained."""

    strategy: Strategy
    front: Front
    #: Returns the answer behind a point.
    answer: Callable[[int], Answer]
    #: Whether every point of the front is there.
    exact: bool


def _trace_closed_form(strategy: ClosedForm, question: Question, *, resolution: float) -> StrategyFront:
    limits = Limits(
        budget=Budget(remote_bytes=question.goal.remote_bytes),
        max_overhead=question.goal.max_overhead,
        base_seconds=question.base_seconds,
    )
    front = trace_front(strategy, costs=question.costs, limits=limits, resolution=resolution)
    keys = (front.seconds, front.local_peak_bytes, front.remote_peak_bytes)

    def answer(index: int) -> Answer:
        parameters = {name: int(column[index]) for name, column in front.parameters.items()}
        return ClosedFormAnswer(
            strategy=strategy,
            parameters=Parameters(parameters),
            key=tuple(column[index].item() for column in keys),
            steps=question.costs.steps,
        )

    return StrategyFront(strategy=strategy, front=front, answer=answer, exact=not front.resolution)


def _trace_fronts(question: Question, *, resolution: float) -> list[StrategyFront]:
    def trace(strategy: Strategy) -> StrategyFront:
        if isinstance(strategy, ClosedForm):
            return _trace_closed_form(strategy, question, resolution=resolution)
        front, answers, exact = trace_solved_front(question.for_strategy(strategy))
        return StrategyFront(strategy=strategy, front=front, answer=answers.__getitem__, exact=exact)

    if question.costs.steps < _LONG:
        return [trace(strategy) for strategy in question.strategies]
    # Long arrays: numpy lets other threads run meanwhile.
    with ThreadPoolExecutor(max_workers=min(4, os.cpu_count() or 1)) as pool:
        return list(pool.map(trace, question.strategies))


class ParetoFront(Sequence[Plan]):
    """Plans that none of the strategies beats in local memory and time; columns at once, plans on demand."""

    def __init__(self, request: Request, fronts: tuple[StrategyFront, ...], *, resolution: float) -> None:
        self._request = request
        self._question = request.question()
        self._fronts = fronts
        self._together, self._origins = merge_fronts([one.front for one in fronts])
        #: 0 where every point is listed, else the share by which those left out may differ.
        self.resolution = max([resolution, *(one.front.resolution for one in fronts)])

    def __len__(self) -> int:
        return len(self._together)

    @overload
    def __getitem__(self, index: int) -> Plan: ...
    @overload
    def __getitem__(self, index: slice) -> list[Plan]: ...
    def __getitem__(self, index: int | slice) -> Plan | list[Plan]:
        """Return a plan; a slice is a list of plans. Raises IndexError."""
        if isinstance(index, slice):
            return [self[place] for place in range(*index.indices(len(self)))]
        if not -len(self) <= index < len(self):
            raise IndexError(f"the front has {len(self):,} points, no point {index}")
        return self._plan(index % len(self))

    @property
    def compared(self) -> tuple[Strategy, ...]:
        """The strategies whose fronts these are."""
        return self._question.strategies

    @property
    def workload(self) -> Workload:
        """The job."""
        return self._request.case.workload

    @property
    def profile(self) -> HardwareProfile:
        """The machine."""
        return self._request.case.profile

    @property
    def budget_bytes(self) -> int:
        """The local budget of one unit that ``best`` and ``knee`` keep."""
        return self._request.goal.local_bytes or self.profile.local_bytes

    @property
    def resident_bytes(self) -> int:
        """What stays in local memory whatever the schedule is, on one unit."""
        return self._question.costs.resident_bytes

    @property
    def base_seconds(self) -> float:
        """The time of plain backpropagation, from which overhead is counted."""
        return self._question.base_seconds

    @property
    def local_peak_bytes(self) -> Integers:
        """Shape (n,), on one unit, ascending."""
        return self._together.local_peak_bytes

    @property
    def seconds(self) -> npt.NDArray[np.float64]:
        """Shape (n,), descending."""
        return self._together.seconds

    @property
    def overhead(self) -> npt.NDArray[np.float64]:
        """Shape (n,): the share of base's time that is added."""
        added: npt.NDArray[np.float64] = np.maximum(0.0, overhead(self.seconds, self.base_seconds))
        return added

    @property
    def remote_peak_bytes(self) -> Integers:
        """Shape (n,), all units together."""
        return self._together.remote_peak_bytes

    @cached_property
    def strategies(self) -> tuple[str, ...]:
        """The strategy of each point."""
        names = [one.strategy.name for one in self._fronts]
        return tuple(names[which] for which in self._origins[0].tolist())

    @property
    def parameters(self) -> Mapping[str, Integers]:
        """Parameter name -> shape (n,), 0 where a point's strategy has no such parameter."""
        names = dict.fromkeys(name for one in self._fronts for name in one.front.parameters)
        columns = {name: np.zeros(len(self), dtype=np.int64) for name in names}
        for place, one in enumerate(self._fronts):
            chosen = self._origins[0] == place
            for name, column in one.front.parameters.items():
                columns[name][chosen] = column[self._origins[1][chosen]]
        return columns

    @cached_property
    def by_strategy(self) -> Mapping[str, ParetoFront]:
        """The front of each strategy that has one, by name."""
        return {
            one.strategy.name: ParetoFront(
                self._request.replace(strategies=(one.strategy.name,)),
                (one,),
                resolution=one.front.resolution,
            )
            for one in self._fronts
            if len(one.front)
        }

    def places_of(self, strategy: str) -> Integers:
        """Return which points of a strategy's own front are on this one."""
        which = [one.strategy.name for one in self._fronts].index(strategy)
        places: Integers = self._origins[1][self._origins[0] == which]
        return places

    @property
    def exact(self) -> bool:
        """Whether no point of any strategy's front is left out."""
        return all(one.exact for one in self._fronts)

    def place_within(self, local_bytes: int) -> int | None:
        """Return the index of the quickest listed plan within a budget of one unit, None where none fits."""
        place = int(np.searchsorted(self.local_peak_bytes, local_bytes, side="right")) - 1
        return place if place >= 0 else None

    @property
    def knee_place(self) -> int | None:
        """The index of the knee within the budget: the listed point farthest below the chord of the front."""
        last = self.place_within(self.budget_bytes)
        if last is None:
            return None
        if last == 0:
            return 0
        knee = Knee(
            fast_seconds=float(self.seconds[last]),
            fast_bytes=int(self.local_peak_bytes[last]),
            small_seconds=float(self.seconds[0]),
            small_bytes=int(self.local_peak_bytes[0]),
        )
        within = slice(0, last + 1)
        share, *_ = knee(
            Cost(
                seconds=self.seconds[within],
                local_peak_bytes=self.local_peak_bytes[within],
                remote_peak_bytes=self.remote_peak_bytes[within],
            )
        )
        # Of equal ones the quickest, which is the last.
        return int(last - np.argmin(share[::-1]))

    @property
    def knee(self) -> Plan:
        """The knee within the budget, as ``optimize(objective='balanced')``. Raises Infeasible."""
        place = self.knee_place
        if self._read_off and place is not None:
            return self._plan(place, budget=self.budget_bytes)
        return rank_strategies(self._within(self.budget_bytes, objective="balanced")).first()

    def at(self, local_bytes: int | str) -> Plan:
        """Return the quickest plan within a budget of one unit. Raises InputError and Infeasible.

        It is read off the front where that has every point, and searched for where some are left out.
        """
        budget = _read_budget(local_bytes)
        place = self.place_within(budget)
        if self._read_off and place is not None:
            return self._plan(place, budget=budget)
        return rank_strategies(self._within(budget)).first()

    def lacks(self, local_bytes: int | str) -> Infeasible | None:
        """Return why no plan is within a budget of one unit; None where one is. Raises InputError."""
        budget = _read_budget(local_bytes)
        if self.place_within(budget) is not None:
            return None
        question = self._within(budget).question()
        if question.fits():
            return None
        names = ", ".join(self.by_strategy) or "no strategy"
        several = len(self.by_strategy) > 1
        return find_reason(question, subject=f"{names} {'do' if several else 'does'} not fit")

    @property
    def best(self) -> Plan:
        """The quickest plan within the budget. Raises Infeasible."""
        return self.at(self.budget_bytes)

    @property
    def _read_off(self) -> bool:
        """Whether plans can be read off the columns: every point of every front is there."""
        return not self.resolution and all(strategy.is_closed_form for strategy in self.compared)

    def _plan(self, place: int, *, budget: int | None = None) -> Plan:
        """Return the plan of a point, for a budget or else for the memory that it takes."""
        which, index = self._origins[:, place].tolist()
        answer = self._fronts[which].answer(index)
        limit = int(self.local_peak_bytes[place]) if budget is None else budget
        request = dataclasses.replace(self._within(limit), own_budget=budget is None)
        return request.plan(answer)

    def _within(self, budget: int, *, objective: str = "time") -> Request:
        return self._request.replace(local_bytes=budget, objective=objective)


def _read_budget(local_bytes: int | str) -> int:
    try:
        return parse_bytes(local_bytes)
    except InputError as error:
        raise error.inside(prefix="local_bytes") from None
