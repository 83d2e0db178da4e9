"""Takes the outputs of steps: turns them into a loss at once, or stacks them over time."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor

from ckptplan.errors import InputError, quote_value
from ckptplan.torch.run.inputs import Inputs
from ckptplan.torch.state.nests import LEAF, Nest, flatten, is_differentiable, stack, unstack

#: How many outputs a ``chunk_loss`` gets at a time. Runs are cut at multiples of this number.
RUN_STEPS = 16


class Outputs:
    """The outputs of all steps of a plan.

    ``Steps`` calls ``take`` with the output of each step, in order, and says whether the step runs for the
    first time (``is_new``) or again. After each run of new steps it calls ``add``.
    """

    #: Whether each step has its own terms, as many as every other step.
    has_step_terms = True

    def __init__(self, steps: int) -> None:
        self.steps = steps

    def take(self, step: int, output: Any, *, is_new: bool) -> Sequence[Tensor]:
        """Take the output of a step; return the tensors through which gradients enter (terms)."""
        raise NotImplementedError

    def take_stacked(self, start: int, outputs: Any, *, is_new: bool) -> list[Tensor]:
        """Take the outputs of the steps from ``start`` on, stacked over time; return all of their terms."""
        terms: list[Tensor] = []
        stop = start
        for stop, output in enumerate(unstack(*flatten(outputs)), start + 1):
            terms += self.take(stop - 1, output, is_new=is_new)
        return [*terms, *self.flush(stop)]

    def flush(self, stop: int) -> Sequence[Tensor]:
        """Return the loss of the outputs that wait for a ``chunk_loss``; they end before step ``stop``."""
        return ()

    def add(self, terms: Sequence[Tensor]) -> None:
        """Add the losses of steps that ran for the first time to the result."""

    def list_gradients(
        self, start: int, stop: int, incoming: Sequence[Tensor | None], count: int
    ) -> list[Tensor | None]:
        """Return the gradients of the ``count`` terms of a run of steps, given those of the results."""
        raise NotImplementedError

    def release(self) -> list[Tensor]:
        """Return the results, and drop them here, since their graph will refer to this run."""
        raise NotImplementedError


class StackedOutputs(Outputs):
    """Keeps the outputs of all steps: stacked over time, or joined if a step is a piece of time steps."""

    def __init__(self, inputs: Inputs) -> None:
        super().__init__(inputs.steps)
        self._inputs = inputs
        self.stacked: list[Tensor] = []
        self.nest: Nest = LEAF

    def take(self, step: int, output: Any, *, is_new: bool) -> Sequence[Tensor]:
        leaves, nest = ([output], LEAF) if output.__class__ is Tensor else flatten(output)
        if not is_new:
            return leaves
        if not step:
            self.nest, self._plain = nest, nest.describe()
            joins = self._inputs.joins_outputs
            rows = self._inputs.rows(0, self.steps)[1] if joins else self.steps
            self.stacked = [leaf.new_empty((rows, *leaf.shape[int(joins) :])) for leaf in leaves]
        if len(leaves) != len(self.stacked) or (nest is not LEAF and nest.describe() != self._plain):
            raise _refuse_shape(step)
        places = [self._select(whole, step) for whole in self.stacked]
        for row, leaf in zip(places, leaves, strict=True):
            if row.shape != leaf.shape:
                raise _refuse_shape(step)
            row.copy_(leaf.detach())
        # Without a graph nothing keeps the output alive, which may be a view of a larger tensor.
        return leaves if torch.is_grad_enabled() else places

    def _select(self, whole: Tensor, step: int) -> Tensor:
        """Return the part of a stacked tensor, or of its gradient, that belongs to a step."""
        if not self._inputs.joins_outputs:
            return whole[step]
        start, stop = self._inputs.rows(step, step + 1)
        return whole[start:stop]

    def list_gradients(
        self, start: int, stop: int, incoming: Sequence[Tensor | None], count: int
    ) -> list[Tensor | None]:
        return [
            None if gradient is None else self._select(gradient, step)
            for step in range(start, stop)
            for gradient in incoming
        ]

    def release(self) -> list[Tensor]:
        stacked, self.stacked = self.stacked, []
        return stacked


class SummedLoss(Outputs):
    """Turns outputs into a loss, step by step or a run at a time, and adds it up.

    Arguments:
        steps: the steps of the plan.
        loss: ``loss(t, output)`` of each step, or None.
        chunk_loss: ``chunk_loss(start, outputs)`` of runs of steps, or None.
        run_steps: the outputs that a ``chunk_loss`` gets at a time.
    """

    def __init__(
        self,
        steps: int,
        loss: Callable[..., Any] | None,
        chunk_loss: Callable[..., Any] | None,
        *,
        run_steps: int = RUN_STEPS,
    ) -> None:
        super().__init__(steps)
        self.loss, self.chunk_loss, self._run_steps = loss, chunk_loss, run_steps
        self.has_step_terms = loss is not None
        self.total: Tensor | None = None
        self._waiting: list[Any] = []

    def take(self, step: int, output: Any, *, is_new: bool) -> Sequence[Tensor]:
        if self.loss is not None:
            return (check_scalar(self.loss(step, output), "loss"),)
        if self.chunk_loss is None:
            return ()
        self._waiting.append(output)
        return self.flush(step + 1) if (step + 1) % self._run_steps == 0 else ()

    def flush(self, stop: int) -> Sequence[Tensor]:
        outputs, self._waiting = self._waiting, []
        if not outputs or self.chunk_loss is None:
            return ()
        return (check_scalar(self.chunk_loss(stop - len(outputs), stack(outputs)), "chunk_loss"),)

    def add(self, terms: Sequence[Tensor]) -> None:
        if terms:
            value = torch.stack([term.detach() for term in terms]).sum()
            self.total = value if self.total is None else self.total + value

    def list_gradients(
        self, start: int, stop: int, incoming: Sequence[Tensor | None], count: int
    ) -> list[Tensor | None]:
        # Each term is a part of one sum.
        return [incoming[0]] * count

    def release(self) -> list[Tensor]:
        total, self.total = self.total, None
        return [torch.zeros(()) if total is None else total]


def _refuse_shape(step: int) -> InputError:
    return InputError(
        f"returned an output with another shape, or other numbers, at step {step} than at the first step",
        field="cell",
        accepted="outputs of the same structure and shapes at every step: they are stacked over time",
    )


def check_scalar(value: Any, name: str) -> Tensor:
    """Return a loss as a scalar of at least fp32. Raises InputError if it is no single float."""
    if value.__class__ is Tensor and value.dim() == 0 and value.dtype in (torch.float32, torch.float64):
        return value
    if not isinstance(value, Tensor) or value.numel() != 1 or not is_differentiable(value):
        got = f"shape {tuple(value.shape)}" if isinstance(value, Tensor) else quote_value(value)
        raise InputError(
            f"returned {got}",
            field=name,
            accepted="a tensor of one float, as .sum() or .mean() returns: the loss is their sum over time",
        )
    # Each process would add up only its own part of a DTensor.
    scalar: Tensor = (value.full_tensor() if hasattr(value, "full_tensor") else value).reshape(())
    # Sums of many half-precision terms saturate. The graph casts the gradient of each term back.
    return scalar.float() if scalar.dtype in (torch.float16, torch.bfloat16) else scalar
