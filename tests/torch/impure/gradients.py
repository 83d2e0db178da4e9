"""Cells and losses that keep what changes gradients but no values, and what they keep it in."""

from __future__ import annotations

import argparse
import queue
import threading
from contextvars import ContextVar
from types import SimpleNamespace
from typing import Any

import torch

from tests.torch.impure.cases import STEPS, Job, case, cell_case
from tests.torch.impure.modules import Cell

SLOPES = "gradients alone"
PLACES = "objects of the standard library"
LAZY = "made in the first call"
SUMS = "sums for a last step"


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


def _spike(state: torch.Tensor, factor: float) -> Any:
    return 0.9 * state + 0.1 * Surrogate.apply(state - 0.1, factor)  # type: ignore[no-untyped-call]


@cell_case(SLOPES, "a surrogate that gets steeper with each call")
class SlopeAnnealing(Cell):
    def begin(self) -> None:
        self.kept = 1.0

    def after(self, state: torch.Tensor) -> Any:
        self.kept *= 1.05
        return _spike(state, self.kept)


@cell_case(SLOPES, "the same, from the tenth call on")
class LateSlopeAnnealing(SlopeAnnealing):
    def after(self, state: torch.Tensor) -> Any:
        if self.calls >= 10:
            self.kept *= 1.1
        return _spike(state, self.kept)


@cell_case(SLOPES, "a hook whose factor falls with each call")
class DecayingHook(Cell):
    def after(self, state: torch.Tensor) -> Any:
        factor = 0.97**self.calls
        if state.requires_grad:
            state.register_hook(lambda gradient: gradient * factor)
        return state


@cell_case(SLOPES, "a straight-through estimator whose temperature falls")
class StraightThrough(Cell):
    def begin(self) -> None:
        self.kept = 1.0

    def after(self, state: torch.Tensor) -> Any:
        self.kept *= 0.95
        soft = torch.softmax(state / self.kept, -1)
        hard = torch.nn.functional.one_hot(soft.argmax(-1), 7).double()
        return 0.5 * state + (hard - soft.detach() + soft) * state


@cell_case(SLOPES, "a threshold, a number, that nothing reaches")
class UnreachedThreshold(Cell):
    def begin(self) -> None:
        self.kept = 5.0

    def after(self, state: torch.Tensor) -> Any:
        self.kept *= 1.02
        return state + Surrogate.apply(state - self.kept, 1.0)  # type: ignore[no-untyped-call]


@case(SLOPES, "a loss that scales gradients by its count of calls")
def loss_that_scales_gradients() -> Job:
    kept = [1.0]

    def loss(_: int, output: torch.Tensor) -> Any:
        kept[0] *= 0.95
        factor = kept[0]
        scaled = factor * output
        return (scaled + (output - scaled).detach()).square().sum()

    return Job(cell=Cell(), loss=loss)


class _Holder(Cell):
    def make(self) -> Any:
        return SimpleNamespace()

    def begin(self) -> None:
        self.kept = self.make()
        self.kept.factor = 1.0

    def after(self, state: torch.Tensor) -> Any:
        self.kept.factor *= 1.05
        return _spike(state, self.kept.factor)


cell_case(PLACES, "types.SimpleNamespace")(_Holder)


@cell_case(PLACES, "argparse.Namespace")
class HeldByArguments(_Holder):
    def make(self) -> Any:
        return argparse.Namespace()


@cell_case(PLACES, "threading.local")
class HeldByThread(_Holder):
    def make(self) -> Any:
        return threading.local()


@cell_case(PLACES, "a queue, as a delay line")
class QueueDelay(Cell):
    def begin(self) -> None:
        self.kept = queue.Queue()
        for _ in range(3):
            self.kept.put(torch.zeros(3, 7).double())

    def after(self, state: torch.Tensor) -> Any:
        self.kept.put(state.detach())
        return state + 0.3 * self.kept.get()


@case(PLACES, "a count in a SimpleNamespace")
def counted_in_namespace() -> Job:
    cell = Cell()
    cell.kept = SimpleNamespace(count=0)

    def loss(_: int, output: torch.Tensor) -> Any:
        cell.kept.count += 1
        return output.square().sum()

    return Job(cell=cell, loss=loss)


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


@cell_case(PLACES, "an iterator of one's own, which is only called")
class CalledSchedule(Cell):
    def begin(self) -> None:
        self.kept = _Schedule()

    def after(self, state: torch.Tensor) -> Any:
        return state * self.kept()


@cell_case(PLACES, "an iterator of one's own")
class SteppedSchedule(CalledSchedule):
    def after(self, state: torch.Tensor) -> Any:
        return state * next(self.kept)


