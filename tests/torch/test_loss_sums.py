"""Law: terms of a loss in half precision are added up in fp32, and each gets its gradient in its own type."""

from __future__ import annotations

from typing import Any

import pytest
import torch

from ckptplan.torch import LIF, bptt
from tests.torch.support import assert_close, gradients, job, plain, plan_of

STEPS = 4096


class Leaky(torch.nn.Module):
    """A leaky cell whose parameters and state are of one type."""

    def __init__(self, dtype: torch.dtype) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.linear = torch.nn.Linear(5, 7).to(dtype)

    def forward(self, state: torch.Tensor, x: torch.Tensor) -> Any:
        state = torch.tanh(0.5 * state + self.linear(x))
        return state, state


def sum_losses(loss: Any, dtype: torch.dtype, steps: int, states: int = 12) -> tuple[list[Any], list[Any]]:
    """Return the sums of bptt and of plain BPTT, which adds up in fp32; and the state and the inputs."""
    (inputs, state), cell = job(steps, dtype=dtype), Leaky(dtype)
    ours = bptt(cell, inputs, state, loss, plan=plan_of(steps, "standard", states=states)).loss
    theirs = torch.zeros(())
    for step, output in enumerate(plain(cell, inputs, state, steps)[0]):
        theirs = theirs + loss(step, output).float()
    return [ours, theirs], [state, inputs]


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
@pytest.mark.parametrize("kind", ["loss", "chunk_loss", "final_loss"])
def test_the_loss_is_of_fp32(dtype: torch.dtype, kind: str) -> None:
    inputs, state = job(8, dtype=dtype)

    def measure(*arguments: Any) -> torch.Tensor:
        value: torch.Tensor = arguments[-1].square().sum()
        assert value.dtype == dtype
        return value

    terms: dict[str, Any] = {kind: measure}
    result = bptt(Leaky(dtype), inputs, state, plan=plan_of(8, "standard"), **terms)
    assert result.loss.dtype == torch.float32
    result.loss.backward()
    assert state.grad is not None
    assert state.grad.dtype == dtype


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_other_types_are_added_up_in_their_own(dtype: torch.dtype) -> None:
    (ours, _), _ = sum_losses(lambda _, one: one.sum(), dtype, 8)
    assert ours.dtype == dtype


def test_a_sum_of_many_terms_does_not_saturate() -> None:
    """Added up in bf16, 4,096 terms of 1 stay at 256."""
    saturated = torch.zeros((), dtype=torch.bfloat16)
    for _ in range(STEPS):
        saturated = saturated + torch.ones((), dtype=torch.bfloat16)
    assert float(saturated) == 256
    (ours, theirs), wanted = sum_losses(lambda _, one: one.mean() * 0.01 + 1, torch.bfloat16, STEPS, 300)
    assert ours.item() == pytest.approx(theirs.item(), rel=1e-6)
    assert ours.item() > STEPS * 0.98
    # Gradients of parameters are sums in bf16 in either case, in another order.
    assert_close(gradients(ours, wanted), gradients(theirs, wanted), relative=1e-2)


def test_scaled_losses_of_fp16_have_the_gradients_of_plain_bptt() -> None:
    """As a GradScaler scales them: in fp32, where 2 ** 15 times the sum of the terms is not infinite."""
    sums, wanted = sum_losses(lambda _, one: one.square().mean(), torch.float16, 64, 40)
    ours, theirs = (2.0**15 * one for one in sums)
    assert torch.isfinite(ours)
    assert ours.item() == pytest.approx(theirs.item(), rel=1e-6)
    found, expected = gradients(ours, wanted), gradients(theirs, wanted)
    assert all(torch.isfinite(one).all() for one in found)
    assert_close(found, expected, relative=1e-2)


def test_a_scale_that_fp16_cannot_hold_gives_infinities_as_plain_bptt_does() -> None:
    """So that a GradScaler sees them, and lowers its scale."""
    sums, (_, inputs) = sum_losses(lambda _, one: one.sum(), torch.float16, 8)
    found = [gradients(total * 2.0**16, [inputs])[0] for total in sums]
    assert not any(torch.isfinite(gradient).all() for gradient in found)


def test_terms_of_spikes_in_half_precision_are_added_up_in_fp32() -> None:
    """Cells that run chunks themselves take the same losses."""
    torch.manual_seed(0)
    steps, cell = 600, LIF(5, 7, threshold=0.3)
    plan = plan_of(steps, "standard", states=80)
    inputs, state = torch.randn(steps, 3, 5), cell.initial_state(3)
    result = bptt(cell, inputs, state, lambda _, one: (one.mean() * 0 + 1).bfloat16(), plan=plan)
    assert result.loss.item() == steps
    result.loss.backward()
