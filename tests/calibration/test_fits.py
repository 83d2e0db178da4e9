"""Times that follow the model exactly are found exactly; the fit says where they do not."""

from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ckptplan.calibration.fit import STEPS, Fit, read_events
from ckptplan.calibration.torch_bench import make_message_schedules, make_schedules
from ckptplan.model.step_costs import StepCosts
from ckptplan.schedule.actions import Action, Backward, Record
from ckptplan.schedule.simulator import play
from ckptplan.schedule.timeline import Event
from tests.support import plain_costs

times = st.floats(1e-6, 1e-2)
CHUNKS = (1, 4, 8, 16)


def events(actions: list[Action], costs: StepCosts) -> list[Event]:
    found: list[Event] = []
    play(actions, costs=costs, budget=None, sink=found.append)
    return found


def timed_round(**seconds: float) -> list[Event]:
    """A round of a calibration without noise: its schedules, played at known costs.

    The simulator charges a chunk's own time when it is recorded; five eighths of it pass when it is reversed.
    """
    played = []
    for schedule in make_schedules(CHUNKS):
        played += events(list(schedule), plain_costs(schedule.steps, **seconds))
    shift = 2.5 / 4 * seconds.get("chunk_seconds", 0.0)
    signs = {Backward: shift, Record: -shift}
    return [replace(event, end=event.end + signs.get(type(event.action), 0.0)) for event in played]


@given(seconds=st.lists(times, min_size=7, max_size=7))
def test_times_of_steps_and_actions_that_follow_the_model_are_found(seconds: list[float]) -> None:
    """Whatever they are: a schedule played at known costs is a measurement without noise."""
    names = ("forward", "recompute", "record_overhead", "backward", "advance", "save", "load")
    expected = {f"{name}_seconds": value for name, value in zip(names, seconds, strict=True)}
    expected["chunk_seconds"] = 4 * expected["advance_seconds"]
    found = Fit([read_events(timed_round(**expected))] * 3).times
    for field, value in expected.items():
        assert found[field].value == pytest.approx(value, rel=1e-4, abs=1e-9)
        assert found[field].low <= found[field].value <= found[field].high
    assert all(found[field].spread < 1e-5 for field in STEPS)


def test_rounds_that_differ_widen_what_they_disturb() -> None:
    """A slower backward in half of the rounds: its interval has both, and that of a forward step does not."""
    rounds = [
        read_events(timed_round(forward_seconds=1e-3, recompute_seconds=1e-3, backward_seconds=backward))
        for backward in (2e-3, 2e-3, 2e-3, 3e-3, 3e-3, 3e-3)
    ]
    fit = Fit(rounds)
    assert fit.times["forward_seconds"].spread == pytest.approx(0, abs=1e-6)
    backward = fit.times["backward_seconds"]
    assert backward.low == pytest.approx(2e-3)
    assert backward.high >= 2.5e-3
    assert fit.widest[0] == "backward_seconds"
    assert fit.widest[1] == pytest.approx(backward.spread)


def test_an_interval_has_what_every_size_of_a_chunk_takes() -> None:
    """Chunks of 8 steps that take half as long again, e.g. since their tape leaves a cache."""
    made = timed_round(forward_seconds=1e-3, recompute_seconds=1e-3, backward_seconds=2e-3)
    slow = [
        replace(one, end=one.start + 1.5 * (one.end - one.start))
        if isinstance(one.action, Backward) and one.action.stop - one.action.start == 8
        else one
        for one in made
    ]
    found = Fit([read_events(slow)]).times["backward_seconds"]
    assert found.low <= 2e-3 * (1 + 1e-9)
    assert found.high >= 3e-3 * (1 - 1e-9)


@given(message=times, write=times, read=times)
def test_transfer_times_that_follow_the_model_are_found(message: float, write: float, read: float) -> None:
    """Transfers of several numbers of states tell what each state takes, and saves what a message takes."""
    costs = plain_costs(8 * 16, message_seconds=message, write_seconds=write, read_seconds=read, tape_bytes=1)
    found = Fit([read_events(*(events(list(one), costs) for one in make_message_schedules(8)))]).times
    assert found["message_seconds"].value == pytest.approx(message, rel=1e-6, abs=1e-9)
    assert found["write_seconds"].value == pytest.approx(write, rel=1e-6, abs=1e-9)
    assert found["read_seconds"].value == pytest.approx(read, rel=1e-6, abs=1e-9)
