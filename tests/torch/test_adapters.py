"""Cells that people bring, under a plan: gradients are those of plain backpropagation through time."""

from __future__ import annotations

from importlib import import_module
from typing import Any

import pytest
import torch

from ckptplan import InputError
from ckptplan.torch import bptt
from ckptplan.torch.adapters import NorseCell, SnnTorchCell, SpikingJellyCell, TorchCell
from tests.torch.support import assert_close, gradients, plain, plan_of

STEPS = 20
PLAN = plan_of(STEPS, "double", states=8)


def check(cell: Any, state: Any) -> None:
    inputs = torch.randn(STEPS, 3, 5, generator=torch.Generator().manual_seed(3), requires_grad=True)
    wanted = [inputs, *cell.parameters()]
    weight = torch.randn(STEPS, generator=torch.Generator().manual_seed(4))
    outputs, _ = plain(cell, inputs.unbind(), state, STEPS)
    assert any(output.any() for output in outputs)
    expected = sum((weight[t] * output.sum() for t, output in enumerate(outputs)), torch.zeros(()))
    theirs = gradients(expected, wanted)
    assert any(one.any() for one in theirs)
    result = bptt(cell, inputs, state, lambda t, output: weight[t] * output.sum(), plan=PLAN)
    assert torch.allclose(result.loss, expected)
    assert_close(gradients(result.loss, wanted), theirs, relative=1e-5)


@pytest.mark.parametrize("kind", ["RNNCell", "GRUCell", "LSTMCell"])
def test_cells_of_torch(kind: str) -> None:
    torch.manual_seed(0)
    check(TorchCell(getattr(torch.nn, kind)(5, 7)), None)


@pytest.mark.parametrize("kind", ["Leaky", "Synaptic", "Alpha", "RLeaky", "Lapicque"])
@pytest.mark.filterwarnings("ignore")
def test_neurons_of_snntorch(kind: str) -> None:
    snntorch = import_module("snntorch")
    torch.manual_seed(0)
    given: dict[str, Any] = {"beta": 0.9, "threshold": 0.5}
    if kind in ("Synaptic", "Alpha"):
        given["alpha"] = 0.95
    if kind == "RLeaky":
        given |= {"linear_features": 7}
    neuron = getattr(snntorch, kind)(**given)
    check(SnnTorchCell(neuron, torch.nn.Linear(5, 7)), None)


@pytest.mark.filterwarnings("ignore")
def test_a_neuron_that_hides_its_state_is_refused() -> None:
    snntorch = import_module("snntorch")
    with pytest.raises(InputError, match="neuron: hides its state"):
        SnnTorchCell(snntorch.Leaky(beta=0.9, init_hidden=True))


@pytest.mark.parametrize("kind", ["LIFRecurrentCell", "LSNNRecurrentCell"])
@pytest.mark.filterwarnings("ignore")
def test_cells_of_norse(kind: str) -> None:
    norse = import_module("norse.torch")
    torch.manual_seed(0)
    cell = getattr(norse, kind)(5, 7)
    torch.nn.init.uniform_(cell.input_weights, 0, 20)
    check(NorseCell(cell), None)


@pytest.mark.filterwarnings("ignore")
def test_stateful_nodes_of_spikingjelly() -> None:
    neuron = import_module("spikingjelly.activation_based.neuron")
    torch.manual_seed(0)
    net = torch.nn.Sequential(torch.nn.Linear(5, 7), neuron.LIFNode(), torch.nn.Linear(7, 4), neuron.IFNode())
    for module in net:
        if isinstance(module, torch.nn.Linear):
            module.weight.data *= 5
    cell = SpikingJellyCell(net)
    check(cell, cell.initial_state())
    # The net itself was never stepped.
    assert cell.initial_state() == (0.0, 0.0)
