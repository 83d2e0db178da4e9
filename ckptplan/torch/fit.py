"""Compares the sizes that a plan was made for with those of the cell that it runs.

The first recorded steps are counted, once for each kind of call: a plan for 256 neurons would otherwise run a
cell of 2,560 without a word, in ten times its budget.
"""

from __future__ import annotations

import math
import warnings
from collections.abc import Hashable
from dataclasses import dataclass, field
from typing import Any

import torch

from ckptplan.cost.case import Case
from ckptplan.errors import InputError, PlanMismatch
from ckptplan.model.plan import Plan
from ckptplan.strategies.registry import all_strategies
from ckptplan.torch.call import Call
from ckptplan.torch.engine import Tape
from ckptplan.torch.recognise import Recent
from ckptplan.torch.survey import count_frames, find_peak
from ckptplan.torch.trees import Leaves, byte_size, flatten
from ckptplan.units import format_bytes

#: The share by which the bytes of a state may differ from the plan's.
STATE_TOLERANCE = 0.05
#: How many times the planned bytes a step's tape may take, and how many times its bytes may be planned.
MOST_TAPE, MOST_PLANNED = 1.25, 2.0
#: The first if a single step is recorded: what it holds once cannot be told from what each step adds.
_MOST_SINGLE = 2.0
#: ``measured_sizes`` takes the mean of as many steps.
_STEPS = 16
#: Kinds of calls that are remembered.
_REMEMBERED = 256

#: The message for each kind of call; None if the plan fits.
_verdicts: Recent[Hashable, tuple[str | None]] = Recent(_REMEMBERED)
#: Plans that fitted a call of their cell: a smaller one later, as the last batch of an epoch, is no mistake.
_fitting: Recent[Hashable, None] = Recent(_REMEMBERED)
#: What plans take beyond their own budgets, by their identities, which none has anew while they are kept.
_excesses: Recent[int, tuple[Plan, str | None]] = Recent(_REMEMBERED)


