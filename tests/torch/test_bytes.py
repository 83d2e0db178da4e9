"""Law: bytes counted in real tensors are the simulator's, exactly, after every action."""

from __future__ import annotations

from collections.abc import Callable
from itertools import pairwise
from typing import Any

import pytest
import torch

import ckptplan
from ckptplan import Infeasible
from ckptplan.schedule.actions import Action, Record, Save
from ckptplan.schedule.timeline import Event
from ckptplan.strategies.registry import all_strategies
from ckptplan.torch import bptt
from ckptplan.torch.adapters import TorchCell
from ckptplan.torch.lif import LIF
from ckptplan.torch.run.timeline import Timeline
from tests.torch.support import gradients, plan_of

STEPS, BATCH, NEURONS = 33, 3, 8


def zeros() -> torch.Tensor:
    return torch.zeros(BATCH, NEURONS)


#: Cells with their first states, made again for each test.
CELLS: dict[str, Callable[[], tuple[Any, Any]]] = {
    "gru": lambda: (TorchCell(torch.nn.GRUCell(5, NEURONS)), zeros()),
    "lstm": lambda: (TorchCell(torch.nn.LSTMCell(5, NEURONS)), (zeros(), zeros())),
    "tanh": lambda: (TorchCell(torch.nn.RNNCell(5, NEURONS)), zeros()),
    "lif": lambda: (LIF(5, NEURONS), zeros()),
}


def measured(cell: Any, state: Any, plan: ckptplan.Plan) -> list[Event]:
    """The timeline of a run: storages of checkpoints, and what the graphs keep, after each action."""
    timeline = Timeline(torch.device("cpu"))
    inputs = torch.randn(STEPS, BATCH, 5)
    result = bptt(cell, inputs, state, lambda _, output: output.sum(), plan=plan, observer=timeline)
    gradients(result.loss, list(cell.parameters()))
    return timeline.events


def held(events: list[Event]) -> list[tuple[Action, str, int, int, int]]:
    """What is the same in a simulated and in a measured timeline."""
    return [
        (one.action, one.track, one.local_bytes, one.remote_bytes, one.recomputed_steps)
        for one in events
        if not one.stall
    ]


def bytes_of_a_step(cell: Any, state: Any) -> tuple[int, int]:
    """M_s and M_a, each measured on one step."""
    events = measured(cell, state, plan_of(STEPS, "standard", states=30))
    state_bytes = next(one.local_bytes for one in events if isinstance(one.action, Save))
    stored = 0
    for one in events:
        if isinstance(one.action, Record):
            return state_bytes, (one.local_bytes - stored) // (one.action.stop - one.action.start)
        stored = one.local_bytes
    raise AssertionError("nothing was recorded")


def make_plan(strategy: str, state_bytes: int, tape_bytes: int) -> ckptplan.Plan:
    states = 2 * STEPS * tape_bytes // state_bytes if strategy == "base" else 32
    alpha = tape_bytes / state_bytes
    try:
        plan = plan_of(STEPS, strategy, states=states, alpha=alpha, state_bytes=state_bytes)
    except Infeasible:
        pytest.fail("the budget of this test is too small")
    assert plan.workload.tape_bytes == tape_bytes
    return plan


@pytest.mark.parametrize("strategy", all_strategies())
@pytest.mark.parametrize("name", ["gru", "lstm", "tanh"])
def test_checkpoints_and_tapes_are_those_of_the_simulator_action_by_action(name: str, strategy: str) -> None:
    cell, state = CELLS[name]()
    plan, events = make_plan(strategy, *bytes_of_a_step(cell, state)), list[Event]()
    ckptplan.simulate(plan, sink=events.append)
    assert held(measured(cell, state, plan)) == held(events)


@pytest.mark.parametrize("strategy", all_strategies())
def test_a_chunk_of_lif_holds_a_state_a_step_and_the_state_where_it_ends(strategy: str) -> None:
    """The tape of a step is one state (the paper's M_a = M_s)."""
    cell, state = CELLS["lif"]()
    plan, events = make_plan(strategy, 96, 96), list[Event]()
    ckptplan.simulate(plan, sink=events.append)
    for ours, theirs in zip(held(measured(cell, state, plan)), held(events), strict=True):
        assert ours[:2] == theirs[:2]
        # Each part of a chunk has a scalar, too.
        assert 0 <= ours[2] - theirs[2] <= 96 + 4 * STEPS
        assert ours[3:] == theirs[3:]


def test_a_measured_timeline_has_no_gaps() -> None:
    """Actions follow each other; what the caller does between forward and backward takes no time in it."""
    events = measured(*CELLS["gru"](), plan_of(STEPS, "double", states=30))
    assert events[0].start == 0
    assert all(one.end == other.start for one, other in pairwise(events))
    assert all(one.start < one.end for one in events)


def test_a_step_of_known_cells() -> None:
    """8 neurons, batch 3, fp32: 96 bytes; the tape of tanh is a state."""
    assert bytes_of_a_step(*CELLS["tanh"]()) == (96, 96)
    assert bytes_of_a_step(*CELLS["gru"]())[0] == 96
    assert bytes_of_a_step(*CELLS["lstm"]())[0] == 192
