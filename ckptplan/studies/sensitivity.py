"""Implements ``sensitivity``: how the best plan and its time depend on each input.

Each input is scaled alone. For each factor, the job is planned again, and the new plan is compared with the
original plan, which stays unchanged (the *kept* plan).

Error bars say how far a plan's time, and its lead over other plans, may be off if the times of a step are
uncertain. Each time varies independently, uniformly in the logarithm, between its value over (1 + share) and
its value times (1 + share). In each sample, every strategy is compared at its best setting for that sample.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping
from concurrent.futures import Executor
from dataclasses import dataclass, field, replace
from fractions import Fraction
from functools import cache, partial
from itertools import takewhile
from typing import TypeAlias

import numpy as np
import numpy.typing as npt

from ckptplan.cost.arrays import COUNT_ROUNDING, SUM_ROUNDING
from ckptplan.cost.case import Case
from ckptplan.cost.exact import cost_of
from ckptplan.errors import InputError, refuse
from ckptplan.model.display import DrawnOnFigure
from ckptplan.model.goal import Goal, Model
from ckptplan.model.plan import Plan
from ckptplan.model.profile import HardwareProfile
from ckptplan.model.progress import Progress, StagedProgress
from ckptplan.model.step_costs import StepCosts
from ckptplan.model.workload import ACTION_TIMES, TIMES, Workload
from ckptplan.planning.request import (
    WHY_LEFT_OUT,
    AnyProfile,
    AnyWorkload,
    Request,
    Wishes,
    ask_within_memory,
    read_argument,
    replace_memory,
)
from ckptplan.planning.suggestions import explain_infeasible
from ckptplan.recursion.tree import read_tree
from ckptplan.schedule.simulator import play
from ckptplan.search.question import Question
from ckptplan.strategies.answer import Answer
from ckptplan.strategies.registry import strategy_of
from ckptplan.studies.axes import Axis, Value, find_axis
from ckptplan.studies.workers import map_in_order
from ckptplan.units import format_seconds, format_things, parse_fraction

#: The sizes that determine the peak of a schedule, beside the resident bytes.
_PEAK_SIZES = (
    "state_bytes",
    "tape_bytes",
    "cache_bytes",
    "chunk_bytes",
    "remote_state_bytes",
    "remote_cache_bytes",
)


def price_kept(kept: Answer, question: Question) -> tuple[float, bool]:
    """Return the seconds of a kept plan at the costs of a question, and whether it fits the budgets there."""
    costs, old = question.costs, kept.solved_at
    if (seconds := _reprice(kept, question)) is not None and kept.solved is not None:
        # The peak at the old sizes: exact for equal sizes, an upper bound for smaller ones.
        local = kept.solved.local_peak_bytes + costs.resident_bytes - old.resident_bytes
        at_most = replace(kept.solved, seconds=seconds, local_peak_bytes=local)
        fits = bool(cost_of(at_most).within(question.budget)[0])
        growths = [getattr(costs, name) - getattr(old, name) for name in _PEAK_SIZES]
        if not any(growths) or (fits and max(growths) <= 0):
            return seconds, fits
    cost = kept.cost(costs, question.goal.model)
    if _outgrows(kept, costs):
        # The chunks grow faster than checkpoints are freed, so the closed form underestimates the peak.
        actions = kept.strategy.actions(kept.parameters, steps=costs.steps)
        cost = replace(cost, local_peak_bytes=np.array([play(actions, costs=costs).local_peak_bytes]))
    return float(cost.seconds[0]), bool(cost.within(question.budget)[0])


def _reprice(kept: Answer, question: Question) -> float | None:
    """Return the seconds of a solved schedule at other costs, None if its counts do not determine them."""
    if kept.solved is None or question.costs.overlaps_compute or question.goal.model != "exact":
        return None
    return float(question.costs.serial_seconds(kept.solved))


def _outgrows(kept: Answer, costs: StepCosts) -> bool:
    """Return whether the chunks of a closed form grow faster than the sizes allow."""
    sizes: Mapping[str, int] = kept.parameters
    if not kept.strategy.is_closed_form or "state_units" not in sizes:
        return False
    allowed = Fraction(costs.state_bytes, costs.tape_bytes)
    return Fraction(sizes["state_units"], sizes["tape_units"]) > allowed


SAMPLES, SEED = 300, 20241216
#: A strategy must be faster by more than this share to count as faster, whatever the resolution.
_TIE = 1e-9


@dataclass(frozen=True, kw_only=True)
class ErrorBars:
    """The uncertainty of a plan's time if every time of a step is known to within ``share``.

    90 % of the samples are between ``low_seconds`` and ``high_seconds``. ``better_chance`` is the share of
    samples in which another strategy is faster than any setting of the plan's strategy, by more than the
    resolution of the question. ``better`` splits this share by the strategy that is best there. ``regret`` is
    the 95 % quantile of the plan's excess time, as a share of the least time.
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
    kept: Answer,
    *,
    profile: HardwareProfile,
    share: float,
    samples: int = SAMPLES,
    seed: int = SEED,
    on_sample: Callable[[int], None] = lambda _: None,
    executor: Executor | None = None,
) -> ErrorBars:
    """Sample uncertain times and return the error bars of a plan.

    Arguments:
        question: the question that the plan answers.
        kept: the plan, whose schedule stays the same in all samples.
        profile: the hardware, for T_s and the latency.
        share: how far each time may be off, e.g. 0.1.
        samples: the number of samples.
        seed: the seed of the random numbers.
        on_sample: called with the number of each sample before its search.
        executor: searches the samples, as in ``sweep``.
    """
    contenders = question.replace(strategies=_select_contenders(question, share))
    varied = _vary_times(question.costs, profile, share=share, samples=samples, seed=seed)
    comparisons = map_in_order(partial(_compare_at, question=contenders, kept=kept), varied, executor=executor)
    kept_seconds, least_seconds = np.empty(samples), np.empty(samples)
    better: Counter[str] = Counter()
    for sample in range(samples):
        on_sample(sample)
        kept_seconds[sample], least_seconds[sample], chosen = next(comparisons)
        if chosen is not None:
            better[chosen] += 1
    return ErrorBars(
        share=share,
        samples=samples,
        seed=seed,
        low_seconds=float(np.quantile(kept_seconds, 0.05)),
        high_seconds=float(np.quantile(kept_seconds, 0.95)),
        better_chance=better.total() / samples,
        better={name: count / samples for name, count in better.most_common()},
        regret=max(0.0, float(np.quantile(kept_seconds / least_seconds - 1, 0.95))),
    )


