"""A schedule to execute: what is accepted in its fields, and that its actions can be read again."""

from __future__ import annotations

from typing import Any

import pytest

from ckptplan import InputError, Schedule
from ckptplan.schedule.actions import Action, Backward, Record
from ckptplan.units import MAX_STEPS

ACTIONS: list[Action] = [Record(0, 4), Backward(0, 4)]


def test_actions_are_read_from_the_first_one_each_time() -> None:
    for actions in (ACTIONS, tuple(ACTIONS), lambda: iter(ACTIONS)):
        schedule = Schedule(steps=4, actions=actions)
        assert list(schedule) == list(schedule) == ACTIONS
        schedule.check()


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"steps": 0}, "steps: 0 is not accepted"),
        ({"steps": True}, "steps: True is not accepted"),
        ({"steps": 4.0}, "steps: 4.0 is not accepted"),
        ({"steps": MAX_STEPS + 1}, "steps: .* is not accepted"),
        ({"chunk_size": 0}, "chunk_size: 0 is not accepted"),
        ({"local_states": -1}, "local_states: -1 is not accepted"),
        ({"overlaps": 1}, "overlaps: 1 is not accepted .*True or False"),
        ({"actions": iter(ACTIONS)}, "actions: is an iterator, which can be run only once"),
        ({"actions": 3}, "actions: 3 is not a collection of actions"),
        ({"actions": "schedule.jsonl"}, "actions: 'schedule.jsonl' is not a collection of actions"),
    ],
)
def test_what_a_schedule_does_not_accept_is_named(change: dict[str, Any], message: str) -> None:
    given: dict[str, Any] = {"steps": 4, "actions": ACTIONS, **change}
    with pytest.raises(InputError, match=message):
        Schedule(**given)
