"""Counts the bytes of a step, and estimates its times, for each kind of tape, from shapes alone."""

from __future__ import annotations

import warnings
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import Any

from ckptplan.errors import PlanMismatch
from ckptplan.jax.leaves import byte_size, pick
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
#: Bytes of small arrays, such as numbers of rows and steps, and of their alignment.
_SMALL_BYTES = 2048
#: The least seconds of a step, even if it computes nothing.
_LEAST_SECONDS = 1e-9


@dataclass(frozen=True, kw_only=True, eq=False)
class StepFootprint:
    """Bytes and estimated times of a step with one kind of tape, and its recording and reversal (``sums``)."""

    sums: GradientSums
    #: Bytes of the gradients of the constants, and of the arrays that a step holds while it runs.
    workspace_bytes: int
    #: The times by field of a workload.
    seconds: dict[str, float]

    @property
    def steps_per_matmul(self) -> int:
        """The number of steps whose products of gradients are formed at once."""
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
        """The bytes per step that stay until the end: outputs, their gradients, wanted gradients of inputs."""
        step = self.traced.step
        return 2 * byte_size(step.outputs) + byte_size(pick(step.inputs, self.traced.wanted_inputs))

    def tabulate(self, plan: Plan | Schedule) -> RowTable:
        """Return the table of rows of a plan or a schedule for this step."""
        return tabulate(plan, self.traced.step.state, self.sums.recording.tape)

    def add(self, size: int) -> StepFootprint:
        """Return a footprint with ``size`` more bytes of workspace, or fewer if ``size`` is negative."""
        return replace(self, workspace_bytes=max(0, self.workspace_bytes + size))

    @property
    def name(self) -> str:
        """The name of workloads of this kind. If products are grouped, it ends with ``steps_per_matmul``."""
        return f"jax-{self.tape}" + (f"-{self.steps_per_matmul}" if self.steps_per_matmul > 1 else "")


def measure_step(traced: TracedGradient) -> tuple[StepFootprint, ...]:
    """Return the footprint of a step for each kind of tape, in the order of ``TAPES``.

    If a step has products, each kind has a second footprint with products of several steps at once.
    """
    return tuple(footprint for kind in TAPES for footprint in _measure_recording(Recording(traced, kind)))


def _measure_recording(recording: Recording) -> Iterator[StepFootprint]:
    traced, step = recording.traced, recording.traced.step
    record, forward = recording.each, traced.forward
    total = byte_size(pick(step.constants, traced.wanted_constants))
    alone = GradientSums(recording)
    product_bytes = sum(variable_bytes(product.outvars[0]) for product in alone.products)
    running = max(estimate_live_bytes(forward), estimate_live_bytes(record))
    seconds = max(estimate_seconds(forward), _LEAST_SECONDS)
    for sums in (alone, alone.group()) if alone.products else (alone,):
        if sums.steps_per_matmul > 1:
            # Factors are written in place. Other results of a step may be held while products are formed.
            kept = sums.steps_per_matmul * sums.factor_bytes
            live = product_bytes + max(running, estimate_live_bytes(sums.each) - sums.factor_bytes)
        else:
            # Compilers may form the products of a step last, while all of their factors are held.
            kept = 0
            last_bytes = product_bytes + sums.factor_bytes + sums.added_bytes
            live = max(running, estimate_live_bytes(recording.reverse), last_bytes)
        products = sum(
            estimate_product_seconds(product, steps_per_matmul=sums.steps_per_matmul)
            for product in sums.products
        )
        yield StepFootprint(
            sums=sums,
            # The sums of gradients, with the factors of a group; the state and its gradient; arrays that a step
            # holds; and arrays that depend on constants only, which are computed before the steps.
            workspace_bytes=total
            + kept
            + 2 * byte_size(step.state)
            + live
            + max(estimate_hoisted_bytes(forward, traced.fixed), sums.hoisted_bytes)
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
    """Return the footprint with which a plan runs a step, for the kind ``tape`` if it is given.

    The name of a planned workload determines the kind. For another name, as of a calibrated workload, it is the
    kind with the largest tapes within the workload's bytes. Among kinds of equal size, it is the calibrated
    one, or else the one that recomputes least. If all tapes are larger than planned, it is the smallest kind.
    """
    if isinstance(plan, Schedule):
        return next(footprint for footprint in footprints if footprint.tape == (tape or "residuals"))
    workload = plan.workload
    calibrated = None if workload.calibration is None else workload.calibration.tape

    def likeness(footprint: StepFootprint) -> tuple[Any, ...]:
        # Choose grouped products only if the plan's workspace includes them.
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
    """Return the most bytes of a counted size that still agrees with the planned size of all units."""
    return planned * (workload.units or 1) * (1 + _TOLERANCE)
