"""Adapts networks of SpikingJelly, whose nodes keep their state in memories of their own."""

from __future__ import annotations

from typing import Any

import torch
from torch.utils import _pytree

from ckptplan.errors import InputError
from ckptplan.torch.adapters.adapter import Adapter, describe_place, find_class

#: Layers that loop over time themselves, besides those that say so by ``supported_step_mode``.
_SEQUENCES = frozenset({"SpikingRNNBase", "DSRIFNode", "DSRLIFNode", "GatedLIFNode"})
#: Modules that take a state and return it, and have an adapter of their own.
_EXPLICIT = {"SpikingRNNCellBase": "TorchCell", "_NIRStatefulModule": "NorseCell"}
#: Attributes that make a node append the state of each step to a list.
_RECORDS = ("_store_v_seq", "_store_i_seq", "_store_state_seqs")

#: The types of values without parts. Most memories are of these types.
_SINGLE = (torch.Tensor, float, int, type(None))

_Memories = dict[str, Any]


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
        for child in module.modules():
            _check_kind(module, child)
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
            self._check_names(nodes, before)
            after = tuple(value for memories in nodes for value in memories.values())
        finally:
            for memories, values_before in zip(nodes, before, strict=True):
                memories.clear()
                memories.update(values_before)
        return after, output

    def _find_memories(self) -> list[_Memories]:
        """Return the memories of all nodes. Raises InputError if a module is not in single-step mode."""
        neurons = []
        for child in self.module.modules():
            attributes = vars(child)
            if attributes.get("_step_mode", "s") != "s" or attributes.get("step_mode", "s") != "s":
                _refuse_sequences(describe_place(self.module, child), "is in multi-step mode")
            if "_memories" in attributes:
                neurons.append(attributes["_memories"])
                if any(attributes.get(name) for name in _RECORDS):
                    raise InputError(
                        f"{describe_place(self.module, child)} keeps the states of all steps",
                        field="module",
                        accepted="store_v_seq=False (or store_state_seqs=False); the state has the last one",
                    )
        return neurons

    def _check_names(self, nodes: list[_Memories], before: list[_Memories]) -> None:
        if any(list(now) != list(old) for now, old in zip(nodes, before, strict=True)):
            raise InputError(
                "registers or deletes a memory in a step, so that the state has another structure",
                field="module",
                accepted="register_memory in the constructor",
            )


def _check_kind(root: torch.nn.Module, module: Any) -> None:
    """Raise InputError for a class that takes whole sequences, or has another adapter."""
    modes = module.supported_step_mode() if hasattr(module, "supported_step_mode") else ("s",)
    if "s" not in modes or find_class(module, "spikingjelly", _SEQUENCES):
        raise InputError(
            f"{describe_place(root, module)} takes whole sequences, and a step has no time axis",
            field="module",
            accepted="modules that have a single-step mode; multi-step layers on the outputs of unroll",
        )
    name = find_class(module, "spikingjelly", frozenset(_EXPLICIT))
    if name == "_NIRStatefulModule" or (name is not None and module is root):
        raise InputError(
            f"{describe_place(root, module)} takes its state and returns it, instead of keeping it",
            field="module",
            accepted=f"ckptplan.torch.adapters.{_EXPLICIT[name]}",
        )


def _refuse_sequences(place: str, problem: str) -> None:
    raise InputError(
        f"{place} {problem}, so that it takes the batch for time",
        field="module",
        accepted='single-step mode: functional.set_step_mode(net, "s"), or step_mode="s"',
    )


def _rebuild(value: Any) -> Any:
    """Return the same tensors in new containers, since some nodes change lists in place."""
    if isinstance(value, _SINGLE):
        return value
    return _pytree.tree_map(lambda leaf: leaf, value)


def _copy(value: Any) -> Any:
    """Return a copy of tensors and containers, since ``reset_net`` changes memories in place."""
    return _pytree.tree_map(lambda leaf: leaf.clone() if isinstance(leaf, torch.Tensor) else leaf, value)
