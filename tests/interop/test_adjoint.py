"""Plans in the vocabulary of checkpoint_schedules, executed after that package's documentation.

The executor below is written from the docstrings of ``checkpoint_schedules`` 1.0.4 (schedule.py: storage
types, Forward, Reverse, Copy, Move, EndForward, EndReverse). It computes a real adjoint with real data, and
asserts each rule that they state.
"""

from __future__ import annotations

import builtins
import math
import sys
from collections.abc import Iterable
from typing import Any

import pytest
from checkpoint_schedules import (
    CheckpointSchedule,
    Copy,
    EndForward,
    EndReverse,
    Forward,
    Move,
    Reverse,
    SingleMemoryStorageSchedule,
    StorageType,
)
from hypothesis import given
from hypothesis import strategies as st

import ckptplan
from ckptplan import InputError, MissingExtra
from ckptplan.interop import to_checkpoint_schedule
from ckptplan.interop.adjoint import translate_schedule
from ckptplan.schedule.actions import Action, Advance, Backward, Free, Load, Record, Save, Tier
from ckptplan.schedule.simulator import play
from tests.schedule.fuzz import random_schedule
from tests.support import CLOSED, plain_costs, setting_of, small_plan

RAM, DISK, WORK, NONE = StorageType.RAM, StorageType.DISK, StorageType.WORK, StorageType.NONE
LOCAL, REMOTE = Tier.LOCAL, Tier.REMOTE


def step(time: int, state: float) -> float:
    return math.sin(state + 0.1 * time)


def slope(time: int, state: float) -> float:
    return math.cos(state + 0.1 * time)


class Executor:
    """Data of a step: restart data (state, steps they reach over) and adjoint data (step -> state)."""

    def __init__(self, steps: int, *, bounded: bool = True) -> None:
        self.steps = steps
        #: Whether restart data lead as far as the run that stored them, and no further.
        self.bounded = bounded
        self.reversed = 0
        self.gradient = 1.0
        self.started = self.ended = self.finished = False
        #: The forward: where it is and with which state; None if it cannot run on.
        self.forward: tuple[int, float] | None = (0, 0.5)
        self.reach: range | None = None
        self.work: dict[int, float] = {}
        self.stored: dict[StorageType, dict[int, tuple[Any, dict[int, float]]]] = {RAM: {}, DISK: {}}
        self.most = {RAM: 0, DISK: 0}

    def take(self, action: object) -> None:
        assert not self.finished
        getattr(self, f"on_{type(action).__name__.lower()}")(action)
        for storage, held in self.stored.items():
            self.most[storage] = max(self.most[storage], len(held))

    def on_forward(self, action: Forward) -> None:
        assert self.forward is not None
        start, state = self.forward
        assert action.n0 == start < action.n1 <= self.steps - self.reversed
        if self.reach is not None:
            assert action.n0 in self.reach or not self.bounded
            assert action.n1 <= self.reach.stop or not self.bounded
        restart = (state, range(action.n0, action.n1)) if action.write_ics else None
        tapes = {}
        for time in action:
            tapes[time] = state
            state = step(time, state)
        tapes = tapes if action.write_adj_deps else {}
        self.work = tapes if action.storage is WORK else {}
        if action.storage in (RAM, DISK):
            assert restart or tapes
            assert action.n0 not in self.stored[action.storage]
            self.stored[action.storage][action.n0] = (restart, tapes)
        else:
            assert restart is None
        self.forward = (action.n1, state)

    def on_reverse(self, action: Reverse) -> None:
        assert self.ended
        assert action.n1 == self.steps - self.reversed
        assert action.n0 < action.n1
        for time in action:
            self.gradient *= slope(time, self.work[time])
        self.reversed += len(action)
        if action.clear_adj_deps:
            self.work = {}

    def on_copy(self, action: Copy) -> None:
        self.bring(action, self.stored[action.from_storage][action.n])

    def on_move(self, action: Move) -> None:
        found = self.stored[action.from_storage].pop(action.n)
        if action.to_storage is not NONE:
            self.bring(action, found)

    def bring(self, action: Copy | Move, found: tuple[Any, dict[int, float]]) -> None:
        assert action.from_storage is not action.to_storage
        assert action.n < self.steps - self.reversed
        if action.to_storage is not WORK:
            assert action.n not in self.stored[action.to_storage]
            self.stored[action.to_storage][action.n] = found
            return
        restart, self.work = found[0], dict(found[1])
        self.forward, self.reach = None, None
        if restart is not None:
            state, self.reach = restart
            self.forward = (action.n, state)

    def on_endforward(self, action: EndForward) -> None:  # noqa: ARG002 - as its siblings
        assert not self.ended
        assert self.forward is not None
        assert self.forward[0] == self.steps
        self.ended = True

    def on_endreverse(self, action: EndReverse) -> None:  # noqa: ARG002 - as its siblings
        assert self.reversed == self.steps
        assert not self.work
        assert self.stored == {RAM: {}, DISK: {}}
        self.finished = True


