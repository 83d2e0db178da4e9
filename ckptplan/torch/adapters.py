"""Adapts cells of other packages to ``cell(state, x) -> (state, output)``.

No other package is imported here: an adapter calls the module that it is given, and recognises the classes of
its package by their names. An adapter can be copied, pickled and saved like any module.
"""

from __future__ import annotations

import inspect
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import torch
from torch.utils import _pytree

from ckptplan.errors import InputError

__all__ = ["NorseCell", "SnnTorchCell", "SpikingJellyCell", "TorchCell"]

#: The bases of Norse's neurons that loop over time; the cell of the same name takes a step.
_NORSE_NEURONS = ("SNN", "SNNRecurrent")
#: What to use in place of layers of SpikingJelly that have no single-step mode.
_OTHER_MODULES = "modules that have a single-step mode; multi-step layers on the outputs of unroll"
#: Classes that loop over time themselves, by their package, each with what takes a step in its place.
_LOOPS: dict[str, dict[str, str]] = {
    "norse": {
        "Lift": "the module inside of it",
        "ExpFilter": "the filtered value in the state of a cell of your own",
        "LConv2d": "torch.nn.Conv2d",
        "PoissonEncoder": "PoissonEncoderStep, or inputs that are encoded beforehand",
        "SignedPoissonEncoder": "SignedPoissonEncoderStep, or inputs that are encoded beforehand",
        "ConstantCurrentLIFEncoder": "inputs that are encoded beforehand",
        "SpikeLatencyEncoder": "inputs that are encoded beforehand",
        "SpikeLatencyLIFEncoder": "inputs that are encoded beforehand",
        "SpikesToTimesDecoder": "the decoder on the outputs of ckptplan.torch.unroll",
        **dict.fromkeys(
            _NORSE_NEURONS, "a class derived from SNNCell or SNNRecurrentCell, which takes one step"
        ),
    },
    "snntorch": dict.fromkeys(
        ("StateLeaky", "AssociativeLeaky", "LeakyParallel", "LeakyKernel"),
        "neurons that take a step, such as Leaky",
    ),
    # Other layers of SpikingJelly say so by ``supported_step_mode``.
    "spikingjelly": dict.fromkeys(
        ("SpikingRNNBase", "DSRIFNode", "DSRLIFNode", "GatedLIFNode"), _OTHER_MODULES
    ),
}


class Adapter(torch.nn.Module):
    """The base of the adapters. It registers the module, so that optimizers find its parameters."""

    def __init__(self, module: torch.nn.Module) -> None:
        super().__init__()
        if not isinstance(module, torch.nn.Module):
            raise InputError(f"{type(module).__name__} is not a module", field="module", accepted="a module")
        self.module: Any = module


def find_class(module: torch.nn.Module, package: str, *names: str) -> str | None:
    """Return the first of ``names`` that the class of a module or a base of it has in a package, or None."""
    for base in type(module).__mro__:
        if base.__name__ in names and base.__module__.partition(".")[0] == package:
            return base.__name__
    return None


def describe_place(root: torch.nn.Module, module: torch.nn.Module) -> str:
    """Return the class of a module and its path in ``root``, as text."""
    path = next((path for path, child in root.named_modules() if child is module), "")
    return f"{type(module).__name__} ({path})" if path else type(module).__name__


def list_step_modes(module: Any) -> tuple[str, ...]:
    """Return the modes that a module of SpikingJelly has; others take a time step."""
    list_modes = getattr(module, "supported_step_mode", None)
    return list_modes() if callable(list_modes) else ("s",)


def _refuse(root: torch.nn.Module, module: torch.nn.Module, problem: str, accepted: str) -> InputError:
    """Return the error for a module inside of ``root``."""
    return InputError(f"{describe_place(root, module)} {problem}", field="module", accepted=accepted)


