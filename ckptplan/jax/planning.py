"""Reads and checks plans for a loop: the table of one, its bytes, and the kind of tape that it is for."""

from __future__ import annotations

import warnings
from collections.abc import Sequence
from functools import lru_cache
from typing import Any

from ckptplan.errors import InputError, PlanMismatch, quote_value
from ckptplan.jax.footprint import StepFootprint
from ckptplan.jax.jaxprs import Same
from ckptplan.jax.table import Leaves, RowTable, make_table
from ckptplan.jax.tapes import Tape
from ckptplan.model.plan import Plan
from ckptplan.model.workload import Workload
from ckptplan.planning.playback import schedule_of
from ckptplan.schedule.schedule import Schedule
from ckptplan.units import format_bytes

#: The share by which bytes may differ from the plan's without a warning.
_TOLERANCE = 0.05


def predict_program(plan: Plan, footprint: StepFootprint) -> int:
    """Return what a program of a plan needs: buffers can hold more than what is kept at one time."""
    table = tabulate(Same(plan), footprint.state_leaves, footprint.tape_leaves)
    return plan.predicted.local_peak_bytes + table.buffer_bytes - table.held_bytes


@lru_cache(maxsize=4)
def tabulate(plan: Same, state: Leaves, tape: Leaves) -> RowTable:
    """Return the table of a plan or a schedule."""
    schedule = schedule_of(plan.value) if isinstance(plan.value, Plan) else plan.value
    return make_table(schedule, steps=plan.value.steps, state=state, tape=tape)


def check_steps(steps: int) -> None:
    """Raise InputError if there is no step."""
    if steps < 1:
        raise InputError("hold no time step", field="xs", accepted="arrays of shape (T, ...), with T from 1")


def check_plan(plan: object, *, steps: int) -> None:
    """Raise InputError unless this is a plan, or a legal schedule, for so many steps."""
    if not isinstance(plan, Plan | Schedule):
        raise InputError(
            f"{quote_value(plan)} is not a plan", field="plan", accepted="a plan, or a ckptplan.Schedule"
        )
    if plan.steps != steps:
        raise InputError(
            f"is for {plan.steps:,} steps, and the sequence has {steps:,}",
            field="plan",
            accepted=f"a plan for {steps:,} steps",
        )
    if isinstance(plan, Schedule):
        plan.check()


def choose_footprint(
    plan: Plan | Schedule, footprints: Sequence[StepFootprint], *, tape: Tape | None = None
) -> StepFootprint:
    """Return the footprint of a step as a plan runs it: its kind of tape, unless it is given, and its groups.

    A workload that has another name, as a calibrated one, is of the kind with the largest tapes within its
    bytes; of kinds of one size it is the calibrated one, else the one that computes the least again. Of a plan
    for smaller tapes it is the kind with the smallest.
    """
    if isinstance(plan, Schedule):
        return next(one for one in footprints if one.tape == (tape or "residuals"))
    workload = plan.workload
    calibrated = None if workload.calibration is None else workload.calibration.tape

    def likeness(one: StepFootprint) -> tuple[Any, ...]:
        # Products of several steps at once need the workspace that they were planned with.
        is_grouped = calibrated is None and one.together > 1 and workload.name.endswith(one.suffix)
        return one.name == workload.name, one.tape_bytes, one.tape == calibrated, is_grouped

    allowed = [one for one in footprints if tape in {None, one.tape}]
    fitting = [one for one in allowed if one.tape_bytes <= _within(workload.tape_bytes, workload)]
    return max(fitting, key=likeness) if fitting else min(allowed, key=lambda one: one.tape_bytes)


def warn_of_sizes(plan: Plan | Schedule, footprint: StepFootprint) -> None:
    """Warn of PlanMismatch if a state or a tape is larger than planned."""
    if isinstance(plan, Schedule):
        return
    workload = plan.workload
    state, tape = workload.state_bytes, workload.tape_bytes
    if footprint.state_bytes > _within(state, workload) or footprint.tape_bytes > _within(tape, workload):
        units = workload.units or 1
        warnings.warn(
            f"the plan is for a state of {format_bytes(state * units)} and tapes of "
            f"{format_bytes(tape * units)}; this step has a state of {format_bytes(footprint.state_bytes)} and "
            f"tapes of at least {format_bytes(footprint.tape_bytes)}",
            PlanMismatch,
            stacklevel=4,
        )


def _within(planned: int, workload: Workload) -> float:
    """Return the most bytes of all units that do not differ from those of one in a plan."""
    return planned * (workload.units or 1) * (1 + _TOLERANCE)
