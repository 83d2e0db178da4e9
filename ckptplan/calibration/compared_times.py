"""Compares predicted and measured times: of the machine, each kind of action, the whole run, and base."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import ckptplan
from ckptplan.calibration.cells import MeasuredNetwork
from ckptplan.calibration.runs import TimedRun
from ckptplan.calibration.samples import Sample
from ckptplan.calibration.transfer_times import TransferTimes
from ckptplan.calibration.validation import SMALL, Row, seconds_by_kind
from ckptplan.cost.case import Case
from ckptplan.model.plan import Plan
from ckptplan.model.workload import Workload
from ckptplan.schedule.actions import Record
from ckptplan.schedule.timeline import READ, WRITE, Event
from ckptplan.torch.trees import byte_size, flatten
from ckptplan.units import format_seconds, format_share

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


def predates_action_times(workload: Workload) -> bool:
    """Return whether a workload was calibrated before the times of actions were measured: they count as 0."""
    return workload.calibration is not None and not workload.calibration.times_actions


def machine_rows(plan: Plan, network: MeasuredNetwork, found: TransferTimes) -> list[Row]:
    """Return rows of bandwidths and messages, measured again: a plan that moves little tests them little."""
    costs = Case(workload=plan.workload, profile=plan.profile).costs
    # The bytes that transfers actually move, which the plan may predict wrongly.
    size = byte_size(flatten(network.state)[0])
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
                    measured=found.rate(way, state_bytes=size),
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
    """Return rows of each kind of action, of what is not in the model, and of the whole run.

    Parts may be off by the calibration's uncertainty in addition to the tolerance; the whole may not.

    Arguments:
        plan: the plan.
        timed: runs whose actions were timed one by one.
        total: the seconds of runs without any meter.
        tolerance: the share by which times may be off.
    """
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
        for kind in _list_kinds(plan.workload)
        if kind in predicted or kind in measured[0]
    ]
    return [
        *rows,
        *_unmodelled_rows(plan.workload, timed, measured),
        Row.timed(
            "total", predicted=plan.predicted.seconds, sample=total, tolerance=tolerance, whole=total.median
        ),
    ]


def _list_kinds(workload: Workload) -> tuple[str, ...]:
    return _KINDS if predates_action_times(workload) else (*_KINDS, *_LOCAL)


def _part_uncertainty(workload: Workload, kind: str) -> float:
    calibration = workload.calibration
    if calibration is None:
        return 0.0
    of_transfers = kind in (WRITE, READ)
    return min(calibration.transfer_uncertainty if of_transfers else calibration.uncertainty, _MOST_UNCERTAIN)


def _unmodelled_rows(
    workload: Workload, timed: Sequence[TimedRun], measured: Sequence[Mapping[str, float]]
) -> list[Row]:
    """Return rows of what no prediction contains.

    What is not inside any action is taken from runs whose actions were timed, so it is never below zero: the
    difference from runs without a meter would be, whenever those happen to be quicker.
    """
    kinds = ("free",) if not predates_action_times(workload) else (*_LOCAL, "free")
    keeping = Sample(values=tuple(sum(one.get(kind, 0.0) for kind in kinds) for one in measured))
    beside = Sample(
        values=tuple(
            max(0.0, run.seconds - sum(one.values())) for run, one in zip(timed, measured, strict=True)
        )
    )
    return [
        Row.unmodelled("keeping checkpoints" if len(kinds) > 1 else "free checkpoints", seconds=keeping.median),
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


def note_action_times(
    *, steps: int, chunks: int, shortest_chunk: int | None, chunk_overhead_seconds: float | None
) -> str:
    """Return the note on a calibration from before the times of actions were measured.

    Arguments:
        steps: T of the plan.
        chunks: the number of its chunks.
        shortest_chunk: the calibration's field, None if it has none.
        chunk_overhead_seconds: the calibration's field, None if it has none.
    """
    text = "it was calibrated before the costs of actions were measured: they count as 0; calibrate again"
    if shortest_chunk is None or chunk_overhead_seconds is None or steps >= chunks * shortest_chunk:
        return text
    beside_steps = format_seconds(chunks * chunk_overhead_seconds)
    return (
        f"{text}. Its {chunks:,} chunks have {steps / chunks:.3g} steps on average, and the calibration holds "
        f"for {shortest_chunk} or more: they take about {beside_steps} besides their steps, which is not "
        "predicted"
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
