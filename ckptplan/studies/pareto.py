"""Implements ``pareto``: the front of local memory and time, for each strategy and for all together.

The fronts of closed forms are traced first, completely. The fronts of solved strategies follow.
"""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Iterable, Mapping, Sequence
from concurrent.futures import Executor
from functools import cached_property, partial
from typing import overload

import numpy as np
import numpy.typing as npt

from ckptplan.cost.arrays import Integers
from ckptplan.cost.exact import overhead
from ckptplan.errors import Infeasible, InputError, refuse
from ckptplan.model.budget import find_memory
from ckptplan.model.display import DrawnOnAxes
from ckptplan.model.goal import ObjectiveName
from ckptplan.model.plan import Plan
from ckptplan.model.profile import HardwareProfile
from ckptplan.model.progress import Progress, StagedProgress
from ckptplan.model.record import Parameters
from ckptplan.model.step_costs import StepCosts
from ckptplan.model.workload import Workload
from ckptplan.planning.optimize import rank_strategies
from ckptplan.planning.request import AnyProfile, AnyWorkload, Request, read_argument
from ckptplan.search.objective import Knee, least_time
from ckptplan.search.question import Question, find_reason
from ckptplan.search.trace_closed import FrontProblem, merge_fronts, pick_columns, trace_front
from ckptplan.search.trace_solved import NO_BOUNDS, LowerBounds, StrategyFront, trace_solved_front
from ckptplan.strategies.answer import Answer
from ckptplan.strategies.closed_form import ClosedForm
from ckptplan.strategies.protocol import Columns, Strategy
from ckptplan.studies.workers import map_in_order
from ckptplan.units import format_bytes, format_things, parse_bytes, parse_fraction, sizes_like
from ckptplan.wording import Argument


def trace_fronts(
    question: Question,
    *,
    resolution: float = 0.0,
    budgets: Integers | None = None,
    executor: Executor | None = None,
) -> list[StrategyFront]:
    """Trace the front of each strategy of a question; with ``budgets``, only the best plans within them.

    An executor traces the solved strategies side by side.
    """
    compared = question.strategies
    fronts: dict[Strategy, StrategyFront] = {
        strategy: _trace_closed_form(strategy, question, resolution=resolution, budgets=budgets)
        for strategy in compared
        if isinstance(strategy, ClosedForm)
    }
    closed_front = merge_fronts(front.front for front in fronts.values())[0] if fronts else None
    solved = [strategy for strategy in compared if strategy not in fronts]
    stages = StagedProgress(question.progress, stages=len(solved))
    tracked = question.replace(progress=None if question.progress is None else stages.report_solve)
    traced = map_in_order(
        partial(trace_solved_front, known=closed_front, budgets=budgets),
        map(tracked.for_strategy, solved),
        executor=executor,
        name=lambda task: f"the front of {task.goal.strategies[0]}",
    )
    for strategy in solved:
        stages.begin_next(strategy.name)
        fronts[strategy] = next(traced)
    return [fronts[strategy] for strategy in compared]


def _trace_closed_form(
    strategy: ClosedForm, question: Question, *, resolution: float, budgets: Integers | None
) -> StrategyFront:
    most = None if budgets is None else int(budgets[-1])
    front = trace_front(
        FrontProblem(
            strategy=strategy,
            costs=question.costs,
            limits=question.replace(local_bytes=most).limits,
            resolution=resolution,
            budgets=budgets,
            cache=question.goal.cache,
        )
    )
    # Fronts may have millions of points.
    front = dataclasses.replace(
        front, parameters={name: _shorten(column) for name, column in front.parameters.items()}
    )
    return StrategyFront(
        strategy=strategy,
        front=front,
        answer=partial(_answer_closed_form, strategy, front.parameters, question.costs),
        exact=budgets is None and not front.resolution,
    )


def _shorten(column: Integers) -> Integers:
    """Return a column as 32-bit integers if its values fit, to save memory."""
    is_small = not len(column) or int(column.max()) < 2**31
    return column.astype(np.int32) if is_small else column


