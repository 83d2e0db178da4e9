"""A plan carried out beside plain backpropagation: whether the prediction was true."""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass, field, replace
from typing import Any

import torch

import ckptplan
from ckptplan.calibration import runs, transfer_times
from ckptplan.calibration.cells import CellSpec, Network, build
from ckptplan.calibration.counter import Counter, Progress
from ckptplan.calibration.machine import machine_name, measuring
from ckptplan.calibration.regret import contenders, measured_regret
from ckptplan.calibration.samples import Sample
from ckptplan.calibration.validation import (
    Regret,
    Row,
    Validation,
    Verdict,
    beside,
    counted,
    rate,
    seconds_by_kind,
    timed,
)
from ckptplan.cost.derive import step_costs
from ckptplan.errors import InputError
from ckptplan.model.plan import Plan
from ckptplan.schedule.actions import Record, Transfer
from ckptplan.schedule.simulator import READ, WRITE, Event
from ckptplan.torch.memory import available_bytes
from ckptplan.torch.trees import byte_size, flattened
from ckptplan.units import format_bytes, format_seconds

#: Kinds of actions that a plan predicts the time of.
KINDS = ("forward", "recompute", "record", "backward", "write", "read")
#: Kinds that take next to no time, and none in the model.
_BOOKKEEPING = ("save", "load", "free")
_TRANSFER_ROUNDS = 3
#: Of the memory that is available, what a run may be predicted to take.
_SHARE = 0.7


def validate(
    plan: Plan,
    *,
    cell: str | None = None,
    device: str | None = None,
    thread_count: int | None = None,
    repeats: int = 5,
    tolerance: float = 0.1,
    memory_tolerance: float = 0.05,
    regret: bool = False,
    progress: Progress | None = None,
) -> Validation:
    """Carry out base and ``plan`` with the cell that its workload names, on the same weights and data.

    Times are medians of ``repeats`` rounds, in which all variants run in turn, and may be off by
    ``tolerance`` and by what the rounds differ; the live peak by ``memory_tolerance``; checkpoints, tapes and
    counts not at all. Times are compared where the workload was calibrated on this machine. With ``regret``,
    the best plan of each strategy runs, too. ``cell``, ``device`` and ``thread_count`` replace what the
    workload says. Raises InputError.
    """
    job = _Job.of(plan, cell=cell, device=device, thread_count=thread_count)
    with measuring(threads=job.threads):
        network = build(job.spec, batch=job.batch, device=job.device, seed=job.seed)
        rivals = contenders(plan) if regret else []
        not_comparable = job.not_comparable(machine_name(network.device))
        base, notes = _base(plan, network)
        runs_in_all = 4 + repeats * (2 + (base is not None) + len(rivals))
        runs_in_all += _TRANSFER_ROUNDS if not_comparable is None else 0
        return _Runs(
            job=job,
            network=network,
            inputs=network.inputs(plan.steps),
            repeats=repeats,
            counter=Counter(total=runs_in_all, progress=progress),
            not_comparable=not_comparable,
            base=base,
            notes=notes,
        ).validation(rivals=rivals, tolerance=tolerance, memory_tolerance=memory_tolerance)


