"""Validates a plan in JAX: compiles and runs it beside ``jax.lax.scan``, and compares what was predicted."""

from __future__ import annotations

import math
import warnings
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from time import perf_counter

import jax

import ckptplan
from ckptplan.calibration.cell_spec import CellSpec
from ckptplan.calibration.comparable import check_numbers, why_not_comparable
from ckptplan.calibration.host import free_memory_bytes, processor_name
from ckptplan.calibration.in_jax.compared import compare_gradients, compare_sizes, count_row
from ckptplan.calibration.in_jax.networks import JaxNetwork, build_jax_network
from ckptplan.calibration.in_jax.programs import CompiledLoop, compile_gradient
from ckptplan.calibration.in_jax.sizes import CompiledSizes, count_jax_sizes
from ckptplan.calibration.in_jax.threads import choose_jax_clock
from ckptplan.calibration.regret import RivalPlan, compute_regret, find_rivals, list_others
from ckptplan.calibration.samples import Sample
from ckptplan.calibration.validation import Regret, Row, Tolerances, Validation
from ckptplan.errors import InputError, PlanMismatch
from ckptplan.jax.chosen import pick_tape
from ckptplan.model.plan import Plan
from ckptplan.model.progress import Progress
from ckptplan.planning.playback import make_schedule
from ckptplan.schedule.schedule import Schedule
from ckptplan.units import format_bytes, format_wait
from ckptplan.wording import Argument, Phrase

#: The seconds that a validation may take by default if times are not compared.
_MOST_SECONDS = 60.0
#: The share of free memory that a program may be predicted to need.
_SHARE = 0.7
#: Steps of the program that runs first, and of the chunks of the schedule in place of ``jax.lax.scan``.
_PILOT_STEPS, _CHUNK = 16, 48
#: Programs that run once besides those that are timed: the counted one, the expected and the found gradients.
_ONCE = 3


def validate_jax(
    plan: Plan,
    *,
    spec: CellSpec,
    threads: int,
    repeats: int = 5,
    tolerance: float = 0.1,
    overhead_tolerance: float = 0.03,
    memory_tolerance: float = 0.05,
    regret: bool = False,
    max_seconds: float | None = None,
    progress: Progress | None = None,
    tell: Callable[[str], None] | None = None,
) -> Validation:
    """Execute base and ``plan`` in JAX with a cell, on the same weights and data, and compare.

    Times are compared only if the workload was calibrated on this machine, in JAX. Ctrl-C returns what was
    compared so far, and raises KeyboardInterrupt if that is nothing.

    Arguments:
        plan: the plan to validate.
        spec: the cell, of JAX.
        threads: the number of threads that JAX runs with (``set_threads``).
        repeats: the number of rounds, in which all programs run in turn; times are medians of rounds.
        tolerance: the share by which times may be off, in addition to the spread of the rounds.
        overhead_tolerance: how far the time added to base's may be off, as a share of the plan's time.
        memory_tolerance: the share by which the compiled memory may be off.
        regret: whether to run the best plan of each strategy, too.
        max_seconds: the seconds that all runs may take, as estimated from a few steps; None means 60 if times
            are not compared, and otherwise no limit.
        progress: called with the milliseconds done and their estimated total.
        tell: called with a line of text, before the runs.

    Raises InputError.
    """
    shares = {
        "tolerance": tolerance,
        "overhead_tolerance": overhead_tolerance,
        "memory_tolerance": memory_tolerance,
    }
    check_numbers(repeats=repeats, thread_count=threads, max_seconds=max_seconds, **shares)
    if plan.workload.batch is None:
        raise InputError(
            f"workload {plan.workload.name!r} has no batch size, so its cell cannot be built",
            field="workload.batch",
            accepted="a whole number from 1",
        )
    tell = tell or (lambda _: None)
    calibration = plan.workload.calibration
    reason = why_not_comparable(plan, machine=processor_name(), threads=threads)
    if reason is None and calibration is not None and calibration.jax is None:
        reason = "it was calibrated in PyTorch"
    if regret:
        list_others(plan)
    if reason is not None:
        tell(f"times cannot be compared here: {reason}. Only counts, bytes and gradients are judged")
        max_seconds = _MOST_SECONDS if max_seconds is None else max_seconds
    network = build_jax_network(
        spec, batch=plan.workload.batch, seed=0 if calibration is None else calibration.seed
    )
    found = _JaxComparison(
        plan=plan,
        network=network,
        threads=threads,
        rounds=repeats if reason is None else 0,
        tolerances=Tolerances(time=tolerance, overhead=overhead_tolerance, memory=memory_tolerance),
        progress=progress,
    )
    if reason is None and calibration is not None and calibration.jax != jax.__version__:
        found.notes.append(
            f"calibrated with {calibration.framework}, measured here with JAX {jax.__version__}: times may "
            "differ for that alone; calibrate again"
        )
    if reason is not None and regret:
        found.notes.append("the regret was not measured, as no time was")
    found.choose_programs(regret=regret)
    tell(f"about {found.number} runs, {format_wait(found.estimate(most=max_seconds))} in all")
    with warnings.catch_warnings():
        # The rows say which sizes differ.
        warnings.simplefilter("ignore", PlanMismatch)
        found.measure()
    return Validation(
        cell=str(spec),
        device="cpu",
        machine=processor_name(),
        threads=threads,
        clock=choose_jax_clock(threads)[1],
        repeats=found.rounds_done,
        tolerances=found.tolerances,
        not_comparable=reason,
        rows=tuple(found.rows),
        notes=tuple(found.notes),
        regret=found.regret,
        timeline=(),
        interrupted=found.interrupted,
        plan=plan,
    )


