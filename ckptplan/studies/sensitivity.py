"""Implements ``sensitivity``: how the best plan and its time depend on each input.

Each input is scaled alone. For each factor, the job is planned again, and the new plan is compared with the
unchanged original plan.

Error bars are those of a plan's time, and of its lead over other plans, for uncertain times. Each time varies
independently, uniformly in the logarithm, between its value over (1 + share) and its value times
(1 + share). In each sample, every strategy is compared at its best setting for that sample.
"""

from __future__ import annotations

import dataclasses
import math
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import numpy.typing as npt

from ckptplan.cost.arrays import COUNT_ROUNDING, SUM_ROUNDING
from ckptplan.cost.case import Case
from ckptplan.errors import InputError, quote_value
from ckptplan.model.goal import Goal, Model
from ckptplan.model.profile import HardwareProfile
from ckptplan.model.progress import Progress, tell
from ckptplan.model.record import Parameters
from ckptplan.model.step_costs import StepCosts
from ckptplan.model.workload import ACTION_TIMES, Workload
from ckptplan.planning.ranking import explain_infeasible
from ckptplan.planning.request import Request, check_kind, replace_memory
from ckptplan.search.answer import Answer
from ckptplan.search.objective import least_time
from ckptplan.search.preference import Preference
from ckptplan.search.question import Question
from ckptplan.strategies.protocol import Strategy
from ckptplan.studies.axes import Axis, Value, find_axis
from ckptplan.studies.fixed_plan import FixedPlan
from ckptplan.units import parse_fraction

SAMPLES, SEED = 300, 20241216
#: A strategy must be faster by more than this share to count as faster, whatever the resolution.
_TIE = 1e-9
#: The times that are single numbers of the step costs.
_TIMES = (
    "forward_seconds",
    "backward_seconds",
    "recompute_seconds",
    "record_overhead_seconds",
    "write_seconds",
    "read_seconds",
)


@dataclass(frozen=True, kw_only=True)
class ErrorBars:
    """The uncertainty of a plan if every time is known to within ``share``.

    90 % of the samples are between ``low_seconds`` and ``high_seconds``. ``better_chance`` is the share of
    samples in which another strategy is faster than any setting of the plan's strategy, by more than the
    resolution of the question; ``better`` is this share by the strategy to choose. ``regret`` is the 95 %
    quantile of the plan's excess time, as a share of the least time.
    """

    share: float
    samples: int
    seed: int
    low_seconds: float
    high_seconds: float
    better_chance: float
    better: Mapping[str, float]
    regret: float


def compute_error_bars(
    question: Question,
    kept: FixedPlan,
    *,
    profile: HardwareProfile,
    share: float,
    samples: int = SAMPLES,
    seed: int = SEED,
    on_sample: Callable[[], None] | None = None,
) -> ErrorBars:
    """Return the error bars of a plan.

    Arguments:
        question: the question that the plan answers.
        kept: the plan.
        profile: the hardware, for T_s and the latency.
        share: how far each time may be off, e.g. 0.1.
        samples: the number of samples.
        seed: the seed of the random numbers.
        on_sample: called after each sample.
    """
    columns = _vary_times(question.costs, profile, share=share, samples=samples, seed=seed)
    costs = [
        StepCosts(**{**dict(question.costs), **{name: float(column[i]) for name, column in columns.items()}})
        for i in range(samples)
    ]
    asked = question.replace(strategies=_select_contenders(question, share))
    own = asked.for_strategy(kept.strategy)
    known = _KnownSettings(columns=columns, costs=costs, model=kept.model)
    ours = known.add(kept)
    closest = 1 - max(question.resolution, _TIE)
    best = np.empty(samples)
    better: Counter[str] = Counter()
    for sample in range(samples):
        strategy, best[sample] = known.find_quickest(asked, sample)
        # The search attributes a tie to one strategy, so the plan's own strategy is searched separately.
        if strategy is not kept.strategy and known.find_quickest(own, sample)[1] * closest > best[sample]:
            better[known.choose(asked, sample, enough=float(best[sample])).name] += 1
        if on_sample is not None:
            on_sample()
    return ErrorBars(
        share=share,
        samples=samples,
        seed=seed,
        low_seconds=float(np.quantile(ours, 0.05)),
        high_seconds=float(np.quantile(ours, 0.95)),
        better_chance=better.total() / samples,
        better={name: count / samples for name, count in better.most_common()},
        regret=max(0.0, float(np.quantile(ours / best - 1, 0.95))),
    )


