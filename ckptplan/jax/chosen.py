"""Checks a given plan against the loop that it runs, and finds the kind of tape that it was made for."""

from __future__ import annotations

import warnings
from collections.abc import Iterable, Mapping

from ckptplan.errors import InputError, PlanMismatch, quote_value
from ckptplan.jax.footprint import StepFootprint, measure_step
from ckptplan.jax.step import TracedStep
from ckptplan.jax.tapes import Tape, Wanted
from ckptplan.model.plan import Plan
from ckptplan.model.workload import Workload
from ckptplan.planning.playback import schedule_of
from ckptplan.schedule.actions import Action, Save, Tier, Transfer
from ckptplan.schedule.schedule import Schedule
from ckptplan.units import format_bytes

#: The share by which bytes may differ from the plan's without a warning.
_TOLERANCE = 0.05


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


def read_schedule(plan: Plan | Schedule) -> Iterable[Action]:
    """Return the actions of a plan, or of a schedule."""
    return schedule_of(plan) if isinstance(plan, Plan) else plan


def keeps_remote(plan: Plan | Schedule) -> bool:
    """Return whether a schedule keeps states in remote memory."""
    return any(_is_remote(action) for action in read_schedule(plan))


def _is_remote(action: Action) -> bool:
    if isinstance(action, Transfer):
        return True
    return isinstance(action, Save) and action.tier is Tier.REMOTE


def choose_footprint(
    plan: Plan | Schedule, step: TracedStep, wanted: Wanted, *, tape: Tape | None = None
) -> StepFootprint:
    """Return what a step takes as a plan runs it: the kind of tape, unless it is given, and the groups.

    Warns of PlanMismatch if the state or every kind of tape is larger than planned.
    """
    footprints = measure_step(step, wanted)
    if isinstance(plan, Schedule):
        return next(one for one in footprints if one.tape == (tape or "residuals"))
    workload, units = plan.workload, plan.workload.units or 1
    sizes = {one.tape: one.tape_bytes for one in footprints}
    chosen = tape or pick_tape(sizes, workload)
    fits = sizes[chosen] <= workload.tape_bytes * units * (1 + _TOLERANCE)
    state, known = footprints[0].state_bytes, workload.state_bytes * units
    if tape is None and (not fits or state > known * (1 + _TOLERANCE)):
        planned = format_bytes(workload.tape_bytes * units)
        warnings.warn(
            f"the plan is for a state of {format_bytes(known)} and tapes of {planned}; this step has a state "
            f"of {format_bytes(state)} and tapes of at least {format_bytes(sizes[chosen])}",
            PlanMismatch,
            stacklevel=4,
        )
    alone, *together = (one for one in footprints if one.tape == chosen)
    if workload.calibration is not None:
        # Calibration measures steps alone.
        return alone
    # Products of several steps at once need the workspace that they were planned with.
    roomy = [one for one in together if one.workspace_bytes <= workload.workspace_bytes * units]
    return roomy[0] if roomy else alone


def pick_tape(sizes: Mapping[Tape, int], workload: Workload) -> Tape:
    """Return the kind of tape that a workload is of: the largest within its bytes; the smallest if none is.

    Of kinds of one size it is the calibrated one, else the one that computes the least again.
    """
    planned = workload.tape_bytes * (workload.units or 1)
    fitting = [kind for kind, size in sizes.items() if size <= planned * (1 + _TOLERANCE)]
    if not fitting:
        return min(sizes, key=sizes.__getitem__)
    most = max(sizes[kind] for kind in fitting)
    equal = [kind for kind in fitting if sizes[kind] == most]
    calibrated = None if workload.calibration is None else workload.calibration.tape
    return next((kind for kind in equal if kind == calibrated), equal[0])