def _compare_at(costs: StepCosts, *, question: Question, kept: Answer) -> tuple[float, float, str | None]:
    """Return the seconds of the kept plan at other costs, the least seconds, and a faster strategy or None."""
    sampled = question.replace(costs=costs)
    kept_seconds = kept.seconds(costs, sampled.goal.model)
    faster = sampled.faster_than(kept_seconds * (1 - SUM_ROUNDING))
    if faster is None:
        return kept_seconds, kept_seconds, None
    least, told_apart = faster.key[0], 1 - max(question.resolution, _TIE)
    if kept_seconds * told_apart <= least:
        return kept_seconds, least, None
    # The plan's own strategy may have a better setting, unless it is left out.
    best = sampled.for_strategy(kept.strategy).best() if kept.strategy.name in sampled.goal.strategies else None
    if best is not None and best.key[0] * told_apart <= least:
        return kept_seconds, least, None
    chosen = sampled.best() or faster
    return kept_seconds, least, chosen.strategy.name


def _select_contenders(question: Question, share: float) -> tuple[str, ...]:
    """Return the strategies that may be the best one in some sample.

    All strategies share base's time. The time that a strategy adds to it is a sum of times, so in every sample
    it is within a factor (1 + share) of its nominal value. The chosen strategy need not be the fastest, and a
    strategy that is the champion for a while may keep others out, even if it is not chosen in the end. While
    the champions with and without it differ, each further strategy lowers the lesser time of the two by at most
    the resolution rho. So one of n strategies matters only if its time times (1 - rho)^n is at most the least.
    If transfers overlap compute, base's time hides part of the added time, and any strategy may win.
    """
    if question.costs.overlaps_compute:
        return question.goal.strategies
    added = {answer.strategy.name: answer.key[0] - question.base_seconds for answer in question.rank()}
    least = min(added.values()) * (1 + share)
    longest = question.base_seconds * (1 + share) + least
    wider = longest / (1 - question.resolution) ** len(added) * (1 + COUNT_ROUNDING) - longest
    most = (least + wider) * (1 + share) + SUM_ROUNDING * question.base_seconds
    return tuple(name for name, seconds in added.items() if seconds <= most)


