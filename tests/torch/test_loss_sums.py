"""Law: terms of a loss in half precision are added up in fp32, and each gets its gradient in its own type."""

from __future__ import annotations

from typing import Any

import pytest
import torch

from ckptplan.torch import LIF, bptt
from tests.torch.support import assert_close, gradients, job, plan_of

STEPS = 4096
HALF = [torch.bfloat16, torch.float16]


def make_cell(dtype: torch.dtype) -> Any:
    """A leaky cell whose parameters and state are of one type."""
    torch.manual_seed(0)
    linear = torch.nn.Linear(5, 7).to(dtype)

    class Leaky(torch.nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.linear = linear

        def forward(self, state: torch.Tensor, x: torch.Tensor) -> Any:
            state = torch.tanh(0.5 * state + self.linear(x))
            return state, state

    return Leaky()


def sum_plainly(cell: Any, inputs: torch.Tensor, state: torch.Tensor, loss: Any) -> torch.Tensor:
    """The terms of plain BPTT, added up in fp32."""
    total = torch.zeros(())
    for step in range(inputs.shape[0]):
        state, output = cell(state, inputs[step])
        total = total + loss(step, output).float()
    return total


@pytest.mark.parametrize("dtype", HALF)
@pytest.mark.parametrize("kind", ["loss", "chunk_loss", "final_loss"])
def test_the_loss_is_of_fp32(dtype: torch.dtype, kind: str) -> None:
    inputs, state = job(8, dtype=dtype)

    def measure(*arguments: Any) -> torch.Tensor:
        value: torch.Tensor = arguments[-1].square().sum()
        assert value.dtype == dtype
        return value

    terms: dict[str, Any] = {kind: measure}
    result = bptt(make_cell(dtype), inputs, state, plan=plan_of(8, "standard"), **terms)
    assert result.loss.dtype == torch.float32
    result.loss.backward()
    assert state.grad is not None
    assert state.grad.dtype == dtype


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_other_types_are_added_up_in_their_own(dtype: torch.dtype) -> None:
    inputs, state = job(8, dtype=dtype)
    result = bptt(make_cell(dtype), inputs, state, lambda _, one: one.sum(), plan=plan_of(8, "standard"))
    assert result.loss.dtype == dtype


def test_a_sum_of_many_terms_does_not_saturate() -> None:
    """Added up in bf16, 4,096 terms of 1 stay at 256."""
    saturated = torch.zeros((), dtype=torch.bfloat16)
    for _ in range(STEPS):
        saturated = saturated + torch.ones((), dtype=torch.bfloat16)
    assert float(saturated) == 256
    inputs, state = job(STEPS, dtype=torch.bfloat16)
    cell = make_cell(torch.bfloat16)
    wanted = [state, inputs, *cell.parameters()]

    def loss(_: int, output: torch.Tensor) -> torch.Tensor:
        return output.mean() * 0.01 + 1

    plan = plan_of(STEPS, "standard", states=300)
    ours = bptt(cell, inputs, state, loss, plan=plan).loss
    theirs = sum_plainly(cell, inputs, state, loss)
    assert ours.item() == pytest.approx(theirs.item(), rel=1e-6)
    assert ours.item() > STEPS * 0.98
    found, expected = gradients(ours, wanted), gradients(theirs, wanted)
    # Gradients of parameters are sums in bf16 in either case, in another order.
    assert_close(found[:2], expected[:2], relative=1e-2)


def test_scaled_losses_of_fp16_have_the_gradients_of_plain_bptt() -> None:
    """As a GradScaler scales them: in fp32, where 2 ** 15 times the sum of the terms is not infinite."""
    steps, scale = 64, 2.0**15
    inputs, state = job(steps, dtype=torch.float16)
    cell = make_cell(torch.float16)

    def loss(_: int, output: torch.Tensor) -> torch.Tensor:
        return output.square().mean()

    ours = bptt(cell, inputs, state, loss, plan=plan_of(steps, "standard", states=40)).loss * scale
    theirs = sum_plainly(cell, inputs, state, loss) * scale
    assert torch.isfinite(ours)
    assert ours.item() == pytest.approx(theirs.item(), rel=1e-6)
    found, expected = gradients(ours, [state, inputs]), gradients(theirs, [state, inputs])
    assert all(torch.isfinite(one).all() for one in found)
    assert_close(found, expected, relative=1e-2)


def test_a_scale_that_fp16_cannot_hold_gives_infinities_as_plain_bptt_does() -> None:
    """So that a GradScaler sees them, and lowers its scale."""
    inputs, state = job(8, dtype=torch.float16)
    cell = make_cell(torch.float16)
    found = []
    for total in (
        bptt(cell, inputs, state, lambda _, one: one.sum(), plan=plan_of(8, "standard")).loss,
        sum_plainly(cell, inputs, state, lambda _, one: one.sum()),
    ):
        (gradient,) = gradients(total * 2.0**16, [inputs])
        found.append(torch.isfinite(gradient).all())
    assert not any(found)


def test_terms_of_spikes_in_half_precision_are_added_up_in_fp32() -> None:
    """Cells that run chunks themselves take the same losses."""
    torch.manual_seed(0)
    steps = 600
    cell = LIF(5, 7, threshold=0.3)
    inputs, state = torch.randn(steps, 3, 5), cell.initial_state(3)
    result = bptt(
        cell,
        inputs,
        state,
        lambda _, one: (one.mean() * 0 + 1).bfloat16(),
        plan=plan_of(steps, "standard", states=80),
    )
    assert result.loss.item() == steps
    result.loss.backward()
