"""Sequences of unknown length: legal schedules within the limit, executed by callbacks."""

from __future__ import annotations

import re
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

import ckptplan
from ckptplan import InputError, OnlineSchedule, online
from ckptplan.schedule.actions import Action, Advance, Transfer
from ckptplan.schedule.simulator import Trace, play
from tests.examples.support import EXAMPLES, python

schedules = st.one_of(
    st.builds(online, st.integers(1, 30), remote_slots=st.integers(0, 10)),
    st.builds(
        lambda state, tape, more, remote: online(
            memory=state + tape + more,
            state_bytes=state,
            tape_bytes=tape,
            remote_slots=remote,
            read_seconds=0.5,
        ),
        st.integers(1, 50),
        st.integers(1, 300),
        st.integers(0, 1000),
        st.integers(0, 5),
    ),
)


def run(schedule: OnlineSchedule, steps: int) -> tuple[list[Action], Trace]:
    """Return the actions of a sequence that ends after so many steps, and what they cost."""
    found = list(schedule.actions(lambda done: done == steps))
    return found, play(found, costs=schedule.costs.replace(steps=steps), budget=schedule.budget)


@given(schedule=schedules, steps=st.integers(1, 300))
def test_every_schedule_is_legal_and_keeps_its_limit(schedule: OnlineSchedule, steps: int) -> None:
    """By the simulator, which knows no schedule; T may be known to it or not."""
    found, trace = run(schedule, steps)
    assert trace.local_peak_bytes <= schedule.memory
    assert trace.remote_peak_bytes <= schedule.remote_slots * schedule.costs.state_bytes
    assert play(found, costs=schedule.costs, budget=schedule.budget, open_end=True) == trace


@given(schedule=schedules, steps=st.integers(1, 300))
def test_the_sweep_runs_each_step_once_and_asks_after_each(schedule: OnlineSchedule, steps: int) -> None:
    asked: list[int] = []

    def has_ended(done: int) -> bool:
        asked.append(done)
        return done == steps

    found = list(schedule.actions(has_ended))
    assert asked == list(range(1, steps + 1))
    sweep = [action for action in found if isinstance(action, Advance)][:steps]
    assert sweep == [Advance(step, step + 1) for step in range(steps)]


def test_the_oldest_states_move_to_remote_memory() -> None:
    found, trace = run(online(3, remote_slots=4), 200)
    moved = [action.states[0] for action in found if isinstance(action, Transfer)]
    assert moved[:4] == [0, 1, 2, 3]
    assert trace.remote_peak_bytes == 4
    assert trace.recomputed_steps < run(online(3), 200)[1].recomputed_steps


def test_free_room_holds_tapes() -> None:
    """As many slots as steps: each runs twice, though a gap of one step needs no more."""
    assert run(online(10), 247)[1].recomputed_steps == 470
    assert run(online(memory=100, state_bytes=1, tape_bytes=5), 20)[1].recomputed_steps == 20


class Pendulum:
    """A swing that ends when it has turned often enough; its adjoint by hand."""

    def __init__(self, angle: float) -> None:
        self.state = np.array([angle, 0.0])
        self.gradient = np.zeros(2)
        self.tapes: dict[int, Any] = {}
        self.turned = False

    def advance(self, start: int, stop: int) -> None:
        for _ in range(start, stop):
            angle, speed = self.state
            self.state += 0.05 * np.array([speed, -np.sin(angle)])

    def record(self, start: int, stop: int) -> None:
        for step in range(start, stop):
            self.tapes[step] = self.state.copy()
            self.advance(step, step + 1)

    def backward(self, start: int, stop: int) -> None:
        if not self.turned:
            self.gradient, self.turned = self.state.copy(), True
        for step in reversed(range(start, stop)):
            angle, _ = self.tapes.pop(step)
            first, second = self.gradient
            self.gradient = np.array([first - 0.05 * np.cos(angle) * second, second + 0.05 * first])

    def get(self) -> Any:
        return self.state

    def set(self, kept: Any) -> None:
        self.state = kept


def calls_of(loop: Pendulum) -> dict[str, Any]:
    return {
        "advance": loop.advance,
        "record": loop.record,
        "backward": loop.backward,
        "state": (loop.get, loop.set),
    }