def _vary_times(
    costs: StepCosts, profile: HardwareProfile, *, share: float, samples: int, seed: int
) -> list[StepCosts]:
    """Return samples of the costs; T_s and the latency vary independently."""
    random = np.random.default_rng(seed)

    def times(value: float) -> npt.NDArray[np.float64]:
        varied: npt.NDArray[np.float64] = value * np.exp(
            random.uniform(-math.log1p(share), math.log1p(share), samples)
        )
        return varied

    columns = {name: times(getattr(costs, name)) for name in TIMES}
    for direction in ("write_seconds", "read_seconds"):
        # States and caches move at the same rate.
        factors = times(1.0)
        for name in (direction, f"cache_{direction}"):
            columns[name] = factors * getattr(costs, name)
    columns["message_seconds"] = times(profile.synchronisation_seconds) + times(profile.latency_seconds)
    columns.update({name: times(getattr(costs, name)) for name in ACTION_TIMES})
    rows = zip(*(column.tolist() for column in columns.values()), strict=True)
    return [StepCosts(**{**dict(costs), **dict(zip(columns, row, strict=True))}) for row in rows]


#: Inputs that are listed only if they are not zero.
_OPTIONAL = tuple(
    name.replace("_", "-")
    for name in ("cache_bytes", "resident_bytes", "resident_bytes_per_step", "workspace_bytes", *ACTION_TIMES)
)
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
#: The inputs that raise a schedule's peak.
_SIZES = ("state-bytes", "tape-bytes", "cache-bytes")
FACTORS = (0.5, 0.8, 1.25, 2.0)
#: The range of factors searched for break-evens, and the number of grid steps in each direction.
_LEAST, _MOST, _STEPS = 0.25, 4.0, 10
#: The precision of a break-even, as a ratio of factors.
_CLOSE = 1.001
#: The number of samples of error bars that take about as long as the study of one input.
_WORK = 30


@dataclass(frozen=True, kw_only=True)
class Best:
    """A best plan: its strategy, its parameters and its time in seconds."""

    strategy: str
    parameters: Mapping[str, int]
    seconds: float


@dataclass(frozen=True, kw_only=True)
class Replanned:
    """The result for one input at ``factor`` times its value.

    ``values`` has an entry for each field that the input sets (a bandwidth has one in each direction). ``best``
    is None if nothing fits. ``kept_seconds`` is the time of the kept plan, and ``kept_fits`` says whether that
    plan fits the budgets. Changes are shares of the kept plan's time at unchanged inputs.
    """

    factor: float
    values: tuple[Value, ...]
    best: Best | None
    change: float | None
    kept_seconds: float
    kept_change: float
    kept_fits: bool


@dataclass(frozen=True, kw_only=True)
class BreakEven:
    """A factor at which the best strategy changes from ``below`` to ``above`` (None if nothing fits there).

    The factor is known to 0.1 %.
    """

    factor: float
    values: tuple[Value, ...]
    below: str | None
    above: str | None