@dataclass(frozen=True, kw_only=True)
class _KnownSettings:
    """The settings that were fastest in some sample, with their seconds in all; they speed up searches."""

    columns: Mapping[str, npt.NDArray[Any]]
    costs: list[StepCosts]
    model: Model
    plans: list[FixedPlan] = field(default_factory=list)
    seconds: list[npt.NDArray[Any]] = field(default_factory=list)

    def add(self, plan: FixedPlan) -> npt.NDArray[Any]:
        """Remember a plan, and return its seconds in each sample, shape (samples,)."""
        self.plans.append(plan)
        self.seconds.append(plan.seconds_at(self.columns, self.costs))
        return self.seconds[-1]

    def find_quickest(self, asked: Question, sample: int) -> tuple[Strategy, float]:
        """Return the fastest of the question's strategies in a sample, and its seconds.

        At least one of these strategies must have a known plan.
        """
        places = [place for place, plan in enumerate(self.plans) if plan.strategy in asked.strategies]
        first = min(places, key=lambda place: self.seconds[place][sample])
        least = float(self.seconds[first][sample])
        answer = asked.replace(costs=self.costs[sample]).faster_than(least * (1 - SUM_ROUNDING))
        if answer is None:
            return self.plans[first].strategy, least
        return answer.strategy, float(self.add(FixedPlan(answer=answer, model=self.model))[sample])

    def choose(self, asked: Question, sample: int, *, enough: float) -> Strategy:
        """Return the strategy to choose in a sample, whose least time is ``enough``."""
        answer = asked.replace(costs=self.costs[sample]).best(enough=enough * (1 + _TIE))
        if answer is None:
            raise RuntimeError("the question has an answer, since a time is known to be attainable")
        return answer.strategy


def _select_contenders(question: Question, share: float) -> tuple[str, ...]:
    """Return the strategies that may be the best one in some sample.

    All have base's time in common. The time that a strategy adds to it is a sum of times, so in every sample it
    is within a factor (1 + share) of its nominal value. The best one need not be the fastest, but it takes at
    most a time that the resolution determines (``Preference.widen``). If transfers overlap compute, base's time
    hides some of it, and any strategy may win.
    """
    if question.costs.overlaps_compute:
        return question.goal.strategies
    added = {
        answer.strategy.name: answer.key[0] - question.base_seconds
        for answer in question.replace(objective="time").rank()
    }
    least = min(added.values()) * (1 + share)
    longest = question.base_seconds * (1 + share) + least
    preference = Preference(objective=least_time, resolution=question.resolution)
    wider = preference.widen(longest, strategies=len(added)) - longest
    most = (least + wider) * (1 + share) + SUM_ROUNDING * question.base_seconds
    return tuple(name for name, seconds in added.items() if seconds <= most)


def _vary_times(
    costs: StepCosts, profile: HardwareProfile, *, share: float, samples: int, seed: int
) -> dict[str, npt.NDArray[Any]]:
    """Return samples of the times of the elementary actions, shape (samples,) each.

    T_s and the latency vary independently.
    """
    random = np.random.default_rng(seed)

    def times(value: float) -> npt.NDArray[Any]:
        return value * np.exp(random.uniform(-math.log1p(share), math.log1p(share), samples))

    columns = {name: times(getattr(costs, name)) for name in _TIMES}
    columns["message_seconds"] = times(profile.synchronisation_seconds) + times(profile.latency_seconds)
    columns.update({name: times(getattr(costs, name)) for name in ACTION_TIMES})
    return columns


