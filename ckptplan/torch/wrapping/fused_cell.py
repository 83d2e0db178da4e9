"""Runs runs of time steps of PyTorch's recurrent layers, each by one call of the fused kernel."""

from __future__ import annotations

from dataclasses import dataclass, replace
from functools import partial
from typing import Any, TypeAlias

import torch
from torch import _VF, Tensor

from ckptplan.torch.cell_calls import ClosedCell

#: The hidden state of all layers, (layers, B, H) each: of an LSTM two tensors, else one.
Hidden: TypeAlias = tuple[Tensor, ...]

_KERNELS = {"LSTM": "lstm", "GRU": "gru", "RNN_TANH": "rnn_tanh", "RNN_RELU": "rnn_relu"}


@dataclass(frozen=True, kw_only=True)
class FusedCell(ClosedCell):
    """A cell whose step is a run of time steps: ``cell(state, rows) -> (state, outputs)``.

    Rows are of shape (n, B, F), or, of packed sequences, pairs of rows (N, F) and batch sizes. States keep all
    B sequences, also those that have ended, or have not begun.
    """

    #: ``torch.nn.LSTM.mode`` and its like.
    mode: str
    #: The weights of each layer, in the order of PyTorch.
    weights: tuple[tuple[Tensor, ...], ...]
    #: Elements of an output.
    width: int
    bias: bool
    #: Dropout between layers, in force only if ``training``.
    dropout: float
    training: bool
    #: Whether time runs from the end to the beginning.
    backwards: bool = False

    @property
    def drops(self) -> bool:
        """Whether dropout is in force."""
        return self.dropout > 0 and self.training and len(self.weights) > 1

    @property
    def flat_weights(self) -> tuple[Tensor, ...]:
        """All weights."""
        return tuple(weight for layer in self.weights for weight in layer)

    @property
    def parameters(self) -> tuple[Tensor, ...]:
        """The weights that require a gradient, each once: layers may share them."""
        return tuple({id(one): one for one in self.flat_weights if one.requires_grad}.values())

    def detach(self) -> FusedCell:
        """Return a cell with the same numbers, outside of any graph."""
        return replace(
            self,
            weights=tuple(
                tuple(one.detach().requires_grad_() if one.requires_grad else one for one in layer)
                for layer in self.weights
            ),
        )

    def __call__(self, state: Hidden, rows: Any) -> tuple[Hidden, Tensor]:
        """Run time steps; return the state after them, and the outputs of the last layer."""
        if isinstance(rows, Tensor):
            outputs, after = self._run_layers(rows.flip(0) if self.backwards else rows, None, state)
            return after, outputs.flip(0) if self.backwards else outputs
        data, sizes = rows
        batch, active = state[0].shape[1], int(sizes[0])
        order = reverse_each(sizes).to(data.device) if self.backwards else None
        outputs, after = self._run_layers(
            data if order is None else data[order],
            sizes,
            tuple(part[:, :active].contiguous() for part in state),
        )
        if active < batch:
            after = tuple(
                torch.cat((new.to(old.dtype), old[:, active:]), 1)
                for new, old in zip(after, state, strict=True)
            )
        return after, outputs if order is None else outputs[order]

    def _run_layers(self, data: Tensor, sizes: Tensor | None, state: Hidden) -> tuple[Tensor, Hidden]:
        if not self.drops:
            return self._call_kernel(data, sizes, state, self.weights)
        # Kernels of some devices draw from a generator of their own, which cannot be set back. Masks that are
        # drawn here are drawn again when steps run again.
        ends = []
        for number, weights in enumerate(self.weights):
            if number:
                data = torch.nn.functional.dropout(data, self.dropout, training=True)
            own = tuple(part[number : number + 1] for part in state)
            data, end = self._call_kernel(data, sizes, own, (weights,))
            ends.append(end)
        return data, tuple(torch.cat(parts) for parts in zip(*ends, strict=True))

    def _call_kernel(
        self, data: Tensor, sizes: Tensor | None, state: Hidden, weights: tuple[tuple[Tensor, ...], ...]
    ) -> tuple[Tensor, Hidden]:
        kernel = getattr(_VF, _KERNELS[self.mode])
        hidden = state if self.mode == "LSTM" else state[0]
        flat = [weight for layer in weights for weight in layer]
        settings = (flat, self.bias, len(weights), 0.0, self.training, False)
        if sizes is None:
            # The last argument is batch_first.
            outputs, *end = kernel(data, hidden, *settings, False)
        else:
            outputs, *end = kernel(data, sizes, hidden, *settings)
        return outputs, tuple(end)


def reverse_each(sizes: Tensor) -> Tensor:
    """Return the rows of packed sequences with each sequence reversed: its own inverse.

    ``sizes`` are the numbers of sequences that have each step.
    """
    batch = int(sizes[0])
    # On the device of the sizes, which is the CPU, whatever torch.set_default_device says.
    count = partial(torch.arange, device=sizes.device)
    lengths = (sizes.unsqueeze(1) > count(batch)).sum(0)
    begins = sizes.cumsum(0) - sizes
    step = torch.repeat_interleave(count(len(sizes)), sizes)
    sequence = count(len(step)) - begins[step]
    return begins[lengths[sequence] - 1 - step] + sequence
