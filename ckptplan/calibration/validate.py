"""Validates a plan: executes it and plain backpropagation, and compares predictions with measurements."""

from __future__ import annotations

import math
import os
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property, partial
from statistics import median
from typing import Annotated, Any

from pydantic import Field

import ckptplan
from ckptplan.calibration.calibrate import RunCounter
from ckptplan.calibration.fit import Fit
from ckptplan.calibration.runtimes import build_network, open_backend, open_bench
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
    shrunk_rows,
    time_rows,
)
from ckptplan.cost.case import Case
from ckptplan.errors import CkptplanError, InputError
from ckptplan.execution.backend import Backend, Environment, Gradient, Pace, Program, Report, measure_rounds
from ckptplan.model.cell_spec import CellSpec
from ckptplan.model.checked import CheckedModel
from ckptplan.model.plan import Plan, find_given_memory
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
#: A suggested time limit is this many times the estimate, which may be off.
_SPARE = 1.5
#: The share of available memory that a run may be predicted to need.
_SHARE = 0.7
#: The number of rounds in which messages are timed again, and the steps of a round.
_MESSAGE_ROUNDS, _MESSAGE_STEPS = 3, 400
#: The report mentions the first touch of new memory if it took more than this many seconds.
_LEAST_SHOWN = 1e-3
#: Steps of a chunk in the schedule that replaces plain BPTT if that does not fit.
_CHUNK = 48
#: The most neurons and samples of a shrunk cell.
_SHRUNK_NEURONS, _SHRUNK_BATCH = 32, 2


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

    Times are compared only if the workload was calibrated on this machine. Otherwise nothing is timed, and a
    cell that would take too long, or does not fit, is shrunk to fewer neurons and samples with the same
    schedule. Checkpoints, tapes and counts must equal the predictions. Ctrl-C returns the comparisons made so
    far, or raises KeyboardInterrupt if there are none.

    Arguments:
        plan: the plan to validate.
        cell: replaces the cell that the workload names.
        trust_cell: whether to import and call the factory that the workload names. Built-in cells run anyway.
        spec: the cell itself, in place of ``cell`` and ``trust_cell``.
        device: replaces the device of the calibration.
        thread_count: replaces the number of threads of the calibration.
        remote_dir: the folder of remote checkpoints, in place of host memory; times are then wall time.
        repeats: the number of rounds, in which all variants run in turn; times are lower quartiles of rounds.
        tolerance: the share by which times may be off, beyond the intervals of prediction and measurement.
        overhead_tolerance: how far the time added to base's may be off, as a share of the longer one of the
            plan's and base's times, beyond these intervals.
        memory_tolerance: the share by which the live peak may be off.
        regret: whether to run the best plan of each strategy, too.
        max_seconds: the seconds that all runs may take, as estimated from a few steps that run first. None
            means 600 if times are compared, and otherwise 60.
        progress: called with the number of runs done and the number of all runs.
        tell: called with lines of text before the runs: why times are not compared, and how long the runs take.

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
        comparison = _Comparison(
            plan=plan,
            backend=backend,
            spec=spec,
            batch=workload.batch,
            seed=calibration.seed if calibration else 0,
            rounds=repeats if reason is None else 0,
            tolerances=tolerances,
        )
        comparison.prepare(regret=regret, max_seconds=max_seconds)
        if comparison.is_shrunk:
            tell(comparison.notes[-1])
        tell(f"{len(comparison.seconds)} runs, {format_wait(sum(comparison.seconds))} in all")
        comparison.measure(progress)
    return Validation(
        plan=plan,
        cell=str(comparison.spec),
        batch=comparison.batch,
        environment=environment,
        repeats=comparison.rounds_done,
        tolerances=tolerances,
        not_comparable=reason,
        rows=tuple(comparison.rows),
        notes=tuple(comparison.notes),
        regret=comparison.regret,
        timeline=tuple(comparison.timeline),
        interrupted=comparison.interrupted,
    )


class _Limits(CheckedModel):
    """Checks the numbers that limit the runs."""

    repeats: Annotated[int, Field(strict=True, ge=1, description="a whole number from 1")]
    thread_count: Annotated[int | None, Field(strict=True, ge=1, description="a whole number from 1")]
    max_seconds: Annotated[float | None, Field(strict=True, gt=0, description="a number above 0, in seconds")]