#: Inputs that are listed only if they are not zero.
_OPTIONAL = tuple(name.replace("_", "-") for name in ACTION_TIMES)
#: The inputs that are varied, as axes of a sweep.
INPUTS = (
    "bandwidth",
    "latency",
    "synchronisation",
    "transfer-seconds",
    "recompute-ratio",
    "forward-seconds",
    "backward-seconds",
    "local-bytes",
    "state-bytes",
    "tape-bytes",
    *_OPTIONAL,
)
FACTORS = (0.5, 0.8, 1.25, 2.0)
#: The range of factors in which break-evens are searched, and the number of grid steps in each direction.
_LEAST, _MOST, _STEPS = 0.25, 4.0, 10
#: The precision of a break-even, as a ratio of factors.
_CLOSE = 1.001
#: The work for an input, in samples of the error bars.
_WORK = 30


@dataclass(frozen=True, kw_only=True)
class Best:
    """A best plan: its strategy, its parameters and its time in seconds."""

    strategy: str
    parameters: Parameters
    seconds: float


@dataclass(frozen=True, kw_only=True)
class Replanned:
    """The result for one input at ``factor`` times its value.

    ``values`` has an entry for each field that the input sets (a bandwidth has one in each direction). ``best``
    is None if nothing fits. ``kept_seconds`` is the time of the plan for the unchanged inputs, and
    ``kept_fits`` says whether that plan keeps the budgets.
    """

    factor: float
    values: tuple[Value, ...]
    best: Best | None
    kept_seconds: float
    kept_fits: bool


@dataclass(frozen=True, kw_only=True)
class BreakEven:
    """A factor at which the best strategy changes: the best one ``below`` it, and ``above`` it.

    None means that nothing fits. The factor is known to 0.1 %.
    """

    factor: float
    values: tuple[Value, ...]
    below: str | None
    above: str | None


@dataclass(frozen=True, kw_only=True)
class Influence:
    """The influence of one input; ``no_effect`` is the reason if scaling it changes nothing."""

    name: str
    values: tuple[Value, ...]
    no_effect: str | None
    points: tuple[Replanned, ...] = ()
    break_evens: tuple[BreakEven, ...] = ()

    @property
    def axis(self) -> Axis:
        """The input as an axis, which knows its unit."""
        return find_axis(self.name)


@dataclass(frozen=True, kw_only=True)
class Sensitivity:
    """The best plan for unchanged inputs, the influence of each input, and the plan's error bars."""

    workload: Workload
    profile: HardwareProfile
    goal: Goal
    best: Best
    influences: tuple[Influence, ...]
    #: Whether the best plan moves states to remote memory.
    moves: bool
    error_bars: ErrorBars | None = None


