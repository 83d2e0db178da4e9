"""Functions that keep something in closures, globals, defaults and iterators."""

from __future__ import annotations

import itertools
from collections.abc import Callable
from functools import lru_cache, partial
from typing import Any

import torch

from tests.torch.impure.cases import add_case, apply, call, case
from tests.torch.support import gru
from tests.torch.tables import Call

KEPT = "kept by a function"
MODES = "modes"

_count = 0
_history: list[float] = []


@case(KEPT, "a variable of the enclosing function")
def nonlocal_counter() -> Call:
    inner, parameters = gru()
    calls = 0

    def cell(state: torch.Tensor, x: torch.Tensor) -> Any:
        nonlocal calls
        calls += 1
        state = inner(state, x)[0] / (1 + 0.1 * max(calls - 4, 0))
        return state, state

    return call(cell, parameters=parameters)


@case(KEPT, "a list of the enclosing function")
def list_of_a_closure() -> Call:
    seen: list[torch.Tensor] = []

    def change(state: torch.Tensor) -> Any:
        seen.append(state.detach())
        return state + 0.1 * seen[max(0, len(seen) - 4)]

    return apply(change)


@case(KEPT, "the same with graphs: an eligibility that gradients flow through")
def graphs_of_a_closure() -> Call:
    before: list[Any] = [0.0]

    def change(state: torch.Tensor) -> Any:
        before[0] = state + 0.1 * before[0]
        return before[0]

    return apply(change)


@case(KEPT, "a global number")
def global_counter() -> Call:
    global _count  # noqa: PLW0603 - what people write
    _count = 0

    def change(state: torch.Tensor) -> Any:
        global _count  # noqa: PLW0603
        _count += 1
        return state / (1 + 0.1 * max(_count - 4, 0))

    return apply(change)


def _note(value: float) -> float:
    """Keep a number, and return a mean of the last ones."""
    _history.append(value)
    return sum(_history[-5:]) / 5


@case(KEPT, "a global list, in a function that the cell calls")
def global_list() -> Call:
    _history.clear()
    return apply(lambda state: state - 0.1 * _note(float(state.detach().mean())))


@case(KEPT, "a default argument that is a list")
def default_argument() -> Call:
    def change(state: torch.Tensor, memory: list[Any] = []) -> Any:  # noqa: B006
        memory.append(state.detach())
        return state + 0.1 * memory[max(0, len(memory) - 3)]

    return apply(change)


@case(KEPT, "an attribute of the function")
def function_attribute() -> Call:
    def change(state: torch.Tensor) -> Any:
        change.calls += 1  # type: ignore[attr-defined]
        return state / (1 + 0.1 * change.calls)  # type: ignore[attr-defined]

    change.calls = 0  # type: ignore[attr-defined]
    return apply(change)


@case(KEPT, "an argument that functools.partial holds")
def partial_argument() -> Call:
    inner, parameters = gru()

    def cell(memory: dict[str, Any], state: torch.Tensor, x: torch.Tensor) -> Any:
        state = inner(state, x)[0] + 0.1 * memory["last"]
        memory["last"] = state.detach()
        return state, state

    return call(partial(cell, {"last": 0.0}), parameters=parameters)


@case(KEPT, "an object with __call__")
def callable_object() -> Call:
    inner, parameters = gru()

    class Stepper:
        def __init__(self) -> None:
            self.momentum: Any = 0.0

        def __call__(self, state: torch.Tensor, x: torch.Tensor) -> Any:
            state = inner(state, x)[0]
            self.momentum = 0.9 * self.momentum + 0.1 * state.detach()
            state = state - 0.1 * self.momentum
            return state, state

    return call(Stepper(), parameters=parameters)


@case(KEPT, "a generator function that gives noise levels")
def generator_function() -> Call:
    def levels() -> Any:
        for number in itertools.count():
            yield 0.9**number

    schedule = levels()
    return apply(lambda state: state * next(schedule))


@case(KEPT, "itertools.count")
def counting_iterator() -> Call:
    steps = itertools.count()
    return apply(lambda state: state / (1 + 0.1 * max(next(steps) - 4, 0)))


@case(KEPT, "an iterator over a list of weights")
def list_iterator() -> Call:
    weights = iter([1.0] * 5 + [0.5] * 500)
    return apply(lambda state: state * next(weights))


@case(KEPT, "a weight that lru_cache remembers, with its graph")
def cached_weight() -> Call:
    raw = torch.zeros(7, dtype=torch.float64, requires_grad=True)

    @lru_cache
    def weight() -> torch.Tensor:
        return torch.sigmoid(raw)

    return apply(lambda state: state * weight(), parameters=[raw])


def _enable_grad() -> Call:
    inner, parameters = gru()

    def cell(state: torch.Tensor, x: torch.Tensor) -> Any:
        with torch.enable_grad():
            state = inner(state, x)[0]
        return state, state

    return call(cell, parameters=parameters)


def _ask_for_requires_grad() -> Call:
    inner, parameters = gru()

    def cell(state: torch.Tensor, x: torch.Tensor) -> Any:
        state = inner(state, x)[0] * (1.0 if state.requires_grad else 0.5)
        return state, state

    return call(cell, parameters=parameters)


def _take_inner_gradient(state: torch.Tensor) -> Any:
    with torch.enable_grad():
        here = state.detach().requires_grad_()
        (slope,) = torch.autograd.grad(here.tanh().square().sum(), here)
    return state - 0.1 * slope


def _round_without_graph(state: torch.Tensor) -> Any:
    return state if torch.is_grad_enabled() else torch.round(state, decimals=2)


def _detach_without_graph(state: torch.Tensor) -> Any:
    return state if torch.is_grad_enabled() else state.detach()


_IN_MODES: dict[str, tuple[str, Callable[[], Call]]] = {
    "grad_mode": ("another result where no graph is recorded", lambda: apply(_round_without_graph)),
    "grad_mode_gate": ("detached where no graph is recorded", lambda: apply(_detach_without_graph)),
    "asks_for_requires_grad": ("another result for a state without gradient", _ask_for_requires_grad),
    "enables_grad": ("enable_grad() within the cell", _enable_grad),
    "inner_gradient": ("an inner gradient, taken by the cell", lambda: apply(_take_inner_gradient)),
}
for _name, (_what, _make) in _IN_MODES.items():
    add_case(_name, MODES, _what, _make)
