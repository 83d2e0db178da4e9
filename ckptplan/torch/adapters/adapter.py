"""The base class of the adapters, and functions that recognise the classes of other packages."""

from __future__ import annotations

from typing import Any

import torch

from ckptplan.errors import InputError


class Adapter(torch.nn.Module):
    """The base of the adapters. It registers the module, so that optimizers find its parameters."""

    def __init__(self, module: torch.nn.Module) -> None:
        super().__init__()
        if not isinstance(module, torch.nn.Module):
            raise InputError(f"{type(module).__name__} is not a module", field="module", accepted="a module")
        self.module: Any = module


def find_class(module: torch.nn.Module, package: str, names: frozenset[str]) -> str | None:
    """Return the first of ``names`` that the class of a module or a base of it has in a package, or None."""
    for base in type(module).__mro__:
        if base.__name__ in names and base.__module__.partition(".")[0] == package:
            return base.__name__
    return None


def describe_place(root: torch.nn.Module, module: torch.nn.Module) -> str:
    """Return the class of a module and its path in ``root``, as text."""
    path = next((path for path, child in root.named_modules() if child is module), "")
    return f"{type(module).__name__} ({path})" if path else type(module).__name__


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
