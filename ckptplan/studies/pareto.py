"""Implements ``pareto``: the front of local memory and time, for each strategy and for all together.

Closed forms are traced completely, then those that are solved.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Iterable, Mapping, Sequence
from concurrent.futures import Executor
from functools import cached_property, partial
from itertools import chain, groupby
from typing import Unpack, overload

import numpy as np
import numpy.typing as npt

from ckptplan.cost.arrays import Integers
from ckptplan.cost.exact import Cost, overhead
from ckptplan.errors import Infeasible, InputError
from ckptplan.model.budget import Budget
from ckptplan.model.display import DrawnOnAxes
from ckptplan.model.goal import ObjectiveName
from ckptplan.model.plan import Plan
from ckptplan.model.profile import HardwareProfile
from ckptplan.model.progress import Progress, StagedProgress
from ckptplan.model.record import Parameters
from ckptplan.model.step_costs import StepCosts
from ckptplan.model.workload import Workload
from ckptplan.planning.optimize import Ranking, rank_strategies
from ckptplan.planning.request import LimitWishes, Request, read_argument
from ckptplan.search.objective import Knee, least_time
from ckptplan.search.question import Question, find_reason, order_of_search
from ckptplan.search.trace_closed import COARSE, merge_fronts, trace_front
from ckptplan.search.trace_solved import NO_BOUNDS, LowerBounds, StrategyFront, trace_solved_front
from ckptplan.strategies.adopted import adopt_answer, adopt_columns, is_adoptable
from ckptplan.strategies.answer import Answer
from ckptplan.strategies.closed_form import ClosedForm
from ckptplan.strategies.protocol import Columns, Strategy
from ckptplan.strategies.registry import select_strategies
from ckptplan.strategies.solved import Solved
from ckptplan.studies.workers import map_in_order
from ckptplan.units import parse_bytes, parse_fraction


def trace_fronts(
    question: Question, *, resolution: float, executor: Executor | None = None
) -> list[StrategyFront]:
    """Return the front of each strategy of a question, in the question's order; an executor finds solved ones.

    A strategy that adopts the schedules of others comes last, and takes over whatever any of them finds: so no
    strategy beats it. It also adopts the strategies that are compared by default, asked for or not.
    """
    adopting = any(one.adopts_others for one in question.strategies)
    others = [one for one in select_strategies(None) if adopting and one not in question.strategies]
    traced = sorted([*question.strategies, *others], key=order_of_search)
    solved = [one for one in traced if isinstance(one, Solved)]
    fronts: dict[Strategy, StrategyFront] = {
        one: _trace_closed_form(one, question, resolution=resolution)
        for one in traced
        if isinstance(one, ClosedForm)
    }
    stages = StagedProgress(question.progress, stages=len(solved))
    watched = question.replace(progress=None if question.progress is None else stages.report_solve)
    for adopts, some in groupby(solved, key=lambda one: one.adopts_others):
        # Those that adopt come last, and here, where the others' fronts are.
        sources = [front for one, front in fronts.items() if adopts and is_adoptable(one)]
        asked = {one: watched.for_strategy(one) for one in some}
        found = map_in_order(
            partial(_trace_solved, sources=sources),
            asked.values(),
            executor=None if adopts else executor,
            name=lambda alone: f"the front of {alone.goal.strategies[0]}",
        )
        for strategy in asked:
            stages.begin_next(strategy.name)
            fronts[strategy] = next(found)
    return [fronts[strategy] for strategy in question.strategies]


def _trace_closed_form(strategy: ClosedForm, question: Question, *, resolution: float) -> StrategyFront:
    limits = dataclasses.replace(question.limits, budget=Budget(remote_bytes=question.goal.remote_bytes))
    front = trace_front(strategy, costs=question.costs, limits=limits, resolution=resolution)
    # Fronts may have millions of points.
    front = dataclasses.replace(
        front, parameters={name: _shorten(one) for name, one in front.parameters.items()}
    )
    return StrategyFront(
        strategy=strategy,
        front=front,
        answer=partial(_answer_closed_form, strategy, front.parameters, question.costs),
        exact=not front.resolution,
    )


def _shorten(column: Integers) -> Integers:
    """Return integers of 32 bits where they fit."""
    fits = not len(column) or int(column.max()) < 2**31
    return column.astype(np.int32) if fits else column


def _answer_closed_form(strategy: ClosedForm, columns: Columns, costs: StepCosts, index: int) -> Answer:
    parameters = Parameters({name: int(column[index]) for name, column in columns.items()})
    key = least_time(strategy.cost(parameters, costs=costs))
    return Answer(
        strategy=strategy,
        parameters=parameters,
        solved_at=costs,
        regular=strategy.regular(parameters, steps=costs.steps),
        key=tuple(column[0].item() for column in key),
    )


def _trace_solved(question: Question, sources: Sequence[StrategyFront]) -> StrategyFront:
    """Return the front of the only strategy, which is solved, with the points of sources that it adopts."""
    known = merge_fronts(source.front for source in sources)[0] if sources else None
    own = trace_solved_front(question, known=known)
    if not sources or own.exact:
        return own
    together = [own, *sources]
    merged, origins = merge_fronts(one.front for one in together)
    columns = [
        adopt_columns(one.front.parameters, count=len(one.front), costs=question.costs)
        if one.strategy.is_closed_form
        else one.front.parameters
        for one in together
    ]
    front = dataclasses.replace(
        merged,
        parameters=_pick_columns(columns, origins, names=own.strategy.parameter_names),
        resolution=max(one.front.resolution for one in together),
    )
    answer = partial(
        _answer_adopted,
        strategy=own.strategy,
        sources=together,
        origins=origins,
        bounds=own.bounds,
        costs=question.costs,
    )
    return dataclasses.replace(own, front=front, answer=answer)


def _pick_columns(sources: Sequence[Columns], origins: Integers, *, names: Iterable[str]) -> Columns:
    """Return the parameters of points from the columns of their sources, 0 where a source lacks one.

    ``origins`` has shape (2, n): the index of the source of each point, and of the point in it.
    """
    picked = {name: np.zeros(len(origins[0]), dtype=np.int64) for name in names}
    for place, columns in enumerate(sources):
        chosen = origins[0] == place
        for name in picked.keys() & columns.keys():
            picked[name][chosen] = columns[name][origins[1][chosen]]
    return picked


def _answer_adopted(
    index: int,
    *,
    strategy: Strategy,
    sources: Sequence[StrategyFront],
    origins: Integers,
    bounds: LowerBounds,
    costs: StepCosts,
) -> Answer:
    """Return the answer of a point as that of a strategy that adopts others' schedules, with its own proof."""
    which, place = (int(row[index]) for row in origins)
    answer = sources[which].answer(place)
    if sources[which].strategy is strategy:
        return answer
    peak = answer.totals(costs).local_peak_bytes
    least = float(bounds.within(np.array([peak]))[0])
    return adopt_answer(answer, strategy=strategy, least_seconds=least or None)


