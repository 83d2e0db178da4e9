"""Translates a plan into a schedule of the package ``checkpoint_schedules`` (version 1.0).

The other package has different actions:

- its Forward stores restart data at its start, so a Save and the run after it become one action;
- tapes ("adjoint dependencies") are stored in WORK if they are reversed at once, or else in RAM until they are
  needed in WORK;
- a Load and the Free after it become one Move; a Free alone becomes a Move to NONE;
- it moves one state at a time, so a Transfer of n states becomes n Moves. In the first sweep, executors only
  run forwards. So the run after its Save stores a state in the tier to which the plan transfers it later.
"""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Iterable, Iterator
from functools import cached_property
from itertools import chain
from math import inf
from typing import TypeAlias

from checkpoint_schedules import (
    CheckpointSchedule,
    Copy,
    EndForward,
    EndReverse,
    Forward,
    Move,
    Reverse,
    StorageType,
)

from ckptplan.errors import InputError, refuse
from ckptplan.execution.online import OnlineSchedule
from ckptplan.model.plan import Plan
from ckptplan.planning.playback import schedule_of
from ckptplan.schedule.actions import Action, Advance, Backward, Free, Load, Record, Save, Tier, Transfer
from ckptplan.schedule.schedule import Schedule

Translated: TypeAlias = Copy | EndForward | EndReverse | Forward | Move | Reverse

_STORAGE = {Tier.LOCAL: StorageType.RAM, Tier.REMOTE: StorageType.DISK}
WORK, NONE = StorageType.WORK, StorageType.NONE


class AdjointSchedule(CheckpointSchedule):  # type: ignore[misc] # the package is untyped
    """A schedule of ckptplan for one adjoint calculation."""

    def __init__(self, max_n: int | None) -> None:
        super().__init__(max_n=max_n)
        self._exhausted = False

    @abstractmethod
    def _translate(self) -> Iterator[Translated]:
        """Yield the actions in the terms of the other package."""

    def _iterator(self) -> Iterator[Translated]:
        for action in self._translate():
            if isinstance(action, Forward):
                self._n = action.n1
            elif isinstance(action, (Copy, Move)) and action.to_storage is WORK:
                self._n = action.n
            elif isinstance(action, Reverse):
                self._r += len(action)
            elif isinstance(action, EndReverse):
                self._exhausted = True
            yield action

    @property
    def is_exhausted(self) -> bool:
        """Whether the adjoint calculation has ended."""
        return self._exhausted


class PlannedSchedule(AdjointSchedule):
    """A schedule of known length. ``max_n`` is its T."""

    def __init__(self, schedule: Schedule) -> None:
        super().__init__(max_n=schedule.steps)
        self._schedule = schedule

    def _translate(self) -> Iterator[Translated]:
        return translate_schedule(self._schedule, steps=self._schedule.steps)

    @cached_property
    def _storage_types(self) -> set[StorageType]:
        types = {WORK}
        for action in self._translate():
            if isinstance(action, Forward) and (action.write_ics or action.write_adj_deps):
                types.add(action.storage)
            elif isinstance(action, (Copy, Move)):
                types.add(action.to_storage)
        return types - {NONE}

    def uses_storage_type(self, storage_type: StorageType) -> bool:
        """Return whether the schedule uses this storage. The first call reads the whole schedule."""
        return storage_type in self._storage_types


class UnendedSchedule(AdjointSchedule):
    """A schedule whose sequence ends when ``finalize(n)`` is called after n steps.

    Until then ``max_n`` is None. States are dropped and moved while the sequence runs. Steps may run from a
    state farther than the run that stored it.
    """

    def __init__(self, schedule: OnlineSchedule) -> None:
        super().__init__(max_n=None)
        self._online = schedule

    def _translate(self) -> Iterator[Translated]:
        ahead = self._online.actions(self._has_ended)
        translator = _Translator(None)
        for action in ahead:
            if translator.ended:
                # The actions no longer depend on the caller, so the translator may look one action ahead.
                yield from translator.translate_all(chain([action], ahead))
                return
            yield from translator.translate(action, None)
            if isinstance(action, Advance) and self._has_ended(action.stop):
                yield translator.end(action.stop)

    def _has_ended(self, steps: int) -> bool:
        return self._max_n is not None and steps >= self._max_n

    def uses_storage_type(self, storage_type: StorageType) -> bool:
        """Return whether the schedule may use this storage."""
        types = {WORK, StorageType.RAM} | ({StorageType.DISK} if self._online.remote_slots else set())
        return storage_type in types


