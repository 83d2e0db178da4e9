"""Finds plans whose programs are within a limit: planned from shapes, compiled, and planned again if need be.

The workspace of a step is an estimate, since compilers fuse, copy and reorder operations. So the planned
program is compiled once, with few optimizations, to read its bytes. If they are too many, the difference is
added to the workspace of the step, and the loop is planned again.

The times of a step are estimated from its operations, or come from a calibration.
"""

from __future__ import annotations

import logging
import math
import warnings
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from operator import itemgetter
from typing import Any, SupportsIndex

import jax

import ckptplan
from ckptplan.errors import Infeasible, InputError, PlanMismatch
from ckptplan.execution.advice import DEAR, describe_choice, find_limit, leave_margin, refuse_limit
from ckptplan.jax.footprint import StepFootprint, measure_step
from ckptplan.jax.leaves import byte_size, differentiable, pick
from ckptplan.jax.primitives import Batch
from ckptplan.jax.program import LoopProgram, count_bytes, make_program
from ckptplan.jax.step import Step
from ckptplan.jax.tapes import Tape, TracedGradient
from ckptplan.model.plan import Plan
from ckptplan.model.workload import ACTION_TIMES, TIMES, Basis, Workload
from ckptplan.planning.optimize import rank_strategies
from ckptplan.planning.request import Request
from ckptplan.schedule.schedule import Schedule
from ckptplan.search.question import find_reason
from ckptplan.units import format_bytes, format_limit, parse_limit

#: The most programs that are compiled to plan one loop.
_MOST_PROGRAMS = 3
#: If a program takes less than this share of the limit, a quicker plan may fit, so the loop is planned again.
_ROOMY = 0.8
#: A program need not be compiled if the limit is at least twice its bytes plus this many times the estimated
#: workspace. Programs in bf16, which compilers for CPUs copy to fp32, have taken eight times the workspace.
_SURELY = 10
#: Bytes of the step number and the loss, which ``bptt`` adds to state and tapes, and ``scan`` does not.
_LOSS_BYTES = 16
#: Seconds of a row of the table in addition to its steps.
_ROW_SECONDS = 2e-6


def find_times(
    footprint: StepFootprint, timed: Workload | None, *, among: Sequence[StepFootprint]
) -> tuple[dict[str, Any], Basis]:
    """Return times by field of a workload, from the calibrated workload ``timed`` or else from operations.

    A calibration measured one of the kinds of tape in ``among``. For another kind, the times of recording and
    reversing are estimates, scaled by the pace of the measured kind. Raises InputError if the workload belongs
    to another step.
    """
    if timed is None:
        row_seconds = dict.fromkeys(("advance_seconds", "chunk_seconds"), _ROW_SECONDS)
        basis = Basis(kind="assumed", why="operations of the traced step, at assumed rates")
        return {**footprint.seconds, **row_seconds}, basis
    units = timed.units or 1
    state, tape = timed.state_bytes * units, timed.tape_bytes * units
    equal = [
        candidate
        for candidate in among
        if max(abs(candidate.state_bytes - state), abs(candidate.tape_bytes - tape)) <= _LOSS_BYTES
    ]
    kind = None if timed.calibration is None else timed.calibration.tape
    measured = next((candidate for candidate in equal if candidate.tape == kind), equal[0] if equal else None)
    if measured is None:
        tapes = ", ".join(format_bytes(candidate.tape_bytes) for candidate in among)
        raise InputError(
            f"{timed.name!r} has a state of {format_bytes(state)} and tapes of {format_bytes(tape)}; this step "
            f"has {format_bytes(among[0].state_bytes)}, and tapes of {tapes}",
            field="workload",
            accepted="one that was calibrated with this cell and batch in JAX",
        )
    seconds = {name: getattr(timed, name) for name in (*TIMES, *ACTION_TIMES)}
    why = f"calibrated: workload {timed.name}"
    if footprint.name == measured.name:
        return seconds, Basis(kind="measured", why=why)
    parts = "forward_seconds", "record_overhead_seconds", "backward_seconds"
    pace = sum(seconds[name] for name in parts) / sum(measured.seconds[name] for name in parts)
    seconds |= {
        name: pace * footprint.seconds[name] for name in ("record_overhead_seconds", "backward_seconds")
    }
    why = f"{why}, whose tapes are of another kind: recording and reversing at its pace"
    return seconds, Basis(kind="derived", why=why)


