"""Compares the sizes that a plan was made for with the sizes of the cell that it runs.

The first recorded steps are counted, once for each kind of call. A plan for 256 neurons would otherwise run a
cell of 2,560 neurons without a warning, in ten times its budget.
"""

from __future__ import annotations

import math
import warnings
from collections import OrderedDict
from collections.abc import Hashable
from dataclasses import replace
from functools import partial
from typing import Any

import torch

from ckptplan.cost.case import Case
from ckptplan.errors import InputError, PlanMismatch
from ckptplan.model.plan import Plan, find_given_memory
from ckptplan.planning.playback import actions
from ckptplan.schedule.actions import Action, Record
from ckptplan.schedule.schedule import Schedule
from ckptplan.schedule.simulator import play
from ckptplan.strategies.registry import all_strategies
from ckptplan.torch.entry import count_frames
from ckptplan.torch.run.call import Call
from ckptplan.torch.run.context import get_tape_hooks
from ckptplan.torch.run.executor import Observer
from ckptplan.torch.run.steps import Tape
from ckptplan.torch.state.reach import walk
from ckptplan.units import format_bytes

#: The share by which the bytes of a state may differ from those of the plan.
STATE_TOLERANCE = 0.05
#: How many times the planned bytes the tape of a step may take, and how many times its bytes may be planned.
MOST_TAPE, MOST_PLANNED = 1.25, 2.0
#: In place of MOST_TAPE for a recording of one step, whose tape includes what a recording holds once.
_MOST_SINGLE = 2.0
#: ``measured_sizes`` takes the mean of this many steps.
_STEPS = 16
#: The most kinds of calls that are remembered.
_MAX_KINDS = 256
#: The message for each kind of call, None if the plan fits; and fitting sizes, with the code of the cell.
_verdicts: OrderedDict[Hashable, str | None] = OrderedDict()
_fitting: OrderedDict[Hashable, bool] = OrderedDict()