def plain_gradient(steps: int) -> float:
    state, gradient = 0.5, 1.0
    states = []
    for time in range(steps):
        states.append(state)
        state = step(time, state)
    for time in reversed(range(steps)):
        gradient *= slope(time, states[time])
    return gradient


def executed(actions: Iterable[object], steps: int) -> Executor:
    executor = Executor(steps)
    for action in actions:
        executor.take(action)
    assert executor.finished
    assert executor.gradient == plain_gradient(steps)
    return executor


@pytest.mark.parametrize("name", sorted(CLOSED))
@given(steps=st.integers(1, 60), first=st.integers(1, 70), second=st.integers(1, 70))
def test_every_strategy_is_executed_by_that_packages_rules(
    name: str, steps: int, first: int, second: int
) -> None:
    """The gradient is that of plain backpropagation; storage holds no more than our schedule does."""
    strategy = CLOSED[name]
    costs = plain_costs(steps, tape_bytes=1, state_bytes=1000)
    parameters = setting_of(strategy, (first, second), costs)
    trace = play(strategy.actions(parameters, steps=steps), costs=costs)
    actions = list(translate_schedule(strategy.actions(parameters, steps=steps), steps=steps))
    # Executors that record while they run forwards take nothing else meanwhile.
    sweep = actions[: next(place for place, action in enumerate(actions) if isinstance(action, EndForward))]
    assert {type(action) for action in sweep} == {Forward}
    executor = executed(actions, steps)
    assert executor.most[RAM] == trace.local_peak_bytes // 1000
    assert executor.most[DISK] == trace.remote_peak_bytes // 1000


SCATTERED: list[Action] = [
    # A tape kept while what is behind it is reversed; a state in both tiers, and beside its own tape.
    *(Save(0, LOCAL), Advance(0, 1), Advance(1, 2), Record(2, 4), Save(4, REMOTE), Save(4, LOCAL)),
    *(Record(4, 5), Record(5, 6), Backward(5, 6), Load(4, LOCAL), Backward(4, 5), Free(4, LOCAL)),
    *(Free(4, REMOTE), Backward(3, 4), Backward(2, 3), Load(0, LOCAL), Free(0, LOCAL)),
    *(Record(0, 2), Backward(1, 2), Backward(0, 1)),
]


def test_scattered_tapes_and_states_in_two_tiers_are_executed_too() -> None:
    play(SCATTERED, costs=plain_costs(6))
    executed(translate_schedule(SCATTERED, steps=6), 6)


@given(seed=st.integers(0, 2**32), steps=st.integers(1, 6))
def test_any_legal_schedule_is_executed_or_refused(seed: int, steps: int) -> None:
    """Never translated into something that breaks the other package's rules, or gives another gradient."""
    schedule = random_schedule(seed, steps)
    play(schedule, costs=plain_costs(steps))
    try:
        actions = list(translate_schedule(schedule, steps=steps))
    except InputError:
        return
    executed(actions, steps)


def test_a_run_that_drops_caches_is_refused() -> None:
    schedule: list[Action] = [Save(0, LOCAL), Advance(0, 1, cached=0), Record(1, 2), Backward(1, 2)]
    with pytest.raises(InputError, match="the caches of some steps are not kept"):
        list(translate_schedule(schedule, steps=2))


def test_a_save_that_is_taken_back_is_not_translated() -> None:
    schedule: list[Action] = [Save(0, LOCAL), Free(0, LOCAL), Record(0, 2), Backward(0, 2)]
    kinds = [type(action) for action in translate_schedule(schedule, steps=2)]
    assert kinds == [Forward, EndForward, Reverse, EndReverse]


def test_a_save_without_a_run_has_no_counterpart() -> None:
    schedule: list[Action] = [Save(0, LOCAL), Load(0, LOCAL), Free(0, LOCAL), Record(0, 2), Backward(0, 2)]
    play(schedule, costs=plain_costs(2))
    with pytest.raises(InputError, match="state 0 is saved and not run from"):
        list(translate_schedule(schedule, steps=2))


def test_a_tape_stored_apart_from_the_state_before_it_has_no_counterpart() -> None:
    schedule: list[Action] = [
        *(Save(0, LOCAL), Advance(0, 1), Load(0, LOCAL), Record(0, 1), Record(1, 2), Backward(1, 2)),
        *(Backward(0, 1), Free(0, LOCAL)),
    ]
    play(schedule, costs=plain_costs(2))
    with pytest.raises(InputError, match="the tape of step 0 is stored apart"):
        list(translate_schedule(schedule, steps=2))


