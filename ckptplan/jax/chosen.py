"""Checks a given plan against the loop that it runs, and finds the kind of tape that it was made for."""

from __future__ import annotations

import warnings
from collections.abc import Iterable, Mapping

from ckptplan.errors import InputError, PlanMismatch, quote_value
from ckptplan.jax.footprint import measure_step
from ckptplan.jax.step import TracedStep
from ckptplan.jax.tapes import Tape, Wanted
from ckptplan.model.plan import Plan
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


def choose_tape(plan: Plan | Schedule, step: TracedStep, wanted: Wanted) -> Tape:
    """Return the kind of tape that a plan was made for: the largest that is within its bytes.

    Warns of PlanMismatch if the state or every kind of tape is larger than planned.
    """
    if isinstance(plan, Schedule):
        return "residuals"
    footprints = measure_step(step, wanted)
    units = plan.workload.units or 1
    sizes = {one.tape: one.tape_bytes for one in footprints}
    chosen = pick_tape(sizes, planned=plan.workload.tape_bytes * units)
    fits = sizes[chosen] <= plan.workload.tape_bytes * units * (1 + _TOLERANCE)
    state, known = footprints[0].state_bytes, plan.workload.state_bytes * units
    if not fits or state > known * (1 + _TOLERANCE):
        tape = format_bytes(plan.workload.tape_bytes * units)
        warnings.warn(
            f"the plan is for a state of {format_bytes(known)} and tapes of {tape}; this step has a state of "
            f"{format_bytes(state)} and tapes of at least {format_bytes(sizes[chosen])}",
            PlanMismatch,
            stacklevel=4,
        )
    return chosen


def pick_tape(sizes: Mapping[Tape, int], *, planned: int) -> Tape:
    """Return the kind of tape that is largest within the planned bytes; the smallest if none is."""
    fitting = [kind for kind, size in sizes.items() if size <= planned * (1 + _TOLERANCE)]
    return max(fitting, key=sizes.__getitem__) if fitting else min(sizes, key=sizes.__getitem__)
