"""Runs of steps as functions that PyTorch's compiler takes as a whole.

The compiler unrolls the loops. It takes the number of the first step as a variable, by the name of the
argument: another number would be a part of what is compiled, and each piece would be compiled anew. It is
``SHIFT`` too large, since the compiler knows 0 and 1 by themselves.

Steps may run as they are written although ``compile`` was asked for: then it is said why.
"""

from __future__ import annotations

import warnings
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager
from dataclasses import dataclass, field
from typing import Any, Literal, TypeAlias

import torch
from torch.utils import _pytree

from ckptplan.torch.losses import check_scalar, stack_outputs
from ckptplan.torch.survey import Measurement, count_frames
from ckptplan.torch.trees import Leaves, Structure, is_differentiable


class CompileFallback(UserWarning):
    """Steps run as they are written, though ``compile`` was asked for; the message says why."""


class NotCompiled(RuntimeError):  # noqa: N818 - what it is, not what it says
    """Steps cannot run compiled; nothing has changed, so that they can run as they are written.

    Arguments:
        text: why, for people.
        whatever_loss: whether pieces without the loss could not be compiled either.
    """

    def __init__(self, text: str, *, whatever_loss: bool = False) -> None:
        super().__init__(text)
        self.text, self.whatever_loss = text, whatever_loss


def warn_uncompiled(why: str, *, what: str = "steps") -> None:
    """Say what runs uncompiled, and why, where code outside of ckptplan and PyTorch called."""
    warnings.warn(f"the {what} run uncompiled: {why}", CompileFallback, stacklevel=count_frames())


#: Added to the numbers of steps.
SHIFT = 2
#: The argument that is a variable.
VARIABLE = "ckptplan_start"
#: What a piece returns besides the state: the losses of its steps, their loss as a whole, or their outputs.
Product: TypeAlias = Literal["loss", "chunk_loss", "outputs"]


def run_steps(
    cell: Any, loss: Any, ckptplan_start: int, state: Any, inputs: Any, *, product: Product = "outputs"
) -> tuple[Any, Any]:
    """Return what a piece is to return, and the state after its last step; a loss as a whole is one of one.

    Arguments:
        cell: the cell.
        loss: the function that is named by ``product``, None for outputs.
        ckptplan_start: the number of its first step, ``SHIFT`` too large.
        state: the state before it.
        inputs: those of its steps, time first.
        product: what it is to return.
    """
    outputs = []
    for x in _iterate(inputs):
        state, output = cell(state, x)
        outputs.append(output)
    if product == "outputs":
        return outputs, state
    start = ckptplan_start - SHIFT
    if product == "chunk_loss":
        return check_scalar(loss(start, stack_outputs(outputs)), product).reshape(1), state
    terms = []
    for place, output in enumerate(outputs):
        terms.append(check_scalar(loss(start + place, output), product))
    return torch.stack(terms), state


def _iterate(inputs: Any) -> Iterator[Any]:
    """Yield the input of each step, of tensors with time first, nested or not."""
    leaves, spec = _pytree.tree_flatten(inputs)
    parts = [leaf.unbind(0) if isinstance(leaf, torch.Tensor) else None for leaf in leaves]
    count = next(len(part) for part in parts if part is not None)
    for place in range(count):
        step = [leaf if part is None else part[place] for leaf, part in zip(leaves, parts, strict=True)]
        yield _pytree.tree_unflatten(step, spec)


def describe_form(leaves: Leaves, structure: Structure) -> Any:
    """Return what all states that a piece is called with have in common."""
    return structure, tuple((leaf.shape, leaf.dtype, leaf.device) for leaf in leaves)


@dataclass(kw_only=True)
class CompiledPiece:
    """Runs K steps at a time, compiled.

    Arguments:
        steps: K.
        product: what it returns besides the state.
        form: of the states it is called with (``describe_form``).
        advance: runs without a tape, as ``run_steps``.
        record: runs with one.
        settings: how PyTorch's compiler is set while they run: it may compile again.
        reuses_memory: whether each run overwrites the results of the run before, as CUDA graphs do.
    """

    steps: int
    product: Product
    form: Any
    advance: Callable[..., tuple[Any, Any]]
    record: Callable[..., tuple[Any, Any]]
    settings: Callable[[], AbstractContextManager[None]]
    reuses_memory: bool = False
    #: What it takes as a step of a plan.
    measurement: Measurement = field(init=False)
    #: Whether it turned out that it cannot run, or must not, as a sequence of it was refused.
    broken: bool = False

    @property
    def seconds(self) -> float:
        """Seconds of a time step that runs without a tape, again with one, and is reversed."""
        one = self.measurement
        return (one.forward_seconds + one.record_seconds + one.backward_seconds) / self.steps


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
