"""Schedules that no strategy of ours makes: what is new and what is known may lie in one action."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest
import torch

import ckptplan
from ckptplan.schedule.actions import Action, Advance, Backward, Free, Load, Record, Save, Tier
from ckptplan.torch import bptt, unroll
from ckptplan.torch.lif import LIF
from tests.torch.support import assert_close, gradients, gru, job, plain, plan_of

STEPS = 40


def over_the_frontier() -> Iterator[Action]:
    """Steps 0 to 15 run; then 5 to 40 are recorded at once, from a checkpoint at 5: known and new ones."""
    yield Save(0, Tier.LOCAL)
    yield Advance(0, 5)
    yield Save(5, Tier.LOCAL)
    yield Advance(5, 15)
    yield Load(5, Tier.LOCAL)
    yield Advance(5, 25)
    yield Load(5, Tier.LOCAL)
    yield Free(5, Tier.LOCAL)
    yield Record(5, STEPS)
    yield Backward(5, STEPS)
    yield Load(0, Tier.LOCAL)
    yield Free(0, Tier.LOCAL)
    yield Record(0, 5)
    yield Backward(0, 5)


@pytest.mark.parametrize("kind", ["gru", "lif"])
@pytest.mark.parametrize("chunked", [False, True])
def test_actions_may_reach_over_what_is_known(kind: str, chunked: bool) -> None:
    """Each step's loss counts once, and each output is stacked once."""
    plan = plan_of(STEPS, states=200)
    ckptplan.simulate(plan, schedule=over_the_frontier())
    inputs, state = job(STEPS)
    cell: Any
    if kind == "gru":
        cell, parameters = gru()
    else:
        torch.manual_seed(0)
        cell = LIF(5, 7, dtype=torch.float64, threshold=0.3)
        parameters = list(cell.parameters())
    wanted = [state, inputs, *parameters]
    outputs, _ = plain(cell, inputs, state, STEPS)
    expected = sum((step + 1) * one.square().sum() for step, one in enumerate(outputs))

    def chunk_loss(start: int, some: torch.Tensor) -> Any:
        weights = torch.arange(start + 1, start + 1 + len(some), dtype=some.dtype)
        return (weights * some.square().sum(dim=(1, 2))).sum()

    loss: dict[str, Any] = (
        {"chunk_loss": chunk_loss} if chunked else {"loss": lambda step, one: (step + 1) * one.square().sum()}
    )
    result = bptt(cell, inputs, state, plan=plan, schedule=over_the_frontier(), **loss)
    assert isinstance(expected, torch.Tensor)
    assert result.loss.item() == pytest.approx(expected.item(), rel=1e-12)
    assert_close(gradients(result.loss, wanted), gradients(expected, wanted), relative=1e-12)
    stacked, _ = unroll(cell, inputs, state, plan=plan, schedule=over_the_frontier())
    assert torch.equal(stacked, torch.stack(outputs))