def _answer_closed_form(strategy: ClosedForm, columns: Columns, costs: StepCosts, index: int) -> Answer:
    values = {name: int(column[index]) for name, column in columns.items()}
    # A zero means that the plan lacks this parameter.
    setting = Parameters({name: value for name, value in values.items() if value})
    parameters = strategy.clamp(setting, steps=costs.steps)
    key = least_time(strategy.cost(parameters, costs=costs))
    return Answer(
        strategy=strategy,
        parameters=parameters,
        solved_at=costs,
        key=tuple(column[0].item() for column in key),
    )


#: The default number of points of a front, and the largest number that a caller may request.
POINTS, _MOST_POINTS = 400, 10_000
#: The default number of points if steps have caches, which give plans one more parameter.
POINTS_WITH_CACHES = 100
#: Up to this many steps, every point of a front may be listed. Longer sequences would need too much memory.
MOST_EXACT = 100_000
#: The finest resolution of longer sequences.
_FINEST = 0.001


def pareto(
    workload: AnyWorkload,
    profile: AnyProfile,
    *,
    steps: int | None = None,
    points: int | None = None,
    exact: bool = False,
    resolution: float | str | None = None,
    objective: str = "time",
    strategies: Iterable[str] | str | None = None,
    max_overhead: float | str | None = None,
    local_bytes: int | str | None = None,
    headroom: float | str | None = None,
    remote_bytes: int | str | None = None,
    cache: str | None = None,
    effort: str = "quick",
    progress: Progress | None = None,
    executor: Executor | None = None,
    command: str = "ckptplan.pareto",
) -> ParetoFront:
    """Return the plans that no other plan beats in both local memory and time, by ascending local memory.

    The result is a sequence of plans, each made on demand; its columns are arrays of shape (n,).

    Arguments:
        workload: the training job, or its name, or the path of its file.
        profile: the hardware, or its name, or the path of its file.
        steps: T, in place of the workload's T.
        points: the most points, by default 400 (100 if steps have caches): the best plans within the local
            budget, the least and the largest useful budget, and budgets between, evenly spaced in the logarithm
            of memory without resident bytes. The plan of a point also suits every budget up to the next one.
        exact: lists every point of the front, for up to 100,000 steps.
        resolution: lists the points that differ by this share in memory or time, 0.01 or '1%'; 0 is ``exact``.
        objective: what ``best`` optimizes within the budget: 'time', 'memory', or 'balanced' for the knee.
        progress: called with the work done and the total work.
        executor: solves strategies side by side, as in ``sweep``.
        command: recorded in the provenance of the plans.
        strategies, max_overhead, local_bytes, headroom, remote_bytes, effort: as in ``optimize``. The local
            budget applies to ``best`` and ``knee``; it does not limit the front.

    Closed forms are listed completely. ``optimal`` has a schedule for any budget, and a lower bound on the time
    of every other schedule (``least_seconds``). Other solved strategies may have schedules for some budgets
    only.

    Raises InputError, and CkptplanError if a worker of the executor ends three times.
    """
    request = Request.of(
        workload,
        profile,
        steps=steps,
        objective=objective,
        strategies=strategies,
        max_overhead=max_overhead,
        local_bytes=local_bytes,
        headroom=headroom,
        remote_bytes=remote_bytes,
        cache=cache,
        effort=effort,
        command=command,
        progress=progress,
    )
    if sum((points is not None, exact, resolution is not None)) > 1:
        names = f"{Argument('points')}, {Argument('exact', True)} and {Argument('resolution')}"
        raise InputError(f"{names} exclude each other", accepted="one of them")
    question, budgets, fineness = request.question(), None, 0.0
    if exact or resolution is not None:
        if _varies_caches(question):
            raise InputError(
                "cannot list every plan: steps have caches, and each number of caches gives another plan",
                field="exact" if exact else "resolution",
                accepted=f"{Argument('points')}, or {Argument('cache', 'all')}",
            )
        fineness = _read_resolution(
            0.0 if resolution is None else resolution, steps=request.case.workload.steps
        )
    else:
        budgets = _choose_budgets(question, most=_read_points(points, question))
    fronts = trace_fronts(question, resolution=fineness, budgets=budgets, executor=executor)
    return ParetoFront(request, tuple(fronts), resolution=fineness, budgets=budgets)