#: Up to this many steps, every point of the front is listed unless a resolution is given.
MOST_EXACT = 2_000_000
#: The finest resolution of long sequences; a finer one would need too much memory.
_FINEST = 0.0001


def pareto(
    workload: Workload,
    profile: HardwareProfile,
    *,
    resolution: float | str | None = None,
    objective: str = "time",
    progress: Progress | None = None,
    executor: Executor | None = None,
    command: str = "ckptplan.pareto",
    **wishes: Unpack[LimitWishes],
) -> ParetoFront:
    """Return the plans that no other plan beats in both local memory and time, by ascending local memory.

    The result is a sequence of plans, each made on demand; its columns are arrays of shape (n,).

    Arguments:
        workload: the training job.
        profile: the hardware.
        resolution: 0 lists every point, 0.01 those that differ by 1 % in memory or time; None means 0 up to
            2,000,000 steps, else 0.001.
        objective: what ``best`` is chosen for within the budget: 'time', 'memory', or 'balanced' for the knee.
        progress: called with the work done and the total work.
        executor: solves strategies side by side, as in ``sweep``; one that adopts schedules follows here.
        command: recorded in the provenance of the plans.
        wishes: ``strategies``, ``local_bytes``, ``headroom``, ``remote_bytes``, ``max_overhead`` and
            ``effort``, as in ``optimize``. The local budget is the one that ``best`` and ``knee`` keep; it
            does not limit the front.

    Closed forms are listed completely; ``optimal`` has the schedules that it finds for any budget, with a bound
    on what another schedule may gain (``least_seconds``); other solved strategies may have those of some
    budgets only.

    Raises InputError, and CkptplanError if a worker of the executor ends three times.
    """
    request = Request.of(
        workload,
        profile,
        command=command,
        progress=progress,
        objective=objective,
        # Named here, so that it cannot be wished for.
        model="exact",
        **wishes,
    )
    fineness = _read_resolution(resolution, steps=workload.steps)
    fronts = trace_fronts(request.question(), resolution=fineness, executor=executor)
    return ParetoFront(request, tuple(fronts), resolution=fineness)