@dataclass(kw_only=True)
class PlanFit:
    """Compares the first recording of a run with the plan.

    Arguments:
        call: the call.
        plan: its plan.
        kind: the sizes of the plan with the kind of cell, and the shapes of the call.
        message: what is wrong with the plan whatever the cell is, None if nothing.
    """

    call: Call
    plan: Plan
    kind: tuple[Hashable, Hashable]
    message: str | None = None
    _has_seen: bool = field(default=False, init=False)

    def see(self, tape: Tape, state: Any) -> None:
        """Look at the first tape, and at the state after it. Raises InputError if ``strict`` and it differs."""
        has_seen, self._has_seen = self._has_seen, True
        leaves = () if has_seen else flatten(state)[0]
        if has_seen or not all(type(one) in (torch.Tensor, torch.nn.Parameter) for one in leaves):
            # The bytes of a subclass, such as DTensor, lie elsewhere.
            return
        try:
            # Losses often do more at the last step, which says nothing about the others.
            least = tape.least_bytes if tape.stop == self.plan.steps else tape.bytes
            sizes: tuple[int, int] | None = (least, tape.bytes)
        except RuntimeError:
            # Autograd does not show a tensor that was changed in place; whether that matters, it says itself.
            sizes = None
        mismatch = self._describe_mismatch(byte_size(leaves), sizes, tape)
        self.message = mismatch or self.message
        _verdicts.keep(self.kind, (self.message,))
        if mismatch is None:
            _fitting.keep(self.kind[0], None)
        if self.call.strict and self.message is not None:
            raise _refuse(self.message)

    def _describe_mismatch(self, state: int, sizes: tuple[int, int] | None, tape: Tape) -> str | None:
        """Return what a plan's sizes mean for a cell of other sizes; None if they fit.

        Arguments:
            state: the bytes of the state after the recorded steps, which their tape may hold besides.
            sizes: the least and the most that may be the tape of these steps, None if it is unknown.
            tape: the tape.
        """
        plan, steps, units = self.plan, tape.stop - tape.start, self.plan.profile.units
        planned = Case(workload=plan.workload, profile=plan.profile).spread
        least, most, each = 0.0, math.inf, None
        if sizes is not None:
            tolerance = MOST_TAPE if steps > 1 else _MOST_SINGLE
            casts = any(torch.is_autocast_enabled(kind) for kind in ("cpu", "cuda"))
            # Weights in another type are there once for all steps.
            if steps >= _STEPS or not casts:
                least = (sizes[0] - state) / steps / tolerance / units
            # Before the last steps, a loss of the final state is yet to come.
            if tape.stop == plan.steps or "final_loss" not in self.call.losses:
                most = sizes[1] / steps * MOST_PLANNED / units
            each = -(-round(sizes[1] / steps) // units)
        state = -(-state // units)
        state_fits = abs(planned.state_bytes - state) <= max(STATE_TOLERANCE * state, 1)
        tape_fits = least - 1 <= planned.tape_bytes <= most + 1
        # A smaller call after one that fitted is as it should be.
        smaller = state <= planned.state_bytes and least <= planned.tape_bytes and self.kind[0] in _fitting
        if smaller or (state_fits and tape_fits):
            return None
        # Within its bounds, the planned tape is as good a number as a measured one.
        each = planned.tape_bytes if each is None or tape_fits else each
        text = (
            f"the plan is for states of {planned.state_bytes:,} B and tapes of {planned.tape_bytes:,} B a "
            f"step, those of the cell are of {state:,} B and "
            f"{'an unknown size' if sizes is None else f'{each:,} B'}{'' if units == 1 else ', on each unit'}"
        )
        if self.call.schedule is None:
            needed = find_peak(plan, state_bytes=max(state, 1), tape_bytes=max(each, 1))
            text += f": it takes {format_bytes(needed)} of local memory, "
            predicted, planned_for = plan.predicted.local_peak_bytes, "that it was planned for"
            more = f"{format_bytes(needed - predicted)} more than the {format_bytes(predicted)} {planned_for}"
            less = f"and a plan for the right sizes could use the {format_bytes(predicted)} to save time"
            text += more if needed > predicted else less
        return text + ". ckptplan.torch.measured_sizes gives the right sizes for a workload"

    def warn(self) -> None:
        """Warn if the plan does not fit, where code outside of ckptplan and PyTorch called."""
        if self.message is not None and not self.call.strict:
            warnings.warn(self.message, PlanMismatch, stacklevel=count_frames())


def make_fit(call: Call, *, parameters: Leaves, casts: Hashable) -> PlanFit | None:
    """Return what compares a call with its plan; None if such calls were, or if the plan has no sizes in bytes.

    Arguments:
        call: the call.
        parameters: the parameters that it uses.
        casts: the settings of autocast.

    Raises InputError if the plan is known not to fit, and has to.
    """
    plan = call.plan
    watched = call.survey is not None or not call.compares_sizes
    # No state has a single byte: the sizes are in units of a state.
    if watched or not isinstance(plan, Plan) or plan.workload.state_bytes == 1:
        return None
    sizes = (plan.workload.state_bytes, plan.workload.tape_bytes, plan.workload.units, plan.profile.units)
    leaves = (*call.leaves, *parameters)
    shapes = tuple((leaf.shape, leaf.dtype, leaf.requires_grad) for leaf in leaves)
    excess = None
    if call.schedule is None:
        _, excess = _excesses.find(id(plan)) or _excesses.keep(id(plan), (plan, _describe_excess(plan)))
    kind = ((sizes, call.code), (shapes, casts, excess))
    if (known := _verdicts.find(kind)) is not None:
        (message,) = known
        if call.strict and message is not None:
            raise _refuse(message)
        return None
    if call.strict and excess is not None:
        raise _refuse(excess)
    return PlanFit(call=call, plan=plan, kind=kind, message=excess)


def _describe_excess(plan: Plan) -> str | None:
    """Return what a plan takes beyond its own budget if its parameters were edited, None if it does not.

    Only the parameters of closed forms are looked at: decisions of a solved schedule would have to be played.
    """
    strategy, budget = all_strategies().get(plan.strategy), plan.goal.local_bytes
    if budget is None or strategy is None or not strategy.is_closed_form:
        return None
    costs = Case(workload=plan.workload, profile=plan.profile).costs
    needed = strategy.totals(plan.parameters, costs=costs).local_peak_bytes
    # Exactly its own prediction if nobody edited it, whatever model chose it.
    if needed <= max(budget, plan.predicted.local_peak_bytes):
        return None
    return (
        f"the plan takes {format_bytes(needed)} of local memory with {plan.parameters}, and its budget is "
        f"{format_bytes(budget)}: its parameters are not those that it was planned with. Plan again with "
        "ckptplan.optimize"
    )


def _refuse(message: str) -> InputError:
    return InputError(message, field="plan", accepted="a plan with the sizes of the cell, or strict=False")
