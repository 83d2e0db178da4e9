"""Compares the sizes that a plan was made for with those of the cell that it runs.

The first recorded steps are counted, once for each kind of call: a plan for 256 neurons would otherwise run a
cell of 2,560 without a word, in ten times its budget.
"""

from __future__ import annotations

import warnings
from collections.abc import Hashable
from dataclasses import dataclass, field
from typing import Any

import torch

from ckptplan.cost.case import Case
from ckptplan.errors import InputError, PlanMismatch
from ckptplan.model.plan import Plan
from ckptplan.planning.playback import actions
from ckptplan.schedule.simulator import play
from ckptplan.strategies.registry import all_strategies
from ckptplan.torch.call import Call
from ckptplan.torch.engine import Tape
from ckptplan.torch.recognise import Recent
from ckptplan.torch.survey import count_frames
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
_UNKNOWN = float("inf")

#: The message for each kind of call; None if the plan fits.
_verdicts: Recent[Hashable, tuple[str | None]] = Recent(_REMEMBERED)
#: Plans that fitted a call of their cell: a smaller one later, as the last batch of an epoch, is no mistake.
_fitting: Recent[Hashable, None] = Recent(_REMEMBERED)
#: What plans take beyond their own budgets, by their identities, which none has anew while they are kept.
_excesses: Recent[int, tuple[Plan, str | None]] = Recent(_REMEMBERED)


@dataclass(frozen=True, kw_only=True)
class CellBytes:
    """Bytes of a cell, all units together."""

    state: int
    #: The tape of a step, None if unknown; the least and the most that may be planned for it.
    tape: int | None
    bounds: tuple[float, float]

    @classmethod
    def of(
        cls, state: int, tapes: tuple[int, int] | None, steps: int, *, shares_more: bool, ends_later: bool
    ) -> CellBytes:
        """Return the bytes of a cell, given those of a state and of the tape of some steps.

        Arguments:
            state: the state after the steps, which the tape may hold besides.
            tapes: the least and the most that may be the tape of all steps, None if it is unknown.
            steps: their number.
            shares_more: whether much of it may be there once for all steps, as weights in another type.
            ends_later: whether a loss of the final state is to come.
        """
        if tapes is None:
            return cls(state=state, tape=None, bounds=(0, _UNKNOWN))
        first, tape = tapes
        least = 0.0 if shares_more else (first - state) / steps
        most = _UNKNOWN if ends_later else tape / steps
        tolerance = MOST_TAPE if steps > 1 else _MOST_SINGLE
        return cls(state=state, tape=round(tape / steps), bounds=(least / tolerance, most * MOST_PLANNED))


