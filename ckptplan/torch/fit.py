"""Compares the sizes that a plan was made for with those of the cell that it runs.

The first recorded steps are measured, once for each kind of call: a plan for 256 neurons would otherwise run a
cell of 2,560 without a word, in ten times its budget.
"""

from __future__ import annotations

import sys
import warnings
from collections.abc import Hashable, Iterable, Sequence
from dataclasses import dataclass
from types import FrameType
from typing import Any

import torch

from ckptplan.cost.case import Case
from ckptplan.errors import InputError, PlanMismatch
from ckptplan.model.plan import Plan
from ckptplan.planning.playback import actions
from ckptplan.schedule.simulator import play
from ckptplan.torch.graphs import count_node_bytes, count_saved_bytes, find_saved_tensors
from ckptplan.torch.recognise import Recent
from ckptplan.torch.trees import Leaves, byte_size, flatten
from ckptplan.units import format_bytes

#: The share by which the bytes of a state may differ from the plan's.
STATE_TOLERANCE = 0.05
#: How many times the planned bytes a step's tape may take, and how many times its bytes may be planned.
MOST_TAPE, MOST_PLANNED = 1.25, 2.0
#: The first if a single step is recorded: what it holds once cannot be told from what each step adds.
_MOST_SINGLE = 2.0
#: Steps to measure; ``measured_sizes`` takes the mean of as many.
_STEPS = 16
#: Kinds of calls that are remembered.
_REMEMBERED = 256
_UNKNOWN = float("inf")

#: The message for each kind of call; None if the plan fits.
_verdicts: Recent[Hashable, tuple[str | None]] = Recent(_REMEMBERED)
#: Plans that fitted a call of their cell: a smaller one later, as the last batch of an epoch, is no mistake.
_fitting: Recent[Hashable, None] = Recent(_REMEMBERED)


@dataclass(frozen=True, kw_only=True)
class CellBytes:
    """Bytes of a cell, all units together."""

    state: int
    #: The least and the most that may be planned for the tape of a step.
    tape: tuple[float, float]


@dataclass(frozen=True, kw_only=True)
class CallKind:
    """A kind of call: sizes of the plan with the kind of cell, and shapes."""

    of_plan: Hashable
    shapes: Hashable


class Gauge:
    """Measures the first recorded steps of one run; ``open`` as long as it needs more of them.

    The tape of a step is between what each further step adds and what the first one holds, which includes what
    a recording holds once (weights in another type, say). ``measured_sizes``, a mean, lies between.
    """

    def __init__(self, *, plan: Plan, call: CallKind, strict: bool, playable: bool) -> None:
        self.plan, self.call, self.strict, self.playable = plan, call, strict, playable
        self.open = True
        self.message: str | None = None
        self._state = 0
        self._counts: list[tuple[int, int]] = []
        self._left_out: Leaves = ()
        self._seen = self._last = 0

    def begin(self, *, steps: int, ends: bool, at_once: int, left_out: Leaves) -> None:
        """Begin a recording of ``steps`` steps; ``left_out`` are leaves that are not counted, as in a tape."""
        # Losses often do more at the last step, which says nothing about the others.
        spared = 1 if ends and steps > 2 and at_once == 1 else 0
        self._last, self._left_out = min(_STEPS, steps - spared), left_out

    def see(self, state: Any, terms: Iterable[torch.Tensor], waiting: Sequence[Any]) -> None:
        """Look at the next recorded step: the state after it, the losses, and outputs that wait for theirs."""
        self._seen += 1
        enough = self._seen >= self._last
        if self._seen > 1 and not enough:
            return
        if enough and waiting:
            # Their loss is part of the tape.
            return
        leaves = flatten(state)[0]
        self._count((*leaves, *terms, *(leaf for one in waiting for leaf in flatten(one)[0])), leaves)
        self.open = self.open and not enough

    def _count(self, outputs: Leaves, leaves: Leaves) -> None:
        self._state = byte_size(leaves)
        try:
            if not _are_plain((*outputs, *find_saved_tensors(outputs))):
                return
            size = count_saved_bytes(outputs, end=leaves, without=self._left_out)
        except RuntimeError:
            # Autograd does not show a tensor that was changed in place; whether that matters, it says itself.
            self.open = False
            return
        self._counts.append((self._seen, size))

    def finish(
        self, end: Leaves, terms: Sequence[torch.Tensor], final: Sequence[torch.Tensor], *, known: bool
    ) -> None:
        """End the recording with a state, the losses of its steps and of the final state.

        ``known`` is False if there will be a loss of the final state later. Raises InputError if ``strict`` and
        the plan does not fit.
        """
        if self.open:
            self._count((*end, *terms), end)
        self.open = False
        if not _are_plain(end):
            return
        if not self._counts:
            self._conclude(CellBytes(state=self._state, tape=(0, _UNKNOWN)))
            return
        (_, first), (count, last) = self._counts[0], self._counts[-1]
        each = (last - first) / (count - 1) if count > 1 else first
        most = max(each, first) + (self._count_final(final, end) if known else _UNKNOWN)
        least = min(each, first)
        if count == 1 and any(torch.is_autocast_enabled(kind) for kind in ("cpu", "cuda")):
            # It may consist of weights in another type.
            least = 0
        bounds = (least / (MOST_TAPE if count > 1 else _MOST_SINGLE), most * MOST_PLANNED)
        self._conclude(CellBytes(state=self._state, tape=bounds), max(round(each), 0))

    def _count_final(self, final: Sequence[torch.Tensor], end: Leaves) -> float:
        try:
            return count_node_bytes(final, until=end)
        except RuntimeError:  # as in _count
            return _UNKNOWN

    def finish_chunk(self, state: Leaves, *, tape: int, steps: int) -> None:
        """Take the sizes of a recorded chunk, whose tape is the same for each step. Raises InputError."""
        each = tape / steps
        bounds = (each / MOST_TAPE, each * MOST_PLANNED)
        self._conclude(CellBytes(state=byte_size(state), tape=bounds), round(each))

    def _conclude(self, measured: CellBytes, tape: int | None = None) -> None:
        self.message = describe_mismatch(
            self.plan, measured, tape=tape, playable=self.playable, fitted=self.call.of_plan in _fitting
        )
        _verdicts.keep(self.call, (self.message,))
        if self.message is None:
            _fitting.keep(self.call.of_plan, None)
        if self.strict and self.message is not None:
            raise _refuse(self.message)

    def warn(self) -> None:
        """Warn if the plan does not fit, where code outside of ckptplan and PyTorch called."""
        if self.message is not None and not self.strict:
            warnings.warn(self.message, PlanMismatch, stacklevel=count_frames())


