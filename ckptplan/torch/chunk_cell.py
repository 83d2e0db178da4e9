"""The interface of cells that run whole chunks: replay from saved outputs, and their own backward pass."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Any, Protocol, Self

import torch

from ckptplan.errors import InputError


class SavedOutputs(Protocol):
    """The outputs of a range of steps, as a cell saves them, with the values that the first step reads."""

    @property
    def bytes(self) -> int:
        """The bytes of their tensors."""

    def part(self, start: int, stop: int) -> Self:
        """Return the outputs of steps start..stop-1, counted from the first step here."""

    def moved(self, keep: Callable[[torch.Tensor], torch.Tensor]) -> Self:
        """Return the same outputs with each of their own tensors replaced by ``keep(tensor)``.

        Outputs that share tensors with earlier steps also have ``carried``, which takes the same argument and
        replaces the shared tensors, too. Plans that offload caches move both kinds of tensors.
        """


@dataclass(frozen=True, kw_only=True)
class ChunkGradients:
    """Gradients of a chunk."""

    #: Gradient of the state at the start, nested like the state.
    state: Any
    #: Gradients of the inputs, time first; None if not requested.
    inputs: Any
    #: Gradients of the cell's parameters, in the order of ``parameters()``.
    parameters: tuple[torch.Tensor | None, ...]


class ChunkCell(torch.nn.Module, ABC):
    """A cell with the usual step, ``cell(state, x) -> (state, output)``, that also runs whole chunks.

    Outputs are saved for the whole sequence, so they should be small, as spikes are. Steps that run again are
    replayed from them, without computing them again (Bencheikh et al. 2024, section III-B). The methods run
    without autograd, on states and inputs outside any graph, for a few steps at a time. ``inputs`` have time
    first. The tape of a chunk is ``states``: the state after each of its steps, time first.

    The first call of each kind compares the results of ``run`` and ``reverse`` with a few steps of ``forward``
    under autograd. A difference beyond rounding raises InputError.
    """

    #: Whether ``run`` needs the state alone, and no ``before``. Plans may then drop the saved outputs of steps,
    #: which run in full again (docs/cache.md).
    runs_from_state = False

    def for_sequence(self) -> ChunkCell:
        """Return the cell that runs one sequence: itself, or a copy with values computed from parameters.

        The copy shares the parameters. It lives from the forward pass to the end of the backward pass.
        """
        return self

    @abstractmethod
    def run(self, state: Any, inputs: Any, before: Any | None) -> tuple[Any, Any]:
        """Run steps for the first time; return the state after each step, and the outputs to save.

        ``before`` is the result of ``last`` for the preceding steps, None at the first step; with
        ``runs_from_state``, it may be None at any step.
        """

    @abstractmethod
    def replay(self, state: Any, inputs: Any, outputs: Any) -> Any:
        """Return the state after each step, from saved outputs, without computing these again."""

    @abstractmethod
    def last(self, outputs: Any) -> Any:
        """Return the part of saved outputs that ``run`` needs, as ``before``, to continue after them."""

    @abstractmethod
    def dense(self, outputs: Any) -> Any:
        """Return saved outputs in the form in which steps return them, time first."""

    @abstractmethod
    def reverse(
        self,
        state: Any,
        states: Any,
        inputs: Any,
        outputs: Any,
        *,
        output_gradients: Any | None,
        state_gradients: Any,
        wants_inputs: bool,
    ) -> ChunkGradients:
        """Return the gradients of a chunk.

        Arguments:
            state: the state at the start.
            states: the state after each step, time first; the method may overwrite it.
            inputs: the inputs, time first.
            outputs: the saved outputs.
            output_gradients: gradients of the outputs, time first; a leaf without gradient is None.
            state_gradients: gradients of the state after the last step; a leaf without gradient is None.
            wants_inputs: whether gradients of the inputs are needed.
        """


def sum_gradients(
    cell: torch.nn.Module, parts: Iterable[tuple[torch.Tensor, torch.Tensor | None]]
) -> tuple[torch.Tensor | None, ...]:
    """Return the gradient of each parameter of a cell, or None, from parts: a parameter may have several roles.

    Arguments:
        cell: the cell.
        parts: parameters and parts of their gradients.
    """
    sums: dict[int, torch.Tensor] = {}
    for parameter, part in parts:
        if part is not None:
            key = id(parameter)
            sums[key] = sums[key] + part if key in sums else part
    return tuple(sums.get(id(parameter)) for parameter in cell.parameters())


def make_gradients_error(cell: ChunkCell, problem: str) -> InputError:
    """Return the error for a wrong result of ``reverse`` of a cell."""
    return InputError(
        f"{type(cell).__name__}.reverse {problem}",
        field="cell",
        accepted="ChunkGradients, nested as the state and the inputs, and in the order of parameters(); None "
        "for a tensor without a gradient",
    )
