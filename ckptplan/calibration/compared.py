"""Compares predictions and measurements: bytes, counts, gradients, and times of actions and whole runs."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence

import numpy as np

import ckptplan
from ckptplan.calibration.backend import Counted, Gradient, TimedRun
from ckptplan.calibration.fit import Sample, TransferTimes, seconds_by_kind
from ckptplan.calibration.validation import SMALL, Row, Verdict
from ckptplan.cost.case import Case
from ckptplan.model.plan import Plan
from ckptplan.model.workload import Workload
from ckptplan.schedule.actions import Backward, Record
from ckptplan.schedule.simulator import play
from ckptplan.schedule.timeline import READ, WRITE, Event
from ckptplan.units import format_seconds, format_share

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

    If transfers overlap compute, their buffers are excluded, since they are not checkpoints. The peak is
    not judged unless the workload was ``calibrated`` with what runs it here.
    """
    units = plan.profile.units
    costs = Case(workload=plan.workload, profile=plan.profile).costs.model_copy(
        update={"overlaps_compute": False}
    )
    trace = play(ckptplan.actions(plan), costs=costs, budget=None)
    # A unit's share of a state, or of a tape, is rounded up to whole bytes.
    slack = 0.0 if units == 1 else 1 / min(costs.state_bytes, costs.tape_bytes)
    kept = (trace.local_peak_bytes - costs.resident_bytes) * units
    kept += _count_held_once(plan, counted.local_bytes - kept)
    sizes = (
        ("state", costs.state_bytes * units, counted.state_bytes),
        ("checkpoints and tapes", kept, counted.local_bytes),
        ("remote peak", trace.remote_peak_bytes, counted.remote_bytes),
    )
    return [
        *(
            Row.exact(name, predicted=predicted, measured=measured, unit="bytes", slack=slack)
            for name, predicted, measured in sizes
        ),
        *(
            Row.exact(_COUNTS[name], predicted=plan.predicted[name], measured=count, unit="count")
            for name, count in counted.counts.items()
        ),
        _peak_row(plan, peak_bytes, memory_tolerance=memory_tolerance, calibrated=calibrated),
    ]


def _count_held_once(plan: Plan, beyond: int) -> int:
    """Return what the chunks held at the peak hold once each; ``beyond`` bytes were counted over the plan's.

    A constant may be one object for all chunks, or one for each. So it occurs once at least, and at most as
    often as there are recorded chunks at a time.
    """
    once = 0 if plan.workload.calibration is None else plan.workload.calibration.tape_bytes_once
    if not once:
        return 0
    chunks = most = 0
    for action in ckptplan.actions(plan):
        chunks += isinstance(action, Record) - isinstance(action, Backward)
        most = max(most, chunks)
    return once * min(max(1, round(beyond / once)), most)


def _peak_row(plan: Plan, measured: int, *, memory_tolerance: float, calibrated: bool) -> Row:
    predicted = plan.predicted.local_peak_bytes * plan.profile.units
    if calibrated:
        return Row.exact(
            "local peak", predicted=predicted, measured=measured, unit="bytes", slack=memory_tolerance
        )
    # The resident bytes of another machine do not apply here.
    return Row(
        quantity="local peak",
        unit="bytes",
        predicted=predicted,
        measured=measured,
        verdict=Verdict.OTHER_MACHINE,
    )


def gradient_row(expected: Sequence[Gradient], found: Sequence[Gradient], *, plain: bool) -> Row:
    """Return the largest difference of gradients, relative to the largest gradient of the same parameter.

    Sums are formed in another order, so at least half of the digits of the type must agree. Without ``plain``,
    the expected gradients are not from the framework alone, and agreement proves nothing.
    """
    shares = [0.0]
    agree = True
    for (one, rounding), (other, _) in zip(expected, found, strict=True):
        scale, difference = float(np.abs(one).max()), float(np.abs(one - other).max())
        share = difference / scale if scale else difference
        shares.append(share)
        agree &= share <= rounding**0.5
    worst = math.inf if any(map(math.isnan, shares)) else max(shares)
    verdict = Verdict.OK if agree and worst < math.inf else Verdict.OFF
    if not plain and verdict is Verdict.OK:
        verdict = Verdict.UNCHECKED
    return Row(quantity="gradient difference", unit="share", predicted=0.0, measured=worst, verdict=verdict)


#: Kinds of actions on steps and on remote memory, whose time every plan predicts.
_KINDS = ("forward", "recompute", "record", "backward", WRITE, READ)
#: Kinds of actions on local memory -> the names of their rows.
_LOCAL = {"save": "save locally", "load": "load locally"}
#: Local saves and loads below this share of a run are not judged: each takes microseconds, which vary.
_SMALL_LOCALLY = 0.02
#: The most that parts of a run may be off beyond the tolerance, however uncertain a calibration is.
_MOST_UNCERTAIN = 0.5
#: Timing the actions one by one lengthens a run; above this share of it, a note says so.
_METER = 0.01


