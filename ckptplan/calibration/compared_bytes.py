"""Compares predictions with counts: bytes, moved states, recomputed steps and gradients."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence

import torch

import ckptplan
from ckptplan.calibration.cells import MeasuredNetwork
from ckptplan.calibration.runs import HeldObserver
from ckptplan.calibration.validation import Row, Verdict
from ckptplan.cost.case import Case
from ckptplan.model.plan import Plan
from ckptplan.schedule.actions import Backward, Record, Transfer
from ckptplan.schedule.simulator import play
from ckptplan.schedule.timeline import READ, WRITE, Event
from ckptplan.torch.trees import byte_size, flatten

#: Field of ``Predicted`` -> name.
_COUNTS = {
    "recomputed_steps": "steps run again",
    "remote_writes": "states written",
    "remote_reads": "states read",
    "messages": "messages",
}


def byte_rows(
    plan: Plan, network: MeasuredNetwork, *, held: HeldObserver, live_peak: int, memory_tolerance: float
) -> list[Row]:
    """Return rows of sizes, peaks and counts, for serial execution of the actions.

    If a plan's transfers overlap compute, their buffers are excluded, since they are not checkpoints.
    """
    units = plan.profile.units
    costs = Case(workload=plan.workload, profile=plan.profile).costs.model_copy(
        update={"overlaps_compute": False}
    )
    trace = play(ckptplan.actions(plan), costs=costs, budget=None)
    # A unit's share of a state, or of a tape, is rounded up to whole bytes.
    slack = 0.0 if units == 1 else 1 / min(costs.state_bytes, costs.tape_bytes)
    held_once = _count_held_once(
        plan, held.local_bytes - (trace.local_peak_bytes - costs.resident_bytes) * units
    )
    quantities = {
        "state": (costs.state_bytes * units, byte_size(flatten(network.state)[0])),
        "checkpoints and tapes": (
            (trace.local_peak_bytes - costs.resident_bytes) * units + held_once,
            held.local_bytes,
        ),
        "remote peak": (trace.remote_peak_bytes, held.remote_bytes),
    }
    return [
        *(
            Row.exact(name, predicted=predicted, measured=measured, unit="bytes", slack=slack)
            for name, (predicted, measured) in quantities.items()
        ),
        *_count_rows(plan, held.events),
        _peak_row(plan, live_peak, memory_tolerance=memory_tolerance),
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


def _count_rows(plan: Plan, events: Sequence[Event]) -> Iterator[Row]:
    """Yield rows of the counts of executed actions and of the plan."""
    moved = [
        (event.track, len(event.action.states) if isinstance(event.action, Transfer) else 1)
        for event in events
        if event.track in (WRITE, READ)
    ]
    measured = {
        "recomputed_steps": sum(event.recomputed_steps for event in events),
        "remote_writes": sum(states for way, states in moved if way == WRITE),
        "remote_reads": sum(states for way, states in moved if way == READ),
        "messages": len(moved),
    }
    for name, count in measured.items():
        yield Row.exact(_COUNTS[name], predicted=plan.predicted[name], measured=count, unit="count")


def _peak_row(plan: Plan, live_peak: int, *, memory_tolerance: float) -> Row:
    predicted = plan.predicted.local_peak_bytes * plan.profile.units
    if plan.workload.calibration is not None:
        return Row.exact(
            "local peak", predicted=predicted, measured=live_peak, unit="bytes", slack=memory_tolerance
        )
    # The resident bytes of another machine do not apply here.
    return Row(
        quantity="local peak",
        unit="bytes",
        predicted=predicted,
        measured=live_peak,
        verdict=Verdict.OTHER_MACHINE,
    )


def gradient_row(expected: Sequence[torch.Tensor], found: Sequence[torch.Tensor], *, plain: bool) -> Row:
    """Return the largest difference of gradients, relative to the largest gradient of the same parameter.

    Sums are formed in another order, so at least half of the digits of the type must agree. Without ``plain``,
    the expected gradients are not from PyTorch alone, and agreement proves nothing.
    """
    shares = [0.0]
    agree = True
    for one, other in zip(expected, found, strict=True):
        scale = one.abs().max().item()
        difference = (one - other).abs().max().item()
        share = difference / scale if scale else difference
        shares.append(share)
        agree &= share <= torch.finfo(one.dtype).eps ** 0.5
    worst = math.inf if any(map(math.isnan, shares)) else max(shares)
    verdict = Verdict.OK if agree and worst < math.inf else Verdict.OFF
    if not plain and verdict is Verdict.OK:
        verdict = Verdict.UNCHECKED
    return Row(quantity="gradient difference", unit="share", predicted=0.0, measured=worst, verdict=verdict)
