"""Simulates a schedule: enforces the laws, counts actions, and measures time and peaks.

The laws are those of docs/schedule-format.md; ``IllegalAction`` is the error for an action that breaks one. The
simulator interprets actions only. It knows no strategy and no closed form, so that it can verify both.
"""

from __future__ import annotations

import dataclasses
from bisect import bisect_left
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Any

from ckptplan.errors import InputError, quote_value
from ckptplan.model.budget import Budget
from ckptplan.model.prediction import Totals
from ckptplan.model.step_costs import StepCosts
from ckptplan.schedule.actions import Action, Advance, Backward, Free, Load, Record, Save, Tier, Transfer
from ckptplan.schedule.timeline import COMPUTE, READ, WRITE, Event, Sink


class IllegalAction(InputError):  # noqa: N818 - the name is part of the interface
    """An action of a schedule breaks a law.

    Arguments:
        number: the number of the action, from 1.
        action: the action; None if the schedule ends too early.
        law: the law that it breaks.
        state: the state of the machine at that moment.
        source: the file that the schedule comes from.
        line: the line of the action in that file.
    """

    kind = "illegal"

    def __init__(
        self,
        number: int,
        action: object,
        law: str,
        state: str,
        *,
        source: str | None = None,
        line: int | None = None,
    ) -> None:
        self.number = number
        self.action = action
        self.law = law
        self.state = state
        self.line = line
        named = "the end" if action is None else _describe_action(action)
        place = f"action {number}" if line is None else f"line {line}"
        super().__init__(f"{named}: {law}; found {state}", field=place, source=source)

    def in_file(self, path: str) -> IllegalAction:
        """Return the same error for a file, in which action n is on line n + 1."""
        return IllegalAction(self.number, self.action, self.law, self.state, source=path, line=self.number + 1)

    def details(self) -> dict[str, Any]:
        """Return the place, the action, the law and the state of the machine."""
        return {
            "source": self.source,
            "line": self.line,
            "number": self.number,
            "action": None if self.action is None else _describe_action(self.action),
            "law": self.law,
            "state": self.state,
        }


def _describe_action(action: object) -> str:
    """Return an action as text, with the names of schedule files: 'save(state=10, tier=remote)'."""
    if not dataclasses.is_dataclass(action) or isinstance(action, type):
        return quote_value(action)
    fields = [(field.name, getattr(action, field.name)) for field in dataclasses.fields(action)]
    return f"{type(action).__name__.lower()}({', '.join(f'{name}={value}' for name, value in fields)})"


def exceeds_budget(needed: int, tier: str, budget: float) -> str:
    """Return the law that more bytes than the budget of a tier break."""
    return f"{needed:,} bytes are needed of a {tier} budget of {budget:,.0f}"


def describe_machine(
    position: int | None,
    adjoint: int,
    *,
    local: list[int],
    remote: list[int],
    tapes: list[tuple[int, int]],
) -> str:
    """Return the contents of a machine as text; long lists are shortened."""
    held: dict[str, list[Any]] = {"local": local, "remote": remote, "tapes": tapes}
    shown = ", ".join(f"{name} {_shorten(values)}" for name, values in held.items())
    working = "none" if position is None else position
    return f"working state {working}, next step to reverse {adjoint - 1}, {shown}"


def _shorten(values: list[Any]) -> str:
    return str(values) if len(values) <= 6 else f"{values[:3]}..{values[-1]} ({len(values)})"


@dataclass(frozen=True, kw_only=True)
class Trace(Totals):
    """The cost of a simulated schedule: totals, seconds that compute waited, and the number of actions."""

    stall_seconds: float
    actions: int


