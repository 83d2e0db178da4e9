"""Guards tensors that a sequence leaves in attributes and lists against a gradient that they do not have.

A plain loop leaves tensors with a graph there, so that a user may add a loss of them afterwards. Under a plan
their graph is gone, or reaches back to the last chunk only.
"""

from __future__ import annotations

from collections.abc import Container, Iterable, Sequence
from typing import Any

import torch

from ckptplan.errors import InputError
from ckptplan.torch.surroundings.snapshot import Place, Surroundings, holds_graph, replace_tensors
from ckptplan.torch.trees import is_differentiable


class LeftoverTensor(torch.autograd.Function):
    """A tensor whose backward pass says that a planned sequence made it."""

    @staticmethod
    def forward(ctx: Any, tensor: torch.Tensor, name: str, *roots: torch.Tensor) -> torch.Tensor:
        """Return the same numbers, as if they were computed from ``roots``."""
        del roots
        ctx.name = name
        return tensor.view_as(tensor)

    @staticmethod
    def backward(ctx: Any, *_: torch.Tensor) -> Any:
        """Raise InputError."""
        raise InputError(
            f"{ctx.name} was left by the steps of a planned sequence, whose graphs are gone: there is no "
            "gradient of it",
            field="loss",
            accepted="a loss taken within the sequence (loss, chunk_loss, final_loss), and what steps pass on "
            "to each other in the state; detach() for what is only looked at",
        )


def guard_tensor(tensor: torch.Tensor, name: str, roots: Sequence[torch.Tensor]) -> torch.Tensor:
    """Return the numbers of a tensor with a guard, if it can have a gradient; see ``guard_leftovers``."""
    if not is_differentiable(tensor):
        return tensor
    with torch.enable_grad():
        guarded: torch.Tensor = LeftoverTensor.apply(tensor.detach().requires_grad_(), name, *roots)  # type: ignore[no-untyped-call]
        return guarded


def guard_leftovers(
    surroundings: Surroundings,
    places: Iterable[Place],
    *,
    with_graph: Container[Place],
    roots: Sequence[torch.Tensor],
) -> None:
    """Replace the tensors that steps left in some places by the same numbers with a guard.

    Those are guarded that have a graph, and those of places ``with_graph``: a plain loop would give them one.
    They seem to be computed from ``roots``, leaves that require a gradient: ``torch.autograd.grad`` passes over
    operations that lead to none of the tensors it is asked for.
    """
    for place in places:
        holder = surroundings.holders[place.holder]
        value = holder.value_of(place.key)
        always = place in with_graph
        if isinstance(holder.thing, torch.Tensor) or not (always or holds_graph(value)):
            continue

        def guard(tensor: torch.Tensor, name: str = place.name, always: bool = always) -> torch.Tensor:
            return guard_tensor(tensor, name, roots) if always or tensor.grad_fn is not None else tensor

        with torch.enable_grad():
            changed = replace_tensors(value, guard)
        if changed is not value:
            content = holder.read(copies=False)
            holder.write({**content, place.key: changed})
