"""Hooks of the state: on what a step returns they are those of plain backpropagation through time."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch.utils.flop_counter import FlopCounterMode

from ckptplan import InputError
from ckptplan.torch import bptt, unroll
from tests.torch.support import assert_close, forget_measurements, gradients, gru, job, plain, plan_of

STEPS = 24
PLANS = {
    strategy: plan_of(STEPS, strategy, states=60 if strategy == "base" else 14)
    for strategy in ("base", "standard", "double", "revolve", "optimal")
}


def clip(gradient: torch.Tensor) -> torch.Tensor:
    """Clip a gradient: not linear, so that parts of it give another result than the whole."""
    return gradient.clamp(-0.2, 0.2)


def clipped(*, output: str, hook: Callable[[Any], Any] = clip) -> Any:
    """A cell that clips the gradient of the state that it returns, and its parameters."""
    torch.manual_seed(0)
    module = torch.nn.GRUCell(5, 7).double()

    def cell(state: torch.Tensor, x: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        state = module(x, state)
        if state.requires_grad:
            state.register_hook(hook)
        return state, state if output == "state" else torch.sin(3 * state)

    return cell, list(module.parameters())


def squares(_: int, output: torch.Tensor) -> torch.Tensor:
    return output.square().sum()


@pytest.mark.parametrize("strategy", PLANS)
@pytest.mark.parametrize("output", ["state", "readout"])
def test_a_hook_on_the_returned_state_sees_its_whole_gradient(strategy: str, output: str) -> None:
    """Also where one recorded run of steps ends and the loss of its last step depends on the state."""
    cell, parameters = clipped(output=output)
    inputs, state = job(STEPS)
    wanted = [inputs, state, *parameters]
    theirs = gradients(_measure(cell, inputs, state), wanted)
    without, others = clipped(output=output, hook=lambda gradient: gradient)
    whole = gradients(_measure(without, inputs, state), [inputs, state, *others])
    assert not any(torch.allclose(one, other) for one, other in zip(theirs, whole, strict=True))
    plan = PLANS[strategy]
    result = bptt(cell, inputs, state, squares, final_loss=lambda final: final.sum(), plan=plan)
    assert_close(gradients(result.loss, wanted), theirs, relative=1e-12)
    stacked, last = unroll(cell, inputs, state, plan=plan)
    assert_close(gradients(stacked.square().sum() + last.sum(), wanted), theirs, relative=1e-12)


def _measure(cell: Any, inputs: Any, state: Any) -> torch.Tensor:
    """The loss of plain backpropagation through time."""
    outputs, end = plain(cell, inputs.unbind(), state, STEPS)
    return sum((squares(0, one) for one in outputs), end.sum())


@pytest.mark.parametrize("strategy", PLANS)
@pytest.mark.parametrize("passes_on", [False, True])
def test_a_hook_on_the_incoming_state_sees_its_whole_gradient(strategy: str, passes_on: bool) -> None:
    """Where a recorded run of steps begins, the loss of the step before adds to it in the run before.

    So it is for a part of the state that steps pass on as it is, which has the hooks of all steps.
    """
    module = torch.nn.GRUCell(5, 7).double()

    def cell(state: Any, x: torch.Tensor) -> tuple[Any, torch.Tensor]:
        hidden, same = state
        for one in (hidden, same):
            if one.requires_grad:
                one.register_hook(clip)
        new = module(x, hidden) + 0.1 * same
        return (new, same if passes_on else 0.9 * same), torch.sin(3 * new)

    inputs, first = job(STEPS)
    second = torch.ones(3, 7).double().requires_grad_()
    wanted = [inputs, first, second, *module.parameters()]
    outputs, _ = plain(cell, inputs.unbind(), (first, second), STEPS)
    theirs = gradients(sum((squares(0, one) for one in outputs), torch.zeros(())), wanted)
    for one in (first, second):
        one._backward_hooks.clear()  # type: ignore[union-attr]
    result = bptt(cell, inputs, (first, second), squares, plan=PLANS[strategy])
    assert_close(gradients(result.loss, wanted), theirs, relative=1e-12)


@pytest.mark.parametrize("strategy", PLANS)
def test_operations_are_counted_while_a_network_trains(strategy: str) -> None:
    """FlopCounterMode hooks what each module is given, which torch.autograd.grad refuses for leaves."""
    module = torch.nn.GRUCell(5, 7).double()

    def cell(state: torch.Tensor, x: torch.Tensor) -> Any:
        state = module(x, state)
        return state, state

    inputs, start = job(STEPS)
    inputs = inputs.detach()
    wanted = [start, *module.parameters()]
    found: list[list[Any]] = []
    counted: list[int] = []
    for planned in (False, True):
        with FlopCounterMode(display=False) as counter:
            state = 1 * start
            if planned:
                loss = bptt(cell, inputs, state, squares, plan=PLANS[strategy]).loss
            else:
                outputs, _ = plain(cell, inputs.unbind(), state, STEPS)
                loss = torch.stack([squares(0, one) for one in outputs]).sum()
            loss.backward()
        found.append([one.grad for one in wanted])
        counted.append(counter.get_total_flops())
        for one in wanted:
            one.grad = None
    assert_close(found[1], found[0], relative=1e-12)
    assert counted[1] >= counted[0] > 0
    if strategy != "base":
        forget_measurements()
        with FlopCounterMode(display=False), pytest.raises(InputError, match="A leaf node was passed"):
            bptt(cell, inputs, start, squares, plan=PLANS[strategy])


def test_a_hook_on_the_initial_state_is_the_callers() -> None:
    """It sees the whole gradient once, and the steps do not see it."""
    cell, _ = clipped(output="readout")
    inputs, state = job(STEPS)
    seen: list[torch.Tensor] = []
    state.register_hook(lambda gradient: seen.append(gradient.clone()))
    (found,) = gradients(bptt(cell, inputs, state, squares, plan=PLANS["standard"]).loss, [state])
    (once,) = seen
    assert torch.equal(once, found)


@pytest.mark.parametrize("strategy", ["base", "standard", "revolve"])
def test_hooks_on_saved_tensors_apply_to_all_tapes(strategy: str) -> None:
    """Those in force in the forward pass; tapes of steps that run again are made in the backward pass."""

    def pack(tensor: torch.Tensor) -> torch.Tensor:
        return 0.9 * tensor if tensor.is_floating_point() else tensor

    cell, parameters = gru()
    inputs, state = job(24)
    with torch.autograd.graph.saved_tensors_hooks(pack, lambda tensor: tensor):
        outputs, _ = plain(cell, inputs, state, 24)
        theirs = torch.stack([one.square().sum() for one in outputs]).sum()
        plan = plan_of(24, strategy, states=1000 if strategy == "base" else 16)
        ours = bptt(cell, inputs, state, lambda _, one: one.square().sum(), plan=plan).loss
    assert_close(gradients(ours, parameters), gradients(theirs, parameters), relative=1e-12)