def _read_resolution(wanted: float | str | None, *, steps: int) -> float:
    if wanted is None:
        return 0.0 if steps <= MOST_EXACT else COARSE
    value = read_argument("resolution", parse_fraction, wanted)
    least = 0.0 if steps <= MOST_EXACT else _FINEST
    if not least <= value <= 0.5:
        raise InputError(
            f"{wanted} is too fine for {steps:,} steps" if value < least else f"{wanted} is out of range",
            field="resolution",
            value=wanted,
            accepted=f"a share from {least:g} to 0.5, as 0.01 or '1%'",
        )
    return value


class ParetoFront(DrawnOnAxes, Sequence[Plan]):
    """Plans that no strategy beats in both local memory and time; columns as arrays, plans on demand."""

    def __init__(
        self,
        request: Request,
        fronts: tuple[StrategyFront, ...],
        *,
        resolution: float,
        bounds: LowerBounds | None = None,
    ) -> None:
        # Its goal names all strategies that were compared, those of other fronts included.
        self._request = request
        self._question = request.question().replace(strategies=tuple(one.strategy.name for one in fronts))
        self._fronts = fronts
        self._plans: dict[ObjectiveName, Plan] = {}
        self._together, self._origins = merge_fronts(one.front for one in fronts)
        #: What no schedule can be faster than; without budgets unless ``optimal`` is compared.
        self.bounds: LowerBounds = bounds or next((one.bounds for one in fronts if len(one.bounds)), NO_BOUNDS)
        #: 0 if every point is listed, else the share by which omitted points may differ.
        self.resolution = max([resolution, *(one.front.resolution for one in fronts)])

    def __len__(self) -> int:
        return len(self._together)

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
        """The local budget of one unit that ``best`` and ``knee`` keep."""
        return self._request.goal.local_bytes or self.profile.local_budget_bytes

    @property
    def headroom(self) -> float:
        """The share of local memory that the budget leaves free."""
        return self._request.goal.headroom

    @property
    def resident_bytes(self) -> int:
        """The bytes that stay in local memory of one unit with any schedule."""
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
        """The local memory of each point beside the resident bytes, at least 1, shape (n,)."""
        return np.maximum(1, self.local_peak_bytes - self.resident_bytes)

    @property
    def seconds(self) -> npt.NDArray[np.float64]:
        """Seconds of one batch, shape (n,), descending."""
        return self._together.seconds

    @property
    def overhead(self) -> npt.NDArray[np.float64]:
        """Seconds over those of base, less one, shape (n,)."""
        added: npt.NDArray[np.float64] = np.maximum(0.0, overhead(self.seconds, self.base_seconds))
        return added

    @cached_property
    def least_seconds(self) -> npt.NDArray[np.float64]:
        """Seconds that no schedule within each point's memory is faster than, shape (n,); 0 if unknown."""
        return np.minimum(self.bounds.within(self.local_peak_bytes), self.seconds)

    @property
    def remote_peak_bytes(self) -> Integers:
        """Peak bytes of remote memory, all units together, shape (n,)."""
        return self._together.remote_peak_bytes

    @cached_property
    def strategies(self) -> tuple[str, ...]:
        """The strategy of each point."""
        names = [one.strategy.name for one in self._fronts]
        return tuple(names[which] for which in self._origins[0].tolist())

    @property
    def parameters(self) -> Mapping[str, Integers]:
        """Parameter name -> column of shape (n,), 0 where a point's strategy lacks the parameter."""
        sources = [one.front.parameters for one in self._fronts]
        return _pick_columns(sources, self._origins, names=dict.fromkeys(chain.from_iterable(sources)))

    @cached_property
    def by_strategy(self) -> Mapping[str, ParetoFront]:
        """The front of each strategy that fits at all, by name."""
        return {
            one.strategy.name: ParetoFront(
                self._request, (one,), resolution=one.front.resolution, bounds=self.bounds
            )
            for one in self._fronts
            if len(one.front)
        }

    def places_of(self, strategy: str) -> Integers:
        """Return the indices of the points of a strategy's own front that are on this front."""
        which = [one.strategy.name for one in self._fronts].index(strategy)
        places: Integers = self._origins[1][self._origins[0] == which]
        return places

    @property
    def exact(self) -> bool:
        """Whether every point of every strategy's front is included."""
        return all(one.exact for one in self._fronts)

    @property
    def proves_bounds(self) -> bool:
        """Whether one of the strategies proves what no schedule can be faster than."""
        return any(len(one.bounds) for one in self._fronts)

    @property
    def told_apart(self) -> float:
        """The share of time below which two plans cannot be told apart."""
        return self._question.resolution

    def place_within(self, local_bytes: int) -> int | None:
        """Return the index of the fastest listed plan within a budget of one unit, None if none fits."""
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
        # Of equal points, take the fastest, which is the last.
        return int(last - np.argmin(share[::-1]))

    @property
    def knee(self) -> Plan:
        """The plan to run at the knee within the budget, as ``optimize(objective='balanced')``.

        It need not be that of ``knee_place``: of plans whose balance cannot be told apart, it is the simplest.
        Raises Infeasible.
        """
        return self._find_best("balanced")

    def at(self, local_bytes: int | str) -> Plan:
        """Return the plan to run within a budget of one unit, as ``optimize``.

        It need not be on the front: of plans whose times cannot be told apart, it is the simplest. Raises
        InputError and Infeasible.
        """
        return self._search(self._within(read_argument("local_bytes", parse_bytes, local_bytes))).best()

    def lacks(self, local_bytes: int | str) -> Infeasible | None:
        """Return why no plan fits a budget of one unit, None if one does. Raises InputError."""
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
        """Return the plan of a point, for the memory that it needs."""
        which, index = self._origins[:, place].tolist()
        answer = self._fronts[which].answer(index)
        own = self._within(int(self.local_peak_bytes[place]))
        return own.plan(answer, own_budget=True)

    def _find_best(self, objective: ObjectiveName) -> Plan:
        """Return the plan to run for an objective, which is searched for once. Raises Infeasible."""
        if objective not in self._plans:
            self._plans[objective] = self._search(self._request.replace(objective=objective)).best()
        return self._plans[objective]

    def _search(self, request: Request) -> Ranking:
        """Search the strategies of this front within the budget of a request."""
        return rank_strategies(request, strategies=self._question.goal.strategies)

    def _within(self, budget: int) -> Request:
        """Return the request with a local budget that was named, so that it has no headroom."""
        return self._request.replace(local_bytes=budget, headroom=0.0)


def spread_places(memory: Integers, most: int) -> Integers:
    """Return at most ``most`` indices of ascending bytes, evenly spaced in their logarithm, with both ends."""
    if len(memory) <= most:
        return np.arange(len(memory))
    logs = np.log(memory)
    # Between equal ends linspace may round to values above them, beyond the last point.
    wanted = np.clip(np.linspace(logs[0], logs[-1], most), logs[0], logs[-1])
    return np.unique(np.searchsorted(logs, wanted))