#: Closed forms whose programs take the predicted bytes for any shapes of states and tapes.
_EXACT = ("base", "standard", "nested", "revolve")
_COUNTED = ("state_bytes", "tape_bytes", "resident_bytes_per_step", "resident_bytes", "workspace_bytes")
#: Another plan is searched for only if it may save more than this share of time.
_GAIN = 0.01
#: A warning about outputs is logged if they take at least this share of the limit.
_MUCH = 0.25
#: A plan with a larger overhead is slow. A plan with an overhead of at most ``DEAR`` is quick.
_SLOW = 2.0
#: The ratio of successive limits that are tried to find the first one with a quick plan, and the most tries.
_FACTOR, _MOST_FACTORS = 1.25, 40
_log = logging.getLogger("ckptplan.jax")


@dataclass(frozen=True, kw_only=True)
class Ways:
    """The arguments that choose how a loop runs when its gradient is requested.

    Arguments:
        plan: a plan or a schedule; None to make one within ``memory``.
        memory: the limit in bytes or text.
        workload: a calibrated workload whose times are used.
        tape: the kind of tape; None to choose it.
    """

    plan: Plan | Schedule | None = None
    memory: SupportsIndex | str | None = None
    workload: Workload | None = None
    tape: Tape | None = None


@dataclass(frozen=True, kw_only=True)
class CountedPlan:
    """A plan with its footprint, and the bytes of its compiled program."""

    plan: Plan
    footprint: StepFootprint
    #: The program, if it was compiled to count its bytes.
    program: LoopProgram | None = None
    compiled_bytes: int = 0

    @property
    def seconds(self) -> float:
        """The predicted time."""
        return self.plan.predicted.seconds

    @property
    def excess_bytes(self) -> int:
        """The bytes of the program beyond the prediction."""
        return self.compiled_bytes - self.footprint.predict(self.plan)

    def recount(self, limit: int) -> Plan:
        """Return the plan for a limit, with workspace and budget adjusted to the bytes of its program."""
        plan = self.plan
        excess = max(self.excess_bytes, -plan.workload.workspace_bytes)

        def add(record: Any, field: str) -> Any:
            return record.model_copy(update={field: getattr(record, field) + excess})

        peak = plan.predicted.local_peak_bytes + excess
        changed = {
            "workload": add(plan.workload, "workspace_bytes"),
            "profile": plan.profile.model_copy(update={"local_bytes": limit}),
            "goal": add(plan.goal, "local_bytes"),
            "predicted": replace(plan.predicted, local_peak_bytes=peak),
        }
        return plan.model_copy(update=changed)


