"""Accumulates gradients while a sequence is reversed: of the state, the parameters and the inputs.

Computes gradients through a recorded graph, given the gradients of its outputs.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import torch

from ckptplan.torch.trees import Leaves

Gradient = torch.Tensor | None


class Gradients:
    """The gradients so far; those of the parameters are sums over the reversed steps."""

    def __init__(self, *, parameters: int, inputs: Leaves, wanted: Sequence[bool]) -> None:
        #: Gradients of the state at the end of the next steps to reverse; empty if there are none.
        self.state: list[Gradient] = []
        self.parameters: list[Gradient] = [None] * parameters
        self.inputs: list[Gradient] = [None] * len(inputs)
        self._inputs, self._wanted = inputs, wanted
        self._own = [False] * parameters

    def begin(self, final: Sequence[Gradient]) -> None:
        """Set the gradient of the final state, and allocate those of the inputs."""
        self.state = list(final)
        self.inputs = [
            torch.zeros_like(leaf) if wanted else None
            for leaf, wanted in zip(self._inputs, self._wanted, strict=True)
        ]

    def add(self, gradients: Sequence[Gradient], *, first: int = 0) -> None:
        """Add gradients of the parameters from number ``first`` on."""
        for place, gradient in enumerate(gradients, start=first):
            total = self.parameters[place]
            if gradient is None:
                continue
            if total is None:
                self.parameters[place] = gradient
            elif self._own[place]:
                total += gradient
            else:
                # The first gradient may share memory with others, or with itself (an expanded scalar).
                self.parameters[place], self._own[place] = total + gradient, True

    def put(self, start: int, stop: int, parts: Sequence[Gradient]) -> None:
        """Store the gradients of the inputs of some steps, given where these lie along the first axis."""
        for whole, part in zip(self.inputs, parts, strict=False):
            if part is not None and whole is not None:
                whole[start:stop] = part


def compute_gradients(
    outputs: Sequence[torch.Tensor],
    gradients: Sequence[Gradient],
    wanted: Sequence[torch.Tensor],
    *,
    parameters: Sequence[torch.Tensor],
) -> tuple[Gradient, ...]:
    """Return the gradients of ``wanted``, then of the parameters; None where there is no gradient."""
    live = [
        (output, gradient)
        for output, gradient in zip(outputs, gradients, strict=True)
        if gradient is not None and output.requires_grad
    ]
    everything = (*wanted, *parameters)
    if not live or not everything:
        return (None,) * len(everything)
    # The gradient of a scalar need not be given. PyTorch checks given gradients with symbolic shapes, which
    # would import sympy.
    with torch.enable_grad(), suspend_hooks(parameters):
        root = _GivenGradients.apply([gradient for _, gradient in live], *(output for output, _ in live))  # type: ignore[no-untyped-call]
        return torch.autograd.grad(root, everything, allow_unused=True)


class _GivenGradients(torch.autograd.Function):
    """A scalar that passes given gradients to its inputs, whatever its own gradient is."""

    @staticmethod
    def forward(ctx: Any, gradients: list[torch.Tensor], *outputs: torch.Tensor) -> torch.Tensor:
        """Return a scalar."""
        ctx.gradients = gradients
        return torch.zeros((), device=outputs[0].device)

    @staticmethod
    def backward(ctx: Any, *_: torch.Tensor) -> Any:
        """Pass the gradients on, without keeping them."""
        gradients, ctx.gradients = ctx.gradients, None
        return None, *gradients


@contextmanager
def suspend_hooks(parameters: Sequence[torch.Tensor]) -> Iterator[None]:
    """Disable hooks of parameters for each chunk, so that they fire once, for the whole gradient."""
    hooked: list[tuple[Any, Any]] = [(tensor, tensor._backward_hooks) for tensor in parameters]
    hooked = [(tensor, hooks) for tensor, hooks in hooked if hooks]
    for tensor, _ in hooked:
        tensor._backward_hooks = None
    try:
        yield
    finally:
        for tensor, hooks in hooked:
            tensor._backward_hooks = hooks
