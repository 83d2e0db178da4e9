"""What tables of calls share: ways to call, and counts of what runs inside."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from types import ModuleType
from typing import Any

import pytest
import torch

from ckptplan.torch import bptt
from tests.torch.support import assert_close, gradients, plain, plan_of

#: Strategies whose first recording holds all steps, a chunk, and a single step.
STRATEGIES = ("base", "standard", "revolve")


def plan_steps(steps: int, strategy: str, *, states: int = 12, **options: Any) -> Any:
    """Return a plan within some states, or one that records all steps at once if the strategy is ``base``."""
    return plan_of(steps, strategy, states=1_000 if strategy == "base" else states, **options)


def sum_squares(_: int, output: torch.Tensor) -> torch.Tensor:
    """Return the loss of a step."""
    return output.square().sum()


def mean_square(_: int, output: torch.Tensor) -> torch.Tensor:
    """Return the loss of a step, which does not grow with its output."""
    return output.square().mean()


def assert_plain_gradients(
    cell: Any,
    inputs: Any,
    state: Any,
    wanted: Sequence[torch.Tensor],
    *,
    steps: int,
    relative: float,
    loss: Callable[[int, Any], torch.Tensor] = sum_squares,
    given: Any = None,
    **options: Any,
) -> None:
    """Compare the gradients of ``bptt`` with those of a plain loop; ``given`` are its inputs, if others."""
    outputs, _ = plain(cell, inputs, state, steps)
    expected = torch.stack([loss(step, output) for step, output in enumerate(outputs)]).sum()
    theirs = gradients(expected, wanted)
    result = bptt(cell, inputs if given is None else given, state, loss, **options)
    assert_close(gradients(result.loss, wanted), theirs, relative=relative)


@contextmanager
def count_calls(module: ModuleType, name: str) -> Iterator[list[Any]]:
    """Collect the results of a function of a module, which goes on to do what it does."""
    results: list[Any] = []
    function = vars(module)[name]

    def call(*arguments: Any, **options: Any) -> Any:
        results.append(function(*arguments, **options))
        return results[-1]

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(module, name, call)
        yield results
