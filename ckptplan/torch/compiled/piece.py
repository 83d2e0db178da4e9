"""A compiled piece: one graph that runs K steps without a tape, and one that records them."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import AbstractContextManager
from dataclasses import dataclass
from typing import Any, Literal, TypeAlias

import torch

from ckptplan.torch.compiled.steps import REFUSED, NotCompiled, PieceFunction
from ckptplan.torch.trees import Leaves, Structure, is_differentiable

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
        why_outputs: why the loss is not part of it, if there is one.
    """

    steps: int
    product: Product
    form: Form
    advance: PieceFunction
    record: PieceFunction
    settings: Callable[[], AbstractContextManager[None]]
    reuses_memory: bool = False
    why_outputs: NotCompiled | None = None
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
