"""Law: steps that run again find their counts as they were, so that gradients are those of a loop.

What a count decides late, nothing else shows: a truncation every so many steps changes no value.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch
from torch.utils._pytree import tree_map

from ckptplan.torch import scan
from tests.torch.impure.cases import weaken
from tests.torch.support import plain

STEPS, EVERY = 90, 25
#: Classes of cells that count their steps, one for each row: a class is known from its first call on.
COUNTS: list[Any] = []


class Counting(torch.nn.Module):
    """A cell that changes the gradient of its state by a count."""

    #: Of the class until the first step gives the cell its own.
    clock, made = 0.0, None

    def __init__(self, kept: Any) -> None:
        super().__init__()
        self.inner, self.kept = torch.nn.GRUCell(4, 16), kept

    def change(self, state: torch.Tensor, x: torch.Tensor) -> torch.Tensor:
        """Count a step, and return what the step does with its state."""
        raise NotImplementedError

    def forward(self, state: torch.Tensor, x: torch.Tensor) -> Any:
        state = self.inner(x.clamp(-1, 1), self.change(state, x))
        return state, state


def changes(kept: Callable[[], Any]) -> Callable[[Any], Any]:
    """Add the row of a function that counts a step, and changes the state; ``kept()`` is kept at first."""

    def register(change: Any) -> Any:
        kind = type(change.__name__, (Counting,), {"change": change, "__module__": __name__})
        COUNTS.append(pytest.param(lambda: kind(kept()), id=change.__name__))
        return change

    return register


def counts(kept: Callable[[], Any]) -> Callable[[Any], Any]:
    """Add the row of a function that counts a step, and returns whether the graph is truncated there."""

    def register(count: Any) -> Any:
        def truncate(cell: Any, state: torch.Tensor, _: torch.Tensor) -> torch.Tensor:
            return state.detach() if count(cell) else state

        truncate.__name__ = count.__name__
        changes(kept)(truncate)
        return count

    return register


@counts(lambda: 0)
@counts(lambda: torch.nn.Buffer(torch.zeros(())))
def add_to_attribute(cell: Any) -> bool:
    cell.kept += 1
    return int(cell.kept) % EVERY == 0


@counts(lambda: None)
@counts(lambda: torch.zeros(()))
def bind_attribute(cell: Any) -> bool:
    """It may have no number before the first step."""
    cell.kept = (0 if cell.kept is None else cell.kept) + 1
    return int(cell.kept) % EVERY == 0


@counts(lambda: None)
def float_clock(cell: Any) -> bool:
    cell.clock += 0.25
    return bool(cell.clock > 12 and round(cell.clock / 0.25) % EVERY == 0)


@counts(lambda: None)
def bind_then_write(cell: Any) -> bool:
    """Write a tensor that the first step makes."""
    cell.made = torch.zeros(()) if cell.made is None else cell.made
    cell.made += 1
    # Not in steps that are rehearsed: a count that is read there is refused.
    return int(cell.made) in (50, 160)


@counts(lambda: {"of": torch.zeros(3), "list": [0], "array": np.zeros(2)})
def add_to_elements(cell: Any) -> bool:
    for numbers in cell.kept.values():
        numbers[0] += 1
    return any(int(numbers[0]) % EVERY == 0 for numbers in cell.kept.values())


@counts(lambda: (0, "steps"))
def bind_pair(cell: Any) -> bool:
    cell.kept = cell.kept[0] + 1, "steps"
    return bool(cell.kept[0] % EVERY == 0)


@counts(list)
def append_to_record(cell: Any) -> bool:
    cell.kept.append(len(cell.kept))
    return len(cell.kept) % EVERY == 0


@counts(list)
def empty_full_record(cell: Any) -> bool:
    cell.kept.append(1)
    if len(cell.kept) < EVERY:
        return False
    cell.kept.clear()
    return True


@counts(lambda: list(range(4 * STEPS)))
def take_from_record(cell: Any) -> bool:
    cell.kept.pop()
    return 4 * STEPS - len(cell.kept) in (50, 160)


@changes(lambda: 0)
def begin_late(cell: Any, state: torch.Tensor, x: torch.Tensor) -> torch.Tensor:
    """Begin to count after the steps that are looked at first."""
    if float(x[0, -1]) > 30:
        cell.kept += 1
    return state.detach() if cell.kept % EVERY == EVERY - 1 else state


@changes(lambda: 0)
def anneal(cell: Any, state: torch.Tensor, _: torch.Tensor) -> torch.Tensor:
    """Stop a part of the gradient from a late step on."""
    cell.kept += 1
    return state if cell.kept < 40 else torch.as_tensor(weaken(state, 0.5))


@changes(lambda: 0)
def change_values(cell: Any, state: torch.Tensor, _: torch.Tensor) -> torch.Tensor:
    """Change values, too."""
    cell.kept += 1
    return 0.5 * state if cell.kept % EVERY == 0 else state


def train(make: Callable[[], Any], run: Callable[[Any, torch.Tensor, torch.Tensor], torch.Tensor]) -> Any:
    """Return the gradients of two sequences with a new cell, and what its counts are in the end."""
    torch.manual_seed(0)
    cell, inner = make()
    found: list[torch.Tensor] = []
    for _ in range(2):
        inputs, state = torch.randn(STEPS, 3, 4), torch.zeros(3, 16)
        inputs[..., -1] = torch.arange(STEPS)[:, None]
        outputs = run(cell, state, inputs)
        loss = (outputs * torch.linspace(0, 1, STEPS)[:, None, None]).square().sum()
        found += torch.autograd.grad(loss, list(inner.parameters()))
    left = tree_map(lambda leaf: leaf.detach() if isinstance(leaf, torch.Tensor) else leaf, vars(cell))
    return found, repr([left.get(name) for name in ("kept", "clock", "made")])


def compare(make: Callable[[], Any], memory: str) -> None:
    """Compare gradients and counts within a limit with those of a plain loop."""
    theirs, counted = train(make, lambda cell, state, inputs: torch.stack(plain(cell, inputs, state, STEPS)[0]))
    ours, left = train(make, lambda cell, state, inputs: scan(cell, state, inputs, memory=memory)[1])
    for one, other in zip(ours, theirs, strict=True):
        torch.testing.assert_close(one, other, rtol=1e-4, atol=1e-6)
    assert left == counted


@pytest.mark.parametrize("memory", ["70 kB", "120 kB"])
@pytest.mark.parametrize("make_cell", COUNTS)
def test_what_a_count_decides_late_is_decided_alike_when_steps_run_again(make_cell: Any, memory: str) -> None:
    def make() -> Any:
        cell = make_cell()
        return cell, cell.inner

    compare(make, memory)


@pytest.mark.parametrize("memory", ["70 kB", "120 kB"])
def test_a_count_of_a_closure_decides_alike_when_steps_run_again(memory: str) -> None:
    def make() -> Any:
        inner, steps = torch.nn.GRUCell(4, 16), 0

        def cell(state: torch.Tensor, x: torch.Tensor) -> Any:
            nonlocal steps
            steps += 1
            state = inner(x, state.detach() if steps % EVERY == 0 else state)
            return state, state

        return cell, inner

    compare(make, memory)
