"""Runs all measurements of a validation, and compares them with the plan.

Bytes, moved states, recomputed steps and gradients are counted.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import torch

import ckptplan
from ckptplan.calibration import runs
from ckptplan.calibration.cells import MeasuredNetwork
from ckptplan.calibration.compared_times import (
    base_rows,
    machine_rows,
    note_action_times,
    note_meter,
    predates_action_times,
    time_rows,
)
from ckptplan.calibration.counter import RunCounter
from ckptplan.calibration.regret import RivalPlan, compute_regret
from ckptplan.calibration.run_time import Pace, SecondsCounter, Work
from ckptplan.calibration.runs import HeldObserver, TimedRun
from ckptplan.calibration.samples import Sample
from ckptplan.calibration.transfer_times import measure as measure_transfers
from ckptplan.calibration.validation import Regret, Row, Tolerances, Verdict
from ckptplan.cost.case import Case
from ckptplan.errors import CkptplanError
from ckptplan.model.plan import Plan
from ckptplan.model.progress import Progress
from ckptplan.planning.playback import make_schedule
from ckptplan.schedule.actions import Backward, Record, Transfer
from ckptplan.schedule.schedule import Schedule
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


#: Rounds in which transfers are measured again, and the steps of a round.
_TRANSFER_ROUNDS, _TRANSFER_STEPS = 3, 400
#: Steps of a chunk of the schedule that plain BPTT is replaced by if it does not fit.
_CHUNK = 48


@dataclass(kw_only=True)
class PlanRuns:
    """The plans and schedules that a validation runs, and how often."""

    plan: Plan
    #: The plan of base, None if it does not fit here.
    base: Plan | None
    #: Whether gradients are compared with those of plain BPTT, which may not fit here.
    plain: bool
    #: The plan itself and its alternatives; empty if the regret is not measured.
    rivals: Sequence[RivalPlan]
    #: Rounds in which times are measured; 0 if they are not compared.
    rounds: int

    @property
    def timed(self) -> list[Plan]:
        """The plans that run in turn: the plan itself, base, and the alternatives."""
        return [self.plan, *([self.base] if self.base else []), *(one.plan for one in self.rivals[1:])]

    @property
    def reference(self) -> Schedule | None:
        """The schedule whose gradients are the expected ones; None for plain BPTT."""
        steps = self.plan.steps
        return None if self.plain else make_schedule("standard", steps=steps, chunk_size=min(_CHUNK, steps))

    @property
    def number(self) -> int:
        """The number of runs."""
        timed = len(self.timed) * (self.rounds + 1) + self.rounds + _TRANSFER_ROUNDS
        return 4 + (timed if self.rounds else 0)


@dataclass(frozen=True, kw_only=True)
class RunSeconds:
    """Estimated seconds of the runs of a validation."""

    plan: float
    held: float
    peak: float
    reference: float
    #: A round of transfers; one of all plans in turn.
    transfers: float
    round_: float
    total: float

    @classmethod
    def of(cls, planned: PlanRuns, pace: Pace) -> RunSeconds:
        """Return the estimate at a pace."""
        steps, reference = planned.plan.steps, planned.reference
        own = pace.seconds(Work.of(planned.plan))
        expected = steps * pace.plain_seconds if reference is None else pace.seconds(Work.of(reference))
        transfers = _TRANSFER_STEPS * (pace.forward_seconds + pace.record_seconds)
        round_ = sum(pace.seconds(Work.of(one)) for one in planned.timed)
        rounds = planned.rounds
        timed = (rounds + 1) * round_ + rounds * own + _TRANSFER_ROUNDS * transfers
        return cls(
            plan=own,
            held=own * pace.held_factor,
            peak=own * pace.peak_factor,
            reference=expected,
            transfers=transfers,
            round_=round_,
            total=own * (1 + pace.held_factor + pace.peak_factor) + expected + (timed if rounds else 0),
        )


@dataclass(kw_only=True)
class Measurements:
    """Runs all measurements, and keeps what was compared so far.

    Ctrl-C ends them: the rows are then those of what was measured before, and ``interrupted`` is set.
    """

    runs: PlanRuns
    network: MeasuredNetwork
    inputs: Any
    seconds: RunSeconds
    tolerances: Tolerances
    progress: Progress | None
    rows: list[Row] = field(default_factory=list)
    notes: list[str] = field(default_factory=list)
    regret: Regret | None = None
    timeline: list[Event] = field(default_factory=list)
    #: Rounds that were completed.
    rounds: int = 0
    interrupted: bool = False

    def measure(self) -> None:
        """Measure and compare. Raises KeyboardInterrupt if nothing was compared before Ctrl-C."""
        counter = SecondsCounter(seconds=self.seconds.total, progress=self.progress)
        try:
            held = self._compare_sizes(counter)
            self._compare_gradients(counter)
            if self.runs.rounds:
                self._compare_machine(counter)
                self._compare_times(counter, held)
        except KeyboardInterrupt:
            if not self.rows:
                raise
            self.interrupted = True
        counter.end()

    def _compare_sizes(self, counter: SecondsCounter) -> list[Event]:
        """Compare bytes and counts; return the events of a run, with the bytes held after each action."""
        plan, actions = self.runs.plan, Work.of(self.runs.plan).actions
        with counter.run(self.seconds.held, actions=actions) as tick:
            held = runs.measure_held(self.network, self.inputs, plan=plan, tick=tick)
        with counter.run(self.seconds.peak, actions=actions) as tick:
            peak = runs.measure_live_peak(self.network, self.inputs, plan=plan, tick=tick)
        rows = byte_rows(plan, self.network, held=held, live_peak=peak, memory_tolerance=self.tolerances.memory)
        if rows[0].verdict is Verdict.OFF:
            self.notes.append("the states differ in size: the plan was made for another cell or batch size")
        self.rows += rows
        self.timeline = held.events
        return held.events

    def _compare_gradients(self, counter: SecondsCounter) -> None:
        plan, reference = self.runs.plan, self.runs.reference
        with counter.run(self.seconds.reference):
            expected = runs.compute_gradients(self.network, self.inputs, steps=plan.steps, plan=reference)
        with counter.run(self.seconds.plan, actions=Work.of(plan).actions) as tick:
            found = runs.compute_gradients(self.network, self.inputs, steps=plan.steps, plan=plan, tick=tick)
        row = gradient_row(expected, found, plain=self.runs.plain)
        self.rows.append(self._compare_in_double(row) if row.verdict is Verdict.OFF else row)

    def _compare_in_double(self, single: Row) -> Row:
        """Compare gradients that differ once more, in double precision.

        Whether a neuron at its threshold fires may depend on rounding, and then all that follows it does. In
        double precision that is next to impossible.
        """
        plan, reference = self.runs.plan, self.runs.reference
        told = f"in single precision the gradients differ by {single.measured:.3g}"
        try:
            network = self.network.in_double()
            inputs = network.inputs(plan.steps)
            expected = runs.compute_gradients(network, inputs, steps=plan.steps, plan=reference)
            found = runs.compute_gradients(network, inputs, steps=plan.steps, plan=plan)
        except (CkptplanError, RuntimeError, TypeError) as error:
            self.notes.append(f"{told}, and the cell does not run in double precision: {error}")
            return single
        row = gradient_row(expected, found, plain=self.runs.plain)
        if row.verdict is Verdict.OFF:
            return single
        self.notes.append(
            f"{told}, and in double precision they agree, which is shown: rounding decided whether a neuron at "
            "its threshold fires"
        )
        return row

    def _compare_machine(self, counter: SecondsCounter) -> None:
        with counter.run(_TRANSFER_ROUNDS * self.seconds.transfers, actions=_TRANSFER_ROUNDS) as tick:
            rounds = RunCounter(total=_TRANSFER_ROUNDS, progress=lambda *_: tick())
            found = measure_transfers(self.network, repeats=_TRANSFER_ROUNDS, counter=rounds)
        self.rows += machine_rows(self.runs.plan, self.network, found)

    def _compare_times(self, counter: SecondsCounter, held: Sequence[Event]) -> None:
        seconds: list[list[float]] = []
        timed: list[TimedRun] = []
        try:
            for number in range(self.runs.rounds + 1):
                self._run_round(counter, seconds, timed, warms_up=number == 0)
        except KeyboardInterrupt:
            self.interrupted = True
        self.rounds = len(timed)
        if timed:
            self._judge_times([Sample(values=values) for values in zip(*seconds, strict=True)], timed)
            middle = sorted(timed, key=lambda one: one.events[-1].end)[len(timed) // 2]
            self.timeline = [
                replace(one, local_bytes=other.local_bytes, remote_bytes=other.remote_bytes)
                for one, other in zip(middle.events, held, strict=True)
            ]

    def _run_round(
        self, counter: SecondsCounter, seconds: list[list[float]], timed: list[TimedRun], *, warms_up: bool
    ) -> None:
        """Run all plans in turn; what is measured counts only if the round is completed."""
        plans, plan = self.runs.timed, self.runs.plan
        with counter.run(self.seconds.round_, actions=len(plans)) as tick:
            taken = []
            for one in plans:
                taken.append(runs.measure_seconds(self.network, self.inputs, plan=one))
                tick()
        if warms_up:
            return
        with counter.run(self.seconds.plan):
            run = runs.time_actions(self.network, self.inputs, plan=plan)
        seconds.append(taken)
        timed.append(run)

    def _judge_times(self, samples: Sequence[Sample], timed: Sequence[TimedRun]) -> None:
        plan, base, allowed = self.runs.plan, self.runs.base, self.tolerances
        total, *others = samples
        self.rows += time_rows(plan, timed, total, tolerance=allowed.time)
        if base is not None:
            bases, *others = others
            self.rows += base_rows(
                plan, base, total, bases, tolerance=allowed.time, overhead_tolerance=allowed.overhead
            )
        if self.runs.rivals:
            self.regret = compute_regret(total, self.runs.rivals, others, tolerance=allowed.time)
        note = note_meter(timed, total)
        self.notes += [] if note is None else [note]
        calibration = plan.workload.calibration
        if calibration is not None and predates_action_times(plan.workload):
            self.notes.append(
                note_action_times(
                    steps=plan.steps,
                    chunks=sum(isinstance(one.action, Record) for one in timed[0].events),
                    shortest_chunk=calibration.shortest_chunk,
                    chunk_overhead_seconds=calibration.chunk_overhead_seconds,
                )
            )