@pytest.mark.parametrize("angle", np.linspace(0.5, 3.0, 30))
@pytest.mark.parametrize("schedule", [online(6), online(2, remote_slots=3)])
def test_gradients_are_those_of_the_plain_loop_wherever_it_ends(angle: float, schedule: OnlineSchedule) -> None:
    """The steps change the state in place; ``state`` keeps copies."""
    loop, plain = Pendulum(angle), Pendulum(angle)
    trace = ckptplan.execute(schedule, **calls_of(loop), until=lambda done: has_swung_back(loop, done))
    steps = count_steps(angle)
    plain.record(0, steps)
    plain.backward(0, steps)
    assert np.array_equal(loop.gradient, plain.gradient)
    assert trace.local_peak_bytes <= schedule.memory


def has_swung_back(loop: Pendulum, steps: int) -> bool:
    """Return whether it moves upwards, or has gone over the top for long."""
    return bool(loop.state[1] > 0.2) or steps == 400


def count_steps(angle: float) -> int:
    """Return after how many steps the pendulum swings back."""
    loop, steps = Pendulum(angle), 0
    while steps == 0 or not has_swung_back(loop, steps):
        loop.advance(steps, steps + 1)
        steps += 1
    return steps


@pytest.mark.parametrize("when", ["advance", "backward"])
def test_a_run_that_an_exception_ends_leaves_nothing(when: str) -> None:
    loop = Pendulum(1.0)
    kept: list[Any] = []
    calls = calls_of(loop)

    def fail(start: int, stop: int) -> None:
        if start <= 30 < stop:
            raise FloatingPointError("diverged")

    def get() -> Any:
        kept.append(Watched())
        return kept[-1]

    calls |= {"record": lambda *_: None, "state": (get, lambda _: None)}
    calls["advance"] = fail if when == "advance" else (lambda *_: None)
    calls["backward"] = fail if when == "backward" else (lambda *_: None)
    with pytest.raises(FloatingPointError, match="diverged"):
        ckptplan.execute(online(5), **calls, until=lambda done: done == 60)
    kept.clear()
    assert Watched.alive == 0


class Watched:
    """Counts how many of it are there."""

    alive = 0

    def __init__(self) -> None:
        Watched.alive += 1

    def __deepcopy__(self, _: object) -> Watched:
        return Watched()

    def __del__(self) -> None:
        Watched.alive -= 1


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({}, "slots: is missing (accepted: slots or memory)"),
        ({"slots": 3, "memory": 40}, "slots: is given together with memory"),
        ({"slots": 0}, "slots: 0 is not accepted (accepted: a whole number from 1)"),
        ({"slots": 3, "remote_slots": -1}, "remote_slots: -1 is not accepted"),
        ({"memory": "a lot"}, "memory: 'a lot' is not a number with a unit"),
        ({"memory": 10, "state_bytes": 6}, "memory: 10 B are too little for a state and the tape of a step"),
        ({"slots": 3, "state_bytes": 0}, "state_bytes"),
        ({"slots": 3, "recompute_seconds": -1}, "recompute_seconds"),
    ],
)
def test_schedules_that_are_refused(arguments: dict[str, Any], message: str) -> None:
    with pytest.raises(InputError, match=re.escape(message)):
        online(**arguments)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"until": None}, "until: is missing (accepted: until(t): whether the sequence ends)"),
        ({"until": 7}, "until: 7 cannot be called"),
        ({"plan": ckptplan.Schedule(steps=1, actions=[])}, "until: is given with a plan that knows its steps"),
        ({"save": print}, "state: is given together with save"),
        ({"state": print}, "state: "),
        ({"state": None}, "save: None cannot be called"),
    ],
)
def test_calls_that_are_refused(change: dict[str, Any], message: str) -> None:
    calls: dict[str, Any] = {"plan": online(3), "until": lambda _: True, **calls_of(Pendulum(1.0))}
    with pytest.raises(InputError, match=re.escape(message)):
        ckptplan.execute(**{**calls, **change})


def test_remote_memory_needs_a_transfer() -> None:
    calls = {name: (lambda *_: None) for name in ("advance", "record", "backward", "save", "load", "free")}
    with pytest.raises(InputError, match="transfer: is missing"):
        ckptplan.execute(online(3, remote_slots=2), **calls, until=lambda _: True)  # type: ignore[arg-type]


def test_the_plate_that_cools_has_the_same_gradient() -> None:
    done = python("-W", "error", EXAMPLES / "event.py")
    assert done.returncode == 0, done.stderr
    assert "same gradient: True" in done.stdout
