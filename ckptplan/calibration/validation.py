"""Compares predictions and measurements. ``Row.judged`` gives each quantity its verdict.

The quantities are bytes, counts, gradients, and times of actions and whole runs.
"""

from __future__ import annotations

import enum
import math
from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Annotated, Literal, Self

import numpy as np
from pydantic import Field

import ckptplan
from ckptplan.calibration.estimate import Estimate
from ckptplan.calibration.fit import Times, state_rate
from ckptplan.cost.case import Case
from ckptplan.execution.backend import Counted, Environment, Gradient, Report
from ckptplan.model.checked import CheckedModel
from ckptplan.model.display import Displayed
from ckptplan.model.plan import Plan
from ckptplan.model.step_costs import StepCosts
from ckptplan.planning.intervals import bound_costs
from ckptplan.schedule.actions import Backward, Record
from ckptplan.schedule.simulator import play
from ckptplan.schedule.timeline import READ, WRITE, Event, kind_of

#: A part of a run with a smaller share of its time is shown but not judged.
SMALL = 0.005
#: The factor by which the bandwidth of copies may vary over time.
FACTOR = 2.0
#: The share by which the chosen plan may be slower than the quickest one measured, beyond the noise.
REGRET = 0.03
Unit = Literal["bytes", "bytes per second", "seconds", "count", "share"]


class Verdict(enum.StrEnum):
    """The verdict on a quantity."""

    OK = "ok"
    OFF = "off"
    NOISY = "too noisy to judge"
    SMALL = "too small to judge"
    OTHER_MACHINE = "not comparable"
    UNCHECKED = "not against plain BPTT"


_Share = Annotated[float, Field(strict=True, ge=0, description="a share, as 0.1")]


class Tolerances(CheckedModel):
    """How far predictions may be off, beyond the intervals. Raises InputError."""

    #: Share of a time.
    tolerance: _Share = 0.1
    #: Share of the longer of the plan's and base's times by which the time added to base's may be off.
    overhead_tolerance: _Share = 0.03
    #: Share of the live peak.
    memory_tolerance: _Share = 0.05


@dataclass(frozen=True, kw_only=True)
class Row:
    """One quantity, predicted and measured."""

    quantity: str
    unit: Unit
    predicted: float | None
    measured: float
    verdict: Verdict
    #: The distance beyond which the prediction is certainly off; None if nothing is compared.
    allowed: float | None = None
    #: Half of the interval of the rounds, as a share; None if the quantity was counted, not timed.
    noise: float | None = None
    #: Whether bias, noise and allowed are differences in points instead of shares.
    in_points: bool = False

    @property
    def bias(self) -> float | None:
        """Predicted over measured, less one; ``in_points``, predicted less measured.

        Positive if the prediction is too high. None if nothing was predicted, or if only one of both is zero.
        """
        if self.in_points:
            return None if self.predicted is None else self.predicted - self.measured
        if self.predicted is not None and self.measured == self.predicted:
            return 0.0
        return self.predicted / self.measured - 1 if self.predicted and self.measured else None

    @classmethod
    def judged(
        cls,
        quantity: str,
        *,
        predicted: Estimate | float,
        measured: Estimate | float,
        tolerance: float,
        unit: Unit = "seconds",
    ) -> Self:
        """Return the row of a quantity, by the joint interval of prediction and measurement.

        The distance of two numbers is their difference as a share of the smaller one, or in points if the unit
        is a share. The quantity is off if even the nearest ends of both intervals are farther apart than the
        tolerance. It is ok if the measurement alone shows that it is not. Otherwise it is too noisy to judge.

        Arguments:
            quantity: the name of the quantity.
            predicted: the prediction; an ``Estimate`` has an interval from the calibration's times.
            measured: the measurement; an ``Estimate`` was timed in rounds, a plain number was counted.
            tolerance: the distance that is allowed.
            unit: the unit; a 'share' is judged in points.
        """
        points, is_counted = unit == "share", not isinstance(measured, Estimate)
        prediction, measurement = (
            value if isinstance(value, Estimate) else Estimate.exactly(value) for value in (predicted, measured)
        )
        lower, upper = sorted((prediction, measurement), key=lambda estimate: estimate.value)
        gap = _distance(lower.value, upper.value, points=points)
        half_width = (measurement.high - measurement.low) / 2 if points else measurement.spread
        hidden = gap - _distance(lower.high, upper.low, points=points) if math.isfinite(gap) else 0.0
        settled = half_width <= tolerance and gap <= tolerance + half_width
        return cls(
            quantity=quantity,
            unit=unit,
            predicted=prediction.value,
            measured=measurement.value,
            verdict=Verdict.OFF if gap > tolerance + hidden else Verdict.OK if settled else Verdict.NOISY,
            allowed=tolerance + hidden,
            noise=None if is_counted else half_width,
            in_points=points,
        )


