"""Runs steps in compiled pieces: functions of K time steps that PyTorch's compiler takes as a whole.

Pieces begin at multiples of K. Other steps run one by one, as they are written: steps that fill no whole piece,
and steps of a piece whose state has another form than most states, such as the first state.

The compiler unrolls the loop over the steps of a piece. It treats the number of the first step as a variable,
which it knows by the name of the argument. Otherwise the number would be a constant, and each piece would be
compiled again. ``SHIFT`` is added to the number, since the compiler treats 0 and 1 as constants.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any, Literal, TypeAlias

import torch
from torch import Tensor
from torch.utils import _pytree

from ckptplan.torch.pieces.inputs import PieceLoss
from ckptplan.torch.run.gradients import Gradient
from ckptplan.torch.run.outputs import SummedLoss, check_scalar
from ckptplan.torch.run.steps import Cell, Steps, Tape, check_result
from ckptplan.torch.state.nests import Nest, fill, flatten, stack, unstack

#: Added to the number of a step.
SHIFT = 2
#: The argument that the compiler treats as a variable.
VARIABLE = "ckptplan_start"
#: What a piece returns besides the state: the losses of its steps, one loss of all steps, or their outputs.
Product: TypeAlias = Literal["loss", "chunk_loss", "outputs"]


class NotCompiled(RuntimeError):  # noqa: N818 - what it is, not what it says
    """Steps cannot run compiled. They have changed nothing, so that they can run as they are written.

    Arguments:
        text: the reason, for users.
        whatever_loss: whether pieces without the loss could not be compiled either.
    """

    def __init__(self, text: str, *, whatever_loss: bool = False) -> None:
        super().__init__(text)
        self.text, self.whatever_loss = text, whatever_loss


def run_steps(
    cell: Any, loss: Any, ckptplan_start: int, state: Any, inputs: Any, *, product: Product
) -> tuple[Any, Any]:
    """Run the steps of a piece; return their losses or outputs, time first, and the state after them.

    Arguments:
        cell: the cell.
        loss: the function that ``product`` names, None for outputs.
        ckptplan_start: the number of the first step plus ``SHIFT``.
        state: the state before the first step.
        inputs: the inputs of the steps, time first.
        product: what to return besides the state. One loss of all steps has shape (1,).
    """
    outputs = []
    for x in _iterate(inputs):
        state, output = cell(state, x)
        outputs.append(output)
    start = ckptplan_start - SHIFT
    if product == "loss":
        return torch.stack(
            [check_scalar(loss(start + number, output), product) for number, output in enumerate(outputs)]
        ), state
    stacked = _pytree.tree_map(lambda *leaves: torch.stack(leaves), *outputs)
    if product == "chunk_loss":
        return check_scalar(loss(start, stacked), product).reshape(1), state
    return stacked, state


def _iterate(inputs: Any) -> Iterator[Any]:
    """Yield the input of each step from a nest of tensors with time first."""
    leaves, spec = _pytree.tree_flatten(inputs)
    for parts in zip(*(leaf.unbind(0) for leaf in leaves), strict=True):
        yield _pytree.tree_unflatten(parts, spec)


class PieceCell:
    """A cell whose step is a piece: ``cell(state, inputs) -> (state, outputs)``, with time first.

    Arguments:
        cell: the cell, whose steps run one by one.
    """

    def __init__(self, cell: Cell) -> None:
        self.cell = cell

    def __call__(self, state: Any, inputs: Any) -> tuple[Any, Any]:
        """Take a piece."""
        outputs = []
        for x in unstack(*flatten(inputs)):
            state, output = check_result(self.cell(state, x))
            outputs.append(output)
        return state, stack(outputs)


class CompiledSteps(Steps):
    """The steps of a call. Whole pieces of them run compiled.

    Steps of the plan are time steps of a cell, or pieces of a ``PieceCell``.

    Arguments:
        args, options: those of ``Steps``.
        piece: the ``CompiledPiece``, whose module imports PyTorch's compiler, which takes seconds.
    """

    is_compiled = True

    def __init__(self, *args: Any, piece: Any, **options: Any) -> None:
        super().__init__(*args, **options)
        self._piece, self._has_pieces = piece, isinstance(self.cell, PieceCell)
        self._step_cell = self.cell.cell if isinstance(self.cell, PieceCell) else self.cell
        #: How many steps of the plan make a piece.
        self._count = 1 if self._has_pieces else piece.length
        self._loss = self._find_loss()

    def _find_loss(self) -> Any:
        """Return the loss that is compiled into the piece, None if there is none."""
        if not isinstance(self.outputs, SummedLoss) or self._piece.product == "outputs":
            return None
        loss: Any = self.outputs.loss if self.outputs.loss is not None else self.outputs.chunk_loss
        return loss.loss if isinstance(loss, PieceLoss) else loss

    def run(self, leaves: Sequence[Tensor], nest: Nest, start: int, stop: int) -> list[Tensor]:
        cuts = list(self._cut(start, stop))
        bounds = [self.inputs.rows(*cut) for cut in cuts]
        # Split at once: a slice would give each piece a gradient as large as all inputs.
        parts = [leaf.split([last - first for first, last in bounds]) for leaf in leaves]
        terms: list[Tensor] = []
        with self._piece.settings():
            for number, cut in enumerate(cuts):
                rows = [part[number] for part in parts]
                compiled = self._run_piece(rows, nest, *cut)
                terms += self._run_as_written(rows, nest, *cut) if compiled is None else compiled
        return terms

    def _cut(self, start: int, stop: int) -> Iterator[tuple[int, int]]:
        """Yield whole pieces, and the ranges of steps between them."""
        while start < stop:
            end = min((start // self._count + 1) * self._count, stop)
            yield start, end
            start = end

    def _run_as_written(self, rows: Sequence[Tensor], nest: Nest, start: int, stop: int) -> list[Tensor]:
        terms = super().run(rows, nest, start, stop)
        # The states after the first steps have the form of most states.
        self._piece.learn(self.state.read(), records=torch.is_grad_enabled())
        return terms

    def _run_piece(self, rows: Sequence[Tensor], nest: Nest, start: int, stop: int) -> list[Tensor] | None:
        """Run the steps of a piece, as ``run``; return None if they have to run as they are written."""
        piece, records = self._piece, torch.is_grad_enabled()
        first, last = self.inputs.rows(start, stop)
        is_whole = last - first == piece.length and piece.failure is None
        if not is_whole or not piece.fits(self.state.read(), records=records):
            return None
        given = fill(nest, rows if records else [leaf.detach() for leaf in rows])
        passed = self.state.passed
        try:
            values, passed.value = piece.run(
                self._step_cell, self._loss, first + SHIFT, passed.value, given, records=records
            )
        except NotCompiled as error:
            piece.failure = error
            return None
        is_new = start >= self.frontier
        return self._take(values, start, is_new=is_new) if is_new or records else []

    def _take(self, values: Any, start: int, *, is_new: bool) -> list[Tensor]:
        """Give the results of a piece to the outputs; return the terms through which gradients enter."""
        if self._piece.product != "outputs":
            # One term for each step of the plan, or for the whole piece.
            is_whole = self._has_pieces or self._piece.product == "chunk_loss"
            return [values.sum()] if is_whole else list(values.unbind(0))
        if self._has_pieces:
            return list(self.outputs.take(start, values, is_new=is_new))
        return self.outputs.take_stacked(start, values, is_new=is_new)

    def reverse(self, tape: Tape, incoming: Sequence[Gradient]) -> None:
        super().reverse(tape, incoming)
        if self._piece.reuses_memory:
            # The graph of the next chunk would overwrite these gradients (pytorch#169545).
            copies = (None if gradient is None else gradient.clone() for gradient in self.state_gradients)
            self.state_gradients = list(copies)
            self.sums.copy()