def play(
    actions: Iterable[Action], *, costs: StepCosts, budget: Budget | None = None, sink: Sink | None = None
) -> Trace:
    """Simulate a schedule to its end.

    The memory needed grows with the number of checkpoints stored at a time, not with the length. With
    ``costs.overlaps_compute``, transfers overlap compute on two engines, each with a buffer as large as the
    largest message so far. ``sink`` receives each event of the timeline as soon as it is known.

    Raises IllegalAction for the first action that breaks a law or a limit of ``budget``.
    """
    machine = _Machine(costs, budget or Budget(), sink)
    handlers = machine.handlers
    number = 0
    action: Any
    for number, action in enumerate(actions, start=1):
        handler = handlers.get(type(action))
        if handler is None:
            raise IllegalAction(number, action, "this is not an action", machine.state())
        law = handler(action)
        if law is not None:
            raise IllegalAction(number, action, law, machine.state())
    law = machine.unfinished()
    if law is not None:
        raise IllegalAction(number + 1, None, law, machine.state())
    return machine.trace(number)


class _Machine:
    """The state of a simulation. Handlers return the law that an action breaks, None if it is legal."""

    __slots__ = (
        "adjoint",
        "advances",
        "budget_local",
        "budget_remote",
        "buffer_states",
        "chunks",
        "costs",
        "frontier",
        "handlers",
        "loads",
        "local",
        "local_peak",
        "messages",
        "now",
        "overlaps",
        "position",
        "read_free",
        "reads",
        "recomputed",
        "remote",
        "remote_peak",
        "saves",
        "sink",
        "stalled",
        "taped",
        "tapes",
        "write_free",
        "writes",
    )

    def __init__(self, costs: StepCosts, budget: Budget, sink: Sink | None) -> None:
        self.costs = costs
        self.sink = sink
        self.overlaps = costs.overlaps_compute
        # Limits in bytes, resident bytes excluded; infinite without a budget.
        local, remote = budget.local_bytes, budget.remote_bytes
        self.budget_local: float = float("inf") if local is None else local - costs.resident_bytes
        self.budget_remote: float = float("inf") if remote is None else remote
        self.position: int | None = 0
        self.adjoint = costs.steps
        self.frontier = 0
        #: Taped steps as disjoint ranges (start, stop), ascending; ``taped`` is their number.
        self.tapes: list[tuple[int, int]] = []
        self.taped = 0
        self.local: set[int] = set()
        #: State -> the time at which it has arrived in remote memory.
        self.remote: dict[int, float] = {}
        self.buffer_states = 0
        self.local_peak = self.remote_peak = 0
        self.recomputed = self.writes = self.reads = self.messages = 0
        self.advances = self.chunks = self.saves = self.loads = 0
        self.now = self.write_free = self.read_free = self.stalled = 0.0
        self.handlers: dict[type, Callable[[Any], str | None]] = {
            Advance: self.advance,
            Record: self.record,
            Backward: self.backward,
            Save: self.save,
            Load: self.load,
            Free: self.free,
            Transfer: self.transfer,
        }

    # Compute

    def advance(self, action: Advance) -> str | None:
        begin, before = self.now, self.recomputed
        law = self._run(action)
        self.advances += 1
        self.now += self.costs.advance_seconds
        if law is None and self.sink is not None:
            self._show(action, begin, recomputed=self.recomputed - before)
        return law

    def record(self, action: Record) -> str | None:
        start, stop, begin, before = action.start, action.stop, self.now, self.recomputed
        law = self._run(action)
        if law is not None:
            return law
        self.chunks += 1
        self.now += (stop - start) * self.costs.record_overhead_seconds + self.costs.chunk_seconds
        tapes = self.tapes
        place = bisect_left(tapes, (start, stop))
        if (place and tapes[place - 1][1] > start) or (place < len(tapes) and tapes[place][0] < stop):
            return "a step is recorded once before it is reversed"
        tapes.insert(place, (start, stop))
        self.taped += stop - start
        if self.sink is not None:
            self._show(action, begin, recomputed=self.recomputed - before)
        return self._update_peaks()

    def backward(self, action: Backward) -> str | None:
        start, stop = action.start, action.stop
        if not 0 <= start < stop:
            return "a range holds at least one step"
        if stop != self.adjoint:
            return f"steps are reversed in order: the next one is {self.adjoint - 1}"
        tapes = self.tapes
        while stop > start:
            if not tapes or tapes[-1][1] != stop:
                return f"a backward finds every tape: that of step {stop - 1} is missing"
            first, _ = tapes.pop()
            if first < start:
                tapes.append((first, start))
                first = start
            stop = first
        steps = action.stop - start
        self.taped -= steps
        self.adjoint = start
        self.position = None
        begin = self.now
        self.now += steps * self.costs.backward_seconds
        if self.sink is not None:
            self._show(action, begin)
        return None

    def _run(self, action: Advance | Record) -> str | None:
        start, stop = action.start, action.stop
        if start != self.position:
            return "a run starts at the working state"
        if start >= stop:
            return "a range holds at least one step"
        if stop > self.adjoint:
            return "a run never passes the adjoint"
        costs = self.costs
        recomputed = max(0, min(stop, self.frontier) - start)
        if recomputed:
            self.recomputed += recomputed
            self.now += recomputed * costs.recompute_seconds
        if stop > self.frontier:
            self.frontier = stop
            self.now += (stop - start - recomputed) * costs.forward_seconds
        self.position = stop
        return None

    # Checkpoints

    def save(self, action: Save) -> str | None:
        state = action.state
        if state != self.position:
            return "a save stores the working state"
        if action.tier is Tier.LOCAL:
            if state in self.local:
                return "nothing is stored twice in one tier"
            self.local.add(state)
            self.saves += 1
            self._spend(action, self.costs.save_seconds)
            return self._update_peaks()
        return self._write(action, (state,))

    def load(self, action: Load) -> str | None:
        state = action.state
        if action.tier is Tier.LOCAL:
            if state not in self.local:
                return "a load finds its state"
            self.loads += 1
            self._spend(action, self.costs.load_seconds)
        else:
            if state not in self.remote:
                return "a load finds its state"
            self._read(action, (state,), ready=self.remote[state])
        self.position = state
        return self._update_peaks()

    def free(self, action: Free) -> str | None:
        state = action.state
        if action.tier is Tier.LOCAL:
            if state not in self.local:
                return "a free finds its state"
            self.local.remove(state)
        else:
            arrived = self.remote.pop(state, None)
            if arrived is None:
                return "a free finds its state"
            # A state still in transit must arrive before its memory is reused.
            self._wait(action, arrived)
        if self.sink is not None:
            self._show(action, self.now)
        return None

    def transfer(self, action: Transfer) -> str | None:
        states, source = action.states, action.source
        if not states or len(set(states)) != len(states):
            return "a transfer moves at least one state, each once"
        if action.target is source:
            return "a transfer moves states to the other tier"
        held: Any = self.local if source is Tier.LOCAL else self.remote
        others: Any = self.remote if source is Tier.LOCAL else self.local
        for state in states:
            if state not in held:
                return f"a transfer finds its states: {state} is not stored there"
            if state in others:
                return "nothing is stored twice in one tier"
        if source is Tier.LOCAL:
            self.local.difference_update(states)
            return self._write(action, states)
        ready = max(self.remote.pop(state) for state in states)
        self.local.update(states)
        self._read(action, states, ready=ready)
        return self._update_peaks()

    def _write(self, action: Action, states: tuple[int, ...]) -> str | None:
        costs = self.costs
        if not self.remote.keys().isdisjoint(states):
            return "nothing is stored twice in one tier"
        duration = costs.message_seconds + len(states) * costs.write_seconds
        self.messages += 1
        self.writes += len(states)
        if self.overlaps:
            self._wait(action, self.write_free)
            self.buffer_states = max(self.buffer_states, len(states))
        begin = self.now
        done = begin + duration
        self.write_free = done
        if not self.overlaps:
            self.now = done
        for state in states:
            self.remote[state] = done
        if self.sink is not None:
            self._show(action, begin, end=done, track=WRITE)
        return self._update_peaks()

    def _read(self, action: Action, states: tuple[int, ...], *, ready: float) -> None:
        costs = self.costs
        duration = costs.message_seconds + len(states) * costs.read_seconds
        self.messages += 1
        self.reads += len(states)
        begin = self.now
        if self.overlaps:
            self.buffer_states = max(self.buffer_states, len(states))
            # Read ahead: as soon as the buffer is free and the states have arrived in remote memory.
            begin = max(self.read_free, ready)
            self._wait(action, begin + duration)
        else:
            self.now = begin + duration
        self.read_free = self.now
        if self.sink is not None:
            self._show(action, begin, end=begin + duration, track=READ)

    def _spend(self, action: Action, seconds: float) -> None:
        begin, self.now = self.now, self.now + seconds
        self._show(action, begin)

    def _wait(self, action: Action, until: float) -> None:
        if until <= self.now:
            return
        begin, self.now = self.now, until
        self.stalled += until - begin
        self._show(action, begin, stall=True)

    # Bookkeeping

    def _update_peaks(self) -> str | None:
        """Update the peaks; return the limit that is exceeded, None if all limits hold."""
        costs = self.costs
        local = self._local_bytes()
        if local > self.local_peak:
            self.local_peak = local
            if local > self.budget_local:
                resident = costs.resident_bytes
                return exceeds_budget(local + resident, "local", self.budget_local + resident)
        remote = len(self.remote)
        if remote > self.remote_peak:
            self.remote_peak = remote
            if remote * costs.remote_state_bytes > self.budget_remote:
                return exceeds_budget(remote * costs.remote_state_bytes, "remote", self.budget_remote)
        return None

    def _local_bytes(self) -> int:
        costs = self.costs
        states = len(self.local) + 2 * self.buffer_states
        return states * costs.state_bytes + self.taped * costs.tape_bytes

    def _show(
        self,
        action: Action,
        begin: float,
        *,
        end: float | None = None,
        track: str = COMPUTE,
        recomputed: int = 0,
        stall: bool = False,
    ) -> None:
        if self.sink is not None:
            self.sink(
                Event(
                    start=begin,
                    end=self.now if end is None else end,
                    track=track,
                    action=action,
                    held_at=self.now,
                    local_bytes=self._local_bytes() + self.costs.resident_bytes,
                    remote_bytes=len(self.remote) * self.costs.remote_state_bytes,
                    recomputed_steps=recomputed,
                    stall=stall,
                )
            )

    def unfinished(self) -> str | None:
        """Return the law that the end of the schedule breaks, None if it is legal."""
        if self.adjoint:
            return f"every step is reversed: steps 0 to {self.adjoint - 1} are not"
        if self.local or self.remote:
            return "nothing is left stored at the end"
        return None

    def state(self) -> str:
        """Return the contents of the machine, for an error message."""
        return describe_machine(
            self.position, self.adjoint, local=sorted(self.local), remote=sorted(self.remote), tapes=self.tapes
        )

    def trace(self, actions: int) -> Trace:
        """Return the result. Seconds are counts times costs, and waits, without the clock's rounding errors."""
        costs = self.costs
        beside_steps = self.advances * costs.advance_seconds + self.chunks * costs.chunk_seconds
        beside_steps = beside_steps + self.saves * costs.save_seconds + self.loads * costs.load_seconds
        compute = costs.sweep_seconds + self.recomputed * costs.recompute_seconds
        serial = (
            compute
            + self.writes * costs.write_seconds
            + self.reads * costs.read_seconds
            + self.messages * costs.message_seconds
            + beside_steps
        )
        return Trace(
            seconds=compute + beside_steps + self.stalled if self.overlaps else serial,
            stall_seconds=self.stalled,
            local_peak_bytes=self.local_peak + costs.resident_bytes,
            remote_peak_bytes=self.remote_peak * costs.remote_state_bytes,
            recomputed_steps=self.recomputed,
            remote_writes=self.writes,
            remote_reads=self.reads,
            messages=self.messages,
            advances=self.advances,
            chunks=self.chunks,
            local_saves=self.saves,
            local_loads=self.loads,
            actions=actions,
        )