def machine_rows(plan: Plan, found: TransferTimes, *, state_bytes: int) -> list[Row]:
    """Return rows of bandwidths and messages, measured again: a plan that moves little tests them little.

    ``state_bytes`` are those that a transfer moves, which the plan may predict wrongly.
    """
    costs = Case(workload=plan.workload, profile=plan.profile).costs
    rows = []
    for way, planned, measured in (
        (WRITE, costs.write_seconds, found.write_seconds),
        (READ, costs.read_seconds, found.read_seconds),
    ):
        if planned:
            rows.append(
                Row.bandwidth(
                    f"{way} bandwidth",
                    predicted=costs.remote_state_bytes / planned,
                    measured=found.rate(way, state_bytes=state_bytes),
                    unit="bytes per second",
                )
            )
        if planned + costs.message_seconds:
            rows.append(
                Row.bandwidth(
                    f"{way} of one state",
                    predicted=costs.message_seconds + planned,
                    measured=max(found.message_seconds + measured, 1e-9),
                    unit="seconds",
                )
            )
    return rows


def time_rows(plan: Plan, timed: Sequence[TimedRun], total: Sample, *, tolerance: float) -> list[Row]:
    """Return rows of each kind of action, if they were timed, of what is not modelled, and of the whole run.

    Parts may be off by the calibration's uncertainty in addition to the tolerance; the whole may not.

    Arguments:
        plan: the plan.
        timed: runs whose actions were timed one by one.
        total: the seconds of runs without any meter.
        tolerance: the share by which times may be off.
    """
    whole = Row.timed(
        "total", predicted=plan.predicted.seconds, sample=total, tolerance=tolerance, whole=total.median
    )
    if not timed:
        return [whole]
    played: list[Event] = []
    ckptplan.simulate(plan, sink=played.append)
    predicted = seconds_by_kind(played)
    measured = [seconds_by_kind(one.events) for one in timed]
    chunks = sum(isinstance(event.action, Record) for event in played)
    rows = [
        Row.timed(
            _LOCAL.get(kind, kind),
            predicted=predicted.get(kind, 0.0),
            sample=Sample(values=tuple(one.get(kind, 0.0) for one in measured)),
            tolerance=tolerance + _part_uncertainty(plan.workload, kind),
            whole=total.median,
            shared_seconds=chunks * plan.workload.chunk_seconds if kind in ("record", "backward") else 0.0,
            small=_SMALL_LOCALLY if kind in _LOCAL else SMALL,
        )
        for kind in (*_KINDS, *_LOCAL)
        if kind in predicted or kind in measured[0]
    ]
    return [*rows, *_unmodelled_rows(timed, measured), whole]


def _part_uncertainty(workload: Workload, kind: str) -> float:
    calibration = workload.calibration
    if calibration is None:
        return 0.0
    of_transfers = kind in (WRITE, READ)
    return min(calibration.transfer_uncertainty if of_transfers else calibration.uncertainty, _MOST_UNCERTAIN)


def _unmodelled_rows(timed: Sequence[TimedRun], measured: Sequence[Mapping[str, float]]) -> list[Row]:
    """Return rows of what no prediction contains.

    What is not inside any action is taken from runs whose actions were timed, so it is never below zero: the
    difference from runs without a meter would be, whenever those happen to be quicker.
    """
    keeping = Sample(values=tuple(one.get("free", 0.0) for one in measured))
    beside = Sample(
        values=tuple(
            max(0.0, run.seconds - sum(one.values())) for run, one in zip(timed, measured, strict=True)
        )
    )
    return [
        Row.unmodelled("free checkpoints", seconds=keeping.median),
        Row.unmodelled("outside the actions", seconds=beside.median),
    ]


def note_meter(timed: Sequence[TimedRun], total: Sample) -> str | None:
    """Return a note if runs whose actions were timed take longer or shorter than the others, else None."""
    metered = Sample(values=tuple(one.seconds for one in timed))
    difference = metered.median - total.median
    if abs(difference) < _METER * total.median:
        return None
    share = format_share(abs(difference) / total.median)
    how = "longer" if difference > 0 else "less"
    return (
        f"the rows above `total` are of runs whose actions were timed one by one, which took "
        f"{format_seconds(abs(difference))} ({share}) {how} than those of `total`: they do not add up to it"
    )


def base_rows(
    plan: Plan, base: Plan, total: Sample, bases: Sample, *, tolerance: float, overhead_tolerance: float
) -> list[Row]:
    """Return rows of base's time, and of what the plan adds to it, round by round.

    Arguments:
        plan: the plan.
        base: the plan of base.
        total: the measured seconds of the plan.
        bases: the measured seconds of base.
        tolerance: the share by which times may be off.
        overhead_tolerance: how far the added time may be off, as a share of base's time.
    """
    ratios = Sample(values=tuple(one / other for one, other in zip(total.values, bases.values, strict=True)))
    return [
        Row.timed(
            "base", predicted=base.predicted.seconds, sample=bases, tolerance=tolerance, whole=bases.median
        ),
        Row.overhead(predicted=plan.predicted.overhead, ratios=ratios, tolerance=overhead_tolerance),
    ]
