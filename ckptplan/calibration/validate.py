"""Validates a plan: executes it and plain backpropagation, and compares predictions with measurements."""

from __future__ import annotations

import math
import os
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from statistics import median
from typing import Annotated, Any

from pydantic import Field

import ckptplan
from ckptplan.calibration.backend import (
    Backend,
    Environment,
    Gradient,
    PilotTimes,
    Program,
    RunCounter,
    TimedRun,
)
from ckptplan.calibration.calibrate import open_backend
from ckptplan.calibration.cell_spec import CellSpec
from ckptplan.calibration.host import KEEPS_MEMORY
from ckptplan.calibration.validation import (
    Contender,
    Regret,
    Row,
    Tolerances,
    Validation,
    Verdict,
    base_rows,
    byte_rows,
    explain_difference,
    gradient_row,
    machine_rows,
    note_meter,
    time_rows,
)
from ckptplan.errors import CkptplanError, InputError
from ckptplan.model.checked import CheckedModel
from ckptplan.model.plan import Plan
from ckptplan.model.progress import Progress
from ckptplan.model.workload import Workload
from ckptplan.planning.playback import group_same_schedules, make_schedule
from ckptplan.schedule.schedule import Schedule
from ckptplan.schedule.timeline import Event
from ckptplan.storage.memory import round_down
from ckptplan.units import format_bytes, format_seconds, format_wait
from ckptplan.wording import Argument

#: The seconds that a validation may take by default: if times are compared, and if they are not.
_MOST_TIMED, _MOST_SECONDS = 600.0, 60.0
#: What takes so many times too long by calibrated times, or by those of the first steps, is refused at once:
#: the machine may be quicker by now, and later steps may take a fifth of the first ones.
_DOUBT = 10.0
#: A limit that is proposed is so many times the estimate, which may be off.
_SPARE = 1.5
#: The share of available memory that a run may be predicted to need.
_SHARE = 0.7
#: Rounds in which messages are timed again, and the steps of a round.
_MESSAGE_ROUNDS, _MESSAGE_STEPS = 3, 400
#: Seconds of touching new memory from which they are told.
_LEAST_SHOWN = 1e-3
#: Steps of a chunk of the schedule that plain BPTT is replaced by if it does not fit.
_CHUNK = 48


