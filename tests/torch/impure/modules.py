"""Modules that keep something in their attributes."""

from __future__ import annotations

from collections import deque
from typing import Any, ClassVar

import numpy as np
import torch

from tests.torch.impure.cases import Cell, case, cell_case, does, family
from tests.torch.tables import Call

KEPT = "kept on the module"
STATES = "objects in the state"


def zeros(*shape: int) -> torch.Tensor:
    """Return zeros of double precision."""
    return torch.zeros(*shape, dtype=torch.float64)


class _Box:
    def __init__(self) -> None:
        self.value: Any = 0.0


class _Slots:
    __slots__ = ("value",)

    def __init__(self) -> None:
        self.value: Any = 0.0


@family(KEPT)
class Kept(Cell):
    """Cells that read what they keep."""

    @does("a factor that begins to move in the fifth call")
    def late(self, state: torch.Tensor) -> Any:
        return state * (1 + 0.1 * max(self.calls - 4, 0))

    @does("a counter that scales the state")
    def call_counter(self, state: torch.Tensor) -> Any:
        return state / (1 + self.calls)

    @does("a delay line, with gradients", lambda: deque([zeros(3, 7) for _ in range(3)]))
    def delay_line(self, state: torch.Tensor) -> Any:
        self.kept.append(state)
        return 0.5 * state + 0.5 * self.kept.popleft()

    @does("a delay line that is a tensor, written in place", lambda: zeros(4, 3, 7))
    def ring_buffer(self, state: torch.Tensor) -> Any:
        old = self.kept[self.calls % 4].clone()
        self.kept[self.calls % 4] = state.detach()
        return 0.5 * state + 0.5 * old

    @does("a threshold that first moves in the sixth call", lambda: zeros(3, 7) + 0.9)
    def threshold_when_fired(self, state: torch.Tensor) -> Any:
        if self.calls > 5:
            self.kept = 0.9 * self.kept
        return state - 0.1 * (state.detach() > self.kept)

    @does("a trace of the state", lambda: 0.0)
    def trace(self, state: torch.Tensor) -> Any:
        self.kept = 0.8 * self.kept + state.detach()
        return state + 0.1 * self.kept

    @does("a trace of the state, with gradients", lambda: 0.0)
    def graph_trace(self, state: torch.Tensor) -> Any:
        self.kept = 0.8 * self.kept + state
        return state + 0.1 * self.kept

    @does("a list of numbers that are added to the state", list)
    def appended(self, state: torch.Tensor) -> Any:
        self.kept.append(float(state.detach().sum()))
        return state + 0.1 * sum(self.kept[-5:])

    @does("the last states, in a list that each step appends to and replaces", list)
    def trimmed_list(self, state: torch.Tensor) -> Any:
        self.kept.append(state)
        self.kept = self.kept[-3:]
        return state + 0.1 * self.kept[0]

    @does("a factor that changes in every fifth call", lambda: 1.0)
    def every_fifth(self, state: torch.Tensor) -> Any:
        if self.calls % 5 == 4:
            self.kept *= 0.8
        return self.kept * state

    @does("a dict with the last state", dict)
    def dictionary(self, state: torch.Tensor) -> Any:
        previous = self.kept.get("last", 0.0)
        self.kept["last"] = state.detach()
        return state + 0.2 * previous

    @does("a running mean that is subtracted", lambda: torch.nn.Buffer(zeros(7)))
    def running_mean(self, state: torch.Tensor) -> Any:
        self.kept = 0.9 * self.kept + 0.1 * state.detach().mean(0)
        return state - self.kept

    @does("an order of the units; sums stay the same", lambda: torch.arange(7))
    def permuted(self, state: torch.Tensor) -> Any:
        if self.calls > 3:
            self.kept = self.kept.roll(1)
        return state[:, self.kept]

    @does("the states of all steps, with their graphs", list)
    def graph_in_list(self, state: torch.Tensor) -> Any:
        self.kept.append(state)
        return state + 0.1 * self.kept[max(0, len(self.kept) - 4)]

    @does("a weight that decays in place")
    def parameter_scaled(self, state: torch.Tensor) -> Any:
        if self.calls > 6:
            with torch.no_grad():
                self.inner.bias_hh.mul_(0.9)
        return state

    @does("Hebbian weights, written by tensor.data", lambda: torch.nn.Parameter(zeros(7, 7)))
    def hebbian(self, state: torch.Tensor) -> Any:
        self.kept.data += 0.01 * state.detach().t() @ state.detach()
        return state + state @ self.kept

    @does("a weight that is replaced in the ninth call")
    def parameter_swapped(self, state: torch.Tensor) -> Any:
        if self.calls == 8:
            self.inner.bias_hh = torch.nn.Parameter(self.inner.bias_hh.detach() * 0.5)
        return state

    @does("train() or eval(), set by a step")
    def training_flag(self, state: torch.Tensor) -> Any:
        if self.calls == 12:
            self.training = False
        return state if self.training else 0.5 * state

    @does("drift below rounding")
    def tiny_drift(self, state: torch.Tensor) -> Any:
        return state * (1 + 1e-14 * self.calls)

    @does("an attribute of an object of the module", _Box)
    def boxed(self, state: torch.Tensor) -> Any:
        self.kept.value = 0.5 * self.kept.value + state.detach()
        return state + 0.1 * self.kept.value

    @does("an attribute of an object with slots", _Slots)
    def slotted(self, state: torch.Tensor) -> Any:
        self.kept.value = 0.5 * self.kept.value + state.detach()
        return state + 0.1 * self.kept.value

    @does("an array of numpy", lambda: np.ones(7))
    def array(self, state: torch.Tensor) -> Any:
        self.kept *= 0.95
        return state * torch.from_numpy(self.kept.copy())

    @does("a list in a dict, made by the first step, that is read", dict)
    def logged_and_read(self, state: torch.Tensor) -> Any:
        self.kept.setdefault("sums", []).append(float(state.detach().sum()))
        return state + 0.1 * sum(self.kept["sums"][-5:])