def _refuse_loops(root: torch.nn.Module, package: str) -> None:
    """Raise InputError for a module that loops over time itself."""
    for module in root.modules():
        name = find_class(module, package, *_LOOPS[package])
        accepted = _LOOPS[package][name] if name is not None else None
        if name in _NORSE_NEURONS and type(module).__module__.startswith("norse."):
            accepted = f"{type(module).__name__}Cell, which takes one step"
        elif "s" not in list_step_modes(module):
            accepted = _OTHER_MODULES
        elif package == "norse" and isinstance(module, torch.nn.RNNBase):
            accepted = f"torch.nn.{type(module).__name__}Cell, within a cell of your own"
        if accepted is not None:
            raise _refuse(root, module, "takes whole sequences, and a step has no time axis", accepted)


class TorchCell(Adapter):
    """``torch.nn.RNNCell``, ``GRUCell`` and ``LSTMCell``: the output is the (hidden) state.

    SpikingJelly's ``SpikingVanillaRNNCell``, ``SpikingGRUCell`` and ``SpikingLSTMCell`` are called in the same
    way. The initial state may be None, for zeros. Raises InputError for another module.
    """

    def __init__(self, module: torch.nn.Module) -> None:
        super().__init__(module)
        # Cells of SpikingJelly have the signature of those of PyTorch.
        is_cell = isinstance(module, torch.nn.RNNCellBase)
        if not is_cell and not find_class(module, "spikingjelly", "SpikingRNNCellBase"):
            raise InputError(
                f"{type(module).__name__} is not such a cell",
                field="module",
                accepted="torch.nn.RNNCell, GRUCell or LSTMCell, or SpikingJelly's cells of these names",
            )

    def forward(self, state: Any, x: torch.Tensor) -> tuple[Any, torch.Tensor]:
        """Take a step."""
        state = self.module(x, state)
        return state, state[0] if isinstance(state, tuple) else state


# Norse


class NorseCell(Adapter):
    """A Norse cell (``LIFCell``, ``LIFRecurrentCell``, ``LSNNCell``, ...): its named tuple is the state.

    ``SequentialState`` and ``RecurrentSequential`` of such cells are cells too. The initial state may be None.
    Raises InputError for modules that loop over time themselves (``LIF``, ``LSNNRecurrent``, ``Lift``, ...):
    they would take the batch for time.
    """

    def __init__(self, module: torch.nn.Module) -> None:
        super().__init__(module)
        _refuse_loops(module, "norse")
        for child in module.modules():
            if find_class(child, "norse", "RegularizationCell"):
                raise _refuse(
                    module,
                    child,
                    "adds up in an attribute what its steps return, and they cannot run again",
                    "the sum in the state of a cell of your own, read by final_loss",
                )

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
            if find_class(child, "norse", "SNNRecurrentCell") and not child.autapses:
                child.recurrent_weights.register_hook(_clear_diagonal)


def _clear_diagonal(gradient: torch.Tensor) -> torch.Tensor:
    return gradient.clone().fill_diagonal_(0.0)


