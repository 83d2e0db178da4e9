"""Executes a schedule by calling functions of the caller: for loops in any framework, or in none.

Each action is checked against the laws of docs/schedule-format.md before its function is called.

What is said of an action when it is done: its track, and how many of its steps had run before.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from functools import partial
from time import perf_counter
from typing import TypeAlias

from ckptplan.cost.case import Case
from ckptplan.errors import InputError, quote_value
from ckptplan.execution.lookahead import Lookahead
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


def execute(
    plan: Plan | Schedule,
    *,
    advance: Run,
    record: Run,
    backward: Run,
    save: Move,
    load: Move,
    free: Move,
    transfer: Callable[[tuple[int, ...], Tier, Tier], object] | None = None,
    expect: Callable[[int], object] | None = None,
    sink: Sink | None = None,
) -> Trace:
    """Execute a plan by callbacks, and return what it counted: the caller holds the state and its gradient.

    Arguments:
        plan: a plan, or a ``ckptplan.Schedule``.
        advance: ``advance(start, stop)`` runs steps from the working state.
        record: ``record(start, stop)`` runs steps and keeps what their backward needs.
        backward: ``backward(start, stop)`` reverses steps stop-1 down to start; the working state is lost.
        save: ``save(state, tier)`` keeps a copy of the working state, which is that of step ``state``.
        load: ``load(state, tier)`` makes a kept state the working state; it stays kept.
        free: ``free(state, tier)`` drops a kept state.
        transfer: ``transfer(states, source, target)`` moves kept states in one message. Plans of
            ``hierarchical``, and some of solved strategies, have such actions.
        expect: ``expect(state)`` announces the remote state that is read next, after the first Backward begins
            and after each remote read, so that it may be fetched while steps are reversed.
        sink: receives an event when an action is done, with seconds since the beginning as measured here. Its
            bytes are those of the plan's sizes, or counts of states and tapes for a ``Schedule``.

    The result's seconds are those that the plan predicts. Raises IllegalAction before the first action that
    breaks a law or the plan's budget, and InputError. What a callback raises ends the run.
    """
    calls = _Calls(
        advance=advance, record=record, backward=backward, save=save, load=load, free=free, transfer=transfer
    )
    calls.check()
    if expect is not None and not callable(expect):
        raise InputError(f"{quote_value(expect)} cannot be called", field="expect", accepted="a function")
    costs, budget, source = _read(plan)
    if transfer is None and any(isinstance(action, Transfer) for action in source()):
        raise InputError(
            "is missing, and the schedule moves kept states between the tiers",
            field="transfer",
            accepted="transfer(states, source, target)",
        )
    run = _Run(calls, Lookahead(iter(source())), expect=expect, sink=sink)
    return play(run.perform(), costs=costs, budget=budget, sink=run.note)


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
        for name, function in vars(self).items():
            if not callable(function) and not (name == "transfer" and function is None):
                raise InputError(f"{quote_value(function)} cannot be called", field=name, accepted="a function")

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
        if self._expect is not None and (state := self._waiting.next_read()) is not None:
            self._expect(state)

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


def _read(plan: object) -> tuple[StepCosts, Budget, Callable[[], Iterable[Action]]]:
    """Return the costs, the limits and the actions of a plan or a schedule."""
    if isinstance(plan, Schedule):
        return plan.unit_costs(), Budget(), lambda: plan
    if isinstance(plan, Plan):
        # A plan by the printed equations keeps its budget by these equations, not in the simulation.
        limits = plan.goal.budget if plan.goal.model == "exact" else Budget()
        return Case(workload=plan.workload, profile=plan.profile).costs, limits, partial(actions, plan)
    raise InputError(
        f"{quote_value(plan)} is not a plan", field="plan", accepted="a plan, or a ckptplan.Schedule"
    )