class Match:
    """An observer that compares the first recording of a run with the plan.

    Arguments:
        call: the call.
        plan: its plan.
        schedule: whether other actions than those of the plan run.
        observer: the observer of the user, or None.

    Raises InputError if the plan is known not to fit, and ``strict`` was given.
    """

    def __init__(self, call: Call, plan: Plan, *, schedule: bool, observer: Observer | None) -> None:
        self._call, self._plan, self._schedule, self._observer = call, plan, schedule, observer
        self.clock = getattr(observer, "clock", None)
        sizes = (plan.workload.state_bytes, plan.workload.tape_bytes, plan.workload.units, plan.profile.units)
        kind, weights = call.describe_kind(), [leaf.shape for leaf in walk(call.roots).list_parameters()]
        self._kind = sizes, plan.strategy, tuple(plan.parameters.items()), kind, tuple(weights)
        self._sizes = sizes, kind[0]
        self.is_known = self._kind in _verdicts
        #: The message about a plan that does not fit, None if it fits.
        self.message = _verdicts.get(self._kind) if self.is_known or schedule else _describe_excess(plan)
        self._refuse_strictly()
        if self.is_known:
            # The first call of the kind warned.
            self.message = None

    def _refuse_strictly(self) -> None:
        if self._call.strict and self.message is not None:
            raise InputError(
                self.message, field="plan", accepted="a plan with the sizes of the cell, or strict=False"
            )

    def __call__(self, action: Action, run: Any) -> None:
        """Compare the first tape, and the bytes of the state after it. Raises InputError if ``strict``."""
        # The bytes of tensors that hooks packed cannot be counted, and those of a DTensor lie elsewhere.
        is_compared = isinstance(action, Record) and not self.is_known and not get_tape_hooks()
        kinds = (torch.Tensor, torch.nn.Parameter)
        if is_compared and all(type(leaf) in kinds for leaf in run.state.read().leaves):
            self._compare(run.tapes[-1], run.state.saved_bytes)
        if self._observer is not None:
            self._observer(action, run)

    def _compare(self, tape: Tape, state_bytes: int) -> None:
        self.is_known = True
        mismatch = self._describe_mismatch(state_bytes, tape)
        self.message = mismatch or self.message
        _keep(_verdicts, self._kind, self.message)
        if mismatch is None:
            _keep(_fitting, self._sizes, True)
        self._refuse_strictly()

    def warn(self) -> None:
        """Warn, at the line of the caller's code, if the plan does not fit."""
        if self.message is not None:
            warnings.warn(self.message, PlanMismatch, stacklevel=count_frames())
            self.message = None

    def _describe_mismatch(self, state: int, tape: Tape) -> str | None:
        """Return a message if the plan is for other sizes than those of the cell; None if the sizes fit."""
        plan, steps, units = self._plan, tape.stop - tape.start, self._plan.profile.units
        planned = Case(workload=plan.workload, profile=plan.profile).spread
        least, most = 0.0, math.inf
        # The loss of the last step is left out: losses often do more there than at other steps.
        is_last = tape.stop == plan.steps
        shown = replace(tape, terms=tape.terms[:-1]).step_bytes if is_last else tape.step_bytes
        tolerance = MOST_TAPE if steps > 1 else _MOST_SINGLE
        casts = any(torch.is_autocast_enabled(kind) for kind in ("cpu", "cuda"))
        # Weights in another type exist once for all steps.
        if steps >= _STEPS or not casts:
            least = (shown - state) / steps / tolerance / units
        if is_last or "final_loss" not in self._call.losses:
            most = tape.bytes / steps * MOST_PLANNED / units
        each, state = -(-round(shown / steps) // units), -(-state // units)
        state_fits = abs(planned.state_bytes - state) <= max(STATE_TOLERANCE * state, 1)
        tape_fits = least - 1 <= planned.tape_bytes <= most + 1
        # A smaller call after a call that fitted is the last batch of an epoch.
        is_smaller = state <= planned.state_bytes and least <= planned.tape_bytes and self._sizes in _fitting
        if is_smaller or (state_fits and tape_fits):
            return None
        each = planned.tape_bytes if tape_fits else each
        text = (
            f"the plan is for states of {planned.state_bytes:,} B and tapes of {planned.tape_bytes:,} B a "
            f"step, those of the cell are of {state:,} B and {each:,} B{'' if units == 1 else ', on each unit'}"
        )
        if not self._schedule:
            needed = _find_peak(plan, state_bytes=max(state, 1), tape_bytes=max(each, 1))
            show = partial(format_bytes, like=find_given_memory(plan))
            text += f": it takes {show(needed)} of local memory, "
            predicted = plan.predicted.local_peak_bytes
            room, excess = show(predicted), show(needed - predicted)
            excess_text = f"{excess} more than the {room} that it was planned for"
            saving_text = f"and a plan for the right sizes could use the {room} to save time"
            text += excess_text if needed > predicted else saving_text
        return text + ". ckptplan.torch.measured_sizes gives the right sizes for a workload"


def make_match(call: Call, plan: Plan | Schedule, *, schedule: bool, observer: Observer | None) -> Match | None:
    """Return an observer that compares a call with its plan; None if the plan has no sizes in bytes."""
    # No state has a single byte: the sizes are in units of a state.
    if not isinstance(plan, Plan) or plan.workload.limited or plan.workload.state_bytes == 1:
        return None
    return Match(call, plan, schedule=schedule, observer=observer)


def _keep(table: OrderedDict[Any, Any], key: Hashable, value: Any) -> None:
    table[key] = value
    while len(table) > _MAX_KINDS:
        table.popitem(last=False)


def _find_peak(plan: Plan, **sizes: int) -> int:
    """Return the local bytes that a plan takes with other sizes, by the fields of its workload."""
    case = Case(workload=plan.workload, profile=plan.profile).with_workload(**sizes)
    return play(actions(plan), costs=case.costs).local_peak_bytes


def _describe_excess(plan: Plan) -> str | None:
    """Return a message if a plan exceeds its own budget, as after an edit of its parameters; else None.

    Only the parameters of closed forms are checked: decisions of a solved schedule would have to be played.
    """
    strategy, budget = all_strategies().get(plan.strategy), plan.goal.local_bytes
    if budget is None or strategy is None or not strategy.is_closed_form:
        return None
    costs = Case(workload=plan.workload, profile=plan.profile).costs
    needed = strategy.totals(plan.parameters, costs=costs).local_peak_bytes
    if needed <= max(budget, plan.predicted.local_peak_bytes):
        return None
    show = partial(format_bytes, like=find_given_memory(plan))
    return (
        f"the plan takes {show(needed)} of local memory with {plan.parameters}, and its budget is "
        f"{show(budget)}: its parameters are not those that it was planned with. Plan again with "
        "ckptplan.optimize"
    )
