"""Modules that keep something in their attributes."""

from __future__ import annotations

from collections import deque
from typing import Any, ClassVar

import numpy as np
import torch

from tests.torch import support
from tests.torch.impure.cases import STEPS, Job, case, cell_case

KEPT = "kept on the module"
RECORDS = "written, never read"
CACHES = "made in the first call"
STATES = "objects in the state"


class Cell(torch.nn.Module):
    """A GRU; ``after`` changes what comes of it, from what the module keeps."""

    def __init__(self) -> None:
        super().__init__()
        self.inner = torch.nn.GRUCell(5, 7).double()
        self.kept: Any = None
        self.calls = 0
        self.begin()

    def begin(self) -> None:
        """Set what it keeps at first."""

    def after(self, state: torch.Tensor) -> Any:
        """Return what it makes of the state."""
        return state

    def forward(self, state: torch.Tensor, x: torch.Tensor) -> Any:
        """Take a step."""
        state = self.after(self.inner(x, state))
        self.calls += 1
        return state, state


class Timed(Cell):
    """A GRU whose state has the number of the step: no attribute counts; ``then`` changes what comes of it."""

    def then(self, state: torch.Tensor, step: int) -> Any:
        """Return what it makes of the state."""
        del step
        return state

    def forward(self, state: Any, x: torch.Tensor) -> Any:
        """Take a step."""
        hidden, step = state
        hidden = self.then(self.inner(x, hidden), step)
        return (hidden, step + 1), hidden


def timed(cell: Timed, **more: Any) -> Job:
    """Return a job of such a cell."""
    return Job(cell=cell, state=(support.job(STEPS)[1], 0), **more)


cell_case(RECORDS, "a counter of calls")(Cell)


@cell_case(KEPT, "a factor that begins to move in the fifth call")
class Late(Cell):
    def after(self, state: torch.Tensor) -> Any:
        return state * (1 + 0.1 * max(self.calls - 4, 0))


@cell_case(KEPT, "a counter that scales the state")
class CallCounter(Cell):
    def after(self, state: torch.Tensor) -> Any:
        return state / (1 + self.calls)


@cell_case(KEPT, "a counter in a buffer")
class BufferCounter(Cell):
    def begin(self) -> None:
        self.count: torch.Tensor
        self.register_buffer("count", torch.zeros((), dtype=torch.float64))

    def after(self, state: torch.Tensor) -> Any:
        self.count = self.count + 1
        return state / self.count


@cell_case(KEPT, "a delay line, with gradients")
class DelayLine(Cell):
    def begin(self) -> None:
        self.kept = deque([torch.zeros(3, 7).double() for _ in range(3)])

    def after(self, state: torch.Tensor) -> Any:
        self.kept.append(state)
        return 0.5 * state + 0.5 * self.kept.popleft()


@cell_case(KEPT, "a delay line without gradients")
class DetachedDelayLine(DelayLine):
    def after(self, state: torch.Tensor) -> Any:
        self.kept.append(state.detach())
        return 0.5 * state + 0.5 * self.kept.popleft()


@cell_case(KEPT, "a delay line that is a buffer, written in place")
class RingBuffer(Cell):
    def begin(self) -> None:
        self.kept = torch.zeros(4, 3, 7).double()

    def after(self, state: torch.Tensor) -> Any:
        old = self.kept[self.calls % 4].clone()
        self.kept[self.calls % 4] = state.detach()
        return 0.5 * state + 0.5 * old


@cell_case(KEPT, "an adaptive threshold")
class AdaptiveThreshold(Cell):
    def begin(self) -> None:
        self.kept = torch.full((3, 7), 0.3).double()

    def after(self, state: torch.Tensor) -> Any:
        fired = (state.detach() > self.kept).double()
        self.kept = 0.95 * self.kept + 0.1 * fired
        return state * torch.sigmoid(4 * (state - self.kept))


@cell_case(KEPT, "a threshold that first moves in the sixth call")
class ThresholdWhenFired(Cell):
    def begin(self) -> None:
        self.kept = torch.full((3, 7), 0.9).double()

    def after(self, state: torch.Tensor) -> Any:
        if self.calls > 5:
            self.kept = 0.9 * self.kept
        return state - 0.1 * (state.detach() > self.kept)


@cell_case(KEPT, "a trace of the state")
class Trace(Cell):
    def begin(self) -> None:
        self.kept = 0.0

    def after(self, state: torch.Tensor) -> Any:
        self.kept = 0.8 * self.kept + state.detach()
        return state + 0.1 * self.kept


@cell_case(KEPT, "a trace of the state, with gradients")
class GraphTrace(Trace):
    def after(self, state: torch.Tensor) -> Any:
        self.kept = 0.8 * self.kept + state
        return state + 0.1 * self.kept


@cell_case(KEPT, "a list of numbers that are added to the state")
class Appended(Cell):
    def begin(self) -> None:
        self.kept = []

    def after(self, state: torch.Tensor) -> Any:
        self.kept.append(float(state.detach().sum()))
        return state + 0.1 * sum(self.kept[-5:])


