"""Cuts sequences and losses into pieces of several time steps, which a cell takes in one call."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from functools import partial
from itertools import takewhile
from typing import Any

import torch
from torch import Tensor

from ckptplan.torch.run.call import Call
from ckptplan.torch.run.inputs import Inputs, detach_inputs
from ckptplan.torch.state.nests import Nest, fill, flatten, unstack


class PieceInputs(Inputs):
    """The pieces of a sequence: nests of tensors of shape (K, ...); the last piece may be shorter.

    A piece has the same time steps each time it runs. If a sequence were cut differently, kernels would round
    differently and draw other random numbers.

    Arguments:
        given: tensors with time as the first axis, or a nest of these; for packed sequences, their rows (N, F).
        length: the time steps of a piece, K.
        batch_sizes: for packed sequences, the number of sequences that have each time step, on the CPU. The
            input of a piece is then a pair of its rows and its batch sizes.
        backwards: whether the last piece runs first.

    Raises InputError.
    """

    joins_outputs = True

    def __init__(
        self, given: Any, length: int, *, batch_sizes: Tensor | None = None, backwards: bool = False
    ) -> None:
        super().__init__(given)
        self.length, self._backwards, self._batch_sizes = length, backwards, batch_sizes
        rows = self.leaves[0].shape[0]
        if batch_sizes is None:
            self._sizes: tuple[Tensor, ...] = ()
            #: Where pieces begin along the first axis, in the order of time, and where the last one ends.
            self._bounds = [*range(0, rows, length), rows]
        else:
            self._sizes = batch_sizes.split(length)
            ends = [0, *batch_sizes.cumsum(0).tolist()]
            self._bounds = [*ends[:-1:length], rows]
        self.steps = len(self._bounds) - 1

    def rows(self, start: int, stop: int) -> tuple[int, int]:
        if self._backwards:
            start, stop = len(self._bounds) - 1 - stop, len(self._bounds) - 1 - start
        return self._bounds[start], self._bounds[stop]

    def join(self, outputs: Sequence[Tensor]) -> Tensor:
        return super().join(outputs[::-1] if self._backwards else outputs)

    def iterate(self, leaves: Sequence[Tensor], nest: Nest, start: int, stop: int) -> Iterator[Any]:
        bounds = [self.rows(step, step + 1) for step in range(start, stop)]
        order = -1 if self._backwards else 1
        sizes = [last - first for first, last in bounds[::order]]
        # Split at once: a slice would give each piece a gradient as large as all pieces.
        parts = [leaf.split(sizes)[::order] for leaf in leaves]
        for step, tensors in enumerate(zip(*parts, strict=True), start):
            piece = fill(nest, tensors)
            yield (piece, self._sizes[::order][step]) if self._sizes else piece

    def take_first(self, steps: int) -> Inputs:
        if self._sizes:
            # Later pieces may have fewer sequences, and a plan has to have room for the first one.
            full = (size.equal(self._sizes[0]) for size in self._sizes[:steps])
            steps = sum(takewhile(bool, full))
            leaves = [leaf[: self._bounds[steps]] for leaf in self.leaves]
            sizes: Tensor | None = torch.cat(self._sizes[:steps])
        else:
            leaves, sizes = self.cut(0, steps)[0], None
        given = fill(self.nest, detach_inputs(leaves))
        return PieceInputs(given, self.length, batch_sizes=sizes, backwards=self._backwards)


class PieceLoss:
    """The loss of a piece: one loss of all its outputs, or the sum of the losses of its time steps.

    Arguments:
        loss: ``loss(t, output)`` or ``chunk_loss(start, outputs)``.
        length: the time steps of a piece.
        is_of_steps: whether it is a loss of single time steps.
    """

    def __init__(self, loss: Callable[[int, Any], Tensor], length: int, is_of_steps: bool) -> None:
        self.loss, self.length, self.is_of_steps = loss, length, is_of_steps

    def __call__(self, piece: int, outputs: Any) -> Tensor:
        """Return the loss of a piece, whose outputs have time as the first axis."""
        start = piece * self.length
        if not self.is_of_steps:
            return self.loss(start, outputs)
        steps = enumerate(unstack(*flatten(outputs)), start)
        return torch.stack([self.loss(step, output) for step, output in steps]).sum()


def cut_call(call: Call, length: int, *, count: int | None = None) -> Call:
    """Return a call whose steps are pieces of ``length`` time steps, or only its first ``count`` pieces."""
    leaves, nest = call.inputs.leaves, call.inputs.nest
    if count is not None or call.inputs.is_made:
        steps = call.inputs.steps if count is None else min(count * length, call.inputs.steps)
        leaves, nest = call.inputs.cut(0, steps)
    losses = {name: loss for name, loss in call.losses.items() if name == "final_loss"}
    for name in call.losses.keys() - losses.keys():
        losses["loss"] = PieceLoss(call.losses[name], length, name == "loss")
    return replace(call, inputs=PieceInputs(fill(nest, leaves), length), losses=losses)


def reverse_each(sizes: Tensor) -> Tensor:
    """Return the order of rows that reverses each of the packed sequences. The order is its own inverse.

    ``sizes`` has the number of sequences that have each step.
    """
    batch = int(sizes[0])
    # On the device of the sizes, which is the CPU, whatever torch.set_default_device says.
    count = partial(torch.arange, device=sizes.device)
    lengths = (sizes.unsqueeze(1) > count(batch)).sum(0)
    begins = sizes.cumsum(0) - sizes
    step = torch.repeat_interleave(count(len(sizes)), sizes)
    sequence = count(len(step)) - begins[step]
    return begins[lengths[sequence] - 1 - step] + sequence
