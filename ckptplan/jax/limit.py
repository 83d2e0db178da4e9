"""Finds plans whose programs are within a limit: planned from shapes, compiled, and planned again if need be.

The workspace of a step is an estimate, since compilers fuse, copy and reorder operations. So the planned
program is compiled once, with few optimizations, to read its bytes. If they are too many, the difference is
added to the workspace of the step, and the loop is planned again.

The times of a step are estimated from its operations, or come from a calibration.
"""

from __future__ import annotations

import logging
import operator
import warnings
from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from operator import itemgetter
from typing import Any, SupportsIndex

import jax

import ckptplan
from ckptplan.errors import Infeasible, InputError, PlanMismatch, quote_value
from ckptplan.execution.advice import DEAR, describe_choice, find_limit, leave_margin, refuse_limit
from ckptplan.jax.footprint import StepFootprint
from ckptplan.jax.leaves import byte_size, differentiable, pick
from ckptplan.jax.loops import Batch, Loop
from ckptplan.jax.program import ScanPasses, count_bytes
from ckptplan.jax.table import RowTable
from ckptplan.jax.tapes import Tape, check_tape
from ckptplan.model.plan import Plan
from ckptplan.model.prediction import Predicted
from ckptplan.model.workload import ACTION_TIMES, TIMES, Basis, Workload
from ckptplan.planning.optimize import rank_strategies
from ckptplan.planning.request import Request
from ckptplan.schedule.schedule import Schedule
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
#: Closed forms whose programs take the predicted bytes for any shapes of states and tapes.
_EXACT = ("base", "standard", "nested", "revolve")
_COUNTED = ("state_bytes", "tape_bytes", "resident_bytes_per_step", "resident_bytes", "workspace_bytes")
#: Another plan is searched for only if it may save more than this share of time.
_GAIN = 0.01
#: A warning about outputs is logged if they take at least this share of the limit.
_MUCH = 0.25
#: A plan with a larger overhead is slow. A plan with an overhead of at most ``DEAR`` is quick.
_SLOW = 2.0
_log = logging.getLogger("ckptplan.jax")


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
    kind = (timed.calibration and timed.calibration.tape) or "residuals"
    measured = next(candidate for candidate in among if candidate.sums.kind == kind)
    if max(abs(measured.state_bytes - state), abs(measured.tape_bytes - tape)) > _LOSS_BYTES:
        raise InputError(
            f"{timed.name!r} has a state of {format_bytes(state)} and tapes of {format_bytes(tape)}; this step "
            f"has {format_bytes(measured.state_bytes)}, and tapes of {format_bytes(measured.tape_bytes)}",
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


def read_limit(memory: SupportsIndex | str | None) -> int | str | None:
    """Return a limit as a number or text. Raises InputError."""
    limit = operator.index(memory) if isinstance(memory, SupportsIndex) else memory
    if limit is not None:
        parse_limit(limit, field="memory")
    return limit


@dataclass(frozen=True, kw_only=True)
class Ways:
    """The arguments that choose how a loop runs when its gradient is requested. Raises InputError.

    Arguments:
        plan: a plan or a schedule; None to make one within ``memory``.
        memory: the limit in bytes or text.
        workload: a calibrated workload whose times are used.
        tape: the kind of tape; None to choose it.
    """

    plan: Plan | Schedule | None = None
    memory: int | str | None = None
    workload: Workload | None = None
    tape: Tape | None = None

    def __post_init__(self) -> None:
        if self.plan is None and self.memory is None:
            raise InputError(
                "is missing: it says how much memory the call may take",
                field="memory",
                accepted="memory='64 MiB', or plan=...",
            )
        if self.plan is not None and self.memory is not None:
            raise InputError("is given together with memory", field="plan", accepted="one of them")
        if self.workload is not None and self.memory is None:
            raise InputError(
                "is given without memory, and a plan has its own", field="workload", accepted="memory='64 MiB'"
            )
        if self.tape is not None:
            check_tape(self.tape)
        if self.plan is not None and not isinstance(self.plan, Plan | Schedule):
            raise InputError(
                f"{quote_value(self.plan)} is not a plan",
                field="plan",
                accepted="a plan, or a ckptplan.Schedule",
            )


@dataclass(frozen=True, kw_only=True)
class CountedPlan:
    """A plan with its footprint, and the bytes of its compiled program."""

    plan: Plan
    footprint: StepFootprint
    #: 0 if the program was not compiled.
    compiled_bytes: int = 0

    @property
    def seconds(self) -> float:
        """The predicted time."""
        return self.plan.predicted.seconds

    @property
    def excess_bytes(self) -> int:
        """The bytes of the program beyond the prediction."""
        return self.compiled_bytes - self.predicted_bytes

    @cached_property
    def table(self) -> RowTable:
        """The table of rows of the plan."""
        return self.footprint.tabulate(self.plan)

    @property
    def predicted_bytes(self) -> int:
        """The bytes that the program is predicted to take. Its buffers may exceed checkpoints and tapes."""
        sizes = self.plan.workload
        resident_bytes = sizes.resident_bytes + self.plan.steps * sizes.resident_bytes_per_step
        return self.table.layout.byte_size + resident_bytes + sizes.workspace_bytes

    def surely_fits(self, limit: int) -> bool:
        """Return whether the program is so much smaller than a limit that it need not be compiled."""
        return 2 * self.plan.predicted.local_peak_bytes + _SURELY * self.footprint.workspace_bytes <= limit


def plan_within(job: Job) -> CountedPlan:
    """Return the quickest plan whose program is within a limit, with its footprint.

    Raises InputError if no plan fits, with a limit that is large enough, or if the workload belongs to another
    step.
    """
    choice = _search(job)
    _log.info("%s", describe_choice(choice.plan, job.limit))
    job.warn(choice)
    return choice


def _search(job: Job) -> CountedPlan:
    """Return the quickest plan whose program is within a limit.

    The last program that is tried belongs to the plan with the least memory. So a limit that is large enough
    for this program is always accepted. Raises InputError if it is too small.
    """
    limit, footprints = job.limit, job.allowed
    best: CountedPlan | None = None
    smallest: CountedPlan | None = None
    for _ in range(_MOST_PROGRAMS - 1):
        choice = job.find_quickest(footprints)
        if choice is None:
            if best is not None or smallest is not None:
                break
            choice = smallest = job.count(job.min_memory_plan())
        elif best is not None and choice.seconds >= best.seconds:
            break
        elif choice.surely_fits(limit):
            return choice
        else:
            choice = job.count(choice)
        if choice.compiled_bytes <= limit:
            best = choice
            if choice.compiled_bytes >= _ROOMY * limit or choice.plan.strategy == "base":
                break
        footprints = [footprint.add(choice.excess_bytes) for footprint in footprints]
    if best is None:
        best = smallest = smallest or job.count(job.min_memory_plan())
        if best.compiled_bytes > limit:
            raise job.refuse(best)
    return job.replan(best) if best is smallest else best


class Job:
    """A loop to plan within the limit of ``ways``.

    The limit includes the outputs of all steps and their gradients, and the wanted gradients of parameters and
    inputs.
    """

    def __init__(
        self,
        measured: Sequence[StepFootprint],
        *,
        loop: Loop,
        ways: Ways,
        batch: Batch | None = None,
        as_words: bool = True,
    ) -> None:
        """Take the job. Raises InputError if the limit is no size.

        Arguments:
            measured: the footprints of the step (``measure_step``).
            loop: the scan.
            ways: the limit, and the other arguments of the call.
            batch: the batch that ``jax.vmap`` makes of the gradient; all its examples share the limit.
            as_words: whether buffers hold small floating-point numbers as integers.
        """
        self.measured, self.loop, self.ways, self.as_words = measured, loop, ways, as_words
        self.batch = batch or Batch()
        self.step, self.steps = loop.step, int(loop.params["length"])
        #: The footprints of the kinds of tape that the call allows.
        self.allowed = [footprint for footprint in measured if ways.tape in {None, footprint.sums.kind}]
        #: The limits of all examples together and of one example in bytes.
        self.total_limit = parse_limit(ways.memory, field="memory")
        self.limit = max(1, self.total_limit // self.batch.size)

    def count(self, choice: CountedPlan) -> CountedPlan:
        """Return a plan with the bytes of its compiled program, for one example."""
        if jax.sharding.get_abstract_mesh().manual_axes:
            # A part of a program within shard_map cannot be compiled alone, so use the estimate.
            return replace(choice, compiled_bytes=choice.predicted_bytes)
        sums, table = choice.footprint.sums, choice.table
        passes = ScanPasses(loop=self.loop, sums=sums, table=table, as_words=self.as_words)
        compiled_bytes = -(-count_bytes(passes, batch=self.batch) // self.batch.size)
        compiled_bytes += self.loop.copies_outputs * self.steps * byte_size(self.step.outputs)
        return replace(choice, compiled_bytes=compiled_bytes)

    def find_quickest(self, footprints: Sequence[StepFootprint]) -> CountedPlan | None:
        """Return the quickest plan within the limit, None if there is none.

        Searching all strategies may take longer than compiling the program. So they are searched only for the
        footprint of the quickest exact plan, and only if they may gain enough.
        """
        questions = ((self._make_request(footprint).question(), footprint) for footprint in footprints)
        bounds = [(question.least_seconds, footprint) for question, footprint in questions]
        best: CountedPlan | None = None
        least_seconds = 0.0
        for seconds, footprint in sorted(bounds, key=itemgetter(0)):
            if best is not None and seconds >= (1 - _GAIN) * best.seconds:
                break
            plan = self._plan(footprint)
            if plan is not None and (best is None or plan.seconds < best.seconds):
                best, least_seconds = plan, seconds
        if best is not None and least_seconds < (1 - _GAIN) * best.seconds:
            plan = self._plan(best.footprint, strategies=None)
            if plan is not None and plan.predicted_bytes <= self.limit:
                return plan
        return best

    def min_memory_plan(self) -> CountedPlan:
        """Return the plan with the least memory of all kinds of tape, even if it exceeds the limit."""
        needs = [(self._predict_least(footprint).local_peak_bytes, footprint) for footprint in self.allowed]
        need, footprint = min(needs, key=itemgetter(0))
        plan = self._plan(footprint, budget=leave_margin(find_limit(need)))
        assert plan is not None  # noqa: S101 - the budget is enough
        return plan

    def replan(self, choice: CountedPlan) -> CountedPlan:
        """Return a plan whose workspace and budget are those of its compiled program."""
        excess = max(choice.excess_bytes, -choice.footprint.workspace_bytes)
        budget = choice.plan.predicted.local_peak_bytes + excess
        plan = self._plan(choice.footprint.add(excess), budget=budget)
        assert plan is not None  # noqa: S101 - the budget is the memory of the plan
        return replace(plan, compiled_bytes=choice.compiled_bytes)

    def warn(self, choice: CountedPlan) -> None:
        """Warn of a slow plan, with a limit for a quick one. Log that a loss over all outputs may not fit."""
        plan, size, limit, total = choice.plan, self.batch.size, self.limit, self.total_limit
        if plan.predicted.overhead > _SLOW:
            (first,) = (footprint for footprint in self.allowed if footprint.name == choice.footprint.name)
            # Assume that programs for larger limits exceed the first estimate by as much, if at all.
            excess = plan.workload.workspace_bytes - first.workspace_bytes
            excess += choice.excess_bytes if choice.compiled_bytes else 0
            quick = self._predict_least(first.add(max(0, excess)), max_overhead=DEAR)
            warnings.warn(
                f"memory={self.ways.memory!r} is enough for a slow plan, with "
                f"{plan.predicted.overhead:+.0%} time over plain backpropagation. From about "
                f"{format_limit(find_limit(size * quick.local_peak_bytes), like=total)} on, plans take "
                f"{quick.overhead:+.0%}",
                PlanMismatch,
                stacklevel=2,
            )
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
        request = self._make_request(footprint)
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
            gradients=size * byte_size(pick(step.constants, footprint.sums.traced.wanted_constants)),
            parts=f" for {self.steps:,} steps with a state of "
            f"{format_bytes(size * byte_size(step.state), like=total)}",
            shape=(self.steps, *step.inputs[0].shape) if step.inputs else (),
        )

    def _predict_least(self, footprint: StepFootprint, **limits: float) -> Predicted:
        """Return the prediction of the exact plan with the least memory within limits of other quantities."""
        question = self._make_request(footprint).question()
        free = question.replace(strategies=_EXACT, local_bytes=None, objective="memory", **limits)
        return free.rank()[0].predicted(free.costs)

    def _plan(
        self,
        footprint: StepFootprint,
        *,
        budget: int | None = None,
        strategies: tuple[str, ...] | None = _EXACT,
    ) -> CountedPlan | None:
        """Return the quickest plan within a budget in bytes, by default the limit; None if there is none."""
        request = self._make_request(footprint, budget)
        ranking = rank_strategies(request, strategies=strategies, only_best=True)
        return CountedPlan(plan=ranking.best(), footprint=footprint) if ranking.answers else None

    def _make_request(self, footprint: StepFootprint, budget: int | None = None) -> Request:
        """Return the request for a plan within a budget.

        By default, it is the limit, less a margin for differences between the estimate and the program.
        """
        budget = leave_margin(self.limit) if budget is None else budget
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
        profile = ckptplan.HardwareProfile(name="memory-limit", local_bytes=self.limit, remote_bytes=0)
        return Request.of(workload, profile, local_bytes=budget, command="ckptplan.jax.plan_for")