def _varies_caches(question: Question) -> bool:
    """Return whether plans may keep the caches of some steps only."""
    return bool(question.costs.cache_bytes) and question.goal.cache != "all"


def _read_points(given: object, question: Question) -> int:
    if given is None:
        return POINTS_WITH_CACHES if _varies_caches(question) else POINTS
    if isinstance(given, bool) or not isinstance(given, int) or not 2 <= given <= _MOST_POINTS:
        raise refuse(given, "is not a number of points", field="points", accepted=f"2 to {_MOST_POINTS:,}")
    return given


def _choose_budgets(question: Question, *, most: int) -> Integers | None:
    """Return local budgets for at most ``most`` points; None if all levels of memory are no more than that."""
    costs = question.costs
    resident = costs.resident_bytes
    unit = math.gcd(costs.state_bytes, costs.tape_bytes, costs.chunk_bytes)
    if not _varies_caches(question) and costs.steps * costs.tape_bytes + costs.chunk_bytes <= most * unit:
        return None
    low, high = question.find_local_ends()
    budget = question.goal.local_bytes
    included = [low, high] if budget is None or not low < budget < high else [low, budget, high]
    sizes = np.geomspace(max(1, low - resident), high - resident, most - len(included) + 2)
    return np.unique(np.concatenate([included, resident + sizes[1:-1].astype(np.int64)]))


def _read_resolution(given: float | str, *, steps: int) -> float:
    value = read_argument("resolution", parse_fraction, given)
    least = 0.0 if steps <= MOST_EXACT else _FINEST
    if not least <= value <= 0.5:
        raise InputError(
            f"{given} is too fine for {steps:,} steps" if value < least else f"{given} is out of range",
            field="resolution",
            value=given,
            accepted=f"a share from {least:g} to 0.5, as 0.01 or '1%'",
        )
    return value


