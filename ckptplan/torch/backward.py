"""Gradients through a recorded graph, from given gradients of what it computed."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import torch

from ckptplan.torch.gradients import Gradient


def compute_gradients(
    outputs: Sequence[torch.Tensor],
    gradients: Sequence[Gradient],
    wanted: Sequence[torch.Tensor],
    *,
    parameters: Sequence[torch.Tensor],
) -> tuple[Gradient, ...]:
    """Return the gradients of ``wanted``, then of the parameters; None where nothing reaches them."""
    live = [
        (output, gradient)
        for output, gradient in zip(outputs, gradients, strict=True)
        if gradient is not None and output.requires_grad
    ]
    everything = (*wanted, *parameters)
    if not live or not everything:
        return (None,) * len(everything)
    # As a scalar, whose gradient need not be given: PyTorch checks given ones, one by one, with its symbolic
    # shapes, which bring sympy into the process.
    with torch.enable_grad(), _suspend_hooks(parameters):
        root = _GivenGradients.apply([gradient for _, gradient in live], *(output for output, _ in live))  # type: ignore[no-untyped-call]
        return torch.autograd.grad(root, everything, allow_unused=True)


class _GivenGradients(torch.autograd.Function):
    """A scalar whose gradients are those given, whatever its own."""

    @staticmethod
    def forward(ctx: Any, gradients: list[torch.Tensor], *outputs: torch.Tensor) -> torch.Tensor:
        """Return a scalar."""
        ctx.gradients = gradients
        return torch.zeros((), device=outputs[0].device)

    @staticmethod
    def backward(ctx: Any, *_: torch.Tensor) -> Any:
        """Hand the gradients over, and keep none."""
        gradients, ctx.gradients = ctx.gradients, None
        return None, *gradients


@contextmanager
def _suspend_hooks(parameters: Sequence[torch.Tensor]) -> Iterator[None]:
    """Keep hooks of parameters from firing for every chunk: they fire once, for the whole gradient."""
    hooked: list[tuple[Any, Any]] = [(one, one._backward_hooks) for one in parameters if one._backward_hooks]
    for one, _ in hooked:
        one._backward_hooks = None
    try:
        yield
    finally:
        for one, hooks in hooked:
            one._backward_hooks = hooks
