"""Watches the sizes of states and tapes while a sequence runs under a plan for a limit of memory.

A state may grow, and only later steps may use a part of a network. So some steps of the first sweep are
recorded to count their bytes, and its last recording is made one step at a time. If steps take more than was
planned, the sweep begins again under another plan. Before that, and before a limit is refused, a survey records
all steps, each alone, so that it takes no more memory than one step.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import torch

from ckptplan.schedule.actions import Action, Advance, Save
from ckptplan.torch.checking.trial import MAX_ATTEMPTS
from ckptplan.torch.device.meters import make_meter
from ckptplan.torch.fit.measure import Measurement
from ckptplan.torch.run.executor import Executor
from ckptplan.torch.run.outputs import StackedOutputs
from ckptplan.torch.run.steps import LateStateError
from ckptplan.torch.run_call import TriedCall
from ckptplan.torch.state.lifted import Checkpoint
from ckptplan.units import format_bytes

#: Steps of the first sweep that are recorded to count the bytes of their tapes, about evenly spread.
_SAMPLES = 8
#: A size that exceeds the planned one by this share or less counts as the same.
_SHARE = 0.02
#: The number of parts into which the last recording is cut in later calls.
_LATER_PARTS = 64
#: The ratio of a limit to the bytes that recordings in parts may keep more than a single recording.
_PARTS_SHARE = 100


class StaleSizesError(LateStateError):
    """A state or a tape is larger than was planned; the sweep begins again under another plan."""


class Watch:
    """Compares the sizes of states and tapes with the sizes that a plan was made for.

    Arguments:
        planned: the sizes of the plan.
        steps: T.
        limit: the limit of memory, in bytes.
        copies_state: whether steps write into the state, so that each recording begins with a copy.
        is_first: whether no call of this kind ran before, so that each recorded step is checked.
        is_survey: whether all steps are recorded, whatever their sizes.
    """

    def __init__(
        self,
        planned: Measurement,
        steps: int,
        *,
        limit: int,
        copies_state: bool = False,
        is_first: bool = True,
        is_survey: bool = False,
    ) -> None:
        self._planned, self._steps, self._limit, self._is_survey = planned, steps, limit, is_survey
        self._most_parts = steps if is_first else _LATER_PARTS
        self._once_bytes = planned.once_bytes + (planned.state_bytes if copies_state else 0)
        #: The largest bytes of a state, of the tape of a step, and of its cache.
        self.state = self.tape = self._cache = 0
        #: The workspace in bytes of the step with the largest tape, if it was measured.
        self.workspace = 0

    def check_state(self, step: int, size: int) -> None:
        """Store and check the bytes of the state before a step. Raises StaleSizesError."""
        self.state = max(self.state, size)
        self._check(size, self._planned.state_bytes, "the state", step)

    def check_cache(self, step: int, size: int) -> None:
        """Store and check the bytes of the cache of a step. Raises StaleSizesError."""
        self._cache = max(self._cache, size)
        self._check(size, self._planned.cache_bytes, "the cache", step)

    def store_tape(self, start: int, stop: int, size: int) -> int:
        """Store the bytes that the graph of recorded steps shows; return the bytes of one step."""
        size = -(-max(0, size - self._planned.once_bytes) // (stop - start))
        self.tape = max(self.tape, size)
        return size

    def check_tape(self, start: int, stop: int, size: int) -> None:
        """Store and check the bytes that the graph of recorded steps shows. Raises StaleSizesError."""
        self._check(self.store_tape(start, stop, size), self._planned.shown_bytes, "the tape", start)

    def cut(self, start: int, stop: int) -> Iterator[tuple[int, int]]:
        """Yield the parts in which the last steps of a sweep are recorded, to check each before the next."""
        steps, once = stop - start, self._once_bytes
        # Each part keeps the tensors that a recording keeps once. All parts together may take a small share.
        parts = min(steps, self._most_parts)
        parts = min(parts, 1 + self._limit // (_PARTS_SHARE * once)) if once else parts
        length = -(-steps // parts)
        for first in range(start, stop, length):
            yield first, min(first + length, stop)

    def _check(self, size: int, planned: int, name: str, step: int) -> None:
        if size > (1 + _SHARE) * planned and not self._is_survey:
            raise StaleSizesError(
                f"{name} of step {step} takes {format_bytes(size, like=self._limit)}, more than the "
                f"{format_bytes(planned, like=self._limit)} of the first steps"
            )

    def list_samples(self, start: int, stop: int) -> Iterator[int]:
        """Yield the steps from ``start`` to ``stop`` that are recorded to count their bytes."""
        if self._is_survey:
            return iter(range(start, stop))
        # At unequal distances, since states may vary with a period.
        samples = {self._steps * number // (_SAMPLES + 1) + number % 3 for number in range(1, _SAMPLES + 1)}
        return (step for step in sorted(samples) if start <= step < stop)

    def correct(self, sizes: Measurement) -> Measurement:
        """Return sizes, each replaced by the observed size if that is larger."""
        return sizes.grow(
            state_bytes=self.state,
            shown_bytes=self.tape,
            cache_bytes=self._cache,
            workspace_bytes=self.workspace,
        )


class WatchedExecutor(Executor):
    """An executor whose first sweep is watched.

    Arguments:
        args, options: those of ``Executor``.
        watch: compares the sizes.
    """

    def __init__(self, *args: Any, watch: Watch, **options: Any) -> None:
        super().__init__(*args, **options)
        self._watch = watch

    def _do(self, action: Action) -> None:
        super()._do(action)
        if self._reverses:
            return
        if isinstance(action, Save):
            self._watch.check_state(action.state, self.stores[action.tier].get(action.state).bytes)
        self._watch.check_cache(self.steps.frontier, self.steps.cache_bytes)

    def _advance(self, start: int, stop: int, cached: int | None) -> None:
        if self._skips_tapes:
            super()._advance(start, stop, cached)
            return
        for step in self._watch.list_samples(max(start, self.steps.frontier), stop):
            if step > start:
                super()._advance(start, step, None)
            self._record_sample(step)
            start = step + 1
        if start < stop:
            super()._advance(start, stop, None)

    @property
    def _skips_tapes(self) -> bool:
        """Whether tapes need no check: in the backward pass, and for a ``ChunkCell``."""
        return self._reverses or self.call.has_own_backward

    def _record_sample(self, step: int) -> None:
        super()._record(step, step + 1)
        self._refuse_graphs()
        self._check_recording(step, step + 1)
        self.tapes.pop()
        if self._verifier is not None:
            self._verifier.reach(step + 1, self.state.read())

    def _record(self, start: int, stop: int) -> None:
        if self._skips_tapes:
            super()._record(start, stop)
            self._watch.store_tape(start, stop, self.tapes[-1].step_bytes)
            return
        for first, last in self._watch.cut(start, stop):
            super()._record(first, last)
            self._check_recording(first, last)
            if last < stop:
                self._refuse_graphs()

    def _refuse_graphs(self) -> None:
        """Raise LateStateError if a place that is no part of the state would lead later steps into a graph."""
        self.lift_late_places(self.scope.reach.take_snapshot())

    def _check_recording(self, start: int, stop: int) -> None:
        self._watch.check_state(stop, self.state.saved_bytes)
        self._watch.check_tape(start, stop, self.tapes[-1].step_bytes)


def survey(tried: TriedCall, first: Measurement) -> Watch:
    """Return a watch with the sizes of all steps of a call, and restore all changes.

    Lift state that only later steps keep. The tape of a ``ChunkCell`` is its states, so that only its caches
    may grow. Its steps run once, without tapes.

    Arguments:
        tried: the call, whose scope has copies of tensors that steps write in place.
        first: the sizes of the first steps.

    Raises LateStateError if a few attempts each find further state.
    """
    call, scope = tried.call, tried.scope
    steps = call.inputs.steps
    for attempt in range(MAX_ATTEMPTS):
        watch = Watch(first, steps, limit=0, is_survey=True)
        run = _SurveyExecutor(call, iter([Advance(0, steps, 0)]), scope, watch=watch)
        try:
            with torch.no_grad():
                run.sweep()
            break
        except LateStateError as error:
            scope.lift_tensors([part for part in error.carrying if part.is_content])
            if attempt == MAX_ATTEMPTS - 1:
                raise
    try:
        # The final state exists, too; in places, both the state of the caller and that of the steps exist.
        watch.workspace = run.measure_largest() + (2 if scope.lifted else 1) * watch.state
    finally:
        scope.reach.restore(scope.start)
        run.close()
    return watch


class _SurveyExecutor(WatchedExecutor):
    """An executor that records each step alone, and keeps the state before the step with the largest tape."""

    _largest: tuple[int, Checkpoint]

    def _advance(self, start: int, stop: int, cached: int | None) -> None:
        begin = self.state.save()
        self._largest = start, begin
        self._watch.check_state(start, begin.bytes)
        super()._advance(start, stop, cached)
        self._watch.check_state(stop, self.state.saved_bytes)

    def _record_sample(self, step: int) -> None:
        begin, largest = self.state.save(), self._watch.tape
        super()._record_sample(step)
        if self._watch.tape > largest:
            self._largest = step, begin

    def measure_largest(self) -> int:
        """Return the workspace in bytes of the step with the largest tape: its peak without the tape."""
        step, begin = self._largest
        del self._largest
        outputs = self.outputs
        shapes = [tuple(whole.shape) for whole in getattr(outputs, "stacked", ())]
        is_stacked = isinstance(outputs, StackedOutputs)
        self.constants.insert()
        try:
            with make_meter(self._device, is_compiled=self.call.is_compiled) as meter:
                self.state.load(begin)
                tape = self.steps.record(step, step + 1)
                held = max(meter.now, tape.step_bytes)
                incoming = [torch.ones(()).expand(shape) for shape in (shapes if is_stacked else [()])]
                self.steps.state_gradients = [
                    torch.ones_like(end) if end.requires_grad else None for end in tape.ends
                ]
                self.steps.reverse(tape, incoming)
        finally:
            self.constants.remove()
        return max(0, meter.peak - held)
