"""Translates a plan into a schedule of the package ``checkpoint_schedules`` (version 1.0).

The vocabularies differ in four ways, which this translation bridges:

- its Forward stores restart data at its start, so a Save and the run after it become one action;
- tapes ("adjoint dependencies") are stored in WORK if they are reversed at once, else in RAM until they are
  needed in WORK;
- a Load and the Free after it become one Move; a Free alone becomes a Move to NONE;
- it moves one state at a time, so a Transfer of n states becomes n Moves.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from functools import cached_property
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

from ckptplan.errors import InputError
from ckptplan.model.plan import Plan
from ckptplan.planning.playback import actions
from ckptplan.schedule.actions import Action, Advance, Backward, Free, Load, Record, Save, Tier, Transfer

Translated: TypeAlias = Copy | EndForward | EndReverse | Forward | Move | Reverse

_STORAGE = {Tier.LOCAL: StorageType.RAM, Tier.REMOTE: StorageType.DISK}
WORK, NONE = StorageType.WORK, StorageType.NONE


class PlannedSchedule(CheckpointSchedule):  # type: ignore[misc] # the package is untyped
    """The schedule of a plan, for one adjoint calculation; ``max_n`` is the plan's T."""

    def __init__(self, plan: Plan) -> None:
        actions(plan)  # raises now for a plan without a schedule
        super().__init__(max_n=plan.steps)
        self._plan = plan
        self._exhausted = False

    def _iterator(self) -> Iterator[Translated]:
        for action in translate_schedule(actions(self._plan), steps=self._plan.steps):
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

    @cached_property
    def _storage_types(self) -> set[StorageType]:
        types = {WORK}
        for action in translate_schedule(actions(self._plan), steps=self._plan.steps):
            if isinstance(action, Forward) and (action.write_ics or action.write_adj_deps):
                types.add(action.storage)
            elif isinstance(action, (Copy, Move)):
                types.add(action.to_storage)
        return types - {NONE}

    def uses_storage_type(self, storage_type: StorageType) -> bool:
        """Return whether the schedule uses this storage; the first call reads the whole schedule."""
        return storage_type in self._storage_types


def translate_schedule(schedule: Iterable[Action], *, steps: int) -> Iterator[Translated]:
    """Translate a legal schedule, action by action.

    Raises InputError for what the other vocabulary cannot express: a run that keeps the caches of some of its
    steps only, a Save without a run after it, a run from a state that is longer than the run that stored it,
    and a tape that is stored separately from the state before it. No strategy does any of these.
    """
    translator = _Translator(steps)
    ahead = iter(schedule)
    action = next(ahead, None)
    while action is not None:
        if isinstance(action, Advance) and action.cached is not None:
            raise _refuse("the caches of some steps are not kept")
        following = next(ahead, None)
        merged = _merge(action, following)
        if merged is not None:
            action = merged
            continue
        yield from translator.translate(action, following)
        action = following
    yield EndReverse()


def _merge(action: Action, following: Action | None) -> Advance | None:
    """Return two consecutive runs as one, since restart data reach as far as the run that stores them."""
    if isinstance(action, Advance) and isinstance(following, Advance) and action.stop == following.start:
        return Advance(action.start, following.stop)
    return None


def _refuse(what: str) -> InputError:
    return InputError(f"{what}: checkpoint_schedules has no such action", field="schedule")


class _Translator:
    """Tracks where states and tapes are, in the terms of the other package."""

    def __init__(self, steps: int) -> None:
        self.steps = self.adjoint = steps
        self.ended = False
        #: The working state, and the tiers of pending Saves, in which the next run will store it.
        self.position = 0
        self.asked: list[Tier] = []
        #: How far restart data reach: by state, and for the working state.
        self.reaches: dict[int, int] = {}
        self.reach = steps
        #: The contents stored under (step, tier): 'state', 'tapes' or both.
        self.stored: dict[tuple[int, Tier], set[str]] = {}
        #: Recorded runs that are not in WORK, ascending: (start, stop, tier).
        self.recorded: list[tuple[int, int, Tier]] = []
        self.swallowed: Free | None = None

    def translate(self, action: Action, following: Action | None) -> Iterator[Translated]:
        if self.asked and not isinstance(action, (Save, Free, Transfer, Advance, Record)):
            raise _refuse(f"state {self.position} is saved and not run from")
        if isinstance(action, Save):
            self.asked.append(action.tier)
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
        at_once = following == Backward(start, stop) and not self.asked
        # Tapes are stored with the state; in local memory if there is a choice.
        tier, *others = sorted(self.asked) or [Tier.LOCAL]
        if stop > self.reach:
            raise _refuse(f"state {start} is run from farther than by the run that stored it")
        if (self.asked or (tapes and not at_once)) and (start, tier) in self.stored:
            raise _refuse(f"the tape of step {start} is stored apart from the state before it")
        if self.asked:
            self.reaches[start] = stop
        storage = _STORAGE[tier] if self.asked or (tapes and not at_once) else WORK
        yield Forward(start, stop, bool(self.asked), tapes, storage)
        if self.asked:
            self.stored.setdefault((start, tier), set()).add("state")
        if tapes and not at_once:
            self.stored.setdefault((start, tier), set()).add("tapes")
            self.recorded.append((start, stop, tier))
            self.recorded.sort()
        for other in others:
            yield Copy(start, _STORAGE[tier], _STORAGE[other])
            self.stored[start, other] = {"state"}
        self.asked = []
        self.position = stop
        if stop == self.steps and not self.ended:
            self.ended = True
            yield EndForward()

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
        self._needed(action.state)
        if following == Free(action.state, action.tier):
            self.swallowed = Free(action.state, action.tier)
        yield self._fetch(action.state, action.tier, last=self.swallowed is not None, part="state")
        self.position = action.state
        self.reach = self.reaches[action.state]

    def _needed(self, state: int) -> None:
        if state >= self.adjoint:
            raise _refuse(f"state {state} is moved when its step has been reversed")

    def _fetch(self, step: int, tier: Tier, *, last: bool, part: str) -> Translated:
        """Bring contents to WORK: a Move if nothing is left in storage, else a Copy."""
        held = self.stored[step, tier]
        if last:
            held.discard(part)
        if held:
            return Copy(step, _STORAGE[tier], WORK)
        del self.stored[step, tier]
        return Move(step, _STORAGE[tier], WORK)

    def _free(self, action: Free) -> Iterator[Translated]:
        if action == self.swallowed:
            self.swallowed = None
        elif action.state == self.position and action.tier in self.asked:
            self.asked.remove(action.tier)
        else:
            held = self.stored[action.state, action.tier]
            held.discard("state")
            if not held:
                del self.stored[action.state, action.tier]
                yield Move(action.state, _STORAGE[action.tier], NONE)

    def _transfer(self, action: Transfer) -> Iterator[Translated]:
        for state in action.states:
            if state == self.position and action.source in self.asked:
                self.asked = [action.target if tier is action.source else tier for tier in self.asked]
            elif "tapes" in self.stored[state, action.source] or (state, action.target) in self.stored:
                raise _refuse(f"the tape of step {state} is stored with the state, which moves")
            else:
                self._needed(state)
                self.stored[state, action.target] = self.stored.pop((state, action.source))
                yield Move(state, _STORAGE[action.source], _STORAGE[action.target])