@cell_case(KEPT, "a factor that changes in every fifth call")
class EveryFifth(Cell):
    def begin(self) -> None:
        self.kept = 1.0

    def after(self, state: torch.Tensor) -> Any:
        if self.calls % 5 == 4:
            self.kept *= 0.8
        return self.kept * state


@cell_case(KEPT, "a dict with the last state")
class Dictionary(Cell):
    def begin(self) -> None:
        self.kept = {}

    def after(self, state: torch.Tensor) -> Any:
        previous = self.kept.get("last", 0.0)
        self.kept["last"] = state.detach()
        return state + 0.2 * previous


@cell_case(KEPT, "a maximum so far")
class RunningMaximum(Cell):
    def begin(self) -> None:
        self.kept = 1e-3

    def after(self, state: torch.Tensor) -> Any:
        self.kept = max(self.kept, float(state.detach().abs().max()))
        return state / (1 + self.kept)


@cell_case(KEPT, "a running mean that is subtracted")
class RunningMean(Cell):
    def begin(self) -> None:
        self.mean: torch.Tensor
        self.register_buffer("mean", torch.zeros(7).double())

    def after(self, state: torch.Tensor) -> Any:
        self.mean = 0.9 * self.mean + 0.1 * state.detach().mean(0)
        return state - self.mean


@cell_case(KEPT, "the whole state; the argument is passed through")
class HiddenState(Cell):
    def begin(self) -> None:
        self.kept = torch.zeros(3, 7).double()

    def forward(self, state: torch.Tensor, x: torch.Tensor) -> Any:
        self.kept = self.inner(x, self.kept)
        return state + 0.0, self.kept


@cell_case(KEPT, "the output, mixed with earlier ones; states are right")
class ReadoutWithMemory(Cell):
    def begin(self) -> None:
        self.kept = 0.0

    def forward(self, state: torch.Tensor, x: torch.Tensor) -> Any:
        state = self.inner(x, state)
        self.kept = 0.5 * self.kept + state.detach()
        return state, state + self.kept


@cell_case(KEPT, "the output, scaled from the fifth call on")
class LateReadout(Cell):
    def forward(self, state: torch.Tensor, x: torch.Tensor) -> Any:
        state, output = super().forward(state, x)
        return state, output * (1 + 0.1 * max(self.calls - 4, 0))


@cell_case(KEPT, "an order of the units; sums stay the same")
class Permuted(Cell):
    def begin(self) -> None:
        self.kept = torch.arange(7)

    def after(self, state: torch.Tensor) -> Any:
        if self.calls > 3:
            self.kept = self.kept.roll(1)
        return state[:, self.kept]


@cell_case(KEPT, "the states of all steps, with their graphs")
class GraphInList(Cell):
    def begin(self) -> None:
        self.kept = []

    def after(self, state: torch.Tensor) -> Any:
        self.kept.append(state)
        return state + 0.1 * self.kept[max(0, len(self.kept) - 4)]


@cell_case(KEPT, "a weight that decays in place")
class ParameterScaled(Cell):
    def after(self, state: torch.Tensor) -> Any:
        if self.calls > 6:
            with torch.no_grad():
                self.inner.bias_hh.mul_(0.9)
        return state


@cell_case(KEPT, "Hebbian weights, written by tensor.data")
class Hebbian(Cell):
    def begin(self) -> None:
        self.fast = torch.nn.Parameter(torch.zeros(7, 7, dtype=torch.float64))

    def after(self, state: torch.Tensor) -> Any:
        self.fast.data += 0.01 * state.detach().t() @ state.detach()
        return state + state @ self.fast


@cell_case(KEPT, "a weight that is replaced in the ninth call")
class ParameterSwapped(Cell):
    def after(self, state: torch.Tensor) -> Any:
        if self.calls == 8:
            self.inner.bias_hh = torch.nn.Parameter(self.inner.bias_hh.detach() * 0.5)
        return state


@cell_case(KEPT, "train() or eval(), set by a step")
class TrainingFlag(Cell):
    def after(self, state: torch.Tensor) -> Any:
        if self.calls == 12:
            self.training = False
        return state if self.training else 0.5 * state


@cell_case(KEPT, "drift below rounding")
class TinyDrift(Cell):
    def after(self, state: torch.Tensor) -> Any:
        return state * (1 + 1e-14 * self.calls)


class _Box:
    def __init__(self) -> None:
        self.value: Any = 0.0


@cell_case(KEPT, "an attribute of an object of the module")
class Boxed(Cell):
    def begin(self) -> None:
        self.box = _Box()

    def after(self, state: torch.Tensor) -> Any:
        self.box.value = 0.5 * self.box.value + state.detach()
        return state + 0.1 * self.box.value


class _Slots:
    __slots__ = ("value",)

    def __init__(self) -> None:
        self.value: Any = 0.0


@cell_case(KEPT, "an attribute of an object with slots")
class Slotted(Boxed):
    def begin(self) -> None:
        self.box: Any = _Slots()


