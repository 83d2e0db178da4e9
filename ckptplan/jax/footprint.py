"""Counts what a step takes under each kind of tape, from shapes alone: nothing is run or compiled."""

from __future__ import annotations

import warnings
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import Any

from ckptplan.errors import PlanMismatch
from ckptplan.jax.jaxprs import ById
from ckptplan.jax.leaves import byte_size
from ckptplan.jax.sums import GradientSums
from ckptplan.jax.table import RowTable, tabulate
from ckptplan.jax.tapes import TAPES, Recording, Tape, TracedGradient
from ckptplan.jax.work import (
    estimate_hoisted_bytes,
    estimate_live_bytes,
    estimate_product_seconds,
    estimate_seconds,
    variable_bytes,
)
from ckptplan.model.plan import Plan, find_given_memory
from ckptplan.model.workload import Workload
from ckptplan.schedule.schedule import Schedule
from ckptplan.units import format_bytes

#: The share by which bytes may differ from the plan's without a warning.
_TOLERANCE = 0.05
#: Numbers of rows and steps, and what their alignment takes.
_SMALL_BYTES = 2048
#: A step that computes nothing.
_LEAST_SECONDS = 1e-9


@dataclass(frozen=True, kw_only=True, eq=False)
class StepFootprint:
    """Bytes and estimated times of a step with one kind of tape, and what records and reverses it."""

    sums: GradientSums
    #: Gradients of the constants, and what a step holds while it runs.
    workspace_bytes: int
    #: The times as fields of a workload.
    seconds: dict[str, float]

    @property
    def steps_per_matmul(self) -> int:
        """The steps whose products of gradients are formed at once."""
        return self.sums.steps_per_matmul

    @property
    def tape(self) -> Tape:
        """The kind of tape."""
        return self.sums.recording.kind

    @property
    def traced(self) -> TracedGradient:
        """The step and its backward."""
        return self.sums.recording.traced

    @property
    def state_bytes(self) -> int:
        """The bytes of a state."""
        return max(1, byte_size(self.traced.step.state))

    @property
    def tape_bytes(self) -> int:
        """The bytes of the tape of a step."""
        return max(1, byte_size(self.sums.recording.tape))

    @property
    def kept_bytes(self) -> int:
        """What stays for a step the whole time: outputs, their gradients, wanted gradients of inputs."""
        step, wanted = self.traced.step, self.traced.wanted
        return 2 * byte_size(step.outputs) + byte_size([step.inputs[place] for place in wanted.inputs])

    def tabulate(self, plan: Plan | Schedule) -> RowTable:
        """Return the table of a plan or a schedule for such steps."""
        return tabulate(ById(plan), self.traced.step.state, self.sums.recording.tape)

    def predict(self, plan: Plan) -> int:
        """Return the bytes that a plan's program needs. Its buffers may be larger than the peak."""
        table = self.tabulate(plan)
        return plan.predicted.local_peak_bytes + table.buffer_bytes - table.held_bytes

    def add(self, size: int) -> StepFootprint:
        """Return one with so many bytes more of workspace, or less."""
        return replace(self, workspace_bytes=max(0, self.workspace_bytes + size))

    @property
    def name(self) -> str:
        """The name of workloads of this kind; its end says of products of several steps at once."""
        return f"jax-{self.tape}" + (f"-{self.steps_per_matmul}" if self.steps_per_matmul > 1 else "")


def measure_step(traced: TracedGradient) -> tuple[StepFootprint, ...]:
    """Return the footprint of a step for each kind of tape, in the order of ``TAPES``.

    Each kind comes alone, and with products of several steps at once if there are any.
    """
    return tuple(footprint for kind in TAPES for footprint in _measure(Recording(traced, kind)))