@cell_case(KEPT, "the whole state; the argument is passed through")
class HiddenState(Cell):
    def begin(self) -> None:
        self.kept = zeros(3, 7)

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


@family("written, never read")
class Records(Cell):
    """Cells that keep what no step reads."""

    @does("a counter of calls")
    def counted(self, state: torch.Tensor) -> Any:
        return state

    @does("a list of sums of states", list)
    def appended_only(self, state: torch.Tensor) -> Any:
        self.kept.append(float(state.detach().sum()))
        return state

    @does("the last state, with its graph")
    def last_state(self, state: torch.Tensor) -> Any:
        self.kept = state
        return state

    @does("all states in a list, with their graphs", list)
    def side_list(self, state: torch.Tensor) -> Any:
        self.kept.append(state)
        return state

    @does("a list in a dict, made by the first step", dict)
    def logged(self, state: torch.Tensor) -> Any:
        self.kept.setdefault("sums", []).append(float(state.detach().sum()))
        return state


class _Cache(Cell):
    """A weight that the first step computes, with its graph."""

    def begin(self) -> None:
        self.raw = torch.nn.Parameter(zeros(7))
        self.ready = False
        self.kept = _Box()
        self.register_buffer("weight", None)


@family("made in the first call")
class Caches(Cell):
    """Cells that compute something once."""

    @does("numbers that depend on a shape")
    def cache_by_shape(self, state: torch.Tensor) -> Any:
        if self.kept is None:
            self.kept = torch.linspace(0.5, 1, state.shape[-1], dtype=torch.float64)
        return state * self.kept

    @does("the first state, as a reference")
    def first_state(self, state: torch.Tensor) -> Any:
        if self.kept is None:
            self.kept = state.detach()
        return state - 0.1 * self.kept


@cell_case("made in the first call", "a weight computed in the first call, with its graph")
class LazyCache(_Cache):
    def begin(self) -> None:
        super().begin()
        self.kept = None

    def after(self, state: torch.Tensor) -> Any:
        if self.kept is None:
            self.kept = torch.sigmoid(self.raw)
        return state * self.kept


@cell_case("made in the first call", "the same in a buffer, with a flag")
class FlaggedCache(_Cache):
    def after(self, state: torch.Tensor) -> Any:
        if not self.ready:
            self.weight, self.ready = torch.sigmoid(self.raw), True
        return state * self.weight


@cell_case("made in the first call", "the same in an object")
class BoxedCache(_Cache):
    def after(self, state: torch.Tensor) -> Any:
        if not self.ready:
            self.kept.value, self.ready = torch.sigmoid(self.raw), True
        return state * self.kept.value


@case(STATES, "a list of states, extended in place")
def list_in_state() -> Call:
    class ListInState(Cell):
        def forward(self, state: Any, x: torch.Tensor) -> Any:
            hidden, *_ = state
            hidden = self.inner(x, hidden)
            state.append(hidden)
            return [hidden, state[-2] if len(state) > 1 else hidden], hidden + 0.1 * state[-2]

    return Call(cell=ListInState(), state=[zeros(3, 7), zeros(3, 7)], relative=1e-9)
