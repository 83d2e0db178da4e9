"""Validates a plan: executes it and plain backpropagation, and compares predictions with measurements."""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from typing import Any

import torch

import ckptplan
from ckptplan.calibration import runs
from ckptplan.calibration.cells import CellSpec, MeasuredNetwork, build_network
from ckptplan.calibration.compared_bytes import byte_rows, gradient_row
from ckptplan.calibration.compared_times import base_rows, machine_rows, time_rows
from ckptplan.calibration.counter import RunCounter
from ckptplan.calibration.machine import machine_name, prepare_machine
from ckptplan.calibration.regret import RivalPlan, compute_regret, find_rivals
from ckptplan.calibration.samples import Sample
from ckptplan.calibration.transfer_times import measure as measure_transfers
from ckptplan.calibration.validation import Regret, Row, Validation, Verdict
from ckptplan.errors import InputError
from ckptplan.model.plan import Plan
from ckptplan.model.progress import Progress
from ckptplan.model.workload import Workload
from ckptplan.planning.playback import make_schedule
from ckptplan.schedule.actions import Record
from ckptplan.schedule.timeline import Event
from ckptplan.torch.chunk_cell import ChunkCell
from ckptplan.torch.memory import available_bytes
from ckptplan.units import format_bytes, format_seconds

_TRANSFER_ROUNDS = 3
#: The share of available memory that a run may be predicted to need.
_SHARE = 0.7
#: How many times more memory a ``ChunkCell`` keeps under autograd, where it runs step by step.
_UNDER_AUTOGRAD = 4


def validate(
    plan: Plan,
    *,
    cell: str | None = None,
    trust_cell: bool = False,
    device: str | None = None,
    thread_count: int | None = None,
    repeats: int = 5,
    tolerance: float = 0.1,
    memory_tolerance: float = 0.05,
    regret: bool = False,
    progress: Progress | None = None,
) -> Validation:
    """Execute base and ``plan`` with the cell of its workload, on the same weights and data, and compare.

    Times are compared only if the workload was calibrated on this machine. Checkpoints, tapes and counts must
    equal the predictions.

    Arguments:
        plan: the plan to validate.
        cell: replaces the cell that the workload names.
        trust_cell: whether to import and call the factory that the workload names. Built-in cells run anyway.
        device: replaces the device of the calibration.
        thread_count: replaces the number of threads of the calibration.
        repeats: the number of rounds, in which all variants run in turn; times are medians of rounds.
        tolerance: the share by which times may be off, in addition to the spread of the rounds.
        memory_tolerance: the share by which the live peak may be off.
        regret: whether to run the best plan of each strategy, too.
        progress: called with the runs done and the total number of runs.

    Raises InputError.
    """
    spec = _choose_cell(plan.workload, cell=cell, trust=trust_cell)
    job = _Validation.of(plan, spec=spec, device=device, thread_count=thread_count)
    with prepare_machine(threads=job.threads):
        network = build_network(job.spec, batch=job.batch, device=job.device, seed=job.seed)
        room = _FreeMemory.on(network.device)
        if not room.holds(plan):
            raise InputError(
                f"needs {format_bytes(room.need(plan))}, but only {room.text} are free here",
                field="plan",
                accepted="a plan for less memory, or for fewer steps",
            )
        notes: list[str] = []
        rivals = find_rivals(plan) if regret else []
        return _Comparison(
            job=job,
            network=network,
            inputs=network.inputs(plan.steps),
            repeats=repeats,
            not_comparable=job.not_comparable(machine_name(network.device)),
            base=room.plan_base(plan, notes),
            plain=room.holds_autograd(plan, network),
            rivals=[one for one in rivals if room.holds(one.plan)],
            notes=notes,
            progress=progress,
        ).validation(tolerance=tolerance, memory_tolerance=memory_tolerance)


def _choose_cell(workload: Workload, *, cell: str | None, trust: bool) -> CellSpec:
    """Return the caller's cell, or that of the workload. Raises InputError."""
    if cell is None:
        return CellSpec.of(workload, trust=trust)
    return CellSpec.parse(cell, neurons=None if workload.network is None else workload.network.neurons)