@dataclass(frozen=True, kw_only=True)
class _Job:
    """What is run, where."""

    plan: Plan
    spec: CellSpec
    batch: int
    device: str
    threads: int
    seed: int

    @classmethod
    def of(cls, plan: Plan, *, cell: str | None, device: str | None, thread_count: int | None) -> _Job:
        workload, calibration = plan.workload, plan.workload.calibration
        if workload.batch is None:
            raise InputError(
                f"workload {workload.name!r} has no batch, so that its cell cannot be made",
                field="workload.batch",
                accepted="a whole number from 1",
            )
        neurons = None if workload.network is None else workload.network.neurons
        return cls(
            plan=plan,
            spec=CellSpec.of(workload) if cell is None else CellSpec.parse(cell, neurons=neurons),
            batch=workload.batch,
            device=device or (calibration.device if calibration else "cpu"),
            threads=thread_count or (calibration.threads if calibration else torch.get_num_threads()),
            seed=calibration.seed if calibration else 0,
        )

    def not_comparable(self, machine: str) -> str | None:
        """Return why the plan's times are those of another machine, None where they are not."""
        workload, calibration = self.plan.workload, self.plan.workload.calibration
        if calibration is None:
            return "its times were not measured by `ckptplan calibrate`"
        if workload.timed_on != self.plan.profile.name:
            return f"its times belong to {workload.timed_on}, its transfers to {self.plan.profile.name}"
        if calibration.machine != machine:
            return f"it was calibrated on another machine ({calibration.machine}; this is {machine})"
        if calibration.threads != self.threads:
            return f"it was calibrated with {calibration.threads} threads, and runs with {self.threads}"
        return None


