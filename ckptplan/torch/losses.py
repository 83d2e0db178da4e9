"""Consumes the outputs of steps: stacks them, or turns them into a loss at once."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

import torch

from ckptplan.errors import InputError, quote_value
from ckptplan.torch.ambient import Generators
from ckptplan.torch.digests import REORDERED, project_steps
from ckptplan.torch.graphs import as_graph_roots
from ckptplan.torch.inputs import Sequence as Inputs
from ckptplan.torch.recognise import StaleFindingsError
from ckptplan.torch.trees import Leaves, Structure, byte_size, flatten, is_differentiable
from ckptplan.torch.verify import NUMBER_BYTES, MeasureScale, RunNumbers, Verifier

#: Tensors of a recorded chunk through which gradients enter, besides the state.
Terms = list[torch.Tensor]
#: Types in which many terms can be added up.
_SUMMED = (torch.float32, torch.float64)
#: Outputs that a ``chunk_loss`` gets at a time: enough for efficient matrix products.
RUN = 16


class Outputs(ABC):
    """Consumes the outputs of all steps."""

    #: The preferred number of outputs at a time.
    at_once = 1

    def __init__(self, *, verifier: Verifier | None = None, saved: bool = False) -> None:
        #: Compares what is computed again with what it was; None if nothing is compared.
        self.verifier = verifier
        #: Whether outputs that are taken again were saved, so that they cannot differ.
        self.saved = saved
        #: Whether steps are recorded to count their tapes alone, so that they run again.
        self.samples = False

    def runs_again(self, first_time: bool) -> bool:
        """Return whether steps ran before or will run again: all but those recorded when they run first."""
        return first_time != (torch.is_grad_enabled() and not self.samples)

    @abstractmethod
    def take(self, start: int, outputs: Sequence[Any], *, first_time: bool) -> Terms:
        """Take the outputs of a run of steps; ``first_time`` is False if the steps run again.

        Returns the tensors through which gradients enter, in the order of ``gradients``.
        """

    def take_some(self, start: int, outputs: Sequence[Any], *, first_time: bool) -> Terms:
        """Take the outputs of a run of steps, as many at a time as is preferred."""
        terms: Terms = []
        for first in range(0, len(outputs), self.at_once):
            some = outputs[first : first + self.at_once]
            terms += self.take(start + first, some, first_time=first_time)
        return terms

    @abstractmethod
    def gradients(
        self, start: int, stop: int, incoming: Sequence[torch.Tensor | None], *, terms: int
    ) -> Sequence[torch.Tensor | None]:
        """Return the gradients of the terms of steps start..stop-1; ``terms`` is their number."""

    @property
    def kept_bytes(self) -> int:
        """The bytes of outputs that are returned to the caller."""
        return 0

    @property
    def compared_bytes(self) -> int:
        """The bytes that are kept of each step, to compare it with what it gives when it runs again."""
        return 0

    def finish(self, state: Any) -> Terms:
        """Take the final state, recorded with the last steps."""
        return []

    def end_action(self) -> None:  # noqa: B027 - outputs that compare nothing have nothing to do
        """Compare the outputs of an action of the schedule that ran steps again. Raises InputError."""

    @abstractmethod
    def release(self) -> Leaves:
        """Return the results of all steps without keeping them, since they will refer to this run."""


class StackedOutputs(Outputs):
    """Keeps the outputs of all steps: stacked over time, or joined if the inputs say so."""

    def __init__(self, *, inputs: Inputs, steps: int, **options: Any) -> None:
        super().__init__(**options)
        self._inputs, self._steps = inputs, steps
        self.leaves: Leaves = ()
        self.structure: Structure | None = None
        #: Numbers of each leaf, and the steps of the present action that have none yet.
        self._numbers: list[RunNumbers | None] = []
        self._fresh: tuple[int, int] | None = None

    def take(self, start: int, outputs: Sequence[Any], *, first_time: bool) -> Terms:
        compares = self.verifier is not None and not self.saved
        if compares and first_time and self.runs_again(first_time):
            self._fresh = (start if self._fresh is None else self._fresh[0]), start + len(outputs)
        terms: Terms = []
        for step, output in enumerate(outputs, start=start):
            leaves, structure = flatten(output)
            if self.structure is None:
                self.structure = structure
                # Room for the outputs of all steps, of which these are the first.
                rows = self._inputs.joined_rows
                axes, skipped = ((self._steps,), 0) if rows is None else ((rows,), 1)
                self.leaves = tuple(leaf.new_empty((*axes, *leaf.shape[skipped:])) for leaf in leaves)
            self._check(leaves, structure, step)
            if first_time:
                for kept, leaf in zip(self.leaves, leaves, strict=True):
                    self._select(kept, step).copy_(leaf.detach())
            elif compares:
                self._compare(step, leaves)
            terms += leaves
        return terms

    @property
    def kept_bytes(self) -> int:
        return byte_size(self.leaves)

    @property
    def compared_bytes(self) -> int:
        return sum(NUMBER_BYTES for one in self._numbers if one is not None)

    def _select(self, kept: torch.Tensor, step: int) -> torch.Tensor:
        """Return the part of a kept tensor, or of its gradient, that is a step's."""
        if self._inputs.joined_rows is None:
            return kept[step]
        first, last = self._inputs.rows(step, step + 1)
        return kept[first:last]

    def _project(self, verifier: Verifier, kept: torch.Tensor, start: int, stop: int) -> torch.Tensor:
        """Return a number of each step's part of a kept tensor."""
        if self._inputs.joined_rows is None:
            return project_steps(kept[start:stop])
        return torch.stack([verifier.project(self._select(kept, step)) for step in range(start, stop)])

    def _check(self, leaves: Leaves, structure: Structure, step: int) -> None:
        assert self.structure is not None  # noqa: S101 - set with the first outputs
        if not self.leaves or (
            [leaf.shape for leaf in leaves] == [self._select(kept, step).shape for kept in self.leaves]
            and structure.plain == self.structure.plain
        ):
            return
        raise InputError(
            f"returned an output with another shape, or other numbers, at step {step} than at the first step",
            field="cell",
            accepted="outputs of the same structure and shapes at every step: they are stacked over time",
        )

    def _compare(self, step: int, leaves: Leaves) -> None:
        verifier = self.verifier
        assert verifier is not None  # noqa: S101 - something is compared
        for numbers, leaf in zip(self._numbers, leaves, strict=True):
            if numbers is not None:
                # A projection may be small by chance, where elements of both signs cancel.
                scale = partial(verifier.measure_norm, leaf)
                numbers.check(step, step + 1, verifier.project(leaf), scale=scale)

    def end_action(self) -> None:
        if self.verifier is not None and self._fresh is not None:
            # Later, the kept outputs may be changed by their owner.
            verifier, (start, stop), self._fresh = self.verifier, self._fresh, None
            self._numbers = self._numbers or [verifier.make_output_numbers(leaf) for leaf in self.leaves]
            for numbers, kept in zip(self._numbers, self.leaves, strict=True):
                if numbers is not None:
                    numbers.keep(start, stop, self._project(verifier, kept, start, stop))
        for numbers in self._numbers:
            if numbers is not None:
                numbers.end_action()

    def release(self) -> Leaves:
        leaves, self.leaves = self.leaves, ()
        return leaves

    def gradients(
        self, start: int, stop: int, incoming: Sequence[torch.Tensor | None], *, terms: int
    ) -> Sequence[torch.Tensor | None]:
        return [
            None if gradient is None else self._select(gradient, step)
            for step in range(start, stop)
            for gradient in incoming
        ]