# snnTorch

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
            if getattr(child, "init_hidden", False):
                raise InputError(
                    "hides its state (init_hidden=True), so that no step can run again",
                    field="neuron",
                    accepted="init_hidden=False",
                )
            if getattr(getattr(child, "spike_grad", None), "__qualname__", "") == _RANDOM_SURROGATE:
                raise InputError(
                    "has surrogate.SSO, which draws random numbers in the backward pass: steps that are "
                    "reversed in parts would draw the same ones again",
                    field="neuron",
                    accepted="another surrogate, such as surrogate.atan()",
                )
        _refuse_loops(neuron, "snntorch")
        _refuse_loops(inner, "snntorch")
        if not hasattr(neuron, "reset_mem"):
            raise InputError(
                f"{type(neuron).__name__} is not a neuron of snnTorch",
                field="neuron",
                accepted="SnnTorchCell(neuron, layer), or your own cell that passes the state of each layer",
            )
        for child in inner.modules():
            if hasattr(child, "reset_mem") or "_memories" in vars(child):
                raise InputError(
                    f"has a second neuron or a memory, {describe_place(inner, child)}",
                    field="layer",
                    accepted="one neuron a cell, or your own cell that passes the state of each layer",
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


# SpikingJelly

#: Modules that take a state and return it, and have an adapter of their own.
_EXPLICIT = {"SpikingRNNCellBase": "TorchCell", "_NIRStatefulModule": "NorseCell"}
#: Attributes that make a node append the state of each step to a list.
_RECORDS = ("_store_v_seq", "_store_i_seq", "_store_state_seqs")
#: The types of values without parts. Most memories are of these types.
_SINGLE = (torch.Tensor, float, int, type(None))


class SpikingJellyCell(Adapter):
    """A SpikingJelly module in single-step mode, with the hidden states of all its nodes made explicit.

    The state is the tuple of memories, in the order of ``base.extract_memories``; ``initial_state()`` returns
    the initial state, for which None stands. In a step, the nodes work on this state. Afterwards they have
    their own memories again.

    Raises InputError for modules in multi-step mode (``step_mode="m"``), also if they are set to it later, for
    those that have no other mode, and for nodes that keep the states of all steps (``store_v_seq=True``).
    """

    def __init__(self, module: torch.nn.Module) -> None:
        super().__init__(module)
        _refuse_loops(module, "spikingjelly")
        for child in module.modules():
            name = find_class(child, "spikingjelly", *_EXPLICIT)
            if name == "_NIRStatefulModule" or (name is not None and child is module):
                raise _refuse(
                    module,
                    child,
                    "takes its state and returns it, instead of keeping it",
                    f"ckptplan.torch.adapters.{_EXPLICIT[name]}",
                )
        self._find_memories()

    def initial_state(self) -> tuple[Any, ...]:
        """Return the current memories; after ``functional.reset_net``, these are the initial memories."""
        return tuple(_copy(value) for memories in self._find_memories() for value in memories.values())

    def forward(self, state: Any, x: torch.Tensor) -> tuple[tuple[Any, ...], Any]:
        """Take a step."""
        nodes = self._find_memories()
        before = [dict(memories) for memories in nodes]
        values = self.initial_state() if state is None else tuple(state)
        if len(values) != sum(map(len, before)):
            raise InputError(
                f"holds {len(values)} values, and the nodes have {sum(map(len, before))} memories",
                field="state",
                accepted="cell.initial_state(), or a state that the cell returned",
            )
        remaining = iter(values)
        try:
            for memories in nodes:
                for name in memories:
                    memories[name] = _rebuild(next(remaining))
            output = self.module(x)
            after = tuple(value for memories in nodes for value in memories.values())
        finally:
            for memories, values_before in zip(nodes, before, strict=True):
                memories.clear()
                memories.update(values_before)
        return after, output

    def _find_memories(self) -> list[dict[str, Any]]:
        """Return the memories of all nodes. Raises InputError if a module is not in single-step mode."""
        neurons = []
        for child in self.module.modules():
            attributes = vars(child)
            if attributes.get("_step_mode", "s") != "s" or attributes.get("step_mode", "s") != "s":
                raise _refuse(
                    self.module,
                    child,
                    "is in multi-step mode, so that it takes the batch for time",
                    'single-step mode: functional.set_step_mode(net, "s"), or step_mode="s"',
                )
            if "_memories" in attributes:
                neurons.append(attributes["_memories"])
                if any(attributes.get(name) for name in _RECORDS):
                    raise _refuse(
                        self.module,
                        child,
                        "keeps the states of all steps",
                        "store_v_seq=False (or store_state_seqs=False); the state has the last one",
                    )
        return neurons


def _rebuild(value: Any) -> Any:
    """Return the same tensors in new containers, since some nodes change lists in place."""
    if isinstance(value, _SINGLE):
        return value
    return _pytree.tree_map(lambda leaf: leaf, value)


def _copy(value: Any) -> Any:
    """Return a copy of tensors and containers, since ``reset_net`` changes memories in place."""
    return _pytree.tree_map(lambda leaf: leaf.clone() if isinstance(leaf, torch.Tensor) else leaf, value)