@dataclass(frozen=True, kw_only=True)
class _Validation:
    """What to run, and where."""

    plan: Plan
    spec: CellSpec
    batch: int
    device: str
    threads: int
    seed: int

    @classmethod
    def of(cls, plan: Plan, *, spec: CellSpec, device: str | None, thread_count: int | None) -> _Validation:
        workload, calibration = plan.workload, plan.workload.calibration
        if workload.batch is None:
            raise InputError(
                f"workload {workload.name!r} has no batch size, so its cell cannot be built",
                field="workload.batch",
                accepted="a whole number from 1",
            )
        return cls(
            plan=plan,
            spec=spec,
            batch=workload.batch,
            device=device or (calibration.device if calibration else "cpu"),
            threads=thread_count or (calibration.threads if calibration else torch.get_num_threads()),
            seed=calibration.seed if calibration else 0,
        )

    def not_comparable(self, machine: str) -> str | None:
        """Return why the plan's times cannot be compared with measurements here, None if they can."""
        workload, calibration = self.plan.workload, self.plan.workload.calibration
        if calibration is None:
            return "its times were not measured by `ckptplan calibrate`"
        if workload.timed_on != self.plan.profile.name:
            return f"its times belong to {workload.timed_on}, its transfers to {self.plan.profile.name}"
        if calibration.machine != machine:
            return f"it was calibrated on another machine ({calibration.machine}; this is {machine})"
        if calibration.threads != self.threads:
            return f"it was calibrated with {calibration.threads_text}, and runs with {self.threads}"
        return None


@dataclass(frozen=True, kw_only=True)
class _FreeMemory:
    """The bytes of free memory, None if the system does not report them."""

    free: int | None

    @classmethod
    def on(cls, device: torch.device) -> _FreeMemory:
        return cls(free=available_bytes(device))

    @property
    def text(self) -> str:
        """The amount as text."""
        return "bytes" if self.free is None else format_bytes(self.free)

    def need(self, plan: Plan) -> int:
        """Return the bytes that a plan needs here, where all units and both memories are in one place."""
        return plan.predicted.local_peak_bytes * plan.profile.units + plan.predicted.remote_peak_bytes

    def holds(self, plan: Plan, *, times: int = 1) -> bool:
        """Return whether ``times`` the memory of a plan is available."""
        return self.free is None or times * self.need(plan) <= _SHARE * self.free

    def plan_base(self, plan: Plan, notes: list[str]) -> Plan | None:
        """Return the plan of base, or None, with a note, if it does not fit here."""
        base = _plan_base(plan)
        if self.holds(base):
            return base
        notes.append(
            f"base needs {format_bytes(self.need(base))}, but only {self.text} are free here: it was not run"
        )
        return None

    def holds_autograd(self, plan: Plan, network: MeasuredNetwork) -> bool:
        """Return whether plain BPTT in PyTorch fits here."""
        return self.holds(_plan_base(plan), times=_UNDER_AUTOGRAD if isinstance(network.cell, ChunkCell) else 1)


def _plan_base(plan: Plan) -> Plan:
    return ckptplan.optimize(plan.workload, plan.profile, strategies=["base"], local_bytes=2**60)