@dataclass(kw_only=True)
class _Runs:
    """Carries out what there is to measure."""

    job: _Job
    network: Network
    inputs: Any
    repeats: int
    counter: Counter
    not_comparable: str | None
    #: None where it does not fit here.
    base: Plan | None
    notes: list[str]
    #: What was held after each action, from a run of its own.
    held: list[Event] = field(default_factory=list)

    def validation(self, *, rivals: list[Plan], tolerance: float, memory_tolerance: float) -> Validation:
        """Measure and compare."""
        comparable = self.not_comparable is None
        sizes = self._sizes(memory_tolerance=memory_tolerance)
        gradient = self._gradient()
        rates = self._rates() if comparable else []
        times, regret, timeline = self._times(rivals, tolerance=tolerance, comparable=comparable)
        if comparable:
            self._note_short_chunks(timeline)
        return Validation(
            cell=str(self.job.spec),
            device=self.job.device,
            machine=machine_name(self.network.device),
            threads=self.job.threads,
            repeats=self.repeats,
            tolerance=tolerance,
            memory_tolerance=memory_tolerance,
            not_comparable=self.not_comparable,
            rows=(*sizes, *rates, *times, gradient),
            notes=tuple(self.notes),
            regret=regret,
            timeline=tuple(
                replace(timed_, local_bytes=held.local_bytes, remote_bytes=held.remote_bytes)
                for timed_, held in zip(timeline, self.held, strict=True)
            ),
        )

    # Bytes and counts

    def _sizes(self, *, memory_tolerance: float) -> list[Row]:
        plan, units = self.job.plan, self.job.plan.profile.units
        costs = step_costs(plan.workload, plan.profile)
        held = runs.held(self.network, self.inputs, plan=plan)
        self.held = held.events
        self.counter.one()
        # A unit's share is rounded up to whole bytes.
        slack = 0.0 if units == 1 else 0.01
        played: list[Event] = []
        trace = ckptplan.simulate(plan, sink=played.append)
        rows = [
            counted(
                "state",
                predicted=costs.state_bytes * units,
                measured=byte_size(flattened(self.network.state)[0]),
                unit="bytes",
                slack=slack,
            ),
            counted(
                "checkpoints and tapes",
                predicted=(trace.local_peak_bytes - costs.resident_bytes) * units,
                measured=held.local_bytes,
                unit="bytes",
                slack=slack,
            ),
            counted(
                "remote peak",
                predicted=trace.remote_peak_bytes,
                measured=held.remote_bytes,
                unit="bytes",
                slack=slack,
            ),
            *_counts(plan, held.events),
        ]
        peak = runs.live_peak(self.network, self.inputs, plan=plan)
        self.counter.one()
        predicted = plan.predicted.local_peak_bytes * units
        if plan.workload.calibration is None:
            # What stays resident on another machine is not what stays here.
            verdict = Verdict.OTHER_MACHINE
            rows.append(
                Row(quantity="local peak", unit="bytes", predicted=predicted, measured=peak, verdict=verdict)
            )
        else:
            rows.append(
                counted("local peak", predicted=predicted, measured=peak, unit="bytes", slack=memory_tolerance)
            )
        if rows[0].verdict is Verdict.OFF:
            self.notes.append("the states differ in size: the plan was made for another cell, or batch")
        return rows

    def _gradient(self) -> Row:
        """Return the largest difference between gradients, over the largest gradient of each parameter."""
        reference, steps = None, self.job.plan.steps
        if self.base is None:
            reference = runs.setting("standard", steps=steps, chunk_size=32)
        expected = runs.gradients(self.network, self.inputs, steps=steps, plan=reference)
        self.counter.one()
        found = runs.gradients(self.network, self.inputs, steps=steps, plan=self.job.plan)
        self.counter.one()
        shares, digits = [0.0], [torch.finfo(torch.float64).eps]
        for one, other in zip(expected, found, strict=True):
            scale = one.abs().max().item()
            difference = (one - other).abs().max().item()
            shares.append(difference / scale if scale else difference)
            digits.append(torch.finfo(one.dtype).eps)
        # Sums in another order: half of the digits agree at least.
        allowed = max(digits) ** 0.5
        worst = float("inf") if any(map(math.isnan, shares)) else max(shares)
        return Row(
            quantity="gradient difference",
            unit="share",
            predicted=0.0,
            measured=worst,
            verdict=Verdict.OK if worst <= allowed else Verdict.OFF,
        )

    # Times

    def _rates(self) -> list[Row]:
        """Return the machine's bandwidths, measured anew: a plan that moves little says little about them."""
        plan = self.job.plan
        costs = step_costs(plan.workload, plan.profile)
        # What transfers really move, in case the plan is wrong about it.
        size = byte_size(flattened(self.network.state)[0])
        found = self.counter.last(transfer_times.measure(self.network, repeats=_TRANSFER_ROUNDS))
        ways = (
            ("write", costs.write_seconds, found.write_seconds),
            ("read", costs.read_seconds, found.read_seconds),
        )
        return [
            rate(f"{way} bandwidth", predicted=costs.remote_state_bytes / planned, measured=size / measured)
            for way, planned, measured in ways
            if planned and measured
        ]

    def _times(
        self, rivals: list[Plan], *, tolerance: float, comparable: bool
    ) -> tuple[list[Row], Regret | None, list[Event]]:
        plan, base = self.job.plan, self.base
        totals: list[float] = []
        bases: list[float] = []
        lines: list[list[Event]] = []
        others: list[list[float]] = [[] for _ in rivals]
        runs.seconds(self.network, self.inputs, plan=plan)
        for _ in range(self.repeats):
            totals.append(self._seconds(plan))
            if base is not None:
                bases.append(self._seconds(base))
            lines.append(runs.timeline(self.network, self.inputs, plan=plan))
            self.counter.one()
            for rival, times in zip(rivals, others, strict=True):
                times.append(self._seconds(rival))
        total = Sample(values=tuple(totals))
        rows = _time_rows(plan, lines, total, tolerance=tolerance, comparable=comparable)
        if base is not None:
            rows += _base_rows(
                plan, base, total, Sample(values=tuple(bases)), tolerance=tolerance, comparable=comparable
            )
        found = measured_regret(plan, total, rivals, others) if rivals else None
        return rows, found, sorted(lines, key=lambda line: line[-1].end)[len(lines) // 2]

    def _seconds(self, plan: Plan) -> float:
        found = runs.seconds(self.network, self.inputs, plan=plan)
        self.counter.one()
        return found

    def _note_short_chunks(self, timeline: list[Event]) -> None:
        """Say where chunks are shorter than the calibration holds for."""
        calibration = self.job.plan.workload.calibration
        assert calibration is not None  # noqa: S101 - what is comparable was calibrated
        chunks = [one.action.stop - one.action.start for one in timeline if isinstance(one.action, Record)]
        short = sum(chunk < calibration.shortest_chunk for chunk in chunks)
        if short > 1:
            beside_steps = format_seconds(len(chunks) * calibration.chunk_overhead_seconds)
            self.notes.append(
                f"{short:,} of {len(chunks):,} chunks are shorter than {calibration.shortest_chunk} steps, "
                f"which the calibration holds for; chunks take about {beside_steps} beside their steps"
            )


def _base(plan: Plan, network: Network) -> tuple[Plan | None, list[str]]:
    """Return the plan of base, None where it does not fit here, and what is to be said about that."""
    base = ckptplan.optimize(plan.workload, plan.profile, strategies=["base"], local_bytes=2**60)
    need = base.predicted.local_peak_bytes * plan.profile.units
    available = available_bytes(network.device)
    if available is None or need <= _SHARE * available:
        return base, []
    return None, [
        f"base needs {format_bytes(need)}, too much for the {format_bytes(available)} that are free here: it "
        "was not run, and gradients were compared with those of another plan"
    ]


def _counts(plan: Plan, events: list[Event]) -> Iterator[Row]:
    """Return what the executed actions come to, beside what the plan says."""
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
    names = {
        "recomputed_steps": "steps run again",
        "remote_writes": "states written",
        "remote_reads": "states read",
        "messages": "messages",
    }
    for name, found in measured.items():
        yield counted(names[name], predicted=plan.predicted[name], measured=found, unit="count")


def _time_rows(
    plan: Plan, lines: list[list[Event]], total: Sample, *, tolerance: float, comparable: bool
) -> list[Row]:
    played: list[Event] = []
    ckptplan.simulate(plan, sink=played.append)
    predicted = seconds_by_kind(played)
    measured = [seconds_by_kind(line) for line in lines]
    calibration = plan.workload.calibration
    # Messages are small, and know their own uncertainty.
    transfers = calibration.transfer_uncertainty if calibration is not None else 0.0
    rows = [
        timed(
            kind,
            predicted=predicted.get(kind, 0.0),
            sample=Sample(values=tuple(one.get(kind, 0.0) for one in measured)),
            tolerance=tolerance + (transfers if kind in (WRITE, READ) else 0.0),
            whole=total.median,
            comparable=comparable,
        )
        for kind in KINDS
        if kind in predicted or kind in measured[0]
    ]
    keeping = Sample(values=tuple(sum(one.get(kind, 0.0) for kind in _BOOKKEEPING) for one in measured))
    inside = Sample(values=tuple(sum(one.values()) for one in measured))
    outside = Sample(values=(max(0.0, total.median - inside.median),))
    return [
        *rows,
        beside("saving and loading locally", sample=keeping),
        beside("before, between and after", sample=outside),
        timed(
            "total",
            predicted=plan.predicted.seconds,
            sample=total,
            tolerance=tolerance,
            whole=total.median,
            comparable=comparable,
        ),
    ]


def _base_rows(
    plan: Plan, base: Plan, total: Sample, bases: Sample, *, tolerance: float, comparable: bool
) -> list[Row]:
    ratio = Sample(values=tuple(one / other for one, other in zip(total.values, bases.values, strict=True)))
    noise = (max(ratio.values) - min(ratio.values)) / 2 / ratio.median
    agrees = abs(1 + plan.predicted.overhead - ratio.median) <= (tolerance + noise) * ratio.median
    return [
        timed(
            "base",
            predicted=base.predicted.seconds,
            sample=bases,
            tolerance=tolerance,
            whole=bases.median,
            comparable=comparable,
        ),
        Row(
            quantity="time over base",
            unit="share",
            predicted=1 + plan.predicted.overhead,
            measured=ratio.median,
            noise=noise,
            verdict=Verdict.OTHER_MACHINE if not comparable else Verdict.OK if agrees else Verdict.OFF,
        ),
    ]