def _measure(recording: Recording) -> Iterator[StepFootprint]:
    step, wanted = recording.traced.step, recording.traced.wanted
    record, forward = recording.each, step.jaxpr
    constants, state = step.constants, step.state
    total = byte_size([constants[place] for place in wanted.constants])
    alone = GradientSums(recording)
    formed = sum(variable_bytes(product.outvars[0]) for product in alone.products)
    running = max(estimate_live_bytes(forward), estimate_live_bytes(record))
    seconds = max(estimate_seconds(forward), _LEAST_SECONDS)
    for sums in (alone, alone.group()) if alone.products else (alone,):
        if sums.steps_per_matmul > 1:
            # Factors are written in place. What else a step leaves may be held while products are formed.
            kept = sums.steps_per_matmul * sums.factor_bytes
            live = formed + max(running, estimate_live_bytes(sums.each) - sums.factor_bytes)
        else:
            # Compilers may form the products of a step last, beside all of their factors.
            kept = 0
            last = formed + sums.factor_bytes + sums.added_bytes
            live = max(running, estimate_live_bytes(recording.reverse), last)
        products = sum(
            estimate_product_seconds(product, steps_per_matmul=sums.steps_per_matmul)
            for product in sums.products
        )
        yield StepFootprint(
            sums=sums,
            # The sums of gradients, with the factors of a group; the state and its gradient; what a step holds;
            # what depends on constants only, which is computed before the steps.
            workspace_bytes=total
            + kept
            + 2 * byte_size(state)
            + live
            + max(estimate_hoisted_bytes(forward, step.fixed), sums.hoisted_bytes)
            + _SMALL_BYTES,
            seconds={
                "forward_seconds": seconds,
                "recompute_seconds": seconds,
                "record_overhead_seconds": max(0.0, estimate_seconds(record) - seconds),
                "backward_seconds": max(estimate_seconds(sums.each) + products, _LEAST_SECONDS),
            },
        )


def choose_footprint(
    plan: Plan | Schedule, footprints: Sequence[StepFootprint], *, tape: Tape | None = None
) -> StepFootprint:
    """Return the footprint of a step as a plan runs it: its kind of tape, unless it is given, and its groups.

    A workload that has another name, as a calibrated one, is of the kind with the largest tapes within its
    bytes; of kinds of one size it is the calibrated one, else the one that computes the least again. Of a plan
    for smaller tapes it is the kind with the smallest.
    """
    if isinstance(plan, Schedule):
        return next(footprint for footprint in footprints if footprint.tape == (tape or "residuals"))
    workload = plan.workload
    calibrated = None if workload.calibration is None else workload.calibration.tape

    def likeness(footprint: StepFootprint) -> tuple[Any, ...]:
        # Products of several steps at once need the workspace that they were planned with.
        is_grouped = (
            calibrated is None
            and footprint.steps_per_matmul > 1
            and workload.name.endswith(f"-{footprint.steps_per_matmul}")
        )
        return footprint.name == workload.name, footprint.tape_bytes, footprint.tape == calibrated, is_grouped

    allowed = [footprint for footprint in footprints if tape in {None, footprint.tape}]
    fitting = [
        footprint for footprint in allowed if footprint.tape_bytes <= _within(workload.tape_bytes, workload)
    ]
    return max(fitting, key=likeness) if fitting else min(allowed, key=lambda footprint: footprint.tape_bytes)


def warn_of_sizes(plan: Plan | Schedule, footprint: StepFootprint) -> None:
    """Warn of PlanMismatch if a state or a tape is larger than planned."""
    if isinstance(plan, Schedule):
        return
    workload = plan.workload
    state, tape = workload.state_bytes, workload.tape_bytes
    if footprint.state_bytes > _within(state, workload) or footprint.tape_bytes > _within(tape, workload):
        units = workload.units or 1
        show = partial(format_bytes, like=find_given_memory(plan))
        warnings.warn(
            f"the plan is for a state of {show(state * units)} and tapes of {show(tape * units)}; this step "
            f"has a state of {show(footprint.state_bytes)} and tapes of at least {show(footprint.tape_bytes)}",
            PlanMismatch,
            stacklevel=4,
        )


def _within(planned: int, workload: Workload) -> float:
    """Return the bytes of all units up to which a counted size agrees with that of a plan."""
    return planned * (workload.units or 1) * (1 + _TOLERANCE)
