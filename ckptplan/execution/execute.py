"""Executes a schedule by calling the caller's functions, for loops in any framework or without one.

Each action is checked against the laws of docs/schedule-format.md before its function is called.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Iterable, Iterator, Mapping
from copy import deepcopy
from dataclasses import replace
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
from ckptplan.schedule.actions import Action, Backward, Tier, Transfer
from ckptplan.schedule.schedule import Schedule
from ckptplan.schedule.simulator import Trace, play
from ckptplan.schedule.timeline import READ, Event, Sink, track_of

#: Called with the first step and the step after the last one.
Run: TypeAlias = Callable[[int, int], object]
#: Called with the number of a state and a tier, 'local' or 'remote'.
Move: TypeAlias = Callable[[int, Tier], object]
#: Two functions: the first returns the working state, the second makes a kept state the working state.
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
    transfer: Callable[..., object] | None = None,
    state: State | None = None,
    until: Callable[[int], object] | None = None,
    expect: Callable[[int], object] | None = None,
    sink: Sink | None = None,
) -> Trace:
    """Execute a plan by callbacks, and return its counts. The callbacks hold the state and the gradient.

    Arguments:
        plan: a plan, a ``ckptplan.Schedule``, or ``ckptplan.online(...)`` for a sequence of unknown length.
        advance: ``advance(start, stop)`` runs steps from the working state. If the schedule keeps caches of
            only part of the steps, it is called as ``advance(start, stop, cached=n)``: the last n steps keep
            their caches, and the steps before them do not.
        record: ``record(start, stop)`` runs steps and keeps their tapes, which ``backward`` needs.
        backward: ``backward(start, stop)`` reverses steps stop-1 down to start; the working state is lost.
        save: ``save(state, tier)`` keeps a copy of the working state, the state before step ``state``.
        load: ``load(state, tier)`` makes a kept state the working state; it stays kept.
        free: ``free(state, tier)`` drops a kept state.
        transfer: ``transfer(states, source, target)`` moves kept states in one message. It is needed for plans
            of ``hierarchical``, some plans of solved strategies, and ``online`` with remote memory. If caches
            move, it is called as ``transfer(states, source, target, caches=(start, stop))``: the caches of
            steps start to stop-1 move in the same message.
        state: in place of ``save``, ``load``, ``free`` and ``transfer``, two functions: ``get()`` returns the
            working state, ``set(kept)`` makes a kept state the working state. Copies of states are kept in
            host memory (``copy.deepcopy``) until they are freed or the run ends.
        until: for ``online``: ``until(t)`` says whether the sequence ends, when t of its steps have run.
        expect: ``expect(state)`` announces the remote state that is read next, after the first Backward begins
            and after each remote read, so that it may be fetched while steps are reversed.
        sink: receives an event after each action, with measured seconds since the beginning. The bytes of the
            event follow from the plan's sizes; for a ``Schedule`` they count states and tapes.

    The seconds in the result are predicted, not measured. Raises IllegalAction before the first action that
    breaks a law or the plan's budget, and InputError. An error of a callback ends the run.
    """
    calls: dict[str, Any] = {"save": save, "load": load, "free": free, "transfer": transfer}
    kept = None
    if state is not None:
        given = [name for name, function in calls.items() if function is not None]
        if given:
            raise InputError(
                f"is given together with {', '.join(given)}", field="state", accepted="one of the two"
            )
        kept = _KeptStates(*check_state(state))
        calls = {name: getattr(kept, name) for name in calls}
    calls = {"advance": advance, "record": record, "backward": backward, **calls}
    optional = {"transfer": calls["transfer"], "expect": expect, "until": until}
    missing = {name for name, function in optional.items() if function is None}
    check_functions(
        **{name: function for name, function in {**calls, **optional}.items() if name not in missing}
    )
    source, costs, budget = _read_plan(plan, until)
    if calls["transfer"] is None and _moves_states(plan, source):
        raise InputError(
            "is missing, and the schedule moves kept states between the tiers",
            field="transfer",
            accepted="transfer(states, source, target)",
        )
    if isinstance(plan, Plan | Schedule) and plan.drops_caches and not _accepts(advance, "cached"):
        raise InputError(
            "does not take cached=, and the schedule keeps the caches of some steps only",
            field="advance",
            accepted="advance(start, stop, cached=None)",
        )
    if isinstance(plan, Plan | Schedule) and plan.moves_caches and not _accepts(calls["transfer"], "caches"):
        problem = "does not take caches=" if state is None else "keeps no caches"
        raise InputError(
            f"{problem}, and the schedule moves the caches of steps to remote memory and back",
            field="transfer" if state is None else "state",
            accepted="transfer(states, source, target, caches=None), or a plan whose cache is not 'offloaded'",
        )
    run = _Run(calls, Lookahead(iter(source())), expect=expect, sink=sink)
    try:
        return play(
            run.perform(),
            costs=costs,
            budget=budget,
            sink=None if sink is None else run.note,
            open_end=isinstance(plan, OnlineSchedule),
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
    """Return the two functions of the working state. Raises InputError unless ``state`` has two functions."""
    if not (isinstance(state, tuple | list) and len(state) == 2 and all(map(callable, state))):
        raise InputError(
            f"{quote_value(state)} is not accepted", field="state", accepted="two functions: (get, set)"
        )
    get, put = state
    return get, put


def _read_plan(
    plan: object, until: Callable[[int], object] | None
) -> tuple[Callable[[], Iterable[Action]], StepCosts, Budget]:
    """Return a function that yields the actions of a plan, its costs and its limits. Raises InputError."""
    if isinstance(plan, OnlineSchedule):
        if until is None:
            raise InputError("is missing", field="until", accepted="until(t): whether the sequence ends")
        return partial(plan.actions, until), plan.costs, plan.budget
    if until is not None:
        raise InputError(
            "is given with a plan that knows its steps", field="until", accepted="plan=ckptplan.online(...)"
        )
    if isinstance(plan, Schedule):
        return plan.__iter__, plan.unit_costs(), Budget()
    if isinstance(plan, Plan):
        # A plan by the printed equations may exceed its budget in the simulation, so do not check it there.
        limits = plan.goal.budget if plan.goal.model == "exact" else Budget()
        return partial(actions, plan), Case(workload=plan.workload, profile=plan.profile).costs, limits
    raise InputError(
        f"{quote_value(plan)} is not a plan",
        field="plan",
        accepted="a plan, a ckptplan.Schedule, or ckptplan.online(...)",
    )


def _moves_states(plan: object, source: Callable[[], Iterable[Action]]) -> bool:
    """Return whether a plan may move kept states between the tiers."""
    if isinstance(plan, OnlineSchedule):
        return plan.remote_slots > 0
    return any(isinstance(action, Transfer) for action in source())


def _accepts(function: Callable[..., object], keyword: str) -> bool:
    """Return whether the signature of a function accepts a keyword argument."""
    parameters = inspect.signature(function).parameters.values()
    return any(param.name == keyword or param.kind is param.VAR_KEYWORD for param in parameters)


class _Run:
    """Calls the function of each action, after the simulator has accepted the action."""

    def __init__(
        self,
        calls: Mapping[str, Callable[..., object]],
        waiting: Lookahead,
        *,
        expect: Callable[[int], object] | None,
        sink: Sink | None,
    ) -> None:
        self._calls, self._waiting, self._expect, self._sink = calls, waiting, expect, sink
        self._simulated: Event | None = None
        self._in_backward = False

    def note(self, event: Event) -> None:
        """Store the simulated event of the current action, whose bytes the sink gets."""
        if not event.stall:
            self._simulated = event

    def perform(self) -> Iterator[Action]:
        """Yield each action to the simulator, and perform it when the simulator requests the next one."""
        began = perf_counter()
        for action in self._waiting:
            yield action
            if isinstance(action, Backward) and not self._in_backward:
                self._in_backward = True
                self._announce()
            start = perf_counter() - began
            # Each function has the name of an action, and takes its fields.
            fields = {name: getattr(action, name) for name in action.__slots__}
            caches = {name: fields.pop(name, None) for name in ("cached", "caches")}
            given = {name: value for name, value in caches.items() if value is not None}
            self._calls[type(action).__name__.lower()](*fields.values(), **given)
            if self._sink is not None and self._simulated is not None:
                end = perf_counter() - began
                self._sink(replace(self._simulated, start=start, end=end, held_at=end))
            if self._in_backward and track_of(action) == READ:
                self._announce()

    def _announce(self) -> None:
        if self._expect is not None and (message := self._waiting.next_message()) and message.states:
            self._expect(message.states[0])


class _KeptStates:
    """Keeps copies of states for a caller who gives only the two functions of ``state``."""

    def __init__(self, get: Callable[[], object], put: Callable[[Any], object]) -> None:
        self._get, self._put = get, put
        self.states: dict[tuple[int, Tier], object] = {}

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
