"""Executes a schedule by calling functions of the caller: for loops in any framework, or in none.

Each action is checked against the laws of docs/schedule-format.md before its function is called.

What is said of an action when it is done: its track, and how many of its steps had run before.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from copy import deepcopy
from dataclasses import dataclass
from functools import partial
from time import perf_counter
from typing import Any, TypeAlias

from ckptplan.cost.case import Case
from ckptplan.errors import InputError, quote_value
from ckptplan.execution.lookahead import Lookahead
from ckptplan.execution.online import OnlineSchedule
from ckptplan.model.budget import Budget
from ckptplan.model.plan import Plan
from ckptplan.model.step_costs import StepCosts
from ckptplan.planning.playback import actions
from ckptplan.schedule.actions import Action, Advance, Backward, Free, Load, Record, Save, Tier, Transfer
from ckptplan.schedule.schedule import Schedule
from ckptplan.schedule.simulator import Trace, play
from ckptplan.schedule.timeline import COMPUTE, READ, WRITE, Event, Sink


def track_of(action: Action) -> str:
    """Return the track of an action that is executed: compute, writes or reads."""
    match action:
        case Load(_, Tier.REMOTE) | Transfer(_, Tier.REMOTE, _):
            return READ
        case Save(_, Tier.REMOTE) | Transfer():
            return WRITE
    return COMPUTE


class Frontier:
    """Counts the steps of each action that had run before."""

    def __init__(self) -> None:
        self._known = 0

    def pass_over(self, action: Action) -> int:
        """Return how many steps of an action run again, and remember those that ran."""
        if not isinstance(action, Advance | Record):
            return 0
        known, self._known = self._known, max(self._known, action.stop)
        return max(0, min(known, action.stop) - action.start)


#: Called with the first step and the one after the last.
Run: TypeAlias = Callable[[int, int], object]
#: Called with the number of a state and a tier, 'local' or 'remote'.
Move: TypeAlias = Callable[[int, Tier], object]
#: Returns the working state, and makes a kept one the working state.
State: TypeAlias = tuple[Callable[[], object], Callable[[Any], object]]


def execute(
    plan: Plan | Schedule | OnlineSchedule,
    *,
    advance: Run,
    record: Run,
    backward: Run,
    save: Move | None = None,
    load: Move | None = None,
    free: Move | None = None,
    transfer: Callable[[tuple[int, ...], Tier, Tier], object] | None = None,
    state: State | None = None,
    until: Callable[[int], object] | None = None,
    expect: Callable[[int], object] | None = None,
    sink: Sink | None = None,
) -> Trace:
    """Execute a plan by callbacks, and return what it counted: the caller holds the state and its gradient.

    Arguments:
        plan: a plan, a ``ckptplan.Schedule``, or ``ckptplan.online(...)`` for a sequence of unknown length.
        advance: ``advance(start, stop)`` runs steps from the working state.
        record: ``record(start, stop)`` runs steps and keeps what their backward needs.
        backward: ``backward(start, stop)`` reverses steps stop-1 down to start; the working state is lost.
        save: ``save(state, tier)`` keeps a copy of the working state, which is that of step ``state``.
        load: ``load(state, tier)`` makes a kept state the working state; it stays kept.
        free: ``free(state, tier)`` drops a kept state.
        transfer: ``transfer(states, source, target)`` moves kept states in one message. Plans of
            ``hierarchical``, some of solved strategies, and ``online`` with remote memory have such actions.
        state: in place of ``save``, ``load``, ``free`` and ``transfer``, two functions: ``get()`` returns the
            working state, ``set(kept)`` makes a kept state the working state. Copies of it are kept in host
            memory (``copy.deepcopy``) until they are freed or the run ends.
        until: for ``online``: ``until(t)`` says whether the sequence ends, when t of its steps have run.
        expect: ``expect(state)`` announces the remote state that is read next, after the first Backward begins
            and after each remote read, so that it may be fetched while steps are reversed.
        sink: receives an event when an action is done, with seconds since the beginning as measured here. Its
            bytes are those of the plan's sizes, or counts of states and tapes for a ``Schedule``.

    The result's seconds are those that the plan predicts. Raises IllegalAction before the first action that
    breaks a law or the plan's budget, and InputError. What a callback raises ends the run.
    """
    moves = {"save": save, "load": load, "free": free, "transfer": transfer}
    kept = _Kept.of(state, moves)
    if kept is not None:
        moves = {"save": kept.save, "load": kept.load, "free": kept.free, "transfer": kept.transfer}
    calls = _Calls(advance=advance, record=record, backward=backward, **moves)  # type: ignore[arg-type]
    calls.check()
    check_functions(**{name: one for name, one in (("expect", expect), ("until", until)) if one is not None})
    played = _Played.of(plan, until)
    if calls.transfer is None and played.transfers():
        raise InputError(
            "is missing, and the schedule moves kept states between the tiers",
            field="transfer",
            accepted="transfer(states, source, target)",
        )
    run = _Run(calls, Lookahead(iter(played.source())), expect=expect, sink=sink)
    try:
        return play(
            run.perform(),
            costs=played.costs,
            budget=played.budget,
            sink=run.note,
            open_end=played.online is not None,
        )
    finally:
        if kept is not None:
            kept.states.clear()


def check_functions(**functions: object) -> None:
    """Raise InputError for an argument that cannot be called."""
    for name, function in functions.items():
        if not callable(function):
            raise InputError(f"{quote_value(function)} cannot be called", field=name, accepted="a function")


def check_state(state: object) -> State:
    """Return the functions of the working state. Raises InputError unless they are two."""
    if not (isinstance(state, tuple | list) and len(state) == 2 and all(map(callable, state))):
        raise InputError(
            f"{quote_value(state)} is not accepted", field="state", accepted="two functions: (get, set)"
        )
    get, put = state
    return get, put


@dataclass(frozen=True, kw_only=True)
class _Calls:
    """The functions of the caller."""

    advance: Run
    record: Run
    backward: Run
    save: Move
    load: Move
    free: Move
    transfer: Callable[[tuple[int, ...], Tier, Tier], object] | None

    def check(self) -> None:
        given = {name: one for name, one in vars(self).items() if name != "transfer" or one is not None}
        check_functions(**given)

    def do(self, action: Action) -> None:
        match action:
            case Advance(start, stop):
                self.advance(start, stop)
            case Record(start, stop):
                self.record(start, stop)
            case Backward(start, stop):
                self.backward(start, stop)
            case Save(state, tier):
                self.save(state, tier)
            case Load(state, tier):
                self.load(state, tier)
            case Free(state, tier):
                self.free(state, tier)
            case Transfer(states, source, target):
                assert self.transfer is not None  # noqa: S101 - looked for before the run
                self.transfer(states, source, target)


class _Run:
    """Performs each action once the simulator has found it legal."""

    def __init__(
        self,
        calls: _Calls,
        waiting: Lookahead,
        *,
        expect: Callable[[int], object] | None,
        sink: Sink | None,
    ) -> None:
        self._calls, self._waiting, self._expect, self._sink = calls, waiting, expect, sink
        self._simulated: Event | None = None
        self._began = perf_counter()
        self._turned = False

    def note(self, event: Event) -> None:
        """Keep the simulated event of the action that comes next, for its bytes."""
        if not event.stall:
            self._simulated = event

    def perform(self) -> Iterator[Action]:
        """Yield each action to be checked; when the next one is asked for, it was legal, and is performed."""
        for action in self._waiting:
            yield action
            if isinstance(action, Backward) and not self._turned:
                self._turned = True
                self._announce()
            start = perf_counter() - self._began
            self._calls.do(action)
            self._report(action, start)
            if self._turned and _reads(action):
                self._announce()

    def _announce(self) -> None:
        if self._expect is not None and (states := self._waiting.next_message()):
            self._expect(states[0])

    def _report(self, action: Action, start: float) -> None:
        known = self._simulated
        if self._sink is None or known is None:
            return
        end = perf_counter() - self._began
        self._sink(
            Event(
                start=start,
                end=end,
                track=track_of(action),
                action=action,
                held_at=end,
                local_bytes=known.local_bytes,
                remote_bytes=known.remote_bytes,
                recomputed_steps=known.recomputed_steps,
            )
        )


def _reads(action: Action) -> bool:
    match action:
        case Load(_, Tier.REMOTE) | Transfer(_, Tier.REMOTE, _):
            return True
    return False


@dataclass(frozen=True, kw_only=True)
class _Played:
    """The costs, the limits and the actions of what is executed."""

    costs: StepCosts
    budget: Budget
    source: Callable[[], Iterable[Action]]
    online: OnlineSchedule | None = None

    @classmethod
    def of(cls, plan: object, until: Callable[[int], object] | None) -> _Played:
        """Return what a plan, or a schedule, says. Raises InputError."""
        if isinstance(plan, OnlineSchedule):
            if until is None:
                raise InputError("is missing", field="until", accepted="until(t): whether the sequence ends")
            actions_of = partial(plan.actions, until)
            return cls(costs=plan.costs, budget=plan.budget, source=actions_of, online=plan)
        if until is not None:
            raise InputError(
                "is given with a plan that knows its steps", field="until", accepted="plan=ckptplan.online(...)"
            )
        if isinstance(plan, Schedule):
            return cls(costs=plan.unit_costs(), budget=Budget(), source=lambda: plan)
        if isinstance(plan, Plan):
            # A plan by the printed equations keeps its budget by these equations, not in the simulation.
            limits = plan.goal.budget if plan.goal.model == "exact" else Budget()
            costs = Case(workload=plan.workload, profile=plan.profile).costs
            return cls(costs=costs, budget=limits, source=partial(actions, plan))
        raise InputError(
            f"{quote_value(plan)} is not a plan",
            field="plan",
            accepted="a plan, a ckptplan.Schedule, or ckptplan.online(...)",
        )

    def transfers(self) -> bool:
        """Return whether kept states may move between the tiers."""
        if self.online is not None:
            return self.online.remote_slots > 0
        return any(isinstance(action, Transfer) for action in self.source())


class _Kept:
    """The states that are kept for a caller who gives the functions of ``state`` alone."""

    def __init__(self, get: Callable[[], object], put: Callable[[Any], object]) -> None:
        self._get, self._put = get, put
        self.states: dict[tuple[int, Tier], object] = {}

    @classmethod
    def of(cls, state: object, moves: Mapping[str, object]) -> _Kept | None:
        """Return what keeps states, None if the caller does. Raises InputError."""
        if state is None:
            return None
        given = [name for name, function in moves.items() if function is not None]
        if given:
            raise InputError(
                f"is given together with {', '.join(given)}", field="state", accepted="one of the two"
            )
        return cls(*check_state(state))

    def save(self, number: int, tier: Tier) -> None:
        # Steps may change the state in place.
        self.states[number, tier] = deepcopy(self._get())

    def load(self, number: int, tier: Tier) -> None:
        self._put(deepcopy(self.states[number, tier]))

    def free(self, number: int, tier: Tier) -> None:
        del self.states[number, tier]

    def transfer(self, numbers: tuple[int, ...], source: Tier, target: Tier) -> None:
        for number in numbers:
            self.states[number, target] = self.states.pop((number, source))
