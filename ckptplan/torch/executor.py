"""Executes the actions of a schedule: an engine runs the steps, stores keep the checkpoints.

A checkpoint is a detached state with the states of the random generators. The first sweep runs until the first
Backward; the rest runs when the gradient of the result is available. In between, at the turn, a caller makes a
loss of the outputs, which takes memory, too: if there is little, the last steps are recorded after it.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from time import perf_counter
from typing import Any

import torch

from ckptplan.errors import InputError
from ckptplan.execution.lookahead import Lookahead
from ckptplan.execution.online import OnlineSchedule
from ckptplan.model.plan import Plan
from ckptplan.schedule.actions import Action, Advance, Backward, Free, Load, Record, Save, Tier, Transfer
from ckptplan.schedule.timeline import COMPUTE, track_of
from ckptplan.torch.ambient import Autocast, Generators, read_tape_hooks, use_tape_hooks
from ckptplan.torch.engine import Engine, Incoming, Observer, Tape
from ckptplan.torch.fit import PlanFit
from ckptplan.torch.graphs import Gradient
from ckptplan.torch.losses import Outputs
from ckptplan.torch.meters import Clock
from ckptplan.torch.sequence_watch import SequenceWatch
from ckptplan.torch.stores import Checkpoint, Store
from ckptplan.torch.survey import Survey
from ckptplan.torch.trees import Leaves, byte_size, flatten
from ckptplan.torch.verify import Verifier

#: The outputs, their gradients, and what a loss makes of them in both passes, as so many times the outputs: a
#: mean of squares holds the squares, and then two factors and their product.
MADE_OF_OUTPUTS = 5


class Executor:
    """Executes one schedule; single use.

    Arguments:
        engine: runs, records and reverses steps.
        outputs: takes the outputs of the steps.
        steps: T.
        state: the initial state, detached.
        stores: keep the checkpoints of each tier.
        generators: the random generators to save and restore.
        autocast: the autocast settings of the forward pass.
        observer: called with each action when it is done.
        watch: notes what steps change besides the state.
        verifier: compares steps that run again with what they were, None if nothing is compared.
        turn: a plan for a limit that knows of the turn; None if the last steps are always recorded before it.
        apart: whether each step is recorded by itself, so that gradients of parameters do not wait for others.
        survey: takes note of sizes, None if they are known.
        fit: compares the first recording with the plan, None if that was done or is not wanted.
        ends: says of a state and a number of steps whether the sequence ends there; None if ``steps`` is T.
    """

    def __init__(
        self,
        *,
        engine: Engine,
        outputs: Outputs,
        steps: int,
        state: Any,
        stores: dict[Tier, Store[Any]],
        generators: Generators,
        autocast: Autocast,
        observer: Observer | None = None,
        watch: SequenceWatch | None = None,
        verifier: Verifier | None = None,
        turn: Plan | None = None,
        apart: bool = False,
        survey: Survey | None = None,
        fit: PlanFit | None = None,
        ends: Callable[[Any, int], bool] | None = None,
    ) -> None:
        self.engine, self.outputs, self.steps, self.stores = engine, outputs, steps, stores
        self.generators, self.autocast, self.observer, self._watch = generators, autocast, observer, watch
        self.verifier, self._tape_hooks, self._turn, self._apart = verifier, read_tape_hooks(), turn, apart
        #: What the backward pass begins with: an action, and its checkpoint if it is the last recording.
        self._survey, self._sweeps, self.fit = survey, False, fit
        #: Whether the present action recorded steps that may run again.
        self._sampled = False
        #: Asked after each step of the sweep until it says that the sequence ends.
        self._ends = ends
        #: Such a sequence has its steps recorded as long as there are at most so many.
        self._short = 0
        #: Whether it ended with all of its steps recorded.
        self.is_short = False
        self._first: Action | None = None
        self._postponed: Checkpoint | None = None
        self.tapes: list[Tape] = []
        #: Steps that have run at least once.
        self.frontier = 0
        self.state: Any = state
        #: When the present action began, for an observer that takes times.
        self.began = 0.0
        #: The clock of ``began``: that of an observer that takes times.
        self.clock: Clock = getattr(observer, "clock", perf_counter)
        #: The leaves of the final state, and its structure.
        self.final: Leaves = ()
        self.end = flatten(state)[1]
        self._incoming: Incoming = ()

    def sweep(self, actions: Lookahead) -> None:
        """Execute the actions before the first Backward, or before the last recording if it is postponed."""
        before = self.generators.state()
        self._sweeps = True
        try:
            for action in actions:
                self._first = action
                if isinstance(action, Backward):
                    # What is kept of the final state are the results.
                    self.state = None
                    return
                if isinstance(action, Record) and self._is_postponed(action):
                    self._postponed = self._checkpoint()
                    self._do(Advance(action.start, action.stop))
                    self.state = None
                    return
                self._do(action)
                self._first = None
                if self._survey is not None:
                    self._survey.check()
        except InputError:
            # A refused run leaves no trace.
            self.generators.restore(before)
            raise
        finally:
            self._sweeps = False

    def _is_postponed(self, record: Record) -> bool:
        """Return whether the last steps are recorded after the turn, since their tapes leave no room there."""
        plan = self._turn
        if plan is None or self.frontier == 0 or record.stop < self.steps:
            return False
        assert plan.goal.local_bytes is not None  # noqa: S101 - the limit
        tapes = (record.stop - record.start) * plan.workload.tape_bytes
        made = MADE_OF_OUTPUTS * self.outputs.kept_bytes
        return self.stores[Tier.LOCAL].bytes + tapes + made > plan.goal.local_bytes

    def reverse(self, rest: Lookahead, *, final: list[Gradient], incoming: Incoming) -> None:
        """Execute the rest, given the gradients of the final state and of the results of the outputs."""
        self.engine.gradients.begin(final)
        self._incoming = incoming
        with self.generators.aside(), self.autocast.enter(), use_tape_hooks(self._tape_hooks):
            self._expect(rest)
            first, checkpoint = self._first, self._postponed
            self._first = self._postponed = None
            if isinstance(first, Record) and checkpoint is not None:
                self._resume(checkpoint)
                self._look_again(first.start)
                del checkpoint
            if first is not None:
                self._do(first)
            for action in rest:
                self._do(action)
                if isinstance(action, Load):
                    self._look_again(action.state)
                if track_of(action) != COMPUTE:
                    self._expect(rest)
        if self.verifier is not None:
            self.verifier.settle()
        if self._survey is not None:
            self._survey.finish()

    def _look_again(self, step: int) -> None:
        """Look for changes since the sweep where the first step runs again."""
        if self._watch is not None:
            self._watch.check_again(self.state, step)

    def _expect(self, rest: Lookahead) -> None:
        """Announce the next read to the remote store, if it can fetch ahead."""
        remote = self.stores[Tier.REMOTE]
        if remote.ahead and (states := rest.next_message()):
            remote.expect(states)

    def follow(self, online: OnlineSchedule) -> Iterator[Action]:
        """Yield the actions of a sequence whose end is asked for after each step.

        While all states and tapes find room, steps that are to advance are recorded. If the sequence ends so
        early, it is reversed at once; else the tapes are dropped.
        """
        self._short, self.engine.steps = online.short_steps, 0
        for action in online.actions(self._has_ended):
            if self.is_short:
                break
            yield action
        else:
            return
        last = self.steps - 1
        yield Load(last, Tier.LOCAL)
        yield from (Free(state, Tier.LOCAL) for state in range(self.steps))
        # It is recorded once more, with a loss of the final state.
        self.tapes.pop()
        yield Record(last, self.steps)
        yield Backward(0, self.steps)

    def _has_ended(self, steps: int) -> bool:
        assert self._ends is not None  # noqa: S101 - only asked for such sequences
        with torch.no_grad():
            ended = self._ends(self.state, steps)
        if ended:
            self._ends, self.steps, self.engine.steps = None, steps, steps
            self.is_short = len(self.tapes) == steps
            self._keep_final()
            if self.verifier is not None:
                self.verifier.reach(steps, self.state, again_later=True)
        elif steps == self.steps and self._sweeps and self._watch is not None:
            self._watch.check(self.state, steps)
        return ended

    def forward_only(self) -> None:
        """Run all steps without checkpoints or tapes."""
        if self._ends is None:
            self._advance(0, self.steps)
        while self._ends is not None:
            self._advance(self.frontier, self.frontier + 1)
            self._has_ended(self.frontier)
        with torch.no_grad():
            self.outputs.finish(self.state)

    def close(self) -> None:
        """Release everything."""
        self.tapes.clear()
        self.state = self._postponed = None
        self._incoming = ()
        self.engine.close()
        for store in self.stores.values():
            store.close()

    def _do(self, action: Action) -> None:
        self.began, self._sampled = self.clock(), False
        match action:
            case Advance(start, stop):
                self._advance(start, stop)
            case Record(start, stop):
                self._record(start, stop)
            case Backward(start, stop):
                self._backward(start, stop)
            case Save(number, tier):
                checkpoint = self._checkpoint()
                self.stores[tier].put(number, checkpoint)
                if self._survey is not None:
                    self._survey.see_state(number, byte_size(checkpoint.leaves))
            case Load(number, tier):
                self._resume(self.stores[tier].get(number))
            case Free(number, tier):
                self.stores[tier].drop(number)
            case Transfer(numbers, source, target):
                for number in numbers:
                    self.stores[target].put(number, self.stores[source].get(number), together=len(numbers))
                    self.stores[source].drop(number)
        if self._survey is not None and not self._sampled:
            self._survey.see_seconds(action, self.clock() - self.began)
        if self.verifier is not None:
            self._verify(action, self.verifier)
        if self.observer is not None:
            self.observer(action, self)

    def _verify(self, action: Action, verifier: Verifier) -> None:
        """Compare what steps that ran again reached. Raises InputError."""
        match action:
            case Advance() if self._ends is not None:
                return
            case Save(number, _) if self._ends is not None:
                verifier.reach(number, self.state, again_later=True)
            case Advance(_, stop):
                verifier.reach(stop, self.state, again_later=True)
            case Record(_, stop):
                # Recorded steps are reversed before any step that leads to them runs again.
                verifier.reach(stop, self.state, again_later=False)
            case Backward(start, stop):
                verifier.forget(start, stop)
            case _:
                return
        self.outputs.end_action()

    # Checkpoints

    def _checkpoint(self) -> Checkpoint:
        leaves, structure = flatten(self.state)
        return Checkpoint(tuple(leaf.detach() for leaf in leaves), structure, self.generators.state())

    def _resume(self, checkpoint: Checkpoint) -> None:
        self.state = checkpoint.structure.fill(checkpoint.leaves)
        self.generators.restore(checkpoint.random)

    # Steps

    def _advance(self, start: int, stop: int) -> None:
        self._check_before(stop)
        is_open = self._ends is not None and self._sweeps
        with self.autocast.cast_anew():
            if is_open and stop <= self._short:
                self.tapes.append(self._sample(start))
                start = stop
            elif is_open:
                self.tapes.clear()
            for step in self._survey.list_samples(start, stop) if self._survey and self._sweeps else ():
                self.state = self.engine.advance(self.state, start, step, known=self.frontier)
                self._sample(step)
                start = step + 1
            self.state = self.engine.advance(self.state, start, stop, known=self.frontier)
        self._ran(stop)

    def _sample(self, step: int) -> Tape:
        """Record a step that may run again, count its tape, and return it."""
        if self._watch is not None:
            self._watch.guard()
        self._sampled = self.outputs.samples = True
        tape, self.state = self.engine.record(self.state, step, step + 1, known=self.frontier)
        self.outputs.samples = False
        if self._survey is not None:
            self._survey.see_tape(step, step + 1, tape.bytes)
            self._survey.see_state(step + 1, byte_size(flatten(self.state)[0]))
        return tape

    def _record(self, start: int, stop: int) -> None:
        self._check_before(stop)
        for first in range(start, stop) if self._apart else (start,):
            last = first + 1 if self._apart else stop
            if self._watch is not None and (self.frontier or first > start):
                self._watch.guard()
            with self.autocast.cast_anew():
                tape, self.state = self.engine.record(self.state, first, last, known=self.frontier)
            if self.fit is not None:
                self.fit.see(tape, self.state)
            self.tapes.append(tape)
            if self._survey is not None:
                self._survey.see_tape(first, last, tape.bytes)
        self._ran(stop)

    def _check_before(self, stop: int) -> None:
        """Look for hidden state before the last steps run, when the plan holds least: checkpoints alone."""
        if self._watch is not None and self._ends is None and 0 < self.frontier < stop == self.steps:
            self._watch.check(self.state, self.frontier)

    def _ran(self, stop: int) -> None:
        if self._ends is None and self.frontier < stop == self.steps:
            self._keep_final()
        self.frontier = max(self.frontier, stop)

    def _keep_final(self) -> None:
        leaves, self.end = flatten(self.state)
        self.final = tuple(leaf.detach() for leaf in leaves)

    def _backward(self, start: int, stop: int) -> None:
        self.state = None
        while stop > start:
            tape = self.tapes.pop()
            if tape.start < start:
                raise InputError(
                    f"reverses steps {start} to {stop}, recorded together with those from {tape.start}",
                    field="schedule",
                    accepted="a Backward that begins where a Record does",
                )
            self.engine.reverse(tape, self._incoming)
            stop = tape.start
