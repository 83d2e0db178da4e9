"""Programs of users around ``bptt`` and ``unroll``: constants and inputs of their own."""

from __future__ import annotations

import itertools
from typing import Any

import pytest
import torch
from torch import Tensor, nn

import ckptplan
from ckptplan.torch import bptt, check, unroll
from ckptplan.torch.adapters import TorchCell
from ckptplan.torch.device.meters import LiveBytes
from tests.torch.support import assert_close, plain, plan_of

STEPS = 60
PLAN = plan_of(STEPS, "double", states=16)


@pytest.fixture
def data() -> Tensor:
    return torch.randn(STEPS, 3, 5, dtype=torch.float64, generator=torch.Generator().manual_seed(1))


def test_outputs_are_stacked_once_without_gradients() -> None:
    cell, data = TorchCell(nn.GRUCell(5, 64)), torch.randn(200, 8, 5)
    with torch.no_grad(), LiveBytes() as live:
        outputs, _ = unroll(cell, data, None, plan=plan_of(200, states=99))
    assert live.peak <= 1.2 * outputs.nbytes


@pytest.mark.parametrize("named", ["both", "first", "second", "none", "state"])
def test_tensors_that_are_computed_before_the_loop_get_their_gradients(named: str, data: Tensor) -> None:
    """Two constants, one computed from the other, as the keys of an attention decoder are."""
    torch.manual_seed(0)
    encoder, keys = nn.Linear(5, 5).double(), nn.Linear(5, 5, bias=False).double()
    cell, text = nn.GRUCell(5, 5).double(), torch.randn(3, 4, 5).double()
    wanted = [*encoder.parameters(), *keys.parameters(), *cell.parameters()]

    def attend(h: Tensor, x: Tensor, encoded: Tensor, processed: Tensor) -> Tensor:
        weights = (processed @ h.unsqueeze(-1)).softmax(1)
        found: Tensor = cell(x + (weights * encoded).sum(1), h)
        return found

    def train(planned: bool) -> list[Tensor]:
        encoded = torch.tanh(encoder(text))
        processed = keys(encoded)
        parameters = {"both": [encoded, processed], "first": [encoded], "second": [processed]}.get(named, [])

        def step(state: Any, x: Tensor) -> Any:
            if named == "state":
                return (h := attend(state[0], x, *state[1:]), *state[1:]), h
            h = attend(state, x, encoded, processed)
            return h, h

        start: Any = torch.zeros(3, 5).double()
        start = (start, encoded, processed) if named == "state" else start
        if planned:
            loss = bptt(step, data, start, lambda _, h: h.square().sum(), plan=PLAN, parameters=parameters).loss
        else:
            loss = torch.stack(plain(step, data, start, STEPS)[0]).square().sum()
        return list(torch.autograd.grad(loss, wanted))

    assert_close(train(planned=True), train(planned=False), relative=1e-9)


def test_a_step_may_differentiate_inside(data: Tensor) -> None:
    net = nn.Sequential(nn.Linear(5, 8), nn.Tanh(), nn.Linear(8, 1)).double()

    def cell(state: Tensor, _: Any) -> Any:
        with torch.enable_grad():
            (force,) = torch.autograd.grad(net(state).sum(), state, create_graph=True)
        return state - 0.1 * force, None

    start = data[0].clone().requires_grad_()
    plan = plan_of(STEPS, "revolve", states=16)
    assert check(cell, data, start, final_loss=lambda state: state.square().mean(), plan=plan)


@pytest.mark.parametrize("inputs", ["none", "repeat", "count"])
def test_a_sequence_of_unknown_length_needs_no_inputs(inputs: str) -> None:
    weight = nn.Linear(3, 3)
    given: Any = {"none": None, "repeat": itertools.repeat(None), "count": itertools.count()}[inputs]
    result = bptt(
        lambda state, _: (state + 0.1 * torch.tanh(weight(state)) + 0.1, None),
        given,
        torch.ones(3),
        final_loss=lambda state: state.sum(),
        until=lambda state: bool(state.abs().max() > 1.5),
        plan=ckptplan.online(3),
    )
    result.loss.backward()
    assert weight.weight.grad is not None
    assert result.plan.steps > 1
