"""Validates a plan: executes it and plain backpropagation, and compares predictions with measurements."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass

import torch

import ckptplan
from ckptplan.calibration.cell_spec import CellSpec
from ckptplan.calibration.cells import MeasuredNetwork, build_network, check_device
from ckptplan.calibration.comparable import check_numbers, choose_cell, why_not_comparable
from ckptplan.calibration.comparison import Measurements, PlanRuns, RunSeconds
from ckptplan.calibration.machine import machine_name, prepare_machine
from ckptplan.calibration.regret import find_rivals, list_others
from ckptplan.calibration.run_time import format_estimate, measure_pace, measure_step, round_down
from ckptplan.calibration.validation import Tolerances, Validation
from ckptplan.errors import InputError
from ckptplan.model.plan import Plan
from ckptplan.model.progress import Progress
from ckptplan.torch.chunk_cell import ChunkCell
from ckptplan.torch.memory import available_bytes
from ckptplan.torch.meters import name_clock
from ckptplan.units import format_bytes
from ckptplan.wording import Argument, Phrase

#: The seconds that a validation may take by default if times are not compared.
_MOST_SECONDS = 60.0
#: The share of available memory that a run may be predicted to need.
_SHARE = 0.7
#: How many times more memory a ``ChunkCell`` keeps under autograd, where it runs step by step.
_UNDER_AUTOGRAD = 4


def validate(
    plan: Plan,
    *,
    cell: str | None = None,
    trust_cell: bool = False,
    spec: CellSpec | None = None,
    device: str | None = None,
    thread_count: int | None = None,
    repeats: int = 5,
    tolerance: float = 0.1,
    overhead_tolerance: float = 0.03,
    memory_tolerance: float = 0.05,
    regret: bool = False,
    max_seconds: float | None = None,
    progress: Progress | None = None,
    tell: Callable[[str], None] | None = None,
) -> Validation:
    """Execute base and ``plan`` with the cell of its workload, on the same weights and data, and compare.

    Times are compared only if the workload was calibrated on this machine; otherwise nothing is timed.
    Checkpoints, tapes and counts must equal the predictions. Ctrl-C returns what was compared so far, and
    raises KeyboardInterrupt if that is nothing.

    Arguments:
        plan: the plan to validate.
        cell: replaces the cell that the workload names.
        trust_cell: whether to import and call the factory that the workload names. Built-in cells run anyway.
        spec: the cell itself, in place of ``cell`` and ``trust_cell``.
        device: replaces the device of the calibration.
        thread_count: replaces the number of threads of the calibration.
        repeats: the number of rounds, in which all variants run in turn; times are medians of rounds.
        tolerance: the share by which times may be off, in addition to the spread of the rounds.
        overhead_tolerance: how far the time added to base's may be off, as a share of the plan's time, in
            addition to the spread of the rounds: 0.03 for 3 points if the plan takes as long as base.
        memory_tolerance: the share by which the live peak may be off.
        regret: whether to run the best plan of each strategy, too.
        max_seconds: the seconds that all runs may take, as estimated from a few steps that run first; None
            means 60 if times are not compared, and otherwise no limit.
        progress: called with the milliseconds done and their estimated total.
        tell: called with a line of text, before the runs: why times are not compared, and how long they take.

    Raises InputError.
    """
    check_numbers(
        repeats=repeats,
        thread_count=thread_count,
        max_seconds=max_seconds,
        tolerance=tolerance,
        overhead_tolerance=overhead_tolerance,
        memory_tolerance=memory_tolerance,
    )
    spec = spec or choose_cell(plan.workload, cell=cell, trust=trust_cell)
    job = _Validation.of(plan, spec=spec, device=device, thread_count=thread_count)
    tolerances = Tolerances(time=tolerance, overhead=overhead_tolerance, memory=memory_tolerance)
    tell = tell or (lambda _: None)
    check_device(job.device)
    machine = machine_name(torch.device(job.device))
    reason = job.not_comparable(machine)
    if regret:
        list_others(plan)
    rivals = find_rivals(plan) if regret and reason is None else []
    if reason is not None:
        tell(f"times cannot be compared here: {reason}. Only counts, bytes and gradients are judged")
        max_seconds = _MOST_SECONDS if max_seconds is None else max_seconds
    with prepare_machine(threads=job.threads):
        clock = name_clock(torch.device(job.device))
        network = build_network(job.spec, batch=job.batch, device=job.device, seed=job.seed)
        room = _FreeMemory.on(network.device)
        if not room.holds(plan):
            raise InputError(
                f"needs {format_bytes(room.need(plan))}, but only {room.text} are free here",
                field="plan",
                accepted="a plan for less memory, or for fewer steps",
            )
        notes = [] if reason is None or not regret else ["the regret was not measured, as no time was"]
        notes += [] if reason is not None else _list_differences(plan, clock=clock)
        planned = PlanRuns(
            plan=plan,
            base=room.plan_base(plan, notes) if reason is None else None,
            plain=room.holds_autograd(plan, network),
            rivals=[one for one in rivals if room.holds(one.plan)],
            rounds=repeats if reason is None else 0,
        )
        step = measure_step(network, steps=plan.steps)
        _check_seconds(planned, planned.number * plan.steps * step, most=max_seconds, least="at least ")
        seconds = RunSeconds.of(planned, measure_pace(network, steps=plan.steps, step_seconds=step))
        _check_seconds(planned, seconds.total, most=max_seconds)
        tell(f"{planned.number} runs, {format_estimate(seconds.total)} in all")
        found = Measurements(
            runs=planned,
            network=network,
            inputs=network.inputs(plan.steps),
            seconds=seconds,
            tolerances=tolerances,
            progress=progress,
            notes=notes,
        )
        found.measure()
    return Validation(
        cell=str(job.spec),
        device=job.device,
        machine=machine,
        threads=job.threads,
        clock=clock,
        repeats=found.rounds,
        tolerances=tolerances,
        not_comparable=reason,
        rows=tuple(found.rows),
        notes=tuple(found.notes),
        regret=found.regret,
        timeline=tuple(found.timeline),
        interrupted=found.interrupted,
        plan=plan,
    )


def _list_differences(plan: Plan, *, clock: str) -> list[str]:
    """Return how this process differs from the one that calibrated, where that may move times."""
    calibration = plan.workload.calibration
    if calibration is None:
        return []
    found = []
    if calibration.clock != clock:
        found.append(f"calibrated in {calibration.clock}, measured here in {clock}")
    if calibration.torch != torch.__version__:
        found.append(f"calibrated with PyTorch {calibration.torch}, measured here with {torch.__version__}")
    return [f"{'; '.join(found)}: times may differ for that alone; calibrate again"] if found else []


def _check_seconds(planned: PlanRuns, seconds: float, *, most: float | None, least: str = "") -> None:
    """Raise InputError if the runs would take longer than ``most`` seconds.

    ``least`` says so if ``seconds`` are only the least that they can take.
    """
    if most is None or seconds <= most:
        return
    steps = planned.plan.steps
    fewer = max(1, int(steps * most / seconds))
    raise InputError(
        f"{planned.number} runs of {steps:,} steps take {least}{format_estimate(seconds)} here, and the limit "
        f"is {most:.4g} s",
        field="max_seconds",
        value=most,
        accepted=Phrase(
            Argument("max_seconds", math.ceil((3 if least else 1.5) * seconds)),
            f", or a plan for at most {round_down(fewer):,} steps, a smaller batch or a smaller network",
        ),
    )


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
        return why_not_comparable(self.plan, machine=machine, threads=self.threads)


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