@dataclass(frozen=True, kw_only=True)
class Influence:
    """The influence of one input; ``no_effect`` is the reason if scaling it changes nothing.

    The input is varied only as far as workload and profile files accept its values. Points beyond are left out,
    and break-evens are searched between the factors ``scanned``.
    """

    name: str
    values: tuple[Value, ...]
    no_effect: str | None
    points: tuple[Replanned, ...] = ()
    break_evens: tuple[BreakEven, ...] = ()
    scanned: tuple[float, float] = (_LEAST, _MOST)

    @property
    def axis(self) -> Axis:
        """The input as an axis, which knows its unit."""
        return find_axis(self.name)


@dataclass(frozen=True, kw_only=True)
class Sensitivity(DrawnOnFigure):
    """The best plan for unchanged inputs, the influence of each input, and the plan's error bars.

    ``best`` is the kept plan: the plan of ``optimize``, or the plan that the caller gave. With each scaled
    input, it is compared with the strategies of ``goal``. ``left_out`` has the other strategies that
    ``optimize`` compares, each with the reason. If there are any, ``best_compared`` is the best plan of the
    strategies of ``goal`` for unchanged inputs, None if none fits.
    """

    workload: Workload
    profile: HardwareProfile
    goal: Goal
    best: Best
    influences: tuple[Influence, ...]
    #: Whether the best plan moves states to remote memory.
    moves: bool
    error_bars: ErrorBars | None = None
    left_out: Mapping[str, str] = field(default_factory=dict)
    best_compared: Best | None = None

    def __repr__(self) -> str:
        """Return the kept plan and the number of inputs in one line."""
        case = Case(workload=self.workload, profile=self.profile)
        best = f"{self.best.strategy}, {format_seconds(self.best.seconds)}"
        return f"<Sensitivity of {best}: {case}, {format_things(len(self.influences), 'input')}>"


#: Closed forms whose searches take as long as the searches of all other closed forms together.
_SLOWEST = ("disk-revolve", "periodic")
_WHY_SLOWEST = "searching them takes as long as all other closed forms together"


