"""Law: steps that run again find their counts as they were, so that gradients are those of a loop.

What a count decides late, nothing else shows: a truncation every so many steps changes no value.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch

from ckptplan.torch import scan

STEPS, EVERY = 90, 25


class Counting(torch.nn.Module):
    """A cell that truncates the graph every so many steps, by a count of its own."""

    t = 0.0
    buffer: torch.Tensor

    def __init__(self) -> None:
        super().__init__()
        self.inner = torch.nn.GRUCell(4, 16)
        self.steps, self.bound, self.record = 0, torch.zeros(()), list[int]()
        self.register_buffer("buffer", torch.zeros(()))

    def count(self) -> bool:
        raise NotImplementedError

    def forward(self, state: torch.Tensor, x: torch.Tensor) -> Any:
        state = self.inner(x, state.detach() if self.count() else state)
        return state, state


class Attribute(Counting):
    def count(self) -> bool:
        self.steps += 1
        return self.steps % EVERY == 0


class AttributeOfNone(Counting):
    """It has no number before the first step."""

    def __init__(self) -> None:
        super().__init__()
        self.made: Any = None

    def count(self) -> bool:
        self.made = (self.made or 0) + 1
        return int(self.made) % EVERY == 0


class FloatClock(Counting):
    """Of the class until the first step gives the cell its own."""

    def count(self) -> bool:
        self.t += 0.25
        return self.t > 12 and round(self.t / 0.25) % EVERY == 0


class Buffer(Counting):
    def count(self) -> bool:
        self.buffer += 1
        return self.buffer.item() % EVERY == 0


class Bound(Counting):
    def count(self) -> bool:
        self.bound = self.bound + 1
        return self.bound.item() % EVERY == 0


class Record(Counting):
    def count(self) -> bool:
        self.record.append(len(self.record))
        return len(self.record) % EVERY == 0


class BoundThenWritten(Counting):
    """A tensor that the first step makes."""

    made: Any = None

    def count(self) -> bool:
        self.made = torch.zeros(()) if self.made is None else self.made
        self.made += 1
        # Not in steps that are rehearsed: a count that is read there is refused.
        return int(self.made) in (50, 160)


class Element(Counting):
    def __init__(self) -> None:
        super().__init__()
        self.numbers = {"of": torch.zeros(3), "list": [0], "array": np.zeros(2)}

    def count(self) -> bool:
        for one in self.numbers.values():
            one[0] += 1  # type: ignore[index]
        return any(int(one[0]) % EVERY == 0 for one in self.numbers.values())  # type: ignore[index]


class Pair(Counting):
    def __init__(self) -> None:
        super().__init__()
        self.pair = (0, "steps")

    def count(self) -> bool:
        self.pair = self.pair[0] + 1, "steps"
        return self.pair[0] % EVERY == 0


class Window(Counting):
    """A record that is emptied when it is full."""

    def count(self) -> bool:
        self.record.append(1)
        if len(self.record) < EVERY:
            return False
        self.record.clear()
        return True


class Down(Counting):
    def __init__(self) -> None:
        super().__init__()
        self.record = list(range(4 * STEPS))

    def count(self) -> bool:
        self.record.pop()
        return 4 * STEPS - len(self.record) in (50, 160)


class LateCount(Counting):
    """It begins to count after the steps that are looked at first."""

    def forward(self, state: torch.Tensor, x: torch.Tensor) -> Any:
        if float(x[0, -1]) > 30:
            self.steps += 1
        state = self.inner(x.clamp(-1, 1), state.detach() if self.steps % EVERY == EVERY - 1 else state)
        return state, state


class Anneal(Counting):
    """A part of the gradient stops from a late step on."""

    def forward(self, state: torch.Tensor, x: torch.Tensor) -> Any:
        self.steps += 1
        mixed = state if self.steps < 40 else 0.5 * state + 0.5 * state.detach()
        state = self.inner(x, mixed)
        return state, state


class Late(Counting):
    """Values change, too."""

    def forward(self, state: torch.Tensor, x: torch.Tensor) -> Any:
        self.steps += 1
        state = self.inner(x, 0.5 * state if self.steps % EVERY == 0 else state)
        return state, state


def in_closure() -> Any:
    inner, steps = torch.nn.GRUCell(4, 16), 0

    def cell(state: torch.Tensor, x: torch.Tensor) -> Any:
        nonlocal steps
        steps += 1
        state = inner(x, state.detach() if steps % EVERY == 0 else state)
        return state, state

    return cell


def train(make: Callable[[], Any], run: Callable[[Any, torch.Tensor, torch.Tensor], torch.Tensor]) -> Any:
    """Return the gradients of two sequences with a new cell, and what its counts are in the end."""
    torch.manual_seed(0)
    cell = make()
    weights = list(
        (cell if isinstance(cell, torch.nn.Module) else cell.__closure__[0].cell_contents).parameters()
    )
    found: list[torch.Tensor] = []
    for _ in range(2):
        inputs, state = torch.randn(STEPS, 3, 4), torch.zeros(3, 16)
        inputs[..., -1] = torch.arange(STEPS)[:, None]
        outputs = run(cell, state, inputs)
        loss = (outputs * torch.linspace(0, 1, STEPS)[:, None, None]).square().sum()
        found += torch.autograd.grad(loss, weights)
    counts = {name: value for name, value in vars(cell).items() if name in ("steps", "record", "t")}
    return found, counts


def loop(cell: Any, state: torch.Tensor, inputs: torch.Tensor) -> torch.Tensor:
    outputs = []
    for x in inputs:
        state, output = cell(state, x)
        outputs.append(output)
    return torch.stack(outputs)


@pytest.mark.parametrize("memory", ["70 kB", "120 kB"])
@pytest.mark.parametrize(
    "make",
    [
        *(Attribute, AttributeOfNone, FloatClock, Buffer, Bound, BoundThenWritten),
        *(Element, Pair, Record, Window, Down),
        *(Anneal, Late, LateCount, in_closure),
    ],
)
def test_what_a_count_decides_late_is_decided_alike_when_steps_run_again(make: Any, memory: str) -> None:
    theirs, counted = train(make, loop)
    ours, left = train(make, lambda cell, state, inputs: scan(cell, state, inputs, memory=memory)[1])
    for one, other in zip(ours, theirs, strict=True):
        torch.testing.assert_close(one, other, rtol=1e-4, atol=1e-6)
    assert left == counted
