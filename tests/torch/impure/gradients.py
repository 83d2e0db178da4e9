"""Cells and losses that keep what changes gradients but no values, and what they keep it in."""

from __future__ import annotations

import queue
import threading
from contextvars import ContextVar
from types import SimpleNamespace
from typing import Any

import torch

from tests.torch.impure.cases import Bare, Cell, call, case, does, family, make_class
from tests.torch.tables import STEPS, Call

SLOPES = "gradients alone"
PLACES = "objects of the standard library"
SUMS = "sums for a last step"

_slope: ContextVar[float] = ContextVar("slope")


class Surrogate(torch.autograd.Function):
    """A spike whose gradient is the steeper, the smaller a factor is."""

    @staticmethod
    def forward(ctx: Any, membrane: torch.Tensor, factor: float) -> torch.Tensor:
        """Return the spikes."""
        ctx.save_for_backward(membrane)
        ctx.factor = factor
        return (membrane > 0).to(membrane.dtype)

    @staticmethod
    def backward(ctx: Any, gradient: torch.Tensor) -> Any:
        """Return the surrogate gradient."""
        (membrane,) = ctx.saved_tensors
        return gradient / (1 + ctx.factor * membrane.abs()).square(), None


def spike(state: torch.Tensor, factor: float) -> Any:
    """Return the state, with a part of it from spikes."""
    return 0.9 * state + 0.1 * Surrogate.apply(state - 0.1, factor)  # type: ignore[no-untyped-call]


def _reset_slope() -> None:
    _slope.set(1.0)


class _Private:
    __slots__ = ("__slope",)

    def __init__(self) -> None:
        self.__slope = 1.0

    def move(self) -> float:
        """Return the next slope."""
        self.__slope *= 1.05
        return self.__slope


@family(SLOPES)
class Slopes(Cell):
    """Cells that count their calls, and keep what only gradients see."""

    @does("a surrogate that gets steeper with each call", lambda: 1.0)
    def slope_annealing(self, state: torch.Tensor) -> Any:
        self.kept *= 1.05
        return spike(state, self.kept)

    @does("the same, from the tenth call on", lambda: 1.0)
    def late_slope_annealing(self, state: torch.Tensor) -> Any:
        if self.calls >= 10:
            self.kept *= 1.1
        return spike(state, self.kept)

    @does("a hook whose factor falls with each call")
    def decaying_hook(self, state: torch.Tensor) -> Any:
        factor = 0.97**self.calls
        if state.requires_grad:
            state.register_hook(lambda gradient: gradient * factor)
        return state

    @does("a straight-through estimator whose temperature falls", lambda: 1.0)
    def straight_through(self, state: torch.Tensor) -> Any:
        self.kept *= 0.95
        soft = torch.softmax(state / self.kept, -1)
        hard = torch.nn.functional.one_hot(soft.argmax(-1), 7).double()
        return 0.5 * state + (hard - soft.detach() + soft) * state

    @does("a threshold, a number, that nothing reaches", lambda: 5.0)
    def unreached_threshold(self, state: torch.Tensor) -> Any:
        self.kept *= 1.02
        return state + Surrogate.apply(state - self.kept, 1.0)  # type: ignore[no-untyped-call]

    @does("a detach in every seventh step, by a counter of the module")
    def detach_every_seventh(self, state: torch.Tensor) -> Any:
        return state.detach() if self.calls % 7 == 6 else state

    @does("a detach after the tenth step, by a counter of the module")
    def detach_after_tenth(self, state: torch.Tensor) -> Any:
        return state.detach() if self.calls == 10 else state


@family(SLOPES)
class BareSlopes(Bare):
    """The same without a counter."""

    @does("a factor in an attribute of a parameter")
    def factor_of_parameter(self, state: torch.Tensor) -> Any:
        weight: Any = self.inner.bias_hh
        weight.factor = getattr(weight, "factor", 1.0) * 1.05
        return spike(state, weight.factor)

    @does("a gradient that a step writes")
    def written_gradient(self, state: torch.Tensor) -> Any:
        weight = self.inner.bias_hh
        weight.grad = torch.zeros_like(weight) if weight.grad is None else weight.grad + 1
        return state

    @does("the slope of a surrogate gradient in a context variable", _reset_slope)
    def slope_in_context(self, state: torch.Tensor) -> Any:
        _slope.set(_slope.get() * 1.05)
        return spike(state, _slope.get())

    @does("the slope of a surrogate gradient in a private slot", _Private)
    def slope_in_slot(self, state: torch.Tensor) -> Any:
        return spike(state, self.kept.move())


