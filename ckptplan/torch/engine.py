"""The interface of engines, which run, record and reverse steps."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable
from typing import Any

import torch

from ckptplan.schedule.actions import Action
from ckptplan.torch.fit import Gauge
from ckptplan.torch.gradients import Gradients

Cell = Callable[[Any, Any], tuple[Any, Any]]
#: Called with each action when it is done, and with its executor.
Observer = Callable[[Action, Any], None]
#: Gradients of the results of the outputs, i.e. of stacked outputs or of the loss.
Incoming = tuple[torch.Tensor | None, ...]


class Tape(ABC):
    """The data that the backward pass of some steps needs."""

    def __init__(self, *, start: int, stop: int) -> None:
        self.start, self.stop = start, stop

    @property
    @abstractmethod
    def bytes(self) -> int:
        """The bytes it keeps alive, excluding its initial state, parameters and inputs."""


class Engine(ABC):
    """Runs steps. States passed in and returned belong to no graph."""

    cell: Any
    gradients: Gradients
    #: Measures the first recorded steps; None if nothing is measured (any more).
    gauge: Gauge | None = None

    @property
    def saved_bytes(self) -> int:
        """The bytes of outputs that are kept for the whole sequence."""
        return 0

    @abstractmethod
    def advance(self, state: Any, start: int, stop: int, *, known: int) -> Any:
        """Run steps without a tape, and return the state after them; steps before ``known`` have run before."""

    @abstractmethod
    def record(self, state: Any, start: int, stop: int, *, known: int) -> tuple[Tape, Any]:
        """Run steps, and return their tape and the state after them."""

    @abstractmethod
    def reverse(self, tape: Tape, incoming: Incoming) -> None:
        """Backpropagate through a tape; the state's gradients become those of the tape's initial state."""

    @abstractmethod
    def close(self) -> None:
        """Release everything."""
