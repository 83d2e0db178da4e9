"""Simulates a schedule: enforces the laws, counts actions, and computes time and memory peaks.

The laws are those of docs/schedule-format.md; ``IllegalAction`` is the error for an action that breaks one. The
simulator interprets actions only. It knows no strategy and no closed form, so that it can verify both.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from math import inf
from typing import Any

from ckptplan.errors import InputError, quote_value
from ckptplan.model.budget import Budget
from ckptplan.model.prediction import COUNTS, Totals
from ckptplan.model.step_costs import StepCosts
from ckptplan.schedule.actions import Action, Advance, Backward, Free, Load, Record, Save, Tier, Transfer
from ckptplan.schedule.step_set import StepSet
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
        described = "the end" if action is None else _describe_action(action)
        place = f"action {number}" if line is None else f"line {line}"
        super().__init__(f"{described}: {law}; found {state}", field=place, source=source)

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


@dataclass(frozen=True, kw_only=True)
class Trace(Totals):
    """The cost of a simulated schedule: totals, seconds that compute waited, and the number of actions."""

    stall_seconds: float
    actions: int


def play(
    actions: Iterable[Action],
    *,
    costs: StepCosts,
    budget: Budget | None = None,
    sink: Sink | None = None,
    open_end: bool = False,
) -> Trace:
    """Simulate a schedule to its end.

    The memory needed grows with the number of checkpoints stored at a time, not with the length. With
    ``costs.overlaps_compute``, transfers overlap compute on two engines, each with a buffer as large as the
    largest message so far. ``sink`` receives each event of the timeline as soon as it is known. With
    ``open_end``, T is not ``costs.steps`` but the number of steps that have run when the first one is reversed.

    Raises IllegalAction for the first action that breaks a law or a limit of ``budget``.
    """
    machine = _Machine(costs, budget or Budget(), sink, open_end=open_end)
    handlers = machine.handlers
    number = 0
    action: Any = None
    try:
        for number, action in enumerate(actions, start=1):  # noqa: B007 - for the error
            handlers.get(type(action), _refuse)(action)
        number, action = number + 1, None
        machine.end()
    except _BrokenLaw as broken:
        raise IllegalAction(number, action, str(broken), machine.describe()) from None
    return machine.trace(number - 1)


class _BrokenLaw(Exception):  # noqa: N818 - internal; IllegalAction is raised in its place
    """The law that an action breaks."""


def _refuse(_: object) -> None:
    raise _BrokenLaw("this is not an action")


class _Machine:
    """The state of a simulation. Handlers raise _BrokenLaw for an action that is not legal."""

    def __init__(self, costs: StepCosts, budget: Budget, sink: Sink | None, *, open_end: bool) -> None:
        self.costs = costs
        self.open_end = open_end
        self.sink = sink
        self.overlaps = costs.overlaps_compute
        # Limits in bytes, resident bytes excluded; infinite without a budget.
        local, remote = budget.local_bytes, budget.remote_bytes
        self.budget_local: float = inf if local is None else local - costs.resident_bytes
        self.budget_remote: float = inf if remote is None else remote
        self.position: int | None = 0
        self.adjoint: float = inf if open_end else costs.steps
        self.frontier = 0
        #: The steps whose tapes, and whose caches, are in local memory.
        self.tapes, self.caches = StepSet(), StepSet()
        #: Whether caches are counted. Until a run drops a cache, all steps to be reversed have theirs.
        self.counts_caches = bool(costs.cache_bytes)
        #: State -> the time at which it is stored; for a state in transit, this time is in the future.
        self.local: dict[int, float] = {}
        self.remote: dict[int, float] = {}
        #: The steps whose caches are in remote memory.
        self.remote_caches = StepSet()
        #: If transfers overlap compute: the steps of each message of caches, and the time of its arrival.
        self.arrivals: list[tuple[int, int, float]] = []
        #: The bytes of the largest message so far.
        self.buffer_bytes = 0
        #: The workspace of chunks of several steps; 0 until such a chunk is recorded.
        self.chunk_bytes = 0
        self.local_peak = self.remote_peak = 0
        self.recomputed_steps = self.recomputed_without_cache = 0
        self.remote_writes = self.remote_reads = self.messages = self.offloaded_caches = 0
        self.advances = self.chunks = self.local_saves = self.local_loads = 0
        self.now = self.write_free = self.read_free = self.stalled = 0.0
        self.handlers: dict[type, Callable[[Any], None]] = {
            Advance: self.advance,
            Record: self.record,
            Backward: self.backward,
            Save: self.save,
            Load: self.load,
            Free: self.free,
            Transfer: self.transfer,
        }

    # Compute

    def advance(self, action: Advance) -> None:
        begin, before = self.now, self.recomputed_steps
        self._run(action.start, action.stop, cached=action.cached)
        self.advances += 1
        self.now += self.costs.advance_seconds
        if self.sink is not None:
            self._show(action, begin, recomputed=self.recomputed_steps - before)
        if self.costs.cache_bytes:
            self._update_peaks()

    def record(self, action: Record) -> None:
        start, stop, begin, before = action.start, action.stop, self.now, self.recomputed_steps
        self._run(start, stop, cached=None)
        self.chunks += 1
        self.now += (stop - start) * self.costs.record_overhead_seconds + self.costs.chunk_seconds
        if self.tapes.count(start, stop):
            raise _BrokenLaw("a step is recorded once before it is reversed")
        self.tapes.add(start, stop)
        if stop - start > 1:
            self.chunk_bytes = self.costs.chunk_bytes
        if self.sink is not None:
            self._show(action, begin, recomputed=self.recomputed_steps - before)
        self._update_peaks()

    def backward(self, action: Backward) -> None:
        start, stop = action.start, action.stop
        if not 0 <= start < stop:
            raise _BrokenLaw("a range holds at least one step")
        if self.open_end:
            self.open_end, self.adjoint = False, self.frontier
            self.costs = self.costs.replace(steps=max(1, self.frontier))
        if stop != self.adjoint:
            raise _BrokenLaw(f"steps are reversed in order: the next one is {self.adjoint - 1}")
        kinds = {"tape": self.tapes, "cache": self.caches} if self.counts_caches else {"tape": self.tapes}
        for name, stored in kinds.items():
            missing = stored.find_last_missing(start, stop)
            if missing is not None:
                raise _BrokenLaw(f"a backward finds every {name}: that of step {missing} is missing")
            stored.remove(start, stop)
        self.adjoint = start
        self.position = None
        self._spend(action, (stop - start) * self.costs.backward_seconds)

    def _run(self, start: int, stop: int, *, cached: int | None) -> None:
        """Run steps, and keep the caches of the last ``cached`` steps, or of all steps if it is None."""
        if start != self.position:
            raise _BrokenLaw("a run starts at the working state")
        if start >= stop:
            raise _BrokenLaw("a range holds at least one step")
        if stop > self.adjoint:
            raise _BrokenLaw("a run never passes the adjoint")
        costs, first_cached = self.costs, start if cached is None else stop - cached
        if not start <= first_cached <= stop:
            raise _BrokenLaw("a run keeps caches of its own steps only")
        recomputed = max(0, min(stop, self.frontier) - start)
        if start < first_cached:
            self._count_caches()
        if recomputed:
            without_cache = 0
            if self.counts_caches:
                without_cache = recomputed - self.caches.count(start, start + recomputed)
            self.recomputed_steps += recomputed
            self.recomputed_without_cache += without_cache
            self.now += (recomputed - without_cache) * costs.recompute_seconds
            self.now += without_cache * costs.forward_seconds
        if stop > self.frontier:
            self.frontier = stop
            self.now += (stop - start - recomputed) * costs.forward_seconds
        if self.counts_caches:
            if start < first_cached:
                self.caches.remove(start, first_cached)
            if first_cached < stop:
                self.caches.add(first_cached, stop)
        self.position = stop

    def _count_caches(self) -> None:
        """Start to count caches. Until now, each step that has run and is not reversed has its cache."""
        waiting = int(min(self.frontier, self.adjoint))
        if waiting and not self.counts_caches:
            self.caches.add(0, waiting)
        self.counts_caches = True

    # Checkpoints

    def save(self, action: Save) -> None:
        state = action.state
        if state != self.position:
            raise _BrokenLaw("a save stores the working state")
        if action.tier is Tier.LOCAL:
            self._put(self.local, (state,), self.now)
            self.local_saves += 1
            self._spend(action, self.costs.save_seconds)
        else:
            self._write(action, (state,))
        self._update_peaks()

    def load(self, action: Load) -> None:
        state = action.state
        local = action.tier is Tier.LOCAL
        arrival = (self.local if local else self.remote).get(state)
        if arrival is None:
            raise _BrokenLaw("a load finds its state")
        if local:
            self.local_loads += 1
            self._spend(action, self.costs.load_seconds)
        else:
            self._read(action, 1, ready=arrival)
        self.position = state
        self._update_peaks()

    def free(self, action: Free) -> None:
        arrival = (self.local if action.tier is Tier.LOCAL else self.remote).pop(action.state, None)
        if arrival is None:
            raise _BrokenLaw("a free finds its state")
        # A state still in transit must arrive before its memory is reused.
        self._wait(action, arrival)
        self._spend(action, 0.0)

    def transfer(self, action: Transfer) -> None:
        states, source, caches = action.states, action.source, action.caches
        if len(set(states)) != len(states) or (not states and caches is None):
            raise _BrokenLaw("a transfer moves at least one state, each once, or caches")
        if action.target is source:
            raise _BrokenLaw("a transfer moves states to the other tier")
        origin, target = (self.local, self.remote) if source is Tier.LOCAL else (self.remote, self.local)
        for state in states:
            if state not in origin:
                raise _BrokenLaw(f"a transfer finds its states: {state} is not stored there")
            if state in target:
                raise _BrokenLaw("nothing is stored twice in one tier")
        if caches is not None:
            self._check_caches(caches, source)
        ready = max((origin.pop(state) for state in states), default=0.0)
        if source is Tier.LOCAL:
            self._write(action, states, caches)
        else:
            self._put(self.local, states, self.now)
            if caches is not None:
                ready = max(ready, self._take_remote_caches(*caches))
                self.caches.add(*caches)
            self._read(action, len(states), caches, ready=ready)
        self._update_peaks()

    def _check_caches(self, caches: tuple[int, int], source: Tier) -> None:
        """Raise _BrokenLaw unless the caches of these steps can move from ``source`` to the other tier."""
        start, stop = caches
        if not 0 <= start < stop:
            raise _BrokenLaw("a range holds at least one step")
        self._count_caches()
        origin, target = self.caches, self.remote_caches
        if source is Tier.REMOTE:
            origin, target = target, origin
        missing = origin.find_last_missing(start, stop)
        if missing is not None:
            raise _BrokenLaw(f"a transfer finds its caches: that of step {missing} is not stored there")
        if target.count(start, stop):
            raise _BrokenLaw("nothing is stored twice in one tier")

    def _take_remote_caches(self, start: int, stop: int) -> float:
        """Remove caches from remote memory; return the time at which all of them have arrived there."""
        self.remote_caches.remove(start, stop)
        # The messages that brought these caches.
        messages = [message for message in self.arrivals if message[0] < stop and start < message[1]]
        if messages:
            self.arrivals = [
                message for message in self.arrivals if self.remote_caches.count(message[0], message[1])
            ]
        return max((done for _, _, done in messages), default=0.0)

    def _put(self, tier: dict[int, float], states: tuple[int, ...], arrival: float) -> None:
        for state in states:
            if state in tier:
                raise _BrokenLaw("nothing is stored twice in one tier")
            tier[state] = arrival

    def _write(self, action: Action, states: tuple[int, ...], caches: tuple[int, int] | None = None) -> None:
        costs, steps = self.costs, 0 if caches is None else caches[1] - caches[0]
        self.messages += 1
        self.remote_writes += len(states)
        self.offloaded_caches += steps
        if self.overlaps:
            self._wait(action, self.write_free)
            self._enlarge_buffers(len(states), steps)
        begin = self.now
        seconds = len(states) * costs.write_seconds + steps * costs.cache_write_seconds
        done = begin + costs.message_seconds + seconds
        self._put(self.remote, states, done)
        if caches is not None:
            self.caches.remove(*caches)
            self.remote_caches.add(*caches)
            if self.overlaps:
                self.arrivals.append((*caches, done))
        self.write_free = done
        if not self.overlaps:
            self.now = done
        if self.sink is not None:
            self._show(action, begin, end=done, track=WRITE)

    def _enlarge_buffers(self, states: int, steps: int) -> None:
        size = states * self.costs.state_bytes + steps * self.costs.cache_bytes
        self.buffer_bytes = max(self.buffer_bytes, size)

    def _read(
        self, action: Action, states: int, caches: tuple[int, int] | None = None, *, ready: float
    ) -> None:
        costs, steps = self.costs, 0 if caches is None else caches[1] - caches[0]
        duration = costs.message_seconds + states * costs.read_seconds + steps * costs.cache_read_seconds
        self.messages += 1
        self.remote_reads += states
        begin = self.now
        if self.overlaps:
            self._enlarge_buffers(states, steps)
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
        if self.sink is not None:
            self._show(action, begin)

    def _wait(self, action: Action, until: float) -> None:
        if until > self.now:
            begin, self.now = self.now, until
            self.stalled += until - begin
            if self.sink is not None:
                self._show(action, begin, stall=True)

    # Bookkeeping

    def _update_peaks(self) -> None:
        """Update the peaks. Raises _BrokenLaw for a limit that is exceeded."""
        costs = self.costs
        self.local_peak = max(self.local_peak, self._local_bytes())
        if self.local_peak + self.chunk_bytes > self.budget_local:
            resident = costs.resident_bytes
            raise _BrokenLaw(
                _exceed(self.local_peak + self.chunk_bytes + resident, "local", self.budget_local + resident)
            )
        remote = self._remote_bytes()
        if remote > self.remote_peak:
            self.remote_peak = remote
            if remote > self.budget_remote:
                raise _BrokenLaw(_exceed(remote, "remote", self.budget_remote))

    def _local_bytes(self) -> int:
        costs = self.costs
        steps = len(self.tapes) * costs.tape_bytes + len(self.caches) * costs.cache_bytes
        return len(self.local) * costs.state_bytes + 2 * self.buffer_bytes + steps

    def _remote_bytes(self) -> int:
        costs = self.costs
        return len(self.remote) * costs.remote_state_bytes + len(self.remote_caches) * costs.remote_cache_bytes

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
        assert self.sink is not None  # noqa: S101 - callers check: most simulations have no sink
        self.sink(
            Event(
                start=begin,
                end=self.now if end is None else end,
                track=track,
                action=action,
                held_at=self.now,
                local_bytes=self._local_bytes() + self.chunk_bytes + self.costs.resident_bytes,
                remote_bytes=self._remote_bytes(),
                recomputed_steps=recomputed,
                stall=stall,
            )
        )

    def end(self) -> None:
        """Raise _BrokenLaw if the schedule may not end here."""
        if self.adjoint:
            raise _BrokenLaw(f"every step is reversed: steps 0 to {self.adjoint - 1} are not")
        if self.local or self.remote or len(self.remote_caches):
            raise _BrokenLaw("nothing is left stored at the end")

    def describe(self) -> str:
        """Return the contents of the machine, for an error message; long lists are shortened."""
        held: dict[str, list[Any]] = {
            "local": sorted(self.local),
            "remote": sorted(self.remote),
            "tapes": list(self.tapes),
        }
        if self.costs.cache_bytes:
            held["caches"] = list(self.caches)
            held["remote caches"] = list(self.remote_caches)
        shown = ", ".join(f"{name} {_shorten(values)}" for name, values in held.items())
        working = "none" if self.position is None else self.position
        return f"working state {working}, next step to reverse {self.adjoint - 1}, {shown}"

    def trace(self, actions: int) -> Trace:
        """Return the result. Seconds are counts times costs, plus waits, without the clock's rounding."""
        costs = self.costs
        seconds = costs.compute_seconds(self) + self.stalled if self.overlaps else costs.serial_seconds(self)
        return Trace(
            seconds=seconds,
            stall_seconds=self.stalled,
            local_peak_bytes=self.local_peak + self.chunk_bytes + costs.resident_bytes,
            remote_peak_bytes=self.remote_peak,
            actions=actions,
            **{name: getattr(self, name) for name in COUNTS},
        )


def _exceed(needed: int, tier: str, budget: float) -> str:
    return f"{needed:,} bytes are needed of a {tier} budget of {budget:,.0f}"


def _shorten(values: list[Any]) -> str:
    return str(values) if len(values) <= 6 else f"{values[:3]}..{values[-1]} ({len(values)})"
