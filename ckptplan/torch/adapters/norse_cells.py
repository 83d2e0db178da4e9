"""Adapts the cells of Norse, which take their state and return it."""

from __future__ import annotations

from typing import Any

import torch

from ckptplan.errors import InputError
from ckptplan.torch.adapters.adapter import Adapter, describe_place, find_class

#: Neurons that loop over time; the cell of the same name takes a step.
_LOOPS = frozenset({"SNN", "SNNRecurrent"})
_ALTERNATIVES = {
    "Lift": "the module inside of it",
    "ExpFilter": "the filtered value in the state of a cell of your own",
    "LConv2d": "torch.nn.Conv2d",
    "PoissonEncoder": "PoissonEncoderStep, or inputs that are encoded beforehand",
    "SignedPoissonEncoder": "SignedPoissonEncoderStep, or inputs that are encoded beforehand",
    "ConstantCurrentLIFEncoder": "inputs that are encoded beforehand",
    "SpikeLatencyEncoder": "inputs that are encoded beforehand",
    "SpikeLatencyLIFEncoder": "inputs that are encoded beforehand",
    "SpikesToTimesDecoder": "the decoder on the outputs of ckptplan.torch.unroll",
}


class NorseCell(Adapter):
    """A Norse cell (``LIFCell``, ``LIFRecurrentCell``, ``LSNNCell``, ...): its named tuple is the state.

    ``SequentialState`` and ``RecurrentSequential`` of such cells are cells too. The initial state may be None.
    Raises InputError for modules that loop over time themselves (``LIF``, ``LSNNRecurrent``, ``Lift``, ...):
    they would take the batch for time.
    """

    def __init__(self, module: torch.nn.Module) -> None:
        super().__init__(module)
        for child in module.modules():
            _check(module, child)

    def forward(self, state: Any, x: torch.Tensor) -> tuple[Any, torch.Tensor]:
        """Take a step."""
        spikes, state = self.module(x, state)
        return state, spikes

    def __setstate__(self, state: dict[str, Any]) -> None:
        """Let a copied or unpickled module keep autapses out, as the original does.

        Recurrent cells do so by a hook of a parameter, and copies of parameters have no hooks.
        """
        super().__setstate__(state)  # type: ignore[no-untyped-call]
        for child in self.module.modules():
            if find_class(child, "norse", frozenset({"SNNRecurrentCell"})) and not child.autapses:
                child.recurrent_weights.register_hook(_clear_diagonal)


def _clear_diagonal(gradient: torch.Tensor) -> torch.Tensor:
    return gradient.clone().fill_diagonal_(0.0)


def _check(root: torch.nn.Module, module: torch.nn.Module) -> None:
    """Raise InputError for a module that does not take a step, or keeps values from step to step."""
    accepted = None
    if find_class(module, "norse", _LOOPS):
        own = type(module).__module__.startswith("norse.")
        accepted = f"{type(module).__name__}Cell" if own else "a class derived from SNNCell or SNNRecurrentCell"
        accepted += ", which takes one step"
    elif name := find_class(module, "norse", frozenset(_ALTERNATIVES)):
        accepted = _ALTERNATIVES[name]
    elif isinstance(module, torch.nn.RNNBase):
        accepted = f"torch.nn.{type(module).__name__}Cell, within a cell of your own"
    if accepted is not None:
        raise InputError(
            f"{describe_place(root, module)} takes whole sequences, and a step has no time axis",
            field="module",
            accepted=accepted,
        )
    if find_class(module, "norse", frozenset({"RegularizationCell"})):
        raise InputError(
            f"{describe_place(root, module)} adds up in an attribute what its steps return, and they cannot "
            "run again",
            field="module",
            accepted="the sum in the state of a cell of your own, read by final_loss",
        )
