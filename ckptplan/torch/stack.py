"""Stacks cells that run whole chunks: each cell takes the outputs of the cell before it."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import torch

from ckptplan.errors import InputError, quote_value
from ckptplan.torch.chunk_cell import ChunkCell, ChunkGradients, SavedOutputs, sum_gradients


@dataclass(frozen=True)
class StackOutputs:
    """The saved outputs of each layer."""

    layers: tuple[Any, ...]

    @property
    def bytes(self) -> int:
        """The bytes of the tensors."""
        return sum(saved.bytes for saved in self.layers)

    def part(self, start: int, stop: int) -> StackOutputs:
        """Return the outputs of steps start..stop-1, counted from the first step here."""
        return StackOutputs(tuple(saved.part(start, stop) for saved in self.layers))

    def moved(self, keep: Callable[[torch.Tensor], torch.Tensor]) -> StackOutputs:
        """Return the same outputs with each of their own tensors replaced by ``keep(tensor)``."""
        return StackOutputs(tuple(saved.moved(keep) for saved in self.layers))

    def carried(self, keep: Callable[[torch.Tensor], torch.Tensor]) -> StackOutputs:
        """Return the same outputs with each tensor replaced, including tensors shared with earlier steps."""
        return StackOutputs(tuple(getattr(saved, "carried", saved.moved)(keep) for saved in self.layers))


class ChunkStack(ChunkCell):
    """Several layers as one cell: each layer takes the outputs of the layer before it.

    The state is a tuple of the states of the layers, and the output is the output of the last layer. All layers
    save their outputs. A later layer computes its input currents again from the saved outputs before it. With
    ``spiking_inputs=True`` it saves its inputs as well, and computes the currents by a sparse product.

    Arguments:
        layers: cells that run whole chunks, as ``LIF`` and ``SpikingLayer``.

    Raises InputError for other cells.
    """

    def __init__(self, *layers: ChunkCell) -> None:
        super().__init__()
        for number, layer in enumerate(layers):
            if not isinstance(layer, ChunkCell):
                raise InputError(
                    f"{quote_value(layer)} is not a cell that runs chunks",
                    field=f"layers.{number}",
                    accepted="LIF, SpikingLayer or another ChunkCell",
                )
        if not layers:
            raise InputError("are missing", field="layers", accepted="one cell or more")
        self.layers = torch.nn.ModuleList(layers)

    @property
    def _cells(self) -> Sequence[Any]:
        return list(self.layers)

    @property
    def runs_from_state(self) -> bool:  # type: ignore[override]
        """Whether no layer needs the outputs of the step before."""
        return all(layer.runs_from_state for layer in self._cells)

    def initial_state(self, *batch: int) -> tuple[Any, ...]:
        """Return the initial states of the layers."""
        return tuple(layer.initial_state(*batch) for layer in self._cells)

    def for_sequence(self) -> ChunkStack:
        """Return a stack of the layers' copies for one sequence."""
        if type(self) is not ChunkStack:
            return self
        return ChunkStack(*(layer.for_sequence() for layer in self._cells))

    def forward(self, state: tuple[Any, ...], x: Any) -> tuple[tuple[Any, ...], Any]:
        """Take a step of each layer under autograd."""
        states = []
        for layer, layer_state in zip(self._cells, state, strict=True):
            after, x = layer(layer_state, x)
            states.append(after)
        return tuple(states), x

    def run(self, state: tuple[Any, ...], inputs: Any, before: Any | None) -> tuple[Any, StackOutputs]:
        """Run steps for the first time, layer by layer."""
        states, saved = list[Any](), list[SavedOutputs]()
        for layer, layer_state, last in zip(self._cells, state, before or [None] * len(state), strict=True):
            after, outputs = layer.run(layer_state, inputs, last)
            inputs = layer.dense(outputs)
            states.append(after)
            saved.append(outputs)
        return tuple(states), StackOutputs(tuple(saved))

    def replay(self, state: tuple[Any, ...], inputs: Any, outputs: StackOutputs) -> tuple[Any, ...]:
        """Return the states after each step, from the saved outputs of all layers."""
        parts = zip(self._cells, state, self._list_inputs(inputs, outputs), outputs.layers, strict=True)
        return tuple(layer.replay(begin, layer_inputs, saved) for layer, begin, layer_inputs, saved in parts)

    def last(self, outputs: StackOutputs) -> tuple[Any, ...]:
        """Return the part of its saved outputs that each layer needs to continue."""
        return tuple(layer.last(saved) for layer, saved in zip(self._cells, outputs.layers, strict=True))

    def dense(self, outputs: StackOutputs) -> Any:
        """Return the outputs of the last layer, time first."""
        return self._cells[-1].dense(outputs.layers[-1])

    def reverse(
        self,
        state: tuple[Any, ...],
        states: tuple[Any, ...],
        inputs: Any,
        outputs: StackOutputs,
        *,
        output_gradients: Any | None,
        state_gradients: tuple[Any, ...],
        wants_inputs: bool,
    ) -> ChunkGradients:
        """Reverse the layers from the last one. Each gets the gradient of its outputs from the next layer."""
        layer_inputs = self._list_inputs(inputs, outputs)
        begins, gradients = list[Any](), list[tuple[torch.Tensor, torch.Tensor | None]]()
        for number, layer in reversed(list(enumerate(self._cells))):
            part = layer.reverse(
                state[number],
                states[number],
                layer_inputs[number],
                outputs.layers[number],
                output_gradients=output_gradients,
                state_gradients=state_gradients[number],
                wants_inputs=wants_inputs or number > 0,
            )
            output_gradients = part.inputs
            begins.append(part.state)
            gradients += zip(layer.parameters(), part.parameters, strict=True)
        return ChunkGradients(
            state=tuple(reversed(begins)),
            inputs=output_gradients,
            parameters=sum_gradients(self, gradients),
        )

    def _list_inputs(self, inputs: Any, outputs: StackOutputs) -> list[Any]:
        """Return the inputs of each layer: those of the stack, and the outputs of all layers but the last."""
        earlier = zip(self._cells[:-1], outputs.layers, strict=False)
        return [inputs, *(layer.dense(saved) for layer, saved in earlier)]