def validate(
    plan: Plan,
    *,
    cell: str | None = None,
    trust_cell: bool = False,
    spec: CellSpec | None = None,
    device: str | None = None,
    thread_count: int | None = None,
    remote_dir: str | os.PathLike[str] | None = None,
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
        remote_dir: the folder of remote checkpoints, in place of host memory; times are then wall time.
        repeats: the number of rounds, in which all variants run in turn; times are lower quartiles of rounds.
        tolerance: the share by which times may be off, besides the intervals of prediction and measurement.
        overhead_tolerance: how far the time added to base's may be off, as a share of the plan's time, or
            of base's if that is longer, besides these intervals.
        memory_tolerance: the share by which the live peak may be off.
        regret: whether to run the best plan of each strategy, too.
        max_seconds: the seconds that all runs may take, as estimated from a few steps that run first; None
            means 60 if times are not compared, and otherwise 600.
        progress: called with the milliseconds done and their estimated total.
        tell: called with a line of text, before the runs: why times are not compared, and how long they take.

    Raises InputError.
    """
    _Limits(repeats=repeats, thread_count=thread_count, max_seconds=max_seconds)
    tolerances = Tolerances(
        tolerance=tolerance, overhead_tolerance=overhead_tolerance, memory_tolerance=memory_tolerance
    )
    spec = spec or choose_cell(plan.workload, cell=cell, trust=trust_cell)
    workload, calibration = plan.workload, plan.workload.calibration
    if workload.batch is None:
        raise InputError(
            f"workload {workload.name!r} has no batch size, so its cell cannot be built",
            field="workload.batch",
            accepted="a whole number from 1",
        )
    backend = open_backend(
        spec,
        device=device or (calibration.device if calibration else "cpu"),
        thread_count=thread_count or (calibration.threads if calibration else None),
        remote_dir=remote_dir,
        states=max(1, plan.predicted.remote_peak_bytes // (workload.state_bytes * plan.profile.units)),
    )
    tell = tell or (lambda _: None)
    with backend.prepare():
        environment = backend.environment
        reason = why_not_comparable(plan, environment)
        if regret:
            list_others(plan)
        if reason is not None:
            tell(f"times cannot be compared here: {reason}. Only counts, bytes and gradients are judged")
        if max_seconds is None:
            max_seconds = _MOST_TIMED if reason is None else _MOST_SECONDS
        found = _Comparison(
            plan=plan,
            backend=backend,
            environment=environment,
            network=backend.build(spec, batch=workload.batch, seed=calibration.seed if calibration else 0),
            rounds=repeats if reason is None else 0,
            tolerances=tolerances,
        )
        found.choose_plans(regret=regret)
        found.estimate(max_seconds=max_seconds)
        tell(f"{len(found.seconds)} runs, {format_wait(sum(found.seconds))} in all")
        found.measure(progress)
    return Validation(
        plan=plan,
        cell=str(spec),
        environment=environment,
        repeats=found.rounds_done,
        tolerances=tolerances,
        not_comparable=reason,
        rows=tuple(found.rows),
        notes=tuple(found.notes),
        regret=found.regret,
        timeline=tuple(found.timeline),
        interrupted=found.interrupted,
    )


class _Limits(CheckedModel):
    """Numbers that leave something to compare."""

    repeats: Annotated[int, Field(strict=True, ge=1, description="a whole number from 1")]
    thread_count: Annotated[int | None, Field(strict=True, ge=1, description="a whole number from 1")]
    max_seconds: Annotated[float | None, Field(strict=True, gt=0, description="a number above 0, in seconds")]


def choose_cell(workload: Workload, *, cell: str | None, trust: bool) -> CellSpec:
    """Return the caller's cell, or that of the workload. Raises InputError."""
    if cell is None:
        return CellSpec.of(workload, trust=trust)
    if workload.cell is not None and workload.cell.partition("(")[0] == cell:
        # The caller names the factory, so it is trusted; the sizes are the workload's.
        return CellSpec.of(workload, trust=True)
    return CellSpec.parse(cell, neurons=None if workload.network is None else workload.network.neurons)


def why_not_comparable(plan: Plan, here: Environment) -> str | None:
    """Return why the times of a plan cannot be compared with measurements here, None if they can."""
    workload, calibration = plan.workload, plan.workload.calibration
    if calibration is None:
        return "its times were not measured by `ckptplan calibrate`"
    if workload.timed_on != plan.profile.name:
        return f"its times belong to {workload.timed_on}, its transfers to {plan.profile.name}"
    if calibration.machine != here.machine:
        return f"it was calibrated on another machine ({calibration.machine}; this is {here.machine})"
    if calibration.threads != here.threads:
        return f"it was calibrated with {calibration.threads_text}, and runs with {here.threads}"
    if not calibration.times_actions:
        return "it was calibrated before the costs of actions were measured, which count as 0; calibrate again"
    return None if here.runs_as(calibration) else f"it was calibrated in {calibration.framework.split()[0]}"


def list_others(plan: Plan) -> tuple[str, ...]:
    """Return the other strategies among which a plan was chosen. Raises InputError if there was none."""
    others = tuple(name for name in plan.goal.strategies if name != plan.strategy)
    if not others:
        raise InputError(
            f"{plan.strategy} was the only strategy requested, so there was no choice",
            field="regret",
            accepted="a plan chosen among several strategies",
        )
    return others


def _find_rivals(plan: Plan) -> list[list[Plan]]:
    """Return ``plan`` and the best plan of each other strategy that was compared when it was chosen.

    Plans with equal schedules are in one list, of which the first runs.
    """
    goal = plan.goal
    compared = ckptplan.compare(
        plan.workload,
        plan.profile,
        strategies=list_others(plan),
        objective=goal.objective,
        model=goal.model,
        max_overhead=goal.max_overhead,
        local_bytes=goal.local_bytes,
        remote_bytes="unbounded" if goal.remote_bytes is None else goal.remote_bytes,
        effort=goal.effort,
    )
    return group_same_schedules([plan, *(one for one in compared.values() if isinstance(one, Plan))])


@dataclass(kw_only=True)
class _Comparison:
    """Runs all measurements, and keeps what was compared so far.

    Ctrl-C ends them: the rows are then those of what was measured before, and ``interrupted`` is set.
    """

    plan: Plan
    backend: Backend
    environment: Environment
    network: Any
    #: Rounds in which times are measured; 0 if they are not compared.
    rounds: int
    tolerances: Tolerances
    #: The plan of base, None if it does not fit here; with regret, the plan itself and its rivals.
    base: Plan | None = None
    rivals: list[list[Plan]] = field(default_factory=list)
    #: Whether gradients are compared with those of the framework alone, which may not fit here.
    plain: bool = True
    #: The estimated seconds of each run.
    seconds: list[float] = field(default_factory=list)
    rows: list[Row] = field(default_factory=list)
    notes: list[str] = field(default_factory=list)
    regret: Regret | None = None
    timeline: Sequence[Event] = ()
    rounds_done: int = 0
    interrupted: bool = False

    def choose_plans(self, *, regret: bool) -> None:
        """Choose base and the rivals that fit in free memory. Raises InputError if the plan does not."""
        plan, free = self.plan, self.backend.free_bytes()
        present = format_bytes(free or 0)

        def fits(one: Plan, times: int = 1) -> bool:
            return free is None or times * _need(one) <= _SHARE * free

        if not fits(plan):
            raise InputError(
                f"needs {format_bytes(_need(plan))}, but only {present} are free here",
                field="plan",
                accepted="a plan for less memory, or for fewer steps",
            )
        base = ckptplan.optimize(plan.workload, plan.profile, strategies=["base"], local_bytes=2**60)
        self.plain = fits(base, self.backend.plain_factor(self.network))
        if not self.rounds:
            self.notes += ["the regret was not measured, as no time was"] if regret else []
            return
        self._note_differences()
        if fits(base):
            self.base = base
        else:
            need = format_bytes(_need(base))
            self.notes.append(f"base needs {need}, but only {present} are free here: it was not run")
        if regret:
            self.rivals = [one for one in _find_rivals(plan) if fits(one[0])]

    def _note_differences(self) -> None:
        """Note how this process differs from the one that calibrated, where that may move times."""
        calibration, here = self.plan.workload.calibration, self.environment
        if calibration is None:
            return
        found = []
        if calibration.clock != here.clock:
            found.append(f"calibrated in {calibration.clock}, measured here in {here.clock}")
        if calibration.framework != here.framework:
            found.append(f"calibrated with {calibration.framework}, measured here with {here.framework}")
        if found:
            self.notes.append(f"{'; '.join(found)}: times may differ for that alone; calibrate again")

    @property
    def timed(self) -> list[Plan]:
        """The plans that run in turn: the plan itself, base, and the rivals but for base."""
        rivals = [first for first, *_ in self.rivals[1:] if self.base is None or first.strategy != "base"]
        return [self.plan, *([self.base] if self.base else []), *rivals]

    @property
    def reference(self) -> Schedule | None:
        """The schedule whose gradients are the expected ones; None for the framework's own loop."""
        steps = self.plan.steps
        return None if self.plain else make_schedule("standard", steps=steps, chunk_size=min(_CHUNK, steps))

    def estimate(self, *, max_seconds: float) -> None:
        """Estimate the seconds of each run. Raises InputError if they are more than ``max_seconds``."""
        if self.rounds:
            self._list_seconds(PilotTimes.of(self.plan.workload), max_seconds=max_seconds, doubt=_DOUBT)
        for pilot in self.backend.pilot(self.network, most=self.plan.steps):
            self._list_seconds(pilot, max_seconds=max_seconds, doubt=_DOUBT)
        self._list_seconds(pilot, max_seconds=max_seconds)

    def _list_seconds(self, pilot: PilotTimes, *, max_seconds: float, doubt: float = 1.0) -> None:
        """Estimate them by the times of steps, which may be ``doubt`` times as long as they are."""
        steps = self.plan.steps
        own, reference = pilot.run(self.plan), self.reference
        expected = steps * pilot.step_seconds if reference is None else pilot.run(reference)
        counted, peak = self.backend.meter_seconds(own, steps=steps)
        self.seconds = [counted + pilot.compile_seconds, peak, expected + pilot.compile_seconds, own]
        if self.rounds:
            self.seconds += self._estimate_times(pilot)
        total = sum(self.seconds)
        if total <= doubt * max_seconds:
            return
        fewer = max(1, int(steps * max_seconds / total))
        raise InputError(
            f"{len(self.seconds)} runs of {steps:,} steps take {format_wait(total)} here, and the limit "
            f"is {max_seconds:.4g} s",
            field="max_seconds",
            value=max_seconds,
            accepted=f"{Argument('max_seconds', math.ceil(_SPARE * total))} (half as much again, as estimates "
            f"may be off), or a plan for at most {round_down(fewer, digits=1):,} steps, a smaller batch or a "
            "smaller network",
        )

    def _estimate_times(self, pilot: PilotTimes) -> list[float]:
        own, *others = (pilot.run(one) for one in self.timed)
        first = [pilot.compile_seconds + one for one in (own, *others)]
        if pilot.compile_seconds:
            # Neither messages nor actions of compiled programs are timed.
            return [*first, *[own, *others] * self.rounds]
        messages = [_MESSAGE_STEPS * pilot.step_seconds] * _MESSAGE_ROUNDS
        return [*messages, *first, *[own, *others, own] * self.rounds]

    @cached_property
    def _inputs(self) -> Any:
        return self.network.inputs(self.plan.steps)

    def _program(self, plan: Plan | Schedule | None) -> Program:
        return self.backend.program(self.network, plan, inputs=self._inputs, steps=self.plan.steps)

    @cached_property
    def _own(self) -> Program:
        return self._program(self.plan)

    def measure(self, progress: Progress | None) -> None:
        """Measure and compare. Raises KeyboardInterrupt if nothing was compared before Ctrl-C."""
        counter = RunCounter(self.seconds, progress=progress)
        try:
            self._compare_sizes(counter)
            self._compare_gradients(counter)
            if self.rounds:
                self._compare_messages(counter)
                self._compare_times(counter)
        except KeyboardInterrupt:
            if not self.rows:
                raise
            self.interrupted = True
        counter.end()

    @cached_property
    def _actions(self) -> int:
        """The number of actions of the plan."""
        return sum(1 for _ in ckptplan.actions(self.plan))

    def _compare_sizes(self, counter: RunCounter) -> None:
        """Compare bytes and counts, and keep the events of a run, with the bytes held after each action."""
        counted = counter.run(lambda: self._own.counted(counter.within(self._actions)))
        peak = counter.run(lambda: self._own.peak_bytes(counter.within(self._actions)))
        calibration = self.plan.workload.calibration
        self.rows += byte_rows(
            self.plan,
            counted,
            peak_bytes=peak,
            memory_tolerance=self.tolerances.memory_tolerance,
            calibrated=calibration is not None and self.environment.runs_as(calibration),
        )
        if self.rows[0].verdict is Verdict.OFF:
            self.notes.append("the states differ in size: the plan was made for another cell or batch size")
        self.timeline, self._state_bytes = counted.events, counted.state_bytes

    def _compare_gradients(self, counter: RunCounter) -> None:
        expected = counter.run(self._program(self.reference).gradients)
        found = counter.run(lambda: self._own.gradients(counter.within(self._actions)))
        row = gradient_row(expected, found, plain=self.plain)
        self.rows.append(self._compare_in_double(row, expected) if row.verdict is Verdict.OFF else row)

    def _compare_in_double(self, single: Row, plain: Sequence[Gradient]) -> Row:
        """Compare gradients that differ once more, in double precision; ``plain`` are the expected ones.

        Whether a neuron at its threshold fires may depend on rounding, and then all that follows it does. In
        double precision that is next to impossible.
        """
        told, steps = f"in single precision the gradients differ by {single.measured:.3g}", self.plan.steps
        try:
            with self.network.in_double() as network:
                inputs = network.inputs(steps)
                expected, found = (
                    self.backend.program(network, one, inputs=inputs, steps=steps).gradients()
                    for one in (self.reference, self.plan)
                )
        except (CkptplanError, RuntimeError, TypeError) as error:
            self.notes.append(f"{told}, and the cell does not run in double precision: {error}")
            return single
        row = gradient_row(expected, found, plain=self.plain)
        if row.verdict is Verdict.OFF:
            return single
        why = explain_difference(plain)
        self.notes.append(f"{told}, and in double precision they agree, which is shown: {why}")
        return row

    def _compare_messages(self, counter: RunCounter) -> None:
        found = self.backend.messages(self.network, counter, rounds=_MESSAGE_ROUNDS)
        if found is not None:
            self.rows += machine_rows(self.plan, found, state_bytes=self._state_bytes)

    def _compare_times(self, counter: RunCounter) -> None:
        """Run all plans in turn; what is measured counts only if the round is completed."""
        programs = [self._own, *map(self._program, self.timed[1:])]
        rounds: list[list[float]] = []
        timed: list[TimedRun] = []
        try:
            for number in range(self.rounds + 1):
                taken = [counter.run(program.seconds) for program in programs]
                if number:
                    run = self._own.timed()
                    if run is not None:
                        timed.append(run)
                        counter.count()
                    rounds.append(taken)
        except KeyboardInterrupt:
            self.interrupted = True
        self.rounds_done = len(rounds)
        if rounds:
            self._judge_times(list(zip(*rounds, strict=True)), timed)
            self._show_new_memory(programs)

    def _judge_times(self, seconds: Sequence[tuple[float, ...]], timed: Sequence[TimedRun]) -> None:
        own, taken = seconds[0], dict(zip((one.strategy for one in self.timed), seconds, strict=True))
        self.rows += time_rows(self.plan, timed, own, tolerance=self.tolerances.tolerance)
        if self.base is not None:
            self.rows += base_rows(self.plan, self.base, own, taken["base"], allowed=self.tolerances)
        if self.rivals:
            tolerance = self.tolerances.tolerance
            times = (own, *(taken[first.strategy] for first, *_ in self.rivals[1:]))
            judged = zip(self.rivals, times, strict=True)
            found = (Contender.of(plans, rounds, tolerance=tolerance) for plans, rounds in judged)
            self.regret = Regret(contenders=tuple(found))
        if timed:
            self._explain_times(timed, own)

    def _show_new_memory(self, programs: Sequence[Program]) -> None:
        """Show what the plan and base take besides, if each run of theirs is given new memory."""
        longer = {
            plan.strategy: median(program.new_memory)
            for plan, program in zip(self.timed, programs, strict=True)
            if plan in (self.plan, self.base) and program.new_memory
        }
        shown = ", ".join(f"{name} {format_seconds(one)}" for name, one in longer.items() if one > _LEAST_SHOWN)
        if shown:
            self.notes.append(
                "times are those of runs in memory that the process had before. Here the first touch of new "
                f"memory took longer in each run ({shown}), as in a training loop without {KEEPS_MEMORY} "
                "in its environment"
            )

    def _explain_times(self, timed: Sequence[TimedRun], seconds: Sequence[float]) -> None:
        """Keep the timeline of a middle run, and note what explains the rows of times."""
        middle = sorted(timed, key=lambda one: one.events[-1].end)[len(timed) // 2]
        self.timeline = [
            replace(one, local_bytes=other.local_bytes, remote_bytes=other.remote_bytes)
            for one, other in zip(middle.events, self.timeline, strict=True)
        ]
        note = note_meter(timed, seconds)
        self.notes += [] if note is None else [note]


def _need(plan: Plan) -> int:
    """Return the bytes that a plan needs here, where all units and both memories are in one place."""
    return plan.predicted.local_peak_bytes * plan.profile.units + plan.predicted.remote_peak_bytes
