"""Pieces of sequences, each a step of a plan, run by one call of the kernel of recurrent layers."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace
from functools import cached_property, partial
from typing import Any, TypeAlias

import torch
from torch import _VF, Tensor

from ckptplan.torch.cell_calls import ClosedCell
from ckptplan.torch.inputs import Sequence as Inputs
from ckptplan.torch.trees import Leaves, Structure, flatten

#: The hidden state of all layers, (layers, B, H) each: of an LSTM two tensors, else one.
Hidden: TypeAlias = tuple[Tensor, ...]


@dataclass(frozen=True, kw_only=True)
class FusedCell(ClosedCell):
    """A cell whose step is a run of time steps: ``cell(state, rows) -> (state, outputs)``.

    Rows are of shape (n, B, F), or, of packed sequences, pairs of rows (N, F) and batch sizes. States keep all
    B sequences, also those that have ended, or have not begun.
    """

    #: The name of the kernel in ``torch``: lstm, gru, rnn_tanh or rnn_relu.
    kernel: str
    #: The weights of each layer, in the order of PyTorch.
    weights: tuple[tuple[Tensor, ...], ...]
    bias: bool
    #: Dropout between layers, in force only if ``training``.
    dropout: float
    training: bool
    #: Whether time runs from the end to the beginning.
    backwards: bool = False

    @property
    def draws(self) -> bool:
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
            tuple(part[:, :active] for part in state),
        )
        if active < batch:
            after = tuple(
                torch.cat((new.to(old.dtype), old[:, active:]), 1)
                for new, old in zip(after, state, strict=True)
            )
        return after, outputs if order is None else outputs[order]

    def _run_layers(self, data: Tensor, sizes: Tensor | None, state: Hidden) -> tuple[Tensor, Hidden]:
        if not self.draws:
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
        kernel = getattr(_VF, self.kernel)
        # Kernels of some devices take no views, as of the first sequences of a batch, or of a single zero.
        state = tuple(part.contiguous() for part in state)
        hidden = state if self.kernel == "lstm" else state[0]
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


@dataclass(frozen=True, kw_only=True)
class SequenceRows:
    """A sequence of steps as rows: of shape (T, B, F), or packed, as ``PackedSequence`` has them, (N, F)."""

    data: torch.Tensor
    #: If packed, the number of sequences that have each step, on the CPU.
    batch_sizes: torch.Tensor | None = None

    @cached_property
    def steps(self) -> int:
        """The number of time steps, T."""
        return len(self.data if self.batch_sizes is None else self.batch_sizes)

    @property
    def batch(self) -> int:
        """The number of sequences."""
        return self.data.shape[1] if self.batch_sizes is None else int(self.batch_sizes[0])

    @property
    def size(self) -> int:
        """The number of time steps of all sequences together."""
        return self.data.numel() // self.data.shape[-1]

    def with_data(self, data: torch.Tensor) -> SequenceRows:
        """Return other data for the same steps."""
        return SequenceRows(data=data, batch_sizes=self.batch_sizes)

    def make_like(self, pieces: int, length: int) -> Any:
        """Return zeros as inputs of some pieces, all of whose steps all sequences of the batch have."""
        packed, last = self.batch_sizes is not None, self.data.shape[-1]
        shape = (pieces, length * self.batch, last) if packed else (pieces, length, self.batch, last)
        data = torch.zeros(
            shape, dtype=self.data.dtype, device=self.data.device, requires_grad=self.data.requires_grad
        )
        return (data, torch.full((pieces, length), self.batch, device="cpu")) if packed else data


class PieceInputs(Inputs):
    """Pieces of a sequence; a packed one's are pairs of rows and batch sizes.

    A piece has the same steps each time it runs: fused kernels round otherwise, and draw other numbers, if the
    same steps are cut otherwise.

    Arguments:
        rows: the sequence.
        piece: the time steps of a piece; the last one may have less.
        backwards: whether the last piece runs first.
    """

    def __init__(self, rows: SequenceRows, *, piece: int, backwards: bool) -> None:
        self.leaves, self.structure = flatten(rows.data)
        self._backwards = backwards
        begins = range(0, rows.steps, piece)
        #: The number of pieces.
        self.count = len(begins)
        if rows.batch_sizes is None:
            self._sizes = None
            #: Where pieces begin along the first axis, in the order of time, and where the last one ends.
            self.bounds = (*begins, rows.steps)
        else:
            self._sizes = rows.batch_sizes.split(piece)
            ends = [0, *rows.batch_sizes.cumsum(0).tolist()]
            self.bounds = (*(ends[begin] for begin in begins), ends[-1])
        self.joined_rows = self.bounds[-1]

    def piece(self, start: int, stop: int) -> tuple[Leaves, Structure]:
        first, last = self.rows(start, stop)
        return (self.leaves[0][first:last],), self.structure

    def iterate(self, leaves: Leaves, structure: Structure, start: int, stop: int) -> Iterator[Any]:
        places = range(start, stop)
        if self._backwards:
            places = range(self.count - 1 - start, self.count - 1 - stop, -1)
        bounds, first = self.bounds, min(places)
        # At once: a slice would give each piece a gradient as large as all of them.
        parts = leaves[0].split([bounds[place + 1] - bounds[place] for place in sorted(places)])
        for place in places:
            part = parts[place - first]
            yield part if self._sizes is None else (part, self._sizes[place])

    def rows(self, start: int, stop: int) -> tuple[int, int]:
        if self._backwards:
            start, stop = self.count - stop, self.count - start
        return self.bounds[start], self.bounds[stop]
