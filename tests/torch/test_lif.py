"""The LIF cell: whole chunks equal its own steps under autograd, whatever is replayed."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from ckptplan import Infeasible
from ckptplan.strategies.registry import all_strategies
from ckptplan.torch import bptt, unroll
from ckptplan.torch.lif import LIF
from tests.torch.support import assert_close, gradients, plain, plan_of


def lif(seed: int = 0, *, dtype: torch.dtype = torch.float64, **more: Any) -> LIF:
    """A cell of 7 neurons and 5 inputs that fires now and then."""
    torch.manual_seed(seed)
    cell = LIF(5, 7, dtype=dtype, threshold=0.3, **more)
    with torch.no_grad():
        cell.bias.uniform_(0, 0.1)
    return cell


def job(steps: int, *, seed: int = 1, dtype: torch.dtype = torch.float64, spiking: bool = False) -> Any:
    generator = torch.Generator().manual_seed(seed)
    inputs = torch.randn(steps, 3, 5, dtype=dtype, generator=generator)
    if spiking:
        inputs = (inputs > 1).to(dtype)
    state = torch.randn(3, 7, dtype=dtype, generator=generator)
    return inputs.requires_grad_(), state.requires_grad_()


@pytest.mark.parametrize("strategy", all_strategies())
@given(
    steps=st.integers(1, 70),
    states=st.integers(3, 60),
    seed=st.integers(0, 99),
    recurrent=st.booleans(),
    spiking=st.booleans(),
    chunked=st.booleans(),
)
@settings(max_examples=6)
def test_gradients_equal_those_of_plain_bptt(
    strategy: str, steps: int, states: int, seed: int, recurrent: bool, spiking: bool, chunked: bool
) -> None:
    """Of weights, of another module in the loss, of inputs and of the initial state; in fp64."""
    try:
        plan = plan_of(steps, strategy, states=states, alpha=1)
    except Infeasible:
        return
    cell = lif(seed, recurrent=recurrent, spiking_inputs=spiking)
    head = torch.nn.Linear(7, 2).double()
    inputs, state = job(steps, seed=seed, spiking=spiking)
    wanted = [state, inputs, *cell.parameters(), *head.parameters()]

    def loss(step: int, output: torch.Tensor) -> Any:
        return (step + 1) * head(output).square().sum()

    def chunk_loss(start: int, outputs: torch.Tensor) -> Any:
        weights = torch.arange(start + 1, start + 1 + len(outputs), dtype=outputs.dtype)
        return (weights * head(outputs).square().sum(dim=(1, 2))).sum()

    outputs, final = plain(cell, inputs, state, steps)
    expected = sum((loss(step, one) for step, one in enumerate(outputs)), final.square().sum())
    theirs = gradients(expected, wanted)
    given_loss: dict[str, Any] = {"chunk_loss": chunk_loss} if chunked else {"loss": loss}
    result = bptt(cell, inputs, state, plan=plan, final_loss=lambda end: end.square().sum(), **given_loss)
    assert result.loss.item() == pytest.approx(expected.item(), rel=1e-12)
    assert_close(gradients(result.loss, wanted), theirs, relative=1e-12)
    stacked, last = unroll(cell, inputs, state, plan=plan)
    assert torch.equal(stacked, torch.stack(outputs))
    assert_close([last.detach()], [final.detach()], relative=1e-12)
    ours = sum((loss(step, one) for step, one in enumerate(stacked)), last.square().sum())
    assert_close(gradients(ours, wanted), theirs, relative=1e-12)