#: The least seconds in a ratio, so that no divisor is zero.
_LEAST = 1e-12


def _distance(lower: float, upper: float, *, points: bool) -> float:
    """Return how far the upper number is above the lower one; negative if it is below."""
    return upper - lower if points else max(upper, _LEAST) / max(lower, _LEAST) - 1


_KEPT = "checkpoints and tapes"
#: Field of ``Predicted`` -> name.
_COUNTS = {
    "recomputed_steps": "steps run again",
    "remote_writes": "states written",
    "remote_reads": "states read",
    "messages": "messages",
}


def byte_rows(
    plan: Plan, counted: Counted, *, peak_bytes: int, memory_tolerance: float, calibrated: bool = True
) -> list[Row]:
    """Return rows of sizes, counts and the peak, for serial execution of the actions.

    Checkpoints leave out buffers of overlapping transfers, workspace, and caches that a cell keeps by itself.
    The peak is judged only if the workload was ``calibrated`` with the runtime that runs it here.
    """
    units = plan.profile.units
    costs = _serial_costs(plan)
    trace = play(ckptplan.actions(plan), costs=costs, budget=None)
    # Each unit's share of a state or a tape is rounded up to whole bytes, which allows a small difference.
    slack = 0.0 if units == 1 else 1 / min(costs.state_bytes, costs.tape_bytes)
    kept = (trace.local_peak_bytes - costs.resident_bytes) * units
    kept += _count_held_once(plan, counted.local_bytes - kept)
    peak = Row.judged(
        "local peak",
        predicted=plan.predicted.local_peak_bytes * units,
        measured=peak_bytes,
        unit="bytes",
        tolerance=memory_tolerance,
    )
    if not calibrated:
        # Resident bytes that were measured on another machine or runtime do not apply here.
        peak = replace(peak, verdict=Verdict.OTHER_MACHINE, allowed=None)
    # Caches may differ in size from step to step, so allow more if they move.
    remote_slack = memory_tolerance if plan.moves_caches else slack
    sizes = (
        ("state", costs.state_bytes * units, counted.state_bytes, slack),
        (_KEPT, kept, counted.local_bytes, slack),
        ("remote peak", trace.remote_peak_bytes, counted.remote_bytes, remote_slack),
    )
    rows = [
        Row.judged(name, predicted=predicted, measured=measured, unit="bytes", tolerance=tolerance)
        for name, predicted, measured, tolerance in sizes
    ]
    return [*rows, *_count_rows(plan, counted), peak]


def _count_rows(plan: Plan, counted: Counted) -> list[Row]:
    """Return rows of the numbers of recomputed steps, moved states, and messages."""
    return [
        Row.judged(_COUNTS[name], predicted=plan.predicted[name], measured=count, unit="count", tolerance=0.0)
        for name, count in counted.counts.items()
    ]


def shrunk_rows(plan: Plan, counted: Counted) -> list[Row]:
    """Return the rows that can be compared for a shrunk cell, whose sizes differ from the plan's.

    Checkpoints and tapes are predicted by the plan's schedule with the sizes of the shrunk cell. The first
    recording shows the size of its tape. A compiled program does not, so it lacks this row.
    """
    rows = _count_rows(plan, counted)
    held_bytes = 0
    for event in counted.events:
        if isinstance(event.action, Record):
            steps = event.action.stop - event.action.start
            sizes = {
                "state_bytes": counted.state_bytes,
                "remote_state_bytes": counted.state_bytes,
                "tape_bytes": (event.local_bytes - held_bytes) // steps,
                "resident_bytes": 0,
            }
            costs = _serial_costs(plan).model_copy(update=sizes)
            kept = play(ckptplan.actions(plan), costs=costs, budget=None).local_peak_bytes
            row = Row.judged(
                "checkpoints and tapes",
                predicted=kept,
                measured=counted.local_bytes,
                unit="bytes",
                tolerance=0.0,
            )
            return [row, *rows]
        held_bytes = event.local_bytes
    return rows