@dataclass(kw_only=True)
class _Comparison:
    """Runs all measurements of a validation, and compares them with the plan."""

    job: _Validation
    network: MeasuredNetwork
    inputs: Any
    repeats: int
    not_comparable: str | None
    #: The plan of base, None if it does not fit here.
    base: Plan | None
    #: Whether plain BPTT fits here.
    plain: bool
    #: The plan itself and its alternatives; empty if regret is not requested.
    rivals: list[RivalPlan]
    notes: list[str]
    progress: Progress | None
    counter: RunCounter = field(init=False)
    #: The events of a separate run, with the bytes held after each action.
    held: list[Event] = field(default_factory=list)

    def __post_init__(self) -> None:
        variants = 1 + (self.base is not None) + len(self.rivals[1:])
        beside = 4 + (_TRANSFER_ROUNDS if self.not_comparable is None else 0)
        runs_in_all = beside + variants * (self.repeats + 1) + self.repeats
        self.counter = RunCounter(total=runs_in_all, progress=self.progress)

    def validation(self, *, tolerance: float, memory_tolerance: float) -> Validation:
        """Measure and compare."""
        comparable = self.not_comparable is None
        sizes = self._sizes(memory_tolerance=memory_tolerance)
        gradient = self._gradient()
        machine = self._machine() if comparable else []
        times, regret, timeline = self._times(tolerance=tolerance, comparable=comparable)
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
            rows=(*sizes, *machine, *times, gradient),
            notes=tuple(self.notes),
            regret=regret,
            timeline=tuple(
                replace(timed_, local_bytes=held.local_bytes, remote_bytes=held.remote_bytes)
                for timed_, held in zip(timeline, self.held, strict=True)
            ),
        )

    def _sizes(self, *, memory_tolerance: float) -> list[Row]:
        plan = self.job.plan
        held = runs.measure_held(self.network, self.inputs, plan=plan)
        self.held = held.events
        self.counter.count()
        peak = runs.measure_live_peak(self.network, self.inputs, plan=plan)
        self.counter.count()
        rows = byte_rows(plan, self.network, held=held, live_peak=peak, memory_tolerance=memory_tolerance)
        if rows[0].verdict is Verdict.OFF:
            self.notes.append("the states differ in size: the plan was made for another cell or batch size")
        return rows

    def _gradient(self) -> Row:
        steps = self.job.plan.steps
        reference = None if self.plain else make_schedule("standard", steps=steps, chunk_size=min(48, steps))
        expected = runs.compute_gradients(self.network, self.inputs, steps=steps, plan=reference)
        self.counter.count()
        found = runs.compute_gradients(self.network, self.inputs, steps=steps, plan=self.job.plan)
        self.counter.count()
        return gradient_row(expected, found, plain=self.plain)

    def _machine(self) -> list[Row]:
        found = measure_transfers(self.network, repeats=_TRANSFER_ROUNDS, counter=self.counter)
        return machine_rows(self.job.plan, self.network, found)

    def _times(self, *, tolerance: float, comparable: bool) -> tuple[list[Row], Regret | None, list[Event]]:
        plan = self.job.plan
        rivals = self.rivals[1:]
        plans = [plan, *([self.base] if self.base else []), *(one.plan for one in rivals)]
        seconds: list[list[float]] = [[] for _ in plans]
        lines: list[list[Event]] = []
        for number in range(self.repeats + 1):
            for one, values in zip(plans, seconds, strict=True):
                taken = runs.measure_seconds(self.network, self.inputs, plan=one)
                self.counter.count()
                if number:
                    # The first round warms up.
                    values.append(taken)
            if number:
                lines.append(runs.record_timeline(self.network, self.inputs, plan=plan))
                self.counter.count()
        total, *others = (Sample(values=tuple(values)) for values in seconds)
        rows = time_rows(plan, lines, total, tolerance=tolerance, comparable=comparable)
        if self.base is not None:
            bases, *others = others
            rows += base_rows(plan, self.base, total, bases, tolerance=tolerance, comparable=comparable)
        regret = compute_regret(total, self.rivals, others) if self.rivals else None
        return rows, regret, sorted(lines, key=lambda line: line[-1].end)[len(lines) // 2]

    def _note_short_chunks(self, timeline: list[Event]) -> None:
        """Add a note if chunks are shorter than the calibration covers."""
        calibration = self.job.plan.workload.calibration
        assert calibration is not None  # noqa: S101 - what is comparable was calibrated
        chunks = sum(isinstance(one.action, Record) for one in timeline)
        mean = self.job.plan.steps / chunks
        if mean < calibration.shortest_chunk:
            beside_steps = format_seconds(chunks * calibration.chunk_overhead_seconds)
            self.notes.append(
                f"its {chunks:,} chunks have {mean:.3g} steps on average, and the calibration holds for "
                f"{calibration.shortest_chunk} or more: they take about {beside_steps} besides their steps, "
                "which is not predicted"
            )
