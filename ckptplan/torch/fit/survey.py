"""Measures all steps of a sequence before a limit is refused, or if later steps take more than planned.

Each step is recorded alone, so that the survey takes no more memory than one step. The step with the largest
tape is then reversed under a counter of bytes. The tape of a ``ChunkCell`` is its states, so that only its
caches may grow. Its steps run once, without tapes.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import torch

from ckptplan.schedule.actions import Action, Advance, Record
from ckptplan.torch.checking.trial import MAX_ATTEMPTS
from ckptplan.torch.fit.measure import Measurement, make_meter
from ckptplan.torch.run.executor import Executor
from ckptplan.torch.run.outputs import StackedOutputs
from ckptplan.torch.run.steps import LateStateError
from ckptplan.torch.run_call import TriedCall
from ckptplan.torch.state.lifted import Checkpoint


@dataclass(frozen=True, kw_only=True)
class Survey:
    """The largest sizes of all steps, in bytes, as the fields of ``Measurement``."""

    state_bytes: int
    shown_bytes: int
    cache_bytes: int
    workspace_bytes: int

    def correct(self, first: Measurement) -> Measurement:
        """Return the sizes of all steps, given those of the first steps."""
        return first.cover(**vars(self))


def survey(tried: TriedCall) -> Survey:
    """Return the sizes of all steps of a call, and restore all changes. Lift state that only later steps keep.

    The scope of the call must have copies of tensors that steps write in place. Raises LateStateError if a few
    attempts each find further state.
    """
    call, scope = tried.call, tried.scope
    steps = call.inputs.steps
    for attempt in range(MAX_ATTEMPTS):
        run = _SurveyExecutor(
            call, iter([Advance(0, steps, 0)]) if call.has_own_backward else _list_records(steps), scope
        )
        try:
            with torch.no_grad():
                run.sweep()
        except LateStateError as error:
            scope.lift_tensors([part for part in error.carrying if part.is_content])
            if attempt == MAX_ATTEMPTS - 1:
                raise
            continue
        break
    try:
        return run.find_sizes()
    finally:
        scope.reach.restore(scope.start)
        run.close()


def _list_records(steps: int) -> Iterator[Action]:
    return (Record(step, step + 1) for step in range(steps))


class _SurveyExecutor(Executor):
    """An executor that drops the tape of each step, and keeps the state before the step with the largest."""

    def __init__(self, *args: Any) -> None:
        super().__init__(*args)
        self._state_bytes = self._tape_bytes = self._cache_bytes = 0
        self._largest: tuple[int, Checkpoint] | None = None

    def _advance(self, start: int, stop: int, cached: int | None) -> None:
        self._largest = (start, self.state.save())
        super()._advance(start, stop, cached)
        self._cache_bytes, self._state_bytes = self.steps.cache_bytes, self.state.saved_bytes

    def _record(self, start: int, stop: int) -> None:
        begin = self.state.save()
        super()._record(start, stop)
        # A place that is no part of the state would lead later steps into the graph of this step.
        self.refuse_late(self.scope.reach.take_snapshot())
        size = self.tapes.pop().step_bytes
        self._cache_bytes = max(self._cache_bytes, self.steps.cache_bytes)
        self._state_bytes = max(self._state_bytes, begin.bytes, self.state.saved_bytes)
        if self._largest is None or size > self._tape_bytes:
            self._tape_bytes, self._largest = size, (start, begin)

    def find_sizes(self) -> Survey:
        """Return the sizes of all steps."""
        # The final state exists, too; in places, both the state of the caller and that of the steps exist.
        copies = 2 if self.scope.lifted else 1
        self.constants.insert()
        try:
            workspace = self._measure_largest() + copies * self._state_bytes
        finally:
            self.constants.remove()
        return Survey(
            state_bytes=self._state_bytes,
            shown_bytes=self._tape_bytes,
            cache_bytes=self._cache_bytes,
            workspace_bytes=workspace,
        )

    def _measure_largest(self) -> int:
        """Return the bytes that the step with the largest tape works with, besides its tape."""
        assert self._largest is not None  # noqa: S101 - there was a step
        step, begin = self._largest
        self._largest = None
        outputs = self.outputs
        shapes = [tuple(whole.shape) for whole in getattr(outputs, "stacked", ())]
        is_stacked = isinstance(outputs, StackedOutputs)
        with make_meter(self._device, is_compiled=self.call.is_compiled) as meter:
            self.state.load(begin)
            tape = self.steps.record(step, step + 1)
            held = max(meter.now, tape.step_bytes)
            incoming = [torch.ones(()).expand(shape) for shape in (shapes if is_stacked else [()])]
            self.steps.state_gradients = [
                torch.ones_like(end) if end.requires_grad else None for end in tape.ends
            ]
            self.steps.reverse(tape, incoming)
        return max(0, meter.peak - held)