class ParetoFront(DrawnOnAxes, Sequence[Plan]):
    """The plans that no strategy beats in both local memory and time: a sequence of plans, made on demand."""

    def __init__(
        self,
        request: Request,
        fronts: tuple[StrategyFront, ...],
        *,
        resolution: float,
        budgets: Integers | None = None,
        bounds: LowerBounds | None = None,
    ) -> None:
        # The goal of the request names all compared strategies, even if this front is of one strategy only.
        self._request = request
        self._question = request.question().replace(strategies=tuple(front.strategy.name for front in fronts))
        self._fronts = fronts
        self._plans: dict[ObjectiveName, Plan] = {}
        self._together, self._origins = merge_fronts(front.front for front in fronts)
        self._budgets = budgets
        if budgets is not None:
            # Several strategies may have a plan between two budgets. Keep the best plan within each budget.
            places = np.unique(np.searchsorted(self._together.local_peak_bytes, budgets, side="right") - 1)
            places = places[places >= 0]
            self._together, self._origins = self._together.take(places), self._origins[:, places]
        #: Lower bounds on the time of every schedule; empty unless ``optimal`` is compared.
        self.bounds: LowerBounds = bounds or next(
            (front.bounds for front in fronts if len(front.bounds)), NO_BOUNDS
        )
        #: The share of memory or time by which an omitted point may differ from a listed one; 0 if none may.
        self.resolution = max([resolution, *(front.front.resolution for front in fronts)])

    def __len__(self) -> int:
        return len(self._together)

    def __repr__(self) -> str:
        """Return the workload, the profile and the range of memory in one line."""
        case, local = self._request.case, self.local_peak_bytes
        memory = find_memory(self.budget_bytes, self.headroom, machine=self.profile.local_bytes)
        with sizes_like(memory):
            extent = f", {format_bytes(local[0])} to {format_bytes(local[-1])} local" if len(self) else ""
        return f"<ParetoFront of {format_things(len(self), 'plan')}: {case}{extent}>"

    @overload
    def __getitem__(self, index: int) -> Plan: ...
    @overload
    def __getitem__(self, index: slice) -> list[Plan]: ...
    def __getitem__(self, index: int | slice) -> Plan | list[Plan]:
        """Return a plan, or a list of plans for a slice. Raises IndexError."""
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
        """The training job."""
        return self._request.case.workload

    @property
    def profile(self) -> HardwareProfile:
        """The hardware."""
        return self._request.case.profile

    @property
    def budget_bytes(self) -> int:
        """The local budget of one unit, which applies to ``best`` and ``knee``."""
        return self._request.goal.local_bytes or self.profile.local_budget_bytes

    @property
    def headroom(self) -> float:
        """The share of local memory that the budget leaves free."""
        return self._request.goal.headroom

    @property
    def resident_bytes(self) -> int:
        """The bytes in local memory of one unit that do not depend on the schedule."""
        return self._question.costs.resident_bytes

    @property
    def base_seconds(self) -> float:
        """The seconds of plain backpropagation, which overhead is relative to."""
        return self._question.base_seconds

    @property
    def local_peak_bytes(self) -> Integers:
        """Peak bytes of local memory on one unit, shape (n,), ascending."""
        return self._together.local_peak_bytes

    @property
    def schedule_bytes(self) -> Integers:
        """The local bytes of each point without the resident bytes, at least 1, shape (n,)."""
        return np.maximum(1, self.local_peak_bytes - self.resident_bytes)

    @property
    def seconds(self) -> npt.NDArray[np.float64]:
        """Seconds of one batch, shape (n,), descending."""
        return self._together.seconds

    @property
    def overhead(self) -> npt.NDArray[np.float64]:
        """The seconds of each point divided by base's seconds, minus 1, shape (n,)."""
        added: npt.NDArray[np.float64] = np.maximum(0.0, overhead(self.seconds, self.base_seconds))
        return added

    @cached_property
    def least_seconds(self) -> npt.NDArray[np.float64]:
        """Lower bound on the seconds of any schedule within each point's memory, shape (n,); 0 if unknown."""
        return np.minimum(self.bounds.within(self.local_peak_bytes), self.seconds)

    @property
    def remote_peak_bytes(self) -> Integers:
        """Peak bytes of remote memory, all units together, shape (n,)."""
        return self._together.remote_peak_bytes

    @cached_property
    def strategies(self) -> tuple[str, ...]:
        """The strategy of each point."""
        names = [front.strategy.name for front in self._fronts]
        return tuple(names[which] for which in self._origins[0].tolist())

    @property
    def parameters(self) -> Mapping[str, Integers]:
        """Parameter name -> column of shape (n,), 0 where a point's strategy lacks the parameter."""
        return pick_columns([front.front.parameters for front in self._fronts], self._origins)

    @cached_property
    def by_strategy(self) -> Mapping[str, ParetoFront]:
        """The front of each strategy that fits at all, by name."""
        return {
            front.strategy.name: ParetoFront(
                self._request,
                (front,),
                resolution=front.front.resolution,
                budgets=self._budgets,
                bounds=self.bounds,
            )
            for front in self._fronts
            if len(front.front)
        }

    def places_of(self, strategy: str) -> Integers:
        """Return the indices of the points of a strategy's own front that are on this front."""
        which = [front.strategy.name for front in self._fronts].index(strategy)
        places: Integers = self._origins[1][self._origins[0] == which]
        return places

    @property
    def exact(self) -> bool:
        """Whether every point of every strategy's front is included."""
        return all(front.exact for front in self._fronts)

    @property
    def proves_bounds(self) -> bool:
        """Whether one of the strategies proves lower bounds on the time of every schedule."""
        return any(len(front.bounds) for front in self._fronts)

    @property
    def at_budgets(self) -> bool:
        """Whether the points are the best plans within chosen budgets, so that points between are omitted."""
        return self._budgets is not None

    @cached_property
    def may_gain(self) -> npt.NDArray[np.float64]:
        """Largest share of time that an omitted plan between this one and the next may save, shape (n,).

        0 where no omitted plan can be in between, and 0 everywhere if every point is listed.
        """
        if not self.at_budgets or not len(self):
            return np.zeros(len(self))
        gain: npt.NDArray[np.float64] = np.append(1 - self.seconds[1:] / self.seconds[:-1], 0.0)
        unit = math.gcd(self._question.costs.state_bytes, self._question.costs.tape_bytes)
        has_gap = np.append(np.diff(self.local_peak_bytes), 0) > unit
        return np.where(has_gap, gain, 0.0)

    @property
    def varies_caches(self) -> bool:
        """Whether plans may keep the caches of only part of the steps, so that not every plan can be listed."""
        return _varies_caches(self._question)

    @property
    def told_apart(self) -> float:
        """The share of time below which two plans count as equally fast."""
        return self._question.resolution

    def place_within(self, local_bytes: int) -> int | None:
        """Return the index of the fastest listed plan within a budget of one unit, None if none fits."""
        place = int(np.searchsorted(self.local_peak_bytes, local_bytes, side="right")) - 1
        return place if place >= 0 else None

    @property
    def knee_place(self) -> int | None:
        """The index of the knee within the budget: the listed point farthest below the chord of the front."""
        last = self.place_within(self.budget_bytes)
        if not last:
            return last
        front = self._together.take(np.arange(last + 1))
        knee = Knee(
            fast_seconds=float(front.seconds[-1]),
            fast_bytes=int(front.local_peak_bytes[-1]),
            small_seconds=float(front.seconds[0]),
            small_bytes=int(front.local_peak_bytes[0]),
        )
        # Of equal points, take the fastest, which is the last.
        return int(last - np.argmin(knee(front)[0][::-1]))

    @property
    def knee(self) -> Plan:
        """The plan to run at the knee within the budget, as ``optimize(objective='balanced')``.

        If the balance of several plans is equal within the resolution, this is the simplest of them, which need
        not be the plan at ``knee_place``. Raises Infeasible.
        """
        return self._find_best("balanced")

    def at(self, local_bytes: int | str) -> Plan:
        """Return the plan to run within a budget of one unit, as ``optimize``.

        If several plans are equally fast within the resolution, this is the simplest of them, which need not be
        on the front. Raises InputError and Infeasible.
        """
        return self._search(self._within(read_argument("local_bytes", parse_bytes, local_bytes)))

    def lacks(self, local_bytes: int | str) -> Infeasible | None:
        """Return why no plan fits a budget of one unit, None if a plan fits. Raises InputError."""
        budget = read_argument("local_bytes", parse_bytes, local_bytes)
        if self.place_within(budget) is not None:
            return None
        question = self._question.replace(local_bytes=budget, headroom=0.0)
        if question.fits():
            return None
        names = ", ".join(self.by_strategy) or "no strategy"
        several = len(self.by_strategy) > 1
        return find_reason(question, subject=f"{names} {'do' if several else 'does'} not fit")

    @property
    def best(self) -> Plan:
        """The plan to run within the budget, as ``optimize``. Raises Infeasible."""
        return self._find_best(self._request.goal.objective)

    def _plan(self, place: int) -> Plan:
        """Return the plan of a point, whose budget is the memory that the plan needs."""
        which, index = self._origins[:, place].tolist()
        answer = self._fronts[which].answer(index)
        request = self._within(int(self.local_peak_bytes[place]))
        return request.plan(answer, own_budget=True)

    def _find_best(self, objective: ObjectiveName) -> Plan:
        """Return the plan to run for an objective. It is searched for only once. Raises Infeasible."""
        if objective not in self._plans:
            self._plans[objective] = self._search(self._request.replace(objective=objective))
        return self._plans[objective]

    def _search(self, request: Request) -> Plan:
        """Return the best plan of the strategies of this front within the budget of a request."""
        strategies = self._question.goal.strategies
        return rank_strategies(request, strategies=strategies, only_best=True).best()

    def _within(self, budget: int) -> Request:
        """Return the request with an explicit local budget. No headroom is subtracted from it."""
        return self._request.replace(local_bytes=budget, headroom=0.0)
