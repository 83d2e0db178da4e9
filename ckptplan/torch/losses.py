"""Consumes the outputs of steps: stacks them, or turns them into a loss at once."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from typing import Any

import torch

from ckptplan.errors import InputError, quote_value
from ckptplan.torch.trees import Leaves, Structure, flatten, is_differentiable

#: Tensors of a recorded chunk through which gradients enter, besides the state.
Terms = list[torch.Tensor]


class Outputs(ABC):
    """Consumes the outputs of all steps."""

    #: The preferred number of outputs at a time.
    at_once = 1
    #: Whether ``finish`` adds anything.
    finishes = False

    @abstractmethod
    def take(self, start: int, outputs: Sequence[Any], *, first_time: bool) -> Terms:
        """Take the outputs of a run of steps; ``first_time`` is False if the steps run again.

        Returns the tensors through which gradients enter, in the order of ``gradients``.
        """

    @abstractmethod
    def gradients(
        self, start: int, stop: int, incoming: Sequence[torch.Tensor | None], *, terms: int
    ) -> Sequence[torch.Tensor | None]:
        """Return the gradients of the terms of steps start..stop-1; ``terms`` is their number."""

    def finish(self, state: Any) -> Terms:
        """Take the final state, recorded with the last steps."""
        return []

    @abstractmethod
    def release(self) -> Leaves:
        """Return the results of all steps without keeping them, since they will refer to this run."""


class StackedOutputs(Outputs):
    """Keeps the outputs, stacked over time."""

    def __init__(self, *, steps: int) -> None:
        self.steps = steps
        self.leaves: Leaves = ()
        self.structure: Structure | None = None

    def take(self, start: int, outputs: Sequence[Any], *, first_time: bool) -> Terms:
        terms: Terms = []
        for step, output in enumerate(outputs, start=start):
            leaves, structure = flatten(output)
            if self.structure is None:
                self.structure = structure
                self.leaves = tuple(leaf.new_empty((self.steps, *leaf.shape)) for leaf in leaves)
            self._check(leaves, structure, step)
            if first_time:
                for kept, leaf in zip(self.leaves, leaves, strict=True):
                    kept[step].copy_(leaf.detach())
            terms += leaves
        return terms

    def _check(self, leaves: Leaves, structure: Structure, step: int) -> None:
        assert self.structure is not None  # noqa: S101 - set with the first outputs
        if not self.leaves or (
            [leaf.shape for leaf in leaves] == [kept.shape[1:] for kept in self.leaves]
            and structure.plain == self.structure.plain
        ):
            return
        raise InputError(
            f"returned an output with another shape, or other numbers, at step {step} than at the first step",
            field="cell",
            accepted="outputs of the same structure and shapes at every step: they are stacked over time",
        )

    def release(self) -> Leaves:
        leaves, self.leaves = self.leaves, ()
        return leaves

    def gradients(
        self, start: int, stop: int, incoming: Sequence[torch.Tensor | None], *, terms: int
    ) -> Sequence[torch.Tensor | None]:
        return [
            None if gradient is None else gradient[step] for step in range(start, stop) for gradient in incoming
        ]


class SummedLoss(Outputs):
    """Turns outputs into a loss, step by step or a chunk at a time, without keeping them."""

    def __init__(
        self,
        *,
        loss: Callable[[int, Any], torch.Tensor] | None,
        chunk_loss: Callable[[int, Any], torch.Tensor] | None,
        final_loss: Callable[[Any], torch.Tensor] | None,
    ) -> None:
        self.loss, self.chunk_loss, self.final_loss = loss, chunk_loss, final_loss
        # Enough steps for efficient matrix products, and few enough not to affect the memory of a plan.
        self.at_once = 1 if chunk_loss is None else 16
        self.finishes = final_loss is not None
        self.total: torch.Tensor | None = None

    def take(self, start: int, outputs: Sequence[Any], *, first_time: bool) -> Terms:
        values = self._values(start, outputs)
        for value in values:
            self._count(value, first_time=first_time)
        return values

    def _values(self, start: int, outputs: Sequence[Any]) -> list[torch.Tensor]:
        if self.loss is not None:
            return [
                _check_scalar(self.loss(step, one), "loss") for step, one in enumerate(outputs, start=start)
            ]
        if self.chunk_loss is not None:
            return [_check_scalar(self.chunk_loss(start, stack_outputs(outputs)), "chunk_loss")]
        return []

    def gradients(
        self, start: int, stop: int, incoming: Sequence[torch.Tensor | None], *, terms: int
    ) -> Sequence[torch.Tensor | None]:
        # Each term is a part of one sum.
        return [incoming[0]] * terms

    def finish(self, state: Any) -> Terms:
        if self.final_loss is None:
            return []
        value = _check_scalar(self.final_loss(state), "final_loss")
        self._count(value, first_time=True)
        return [value]

    def release(self) -> Leaves:
        total, self.total = self.total, None
        if total is None:
            raise InputError("was never taken: there are no steps", field="loss")
        return (total,)

    def probe_final(self, state: Any) -> Terms:
        """Return the final loss of a state, without adding it to the total."""
        return [] if self.final_loss is None else [_check_scalar(self.final_loss(state), "final_loss")]

    def _count(self, value: torch.Tensor, *, first_time: bool) -> None:
        if first_time:
            self.total = value.detach().clone() if self.total is None else self.total + value.detach()


def stack_outputs(outputs: Sequence[Any]) -> Any:
    """Return outputs of several steps as one structure, time first."""
    flat = [flatten(output) for output in outputs]
    return flat[0][1].fill(
        [torch.stack(leaves) for leaves in zip(*(leaves for leaves, _ in flat), strict=True)]
    )


def _check_scalar(value: object, field: str) -> torch.Tensor:
    if not isinstance(value, torch.Tensor) or value.numel() != 1 or not is_differentiable(value):
        got = f"shape {tuple(value.shape)}" if isinstance(value, torch.Tensor) else quote_value(value)
        raise InputError(
            f"returned {got}",
            field=field,
            accepted="a tensor of one float, as .sum() or .mean() returns: the loss is their sum over time",
        )
    return value.reshape(())
