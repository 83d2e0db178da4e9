"""The same laws on a CUDA device: pinned buffers, copies that overlap compute, the device's own generator."""

from __future__ import annotations

from typing import Any

import pytest
import torch

import ckptplan
from ckptplan import Plan
from ckptplan.torch import bptt
from ckptplan.torch.host_store import HostStore
from ckptplan.torch.lif import LIF
from ckptplan.torch.stores import Checkpoint
from ckptplan.torch.trees import flatten
from tests.torch.support import MACHINE, assert_close, gradients, plain, plan_of

pytestmark = pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device")
STEPS = 120


def on(plan: Plan, *, beside: bool) -> Plan:
    """The plan for a machine whose transfers overlap compute, or do not."""
    workload = plan.workload
    machine = ckptplan.HardwareProfile(**{**dict(MACHINE), "overlaps_compute": beside})
    return ckptplan.optimize(workload, machine, strategies=[plan.strategy], local_bytes=12)


def squares(_: int, output: torch.Tensor) -> Any:
    return output.square().sum()


@pytest.mark.parametrize("beside", [False, True])
@pytest.mark.parametrize("strategy", ["remote", "hierarchical", "double", "disk-revolve", "optimal"])
def test_gradients_equal_those_of_plain_bptt(strategy: str, beside: bool) -> None:
    """Whatever is on its way when it is asked for."""
    torch.manual_seed(0)
    module = torch.nn.GRUCell(5, 7).double().cuda()

    def cell(state: torch.Tensor, x: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        state = module(x, state)
        return state, state

    inputs = torch.randn(STEPS, 3, 5, dtype=torch.float64, device="cuda", requires_grad=True)
    state = torch.randn(3, 7, dtype=torch.float64, device="cuda", requires_grad=True)
    wanted = [state, inputs, *module.parameters()]
    outputs, _ = plain(cell, inputs, state, STEPS)
    theirs = gradients(torch.stack(outputs).square().sum(), wanted)
    result = bptt(cell, inputs, state, squares, plan=on(plan_of(STEPS, strategy), beside=beside))
    assert_close(gradients(result.loss, wanted), theirs, relative=1e-11)


def test_spiking_neurons_are_replayed() -> None:
    cell = LIF(5, 7, dtype=torch.float64, device="cuda", threshold=0.3)
    inputs = torch.randn(STEPS, 3, 5, dtype=torch.float64, device="cuda")
    state = cell.initial_state(3)
    outputs, _ = plain(cell, inputs, state, STEPS)
    theirs = gradients(torch.stack(outputs).square().sum(), list(cell.parameters()))
    result = bptt(cell, inputs, state, squares, plan=plan_of(STEPS, "optimal", alpha=1))
    assert_close(gradients(result.loss, list(cell.parameters())), theirs, relative=1e-11)


def test_dropout_on_the_device_is_drawn_again() -> None:
    torch.manual_seed(0)
    weight = torch.randn(7, 7, dtype=torch.float64, device="cuda", requires_grad=True)

    def cell(state: torch.Tensor, x: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        state = torch.tanh(torch.nn.functional.dropout(state @ weight, 0.5) + x)
        return state, state

    inputs = torch.randn(STEPS, 3, 7, dtype=torch.float64, device="cuda")
    state = torch.zeros(3, 7, dtype=torch.float64, device="cuda")
    torch.manual_seed(1)
    outputs, _ = plain(cell, inputs, state, STEPS)
    (theirs,) = gradients(torch.stack(outputs).square().sum(), [weight])
    torch.manual_seed(1)
    result = bptt(cell, inputs, state, squares, plan=plan_of(STEPS, "double"))
    assert_close(gradients(result.loss, [weight]), [theirs], relative=1e-11)


def test_host_memory_is_pinned_and_used_again() -> None:
    store = HostStore(torch.device("cuda"), ahead=True)
    for turn in range(50):
        state = torch.full((1 << 20,), float(turn), device="cuda")
        store.put(turn, Checkpoint(*flatten(state), ()))
        # What is let go, and filled anew, must not reach the copy that is under way.
        del state
        torch.zeros(1 << 20, device="cuda")
        store.expect(turn)
        assert store.get(turn).leaves[0].eq(float(turn)).all()
        store.drop(turn)
    assert store.buffers == 1
    store.close()