@dataclass(kw_only=True)
class _JaxComparison:
    """The programs of a validation, and what was compared so far."""

    plan: Plan
    network: JaxNetwork
    threads: int
    #: Rounds in which times are measured; 0 if they are not compared.
    rounds: int
    tolerances: Tolerances
    progress: Progress | None
    base: Plan | None = None
    rivals: list[RivalPlan] = field(default_factory=list)
    rows: list[Row] = field(default_factory=list)
    notes: list[str] = field(default_factory=list)
    regret: Regret | None = None
    rounds_done: int = 0
    interrupted: bool = False
    seconds: float = 0.0

    def choose_programs(self, *, regret: bool) -> None:
        """Choose base and the rivals that fit in free memory. Raises InputError if the plan does not."""
        free = free_memory_bytes()
        if not _fits(self.plan, free):
            raise InputError(
                f"needs {format_bytes(_need(self.plan))}, but only {format_bytes(free or 0)} are free here",
                field="plan",
                accepted="a plan for less memory, or for fewer steps",
            )
        if not self.rounds:
            return
        base = _plan_base(self.plan)
        if _fits(base, free):
            self.base = base
        else:
            need, have = format_bytes(_need(base)), format_bytes(free or 0)
            self.notes.append(f"base needs {need}, but only {have} are free here: it was not run")
        if regret:
            self.rivals = [one for one in find_rivals(self.plan) if _fits(one.plan, free)]

    @property
    def timed(self) -> list[Plan]:
        """The plans that run in turn."""
        return [self.plan, *([self.base] if self.base else []), *(one.plan for one in self.rivals[1:])]

    @property
    def number(self) -> int:
        """The number of runs."""
        return _ONCE + len(self.timed) * (self.rounds + 1 if self.rounds else 0)

    @property
    def reference(self) -> Schedule | None:
        """The schedule whose gradients are the expected ones; None for ``jax.lax.scan``."""
        if _fits(_plan_base(self.plan), free_memory_bytes()):
            return None
        steps = self.plan.steps
        return make_schedule("standard", steps=steps, chunk_size=min(_CHUNK, steps))

    def estimate(self, *, most: float | None) -> float:
        """Return the estimated seconds of everything. Raises InputError if they are more than ``most``."""
        steps = self.plan.steps
        few = min(_PILOT_STEPS, steps)
        pilot = compile_gradient(self.network, make_schedule("base", steps=few), steps=few)
        pilot.call()
        each = min(pilot.measure_seconds(perf_counter) for _ in range(2)) / few
        overhead = 1 + max(one.predicted.overhead for one in self.timed)
        compiled = (_ONCE + len(self.timed)) * pilot.compile_seconds
        self.seconds = compiled + self.number * steps * each * overhead
        if most is not None and self.seconds > most:
            raise InputError(
                f"{self.number} runs of {steps:,} steps take {format_wait(self.seconds)} here, and the limit "
                f"is {most:.4g} s",
                field="max_seconds",
                value=most,
                accepted=Phrase(
                    Argument("max_seconds", math.ceil(1.5 * self.seconds)),
                    ", or a plan for fewer steps, a smaller batch or a smaller network",
                ),
            )
        return self.seconds

    def measure(self) -> None:
        """Measure and compare. Raises KeyboardInterrupt if nothing was compared before Ctrl-C."""
        total = max(1, self.number)
        try:
            program = self._compare_once(lambda done: self._report(done, total))
            if self.rounds:
                self._compare_times(program, lambda done: self._report(_ONCE + done, total))
        except KeyboardInterrupt:
            if not self.rows:
                raise
            self.interrupted = True
        self._report(total, total)

    def _report(self, done: int, total: int) -> None:
        if self.progress is not None:
            self.progress(round(1000 * self.seconds * done / total), round(1000 * self.seconds))

    def _compare_once(self, tick: Callable[[int], None]) -> CompiledLoop:
        sizes = self._choose_sizes()
        program = compile_gradient(self.network, self.plan, steps=self.plan.steps)
        tick(1)
        self.rows += compare_sizes(
            self.plan, sizes, memory_bytes=program.memory_bytes, tolerance=self.tolerances.memory
        )
        if self.rows[0].verdict == "off":
            self.notes.append("the states differ in size: the plan was made for another cell or batch size")
        self.rows.append(count_row(self.plan, self.network, tape=sizes.tape))
        tick(2)
        row, note = compare_gradients(self.plan, self.network, program, reference=self.reference)
        self.rows.append(row)
        self.notes += [] if note is None else [note]
        tick(3)
        return program

    def _choose_sizes(self) -> CompiledSizes:
        """Return the sizes with the kind of tape that the program chooses for the plan."""
        kinds = count_jax_sizes(self.network)
        return kinds[pick_tape({kind: one.tape_bytes for kind, one in kinds.items()}, self.plan.workload)]

    def _compare_times(self, program: CompiledLoop, tick: Callable[[int], None]) -> None:
        clock, _ = choose_jax_clock(self.threads)
        others = [compile_gradient(self.network, one, steps=self.plan.steps) for one in self.timed[1:]]
        rounds: list[list[float]] = []
        try:
            for number in range(self.rounds + 1):
                taken = [one.measure_seconds(clock) for one in (program, *others)]
                tick((number + 1) * len(taken))
                if number:
                    rounds.append(taken)
        except KeyboardInterrupt:
            self.interrupted = True
        self.rounds_done = len(rounds)
        if rounds:
            self._judge_times([Sample(values=values) for values in zip(*rounds, strict=True)])

    def _judge_times(self, samples: Sequence[Sample]) -> None:
        plan, base, allowed = self.plan, self.base, self.tolerances
        total, *others = samples
        self.rows.append(_total_row("total", plan, total, tolerance=allowed.time))
        if base is not None:
            bases, *others = others
            pairs = zip(total.values, bases.values, strict=True)
            self.rows += [
                _total_row("base", base, bases, tolerance=allowed.time),
                Row.overhead(
                    predicted=plan.predicted.overhead,
                    ratios=Sample(values=tuple(one / other for one, other in pairs)),
                    tolerance=allowed.overhead,
                ),
            ]
        if self.rivals:
            self.regret = compute_regret(total, self.rivals, others, tolerance=allowed.time)


def _total_row(name: str, plan: Plan, sample: Sample, *, tolerance: float) -> Row:
    return Row.timed(
        name, predicted=plan.predicted.seconds, sample=sample, tolerance=tolerance, whole=sample.median
    )


def _need(plan: Plan) -> int:
    return plan.predicted.local_peak_bytes * plan.profile.units + plan.predicted.remote_peak_bytes


def _fits(plan: Plan, free: int | None) -> bool:
    return free is None or _need(plan) <= _SHARE * free


def _plan_base(plan: Plan) -> Plan:
    return ckptplan.optimize(plan.workload, plan.profile, strategies=["base"], local_bytes=2**60)