def sensitivity(
    workload: Workload,
    profile: HardwareProfile,
    *,
    strategies: Iterable[str] | None = None,
    model: str = "exact",
    local_bytes: int | str | None = None,
    headroom: float | str | None = None,
    remote_bytes: int | str | None = None,
    uncertainty: float | str | None = None,
    effort: str = "quick",
    progress: Progress | None = None,
    command: str = "ckptplan.sensitivity",
) -> Sensitivity:
    """Return how the best plan and its time change with each input (docs/sensitivity.md).

    The objective is time.

    Arguments:
        workload: the training job.
        profile: the hardware.
        strategies: names or groups; None means 'closed'.
        model: 'exact', or 'paper' for the printed equations.
        local_bytes: replaces the profile's local memory of one unit.
        headroom: share of local memory to leave free, as 0.1 or '10%'; replaces the profile's. A budget that
            ``local_bytes`` names has none unless it is given here.
        remote_bytes: replaces the profile's remote memory in total.
        uncertainty: if given, as 0.1 or '10%' and at most 1, the result has error bars: all times vary at once
            by up to this share.
        effort: 'quick' or 'thorough', as in ``optimize``.
        progress: called with the work done and the total work.
        command: recorded in the provenance.

    Raises InputError, and Infeasible if nothing fits the unchanged inputs.
    """
    check_kind(workload, Workload, name="workload", load="load_workload")
    check_kind(profile, HardwareProfile, name="profile", load="load_profile")
    share = None if uncertainty is None else _read_share(uncertainty)
    budgets: Mapping[str, Any] = {
        "local_bytes": local_bytes,
        "headroom": headroom,
        "remote_bytes": remote_bytes,
    }
    machine = replace_memory(profile, **budgets)
    request = Request.of(
        workload,
        machine,
        command=command,
        unless_named="closed",
        strategies=strategies,
        model=model,
        effort=effort,
    )
    study = _Study(request=dataclasses.replace(request, keeps_best=False))
    goal = request.goal.model_copy(update={"local_bytes": None, "headroom": 0.0, "remote_bytes": None})
    nominal = study.question(study.case).best()
    if nominal is None:
        raise explain_infeasible(
            Request.of(
                workload,
                profile,
                command=command,
                strategies=goal.strategies,
                model=model,
                effort=effort,
                **budgets,
            )
        )
    inputs = [name for name in INPUTS if name not in _OPTIONAL or any(find_axis(name).now(study.case))]
    done = _WorkCounter(progress, total=_WORK * len(inputs) + (SAMPLES if share is not None else 0))
    kept = FixedPlan(answer=nominal, model=goal.model)
    influences = []
    for name in inputs:
        tell(progress, name)
        influences.append(study.measure_influence(find_axis(name), kept))
        done.step(_WORK)
    tell(progress, "error bars")
    return Sensitivity(
        workload=workload,
        profile=machine,
        goal=goal,
        best=_best(nominal),
        influences=tuple(influences),
        moves=nominal.predicted(study.case.costs).messages > 0,
        error_bars=None
        if share is None
        else compute_error_bars(
            study.question(study.case), kept, profile=machine, share=share, on_sample=done.step
        ),
    )


def _read_share(uncertainty: object) -> float:
    """Return the uncertainty of times as a share. Raises InputError."""
    accepted = "a share above 0 and up to 1, as 0.1 or '10%'"
    try:
        share = parse_fraction(uncertainty)
    except InputError as error:
        raise InputError(error.message, field="uncertainty", value=uncertainty, accepted=accepted) from None
    if not 0 < share <= 1:
        raise InputError(
            f"{quote_value(uncertainty)} is out of range",
            field="uncertainty",
            value=uncertainty,
            accepted=accepted,
        )
    return share


class _WorkCounter:
    """Counts completed work and reports it."""

    def __init__(self, progress: Progress | None, *, total: int) -> None:
        self.progress, self.done, self.total = progress, 0, total

    def step(self, work: int = 1) -> None:
        self.done += work
        if self.progress is not None:
            self.progress(self.done, self.total)


def _best(answer: Answer) -> Best:
    return Best(strategy=answer.strategy.name, parameters=answer.parameters, seconds=answer.key[0])