def _serial_costs(plan: Plan) -> StepCosts:
    return Case(workload=plan.workload, profile=plan.profile).costs.model_copy(
        update={"overlaps_compute": False, "chunk_bytes": 0, "cache_bytes": 0}
    )


def _count_held_once(plan: Plan, beyond: int) -> int:
    """Return the bytes at the peak that recorded chunks hold once each, for any number of steps.

    Such a constant may be one object for all chunks, or one object per chunk. So it occurs between once and the
    largest number of chunks at a time. ``beyond``, the bytes counted above the plan's, shows how often.
    """
    once = 0 if plan.workload.calibration is None else plan.workload.calibration.tape_bytes_once
    if not once:
        return 0
    chunks = most = 0
    for action in ckptplan.actions(plan):
        chunks += isinstance(action, Record) - isinstance(action, Backward)
        most = max(most, chunks)
    return once * min(max(1, round(beyond / once)), most)


def gradient_row(expected: Sequence[Gradient], measured: Sequence[Gradient], *, plain: bool) -> Row:
    """Return the difference of gradients, relative to the largest gradient of the same parameter.

    Sums are formed in another order, so at least half of the digits of the type must agree. The row shows the
    parameter with the largest difference. Without ``plain``, the expected gradients are not the framework's
    own, and agreement proves nothing.
    """
    worst, limit = 0.0, 1.0
    for (wanted, rounding), (given, _) in zip(expected, measured, strict=True):
        scale, difference = float(np.abs(wanted).max()), float(np.abs(wanted - given).max())
        share = difference / scale if scale else difference
        share = math.inf if math.isnan(share) else share
        if share / rounding**0.5 >= worst / limit:
            worst, limit = share, rounding**0.5
    row = Row.judged("gradient difference", predicted=0.0, measured=worst, tolerance=limit, unit="share")
    verdict = row.verdict if plain or row.verdict is Verdict.OFF else Verdict.UNCHECKED
    return replace(row, verdict=verdict, allowed=None, in_points=False)


def explain_difference(expected: Sequence[Gradient]) -> str:
    """Return why gradients differ in single precision although they agree in double precision."""
    if all(np.isfinite(gradient).all() for gradient, _ in expected):
        return "rounding decided whether a neuron at its threshold fires"
    return "in single precision, the gradients of plain backpropagation are not finite either"


#: Kind of an action -> the row that counts its time. Other actions take hardly any time.
_ROW_OF_KIND = {
    **dict.fromkeys(("forward", "recompute", "record"), "forward"),
    **{kind: kind for kind in ("backward", WRITE, READ)},
}


def _sum_kinds(events: Iterable[Event]) -> dict[str, float]:
    """Return the total seconds of the actions of each row."""
    seconds: dict[str, float] = defaultdict(float)
    for event in events:
        if row := _ROW_OF_KIND.get(kind_of(event)):
            seconds[row] += event.end - event.start
    return dict(seconds)


@dataclass(frozen=True, kw_only=True)
class Prediction:
    """The predicted seconds of a plan's run and of its kinds of actions, each with an interval."""

    total: Estimate
    kinds: Mapping[str, Estimate]
    #: Seconds that the prediction adds to recording chunks, but that may be spent in reversing them.
    shared: float

    @classmethod
    def of(cls, plan: Plan) -> Self:
        """Simulate a plan at its times and at the ends of their intervals, and return the prediction."""
        case = Case(workload=plan.workload, profile=plan.profile)
        low, high = bound_costs(case) or (case.costs, case.costs)
        played = []
        for costs in (low, case.costs, high):
            events: list[Event] = []
            seconds = play(ckptplan.actions(plan), costs=costs, budget=None, sink=events.append).seconds
            played.append((seconds, _sum_kinds(events)))
        totals, kinds = zip(*played, strict=True)
        chunks = sum(isinstance(event.action, Record) for event in events)
        return cls(
            total=Estimate(low=totals[0], value=plan.predicted.seconds, high=totals[2]),
            kinds={
                kind: Estimate(low=kinds[0][kind], value=kinds[1][kind], high=kinds[2][kind])
                for kind in kinds[1]
            },
            shared=chunks * plan.workload.chunk_seconds,
        )

    def kind(self, kind: str) -> Estimate:
        """Return the seconds of a kind of actions; 0 if the plan has no such actions."""
        seconds = self.kinds.get(kind, Estimate.exactly(0.0))
        if kind not in ("forward", "backward"):
            return seconds
        low, high = max(0.0, seconds.low - self.shared), seconds.high + self.shared
        return Estimate(low=low, value=seconds.value, high=high)