@case(SUMS, "a loss that adds up outputs, for the last step alone")
def loss_of_a_sum() -> Job:
    total: list[Any] = [0.0]

    def loss(step: int, output: torch.Tensor) -> Any:
        total[0] = total[0] + output
        return total[0].square().sum() if step == STEPS - 1 else 0.0 * output.sum()

    return Job(cell=Cell(), loss=loss)


@case(SUMS, "a list of outputs, for the last two steps")
def loss_of_a_list() -> Job:
    outputs: list[torch.Tensor] = []

    def loss(step: int, output: torch.Tensor) -> Any:
        outputs.append(output)
        return torch.stack(outputs).mean(0).square().sum() if step >= STEPS - 2 else 0.0 * output.sum()

    return Job(cell=Cell(), loss=loss)


@case(SUMS, "a sum that the cell keeps, and the loss of the last step reads")
def sum_of_the_cell() -> Job:
    class Summing(Cell):
        def after(self, state: torch.Tensor) -> Any:
            self.kept = state if self.kept is None else self.kept + state
            return state

    cell = Summing()
    return Job(
        cell=cell,
        loss=lambda step, one: cell.kept.square().sum() if step == STEPS - 1 else 0.0 * one.sum(),
    )


class _Bare(Cell):
    def forward(self, state: torch.Tensor, x: torch.Tensor) -> Any:
        # No counter of calls, which would change, too.
        state = self.after(self.inner(x, state))
        return state, state


@cell_case(LAZY, "a threshold, changed in place, that nothing reaches")
class LazyThreshold(_Bare):
    def after(self, state: torch.Tensor) -> Any:
        if self.kept is None:
            self.kept = torch.full_like(state.detach(), 5.0)
        spikes = Surrogate.apply(state - self.kept.clone(), 1.0)  # type: ignore[no-untyped-call]
        self.kept.mul_(1.02)
        return state + spikes


@cell_case(LAZY, "a number in a dict, by shape")
class LazyDictionary(_Bare):
    def after(self, state: torch.Tensor) -> Any:
        self.kept = self.kept or {}
        memory = self.kept.setdefault(state.shape, {"factor": 1.0})
        memory["factor"] *= 1.05
        return _spike(state, memory["factor"])


@cell_case(LAZY, "a count of spikes")
class LazyCount(_Bare):
    def after(self, state: torch.Tensor) -> Any:
        if self.kept is None:
            self.kept = torch.zeros_like(state.detach())
        self.kept += (state > 0).detach()
        return state


@cell_case(SLOPES, "a factor in an attribute of a parameter")
class FactorOfParameter(_Bare):
    def after(self, state: torch.Tensor) -> Any:
        weight: Any = self.inner.bias_hh
        weight.factor = getattr(weight, "factor", 1.0) * 1.05
        return _spike(state, weight.factor)


@cell_case(SLOPES, "a detach in every seventh step, by a counter of the module")
class DetachEverySeventh(Cell):
    def after(self, state: torch.Tensor) -> Any:
        return state.detach() if self.calls % 7 == 6 else state


@cell_case(SLOPES, "a detach after the tenth step, by a counter of the module")
class DetachAfterTenth(Cell):
    def after(self, state: torch.Tensor) -> Any:
        return state.detach() if self.calls == 10 else state


@cell_case(SLOPES, "a gradient that a step writes")
class WrittenGradient(_Bare):
    def after(self, state: torch.Tensor) -> Any:
        weight = self.inner.bias_hh
        weight.grad = torch.zeros_like(weight) if weight.grad is None else weight.grad + 1
        return state


_slope: ContextVar[float] = ContextVar("slope")


@case(SLOPES, "the slope of a surrogate gradient in a context variable")
def slope_in_context() -> Job:
    _slope.set(1.0)

    class SlopeInContext(_Bare):
        def after(self, state: torch.Tensor) -> Any:
            _slope.set(_slope.get() * 1.05)
            return _spike(state, _slope.get())

    return Job(cell=SlopeInContext())


class _Private:
    __slots__ = ("__slope",)

    def __init__(self) -> None:
        self.__slope = 1.0

    def move(self) -> float:
        """Return the next slope."""
        self.__slope *= 1.05
        return self.__slope


@cell_case(SLOPES, "the slope of a surrogate gradient in a private slot")
class SlopeInSlot(_Bare):
    def begin(self) -> None:
        self.slope = _Private()

    def after(self, state: torch.Tensor) -> Any:
        return _spike(state, self.slope.move())
