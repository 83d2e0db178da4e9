"""Accumulates gradients while a sequence is reversed: of the state, the parameters and the inputs."""

from __future__ import annotations

from collections.abc import Sequence

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