def test_the_executor_accepts_the_packages_own_schedules_and_no_wrong_ones() -> None:
    """It is not one that accepts anything."""
    own = SingleMemoryStorageSchedule()
    actions = []
    for action in own:
        if isinstance(action, Forward):  # as far as it goes
            own.finalize(7)
            actions.append(Forward(0, 7, *action.args[2:]))
        else:
            actions.append(action)
        if isinstance(action, EndReverse):
            break
    executed(actions, 7)
    for wrong in (
        [Forward(0, 7, False, False, NONE), EndForward(), Reverse(7, 0, True)],
        [Forward(0, 6, False, True, WORK), EndForward()],
        [Forward(0, 7, True, False, RAM), Forward(7, 8, False, False, NONE)],
        [Forward(0, 3, True, False, RAM), Forward(3, 7, False, True, WORK), Reverse(7, 3, True)],
        [Forward(0, 7, True, False, RAM), EndForward(), Copy(0, DISK, WORK)],
        [Forward(0, 7, False, True, WORK), EndForward(), Reverse(7, 0, False), EndReverse()],
    ):
        with pytest.raises((AssertionError, KeyError)):
            executed(wrong, 7)


@pytest.mark.parametrize(
    ("name", "local_bytes", "storage"),
    [("double", "230 kB", {RAM, DISK}), ("standard", "240 kB", {RAM}), ("remote", "230 kB", {DISK})],
)
def test_a_plan_is_a_schedule_of_that_package(name: str, local_bytes: str, storage: set[StorageType]) -> None:
    plan = small_plan(name, local_bytes=local_bytes)
    schedule = to_checkpoint_schedule(plan)
    assert isinstance(schedule, CheckpointSchedule)
    assert (schedule.n, schedule.r, schedule.max_n, schedule.is_exhausted) == (0, 0, 64, False)
    assert {kind for kind in StorageType if schedule.uses_storage_type(kind)} == {WORK, *storage}
    executor = Executor(64)
    for action in schedule:
        executor.take(action)
        assert schedule.r == executor.reversed
        if executor.forward is not None:
            assert schedule.n == executor.forward[0]
    assert executor.gradient == plain_gradient(64)
    assert schedule.is_exhausted
    assert list(schedule) == []


def test_a_schedule_of_actions_is_accepted_as_its_plan_is() -> None:
    plan = small_plan("double", local_bytes="230 kB")
    schedule = ckptplan.Schedule(steps=plan.steps, actions=tuple(ckptplan.actions(plan)))
    assert list(map(str, to_checkpoint_schedule(schedule))) == list(map(str, to_checkpoint_schedule(plan)))


@given(steps=st.integers(1, 120), slots=st.integers(1, 8), remote=st.integers(0, 5))
def test_a_sequence_of_unknown_length_ends_when_it_is_finalized(steps: int, slots: int, remote: int) -> None:
    schedule = to_checkpoint_schedule(ckptplan.online(slots=slots, remote_slots=remote))
    assert schedule.max_n is None
    executor = Executor(steps, bounded=False)
    for action in schedule:
        executor.take(action)
        if isinstance(action, Forward) and action.n1 == steps and schedule.max_n is None:
            schedule.finalize(steps)
    assert executor.finished
    assert executor.gradient == plain_gradient(steps)
    assert executor.most[DISK] <= remote
    assert schedule.is_exhausted
    assert schedule.uses_storage_type(DISK) == (remote > 0)


def test_what_is_no_schedule_is_refused() -> None:
    with pytest.raises(InputError, match="accepted: a plan, a Schedule"):
        to_checkpoint_schedule("plan.json")  # type: ignore[arg-type]


def test_without_the_package_the_extra_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delitem(sys.modules, "ckptplan.interop.adjoint")
    monkeypatch.setitem(sys.modules, "checkpoint_schedules", None)
    with pytest.raises(MissingExtra, match=r"pip install '\.\[interop\]'") as caught:
        to_checkpoint_schedule(small_plan())
    assert isinstance(caught.value, ImportError)
    assert caught.value.details() == {"extra": "interop", "package": "checkpoint_schedules"}


def test_a_fault_in_the_package_itself_is_not_hidden(monkeypatch: pytest.MonkeyPatch) -> None:
    real = builtins.__import__

    def broken(name: str, *rest: Any) -> Any:
        if name == "checkpoint_schedules":
            raise ModuleNotFoundError("No module named 'numpy'", name="numpy")
        return real(name, *rest)

    monkeypatch.delitem(sys.modules, "ckptplan.interop.adjoint")
    monkeypatch.setattr(builtins, "__import__", broken)
    with pytest.raises(ModuleNotFoundError, match="numpy"):
        to_checkpoint_schedule(small_plan())


def test_a_plan_that_has_no_schedule_is_refused() -> None:
    plan = small_plan().model_copy(update={"strategy": "other"})
    with pytest.raises(InputError, match="other"):
        ckptplan.interop.to_checkpoint_schedule(plan)
