"""How steps are run, recorded and reversed: one after the other under autograd, or a chunk at a time."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable
from typing import Any

import torch

from ckptplan.torch.gradients import Gradients

Cell = Callable[[Any, Any], tuple[Any, Any]]
#: Gradients that came in, of what came of the outputs.
Incoming = tuple[torch.Tensor | None, ...]


class Tape(ABC):
    """What the backward pass of some steps needs."""

    def __init__(self, *, start: int, stop: int) -> None:
        self.start, self.stop = start, stop

    @property
    @abstractmethod
    def bytes(self) -> int:
        """What it keeps alive beside the state that it begins with, parameters and inputs, in bytes."""


class Engine(ABC):
    """Runs steps. A state that comes in or goes out belongs to no graph."""

    gradients: Gradients
    #: Whether steps may be run again, or reversed.
    again = True

    @property
    def saved_bytes(self) -> int:
        """Outputs kept for the whole sequence, in bytes."""
        return 0

    @abstractmethod
    def advance(self, state: Any, start: int, stop: int, *, known: int) -> Any:
        """Run steps and keep nothing; the first ``known`` of all have run before. Returns the state after."""

    @abstractmethod
    def record(self, state: Any, start: int, stop: int, *, known: int) -> tuple[Tape, Any]:
        """Run steps and keep their tape. Returns it and the state after."""

    @abstractmethod
    def reverse(self, tape: Tape, incoming: Incoming) -> None:
        """Take a tape's gradients; the state's become those of the state that the tape begins with."""

    @abstractmethod
    def close(self) -> None:
        """Let go of everything."""