@case(SLOPES, "a loss that scales gradients by its count of calls")
def loss_that_scales_gradients() -> Call:
    kept = [1.0]

    def loss(_: int, output: torch.Tensor) -> Any:
        kept[0] *= 0.95
        factor = kept[0]
        scaled = factor * output
        return (scaled + (output - scaled).detach()).square().sum()

    return call(Cell(), loss=loss)


class _Schedule:
    """A schedule that can be called, and iterated over."""

    def __init__(self) -> None:
        self.value = 1.0

    def __iter__(self) -> _Schedule:
        return self

    def __next__(self) -> float:
        self.value *= 0.9
        return self.value

    def __call__(self) -> float:
        return self.value


def _make_queue() -> queue.Queue[torch.Tensor]:
    made: queue.Queue[torch.Tensor] = queue.Queue()
    for _ in range(3):
        made.put(torch.zeros(3, 7).double())
    return made


def _make_local() -> threading.local:
    made = threading.local()
    made.factor = 1.0
    return made


@family(PLACES)
class Places(Cell):
    """Cells that keep a factor in an object."""

    @does("types.SimpleNamespace", lambda: SimpleNamespace(factor=1.0))
    def held_by_namespace(self, state: torch.Tensor) -> Any:
        self.kept.factor *= 1.05
        return spike(state, self.kept.factor)

    @does("threading.local", _make_local)
    def held_by_thread(self, state: torch.Tensor) -> Any:
        self.kept.factor *= 1.05
        return spike(state, self.kept.factor)

    @does("a queue, as a delay line", _make_queue)
    def queue_delay(self, state: torch.Tensor) -> Any:
        self.kept.put(state.detach())
        return state + 0.3 * self.kept.get()

    @does("an iterator of one's own, which is only called", _Schedule)
    def called_schedule(self, state: torch.Tensor) -> Any:
        return state * self.kept()

    @does("an iterator of one's own", _Schedule)
    def stepped_schedule(self, state: torch.Tensor) -> Any:
        return state * next(self.kept)


@case(PLACES, "a count in a SimpleNamespace")
def counted_in_namespace() -> Call:
    cell = Cell()
    cell.kept = SimpleNamespace(count=0)

    def loss(_: int, output: torch.Tensor) -> Any:
        cell.kept.count += 1
        return output.square().sum()

    return call(cell, loss=loss)


@case(SUMS, "a loss that adds up outputs, for the last step alone")
def loss_of_a_sum() -> Call:
    total: list[Any] = [0.0]

    def loss(step: int, output: torch.Tensor) -> Any:
        total[0] = total[0] + output
        return total[0].square().sum() if step == STEPS - 1 else 0.0 * output.sum()

    return call(Cell(), loss=loss)


@case(SUMS, "a list of outputs, for the last two steps")
def loss_of_a_list() -> Call:
    outputs: list[torch.Tensor] = []

    def loss(step: int, output: torch.Tensor) -> Any:
        outputs.append(output)
        return torch.stack(outputs).mean(0).square().sum() if step >= STEPS - 2 else 0.0 * output.sum()

    return call(Cell(), loss=loss)


@case(SUMS, "a sum that the cell keeps, and the loss of the last step reads")
def sum_of_the_cell() -> Call:
    def add(self: Any, state: torch.Tensor) -> Any:
        self.kept = state if self.kept is None else self.kept + state
        return state

    cell = make_class("Summing", add)()
    return call(cell, loss=lambda step, one: cell.kept.square().sum() if step == STEPS - 1 else 0.0 * one.sum())


@family("made in the first call")
class Lazy(Bare):
    """Cells that make in their first step what they keep."""

    @does("a threshold, changed in place, that nothing reaches")
    def lazy_threshold(self, state: torch.Tensor) -> Any:
        if self.kept is None:
            self.kept = torch.full_like(state.detach(), 5.0)
        spikes = Surrogate.apply(state - self.kept.clone(), 1.0)  # type: ignore[no-untyped-call]
        self.kept.mul_(1.02)
        return state + spikes

    @does("a number in a dict, by shape")
    def lazy_dictionary(self, state: torch.Tensor) -> Any:
        self.kept = self.kept or {}
        memory = self.kept.setdefault(state.shape, {"factor": 1.0})
        memory["factor"] *= 1.05
        return spike(state, memory["factor"])

    @does("a count of spikes")
    def lazy_count(self, state: torch.Tensor) -> Any:
        if self.kept is None:
            self.kept = torch.zeros_like(state.detach())
        self.kept += (state > 0).detach()
        return state
