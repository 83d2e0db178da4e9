"""A training loop in PyTorch within a limit of memory: its gradients and losses are those of plain BPTT."""

import copy
from itertools import pairwise

import torch
from torch.nn.functional import cross_entropy, one_hot

from ckptplan import Plan
from ckptplan.torch import bptt, wrap
from ckptplan.torch.adapters import TorchCell

STEPS, BATCH = 48, 4


def test_a_network_trains_within_a_limit_as_by_plain_bptt() -> None:
    """Ten steps of an optimizer, each after a sequence of its own."""
    torch.manual_seed(0)
    cell, readout = TorchCell(torch.nn.GRUCell(3, 16)), torch.nn.Linear(16, 3)
    plain = copy.deepcopy(cell), copy.deepcopy(readout)
    optimizers = [
        torch.optim.SGD([*one.parameters(), *two.parameters()], lr=0.05)
        for one, two in ((cell, readout), plain)
    ]
    losses = []
    for _ in range(10):
        target = torch.randint(3, (BATCH,))
        inputs = torch.randn(STEPS, BATCH, 3) + one_hot(target, 3)
        optimizers[0].zero_grad()

        def loss_of(_: int, output: torch.Tensor, target: torch.Tensor = target) -> torch.Tensor:
            return cross_entropy(readout(output), target)

        result = bptt(cell, inputs, None, loss_of, memory="40 kB")
        result.loss.backward()
        optimizers[0].step()

        optimizers[1].zero_grad()
        state, loss = None, torch.zeros(())
        for x in inputs:
            state, output = plain[0](state, x)
            loss = loss + cross_entropy(plain[1](output), target)
        loss.backward()
        optimizers[1].step()
        losses.append(loss.item())
        assert isinstance(result.plan, Plan)
        assert abs(result.loss.item() - loss.item()) < 1e-3
    for mine, theirs in zip(cell.parameters(), plain[0].parameters(), strict=True):
        torch.testing.assert_close(mine, theirs, rtol=1e-4, atol=1e-5)
    assert min(later - earlier for earlier, later in pairwise(losses)) < 0


def test_a_layer_of_pytorch_is_wrapped_in_one_line() -> None:
    torch.manual_seed(0)
    layer = torch.nn.LSTM(4, 8, num_layers=2)
    inputs = torch.randn(STEPS, BATCH, 4)
    expected = torch.autograd.grad(layer(inputs)[0].square().sum(), list(layer.parameters()))
    outputs, _ = wrap(layer, memory="200 kB")(inputs)
    found = torch.autograd.grad(outputs.square().sum(), list(layer.parameters()))
    for mine, theirs in zip(found, expected, strict=True):
        torch.testing.assert_close(mine, theirs, rtol=1e-4, atol=1e-4)