@dataclass(kw_only=True)
class PlanFit:
    """Compares the first recording of a run with the plan.

    Arguments:
        plan: the plan.
        kind: the sizes of the plan with the kind of cell, and the shapes of the call.
        strict: whether a plan that does not fit is an error.
        playable: whether the plan's own actions are executed.
        finishes: whether there is a loss of the final state.
        message: what is wrong with the plan whatever the cell is, None if nothing.
    """

    plan: Plan
    kind: tuple[Hashable, Hashable]
    strict: bool
    playable: bool
    finishes: bool
    message: str | None = None
    _has_seen: bool = field(default=False, init=False)

    def see(self, tape: Tape, state: Any) -> None:
        """Look at the first tape, and at the state after it. Raises InputError if ``strict`` and it differs."""
        has_seen, self._has_seen = self._has_seen, True
        leaves = () if has_seen else flatten(state)[0]
        if has_seen or not all(type(one) in (torch.Tensor, torch.nn.Parameter) for one in leaves):
            # The bytes of a subclass, such as DTensor, lie elsewhere.
            return
        steps = tape.stop - tape.start
        casts = any(torch.is_autocast_enabled(kind) for kind in ("cpu", "cuda"))
        try:
            # Losses often do more at the last step, which says nothing about the others.
            least = tape.least_bytes if tape.stop == self.plan.steps else tape.bytes
            sizes: tuple[int, int] | None = (least, tape.bytes)
        except RuntimeError:
            # Autograd does not show a tensor that was changed in place; whether that matters, it says itself.
            sizes = None
        measured = CellBytes.of(
            byte_size(leaves),
            sizes,
            steps,
            shares_more=casts and steps < _STEPS,
            ends_later=self.finishes and tape.stop < self.plan.steps,
        )
        fitted = self.kind[0] in _fitting
        mismatch = describe_mismatch(self.plan, measured, playable=self.playable, fitted=fitted)
        self.message = mismatch or self.message
        _verdicts.keep(self.kind, (self.message,))
        if mismatch is None:
            _fitting.keep(self.kind[0], None)
        if self.strict and self.message is not None:
            raise _refuse(self.message)

    def warn(self) -> None:
        """Warn if the plan does not fit, where code outside of ckptplan and PyTorch called."""
        if self.message is not None and not self.strict:
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
    code = tuple(getattr(one, "__code__", type(one)) for one in (call.cell, *call.losses.values()))
    leaves = (*call.leaves, *parameters)
    shapes = tuple((leaf.shape, leaf.dtype, leaf.requires_grad) for leaf in leaves)
    excess = None if call.schedule is not None else _find_excess(plan)
    kind = ((sizes, code), (shapes, casts, excess))
    if (known := _verdicts.find(kind)) is not None:
        (message,) = known
        if call.strict and message is not None:
            raise _refuse(message)
        return None
    if call.strict and excess is not None:
        raise _refuse(excess)
    return PlanFit(
        plan=plan,
        kind=kind,
        strict=call.strict,
        playable=call.schedule is None,
        finishes="final_loss" in call.losses,
        message=excess,
    )


def _find_excess(plan: Plan) -> str | None:
    """Return what a plan takes beyond its own budget if its parameters were edited, None if it does not.

    Only the parameters of closed forms are looked at: decisions of a solved schedule would have to be played.
    """
    known = _excesses.find(id(plan))
    if known is None or known[0] is not plan:
        known = _excesses.keep(id(plan), (plan, _describe_excess(plan)))
    return known[1]


def _describe_excess(plan: Plan) -> str | None:
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


def describe_mismatch(plan: Plan, measured: CellBytes, *, playable: bool, fitted: bool) -> str | None:
    """Return what a plan's sizes mean for a cell of other sizes; None if they fit.

    ``fitted`` tells whether the plan fitted another call, so that a smaller one is as it should be.
    """
    tape = measured.tape
    case = Case(workload=plan.workload, profile=plan.profile)
    planned, units = case.spread, plan.profile.units
    state = -(-measured.state // units)
    state_fits = abs(planned.state_bytes - state) <= max(STATE_TOLERANCE * state, 1)
    least, most = (bound / units for bound in measured.bounds)
    tape_fits = tape is None or least - 1 <= planned.tape_bytes <= most + 1
    if state_fits and tape_fits:
        return None
    if fitted and state <= planned.state_bytes and least <= planned.tape_bytes:
        return None
    # Within its bounds, the planned tape is as good a number as a measured one.
    each = planned.tape_bytes if tape is None or tape_fits else -(-tape // units)
    text = (
        f"the plan is for states of {planned.state_bytes:,} B and tapes of {planned.tape_bytes:,} B a step, "
        f"those of the cell are of {state:,} B and {'an unknown size' if tape is None else f'{each:,} B'}"
        f"{'' if units == 1 else ', on each unit'}"
    )
    if playable:
        sizes = case.with_sizes(state_bytes=max(state, 1), tape_bytes=max(each, 1))
        needed = play(actions(plan), costs=sizes.costs).local_peak_bytes
        text += _compare_peaks(needed, plan.predicted.local_peak_bytes)
    return text + ". ckptplan.torch.measured_sizes gives the right sizes for a workload"


def _compare_peaks(needed: int, predicted: int) -> str:
    if needed > predicted:
        return (
            f": it takes {format_bytes(needed)} of local memory, {format_bytes(needed - predicted)} more than "
            f"the {format_bytes(predicted)} that it was planned for"
        )
    return (
        f": it takes {format_bytes(needed)} of local memory, and a plan for the right sizes could use the "
        f"{format_bytes(predicted)} to save time"
    )
