"""Law: what steps write for a report is written once, also if steps themselves make what holds it."""

from __future__ import annotations

from collections import defaultdict
from typing import Any

import pytest
import torch

from ckptplan.torch import bptt
from tests.torch.support import gru, job, plan_of

STEPS = 24


@pytest.mark.parametrize("strategy", ["standard", "double", "revolve", "optimal"])
def test_lists_and_counts_that_steps_make_are_written_once(strategy: str) -> None:
    inner, _ = gru()
    inputs, state = job(STEPS)
    log: defaultdict[int, list[float]] = defaultdict(list)
    kept: dict[str, Any] = {}

    def cell(state: torch.Tensor, x: torch.Tensor) -> Any:
        state = inner(state, x)[0]
        kept.setdefault("count", torch.zeros(())).add_(1)
        return state, state

    def loss(step: int, output: torch.Tensor) -> torch.Tensor:
        log[step].append(float(output.detach().sum()))
        return output.square().sum()

    bptt(cell, inputs, state, loss, plan=plan_of(STEPS, strategy, states=16)).loss.backward()
    assert [len(log[step]) for step in range(STEPS)] == [1] * STEPS
    assert int(kept["count"]) == STEPS


def test_what_steps_leave_refuses_a_gradient_also_by_autograd_grad() -> None:
    inner, parameters = gru()
    inputs, state = job(STEPS)
    activity: list[torch.Tensor] = []

    def cell(state: torch.Tensor, x: torch.Tensor) -> Any:
        state = inner(state, x)[0]
        activity.append(state.abs().mean())
        return state, state

    found = bptt(
        cell, inputs, state, lambda _, one: one.square().sum(), plan=plan_of(STEPS, "base", states=100)
    )
    with pytest.raises(ValueError, match="activity was left by the steps of a planned sequence"):
        torch.autograd.grad(found.loss + torch.stack(activity).sum(), parameters)
