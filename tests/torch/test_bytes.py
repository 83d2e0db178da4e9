"""Law: bytes counted in real tensors are the simulator's, exactly, after every action."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch

import ckptplan
from ckptplan import Infeasible
from ckptplan.schedule.actions import Action, Tier
from ckptplan.schedule.simulator import Event
from ckptplan.strategies.registry import all_strategies
from ckptplan.torch import bptt
from ckptplan.torch.adapters import TorchCell
from ckptplan.torch.executor import Executor
from ckptplan.torch.lif import LIF
from tests.torch.support import gradients, plan_of

STEPS, BATCH, NEURONS = 33, 3, 8


def gru() -> tuple[Any, Any]:
    return TorchCell(torch.nn.GRUCell(5, NEURONS)), torch.zeros(BATCH, NEURONS)


def lstm() -> tuple[Any, Any]:
    return TorchCell(torch.nn.LSTMCell(5, NEURONS)), (torch.zeros(BATCH, NEURONS), torch.zeros(BATCH, NEURONS))


def tanh() -> tuple[Any, Any]:
    return TorchCell(torch.nn.RNNCell(5, NEURONS)), torch.zeros(BATCH, NEURONS)


def lif() -> tuple[Any, Any]:
    return LIF(5, NEURONS), torch.zeros(BATCH, NEURONS)


def counted(cell: Any, state: Any, plan: ckptplan.Plan) -> list[tuple[Action, int, int]]:
    """Local and remote bytes after each action: storages of checkpoints, and what the graphs keep."""
    seen: list[tuple[Action, int, int]] = []

    def observe(action: Action, executor: Executor) -> None:
        tapes = sum(tape.bytes for tape in executor.tapes)
        local, remote = (executor.stores[tier].bytes for tier in (Tier.LOCAL, Tier.REMOTE))
        seen.append((action, local + tapes, remote))

    inputs = torch.randn(STEPS, BATCH, 5)
    result = bptt(cell, inputs, state, lambda _, output: output.sum(), plan=plan, observer=observe)
    gradients(result.loss, list(cell.parameters()))
    return seen


def bytes_of_a_step(cell: Any, state: Any) -> tuple[int, int]:
    """M_s and M_a, each measured on one step."""
    seen = counted(cell, state, plan_of(STEPS, "standard", states=30))
    state_bytes = next(local for action, local, _ in seen if type(action).__name__ == "Save")
    stored = 0
    for action, local, _ in seen:
        if type(action).__name__ == "Record":
            return state_bytes, (local - stored) // (action.stop - action.start)  # type: ignore[union-attr]
        stored = local
    raise AssertionError("nothing was recorded")


@pytest.mark.parametrize("strategy", all_strategies())
@pytest.mark.parametrize("make", [gru, lstm, tanh, lif])
def test_checkpoints_and_tapes_are_those_of_the_simulator_action_by_action(
    make: Callable[[], tuple[Any, Any]], strategy: str
) -> None:
    cell, state = make()
    state_bytes, tape_bytes = bytes_of_a_step(cell, state)
    try:
        plan = plan_of(
            STEPS,
            strategy,
            states=2 * STEPS * tape_bytes // state_bytes if strategy == "base" else 30,
            alpha=tape_bytes / state_bytes,
            state_bytes=state_bytes,
        )
    except Infeasible:
        pytest.fail("the budget of this test is too small")
    assert plan.workload.tape_bytes == tape_bytes
    events: list[Event] = []
    ckptplan.simulate(plan, sink=events.append)
    assert counted(cell, state, plan) == [
        (event.action, event.local_bytes, event.remote_bytes) for event in events if not event.stall
    ]


def test_a_step_of_known_cells() -> None:
    """8 neurons, batch 3, fp32: 96 bytes; the tape of the LIF cell is one state (the paper's M_a = M_s)."""
    assert bytes_of_a_step(*lif()) == (96, 96)
    assert bytes_of_a_step(*tanh()) == (96, 96)
    assert bytes_of_a_step(*gru())[0] == 96
    assert bytes_of_a_step(*lstm())[0] == 192
