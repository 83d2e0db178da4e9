"""Adapts the neurons of snnTorch, which take their state and return it, but also keep it in attributes."""

from __future__ import annotations

import inspect
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import torch

from ckptplan.errors import InputError
from ckptplan.torch.adapters.adapter import Adapter, describe_place, find_class

_SEQUENCES = frozenset({"StateLeaky", "AssociativeLeaky", "LeakyParallel", "LeakyKernel"})
#: Where neurons keep their last state, as a buffer or as an attribute.
_HIDDEN = ("mem", "mem_prev", "spk", "syn", "syn_exc", "syn_inh", "reset")
#: The function that ``surrogate.SSO`` returns.
_RANDOM_SURROGATE = "SSO.<locals>.inner"


class SnnTorchCell(Adapter):
    """An snnTorch neuron (``Leaky``, ``Synaptic``, ``Alpha``, ``RLeaky``, ...), behind a layer if one is given.

    The state is the tuple of the arguments that the neuron takes after its input. An initial state may be a
    result of ``reset_mem``; None calls ``reset_mem``. The output is the spikes. The neuron's own attributes
    (``mem``, ``spk``, ...) are restored after each step, so that no graph stays alive in them.

    Raises InputError for a neuron with ``init_hidden=True``, and for neurons that take whole sequences
    (``LeakyParallel``, ``StateLeaky``, ``LinearLeaky``, ``AssociativeLeaky``).
    """

    def __init__(self, neuron: torch.nn.Module, layer: torch.nn.Module | None = None) -> None:
        super().__init__(neuron)
        self.layer = layer
        inner = torch.nn.Sequential() if layer is None else layer
        for child in (*neuron.modules(), *inner.modules()):
            _check(child)
        if not hasattr(neuron, "reset_mem"):
            raise InputError(
                f"{type(neuron).__name__} is not a neuron of snnTorch",
                field="neuron",
                accepted="SnnTorchCell(neuron, layer); for several layers, a cell whose state has one for each",
            )
        for child in inner.modules():
            if hasattr(child, "reset_mem") or "_memories" in vars(child):
                raise InputError(
                    f"has a second neuron or a memory, {describe_place(inner, child)}",
                    field="layer",
                    accepted="for several layers, a cell whose state has one for each",
                )
        #: Neurons that feed their spikes back take these as part of the state.
        self.recurrent = hasattr(neuron, "recurrent")
        #: How many values the state has.
        self.states = len(inspect.signature(neuron.forward).parameters) - 1

    @property
    def neuron(self) -> Any:
        """The neuron; ``module`` is the name under which it is registered."""
        return self.module

    def forward(self, state: Any, x: torch.Tensor) -> tuple[tuple[Any, ...], torch.Tensor]:
        """Take a step."""
        if self.layer is not None:
            x = self.layer(x)
        with _restored(self.module):
            if state is None:
                # Without a state, the neuron would use the state of its last call.
                state = self.module.reset_mem()
            # A state with a single value may itself be a tuple, as the state of DeltaLeaky.
            is_complete = isinstance(state, tuple) and len(state) == self.states
            spikes, *updated = self.module(x, *(state if is_complete else (state,)))
        return (spikes, *updated) if self.recurrent else tuple(updated), spikes


def _check(module: torch.nn.Module) -> None:
    """Raise InputError for a module that hides its state, or takes whole sequences."""
    if getattr(module, "init_hidden", False):
        raise InputError(
            "hides its state (init_hidden=True), so that no step can run again",
            field="neuron",
            accepted="init_hidden=False",
        )
    if getattr(getattr(module, "spike_grad", None), "__qualname__", "") == _RANDOM_SURROGATE:
        raise InputError(
            "has surrogate.SSO, which draws random numbers in the backward pass: steps that are reversed in "
            "parts would draw the same ones again",
            field="neuron",
            accepted="another surrogate, such as surrogate.atan()",
        )
    if find_class(module, "snntorch", _SEQUENCES):
        raise InputError(
            f"{type(module).__name__} takes whole sequences, and a step has no time axis",
            field="neuron",
            accepted="neurons that take a step, such as Leaky",
        )


@contextmanager
def _restored(neuron: torch.nn.Module) -> Iterator[None]:
    """Run the block, and restore the attributes in which a neuron keeps its last state."""
    places: tuple[dict[str, Any], ...] = (vars(neuron), neuron._buffers)
    saved = [{name: place[name] for name in _HIDDEN if name in place} for place in places]
    try:
        yield
    finally:
        for place, values in zip(places, saved, strict=True):
            for name in _HIDDEN:
                if name in values:
                    place[name] = values[name]
                else:
                    place.pop(name, None)