def machine_rows(plan: Plan, times: Times, *, state_bytes: int) -> list[Row]:
    """Return rows of bandwidths and messages that were measured again, apart from the run of the plan.

    ``state_bytes`` are the bytes of a state that really move, which may differ from the plan's.
    """
    costs = Case(workload=plan.workload, profile=plan.profile).costs
    rows = []
    for way, planned in ((WRITE, costs.write_seconds), (READ, costs.read_seconds)):
        if planned:
            rate, measured = costs.remote_state_bytes / planned, state_rate(times, way, state_bytes=state_bytes)
            row = Row.judged(f"{way} bandwidth", predicted=rate, measured=measured, tolerance=FACTOR - 1)
            rows.append(replace(row, unit="bytes per second"))
        if message := planned + costs.message_seconds:
            seconds, name = times["message_seconds"] + times[f"{way}_seconds"], f"{way} of one state"
            rows.append(Row.judged(name, predicted=message, measured=seconds, tolerance=FACTOR - 1))
    return rows


def time_rows(plan: Plan, timed: Sequence[Report], seconds: Sequence[float], *, tolerance: float) -> list[Row]:
    """Return rows of forward, backward, write and read, if actions were timed, and of the whole run.

    Arguments:
        plan: the plan.
        timed: runs whose actions were timed one by one.
        seconds: the seconds of runs whose actions were not timed.
        tolerance: the share by which times may be off.
    """
    prediction, total = Prediction.of(plan), Estimate.of(seconds)
    kinds = [_sum_kinds(report.events) for report in timed]
    rows = []
    for kind in dict.fromkeys(_ROW_OF_KIND.values()) if timed else ():
        if kind in prediction.kinds or kind in kinds[0]:
            predicted, measured = prediction.kind(kind), Estimate.of(run.get(kind, 0.0) for run in kinds)
            row = Row.judged(kind, predicted=predicted, measured=measured, tolerance=tolerance)
            small = max(predicted.value, measured.value) < SMALL * total.value
            rows.append(replace(row, verdict=Verdict.SMALL) if small else row)
    return [*rows, Row.judged("total", predicted=prediction.total, measured=total, tolerance=tolerance)]


def base_rows(
    plan: Plan, base: Plan, seconds: Sequence[float], bases: Sequence[float], *, allowed: Tolerances
) -> list[Row]:
    """Return rows of base's time, and of the time that the plan adds to it, compared round by round.

    +18 % predicted and +7.5 % measured are 10.5 points apart, though the times differ by only 10 %. If the plan
    takes x times as long as base (x > 1), x times as many points are allowed.

    Arguments:
        plan: the plan.
        base: the plan of base.
        seconds: the measured seconds of the plan.
        bases: the measured seconds of base.
        allowed: how far times, and the time added to base's, may be off.
    """
    mine, theirs = Prediction.of(plan).total, Prediction.of(base).total
    ratios = Estimate.of_ratios(own / other for own, other in zip(seconds, bases, strict=True))
    added = Estimate(
        low=mine.low / theirs.high - 1, value=plan.predicted.overhead, high=mine.high / theirs.low - 1
    )
    return [
        Row.judged("base", predicted=theirs, measured=Estimate.of(bases), tolerance=allowed.tolerance),
        Row.judged(
            "overhead",
            predicted=added,
            measured=Estimate(low=ratios.low - 1, value=ratios.value - 1, high=ratios.high - 1),
            tolerance=allowed.overhead_tolerance * max(1.0, ratios.value),
            unit="share",
        ),
    ]


