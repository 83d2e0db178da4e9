"""What a cell may offer to run whole chunks itself: replay from saved outputs, its own tape and backward."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Protocol, Self

import torch


class SavedOutputs(Protocol):
    """Outputs of some steps as a cell keeps them for the whole sequence, and what it reads at their start."""

    @property
    def bytes(self) -> int:
        """What their tensors take."""

    def part(self, start: int, stop: int) -> Self:
        """Return those of some steps, counted from the first."""

    def moved(self, keep: Callable[[torch.Tensor], torch.Tensor]) -> Self:
        """Return the same with each tensor where ``keep`` puts it."""


@dataclass(frozen=True, kw_only=True)
class ChunkGradients:
    """Gradients of a chunk."""

    #: Of the state it begins with: as the state nests.
    state: Any
    #: Of its inputs, time first; None where they were not wanted.
    inputs: Any
    #: Of the cell's parameters, in the order of ``parameters()``.
    parameters: tuple[torch.Tensor | None, ...]


class ChunkCell(torch.nn.Module, ABC):
    """A cell that steps like any other, ``cell(state, x) -> (state, output)``, and runs chunks itself.

    Outputs are saved for the whole sequence, so they should be small, as spikes are. Steps that are run
    again are replayed from them, which spares what made them (Bencheikh et al. 2024, section III-B). The
    methods run without autograd, on states and inputs that belong to no graph, for few steps at a time.
    ``inputs`` have time first. A chunk's tape is what ``states`` hold: the state after each of its steps.
    """

    @abstractmethod
    def run(self, state: Any, inputs: Any, before: Any | None) -> tuple[Any, Any]:
        """Run steps for the first time; ``before`` are the outputs of the step before, None at the first.

        Returns the states after each step, time first, and the outputs to be saved.
        """

    @abstractmethod
    def replay(self, state: Any, inputs: Any, outputs: Any) -> Any:
        """Return the states after each step, from saved outputs, without making these again."""

    @abstractmethod
    def last(self, outputs: Any) -> Any:
        """Return what ``run`` needs of saved outputs to go on after them."""

    @abstractmethod
    def dense(self, outputs: Any) -> Any:
        """Return saved outputs as the steps returned them, time first."""

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
        """Return gradients, given those of the outputs and of the state after the last step.

        A leaf without gradient is None in ``output_gradients`` and ``state_gradients``.
        """
