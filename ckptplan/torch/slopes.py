"""Gradients of a single step, for what steps keep that changes gradients but no values.

The slope of a surrogate gradient, a factor in a hook and the temperature of a straight-through estimator are
such things: what a step returns does not tell.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TypeAlias

import torch

from ckptplan.torch.graphs import find_graph_leaves
from ckptplan.torch.trees import is_differentiable

#: Gradients by the ids of parameters, and those of the state and the inputs by their positions below zero.
Slopes: TypeAlias = dict[int, torch.Tensor]


def measure_slopes(results: Sequence[torch.Tensor], roots: Sequence[torch.Tensor]) -> Slopes:
    """Return gradients of what a step returned, in a fixed direction.

    They are those of the state and the inputs, and of parameters without hooks, which might count their calls.
    """
    ends = [one for one in results if one.requires_grad and is_differentiable(one)]
    begins = {-1 - place: root for place, root in enumerate(roots) if root.requires_grad}
    inner = {id(root) for root in roots}
    leaves = find_graph_leaves(ends)
    begins |= {id(one): one for one in leaves if id(one) not in inner and not one._backward_hooks}
    if not (ends and begins):
        return {key: torch.zeros_like(one) for key, one in begins.items()}
    found = torch.autograd.grad(
        ends,
        list(begins.values()),
        [make_direction(one, place) for place, one in enumerate(ends)],
        allow_unused=True,
        materialize_grads=True,
        # A graph from outside belongs to the caller.
        retain_graph=True,
    )
    return dict(zip(begins, found, strict=True))


def make_direction(tensor: torch.Tensor, place: int) -> torch.Tensor:
    """Return fixed numbers from 0.5 to 1.5, of the shape and the type of a tensor."""
    numbers = torch.arange(tensor.numel(), device=tensor.device, dtype=torch.float32)
    return (1 + 0.5 * torch.cos(numbers + place)).reshape(tensor.shape).to(tensor.dtype)
