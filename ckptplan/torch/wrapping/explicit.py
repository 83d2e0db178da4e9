"""Wraps modules that take their state and return it: cells of ``torch.nn``, and networks of Norse."""

from __future__ import annotations

from typing import Any

import torch

from ckptplan.torch.adapters import NorseCell, TorchCell
from ckptplan.torch.adapters.adapter import find_class
from ckptplan.torch.wrapping.wrapped import Wrapped


class ExplicitSequence(Wrapped):
    """A module ``net(x, state) -> (output, state)`` over sequences: (outputs, state) for (T, B, ...).

    ``torch.nn.RNNCell``, ``GRUCell`` and ``LSTMCell`` count, too, and ``Lift`` of Norse, which already takes a
    sequence.
    """

    def __init__(self, net: torch.nn.Module, **options: Any) -> None:
        super().__init__(net, **options)
        inner: Any = net.lifted_module if find_class(net, "norse", frozenset({"Lift"})) else net
        cell = TorchCell if isinstance(inner, torch.nn.RNNCellBase) else NorseCell
        # Not as a child: it is one already, under its own name.
        self.__dict__["_cell"] = cell(inner)

    def forward(self, inputs: Any, state: Any = None) -> tuple[Any, Any]:
        """Return the outputs of all time steps, stacked, and the final state.

        Arguments:
            inputs: a tensor of shape (T, B, ...).
            state: the initial state; None for the one that the module makes.

        Raises InputError, also if no plan fits the limit.
        """
        return self._unroll(self._cell, inputs, state)


def takes_state(net: torch.nn.Module) -> bool:
    """Return whether a module takes its state and returns it, as far as its class tells."""
    if isinstance(net, torch.nn.RNNCellBase):
        return True
    return any(one.__module__.partition(".")[0] == "norse" for one in type(net).__mro__)
