"""Measures the first steps of a call for a plan: their bytes and seconds, forward and backward.

The steps run under the small schedule of the trial, which records one step at a time and two at once. A counter
of bytes observes this run. Another run, without the counter, is timed.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass, replace
from functools import partial
from typing import Any

import torch
from torch import Tensor

from ckptplan.errors import InputError
from ckptplan.schedule.actions import Action, Advance, Backward, Free, Load, Record, Save, Tier
from ckptplan.schedule.timeline import Event
from ckptplan.torch.checking.derivatives import differentiate_actions
from ckptplan.torch.checking.trial import (
    MAX_ATTEMPTS,
    TRIAL_STEPS,
    list_single_actions,
    list_trial_actions,
    run_plain_steps,
)
from ckptplan.torch.device.meters import AllocatedPeak, make_meter
from ckptplan.torch.run.call import Call
from ckptplan.torch.run.executor import Executor
from ckptplan.torch.run.outputs import StackedOutputs
from ckptplan.torch.run.scope import Scope
from ckptplan.torch.run.steps import LateStateError
from ckptplan.torch.run.timeline import Timeline
from ckptplan.torch.state.nests import count_bytes

#: How many steps are measured if they are recorded one at a time.
TIGHT_STEPS = 3
#: How often steps with caches are timed. The choice of caches depends on the difference of two times.
_CACHE_RUNS = 3
#: The least time of an action, in seconds.
_LEAST_SECONDS = 1e-9


@dataclass(frozen=True, kw_only=True)
class Sizes:
    """Sizes in bytes, as the fields of a ``Workload`` of one unit."""

    state_bytes: int
    tape_bytes: int
    #: Outputs that a cell saves for the whole sequence, such as spikes; zero for most cells.
    resident_bytes_per_step: int


@dataclass(frozen=True, kw_only=True)
class Measurement:
    """Bytes and seconds of the steps of a call, for any number of steps.

    Arguments:
        state_bytes: the state between two steps.
        tape_bytes: the bytes that a recorded step keeps.
        shown_bytes: the part of the tape that PyTorch shows in the graph of the step.
        once_bytes: the bytes that a recording keeps besides its tapes, such as weights in another type.
        output_bytes: the output of a step, if outputs are returned.
        cache_bytes: the cache of a step: the outputs from which a ``ChunkCell`` replays it, such as spikes.
        workspace_bytes: the bytes that a run takes besides checkpoints, tapes and outputs: gradients of
            parameters, and the tensors of a step.
        parameter_bytes: gradients of the parameters, which do not grow with the batch.
        largest_bytes: the gradient of the largest parameter.
        steps: how many first steps were measured.
        forward_seconds, replay_seconds: a step without a tape, in full and from its cache.
        record_seconds: a step with a tape, from its cache if it has one.
        backward_seconds: the backward pass of a step.
        chunk_seconds: the overhead of recording and reversing a run of steps.
        save_seconds, load_seconds: the time to save a checkpoint, and to load a checkpoint.
    """

    state_bytes: int
    tape_bytes: int
    shown_bytes: int
    once_bytes: int
    output_bytes: int
    cache_bytes: int
    workspace_bytes: int
    parameter_bytes: int
    largest_bytes: int
    steps: int
    forward_seconds: float
    replay_seconds: float
    record_seconds: float
    backward_seconds: float
    chunk_seconds: float
    save_seconds: float
    load_seconds: float

    def join(self, other: Measurement) -> Measurement:
        """Return, for each size, the larger one of this and another measurement, with the times of this one."""
        names = [name for name in vars(self) if name.endswith("_bytes")]
        return replace(self, **{name: max(getattr(self, name), getattr(other, name)) for name in names})

    def repeat(self, sequences: int) -> Measurement:
        """Return the sizes of several sequences that keep states and tapes, while one works at a time."""
        return replace(self, state_bytes=sequences * self.state_bytes, tape_bytes=sequences * self.tape_bytes)

    def grow(
        self, *, state_bytes: int, shown_bytes: int, cache_bytes: int, workspace_bytes: int = 0
    ) -> Measurement:
        """Return the sizes of steps that may have a larger state, tape (by what graphs show) or cache.

        The workspace without gradients of parameters grows by the same share as state and tape, and at least to
        ``workspace_bytes``.
        """
        state = max(self.state_bytes, state_bytes)
        tape = self.tape_bytes + max(0, shown_bytes - self.shown_bytes)
        fixed = min(self.workspace_bytes, self.parameter_bytes + self.largest_bytes)
        share = (state + tape) / (self.state_bytes + self.tape_bytes)
        return replace(
            self,
            state_bytes=state,
            tape_bytes=tape,
            shown_bytes=max(self.shown_bytes, shown_bytes),
            cache_bytes=max(self.cache_bytes, cache_bytes),
            workspace_bytes=max(workspace_bytes, fixed + math.ceil(share * (self.workspace_bytes - fixed))),
        )


class Probe:
    """Observes the bytes of the small schedule of a trial; ``enter`` returns the counter of bytes.

    Arguments:
        call: the call whose steps run.
    """

    def __init__(self, call: Call) -> None:
        self._make_meter = partial(make_meter, call.device, is_compiled=call.is_compiled)
        self._begin()

    @property
    def has_observed(self) -> bool:
        """Whether it observed a schedule."""
        return self.steps > 0

    @property
    def peak_bytes(self) -> int:
        """The most bytes that were alive."""
        return max(self._meter.peak, *(peak for peak, *_ in self._noted))

    def _begin(self) -> None:
        self._meter = self._make_meter()
        self._before = 0
        #: After each action: its peak bytes, the bytes that later steps take in addition, the bytes of
        #: checkpoints, and the number of recorded steps.
        self._noted: list[tuple[int, int, int, int]] = []
        self._states: list[int] = [1]
        #: The bytes of the gradients of the state, None before the first Backward, and those of all its parts.
        self._gradients: int | None = None
        self._all_gradients = 0
        #: The bytes of the working state that a checkpoint holds as another part of the state.
        self._shifted = 0
        #: The bytes of the output of a step, if outputs are returned, and of the cache of a step.
        self._output = self._saved = 0
        #: For each recording: its number of steps, the bytes that it added, and the bytes that its graph shows.
        self._tapes: list[tuple[int, int, int]] = []
        #: The steps of the schedule, its parameters, and whether a gradient reached each.
        self.steps = 0
        self._parameters: Sequence[Tensor] = ()
        self._is_reached: Sequence[bool] = ()

    def enter(self) -> AbstractContextManager[Any]:
        """Begin to observe; return the context in which bytes are counted."""
        self._begin()
        return self._meter

    def __call__(self, action: Action, run: Executor) -> None:
        """Store the sizes after an action."""
        # Keep no reference to the run, since the run refers to its observer.
        self.steps = run.call.inputs.steps
        self._parameters, self._is_reached = run.parameters, run.steps.sums.is_reached
        if isinstance(run.outputs, StackedOutputs) and run.outputs.stacked:
            self._output = count_bytes(run.outputs.stacked) // self.steps
        self._saved = max(self._saved, run.steps.cache_bytes)
        now = self._meter.now
        if isinstance(action, Record | Advance):
            self._states.append(run.state.saved_bytes)
        if isinstance(action, Record):
            self._tapes.append((action.stop - action.start, now - self._before, run.tapes[-1].step_bytes))
            self._all_gradients = count_bytes(end for end in run.tapes[-1].ends if end.requires_grad)
        recorded = sum(tape.stop - tape.start for tape in run.tapes)
        more = self._count_more(action, run)
        self._noted.append((self._meter.peak, more, run.stores[Tier.LOCAL].bytes, recorded))
        self._before = now
        self._meter.forget()

    def _count_more(self, action: Action, run: Executor) -> int:
        """Return the bytes that an action takes later in the sequence, and not in the first steps.

        A delay line still holds tensors of the first state, which are the caller's, and parts of it have no
        gradient yet.
        """
        if isinstance(action, Advance):
            self._shifted = run.state.count_shifted(run.stores[Tier.LOCAL])
        elif isinstance(action, Load):
            self._shifted = 0
        elif isinstance(action, Backward):
            lacking = 0 if self._gradients is None else max(0, self._all_gradients - self._gradients)
            gradients = (gradient for gradient in run.steps.state_gradients if gradient is not None)
            self._gradients = count_bytes(gradients)
            return self._shifted + lacking
        return self._shifted

    def find_sizes(self, call: Call) -> dict[str, int]:
        """Return the sizes of the steps of a call, which were observed, as fields of ``Measurement``."""
        steps = call.inputs.steps
        state, output = max(self._states), self._output
        # A loss of the final state is a part of the first recording alone.
        tapes = self._tapes[1:] if "final_loss" in call.losses and len(self._tapes) > 1 else self._tapes
        many, most, shown_most = max(tapes)
        few = min(tapes)[0]
        shortest = [tape for tape in tapes if tape[0] == few]
        least, shown_least = (max(tape[place] for tape in shortest) for place in (1, 2))
        tape, shown = -(-least // few), -(-shown_least // few)
        if many > few:
            # Tensors held once per recording, such as weights in another type, are no part of a step's tape.
            # The first step may hold a state that it makes itself; later steps get their state.
            lowest, shown_lowest = (min(tape[place] for tape in shortest) for place in (1, 2))
            tape = max((most - lowest) // (many - few), tape // 2)
            shown = max((shown_most - shown_lowest) // (many - few), shown // 2)
        if call.has_own_backward:
            # A recording leaves a copy of the state after it, too.
            tape = shown + (count_bytes(call.inputs.cut(0, 1)[0]) if call.inputs.is_made else 0)
        tape = max(1, tape, shown)
        inputs = sum(leaf.nbytes for leaf in call.inputs.leaves if leaf.requires_grad)
        # Outputs, their gradients, and the weights of the weighted sums that the trial differentiates.
        excluded = inputs + 3 * steps * output
        # Later steps may use parameters that the first ones did not: one extra gradient at a time.
        unused = (
            parameter.nbytes
            for parameter, is_reached in zip(self._parameters, self._is_reached, strict=True)
            if not is_reached
        )
        return {
            "state_bytes": state,
            "tape_bytes": tape,
            "shown_bytes": shown,
            "once_bytes": max(0, shown_least - few * shown),
            "output_bytes": output,
            "cache_bytes": self._saved,
            "workspace_bytes": max(0, self._find_workspace(tape) - excluded) + max(unused, default=0),
            "parameter_bytes": count_bytes(self._parameters),
            "largest_bytes": max((parameter.nbytes for parameter in self._parameters), default=0),
            "steps": steps,
        }

    def _find_workspace(self, tape: int) -> int:
        """Return the most bytes that actions took besides checkpoints and tapes."""
        if isinstance(self._meter, AllocatedPeak):
            return self._meter.peak - max(
                checkpoints + recorded * tape for *_, checkpoints, recorded in self._noted
            )
        # At the end, only gradients are left.
        most, planned = self._meter.peak, 0
        for peak, more, checkpoints, recorded in self._noted:
            before, planned = planned, checkpoints + recorded * tape
            most = max(most, peak + more - max(before, planned))
        return most


class ActionSeconds:
    """The least seconds of each kind of action and each number of steps.

    Arguments:
        events: the actions of schedules, with their times.
        separates_first: whether runs of steps that never ran before are a separate kind.
    """

    def __init__(self, events: Iterable[Event], *, separates_first: bool = False) -> None:
        #: By the kind of an action, and whether its steps ran before: the least seconds by the number of steps.
        self._least_seconds: dict[tuple[type[Action], bool], dict[int, float]] = {}
        for event in events:
            action = event.action
            steps = getattr(action, "stop", 1) - getattr(action, "start", 0)
            is_first = separates_first and isinstance(action, Advance | Record) and not event.recomputed_steps
            by_steps = self._least_seconds.setdefault((type(action), not is_first), {})
            seconds = event.end - event.start
            by_steps[steps] = max(min(seconds, by_steps.get(steps, seconds)), _LEAST_SECONDS)

    def find_step(self, kind: type[Action], *, is_again: bool = True) -> float:
        """Return the seconds of a step: the time that a longer run adds for each step."""
        by_steps = self._least_seconds.get((kind, is_again), {1: _LEAST_SECONDS})
        few, many = min(by_steps), max(by_steps)
        mean = by_steps[many] / many
        if few == many:
            return mean
        # A step takes at least half of the mean time of the longest run, and at most that mean.
        return min(max((by_steps[many] - by_steps[few]) / (many - few), mean / 2), mean)

    def find_run(self, kind: type[Action]) -> float:
        """Return the seconds that a run takes besides its steps."""
        by_steps = self._least_seconds.get((kind, True), {1: 0.0})
        return max(0.0, by_steps[max(by_steps)] - max(by_steps) * self.find_step(kind))


def measure(call: Call, scope: Scope, probe: Probe | None = None, *, is_tight: bool = False) -> Measurement:
    """Measure the first steps of a call, and restore everything that they change.

    Arguments:
        call: the call.
        scope: the scope of the call.
        probe: the observer of the trial of these steps, if it ran already; None to make a new one.
        is_tight: whether steps are recorded one at a time, since there may be no room for two tapes.

    Raises InputError if nothing requires a gradient.
    """
    steps = min(TIGHT_STEPS if is_tight else TRIAL_STEPS, call.inputs.steps)
    first = replace(call, inputs=call.inputs.take_first(steps))
    steps = first.inputs.steps
    with torch.enable_grad():
        probe = Probe(call) if probe is None else probe
        if not probe.has_observed:
            actions = list_single_actions(steps, advances_again=True) if is_tight else list_trial_actions(steps)
            _differentiate(first, scope, actions, probe)
        seconds = time_steps(first, scope, is_tight=is_tight)
    return Measurement(**probe.find_sizes(first), **seconds)


def time_steps(call: Call, scope: Scope, *, is_tight: bool = False) -> dict[str, Any]:
    """Return the seconds of all steps of a short call, as fields of ``Measurement``.

    Steps with caches are timed in full and from their caches. Raises InputError if nothing requires a gradient.
    """
    steps, has_caches = call.inputs.steps, call.has_own_backward
    actions = _list_timed_replays(steps) if has_caches else _list_timed(steps, is_tight=is_tight)
    events: list[Event] = []
    with torch.enable_grad():
        for _ in range(_CACHE_RUNS if has_caches else 1):
            timeline = Timeline(call.device, counts_bytes=False)
            names = _differentiate(call, scope, actions, timeline)
            events += timeline.events
    if not names:
        raise _make_no_tape()
    seconds = ActionSeconds(events, separates_first=has_caches)
    record = seconds.find_step(Record)
    # A recorded step does all that a step without a tape does.
    replay = forward = min(seconds.find_step(Advance), record)
    if has_caches:
        forward = max(replay, seconds.find_step(Advance, is_again=False))
    return {
        "forward_seconds": forward,
        "replay_seconds": replay,
        "record_seconds": record,
        "backward_seconds": seconds.find_step(Backward),
        "chunk_seconds": seconds.find_run(Record) + seconds.find_run(Backward),
        "save_seconds": seconds.find_step(Save),
        "load_seconds": seconds.find_step(Load),
    }


def measure_sizes(call: Call, steps: int) -> Sizes:
    """Return the mean sizes of the first steps, recorded at once, as fields of a ``Workload``.

    All changes of the steps are undone. Raises InputError if nothing requires a gradient.
    """
    first = replace(call, inputs=call.inputs.take_first(steps))
    scope, recordings = Scope.of(first), list[tuple[int, int, int]]()
    scope.begin()

    def note(action: Action, run: Executor) -> None:
        if isinstance(action, Record):
            recordings.append((run.state.saved_bytes, run.tapes[-1].bytes, run.steps.saved_bytes))

    run_plain_steps(first, scope)
    at_once: list[Action] = [Record(0, steps), Backward(0, steps)]
    with torch.enable_grad():
        names = _differentiate(first, scope, at_once, note)
    if not names:
        raise _make_no_tape()
    state, tape, saved = recordings[-1]
    return Sizes(
        state_bytes=state, tape_bytes=max(1, -(-tape // steps)), resident_bytes_per_step=-(-saved // steps)
    )


def _make_no_tape() -> InputError:
    return InputError(
        "has nothing that requires a gradient, so that no tape is kept",
        field="cell",
        accepted="a cell with parameters, parameters=[...], inputs or a state that require a gradient",
    )


def _differentiate(call: Call, scope: Scope, actions: Sequence[Action], observer: Any) -> list[str]:
    """Run the first steps, and again after a LateStateError; return the names of tensors with a gradient."""
    for attempt in range(MAX_ATTEMPTS):
        try:
            return differentiate_actions(call, scope, actions, observer).names
        except LateStateError as error:
            scope.lift_tensors([part for part in error.carrying if part.is_content])
            if attempt == MAX_ATTEMPTS - 1:
                raise
    raise AssertionError("the last attempt returns or raises")


def _list_timed(steps: int, *, is_tight: bool) -> list[Action]:
    """Return actions with few runs of steps: an advance, and recordings of one step and of two."""
    if steps < 3:
        return list_trial_actions(steps)
    first: list[Action] = [Save(0, Tier.LOCAL), Advance(0, 2), Record(2, 3), Backward(2, 3)]
    if is_tight:
        first += [Load(0, Tier.LOCAL), Advance(0, 1), Record(1, 2), Backward(1, 2)]
        return [*first, Load(0, Tier.LOCAL), Free(0, Tier.LOCAL), Record(0, 1), Backward(0, 1)]
    return [*first, Load(0, Tier.LOCAL), Free(0, Tier.LOCAL), Record(0, 2), Backward(0, 2)]


def _list_timed_replays(steps: int) -> list[Action]:
    """Return actions by which most steps run in full, are replayed, and are recorded from their caches."""
    if steps < 2:
        return list_trial_actions(steps)
    last = steps - 1
    first: list[Action] = [Save(0, Tier.LOCAL), Advance(0, last), Record(last, steps), Backward(last, steps)]
    first += [Load(0, Tier.LOCAL), Advance(0, last), Load(0, Tier.LOCAL), Free(0, Tier.LOCAL)]
    return [*first, Record(0, last), Backward(0, last)]
