"""The register of impure cells and losses: each is a function that builds one anew."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch

from tests.torch.support import job

#: Steps of a sequence.
STEPS = 24


def squares(_: int, output: torch.Tensor) -> Any:
    """The loss of a step."""
    return output.square().sum()


@dataclass(kw_only=True)
class Job:
    """A cell with all that a sequence needs; it is used once."""

    cell: Any
    loss: Any = squares
    state: Any = None
    inputs: Any = None
    #: Tensors whose gradients are compared, besides the state and the inputs.
    parameters: tuple[torch.Tensor, ...] = ()
    #: Called between the forward and the backward pass.
    between: Callable[[], object] = int
    #: Called when its gradients are there.
    finish: Callable[[], object] = int
    #: In place of ``loss``: the loss of runs of steps, of which a plain loop takes all at once.
    chunk_loss: Any = None

    def __post_init__(self) -> None:
        inputs, state = job(STEPS)
        self.inputs = inputs if self.inputs is None else self.inputs
        self.state = state if self.state is None else self.state
        if isinstance(self.cell, torch.nn.Module):
            self.parameters = (*self.parameters, *self.cell.parameters())


@dataclass(frozen=True, kw_only=True)
class Case:
    """A way to be impure."""

    family: str
    #: What it does, in words.
    what: str
    build: Callable[[], Job]


CASES: dict[str, Case] = {}


def case(family: str, what: str) -> Callable[[Callable[[], Job]], Callable[[], Job]]:
    """Register a function that builds a job; its name is that of the case."""

    def register(build: Callable[[], Job]) -> Callable[[], Job]:
        name = getattr(build, "__name__", "")
        assert name not in CASES
        CASES[name] = Case(family=family, what=what, build=build)
        return build

    return register


def cell_case(family: str, what: str) -> Callable[[type], type]:
    """Register a class of cells that need no arguments."""

    def register(one: type) -> type:
        CASES[one.__name__] = Case(family=family, what=what, build=lambda: Job(cell=one()))
        return one

    return register