def _package_of(frame: FrameType) -> str:
    """Return the package whose code a frame runs; code that was compiled from a text may have none."""
    name: str = frame.f_globals.get("__name__", "")
    return name.partition(".")[0]


def count_frames() -> int:
    """Return the stack level of the caller's caller that is neither of ckptplan nor of PyTorch."""
    frame, level = sys._getframe(1), 1
    while frame.f_back is not None and _package_of(frame) in ("ckptplan", "torch"):
        frame, level = frame.f_back, level + 1
    return level


def _are_plain(tensors: Iterable[torch.Tensor]) -> bool:
    """Return whether no tensor is of a subclass, such as DTensor, whose bytes lie elsewhere."""
    return all(type(one) in (torch.Tensor, torch.nn.Parameter) for one in tensors)


def make_gauge(plan: Plan, *, cell: Hashable, call: Hashable, strict: bool, playable: bool) -> Gauge | None:
    """Return a gauge for a call; None if calls of this kind were measured, or if the plan counts in states.

    Arguments:
        plan: the plan.
        cell: what kind of cell and losses are called.
        call: what else sizes depend on: shapes and types.
        strict: whether a plan that does not fit is an error.
        playable: whether the plan's own actions are executed.

    Raises InputError if ``strict`` and the plan is known not to fit.
    """
    if plan.workload.state_bytes == 1:
        # No state has a single byte: the sizes are in units of a state.
        return None
    sizes = (plan.workload.state_bytes, plan.workload.tape_bytes, plan.workload.units, plan.profile.units)
    key = CallKind(of_plan=(sizes, cell), shapes=call)
    if (known := _verdicts.find(key)) is not None:
        (message,) = known
        if strict and message is not None:
            raise _refuse(message)
        return None
    return Gauge(plan=plan, call=key, strict=strict, playable=playable)


def _refuse(message: str) -> InputError:
    return InputError(message, field="plan", accepted="a plan with the sizes of the cell, or strict=False")


def describe_mismatch(
    plan: Plan, measured: CellBytes, *, tape: int | None, playable: bool, fitted: bool
) -> str | None:
    """Return what a plan's sizes mean for a cell of other sizes; None if they fit.

    ``tape`` are the bytes of a step's tape, None if unknown; ``fitted`` tells whether the plan fitted another
    call, so that a smaller one is as it should be.
    """
    case = Case(workload=plan.workload, profile=plan.profile)
    planned, units = case.spread, plan.profile.units
    state = -(-measured.state // units)
    state_fits = abs(planned.state_bytes - state) <= max(STATE_TOLERANCE * state, 1)
    least, most = (bound / units for bound in measured.tape)
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
