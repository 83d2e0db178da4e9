"""Runs of steps as functions that PyTorch's compiler takes as a whole.

The compiler unrolls the loops. It takes the number of the first step as a variable, by the name of the
argument: another number would be a part of what is compiled, and each piece would be compiled anew. It is
``SHIFT`` too large, since the compiler knows 0 and 1 by themselves.

Why steps run as they are written although ``compile`` was asked for.
"""

from __future__ import annotations

import warnings
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager
from dataclasses import dataclass
from types import FunctionType
from typing import Any, Literal, TypeAlias

import torch
from torch.utils import _pytree

from ckptplan.torch.losses import check_scalar, stack_outputs
from ckptplan.torch.survey import count_frames
from ckptplan.torch.trees import Leaves, Structure, is_differentiable


class CompileFallback(UserWarning):
    """Steps run as they are written, though ``compile`` was asked for; the message says why."""


@dataclass(frozen=True, kw_only=True)
class NotCompiled:
    """Why a call is not compiled."""

    #: The whole story, for people.
    text: str
    #: Whether the loss has no part in it, so that pieces without the loss could not be compiled either.
    whatever_loss: bool = False

    def warn(self, *, what: str = "steps") -> None:
        """Say what runs uncompiled, and why, where code outside of ckptplan and PyTorch called."""
        text = f"the {what} run uncompiled: {self.text}"
        warnings.warn(text, CompileFallback, stacklevel=count_frames())


#: Of a piece in a sequence that was refused: it never runs compiled again.
REFUSED = NotCompiled(text="a sequence that ran in compiled pieces was refused")


class PieceError(RuntimeError):
    """A compiled piece cannot run; nothing has changed, so that its steps can run uncompiled."""

    def __init__(self, why: NotCompiled) -> None:
        self.why = why
        super().__init__(why.text)


#: Added to the numbers of steps.
SHIFT = 2
#: The argument that is a variable.
VARIABLE = "ckptplan_start"
#: ``run(cell, loss, start, state, inputs)`` returns what the steps made, and the state after them.
PieceFunction = Callable[[Any, Any, int, Any, Any], tuple[Any, Any]]


def run_with_loss(
    cell: Any, loss: Any, ckptplan_start: int, state: Any, inputs: Any
) -> tuple[torch.Tensor, Any]:
    """Return the loss of each step, and the state after the last one."""
    outputs, state = run_with_outputs(cell, None, 0, state, inputs)
    terms = []
    for place, output in enumerate(outputs):
        terms.append(check_scalar(loss(ckptplan_start - SHIFT + place, output), "loss"))
    return torch.stack(terms), state


def run_with_chunk_loss(
    cell: Any, loss: Any, ckptplan_start: int, state: Any, inputs: Any
) -> tuple[torch.Tensor, Any]:
    """Return the loss of all steps together, as the only element of a tensor, and the state after them."""
    outputs, state = run_with_outputs(cell, None, 0, state, inputs)
    return check_scalar(loss(ckptplan_start - SHIFT, stack_outputs(outputs)), "chunk_loss").reshape(1), state


def run_with_outputs(
    cell: Any, loss: Any, ckptplan_start: int, state: Any, inputs: Any
) -> tuple[list[Any], Any]:
    """Return the output of each step, and the state after the last one."""
    del loss, ckptplan_start
    outputs = []
    for x in _iterate(inputs):
        state, output = cell(state, x)
        outputs.append(output)
    return outputs, state


def _iterate(inputs: Any) -> Iterator[Any]:
    """Yield the input of each step, of tensors with time first, nested or not."""
    if isinstance(inputs, torch.Tensor):
        yield from inputs.unbind(0)
        return
    leaves, spec = _pytree.tree_flatten(inputs)
    parts = [leaf.unbind(0) if isinstance(leaf, torch.Tensor) else None for leaf in leaves]
    count = next(len(part) for part in parts if part is not None)
    for place in range(count):
        step = [leaf if part is None else part[place] for leaf, part in zip(leaves, parts, strict=True)]
        yield _pytree.tree_unflatten(step, spec)


def copy_function(function: Any) -> PieceFunction:
    """Return a function of its own code object: the compiler keeps what it makes with the code."""
    return FunctionType(function.__code__.replace(), function.__globals__, function.__name__)


#: What a piece returns besides the state: the losses of its steps, their loss as a whole, or their outputs.
Product: TypeAlias = Literal["loss", "chunk_loss", "outputs"]


@dataclass(frozen=True, kw_only=True)
class Form:
    """What all states that a piece is called with have in common."""

    spec: Any
    plain: tuple[Any, ...]
    leaves: tuple[tuple[torch.Size, torch.dtype, torch.device], ...]

    @classmethod
    def of(cls, leaves: Leaves, structure: Structure) -> Form:
        """Return the form of a state."""
        return cls(
            spec=structure.spec,
            plain=structure.plain,
            leaves=tuple((leaf.shape, leaf.dtype, leaf.device) for leaf in leaves),
        )


@dataclass(kw_only=True)
class CompiledPiece:
    """Runs K steps at a time, compiled.

    Arguments:
        steps: K.
        product: what it returns besides the state.
        form: of the states it is called with.
        advance: runs without a tape.
        record: runs with one.
        settings: how PyTorch's compiler is set while they run: it may compile again.
        reuses_memory: whether each run overwrites the results of the run before, as CUDA graphs do.
    """

    steps: int
    product: Product
    form: Form
    advance: PieceFunction
    record: PieceFunction
    settings: Callable[[], AbstractContextManager[None]]
    reuses_memory: bool = False
    #: Set when it turned out that it cannot run, or must not.
    broken: NotCompiled | None = None

    def distrust(self) -> None:
        """Keep it from running: a sequence of it was refused."""
        self.broken = self.broken or REFUSED

    def accepts(self, leaves: Leaves, structure: Structure) -> bool:
        """Return whether a state is of the form that was compiled."""
        form = self.form
        return (
            len(leaves) == len(form.leaves)
            and all(
                leaf.dtype == dtype and leaf.shape == shape and leaf.device == device
                for leaf, (shape, dtype, device) in zip(leaves, form.leaves, strict=True)
            )
            and structure.plain == form.plain
            and structure.spec == form.spec
        )


def copy_from_graph(tensor: torch.Tensor) -> torch.Tensor:
    """Return a tensor that the next run of a CUDA graph does not overwrite; a CPU has no such graphs."""
    return tensor.clone() if tensor.is_cuda else tensor


def prepare_leaves(leaves: Leaves, *, roots: bool) -> Leaves:
    """Return a state as pieces are called with it, so that none is compiled for other strides or the like.

    Leaves are contiguous and distinct. With ``roots``, floats that are outside of any graph begin one; without,
    all are outside.
    """
    made: list[torch.Tensor] = []
    for leaf in leaves:
        one = leaf if leaf.is_contiguous() else leaf.contiguous()
        if not roots:
            one = one.detach()
        elif not one.requires_grad and is_differentiable(one):
            one = one.detach().requires_grad_()
        elif any(one is other for other in made):
            one = one.view_as(one)
        made.append(one)
    return tuple(made)
