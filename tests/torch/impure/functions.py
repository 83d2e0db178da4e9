"""Functions that keep something in closures, globals, defaults and iterators."""

from __future__ import annotations

import itertools
from functools import lru_cache, partial
from typing import Any

import torch

from tests.torch.impure.cases import Job, case
from tests.torch.support import gru

KEPT = "kept by a function"
MODES = "modes"

_count = 0
_history: list[float] = []


def _job(cell: Any, parameters: list[torch.Tensor], **more: Any) -> Job:
    return Job(cell=cell, parameters=tuple(parameters), **more)


@case(KEPT, "a variable of the enclosing function")
def nonlocal_counter() -> Job:
    inner, parameters = gru()
    calls = 0

    def cell(state: torch.Tensor, x: torch.Tensor) -> Any:
        nonlocal calls
        calls += 1
        state = inner(state, x)[0] / (1 + 0.1 * max(calls - 4, 0))
        return state, state

    return _job(cell, parameters)


@case(KEPT, "a list of the enclosing function")
def list_of_a_closure() -> Job:
    inner, parameters = gru()
    seen: list[torch.Tensor] = []

    def cell(state: torch.Tensor, x: torch.Tensor) -> Any:
        state = inner(state, x)[0]
        seen.append(state.detach())
        state = state + 0.1 * seen[max(0, len(seen) - 4)]
        return state, state

    return _job(cell, parameters)


@case(KEPT, "the same with graphs: an eligibility that gradients flow through")
def graphs_of_a_closure() -> Job:
    inner, parameters = gru()
    before: list[Any] = [0.0]

    def cell(state: torch.Tensor, x: torch.Tensor) -> Any:
        state = inner(state, x)[0] + 0.1 * before[0]
        before[0] = state
        return state, state

    return _job(cell, parameters)


@case(KEPT, "a global number")
def global_counter() -> Job:
    global _count  # noqa: PLW0603 - what people write
    _count = 0
    inner, parameters = gru()

    def cell(state: torch.Tensor, x: torch.Tensor) -> Any:
        global _count  # noqa: PLW0603
        _count += 1
        state = inner(state, x)[0] / (1 + 0.1 * max(_count - 4, 0))
        return state, state

    return _job(cell, parameters)


def _note(value: float) -> float:
    """Keep a number, and return a mean of the last ones."""
    _history.append(value)
    return sum(_history[-5:]) / 5


@case(KEPT, "a global list, in a function that the cell calls")
def global_list() -> Job:
    _history.clear()
    inner, parameters = gru()

    def cell(state: torch.Tensor, x: torch.Tensor) -> Any:
        state = inner(state, x)[0]
        state = state - 0.1 * _note(float(state.detach().mean()))
        return state, state

    return _job(cell, parameters)


@case(KEPT, "a default argument that is a list")
def default_argument() -> Job:
    inner, parameters = gru()

    def cell(state: torch.Tensor, x: torch.Tensor, memory: list[Any] = []) -> Any:  # noqa: B006
        state = inner(state, x)[0]
        memory.append(state.detach())
        state = state + 0.1 * memory[max(0, len(memory) - 3)]
        return state, state

    return _job(cell, parameters)


@case(KEPT, "an attribute of the function")
def function_attribute() -> Job:
    inner, parameters = gru()

    def cell(state: torch.Tensor, x: torch.Tensor) -> Any:
        cell.calls += 1  # type: ignore[attr-defined]
        state = inner(state, x)[0] / (1 + 0.1 * cell.calls)  # type: ignore[attr-defined]
        return state, state

    cell.calls = 0  # type: ignore[attr-defined]
    return _job(cell, parameters)


@case(KEPT, "an argument that functools.partial holds")
def partial_argument() -> Job:
    inner, parameters = gru()

    def cell(memory: dict[str, Any], state: torch.Tensor, x: torch.Tensor) -> Any:
        state = inner(state, x)[0] + 0.1 * memory["last"]
        memory["last"] = state.detach()
        return state, state

    return _job(partial(cell, {"last": 0.0}), parameters)


