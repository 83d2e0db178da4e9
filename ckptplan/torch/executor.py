"""Executes the actions of a call's schedule: an engine runs the steps, stores keep the checkpoints.

A checkpoint is a detached state with the states of the random generators. The first sweep runs until the first
Backward; the rest runs when the gradient of the result is available. In between, at the turn, a caller makes a
loss of the outputs, which takes memory, too: if there is little, the last steps are recorded after it.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import partial
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
from ckptplan.torch.call import Call, OpenSchedule
from ckptplan.torch.compiling.engine import CompiledEngine
from ckptplan.torch.compiling.steps import CompiledPiece
from ckptplan.torch.engine import Engine, Incoming, Tape
from ckptplan.torch.fit import PlanFit
from ckptplan.torch.graphs import Gradient
from ckptplan.torch.held_graphs import explain_held_graphs
from ckptplan.torch.memory import explain_exhaustion
from ckptplan.torch.meters import Clock, wait_and_read
from ckptplan.torch.probe import Probed
from ckptplan.torch.sequence_watch import SequenceWatch
from ckptplan.torch.stores import Checkpoint, Store
from ckptplan.torch.trees import Leaves, Structure, byte_size, flatten
from ckptplan.torch.verify import Verifier

#: The outputs, their gradients, and what a loss makes of them in both passes, as so many times the outputs: a
#: mean of squares holds the squares, and then two factors and their product.
MADE_OF_OUTPUTS = 5


@dataclass(kw_only=True, eq=False)
class Executor:
    """One sweep of a call, and its reversal; single use.

    Arguments:
        call: the call.
        probed: what is known of its steps.
        engine: runs, records and reverses steps.
        stores: keep the checkpoints of each tier.
        generators: the random generators to save and restore.
        autocast: the autocast settings of the forward pass.
        watch: notes what steps change besides the state.
        verifier: compares steps that run again with what they were, None if nothing is compared.
        fit: compares the first recording with the plan, None if that was done or is not wanted.
    """

    call: Call
    probed: Probed
    engine: Engine
    stores: dict[Tier, Store[Any]]
    generators: Generators
    autocast: Autocast
    watch: SequenceWatch
    verifier: Verifier | None
    fit: PlanFit | None
    #: T; of a sequence of unknown length, the steps that are known to come.
    steps: int = field(init=False)
    state: Any = field(init=False)
    tapes: list[Tape] = field(default_factory=list, init=False)
    #: Steps that have run at least once.
    frontier: int = field(default=0, init=False)
    #: When the present action began, for an observer that takes times.
    began: float = field(default=0.0, init=False)
    #: The leaves of the final state, and its structure.
    final: Leaves = field(default=(), init=False)
    end: Structure = field(init=False)
    #: Whether a sequence of unknown length ended with all of its steps recorded.
    is_short: bool = field(default=False, init=False)
    _sweeps: bool = field(default=False, init=False)
    #: Whether the present action recorded steps that may run again.
    _sampled: bool = field(default=False, init=False)
    #: The tapes that the present action recorded or reversed.
    _parts: int = field(default=1, init=False)
    #: Such a sequence has its steps recorded as long as there are at most so many.
    _short: int = field(default=0, init=False)
    #: What the backward pass begins with: an action, and its checkpoint if it is the last recording.
    _first: Action | None = field(default=None, init=False)
    _postponed: Checkpoint | None = field(default=None, init=False)
    _incoming: Incoming = field(default=(), init=False)

    def __post_init__(self) -> None:
        call, survey = self.call, self.call.survey
        leaves, self.end = flatten(call.state)
        self.steps, self.state = call.plan.steps, self.end.fill([leaf.detach() for leaf in leaves])
        #: The clock of ``began``: that of an observer that takes times.
        self.clock: Clock = getattr(call.observer, "clock", perf_counter)
        self._tape_hooks = read_tape_hooks()
        #: Takes note of sizes, None if they are known.
        self._survey = survey if survey is not None and survey.is_open else None
        if self._survey is not None and call.device.type == "cuda":
            # An action returns before its work is done there.
            self.clock = partial(wait_and_read, call.device)
        #: Asked after each step of the sweep until it says that the sequence ends.
        self._ends = call.plan.ends if isinstance(call.plan, OpenSchedule) else None

    @property
    def piece(self) -> CompiledPiece | None:
        """The compiled piece that steps run in, None if they run as they are written."""
        return self.engine.piece if isinstance(self.engine, CompiledEngine) else None

    def list_actions(self) -> Iterator[Action]:
        """Return the actions of the call; of a sequence of unknown length, those that its steps ask for."""
        call = self.call
        if isinstance(call.plan, OpenSchedule):
            return self._follow(call.plan.online)
        return iter(call.planned if call.schedule is None else call.schedule)

    @contextmanager
    def _explain(self) -> Iterator[None]:
        """Turn errors of the block into what they mean for a run. The block must release what it holds."""
        call = self.call
        with explain_exhaustion(call.plan, self.probed.found.device), explain_held_graphs(call.things):
            try:
                yield
            except BaseException:
                # Close first, so that the error reports the memory that is free afterwards.
                self.close()
                raise

    def sweep(self, actions: Lookahead) -> None:
        """Execute the actions before the first Backward, or before the last recording if it is postponed."""
        with self.watch.sweep(), self._explain():
            self._sweeps = True
            self._execute_sweep(actions)
            self._sweeps = False
            self.watch.end_sweep()
            self._see_held()

    def _execute_sweep(self, actions: Lookahead) -> None:
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

    def _is_postponed(self, record: Record) -> bool:
        """Return whether the last steps are recorded after the turn, since their tapes leave no room there."""
        plan, limit = self.call.plan, self.call.limit
        if not isinstance(plan, Plan) or not limit or self.frontier == 0 or record.stop < self.steps:
            return False
        if self.call.losses:
            # Only where outputs are returned, a caller makes a loss of them.
            return False
        sizes = plan.workload
        tapes = (record.stop - record.start) * sizes.tape_bytes
        # Outputs and their gradients, which are there all the time, and what a loss makes of them.
        made = self.steps * sizes.resident_bytes_per_step
        made += (MADE_OF_OUTPUTS - 2) * self.engine.outputs.kept_bytes
        return self.stores[Tier.LOCAL].bytes + sizes.state_bytes + tapes + made > limit

    def reverse(self, rest: Lookahead, *, final: list[Gradient], incoming: Incoming) -> None:
        """Execute the rest, given the gradients of the final state and of the results of the outputs."""
        with self._explain():
            self.engine.gradients.begin(final)
            self._incoming = incoming
            with self.generators.aside(), self.autocast.enter(), use_tape_hooks(self._tape_hooks):
                self._expect(rest)
                first, checkpoint = self._first, self._postponed
                self._first = self._postponed = None
                if isinstance(first, Record) and checkpoint is not None:
                    self._resume(checkpoint)
                    self.watch.check_again(self.state, first.start)
                    del checkpoint
                if first is not None:
                    self._do(first)
                for action in rest:
                    self._do(action)
                    if isinstance(action, Load):
                        # Steps begin to run again.
                        self.watch.check_again(self.state, action.state)
                    if track_of(action) != COMPUTE:
                        self._expect(rest)
            if self.verifier is not None:
                self.verifier.settle()
            if self._survey is not None:
                self._survey.finish()

    def _expect(self, rest: Lookahead) -> None:
        """Announce the next read to the remote store, if it can fetch ahead."""
        remote = self.stores[Tier.REMOTE]
        if remote.ahead and (states := rest.next_message()):
            remote.expect(states)

    def _follow(self, online: OnlineSchedule) -> Iterator[Action]:
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
        elif steps == self.steps and self._sweeps:
            self.watch.check(self.state, steps)
        return ended

    def forward_only(self) -> None:
        """Run all steps without checkpoints or tapes."""
        if self._ends is None:
            self._advance(0, self.steps)
        while self._ends is not None:
            self._advance(self.frontier, self.frontier + 1)
            self._has_ended(self.frontier)
        with torch.no_grad():
            self.engine.outputs.finish(self.state)

    def close(self) -> None:
        """Release everything."""
        self.tapes.clear()
        self.state = self._postponed = None
        self._incoming = ()
        self.engine.close()
        for store in self.stores.values():
            store.close()

    def _do(self, action: Action) -> None:
        self.began, self._sampled, self._parts = self.clock(), False, 1
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
        if self.verifier is not None:
            self._verify(action, self.verifier)
        if self._survey is not None and not self._sampled:
            self._survey.see_seconds(action, self.clock() - self.began, tapes=self._parts)
        if self.call.observer is not None:
            self.call.observer(action, self)

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
        self.engine.outputs.end_action()

    # Checkpoints

    def _checkpoint(self) -> Checkpoint:
        leaves, structure = flatten(self.state)
        return Checkpoint(tuple(leaf.detach() for leaf in leaves), structure, self.generators.state())

    def _resume(self, checkpoint: Checkpoint) -> None:
        self.state = checkpoint.structure.fill(checkpoint.leaves)
        self.generators.restore(checkpoint.random)

    # Steps

    def _advance(self, start: int, stop: int) -> None:
        self._check_before(start, stop)
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
        self.watch.guard()
        self._sampled = self.engine.outputs.samples = True
        tape, self.state = self.engine.record(self.state, step, step + 1, known=self.frontier)
        self.engine.outputs.samples = False
        if self._survey is not None:
            self._survey.see_tape(step, step + 1, tape.bytes)
            self._survey.see_state(step + 1, byte_size(flatten(self.state)[0]))
        return tape

    def _record(self, start: int, stop: int) -> None:
        self._check_before(start, stop)
        parts = [(start, stop)]
        if self._survey is not None and self._sweeps and self._ends is None and self.frontier == start:
            # What runs for the first time may keep more than all steps before.
            parts = [*self._survey.cut(Record(start, stop))]
            self._parts = len(parts)
        for first, last in parts:
            self._record_part(first, last)

    def _record_part(self, start: int, stop: int) -> None:
        if self.frontier:
            self.watch.guard()
        with self.autocast.cast_anew():
            tape, self.state = self.engine.record(self.state, start, stop, known=self.frontier)
        if self.fit is not None:
            self.fit.see(tape, self.state)
        self.tapes.append(tape)
        self._ran(stop)
        # To count long tapes takes a while: later calls count those of single steps.
        if self._survey is not None and (self._survey.is_first or stop == start + 1):
            self._survey.see_tape(start, stop, tape.bytes)
            self._see_held()
            if self._parts > 1:
                self._survey.check()

    def _see_held(self) -> None:
        """Let the survey of a first call know what checkpoints, tapes and gradients take now."""
        if self._survey is not None and self._survey.is_first:
            sums = byte_size([one for one in self.engine.gradients.parameters if one is not None])
            held = self.stores[Tier.LOCAL].bytes + sum(tape.bytes for tape in self.tapes) + sums
            self._survey.see_held(held)

    def _check_before(self, start: int, stop: int) -> None:
        """Look for hidden state before the last steps run, when the plan holds least: checkpoints alone."""
        if self._ends is None and 0 < self.frontier < stop == self.steps:
            self.watch.check(self.state, start)
            # That is no part of the action.
            self.began = self.clock()

    def _ran(self, stop: int) -> None:
        if self._ends is None and self.frontier < stop == self.steps:
            self._keep_final()
        self.frontier = max(self.frontier, stop)

    def _keep_final(self) -> None:
        leaves, self.end = flatten(self.state)
        self.final = tuple(leaf.detach() for leaf in leaves)

    def _backward(self, start: int, stop: int) -> None:
        self.state, self._parts = None, 0
        while stop > start:
            tape = self.tapes.pop()
            self._parts += 1
            if tape.start < start:
                raise InputError(
                    f"reverses steps {start} to {stop}, recorded together with those from {tape.start}",
                    field="schedule",
                    accepted="a Backward that begins where a Record does",
                )
            self.engine.reverse(tape, self._incoming)
            stop = tape.start
