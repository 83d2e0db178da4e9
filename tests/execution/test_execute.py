"""``ckptplan.execute`` calls functions in the order of a schedule, and checks each action first."""

from __future__ import annotations

import re
from itertools import pairwise
from typing import Any

import pytest

import ckptplan
from ckptplan import IllegalAction, InputError, Schedule
from ckptplan.planning.playback import make_schedule
from ckptplan.schedule.actions import Action, Advance, Backward, Free, Load, Record, Save, Tier, Transfer
from ckptplan.schedule.timeline import Event
from ckptplan.strategies.registry import all_strategies
from tests.examples.support import EXAMPLES, python
from tests.torch.support import plan_of


class Loop:
    """Writes down what it is called with."""

    def __init__(self) -> None:
        self.done: list[Action] = []
        self.calls: dict[str, Any] = {
            "advance": lambda start, stop: self.done.append(Advance(start, stop)),
            "record": lambda start, stop: self.done.append(Record(start, stop)),
            "backward": lambda start, stop: self.done.append(Backward(start, stop)),
            "save": lambda state, tier: self.done.append(Save(state, tier)),
            "load": lambda state, tier: self.done.append(Load(state, tier)),
            "free": lambda state, tier: self.done.append(Free(state, tier)),
            "transfer": lambda states, source, target: self.done.append(Transfer(states, source, target)),
        }


@pytest.mark.parametrize("strategy", sorted(all_strategies()))
def test_functions_are_called_in_the_order_of_the_plan(strategy: str) -> None:
    """And what is counted is what the plan predicts."""
    plan, loop = plan_of(40, strategy, states=200 if strategy == "base" else 20), Loop()
    events: list[Event] = []
    trace = ckptplan.execute(plan, **loop.calls, sink=events.append)
    assert loop.done == list(ckptplan.actions(plan)) == [event.action for event in events]
    assert trace.recomputed_steps == plan.predicted.recomputed_steps == sum(e.recomputed_steps for e in events)
    assert trace.local_peak_bytes == plan.predicted.local_peak_bytes == max(e.local_bytes for e in events)
    assert all(one.end <= other.start for one, other in pairwise(events))


def test_events_are_those_of_the_simulator_but_for_time() -> None:
    plan = plan_of(40, "double")
    executed: list[Event] = []
    simulated: list[Event] = []
    ckptplan.execute(plan, **Loop().calls, sink=executed.append)
    ckptplan.simulate(plan, sink=simulated.append)

    def facts(event: Event) -> Any:
        return event.action, event.track, event.local_bytes, event.remote_bytes, event.recomputed_steps

    assert [facts(event) for event in executed] == [facts(event) for event in simulated]


def test_an_illegal_action_is_not_run() -> None:
    actions: list[Action] = [Save(0, Tier.LOCAL), Advance(0, 4), Record(5, 8)]
    loop = Loop()
    with pytest.raises(IllegalAction, match=r"record\(start=5, stop=8\)"):
        ckptplan.execute(Schedule(steps=8, actions=actions), **loop.calls)
    assert loop.done == actions[:2]


def test_the_budget_of_a_plan_is_a_law() -> None:
    """A plan whose budget was lowered by hand."""
    plan, loop = plan_of(40, "standard", states=20), Loop()
    peak = plan.predicted.local_peak_bytes
    less = plan.model_copy(update={"goal": plan.goal.model_copy(update={"local_bytes": peak - 1})})
    with pytest.raises(IllegalAction, match=f"{peak} bytes are needed of a local budget of {peak - 1}"):
        ckptplan.execute(less, **loop.calls)


def test_the_next_remote_read_is_announced() -> None:
    """When the first Backward begins, and after each read."""
    told: list[Any] = []
    loop = Loop()
    loop.calls["load"] = lambda state, tier: told.append(("load", state)) if tier == "remote" else None
    loop.calls["backward"] = lambda _, stop: told.append(("backward", stop))
    plan = make_schedule("remote", steps=9, chunk_size=3)
    ckptplan.execute(plan, **loop.calls, expect=lambda state: told.append(("expect", state)))
    assert told == [
        ("expect", 3),
        ("backward", 9),
        ("load", 3),
        ("expect", 0),
        ("backward", 6),
        ("load", 0),
        ("backward", 3),
    ]


def test_what_a_callback_raises_ends_the_run() -> None:
    loop = Loop()

    def full(*_: object) -> None:
        raise OSError("no space left")

    with pytest.raises(OSError, match="no space left"):
        ckptplan.execute(plan_of(40, "standard", states=20), **{**loop.calls, "save": full})
    assert loop.done == []


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"save": None}, "save: None cannot be called"),
        ({"expect": 3}, "expect: 3 cannot be called"),
        ({"plan": "double"}, "plan: 'double' is not a plan"),
        ({"transfer": None}, "transfer: is missing, and the schedule moves kept states between the tiers"),
    ],
)
def test_arguments_that_are_not_accepted(change: dict[str, Any], message: str) -> None:
    plan = make_schedule("hierarchical", steps=40, chunk_size=4, nb_local=2)
    loop = Loop()
    with pytest.raises(InputError, match=re.escape(message)):
        ckptplan.execute(**{"plan": plan, **loop.calls, **change})
    assert loop.done == []


def test_the_wave_equation_has_the_same_gradient_under_every_plan() -> None:
    done = python("-W", "error", EXAMPLES / "wave_adjoint.py")
    assert done.returncode == 0, done.stderr
    lines = done.stdout.splitlines()
    assert [line.split(":")[0] for line in lines[1:4]] == ["nested", "hierarchical", "double"]
    assert all(line.endswith("same gradient: True") for line in lines[1:4])
    one, other = (float(number) for number in re.findall(r"-?\d\.\d+e[+-]\d+", lines[4]))
    assert one == pytest.approx(other, rel=1e-5)


def test_the_loop_of_compiled_programs_has_the_same_gradient() -> None:
    done = python("-W", "error", EXAMPLES / "device_loop.py")
    assert done.returncode == 0, done.stderr
    assert done.stdout.count("same gradient: True") == 2
