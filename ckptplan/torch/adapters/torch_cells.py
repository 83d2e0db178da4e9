"""Adapts the recurrent cells of ``torch.nn``, and others that are called in the same way."""

from __future__ import annotations

from typing import Any

import torch

from ckptplan.errors import InputError
from ckptplan.torch.adapters.adapter import Adapter, find_class

#: Cells of other packages with the signature ``cell(x, state)`` of ``torch.nn.LSTMCell``.
_ALIKE = frozenset({"SpikingRNNCellBase"})


class TorchCell(Adapter):
    """``torch.nn.RNNCell``, ``GRUCell`` and ``LSTMCell``: the output is the (hidden) state.

    SpikingJelly's ``SpikingVanillaRNNCell``, ``SpikingGRUCell`` and ``SpikingLSTMCell`` are called in the same
    way. The initial state may be None, for zeros. Raises InputError for another module.
    """

    def __init__(self, module: torch.nn.Module) -> None:
        super().__init__(module)
        if not isinstance(module, torch.nn.RNNCellBase) and not find_class(module, "spikingjelly", _ALIKE):
            raise InputError(
                f"{type(module).__name__} is not such a cell",
                field="module",
                accepted="torch.nn.RNNCell, GRUCell or LSTMCell, or SpikingJelly's cells of these names",
            )

    def forward(self, state: Any, x: torch.Tensor) -> tuple[Any, torch.Tensor]:
        """Take a step."""
        state = self.module(x, state)
        return state, state[0] if isinstance(state, tuple) else state