def make_schedule(given: Plan | Schedule | OnlineSchedule) -> AdjointSchedule:
    """Convert a plan or a schedule for the other package. Raises InputError."""
    if isinstance(given, OnlineSchedule):
        return UnendedSchedule(given)
    if isinstance(given, Plan):
        given = schedule_of(given)
        iter(given)  # raises now for a plan without a schedule
    if not isinstance(given, Schedule):
        raise refuse(
            given, "is no schedule", field="plan", accepted="a plan, a Schedule, or ckptplan.online(...)"
        )
    return PlannedSchedule(given)


def translate_schedule(schedule: Iterable[Action], *, steps: int) -> Iterator[Translated]:
    """Translate a legal schedule, action by action.

    Raises InputError for schedules that the other package cannot express: a run that keeps the caches of only
    part of its steps, a Save without a run after it, a run from a state that is longer than the run that stored
    it, and a tape that is stored separately from the state before it. No strategy makes such schedules.
    """
    return _Translator(steps).translate_all(_store_at_once(schedule, steps=steps))


def _store_at_once(schedule: Iterable[Action], *, steps: int) -> Iterator[Action]:
    """Yield the actions, but save states in remote memory at once if the first sweep only moves them there."""
    ahead, sweep = iter(schedule), list[Action]()
    for action in ahead:
        sweep.append(action)
        if isinstance(action, Advance | Record) and action.stop == steps:
            break
    # The actions of the sweep for each state. A state may be saved remotely if it is saved and then moved.
    events: dict[int, list[tuple[type, Tier]]] = {}
    for action in sweep:
        if isinstance(action, Save | Load | Free):
            events.setdefault(action.state, []).append((type(action), action.tier))
        elif isinstance(action, Transfer):
            for state in action.states:
                events.setdefault(state, []).append((Transfer, action.target))
    moved = {state for state, own in events.items() if own == [(Save, Tier.LOCAL), (Transfer, Tier.REMOTE)]}
    for action in sweep:
        if isinstance(action, Save) and action.state in moved and action.tier is Tier.LOCAL:
            yield Save(action.state, Tier.REMOTE)
        elif isinstance(action, Transfer):
            if states := tuple(state for state in action.states if state not in moved):
                yield Transfer(states, action.source, action.target)
        else:
            yield action
    yield from ahead


def _merge(action: Action, following: Action | None) -> Advance | None:
    """Return two consecutive runs as one, as no later run may go farther than the one that stored a state."""
    if not isinstance(action, Advance) or not isinstance(following, Advance) or following.cached is not None:
        return None
    return Advance(action.start, following.stop) if action.stop == following.start else None


def _refuse(problem: str) -> InputError:
    return InputError(f"{problem}: checkpoint_schedules has no such action", field="schedule")