class SummedLoss(Outputs):
    """Turns outputs into a loss, step by step or a chunk at a time, without keeping them."""

    def __init__(
        self,
        *,
        loss: Callable[[int, Any], torch.Tensor] | None = None,
        chunk_loss: Callable[[int, Any], torch.Tensor] | None = None,
        final_loss: Callable[[Any], torch.Tensor] | None = None,
        at_once: int = RUN,
        watched: Generators | None = None,
        **options: Any,
    ) -> None:
        super().__init__(**options)
        #: The random generators, until it is known that the first loss draws nothing from them.
        self._watched = watched
        self.loss, self.chunk_loss, self.final_loss = loss, chunk_loss, final_loss
        if chunk_loss is not None:
            # Cells that run chunks are measured with runs.
            self.at_once = RUN if self.saved else at_once
        self.total: torch.Tensor | None = None
        self._numbers: RunNumbers | None = None

    def take(self, start: int, outputs: Sequence[Any], *, first_time: bool) -> Terms:
        if self._watched is None:
            return self._take(start, outputs, first_time=first_time)
        watched, self._watched = self._watched, None
        drawn = watched.state()
        terms = self._take(start, outputs, first_time=first_time)
        if watched.moved_since(drawn):
            raise StaleFindingsError("draws random numbers, and did not in earlier calls", field="loss")
        return terms

    def _take(self, start: int, outputs: Sequence[Any], *, first_time: bool) -> Terms:
        if self.loss is not None:
            terms: Terms = []
            for step, output in enumerate(outputs, start=start):
                value = check_scalar(self.loss(step, output), "loss")
                scale = partial(self.measure_scale, step, output)
                terms += self.take_run(step, step + 1, value, output, first_time=first_time, scale=scale)
            return terms
        if self.chunk_loss is None:
            return []
        value = check_scalar(self.chunk_loss(start, stack_outputs(outputs)), "chunk_loss")
        return self.take_run(start, start + len(outputs), value, outputs[0], first_time=first_time)

    def take_run(
        self,
        start: int,
        stop: int,
        values: torch.Tensor,
        output: Any = (),
        *,
        first_time: bool,
        scale: MeasureScale | None = None,
    ) -> Terms:
        """Take the losses of a run of steps, or their loss as a whole; return what gradients enter through.

        Arguments:
            start: the first step.
            stop: the step after the last one.
            values: the losses.
            output: that of a step, if there is one.
            first_time: whether the steps run for the first time.
            scale: returns how far the loss of a step moves with its output; asked only in doubt.
        """
        total = values.sum() if values.dim() else values
        if first_time:
            self._count(total)
        if self.verifier is not None and self.runs_again(first_time):
            if self._numbers is None:
                cuts = 1 if self.chunk_loss is None else REORDERED
                self._numbers = self.verifier.make_loss_numbers(values, flatten(output)[0], cuts=cuts)
            if first_time:
                self._numbers.keep(start, stop, values)
            else:
                self._numbers.check(start, stop, values, scale=scale)
        return [total]

    def measure_scale(self, step: int, output: Any) -> float:
        """Return how far the loss of a step moves if each element of an output changes by its own size.

        A term that is a small difference of large ones moves much by their rounding.
        """
        if self.loss is None:
            return 0.0
        leaves, structure = flatten(output)
        roots = as_graph_roots(leaves)
        with torch.enable_grad():
            value = self.loss(step, structure.fill(roots))
        wanted = [leaf for leaf in roots if leaf.requires_grad]
        if not value.requires_grad or not wanted:
            return 0.0
        found = torch.autograd.grad(value, wanted, allow_unused=True, materialize_grads=True)
        pairs = zip(wanted, found, strict=True)
        return float(sum((leaf.detach() * one).abs().sum().item() for leaf, one in pairs))

    def end_action(self) -> None:
        if self._numbers is not None:
            self._numbers.end_action()

    @property
    def compared_bytes(self) -> int:
        # Of a chunk_loss there is a number for a run.
        return NUMBER_BYTES if self.loss is not None and self._numbers is not None else 0

    def gradients(
        self, start: int, stop: int, incoming: Sequence[torch.Tensor | None], *, terms: int
    ) -> Sequence[torch.Tensor | None]:
        # Each term is a part of one sum.
        return [incoming[0]] * terms

    def finish(self, state: Any) -> Terms:
        if self.final_loss is None:
            return []
        value = check_scalar(self.final_loss(state), "final_loss")
        self._count(value)
        return [value]

    def release(self) -> Leaves:
        total, self.total = self.total, None
        if total is None:
            raise InputError("was never taken: there are no steps", field="loss")
        return (total,)

    def _count(self, value: torch.Tensor) -> None:
        self.total = value.detach().clone() if self.total is None else self.total + value.detach()


def stack_outputs(outputs: Sequence[Any]) -> Any:
    """Return outputs of several steps as one structure, time first."""
    flat = [flatten(output) for output in outputs]
    return flat[0][1].fill(
        [torch.stack(leaves) for leaves in zip(*(leaves for leaves, _ in flat), strict=True)]
    )


def check_scalar(value: object, field: str) -> torch.Tensor:
    """Return a loss as a scalar of at least fp32. Raises InputError if it is no single float."""
    if value.__class__ is torch.Tensor and value.dtype in _SUMMED and not value.shape:
        # The usual case, without another operation in the graph of each step.
        return value
    if not isinstance(value, torch.Tensor) or value.numel() != 1 or not is_differentiable(value):
        got = f"shape {tuple(value.shape)}" if isinstance(value, torch.Tensor) else quote_value(value)
        raise InputError(
            f"returned {got}",
            field=field,
            accepted="a tensor of one float, as .sum() or .mean() returns: the loss is their sum over time",
        )
    value = value.reshape(())
    # Sums of many half-precision terms saturate; the graph casts the gradient of each term back.
    return value.float() if value.dtype in (torch.float16, torch.bfloat16) else value