def choose_cell(workload: Workload, *, cell: str | None, trust: bool) -> CellSpec:
    """Return the caller's cell, or the cell of the workload. Raises InputError."""
    if cell is None:
        return CellSpec.of(workload, trust=trust)
    if workload.cell is not None and workload.cell.partition("(")[0] == cell:
        # The caller names the factory, so it is trusted. The sizes come from the workload.
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
    """Return the other strategies that were compared with a plan's. Raises InputError if there are none."""
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

    Plans with equal schedules are in one list. Only the first plan of a list runs.
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
    return group_same_schedules([plan, *(best for best in compared.values() if isinstance(best, Plan))])


@dataclass(kw_only=True)
class _Comparison:
    """Runs all measurements, and collects the rows of the comparison.

    Ctrl-C ends the measurements: ``rows`` then has the comparisons made before, and ``interrupted`` is set.
    """

    plan: Plan
    backend: Backend
    #: The cell and its batch, which may be shrunk.
    spec: CellSpec
    batch: int
    seed: int
    #: Rounds in which times are measured; 0 if they are not compared.
    rounds: int
    tolerances: Tolerances
    network: Any = field(init=False)
    pace: Pace = field(init=False)
    is_shrunk: bool = False
    #: The plan of base, None if it does not fit here; with regret, the plan itself and its rivals.
    base: Plan | None = None
    rivals: list[list[Plan]] = field(default_factory=list)
    #: Whether gradients are compared with the framework's own, whose computation may not fit here.
    plain: bool = True
    #: The estimated seconds of each run.
    seconds: list[float] = field(default_factory=list)
    rows: list[Row] = field(default_factory=list)
    notes: list[str] = field(default_factory=list)
    regret: Regret | None = None
    timeline: Sequence[Event] = ()
    rounds_done: int = 0
    interrupted: bool = False

    def prepare(self, *, regret: bool, max_seconds: float) -> None:
        """Build the network, choose the plans that run, and estimate their seconds.

        If times are not compared, a cell that does not fit is shrunk. Raises InputError if it still does not.
        """
        try:
            self._prepare_cell(regret=regret, max_seconds=max_seconds)
        except InputError as error:
            if error.field not in ("plan", "max_seconds"):
                raise
            spec = replace(self.spec, neurons=min(self.spec.neurons, _SHRUNK_NEURONS))
            batch = min(self.batch, _SHRUNK_BATCH)
            if self.rounds or (spec, batch) == (self.spec, self.batch):
                raise
            before = f"{self.spec} with batch {self.batch}"
            self.spec, self.batch, self.is_shrunk = spec, batch, True
            self._prepare_cell(regret=regret, max_seconds=max_seconds)
            self.notes.append(
                f"the cell was shrunk from {before} to {spec} with batch {batch}, so that it ends in time and "
                "fits; its schedule is the plan's. Bytes that depend on the width are not judged"
            )

    def _prepare_cell(self, *, regret: bool, max_seconds: float) -> None:
        """Build the network of ``spec``. Raises InputError if its runs do not fit, or take too long."""
        self.network = build_network(self.backend, self.spec, batch=self.batch, seed=self.seed)
        self._choose_plans(regret=regret)
        self._estimate(max_seconds)

    def _choose_plans(self, *, regret: bool) -> None:
        """Choose base and the rivals that fit in free memory. Raises InputError if the plan does not fit."""
        plan, free = self.plan, self.backend.free_bytes()
        show = partial(format_bytes, like=find_given_memory(plan))
        free_text = show(free or 0)
        # Tapes and caches grow with the neurons and the batch, as a state does.
        costs = Case(workload=plan.workload, profile=plan.profile).costs
        share = self.network.state_bytes / costs.remote_state_bytes

        def fits(candidate: Plan, times: float = 1.0) -> bool:
            return free is None or times * share * _need(candidate) <= _SHARE * free

        if not fits(plan):
            raise InputError(
                f"needs {show(_need(plan))}, but only {free_text} are free here",
                field="plan",
                accepted="a plan for less memory, or for fewer steps",
            )
        base = ckptplan.optimize(plan.workload, plan.profile, strategies=["base"], local_bytes=2**60)
        self.plain = fits(base, self.backend.plain_factor(self.network))
        if not self.rounds:
            self.notes = ["the regret was not measured, as no time was"] if regret else []
            return
        self._note_differences()
        if fits(base):
            self.base = base
        else:
            need = show(_need(base))
            self.notes.append(f"base needs {need}, but only {free_text} are free here: it was not run")
        if regret:
            self.rivals = [same for same in _find_rivals(plan) if fits(same[0])]

    def _note_differences(self) -> None:
        """Note the differences from the process that calibrated which may change times."""
        here, old = self.backend.environment, self.plan.workload.calibration
        for before, now in () if old is None else ((old.clock, here.clock), (old.framework, here.framework)):
            if before != now:
                self.notes.append(
                    f"calibrated with {before}, measured here with {now}: times may differ for that alone; "
                    "calibrate again"
                )

    @property
    def timed(self) -> list[Plan]:
        """The plans that run in turn: the plan itself, base, and the other rivals."""
        rivals = [first for first, *_ in self.rivals[1:] if self.base is None or first.strategy != "base"]
        return [self.plan, *([self.base] if self.base else []), *rivals]

    @property
    def reference(self) -> Schedule | None:
        """The schedule that computes the expected gradients; None for the framework's own loop."""
        steps = self.plan.steps
        return None if self.plain else make_schedule("standard", steps=steps, chunk_size=min(_CHUNK, steps))

    @property
    def _is_compiled(self) -> bool:
        """Whether a plan is one compiled program, whose actions cannot be timed one by one."""
        return self.spec.runtime == "jax"

    def _estimate(self, max_seconds: float) -> None:
        """Estimate the seconds of each run. Raises InputError if they are more than ``max_seconds``."""
        workload, steps = self.plan.workload, self.plan.steps
        pace = Pace(step_seconds=0)
        if self._is_compiled or not self.rounds:
            pace = self.backend.time_steps(self.network, most=steps)
        if self.rounds:
            # Calibrated here: the times of steps are known.
            seconds = workload.forward_seconds + workload.record_overhead_seconds + workload.backward_seconds
            pace = replace(pace, step_seconds=seconds)
        self.pace = pace
        own, reference = pace.run(self.plan), self.reference
        expected = steps * pace.step_seconds if reference is None else pace.run(reference)
        # The peak of a shrunk cell is not measured.
        peak = [] if self.is_shrunk else [pace.count(self.plan)]
        self.seconds = [own, *peak, expected, own]
        self.seconds = [seconds + pace.compile_seconds for seconds in self.seconds]
        if self.rounds:
            others = [pace.run(plan) for plan in self.timed[1:]]
            if not self._is_compiled:
                self.seconds += [_MESSAGE_STEPS * pace.step_seconds] * _MESSAGE_ROUNDS
            self.seconds += [own, *(seconds + pace.compile_seconds for seconds in others)]
            self.seconds += [own, *others, *([] if self._is_compiled else [own])] * self.rounds
        total = sum(self.seconds)
        if total <= max_seconds:
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

    @cached_property
    def _inputs(self) -> Any:
        return self.network.inputs(self.plan.steps)

    def _program(self, plan: Plan | Schedule | None) -> Program:
        return self.backend.program(self.network, plan, inputs=self._inputs, steps=self.plan.steps)

    @cached_property
    def _own(self) -> Program:
        return self._program(self.plan)

    def measure(self, progress: Progress | None) -> None:
        """Run all measurements and comparisons. Raises KeyboardInterrupt if there were none before Ctrl-C."""
        counter = RunCounter(len(self.seconds), progress)
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

    def _compare_sizes(self, counter: RunCounter) -> None:
        """Compare bytes and counts, and store the events of the run, which have the bytes after each action."""
        counted = self._own.count()
        counter()
        self.timeline, self._state_bytes = counted.events, counted.state_bytes
        if self.is_shrunk:
            self.rows += shrunk_rows(self.plan, counted)
            return
        peak = self._own.peak_bytes()
        counter()
        calibration = self.plan.workload.calibration
        self.rows += byte_rows(
            self.plan,
            counted,
            peak_bytes=peak,
            memory_tolerance=self.tolerances.memory_tolerance,
            calibrated=calibration is not None and self.backend.environment.runs_as(calibration),
        )
        if self.rows[0].verdict is Verdict.OFF:
            self.notes.append("the states differ in size: the plan was made for another cell or batch size")

    def _compare_gradients(self, counter: RunCounter) -> None:
        expected = self._program(self.reference).gradients()
        counter()
        row = gradient_row(expected, self._own.gradients(), plain=self.plain)
        counter()
        self.rows.append(self._compare_in_double(row, expected) if row.verdict is Verdict.OFF else row)

    def _compare_in_double(self, single: Row, plain: Sequence[Gradient]) -> Row:
        """Repeat a comparison of differing gradients in double precision; ``plain`` are the expected gradients.

        In single precision, rounding may decide whether a neuron at its threshold fires, and so change all
        later steps. In double precision this is next to impossible.
        """
        difference, steps = (
            f"in single precision the gradients differ by {single.measured:.3g}",
            self.plan.steps,
        )
        try:
            with self.network.in_double() as network:
                inputs = network.inputs(steps)
                expected, measured = (
                    self.backend.program(network, plan, inputs=inputs, steps=steps).gradients()
                    for plan in (self.reference, self.plan)
                )
        except (CkptplanError, RuntimeError, TypeError) as error:
            self.notes.append(f"{difference}, and the cell does not run in double precision: {error}")
            return single
        row = gradient_row(expected, measured, plain=self.plain)
        if row.verdict is Verdict.OFF:
            return single
        why = explain_difference(plain)
        self.notes.append(f"{difference}. The row shows double precision, where they agree: {why}")
        return row

    def _compare_messages(self, counter: RunCounter) -> None:
        """Time messages again, without steps. Skipped for JAX, whose programs move states themselves."""
        if self._is_compiled:
            return
        states = max(1, self.plan.predicted.remote_peak_bytes // self._state_bytes)
        bench = open_bench(self.backend, self.spec, self.network, self.pace, times_steps=False, states=states)
        rounds = []
        for reports in measure_rounds(bench.start(), rounds=_MESSAGE_ROUNDS):
            rounds.append(bench.read(reports))
            counter()
        self.rows += machine_rows(self.plan, Fit(rounds).times, state_bytes=self._state_bytes)

    def _compare_times(self, counter: RunCounter) -> None:
        """Run all plans in turn, after a warm-up round. Incomplete rounds do not count."""
        programs = [self._own, *map(self._program, self.timed[1:])]
        runs = [program.time for program in programs]
        rounds: list[list[Report]] = []
        try:
            for _ in measure_rounds(runs, rounds=1, count=counter):
                pass
            timed_actions = [] if self._is_compiled else [partial(self._own.time, by_action=True)]
            for reports in measure_rounds([*runs, *timed_actions], rounds=self.rounds, count=counter):
                rounds.append(reports)
        except KeyboardInterrupt:
            self.interrupted = True
        self.rounds_done = len(rounds)
        if rounds:
            reports_of_runs = list(zip(*rounds, strict=True))
            timed = reports_of_runs.pop() if timed_actions else ()
            self._judge_times(reports_of_runs, timed)

    def _judge_times(self, plans: Sequence[Sequence[Report]], timed: Sequence[Report]) -> None:
        """Compare the rounds of each plan. ``timed`` are runs whose actions were timed one by one, if any."""
        seconds = [tuple(report.seconds for report in reports) for reports in plans]
        own, taken = seconds[0], dict(zip((plan.strategy for plan in self.timed), seconds, strict=True))
        self.rows += time_rows(self.plan, timed, own, tolerance=self.tolerances.tolerance)
        if self.base is not None:
            self.rows += base_rows(self.plan, self.base, own, taken["base"], allowed=self.tolerances)
        if self.rivals:
            times = (own, *(taken[first.strategy] for first, *_ in self.rivals[1:]))
            self.regret = Regret(
                contenders=tuple(
                    Contender.of(same, rounds, tolerance=self.tolerances.tolerance)
                    for same, rounds in zip(self.rivals, times, strict=True)
                )
            )
        if timed:
            # Show the timeline of the median run, with the bytes of the run that counted them.
            middle = sorted(timed, key=lambda report: report.seconds)[len(timed) // 2]
            self.timeline = [
                replace(event, local_bytes=counted.local_bytes, remote_bytes=counted.remote_bytes)
                for event, counted in zip(middle.events, self.timeline, strict=True)
            ]
        self._show_new_memory(plans)

    def _show_new_memory(self, plans: Sequence[Sequence[Report]]) -> None:
        """Note the extra seconds of the plan and of base if the first touch of new memory takes long."""
        longer = {
            plan.strategy: median(report.new_memory for report in reports)
            for plan, reports in zip(self.timed, plans, strict=True)
            if plan in (self.plan, self.base)
        }
        shown = ", ".join(
            f"{name} {format_seconds(seconds)}" for name, seconds in longer.items() if seconds > _LEAST_SHOWN
        )
        if shown:
            from ckptplan.jax.new_memory import KEEPS_MEMORY

            self.notes.append(
                "times leave out the first touch of new memory, which each run here spent in addition "
                f"({shown}), as a training loop does without {KEEPS_MEMORY} "
                "in its environment"
            )


def _need(plan: Plan) -> int:
    """Return the bytes that a plan needs on this machine, which holds all units and both memory tiers."""
    return plan.predicted.local_peak_bytes * plan.profile.units + plan.predicted.remote_peak_bytes
