"""Sizes and times of steps are measured on the first ones; the working state is put back."""

import re
import subprocess
import sys
from time import sleep
from typing import Any

import numpy as np
import pytest

import ckptplan
from ckptplan import InputError


class Layer:
    """Steps whose tape is three arrays as large as the state."""

    def __init__(self) -> None:
        self.state: Any = np.zeros(1000)
        self.tapes: dict[int, Any] = {}
        self.calls: dict[str, Any] = {
            "advance": self.advance,
            "record": self.record,
            "backward": self.backward,
            "state": (self.get, self.set),
        }

    def advance(self, start: int, stop: int) -> None:
        for _ in range(start, stop):
            self.state = self.state + 1

    def record(self, start: int, stop: int) -> None:
        for step in range(start, stop):
            self.tapes[step] = np.ones((3, 1000))
            self.advance(step, step + 1)

    def backward(self, start: int, stop: int) -> None:
        for step in range(start, stop):
            del self.tapes[step]
        sleep(0.002)

    def get(self) -> Any:
        return self.state

    def set(self, kept: Any) -> None:
        self.state = kept


def test_sizes_and_times_are_those_of_the_steps() -> None:
    layer = Layer()
    found = ckptplan.measure(
        layer.advance, layer.record, layer.backward, state=(layer.get, layer.set), steps=500
    )
    assert (found.steps, found.state_bytes) == (500, 8000)
    assert 24_000 <= found.tape_bytes < 28_000
    assert found.backward_seconds > 0.0002 > found.forward_seconds
    assert found.basis["tape_bytes"].kind == "measured"
    assert not layer.state.any()
    assert layer.tapes == {}


def test_it_plans_for_what_was_measured() -> None:
    layer = Layer()
    workload = ckptplan.measure(
        layer.advance, layer.record, layer.backward, state=(layer.get, layer.set), steps=50
    )
    machine = ckptplan.HardwareProfile(name="any", local_bytes=10**6, remote_bytes=0)
    plan = ckptplan.optimize(workload, machine, local_bytes="300 kB")
    done = ckptplan.execute(plan, **layer.calls)
    assert done.local_peak_bytes <= 300_000


def test_a_tape_that_cannot_be_seen_is_asked_for() -> None:
    """In a process of its own: threads beside may allocate something meanwhile."""
    code = (
        "import numpy as np, ckptplan\n"
        "nothing = lambda *_: None\n"
        "ckptplan.measure(nothing, nothing, nothing, state=(lambda: np.zeros(4), nothing), steps=9)"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert "InputError: tape_bytes: cannot be seen" in done.stderr


def test_memory_that_others_free_or_take_meanwhile_is_no_tape() -> None:
    """As a thread beside does, which drops a buffer while the steps are recorded, or fills one."""
    layer = Layer()
    others: list[Any] = []

    def record(start: int, stop: int) -> None:
        others.append(np.zeros(10**6))
        layer.record(start, stop)
        if len(others) == 2:
            others.clear()

    found = ckptplan.measure(layer.advance, record, layer.backward, state=(layer.get, layer.set), steps=500)
    assert found.tape_bytes < 10**7


def test_sizes_that_cannot_be_seen_are_asked_for() -> None:
    layer = Layer()
    calls: dict[str, Any] = {"advance": layer.advance, "backward": lambda *_: None, "steps": 9}
    with pytest.raises(InputError, match=re.escape("state_bytes: cannot be counted: 'object' has no nbytes")):
        ckptplan.measure(record=layer.record, state=(object, layer.set), **calls)
    given = ckptplan.measure(
        record=layer.record, state=(object, lambda _: None), state_bytes=4, tape_bytes=5, **calls
    )
    assert (given.state_bytes, given.tape_bytes, given.basis["state_bytes"].kind) == (4, 5, "assumed")


@pytest.mark.parametrize(("given", "forward", "backward"), [({}, 13, 8), ({"tape_bytes": 5}, 10, 5)])
def test_the_steps_run_as_often_as_is_documented(given: dict[str, Any], forward: int, backward: int) -> None:
    runs: list[str] = []
    layer = Layer()

    def count(name: str) -> Any:
        def call(start: int, stop: int) -> None:
            runs.append(name)
            layer.calls[name](start, stop)

        return call

    calls = {name: count(name) for name in ("advance", "record", "backward")}
    ckptplan.measure(**calls, state=(layer.get, layer.set), steps=9, **given)
    assert (len(runs) - runs.count("backward"), runs.count("backward")) == (forward, backward)
    assert runs.count("advance") == 5


@pytest.mark.parametrize("state", [None, (1, 2), (dict,), "get"])
def test_a_state_that_is_no_two_functions_is_refused(state: Any) -> None:
    """As ``execute`` refuses it."""
    with pytest.raises(
        InputError, match=re.escape("is not accepted (accepted: two functions: (get, set))")
    ) as no:
        ckptplan.measure(**{**Layer().calls, "state": state}, steps=9)
    assert no.value.field == "state"
