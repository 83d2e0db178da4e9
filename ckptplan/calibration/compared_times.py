"""Compares predicted and measured times: of the machine, each kind of action, the whole run, and base."""

from __future__ import annotations

from collections.abc import Sequence

import ckptplan
from ckptplan.calibration.cells import MeasuredNetwork
from ckptplan.calibration.samples import Sample
from ckptplan.calibration.transfer_times import TransferTimes
from ckptplan.calibration.validation import Row, seconds_by_kind
from ckptplan.cost.case import Case
from ckptplan.model.plan import Plan
from ckptplan.schedule.timeline import READ, WRITE, Event
from ckptplan.torch.trees import byte_size, flatten

#: Kinds of actions whose time a plan predicts.
KINDS = ("forward", "recompute", "record", "backward", WRITE, READ)
#: Kinds that take negligible time, and none in the model.
_BOOKKEEPING = ("save", "load", "free")
#: The most that parts of a run may be off beyond the tolerance, however uncertain a calibration is.
_MOST_UNCERTAIN = 0.5


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


def time_rows(
    plan: Plan, lines: Sequence[Sequence[Event]], total: Sample, *, tolerance: float, comparable: bool
) -> list[Row]:
    """Return rows of each kind of action, of what is not in the model, and of the whole run.

    Parts may be off by the calibration's uncertainty in addition to the tolerance; the whole may not.
    """
    played: list[Event] = []
    ckptplan.simulate(plan, sink=played.append)
    predicted = seconds_by_kind(played)
    measured = [seconds_by_kind(line) for line in lines]
    calibration = plan.workload.calibration
    unsure = dict.fromkeys(KINDS, calibration.uncertainty if calibration else 0.0)
    unsure |= dict.fromkeys((WRITE, READ), calibration.transfer_uncertainty if calibration else 0.0)
    rows = [
        Row.timed(
            kind,
            predicted=predicted.get(kind, 0.0),
            sample=Sample(values=tuple(one.get(kind, 0.0) for one in measured)),
            tolerance=tolerance + min(unsure[kind], _MOST_UNCERTAIN),
            whole=total.median,
            comparable=comparable,
        )
        for kind in KINDS
        if kind in predicted or kind in measured[0]
    ]
    keeping = Sample(values=tuple(sum(one.get(kind, 0.0) for kind in _BOOKKEEPING) for one in measured))
    inside = Sample(values=tuple(sum(one.values()) for one in measured))
    return [
        *rows,
        Row.unmodelled("saving and loading locally", seconds=keeping.median),
        # On a device, each action is waited for, so together they may take longer than the run.
        Row.unmodelled("before, between and after", seconds=total.median - inside.median),
        Row.timed(
            "total",
            predicted=plan.predicted.seconds,
            sample=total,
            tolerance=tolerance,
            whole=total.median,
            comparable=comparable,
        ),
    ]


def base_rows(
    plan: Plan, base: Plan, total: Sample, bases: Sample, *, tolerance: float, comparable: bool
) -> list[Row]:
    """Return rows of base's time, and of the plan's time over it, round by round.

    Arguments:
        plan: the plan.
        base: the plan of base.
        total: the measured seconds of the plan.
        bases: the measured seconds of base.
        tolerance: the share by which times may be off.
        comparable: whether the plan was calibrated on this machine.
    """
    ratio = Sample(values=tuple(one / other for one, other in zip(total.values, bases.values, strict=True)))
    return [
        Row.timed(
            "base",
            predicted=base.predicted.seconds,
            sample=bases,
            tolerance=tolerance,
            whole=bases.median,
            comparable=comparable,
        ),
        Row.timed(
            "time over base",
            predicted=1 + plan.predicted.overhead,
            sample=ratio,
            tolerance=tolerance,
            whole=1,
            comparable=comparable,
            unit="share",
        ),
    ]
