"""Law: what steps write for a report is written once, also if steps themselves make what holds it."""

from __future__ import annotations

from collections import defaultdict
from typing import Any

import pytest
import torch

from ckptplan.torch import bptt
from tests.torch.support import assert_close, gradients, gru, job, plain, plan_of

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


@pytest.mark.parametrize("strategy", ["base", "standard", "revolve"])
def test_a_loss_of_what_steps_recorded_has_the_gradients_of_a_plain_loop(strategy: str) -> None:
    inner, parameters = gru()
    inputs, state = job(STEPS)
    activity: list[torch.Tensor] = []

    def cell(state: torch.Tensor, x: torch.Tensor) -> Any:
        state = inner(state, x)[0]
        activity.append(state.abs().mean())
        return state, state

    plan = plan_of(STEPS, strategy, states=100 if strategy == "base" else 16)
    found = []
    for planned in (True, False):
        activity.clear()
        if planned:
            loss = bptt(cell, inputs, state, lambda _, one: one.square().sum(), plan=plan).loss
        else:
            loss = torch.stack(plain(cell, inputs, state, STEPS)[0]).square().sum()
        found.append(gradients(loss + torch.stack(activity).sum(), parameters))
    assert_close(*found, relative=1e-12)
