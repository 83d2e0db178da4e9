"""Plans whose programs are within a limit: planned from shapes, compiled, and planned again if need be.

What a step holds while it runs is an estimate: compilers fuse, copy and order as they like. So the planned
program is compiled once, quickly, and its bytes are read. If they are too many, the difference belongs to the
workspace of the step, and the loop is planned again.

Times of a step for the planner: assumed from its operations, or taken from a calibration.
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

#: Programs that are compiled to plan one loop.
_MOST_PROGRAMS = 3
#: A program that takes less than this share of the limit may have been planned with too little.
_ROOMY = 0.8
#: A program need not be compiled if the limit has room for twice its bytes, and for so many times the estimated
#: workspace: bf16, which compilers for CPUs copy to fp32, has taken eight times of it.
_SURELY = 10
#: The step number and the loss, which ``bptt`` has in its state and tapes and ``scan`` does not.
_LOSS_BYTES = 16
#: What a row of the table takes in addition to its steps.
_ROW_SECONDS = 2e-6


def find_times(
    footprint: StepFootprint, timed: Workload | None, *, among: Sequence[StepFootprint]
) -> tuple[dict[str, Any], Basis]:
    """Return times as fields of a workload: those of a calibrated one, or of operations at assumed rates.

    A calibration was of one kind of tape of ``among``. With another one, what recording and reversing take is
    the estimate, at the pace of the kind that was measured. Raises InputError if the workload is of another
    step.
    """
    if timed is None:
        of_rows = dict.fromkeys(("advance_seconds", "chunk_seconds"), _ROW_SECONDS)
        basis = Basis(kind="assumed", why="operations of the traced step, at assumed rates")
        return {**footprint.seconds, **of_rows}, basis
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


#: Closed forms whose programs take what was predicted, whatever the shapes of states and tapes.
_EXACT = ("base", "standard", "nested", "revolve")
_COUNTED = ("state_bytes", "tape_bytes", "resident_bytes_per_step", "resident_bytes", "workspace_bytes")
#: The share of time that another plan has to gain to be searched.
_GAIN = 0.01
#: Outputs are much of a limit from this share on.
_MUCH = 0.25
#: A plan with more than this share of additional time is slow, and one with at most ``DEAR`` is quick.
_SLOW = 2.0
#: Limits that are tried to find the one from which plans are quick: each is larger by this factor.
_FACTOR, _MOST_FACTORS = 1.25, 40
_log = logging.getLogger("ckptplan.jax")


@dataclass(frozen=True, kw_only=True)
class Ways:
    """What chooses how a loop runs once a gradient is wanted.

    Arguments:
        plan: a plan or a schedule; None to make one within ``memory``.
        memory: the limit in bytes or text.
        workload: a calibrated workload whose times are taken.
        tape: the kind of tape; None to choose it.
    """

    plan: Plan | Schedule | None = None
    memory: SupportsIndex | str | None = None
    workload: Workload | None = None
    tape: Tape | None = None


@dataclass(frozen=True, kw_only=True)
class CountedPlan:
    """A plan with the footprint that it is for, and what compiling its program showed."""

    plan: Plan
    footprint: StepFootprint
    #: The program, once it was compiled to count its bytes.
    program: LoopProgram | None = None
    compiled_bytes: int = 0

    @property
    def seconds(self) -> float:
        """The predicted time."""
        return self.plan.predicted.seconds

    @property
    def excess_bytes(self) -> int:
        """The bytes that the program takes beyond what was predicted."""
        return self.compiled_bytes - self.footprint.predict(self.plan)

    def recount(self, limit: int) -> Plan:
        """Return the plan within a limit, with the workspace that its program shows in a larger budget."""
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
    """Return the quickest plan whose program is within a limit, and the footprint that it is for.

    Raises InputError if no plan fits, with a limit that is then accepted, or if the workload is of another
    step.
    """

    def count(choice: CountedPlan) -> CountedPlan:
        if jax.sharding.get_abstract_mesh().manual_axes:
            # A part of a program within shard_map is not compiled: its bytes are the estimate.
            return replace(choice, compiled_bytes=choice.footprint.predict(choice.plan))
        program = make_program(choice.plan, choice.footprint, reverse=job.reverse, as_words=job.as_words)
        taken = -(-count_bytes(program, batch=job.batch) // job.batch.size)
        taken += job.copies_outputs * job.steps * byte_size(job.step.outputs)
        return replace(choice, program=program, compiled_bytes=taken)

    choice = search(job, count)
    _log.info("%s", describe_choice(choice.plan, job.limit))
    job.warn(choice)
    return choice


def search(job: Job, count: Callable[[CountedPlan], CountedPlan]) -> CountedPlan:
    """Return the quickest plan whose program is within a limit; ``count`` compiles a program.

    Whatever the first programs show, the last one is that of the plan with the least need: a limit that it is
    within is always accepted. Raises InputError if the smallest program is too large.
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
    """A loop that is to be planned within the limit of ``ways``.

    Outputs of all steps and their gradients are part of the limit, as are the wanted gradients of parameters
    and inputs.

    Arguments:
        measured: the footprints of the step (``measure_step``).
        steps: T.
        ways: the limit, and what else the call says.
        reverse: whether the sequence runs from its end.
        batch: the batch that ``jax.vmap`` makes of the gradient; the limit is of all its examples.
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
        """The footprints of the kinds of tape to choose from."""
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

        Exact strategies come first. The others may take longer than compiling the program, so they are searched
        for the footprint of the exact plan. A strategy that could gain only little is not searched. Raises
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
        """Return the plan with the least need of all kinds of tape, whatever the limit."""
        footprint = min(self.allowed, key=self._min_bytes)
        need = self._min_bytes(footprint)
        return CountedPlan(plan=self._plan(footprint, find_limit(need)), footprint=footprint)

    def warn(self, choice: CountedPlan) -> None:
        """Warn of a slow plan, with the limit from which plans are quick, and of a loss that is not counted."""
        plan, size, limit, total = choice.plan, self.batch.size, self.limit, self.total_limit
        if plan.predicted.overhead > _SLOW:
            (first,) = (footprint for footprint in self.allowed if footprint.name == choice.footprint.name)
            # Programs for larger limits take as much beyond the first estimate.
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
                "memory=%s counts all outputs (%s) and their gradients. A loss that holds another array "
                "of that size takes it beside the limit; ckptplan.jax.bptt takes the loss step by step",
                format_bytes(total, like=total),
                format_bytes(size * outputs, like=total),
            )

    def refuse(self, smallest: CountedPlan) -> InputError:
        """Return the error for a limit that is too small, by the smallest program that is known."""
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
        """Return the bytes that the exact strategies need."""
        question = self._make_request(footprint, 1).question().replace(strategies=_EXACT)
        reason = find_reason(question, subject="no limit")
        return reason.need if reason.binding == "local_bytes" else math.inf

    def _plan(self, footprint: StepFootprint, limit: int, *, only_exact: bool = False) -> Plan:
        """Return the quickest plan. Raises Infeasible, without suggestions: they take longer than planning."""
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
        # The rest is left for what the compiler arranges in another way.
        return Request.of(workload, profile, local_bytes=leave_margin(limit), command="ckptplan.jax.plan_for")


def _choose(request: Request, strategies: tuple[str, ...] | None) -> Plan:
    ranking = rank_strategies(request, strategies=strategies, only_best=True)
    if not ranking.answers:
        raise find_reason(ranking.question, subject="no strategy fits")
    return ranking.best()