@dataclass(frozen=True, kw_only=True)
class _Study:
    """A request, with the answers found so far."""

    request: Request
    #: Answers by the costs and budget of their questions.
    known: dict[Any, Answer | None] = field(default_factory=dict)

    @property
    def case(self) -> Case:
        return self.request.case

    def best(
        self, question: Question, *, near: FixedPlan | None, loyal_to: Iterable[str] = ()
    ) -> Answer | None:
        """Return the best answer, or one that cannot be told from it, of the first strategy in ``loyal_to``.

        ``near`` is the plan of a similar case, which shortens the search.
        """
        best = self._search(question, near)
        if best is None:
            return None
        for name in loyal_to:
            if name == best.strategy.name:
                break
            most = best.key[0] * (1 + COUNT_ROUNDING) / (1 - question.resolution)
            alone = question.replace(strategies=(name,)).best(enough=most)
            if alone is not None and alone.key[0] <= most:
                return alone
        return best

    def _search(self, question: Question, near: FixedPlan | None) -> Answer | None:
        key = (tuple(dict(question.costs).values()), question.budget)
        if key not in self.known:
            enough = None if near is None else near.attainable_seconds(question.costs, question.budget)
            self.known[key] = question.best(enough=enough)
        return self.known[key]

    def question(self, case: Case) -> Question:
        return self.request.for_case(case).question()

    def measure_influence(self, axis: Axis, kept: FixedPlan) -> Influence:
        """Return the influence of one input."""
        values = axis.now(self.case)
        reason = self._explain_no_effect(axis, values)
        if reason is not None:
            return Influence(name=axis.name, values=values, no_effect=reason)
        return Influence(
            name=axis.name,
            values=values,
            no_effect=None,
            points=tuple(self._replan(axis, factor, kept) for factor in FACTORS),
            break_evens=tuple(sorted(self._find_break_evens(axis, kept), key=lambda each: each.factor)),
        )

    def _explain_no_effect(self, axis: Axis, values: tuple[Value, ...]) -> str | None:
        """Return why scaling an input changes nothing, None if it may change something."""
        if not any(values):
            return "is zero, which no factor changes"
        if axis.name == "bandwidth" and axis.scale(self.case, 2).costs == self.case.costs:
            return "the profile pins the time of a transfer"
        return None

    def _replan(self, axis: Axis, factor: float, kept: FixedPlan) -> Replanned:
        question = self.question(axis.scale(self.case, factor))
        answer = self.best(question, near=kept)
        seconds, fits = kept.at(question.costs, question.budget)
        return Replanned(
            factor=factor,
            values=tuple(axis.scale_values(self.case, factor)),
            best=None if answer is None else _best(answer),
            kept_seconds=seconds,
            kept_fits=fits,
        )

    def _at(self, axis: Axis, factor: float, *, near: _Scanned, far: _Scanned | None = None) -> _Scanned:
        """Return the best plan at a factor; a neighbour's strategy stays if no other is faster beyond doubt."""
        known = [point.strategy for point in (near, far) if point is not None and point.strategy is not None]
        answer = self.best(
            self.question(axis.scale(self.case, factor)), near=near.plan, loyal_to=dict.fromkeys(known)
        )
        plan = None if answer is None else FixedPlan(answer=answer, model=self.request.goal.model)
        return _Scanned(factor=factor, plan=plan)

    def _find_break_evens(self, axis: Axis, kept: FixedPlan) -> Iterator[BreakEven]:
        """Scan a grid of factors outwards from 1, and bisect wherever two neighbours differ."""
        for end in (_LEAST, _MOST):
            near = _Scanned(factor=1.0, plan=kept)
            for step in range(1, _STEPS + 1):
                far = self._at(axis, end ** (step / _STEPS), near=near)
                yield from self._bisect(axis, near, far)
                near = far

    def _bisect(self, axis: Axis, near: _Scanned, far: _Scanned) -> Iterator[BreakEven]:
        """Yield each change of the best strategy between two factors, by bisection."""
        if near.strategy == far.strategy:
            return
        factor = math.sqrt(near.factor * far.factor)
        low, high = sorted((near, far), key=lambda point: point.factor)
        if high.factor <= low.factor * _CLOSE:
            yield BreakEven(
                factor=factor,
                values=tuple(axis.scale_values(self.case, factor)),
                below=low.strategy,
                above=high.strategy,
            )
            return
        middle = self._at(axis, factor, near=near, far=far)
        yield from self._bisect(axis, near, middle)
        yield from self._bisect(axis, middle, far)


@dataclass(frozen=True, kw_only=True)
class _Scanned:
    """The best plan at a factor, None if nothing fits."""

    factor: float
    plan: FixedPlan | None

    @property
    def strategy(self) -> str | None:
        return None if self.plan is None else self.plan.strategy.name
