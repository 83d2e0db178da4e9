"""Makes the cells of PyTorch that are built in, with their initial states."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch

from ckptplan.torch.adapters import TorchCell
from ckptplan.torch.lif import LIF


def _make_lif(*, batch: int, inputs: int, neurons: int, device: str) -> tuple[Any, Any]:
    cell = LIF(inputs, neurons, device=device)
    with torch.no_grad():
        # With this scale, about 7 % of the neurons fire at a time, for any number of inputs.
        cell.weight.mul_(1.15)
    return cell, cell.initial_state(batch)


def _make_torch_factory(kind: Callable[..., torch.nn.Module], states: int) -> Callable[..., tuple[Any, Any]]:
    def make(*, batch: int, inputs: int, neurons: int, device: str) -> tuple[Any, Any]:
        zeros = torch.zeros(batch, neurons, device=device)
        cell = TorchCell(kind(inputs, neurons, device=device))
        return cell, (zeros, zeros.clone()) if states == 2 else zeros

    return make


BUILT_IN_CELLS: dict[str, Callable[..., Any]] = {
    "gru": _make_torch_factory(torch.nn.GRUCell, 1),
    "lif": _make_lif,
    "lstm": _make_torch_factory(torch.nn.LSTMCell, 2),
    "rnn": _make_torch_factory(torch.nn.RNNCell, 1),
}
