"""Gradients while a sequence is reversed: of the state that comes next, of parameters, of inputs."""

from __future__ import annotations

from collections.abc import Sequence

import torch

from ckptplan.torch.trees import Leaves

Gradient = torch.Tensor | None


class Gradients:
    """What has been found so far; the parameters' are sums over the steps reversed."""

    def __init__(self, *, parameters: int, inputs: Leaves, wanted: Sequence[bool]) -> None:
        #: Of the leaves of the state where the next steps to be reversed end; empty where nothing came in.
        self.state: list[Gradient] = []
        self.parameters: list[Gradient] = [None] * parameters
        self.inputs: list[Gradient] = [None] * len(inputs)
        self._inputs, self._wanted = inputs, wanted
        self._own = [False] * parameters

    def begin(self, final: Sequence[Gradient]) -> None:
        """Take the gradient of the final state, and make room for those of the inputs."""
        self.state = list(final)
        self.inputs = [
            torch.zeros_like(leaf) if wanted else None
            for leaf, wanted in zip(self._inputs, self._wanted, strict=True)
        ]

    def add(self, found: Sequence[Gradient], *, first: int = 0) -> None:
        """Add gradients of the parameters from number ``first`` on."""
        for place, gradient in enumerate(found, start=first):
            kept = self.parameters[place]
            if gradient is None:
                continue
            if kept is None:
                self.parameters[place] = gradient
            elif self._own[place]:
                kept += gradient
            else:
                # The first one may share its memory with others, or with itself (an expanded scalar).
                self.parameters[place], self._own[place] = kept + gradient, True

    def put(self, start: int, stop: int, parts: Sequence[Gradient]) -> None:
        """Keep gradients of the inputs of some steps."""
        for whole, part in zip(self.inputs, parts, strict=False):
            if part is not None and whole is not None:
                whole[start:stop] = part