class _Translator:
    """Translates actions one by one, and tracks where states and tapes are stored in the other package."""

    def __init__(self, steps: int | None) -> None:
        #: T, None while it is not known; and the first of the steps that are already reversed.
        self.steps = steps
        self.adjoint: float = inf if steps is None else steps
        self.ended = False
        #: The working state, and the tiers of pending Saves, in which the next run will store it.
        self.position = 0
        self.pending: list[Tier] = []
        #: How far (exclusive) later runs may go from each stored state, and from the working state.
        self.reaches: dict[int, float] = {}
        self.reach: float = self.adjoint
        #: The contents stored under (step, tier): 'state', 'tapes' or both.
        self.stored: dict[tuple[int, Tier], set[str]] = {}
        #: Recorded runs that are not in WORK, ascending: (start, stop, tier).
        self.recorded: list[tuple[int, int, Tier]] = []
        self.merged_free: Free | None = None

    def translate_all(self, schedule: Iterable[Action]) -> Iterator[Translated]:
        """Translate all remaining actions."""
        ahead = iter(schedule)
        action = next(ahead, None)
        while action is not None:
            if isinstance(action, Advance) and action.cached is not None:
                raise _refuse("the caches of some steps are not kept (plan with cache='all')")
            if isinstance(action, Transfer) and action.caches is not None:
                raise _refuse("caches move to remote memory (plan with cache='all')")
            following = next(ahead, None)
            merged = _merge(action, following)
            if merged is not None:
                action = merged
                continue
            yield from self.translate(action, following)
            action = following
        yield EndReverse()

    def end(self, steps: int) -> EndForward:
        """End the first sweep after ``steps`` steps."""
        self.ended, self.steps, self.adjoint = True, steps, steps
        return EndForward()

    def translate(self, action: Action, following: Action | None) -> Iterator[Translated]:
        if self.pending and not isinstance(action, (Save, Free, Transfer, Advance, Record)):
            raise _refuse(f"state {self.position} is saved and not run from")
        if isinstance(action, Save):
            self.pending.append(action.tier)
        elif isinstance(action, (Advance, Record)):
            yield from self._run(action, following)
        elif isinstance(action, Backward):
            yield from self._reverse(action)
        elif isinstance(action, Load):
            yield from self._load(action, following)
        elif isinstance(action, Free):
            yield from self._free(action)
        else:
            yield from self._transfer(action)

    def _run(self, run: Advance | Record, following: Action | None) -> Iterator[Translated]:
        start, stop = run.start, run.stop
        tapes = isinstance(run, Record)
        at_once = following == Backward(start, stop) and not self.pending
        # Tapes are stored together with the state, in local memory if the state is stored in both tiers.
        tier, *other_tiers = sorted(self.pending) or [Tier.LOCAL]
        if stop > self.reach:
            raise _refuse(f"state {start} is run from farther than by the run that stored it")
        if (self.pending or (tapes and not at_once)) and (start, tier) in self.stored:
            raise _refuse(f"the tape of step {start} is stored apart from the state before it")
        if self.pending:
            # If T is not known, later runs from this state may go farther than this one.
            self.reaches[start] = inf if self.steps is None else stop
        storage = _STORAGE[tier] if self.pending or (tapes and not at_once) else WORK
        yield Forward(start, stop, bool(self.pending), tapes, storage)
        if self.pending:
            self.stored.setdefault((start, tier), set()).add("state")
        if tapes and not at_once:
            self.stored.setdefault((start, tier), set()).add("tapes")
            self.recorded.append((start, stop, tier))
            self.recorded.sort()
        for other in other_tiers:
            yield Copy(start, _STORAGE[tier], _STORAGE[other])
            self.stored[start, other] = {"state"}
        self.pending = []
        self.position = stop
        if stop == self.steps and not self.ended:
            yield self.end(stop)

    def _reverse(self, action: Backward) -> Iterator[Translated]:
        stop = action.stop
        while self.recorded and self.recorded[-1][0] >= action.start:
            start, _, tier = self.recorded.pop()
            yield self._fetch(start, tier, last=True, part="tapes")
            yield Reverse(stop, start, True)
            stop = start
        if stop > action.start and self.recorded and self.recorded[-1][1] > action.start:
            start, _, tier = self.recorded.pop()
            yield self._fetch(start, tier, last=False, part="tapes")
            self.recorded.append((start, action.start, tier))
        if stop > action.start:
            yield Reverse(stop, action.start, True)
        self.adjoint = action.start

    def _load(self, action: Load, following: Action | None) -> Iterator[Translated]:
        self._check_not_reversed(action.state)
        if following == Free(action.state, action.tier):
            self.merged_free = Free(action.state, action.tier)
        yield self._fetch(action.state, action.tier, last=self.merged_free is not None, part="state")
        self.position = action.state
        self.reach = self.reaches[action.state]

    def _check_not_reversed(self, state: int) -> None:
        if state >= self.adjoint:
            raise _refuse(f"state {state} is moved when its step has been reversed")

    def _fetch(self, step: int, tier: Tier, *, last: bool, part: str) -> Translated:
        """Bring contents to WORK: by a Move if this empties the storage, or else by a Copy."""
        held = self.stored[step, tier]
        if last:
            held.discard(part)
        if held:
            return Copy(step, _STORAGE[tier], WORK)
        del self.stored[step, tier]
        return Move(step, _STORAGE[tier], WORK)

    def _free(self, action: Free) -> Iterator[Translated]:
        if action == self.merged_free:
            self.merged_free = None
        elif action.state == self.position and action.tier in self.pending:
            self.pending.remove(action.tier)
        else:
            held = self.stored[action.state, action.tier]
            held.discard("state")
            if not held:
                del self.stored[action.state, action.tier]
                yield Move(action.state, _STORAGE[action.tier], NONE)

    def _transfer(self, action: Transfer) -> Iterator[Translated]:
        for state in action.states:
            if state == self.position and action.source in self.pending:
                self.pending = [action.target if tier is action.source else tier for tier in self.pending]
            elif "tapes" in self.stored[state, action.source] or (state, action.target) in self.stored:
                raise _refuse(f"the tape of step {state} is stored with the state, which moves")
            else:
                self._check_not_reversed(state)
                self.stored[state, action.target] = self.stored.pop((state, action.source))
                yield Move(state, _STORAGE[action.source], _STORAGE[action.target])