@cell_case(KEPT, "an array of numpy")
class Array(Cell):
    def begin(self) -> None:
        self.kept = np.ones(7)

    def after(self, state: torch.Tensor) -> Any:
        self.kept *= 0.95
        return state * torch.from_numpy(self.kept.copy())


@cell_case(KEPT, "a counter of the class")
class ClassCounter(Cell):
    clock: ClassVar[int] = 0

    def begin(self) -> None:
        type(self).clock = 0

    def after(self, state: torch.Tensor) -> Any:
        type(self).clock += 1
        return state / (1 + max(type(self).clock - 4, 0))


@cell_case(KEPT, "a list of the class")
class ClassList(Cell):
    clock: ClassVar[list[int]] = [0]

    def begin(self) -> None:
        self.clock[0] = 0

    def after(self, state: torch.Tensor) -> Any:
        self.clock[0] += 1
        return state / (1 + max(self.clock[0] - 4, 0))


@cell_case(RECORDS, "a list of sums of states")
class AppendedOnly(Cell):
    def begin(self) -> None:
        self.kept = []

    def after(self, state: torch.Tensor) -> Any:
        self.kept.append(float(state.detach().sum()))
        return state


@cell_case(RECORDS, "the last state, with its graph")
class LastState(Cell):
    def after(self, state: torch.Tensor) -> Any:
        self.kept = state
        return state


@cell_case(RECORDS, "all states in a list, with their graphs")
class SideList(Cell):
    def begin(self) -> None:
        self.kept = []

    def after(self, state: torch.Tensor) -> Any:
        self.kept.append(state)
        return state


@cell_case(RECORDS, "a list in a dict, made by the first step")
class Logged(Cell):
    def begin(self) -> None:
        self.kept = {}

    def after(self, state: torch.Tensor) -> Any:
        self.kept.setdefault("sums", []).append(float(state.detach().sum()))
        return state


@cell_case(KEPT, "a list in a dict, made by the first step, that is read")
class LoggedAndRead(Logged):
    def after(self, state: torch.Tensor) -> Any:
        state = super().after(state)
        return state + 0.1 * sum(self.kept["sums"][-5:])


@cell_case(CACHES, "a weight computed in the first call, with its graph")
class LazyCache(Cell):
    def begin(self) -> None:
        self.raw = torch.nn.Parameter(torch.zeros(7, dtype=torch.float64))

    def after(self, state: torch.Tensor) -> Any:
        if self.kept is None:
            self.kept = torch.sigmoid(self.raw)
        return state * self.kept


@cell_case(CACHES, "the same in a buffer, with a flag")
class FlaggedCache(LazyCache):
    def begin(self) -> None:
        super().begin()
        self.ready = False
        self.register_buffer("weight", None)

    def after(self, state: torch.Tensor) -> Any:
        if not self.ready:
            self.weight, self.ready = torch.sigmoid(self.raw), True
        return state * self.weight


@cell_case(CACHES, "the same in an object")
class BoxedCache(FlaggedCache):
    def begin(self) -> None:
        super().begin()
        self.box = _Box()

    def after(self, state: torch.Tensor) -> Any:
        if not self.ready:
            self.box.value, self.ready = torch.sigmoid(self.raw), True
        return state * self.box.value


@cell_case(CACHES, "numbers that depend on a shape")
class CacheByShape(Cell):
    def after(self, state: torch.Tensor) -> Any:
        if self.kept is None:
            self.kept = torch.linspace(0.5, 1, state.shape[-1], dtype=torch.float64)
        return state * self.kept


@cell_case(CACHES, "the first state, as a reference")
class FirstState(Cell):
    def after(self, state: torch.Tensor) -> Any:
        if self.kept is None:
            self.kept = state.detach()
        return state - 0.1 * self.kept


@case(STATES, "an object that steps change in place")
def object_in_state() -> Job:
    class ObjectInState(Cell):
        def forward(self, state: Any, x: torch.Tensor) -> Any:
            hidden, thing = state
            hidden = self.inner(x, hidden) * (1 + 0.05 * thing.value)
            thing.value += 1
            return (hidden, thing), hidden

    return Job(cell=ObjectInState(), state=(torch.zeros(3, 7).double(), _Box()))


@case(STATES, "an array that steps change in place")
def array_in_state() -> Job:
    class ArrayInState(Cell):
        def forward(self, state: Any, x: torch.Tensor) -> Any:
            hidden, array = state
            hidden = self.inner(x, hidden) * (1 + 0.05 * float(array[0]))
            array += 1
            return (hidden, array), hidden

    return Job(cell=ArrayInState(), state=(torch.zeros(3, 7).double(), np.zeros(1)))


@case(STATES, "a list of states, extended in place")
def list_in_state() -> Job:
    class ListInState(Cell):
        def forward(self, state: Any, x: torch.Tensor) -> Any:
            hidden, *_ = state
            hidden = self.inner(x, hidden)
            state.append(hidden)
            return [hidden, state[-2] if len(state) > 1 else hidden], hidden + 0.1 * state[-2]

    return Job(cell=ListInState(), state=[torch.zeros(3, 7).double(), torch.zeros(3, 7).double()])
