"""Counts the bytes of a step, and estimates its times, for each kind of tape, from shapes alone."""

from __future__ import annotations

import warnings
from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import Any

from ckptplan.errors import PlanMismatch
from ckptplan.jax.leaves import byte_size, pick
from ckptplan.jax.sums import GradientSums
from ckptplan.jax.table import RowTable, tabulate
from ckptplan.jax.tapes import TAPES, Tape, TracedGradient
from ckptplan.jax.work import (
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
    def state_bytes(self) -> int:
        """The bytes of a state."""
        return max(1, byte_size(self.sums.traced.step.state))

    @property
    def tape_bytes(self) -> int:
        """The bytes of the tape of a step."""
        return max(1, byte_size(self.sums.tape))

    @property
    def kept_bytes(self) -> int:
        """The bytes per step that stay until the end: outputs, their gradients, wanted gradients of inputs."""
        traced, step = self.sums.traced, self.sums.traced.step
        return 2 * byte_size(step.outputs) + byte_size(pick(step.inputs, traced.wanted_inputs))

    def tabulate(self, plan: Plan | Schedule) -> RowTable:
        """Return the table of rows of a plan or a schedule for this step."""
        return tabulate(plan, self.sums.traced.step.state, self.sums.tape)

    def add(self, size: int) -> StepFootprint:
        """Return a footprint with ``size`` more bytes of workspace, or fewer if ``size`` is negative."""
        return replace(self, workspace_bytes=max(0, self.workspace_bytes + size))

    @property
    def name(self) -> str:
        """The name of workloads of this kind. If products are grouped, it ends with ``steps_per_matmul``."""
        count = self.sums.steps_per_matmul
        return f"jax-{self.sums.kind}" + (f"-{count}" if count > 1 else "")


def measure_step(traced: TracedGradient) -> tuple[StepFootprint, ...]:
    """Return the footprint of a step for each kind of tape, in the order of ``TAPES``.

    If a step has products, each kind has a second footprint with products of several steps at once.
    """
    alone = [GradientSums(traced, kind) for kind in TAPES]
    return tuple(
        _measure_sums(sums)
        for single in alone
        for sums in ((single, single.group()) if single.products else (single,))
    )


def _measure_sums(sums: GradientSums) -> StepFootprint:
    """Return the footprint of a step that is recorded and reversed in a way."""
    step, forward, count = sums.traced.step, sums.traced.forward, sums.steps_per_matmul
    product_bytes = sum(variable_bytes(product.outvars[0]) for product in sums.products)
    live = max(estimate_live_bytes(forward), estimate_live_bytes(sums.recording))
    if count > 1:
        # Factors are written in place. Other results of a step may be held while products are formed.
        live = product_bytes + max(live, estimate_live_bytes(sums.each) - sums.factor_bytes)
        live += count * sums.factor_bytes
    else:
        # Compilers may form the products of a step last, while all of their factors are held.
        last_bytes = product_bytes + sums.factor_bytes + sums.added_bytes
        live = max(live, estimate_live_bytes(sums.reversing), last_bytes)
    seconds = max(estimate_seconds(forward), _LEAST_SECONDS)
    products = sum(estimate_product_seconds(product, steps_per_matmul=count) for product in sums.products)
    gradient_bytes = byte_size(pick(step.constants, sums.traced.wanted_constants))
    return StepFootprint(
        sums=sums,
        # The sums of gradients, the state and its gradient, and arrays that a step or a group of steps holds.
        workspace_bytes=gradient_bytes + 2 * byte_size(step.state) + live + _SMALL_BYTES,
        seconds={
            "forward_seconds": seconds,
            "recompute_seconds": seconds,
            "record_overhead_seconds": max(0.0, estimate_seconds(sums.recording) - seconds),
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
    allowed = [footprint for footprint in footprints if tape in {None, footprint.sums.kind}]
    if isinstance(plan, Schedule):
        return allowed[0]
    workload = plan.workload
    calibrated = None if workload.calibration is None else workload.calibration.tape
    limit = _within(workload.tape_bytes, workload)
    fitting = [footprint for footprint in allowed if footprint.tape_bytes <= limit]

    def likeness(footprint: StepFootprint) -> tuple[Any, ...]:
        kind, count = footprint.sums.kind, footprint.sums.steps_per_matmul
        # Choose grouped products only if the plan's workspace includes them.
        is_grouped = count > 1 and calibrated is None and workload.name.endswith(f"-{count}")
        return footprint.name == workload.name, footprint.tape_bytes, kind == calibrated, is_grouped

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