@case(KEPT, "an object with __call__")
def callable_object() -> Job:
    inner, parameters = gru()

    class Stepper:
        def __init__(self) -> None:
            self.momentum: Any = 0.0

        def __call__(self, state: torch.Tensor, x: torch.Tensor) -> Any:
            state = inner(state, x)[0]
            self.momentum = 0.9 * self.momentum + 0.1 * state.detach()
            state = state - 0.1 * self.momentum
            return state, state

    return _job(Stepper(), parameters)


@case(KEPT, "a generator function that gives noise levels")
def generator_function() -> Job:
    inner, parameters = gru()

    def levels() -> Any:
        level = 1.0
        while True:
            yield level
            level *= 0.9

    schedule = levels()

    def cell(state: torch.Tensor, x: torch.Tensor) -> Any:
        state = inner(state, x)[0] * next(schedule)
        return state, state

    return _job(cell, parameters)


@case(KEPT, "itertools.count")
def counting_iterator() -> Job:
    inner, parameters = gru()
    steps = itertools.count()

    def cell(state: torch.Tensor, x: torch.Tensor) -> Any:
        state = inner(state, x)[0] / (1 + 0.1 * max(next(steps) - 4, 0))
        return state, state

    return _job(cell, parameters)


@case(KEPT, "an iterator over a list of weights")
def list_iterator() -> Job:
    inner, parameters = gru()
    weights = iter([1.0] * 5 + [0.5] * 500)

    def cell(state: torch.Tensor, x: torch.Tensor) -> Any:
        state = inner(state, x)[0] * next(weights)
        return state, state

    return _job(cell, parameters)


@case(KEPT, "a weight that lru_cache remembers, with its graph")
def cached_weight() -> Job:
    inner, parameters = gru()
    raw = torch.zeros(7, dtype=torch.float64, requires_grad=True)

    @lru_cache
    def weight() -> torch.Tensor:
        return torch.sigmoid(raw)

    def cell(state: torch.Tensor, x: torch.Tensor) -> Any:
        state = inner(state, x)[0] * weight()
        return state, state

    return _job(cell, [*parameters, raw])


@case(MODES, "another result where no graph is recorded")
def grad_mode() -> Job:
    inner, parameters = gru()

    def cell(state: torch.Tensor, x: torch.Tensor) -> Any:
        state = inner(state, x)[0]
        state = state if torch.is_grad_enabled() else torch.round(state, decimals=2)
        return state, state

    return _job(cell, parameters)


@case(MODES, "detached where no graph is recorded")
def grad_mode_gate() -> Job:
    inner, parameters = gru()

    def cell(state: torch.Tensor, x: torch.Tensor) -> Any:
        state = inner(state, x)[0]
        state = state if torch.is_grad_enabled() else state.detach()
        return state, state

    return _job(cell, parameters)


@case(MODES, "another result for a state without gradient")
def asks_for_requires_grad() -> Job:
    inner, parameters = gru()

    def cell(state: torch.Tensor, x: torch.Tensor) -> Any:
        scale = 1.0 if state.requires_grad else 0.5
        state = inner(state, x)[0] * scale
        return state, state

    return _job(cell, parameters)


@case(MODES, "enable_grad() within the cell")
def enables_grad() -> Job:
    inner, parameters = gru()

    def cell(state: torch.Tensor, x: torch.Tensor) -> Any:
        with torch.enable_grad():
            state = inner(state, x)[0]
        return state, state

    return _job(cell, parameters)


@case(MODES, "an inner gradient, taken by the cell")
def inner_gradient() -> Job:
    inner, parameters = gru()

    def cell(state: torch.Tensor, x: torch.Tensor) -> Any:
        state = inner(state, x)[0]
        with torch.enable_grad():
            here = state.detach().requires_grad_()
            (slope,) = torch.autograd.grad(here.tanh().square().sum(), here)
        state = state - 0.1 * slope
        return state, state

    return _job(cell, parameters)