def plan_within(job: Job) -> CountedPlan:
    """Return the quickest plan whose program is within a limit, with its footprint.

    Raises InputError if no plan fits, with a limit that is large enough, or if the workload belongs to another
    step.
    """

    def count(choice: CountedPlan) -> CountedPlan:
        if jax.sharding.get_abstract_mesh().manual_axes:
            # A part of a program within shard_map cannot be compiled alone, so use the estimate.
            return replace(choice, compiled_bytes=choice.footprint.predict(choice.plan))
        program = make_program(choice.plan, choice.footprint, reverse=job.reverse, as_words=job.as_words)
        compiled_bytes = -(-count_bytes(program, batch=job.batch) // job.batch.size)
        compiled_bytes += job.copies_outputs * job.steps * byte_size(job.step.outputs)
        return replace(choice, program=program, compiled_bytes=compiled_bytes)

    choice = search(job, count)
    _log.info("%s", describe_choice(choice.plan, job.limit))
    job.warn(choice)
    return choice


def search(job: Job, count: Callable[[CountedPlan], CountedPlan]) -> CountedPlan:
    """Return the quickest plan whose program is within a limit; ``count`` compiles a program.

    The last program that is tried belongs to the plan with the least memory. So a limit that is large enough
    for this program is always accepted. Raises InputError if it is too small.
    """
    limit, footprints = job.limit, job.allowed
    best: CountedPlan | None = None
    smallest: CountedPlan | None = None
    for _ in range(_MOST_PROGRAMS - 1):
        try:
            choice = job.find_quickest(footprints)
        except Infeasible:
            if best is not None or smallest is not None:
                break
            choice = smallest = count(job.min_memory_plan())
        else:
            if best is not None and choice.seconds >= best.seconds:
                break
            predicted, workspace = choice.plan.predicted, choice.footprint.workspace_bytes
            if 2 * predicted.local_peak_bytes + _SURELY * workspace <= limit:
                return choice
            choice = count(choice)
        if choice.compiled_bytes <= limit:
            best = choice
            if choice.compiled_bytes >= _ROOMY * limit or choice.plan.strategy == "base":
                break
        footprints = [footprint.add(choice.excess_bytes) for footprint in footprints]
    if best is not None:
        return best
    smallest = smallest or count(job.min_memory_plan())
    if smallest.compiled_bytes > limit:
        raise job.refuse(smallest)
    return replace(smallest, plan=smallest.recount(limit))


@dataclass(frozen=True, kw_only=True)
class Job:
    """A loop to plan within the limit of ``ways``.

    The limit includes the outputs of all steps and their gradients, and the wanted gradients of parameters and
    inputs.

    Arguments:
        measured: the footprints of the step (``measure_step``).
        steps: T.
        ways: the limit, and the other arguments of the call.
        reverse: whether the sequence runs from its end.
        batch: the batch that ``jax.vmap`` makes of the gradient; all its examples share the limit.
        as_words: whether buffers hold small floating-point numbers as integers.
        copies_outputs: whether the caller's program holds the outputs of all steps twice.
    """

    measured: Sequence[StepFootprint]
    steps: int
    ways: Ways
    reverse: bool = False
    batch: Batch = field(default_factory=Batch)
    as_words: bool = True
    copies_outputs: bool = False

    @classmethod
    def of(cls, traced: TracedGradient, **options: Any) -> Job:
        """Return the job of a traced step; the options are the fields."""
        return cls(measured=measure_step(traced), **options)

    @property
    def step(self) -> Step:
        """The step."""
        return self.measured[0].traced.step

    @property
    def allowed(self) -> list[StepFootprint]:
        """The footprints of the kinds of tape that the call allows."""
        return [footprint for footprint in self.measured if self.ways.tape in {None, footprint.tape}]

    @cached_property
    def total_limit(self) -> int:
        """The limit of all examples together in bytes."""
        return parse_limit(self.ways.memory, field="memory")

    @property
    def limit(self) -> int:
        """The limit of one example in bytes."""
        return max(1, self.total_limit // self.batch.size)

    def find_quickest(self, footprints: Sequence[StepFootprint], *, limit: int | None = None) -> CountedPlan:
        """Return the quickest plan within the limit.

        Exact strategies are searched first. Searching the others may take longer than compiling the program, so
        they are searched only for the footprint of the exact plan, and only if they may gain enough. Raises
        Infeasible if there is no plan, with the least need of all footprints.
        """
        limit = self.limit if limit is None else limit
        reasons: list[Infeasible] = []
        choice: CountedPlan | None = None
        bounds = [
            (self._make_request(footprint, limit).question().least_seconds, footprint)
            for footprint in footprints
        ]
        for exact in (True, False):
            first = choice
            for seconds, footprint in sorted(bounds, key=itemgetter(0)):
                if choice is not None and seconds >= (1 - _GAIN) * choice.seconds:
                    break
                if first is not None and footprint is not first.footprint:
                    continue
                try:
                    plan = self._plan(footprint, limit, only_exact=exact)
                except Infeasible as error:
                    reasons.append(error)
                    continue
                if choice is None or plan.predicted.seconds < choice.seconds:
                    choice = CountedPlan(plan=plan, footprint=footprint)
        if choice is None:
            raise min(reasons, key=lambda error: (error.binding != "local_bytes", error.need))
        return choice

    def min_memory_plan(self) -> CountedPlan:
        """Return the plan with the least memory of all kinds of tape, even if it exceeds the limit."""
        footprint = min(self.allowed, key=self._min_bytes)
        need = self._min_bytes(footprint)
        return CountedPlan(plan=self._plan(footprint, find_limit(need)), footprint=footprint)

    def warn(self, choice: CountedPlan) -> None:
        """Warn of a slow plan, with a limit for a quick one. Log that a loss over all outputs may not fit."""
        plan, size, limit, total = choice.plan, self.batch.size, self.limit, self.total_limit
        if plan.predicted.overhead > _SLOW:
            (first,) = (footprint for footprint in self.allowed if footprint.name == choice.footprint.name)
            # Assume that programs for larger limits exceed the first estimate by as much.
            excess = plan.workload.workspace_bytes - first.workspace_bytes
            excess += choice.excess_bytes if choice.compiled_bytes else 0
            footprints = [footprint.add(excess) for footprint in self.allowed]
            for power in range(1, _MOST_FACTORS):
                try:
                    larger = self.find_quickest(footprints, limit=int(limit * _FACTOR**power)).plan
                except Infeasible:
                    continue
                if larger.predicted.overhead <= DEAR:
                    warnings.warn(
                        f"memory={self.ways.memory!r} is enough for a slow plan, with "
                        f"{plan.predicted.overhead:+.0%} time over plain backpropagation. From about "
                        f"{format_limit(int(total * _FACTOR**power), like=total)} on, plans take "
                        f"{larger.predicted.overhead:+.0%}",
                        PlanMismatch,
                        stacklevel=2,
                    )
                    break
        outputs = self.steps * byte_size(pick(self.step.outputs, differentiable(self.step.outputs)))
        if outputs >= _MUCH * limit and plan.predicted.local_peak_bytes + outputs > limit:
            _log.warning(
                "memory=%s counts all outputs (%s) and their gradients. A loss that holds another array of "
                "that size needs it on top of the limit. ckptplan.jax.bptt adds up the loss step by step",
                format_bytes(total, like=total),
                format_bytes(size * outputs, like=total),
            )

    def refuse(self, smallest: CountedPlan) -> InputError:
        """Return the error for a limit that is too small, given the smallest program that was compiled."""
        size, limit, step, total = self.batch.size, self.limit, self.step, self.total_limit
        footprint = smallest.footprint.add(smallest.excess_bytes)
        request = self._make_request(footprint, limit)
        reason = Infeasible(
            binding="local_bytes", need=smallest.compiled_bytes, have=limit, subject="the smallest program"
        )
        try:
            rank_strategies(request, only_best=True).best()
        except Infeasible as error:
            if error.binding == "local_bytes":
                reason = error
                reason.need = max(smallest.compiled_bytes, reason.need)
        reason.need *= size
        return refuse_limit(
            reason,
            request,
            memory=self.ways.memory,
            limit=total,
            gradients=size * byte_size(pick(step.constants, footprint.traced.wanted.constants)),
            parts=f" for {self.steps:,} steps with a state of "
            f"{format_bytes(size * byte_size(step.state), like=total)}",
            shape=(self.steps, *step.inputs[0].shape) if step.inputs else (),
        )

    def _min_bytes(self, footprint: StepFootprint) -> float:
        """Return the least bytes of the exact strategies, infinite if another limit binds."""
        question = self._make_request(footprint, 1).question().replace(strategies=_EXACT)
        reason = find_reason(question, subject="no limit")
        return reason.need if reason.binding == "local_bytes" else math.inf

    def _plan(self, footprint: StepFootprint, limit: int, *, only_exact: bool = False) -> Plan:
        """Return the quickest plan. Raises Infeasible without suggestions, which take longer than planning."""
        request = self._make_request(footprint, limit)
        if not only_exact:
            plan = _choose(request, None)
            if plan.strategy in _EXACT or footprint.predict(plan) <= limit:
                return plan
        return _choose(request, _EXACT)

    def _make_request(self, footprint: StepFootprint, limit: int) -> Request:
        counted = Basis(kind="derived", why="from the shapes of the traced step")
        seconds, timed = find_times(footprint, self.ways.workload, among=self.measured)
        workload = ckptplan.Workload(
            name=footprint.name,
            steps=self.steps,
            units=1,
            state_bytes=footprint.state_bytes,
            tape_bytes=footprint.tape_bytes,
            resident_bytes_per_step=footprint.kept_bytes,
            workspace_bytes=footprint.workspace_bytes,
            **seconds,
            limited=True,
            basis={**dict.fromkeys(_COUNTED, counted), **dict.fromkeys(TIMES, timed)},
        )
        profile = ckptplan.HardwareProfile(name="memory-limit", local_bytes=limit, remote_bytes=0)
        # Leave a margin for differences between the estimate and the compiled program.
        return Request.of(workload, profile, local_bytes=leave_margin(limit), command="ckptplan.jax.plan_for")


def _choose(request: Request, strategies: tuple[str, ...] | None) -> Plan:
    ranking = rank_strategies(request, strategies=strategies, only_best=True)
    if not ranking.answers:
        raise find_reason(ranking.question, subject="no strategy fits")
    return ranking.best()