@dataclass(frozen=True, kw_only=True)
class Contender:
    """The best plan of a strategy, with its measured seconds by round and the verdict on its prediction."""

    strategy: str
    parameters: dict[str, int]
    seconds: tuple[float, ...]
    row: Row
    #: Other strategies whose best plan has the same schedule, which ran only once.
    same: tuple[str, ...]

    @classmethod
    def of(cls, plans: Sequence[Plan], seconds: tuple[float, ...], *, tolerance: float) -> Self:
        """Judge the predicted seconds of plans with the same schedule."""
        plan, *same = plans
        return cls(
            strategy=plan.strategy,
            parameters=dict(plan.parameters),
            seconds=seconds,
            row=Row.judged(
                f"time of {plan.strategy}",
                predicted=Prediction.of(plan).total,
                measured=Estimate.of(seconds),
                tolerance=tolerance,
            ),
            same=tuple(other.strategy for other in same),
        )


@dataclass(frozen=True, kw_only=True)
class Regret:
    """Compares the chosen plan, the first contender, with the fastest of all measured plans."""

    contenders: tuple[Contender, ...]

    @property
    def own(self) -> Contender:
        """The plan that was chosen."""
        return self.contenders[0]

    @property
    def best(self) -> Contender:
        """The plan with the least time relative to the chosen one, in the median round; maybe that one."""
        return max(self.contenders, key=lambda contender: self._compare(contender).value)

    @property
    def row(self) -> Row:
        """The verdict on the time of the chosen plan over that of the fastest plan in the same round."""
        return Row.judged(
            "decision regret",
            predicted=1.0,
            measured=self._compare(self.best),
            tolerance=REGRET,
            unit="share",
        )

    def _compare(self, other: Contender) -> Estimate:
        return Estimate.of_ratios(
            own / theirs for own, theirs in zip(self.own.seconds, other.seconds, strict=True)
        )

    @property
    def rows(self) -> tuple[Row, ...]:
        """The rows of the other contenders and of the regret. The validation has the row of the chosen plan."""
        return (*(contender.row for contender in self.contenders[1:]), self.row)


@dataclass(frozen=True, kw_only=True)
class Validation(Displayed):
    """The result of a validation."""

    #: The validated plan, the cell that ran, and the machine.
    plan: Plan
    cell: str
    batch: int
    environment: Environment
    repeats: int
    tolerances: Tolerances
    #: Why times are not compared, None if they are.
    not_comparable: str | None
    rows: tuple[Row, ...]
    notes: tuple[str, ...]
    regret: Regret | None
    #: The timeline of a run of the plan. The bytes of checkpoints and tapes are from another run.
    timeline: tuple[Event, ...]
    #: Whether Ctrl-C ended the validation. Then ``rows`` has only the comparisons made before.
    interrupted: bool = False

    @property
    def off(self) -> list[str]:
        """The names of the quantities outside the tolerance."""
        return self._named(Verdict.OFF)

    @property
    def pace(self) -> float | None:
        """The common factor by which the plan and base took longer than predicted, None if there is none.

        With such a factor, the machine is slower or quicker than when it was calibrated, and the plan is as
        good as before. There is none if both times are within the tolerance, if their factors differ, or if
        the overhead is off.
        """
        rows = {row.quantity: row for row in self.rows}
        if not {"total", "base", "overhead"} <= rows.keys() or rows["overhead"].verdict is Verdict.OFF:
            return None
        times = [rows[name] for name in ("total", "base")]
        own, base = (row.measured / row.predicted if row.predicted else 0.0 for row in times)
        alike = min(own, base) > 0 and max(own, base) <= (1 + self.tolerances.tolerance) * min(own, base)
        if not alike or (own > 1) != (base > 1) or all(row.verdict is not Verdict.OFF for row in times):
            return None
        return own

    @property
    def noisy(self) -> list[str]:
        """The names of the quantities whose intervals are too wide to judge them."""
        return self._named(Verdict.NOISY)

    def _named(self, verdict: Verdict) -> list[str]:
        judged = self.rows if self.regret is None else (*self.rows, *self.regret.rows)
        return [row.quantity for row in judged if row.verdict is verdict]
