"""What is to be compiled: a cell with a loss, and all that decides whether a compiled piece still fits."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import torch

from ckptplan.torch.compiled.piece import Product
from ckptplan.torch.inputs import Sequence
from ckptplan.torch.kept import read_settings
from ckptplan.torch.surroundings.signature import Signature
from ckptplan.torch.surroundings.walk import Reached, walk


class CodeSignature(Signature):
    """Describes hooks, methods, functions and options that a cell can reach, but no numbers.

    PyTorch's compiler looks for the numbers that a graph depends on each time the graph is called; it does not
    look for hooks, nor for methods that were replaced.
    """

    def describe_constant(self, value: Any) -> Any:
        """Return what is equal for constants of the same kind, of numbers the type."""
        if isinstance(value, int | float | complex) and not isinstance(value, bool):
            return self._refer(type(value))
        return super().describe_constant(value)

    def describe_tensor(self, tensor: torch.Tensor) -> Any:
        """Return what is equal for tensors of the same kind; of targets and the like, the shape may differ."""
        facts = super().describe_tensor(tensor)
        return facts if facts is None or tensor.requires_grad else facts[1:]

    def _read_numbers(self, tensor: torch.Tensor) -> Any:
        del tensor


@dataclass(frozen=True, kw_only=True)
class PieceRequest:
    """A call whose pieces are to be compiled.

    Arguments:
        cell: ``cell(state, x) -> (state, output)``.
        losses: by the names of their arguments.
        state: the initial state.
        inputs: the inputs of all steps.
        steps: T.
        parameters: those that the caller has named.
        device: where the cell runs.
    """

    cell: Any
    losses: Mapping[str, Any]
    state: Any
    inputs: Sequence
    steps: int
    parameters: tuple[torch.Tensor, ...]
    device: torch.device

    @property
    def things(self) -> dict[str, object]:
        """The cell and the losses, by the names of their arguments."""
        return {"cell": self.cell, **self.losses}

    @property
    def product(self) -> Product:
        """What a piece would best return."""
        if "loss" in self.losses:
            return "loss"
        return "chunk_loss" if "chunk_loss" in self.losses else "outputs"

    @property
    def loss(self) -> Any:
        """The loss of the steps, None if there is none."""
        return self.losses.get(self.product)

    @cached_property
    def _met(self) -> tuple[Reached, CodeSignature]:
        signature = CodeSignature()
        return walk(self.things, signature=signature), signature

    @property
    def reached(self) -> Reached:
        """What the cell and the losses can reach."""
        return self._met[0]

    @property
    def references(self) -> tuple[Any, ...]:
        """Weak references that must live as long as the key: its ids are theirs."""
        return tuple(self._met[1].references)

    @property
    def entries(self) -> tuple[Any, ...]:
        """What is equal for the same code, hooks and options."""
        return self._met[1].entries

    @cached_property
    def settings(self) -> tuple[Any, ...]:
        """Shapes, types and modes; those that cannot be told make it incomplete."""
        signature = self._met[1]
        return read_settings(
            self.state,
            self.inputs,
            (),
            signature,
            device=self.device,
            options=(tuple(one.requires_grad for one in self.inputs.leaves), tuple(self.things)),
        )

    @property
    def is_complete(self) -> bool:
        """Whether all that may change can be told."""
        complete = bool(self.settings)
        return complete and self._met[1].complete
