"""Adapts cells of other packages to ``cell(state, x) -> (state, output)``.

No other package is imported here: an adapter calls the module that it is given. Nodes that keep their state in
an attribute are made functional; otherwise a step that runs again would change that state twice.
"""

from __future__ import annotations

from typing import Any

import torch

from ckptplan.errors import InputError


class _Adapter(torch.nn.Module):
    """Base of the adapters; it registers the module, so that its parameters are found."""

    def __init__(self, module: torch.nn.Module) -> None:
        super().__init__()
        self.module = module


class TorchCell(_Adapter):
    """``torch.nn.RNNCell``, ``GRUCell`` and ``LSTMCell``: the output is the (hidden) state.

    The initial state may be None, for zeros. Raises InputError for another module.
    """

    def __init__(self, module: torch.nn.Module) -> None:
        super().__init__(module)
        if not isinstance(module, torch.nn.RNNCellBase):
            raise InputError(
                f"{type(module).__name__} is not such a cell",
                field="module",
                accepted="torch.nn.RNNCell, GRUCell or LSTMCell",
            )

    def forward(self, state: Any, x: torch.Tensor) -> tuple[Any, torch.Tensor]:
        """Take a step."""
        state = self.module(x, state)
        return state, state[0] if isinstance(state, tuple) else state


class SnnTorchCell(_Adapter):
    """An snnTorch neuron (``Leaky``, ``Synaptic``, ``Alpha``, ``RLeaky``, ...), behind a layer if one is given.

    The state is what the neuron takes after its input, as returned by ``reset_mem``. An initial state of None
    calls ``reset_mem``. The output is the spikes. Raises InputError for a neuron with ``init_hidden=True``.
    """

    def __init__(self, neuron: torch.nn.Module, layer: torch.nn.Module | None = None) -> None:
        super().__init__(neuron)
        self.neuron: Any = neuron
        self.layer = layer
        #: Neurons that feed their spikes back take these as part of the state.
        self.recurrent = hasattr(neuron, "recurrent")
        inner = layer.modules() if layer is not None else ()
        if not hasattr(neuron, "reset_mem"):
            raise InputError(
                f"{type(neuron).__name__} is not a neuron of snnTorch",
                field="neuron",
                accepted="SnnTorchCell(neuron, layer); for several layers, a cell whose state has one for each",
            )
        if any(getattr(one, "init_hidden", False) for one in (neuron, *inner)):
            raise InputError(
                "hides its state (init_hidden=True), so that no step can run again",
                field="neuron",
                accepted="init_hidden=False",
            )

    def forward(self, state: Any, x: torch.Tensor) -> tuple[tuple[torch.Tensor, ...], torch.Tensor]:
        """Take a step."""
        if self.layer is not None:
            x = self.layer(x)
        if state is None:
            # Without a state, the neuron would use that of its last call.
            state = self.neuron.reset_mem()
        states = state if isinstance(state, tuple) else (state,)
        spikes, *rest = self.module(x, *states)
        return (spikes, *rest) if self.recurrent else tuple(rest), spikes


class NorseCell(_Adapter):
    """A Norse cell (``LIFCell``, ``LIFRecurrentCell``, ``LSNNCell``, ...): its named tuple is the state.

    The initial state may be None.
    """

    def forward(self, state: Any, x: torch.Tensor) -> tuple[Any, torch.Tensor]:
        """Take a step."""
        spikes, state = self.module(x, state)
        return state, spikes


class SpikingJellyCell(_Adapter):
    """A SpikingJelly module in single-step mode, with the hidden states of all its neurons made explicit.

    The state is the tuple of memories, in the order of ``base.extract_memories``; ``initial_state()`` returns
    the initial one.
    """

    def __init__(self, module: torch.nn.Module) -> None:
        super().__init__(module)
        base = _spikingjelly_base(module)
        self._step = base.to_functional_forward(module)
        self._memories = base.extract_memories

    def initial_state(self) -> tuple[Any, ...]:
        """Return the present memories; after ``functional.reset_net``, these are the initial ones."""
        return tuple(self._memories(self.module))

    def forward(self, state: tuple[Any, ...], x: torch.Tensor) -> tuple[tuple[Any, ...], torch.Tensor]:
        """Take a step."""
        outputs, state = self._step((x,), tuple(state))
        return tuple(state), outputs[0] if len(outputs) == 1 else outputs


def _spikingjelly_base(module: torch.nn.Module) -> Any:
    """Return the package's module ``base``. Raises InputError if it cannot make nodes functional."""
    from importlib import import_module

    try:
        base = import_module("spikingjelly.activation_based.base")
    except ImportError as error:
        raise InputError(
            f"{type(module).__name__} needs SpikingJelly: {error}",
            field="module",
            accepted="spikingjelly 2.0 or later",
        ) from error
    if not hasattr(base, "to_functional_forward"):
        raise InputError(
            "this SpikingJelly cannot make its nodes functional",
            field="module",
            accepted="spikingjelly 2.0 or later",
        )
    return base