def sensitivity(
    workload: AnyWorkload | None = None,
    profile: AnyProfile | None = None,
    *,
    plan: Plan | None = None,
    steps: int | None = None,
    strategies: Iterable[str] | str | None = None,
    model: Model | None = None,
    local_bytes: int | str | None = None,
    headroom: float | str | None = None,
    remote_bytes: int | str | None = None,
    cache: str | None = None,
    effort: str | None = None,
    uncertainty: float | str | None = None,
    progress: Progress | None = None,
    executor: Executor | None = None,
    command: str = "ckptplan.sensitivity",
) -> Sensitivity:
    """Return how the best plan and its time change with each input (docs/trade-offs.md).

    The objective is time.

    Arguments:
        workload: the training job, or its name, or the path of its file.
        profile: the hardware, or its name, or the path of its file.
        plan: a plan to study, in place of a workload and a profile. Its workload, profile, budgets and
            strategies are used, and its schedule is the kept plan.
        steps: T, in place of the workload's T.
        strategies: as in ``optimize``. By default, strategies that take long to search are ``left_out`` where
            inputs are scaled: the solved ones, ``disk-revolve`` and ``periodic``.
        model: 'exact' (the default), or 'paper' for the printed equations.
        local_bytes, headroom, remote_bytes, cache, effort: as in ``optimize``.
        uncertainty: if given, as 0.1 or '10%' and at most 1, the result has error bars: all times vary at once
            by up to this share.
        progress: called with the work done and the total work.
        executor: varies inputs side by side, as in ``sweep``.
        command: recorded in the provenance.

    Raises InputError, Infeasible if nothing fits the unchanged inputs, and CkptplanError if a worker of the
    executor ends three times.
    """
    share = None
    if uncertainty is not None:
        share = read_argument(
            "uncertainty",
            parse_fraction,
            uncertainty,
            allows=lambda share: 0 < share <= 1,
            accepted="a share above 0 and up to 1, as 0.1 or '10%'",
        )
    names_strategies = strategies is not None
    if plan is not None:
        given = {
            "workload": workload,
            "profile": profile,
            "steps": steps,
            "model": model,
            "strategies": strategies,
            "local_bytes": local_bytes,
            "headroom": headroom,
            "remote_bytes": remote_bytes,
            "cache": cache,
            "effort": effort,
        }
        for name, value in given.items():
            if value is not None:
                raise refuse(value, "does not go together with a plan", field=name, accepted="one of them")
        goal, workload, profile = plan.goal, plan.workload, plan.profile
        strategies, model, cache, effort = goal.strategies or None, goal.model, goal.cache, goal.effort
        # If the budget is that of the profile, the headroom stays a part of the profile.
        local_bytes = None if goal.local_bytes == plan.profile.local_budget_bytes else goal.local_bytes
        remote_bytes = "unbounded" if goal.remote_bytes is None else goal.remote_bytes
    wishes = Wishes(
        strategies=strategies,
        model=model or "exact",
        local_bytes=local_bytes,
        headroom=headroom,
        remote_bytes=remote_bytes,
        cache=cache,
        effort=effort or "quick",
    )
    request = Request.of(
        workload,  # type: ignore[arg-type]  # refused there, by name
        profile,  # type: ignore[arg-type]
        steps=steps,
        command=command,
        **wishes,
    )
    case = Case(workload=request.case.workload, profile=replace_memory(request.case.profile, wishes))
    question = ask_within_memory(case, request.goal)
    compared = question if names_strategies else _select_quick(question)
    kept = question.best() if plan is None else _make_answer(plan, question)
    if kept is None:
        raise explain_infeasible(request)
    names = [name for name in question.goal.strategies if name not in compared.goal.strategies]
    best_compared = compared.best() if names else None
    inputs = [name for name in INPUTS if name not in _OPTIONAL or any(find_axis(name).now(case))]
    stages = StagedProgress(progress, stages=len(inputs) + (0 if share is None else SAMPLES // _WORK))
    measured = map_in_order(
        partial(measure_influence, case=case, goal=compared.goal, kept=kept),
        map(find_axis, inputs),
        executor=executor,
        name=lambda axis: f"the influence of {axis.name}",
    )
    influences = []
    for place, name in enumerate(inputs):
        stages.begin(place, name)
        influences.append(next(measured))
    error_bars = None
    if share is not None:
        error_bars = compute_error_bars(
            compared,
            kept,
            profile=case.profile,
            share=share,
            executor=executor,
            on_sample=lambda sample: stages.begin(len(inputs) + sample // _WORK, "error bars"),
        )
    stages.end()
    return Sensitivity(
        workload=case.workload,
        profile=case.profile,
        goal=compared.goal,
        best=_summarise(kept),
        influences=tuple(influences),
        moves=kept.predicted(case.costs).messages > 0,
        error_bars=error_bars,
        left_out={name: _WHY_SLOWEST if name in _SLOWEST else WHY_LEFT_OUT for name in names},
        best_compared=None if best_compared is None else _summarise(best_compared),
    )


def _select_quick(question: Question) -> Question:
    """Return a question for the closed forms that are quick to search, or for all closed forms if none is."""
    closed = question.for_closed_forms()
    quick = tuple(name for name in closed.goal.strategies if name not in _SLOWEST)
    return closed.replace(strategies=quick) if quick else closed


def _make_answer(plan: Plan, question: Question) -> Answer:
    """Convert a plan to an answer to a question, with the schedule of the plan."""
    answer = Answer(
        strategy=strategy_of(plan.strategy),
        parameters=plan.parameters,
        solved_at=question.costs,
        schedule=None if plan.splits is None else read_tree(plan.parameters, plan.splits, steps=plan.steps),
    )
    solved = None if answer.schedule is None else answer.totals(question.costs)
    return replace(answer, solved=solved, key=(answer.seconds(question.costs, question.goal.model),))


def _summarise(answer: Answer) -> Best:
    return Best(strategy=answer.strategy.name, parameters=dict(answer.parameters), seconds=answer.key[0])


#: A factor, and the strategy of the best plan at this factor (None if nothing fits).
_Scanned: TypeAlias = tuple[float, str | None]


def measure_influence(axis: Axis, *, case: Case, goal: Goal, kept: Answer) -> Influence:
    """Return the influence of one input of a case; ``kept`` is the plan for the unchanged inputs."""
    values, profile = axis.now(case), case.profile
    pinned = profile.transfer_write_seconds, profile.transfer_read_seconds
    reason = None
    if not any(values):
        reason = "is zero, which no factor changes"
    elif axis.name == "bandwidth" and None not in pinned:
        reason = "the profile pins the time of a transfer"
    if reason is not None:
        return Influence(name=axis.name, values=values, no_effect=reason)
    scan = _Scan(axis, case=case, goal=goal, kept=kept)
    return Influence(
        name=axis.name,
        values=values,
        no_effect=None,
        points=tuple(map(scan.replan, filter(scan.allows, FACTORS))),
        break_evens=tuple(sorted(scan.find_break_evens(), key=lambda change: change.factor)),
        scanned=(scan.list_factors(_LEAST)[-1], scan.list_factors(_MOST)[-1]),
    )


class _Scan:
    """Plans a job again with one input scaled by factors, and caches the results by factor.

    The best plan comes from the strategies of ``goal``. It is the kept plan if the strategy of that plan is not
    among them and its schedule is still better.
    """

    def __init__(self, axis: Axis, *, case: Case, goal: Goal, kept: Answer) -> None:
        self.axis, self.case, self.goal, self.kept = axis, case, goal, kept
        self.ask, self.price_kept = cache(self._ask), cache(self._price_kept)
        self.find_best, self.stays_best = cache(self._find_best), cache(self._stays_best)
        self.is_ahead = cache(self._is_ahead)
        #: The least factor at which the kept plan is known not to fit.
        self.least_misfit = math.inf
        #: The last best setting of each closed form, which bounds the time at other factors.
        self.settings = dict[str, Answer]()
        if kept.strategy.is_closed_form and kept.strategy.name in goal.strategies:
            self.settings[kept.strategy.name] = kept

    def _ask(self, factor: float) -> Question:
        """Return the question with the input scaled by a factor. Raises InputError."""
        return ask_within_memory(self.axis.scale(self.case, factor), self.goal)

    def allows(self, factor: float) -> bool:
        """Return whether workload and profile files accept the input scaled by a factor."""
        try:
            self.ask(factor)
        except InputError:
            return False
        return True

    def list_factors(self, end: float) -> list[float]:
        """Return a grid of factors from 1 towards an end, as far as files accept the scaled input."""
        return list(takewhile(self.allows, (end ** (step / _STEPS) for step in range(_STEPS + 1))))

    def replan(self, factor: float) -> Replanned:
        """Return the result at a factor."""
        best = self.find_best(factor)
        seconds, fits = self.price_kept(factor)
        return Replanned(
            factor=factor,
            values=tuple(self.axis.scale_values(self.case, factor)),
            best=best,
            change=None if best is None else best.seconds / self.kept.key[0] - 1,
            kept_seconds=seconds,
            kept_change=seconds / self.kept.key[0] - 1,
            kept_fits=fits,
        )

    def _price_kept(self, factor: float) -> tuple[float, bool]:
        """Return the seconds of the kept plan at a factor, and whether it fits the budgets there."""
        question, is_size = self.ask(factor), self.axis.name in _SIZES
        seconds = _reprice(self.kept, question) if is_size else None
        if seconds is not None and factor >= self.least_misfit:
            # A schedule that does not fit does not fit with larger states or tapes.
            return seconds, False
        price, fits = price_kept(self.kept, question)
        if is_size and not fits:
            self.least_misfit = min(factor, self.least_misfit)
        return price, fits

    def _price_left_out(self, factor: float) -> float | None:
        """Return the seconds of the kept plan; None if it does not fit, or if its strategy is compared."""
        if self.kept.strategy.name in self.goal.strategies:
            return None
        seconds, fits = self.price_kept(factor)
        return seconds if fits else None

    def _stays_best(self, end: float) -> bool:
        """Return whether the kept plan is the best one for every factor from 1 to an end, with two searches.

        Inputs that are no whole numbers are times and rates. The time of each schedule is linear in a scaled
        time (in the inverse of a bandwidth). So the least time of the compared strategies is concave in it, and
        so is the lead of the kept plan. A concave lead that is positive at both ends is positive between them.
        """
        return (
            not self.axis.kind.whole
            and not self.case.profile.overlaps_compute
            and self.goal.model == "exact"
            and all(map(self.is_ahead, (1.0, self.list_factors(end)[-1])))
        )

    def _is_ahead(self, factor: float) -> bool:
        """Return whether the kept plan's strategy is not compared and its lead exceeds the resolution."""
        seconds, question = self._price_left_out(factor), self.ask(factor)
        return seconds is not None and question.faster_than(seconds / (1 - question.resolution)) is None

    def _find_best(self, factor: float) -> Best | None:
        """Search for the best plan at a factor, None if nothing fits; the kept plan may win."""
        question = self.ask(factor)
        decisive = 1 - question.resolution
        left_out = self._price_left_out(factor)
        if left_out is not None and self.stays_best(_LEAST if factor < 1 else _MOST):
            return replace(_summarise(self.kept), seconds=left_out)
        bounds = [] if left_out is None else [left_out / decisive]
        if question.goal.model == "exact":
            # A search excludes chunks that grow too fast, even if they fit.
            admitted = (setting for setting in self.settings.values() if not _outgrows(setting, question.costs))
            prices = (price_kept(setting, question) for setting in admitted)
            bounds += [seconds for seconds, fits in prices if fits]
        answer = question.best_below(min(bounds)) if bounds else question.best()
        if left_out is not None and (answer is None or left_out < answer.key[0] * decisive):
            return replace(_summarise(self.kept), seconds=left_out)
        if answer is None:
            return None
        if answer.strategy.is_closed_form:
            self.settings[answer.strategy.name] = answer
        return _summarise(answer)

    def find_break_evens(self) -> Iterator[BreakEven]:
        """Scan factors outwards from 1, bisect wherever two neighbours differ, and yield each change."""
        for end in (_LEAST, _MOST):
            if self.stays_best(end):
                continue
            near: _Scanned = 1.0, self.kept.strategy.name
            for factor in self.list_factors(end)[1:]:
                far = self._find_strategy(factor, near)
                yield from self._bisect(near, far)
                near = far

    def _find_strategy(self, factor: float, *neighbours: _Scanned) -> _Scanned:
        """Return the best strategy at a factor. Prefer a neighbour's unless another one is surely faster."""
        best = self.find_best(factor)
        if best is None:
            return factor, None
        names = (strategy for _, strategy in neighbours if strategy is not None)
        question = self.ask(factor)
        most = best.seconds * (1 + COUNT_ROUNDING) / (1 - question.resolution)
        for name in dict.fromkeys(names):
            if name == best.strategy:
                break
            if name in question.goal.strategies:
                alone = question.replace(strategies=(name,)).best_below(most)
                seconds = None if alone is None else alone.key[0]
            else:
                seconds = self._price_left_out(factor)
            if seconds is not None and seconds <= most:
                return factor, name
        return factor, best.strategy

    def _bisect(self, near: _Scanned, far: _Scanned) -> Iterator[BreakEven]:
        """Yield each change of the best strategy between two factors, by bisection."""
        if near[1] == far[1]:
            return
        factor = math.sqrt(near[0] * far[0])
        (low, below), (high, above) = sorted((near, far))
        if high <= low * _CLOSE:
            values = tuple(self.axis.scale_values(self.case, factor))
            yield BreakEven(factor=factor, values=values, below=below, above=above)
            return
        middle = self._find_strategy(factor, near, far)
        yield from self._bisect(near, middle)
        yield from self._bisect(middle, far)
