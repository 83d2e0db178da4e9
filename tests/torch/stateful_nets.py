"""Networks that keep their state, in the ways in which people write them; each takes one time step a call."""

from __future__ import annotations

import collections
import contextlib
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, NamedTuple

import torch
from torch import nn

from tests.torch.zoo import import_quietly

snntorch = import_quietly("snntorch")
functional, layer, neuron = (
    import_quietly(f"spikingjelly.activation_based.{name}") for name in ("functional", "layer", "neuron")
)

INPUTS, BATCH, UNITS = 6, 3, 5


class Net(nn.Module):
    """The base of networks written by hand; their states are tensors, or nothing yet."""

    mem: Any
    h: Any
    v: Any
    fast: Any
    late: Any
    out: Any
    a: Any
    b: Any
    c: Any

    def __init__(self) -> None:
        super().__init__()
        self.enter = nn.Linear(INPUTS, UNITS)
        self.reset()

    def reset(self) -> None:
        """Forget the state."""


class LazyAttribute(Net):
    """The state is made by the first step."""

    def reset(self) -> None:
        self.mem = None

    def forward(self, x: torch.Tensor) -> Any:
        if self.mem is None:
            self.mem = torch.zeros(len(x), UNITS, dtype=x.dtype)
        self.mem = torch.tanh(0.9 * self.mem + self.enter(x))
        return self.mem


class NoAttributeYet(Net):
    """The first step makes the attribute of the state, and each step one that nothing reads."""

    def reset(self) -> None:
        for name in ("mem", "out"):
            self.__dict__.pop(name, None)

    def forward(self, x: torch.Tensor) -> Any:
        if not hasattr(self, "mem"):
            self.mem = torch.zeros(len(x), UNITS, dtype=x.dtype)
        self.mem = torch.tanh(0.9 * self.mem + self.enter(x))
        self.out = self.mem.square()
        return self.out


class UnreadResult(Net):
    """An attribute that keeps the last output is there before the first step, and no reset clears it."""

    def reset(self) -> None:
        self.mem = torch.zeros(BATCH, UNITS, dtype=self.enter.weight.dtype)

    def forward(self, x: torch.Tensor) -> Any:
        self.mem = torch.tanh(0.9 * self.mem + self.enter(x))
        self.out = self.mem.square()
        return self.out


class BufferInPlace(Net):
    """A buffer is changed in place."""

    def __init__(self) -> None:
        super().__init__()
        self.out = nn.Linear(UNITS, 2)

    def reset(self) -> None:
        self.register_buffer("mem", torch.zeros(BATCH, UNITS, dtype=self.enter.weight.dtype), persistent=False)

    def forward(self, x: torch.Tensor) -> Any:
        self.mem.mul_(0.9).add_(torch.sigmoid(self.enter(x)))
        return self.out(torch.sin(3 * self.mem))


class Layers(Net):
    """One state for each layer, in a list; the output is a dict."""

    def __init__(self) -> None:
        super().__init__()
        self.stack = nn.ModuleList([nn.Linear(UNITS, UNITS) for _ in range(2)])

    def reset(self) -> None:
        self.mems: list[Any] = [0.0, 0.0]

    def forward(self, x: torch.Tensor) -> Any:
        h = self.enter(x)
        for number, one in enumerate(self.stack):
            self.mems[number] = torch.tanh(0.8 * self.mems[number] + one(h))
            h = self.mems[number]
        return {"h": h, "size": h.square().sum()}


class DelayLine(Net):
    """What was computed four steps ago comes back; the line fills up first."""

    def __init__(self) -> None:
        super().__init__()
        self.back = nn.Linear(UNITS, UNITS)

    def reset(self) -> None:
        self.line: collections.deque[torch.Tensor] = collections.deque(maxlen=4)

    def forward(self, x: torch.Tensor) -> Any:
        late = self.back(self.line[0]) if len(self.line) == 4 else 0.0
        h = torch.tanh(self.enter(x) + late)
        self.line.append(h)
        return h


class NewDict(Net):
    """A dict that a reset replaces by another one."""

    def reset(self) -> None:
        self.state: dict[str, Any] = {}

    def forward(self, x: torch.Tensor) -> Any:
        v, threshold = self.state.get("v", torch.zeros_like(self.enter(x))), self.state.get("threshold", 1.0)
        v = 0.9 * v + self.enter(x)
        spikes = torch.sigmoid(5 * (v - threshold))
        self.state["v"], self.state["threshold"] = v - spikes, 0.9 * threshold + 0.1 * spikes
        return spikes


class CounterAndFlag(Net):
    """A flag that the first step clears, and a counter that acts in every seventh step."""

    def reset(self) -> None:
        self.first, self.t, self.h = True, 0, None

    def forward(self, x: torch.Tensor) -> Any:
        if self.first:
            self.h, self.first = torch.ones(len(x), UNITS, dtype=x.dtype), False
        self.t += 1
        h = torch.tanh(self.h + self.enter(x))
        self.h = 0.5 * h if self.t % 7 == 0 else h
        return self.h


class Normalized(Net):
    """Batch normalization, dropout, and a record of each step."""

    def __init__(self) -> None:
        super().__init__()
        self.norm, self.drop = nn.BatchNorm1d(UNITS), nn.Dropout(0.2)
        self.record: list[float] = []

    def reset(self) -> None:
        self.h = 0.0

    def forward(self, x: torch.Tensor) -> Any:
        self.h = torch.tanh(0.8 * self.h + self.drop(self.norm(self.enter(x))))
        self.record.append(float(self.h.detach().mean()))
        return self.h


@dataclass
class Membrane:
    """A state as a dataclass object."""

    v: torch.Tensor
    i: torch.Tensor


class DataclassObject(Net):
    """A new object in each step."""

    def reset(self) -> None:
        self.state: Membrane | None = None

    def forward(self, x: torch.Tensor) -> Any:
        old = self.state or Membrane(torch.zeros_like(self.enter(x)), torch.zeros_like(self.enter(x)))
        i = 0.8 * old.i + self.enter(x)
        self.state = Membrane(torch.tanh(old.v + i), i)
        return self.state.v


class Pair(NamedTuple):
    """A state as a named tuple."""

    h: torch.Tensor
    c: torch.Tensor


class LSTMInside(Net):
    """An LSTMCell, whose state is kept in an attribute."""

    def __init__(self) -> None:
        super().__init__()
        self.cell = nn.LSTMCell(UNITS, UNITS)

    def reset(self) -> None:
        self.hc: Pair | None = None

    def forward(self, x: torch.Tensor) -> Any:
        self.hc = Pair(*self.cell(self.enter(x), self.hc))
        return self.hc.h


class Holder:
    """An object of a class of one's own, which is no module."""


class PlainObject(Net):
    """An object that a reset replaces, whose attribute is the state."""

    def reset(self) -> None:
        self.holder = Holder()
        self.holder.v = torch.zeros(BATCH, UNITS, dtype=self.enter.weight.dtype)  # type: ignore[attr-defined]

    def forward(self, x: torch.Tensor) -> Any:
        held: Any = self.holder
        held.v = torch.tanh(held.v + self.enter(x))
        return held.v


class Trace(Net):
    """An adaptive threshold, updated without a gradient."""

    def reset(self) -> None:
        self.v, self.trace = 0.0, torch.zeros(BATCH, UNITS, dtype=self.enter.weight.dtype)

    def forward(self, x: torch.Tensor) -> Any:
        self.v = 0.9 * self.v + self.enter(x)
        spikes = torch.sigmoid(4 * (self.v - 0.3 - self.trace))
        with torch.no_grad():
            self.trace.mul_(0.95).add_(spikes, alpha=0.1)
        return spikes


class FastWeights(Net):
    """Weights that each step changes, and a learned initial state."""

    def __init__(self) -> None:
        super().__init__()
        self.first = nn.Parameter(torch.full((UNITS,), 0.1))

    def reset(self) -> None:
        self.h, self.fast = None, None

    def forward(self, x: torch.Tensor) -> Any:
        h = self.first.expand(len(x), -1) if self.h is None else self.h
        fast = 0.9 * self.fast if self.fast is not None else torch.zeros(len(x), UNITS, UNITS, dtype=x.dtype)
        self.fast = fast + 0.1 * h[:, :, None] * h[:, None, :]
        self.h = torch.tanh(self.enter(x) + (self.fast @ h[:, :, None])[:, :, 0])
        return self.h


class LateState(Net):
    """Something that is kept only from the 71st step on, beyond the steps that are tried."""

    def reset(self) -> None:
        self.h, self.t, self.late = 0.0, 0, 0.0

    def forward(self, x: torch.Tensor) -> Any:
        self.t += 1
        self.h = torch.tanh(self.enter(x) + self.h)
        if self.t > 70:
            self.late = 0.5 * self.late + self.h
        return self.h + self.late


class Chain(Net):
    """What reaches the output only by way of two other attributes."""

    def reset(self) -> None:
        self.a = self.b = self.c = 0.0

    def forward(self, x: torch.Tensor) -> Any:
        self.c, self.b, self.a = self.b, self.a, torch.tanh(self.enter(x))
        return self.c + self.a


def make_variable() -> Net:
    """A network that keeps its state in a variable of a function."""
    kept: Any = None

    class InVariable(Net):
        def reset(self) -> None:
            nonlocal kept
            kept = None

        def forward(self, x: torch.Tensor) -> Any:
            nonlocal kept
            kept = torch.tanh(self.enter(x) + (0.0 if kept is None else kept))
            return kept

    return InVariable()


def make_unset_variable() -> Net:
    """A variable of a function has no value before the first step."""
    if UNITS < 0:
        kept = torch.zeros(())

    class InVariable(Net):
        def reset(self) -> None:
            nonlocal kept
            with contextlib.suppress(NameError):
                del kept

        def forward(self, x: torch.Tensor) -> Any:
            nonlocal kept
            try:
                last = kept
            except NameError:
                last = torch.zeros(len(x), UNITS, dtype=x.dtype)
            kept = torch.tanh(self.enter(x) + 0.9 * last)
            return kept

    return InVariable()


class FirstBuffer(Net):
    """The first step registers the only buffer, a number that counts up to five."""

    count: torch.Tensor

    def reset(self) -> None:
        self.mem = 0.0
        self._buffers.clear()

    def forward(self, x: torch.Tensor) -> Any:
        if "count" not in self._buffers:
            self.register_buffer("count", torch.zeros(()), persistent=False)
        self.count = self.count + 1
        self.mem = torch.tanh(0.9 * self.mem + 0.2 * min(int(self.count), 5) * self.enter(x))
        return self.mem


def count_calls() -> int:
    """Return how often it was called: an attribute of its own, which the first call makes, up to five."""
    kept: Any = count_calls.__dict__
    kept["calls"] = min(kept.get("calls", 0) + 1, 5)
    return int(kept["calls"])


class FunctionAttribute(Net):
    """A function that steps call counts."""

    def reset(self) -> None:
        self.mem = 0.0
        count_calls.__dict__.clear()

    def forward(self, x: torch.Tensor) -> Any:
        self.mem = torch.tanh(0.9 * self.mem + 0.2 * count_calls() * self.enter(x))
        return self.mem


#: It has no value before a step of the network below.
made: int


class NewGlobal(Net):
    """A global variable that the first step makes."""

    def reset(self) -> None:
        self.mem = 0.0
        globals().pop("made", None)

    def forward(self, x: torch.Tensor) -> Any:
        global made  # noqa: PLW0603 - what it is about
        try:
            made = min(made + 1, 5)
        except NameError:
            made = 1
        self.mem = torch.tanh(0.9 * self.mem + 0.2 * made * self.enter(x))
        return self.mem


def make_snntorch() -> nn.Module:
    """As in snnTorch's later tutorials."""
    options: dict[str, Any] = {"init_hidden": True, "spike_grad": snntorch.surrogate.fast_sigmoid()}
    return nn.Sequential(
        nn.Linear(INPUTS, UNITS),
        snntorch.Leaky(beta=0.9, learn_beta=True, **options),
        nn.Linear(UNITS, UNITS),
        snntorch.Synaptic(alpha=0.8, beta=0.9, **options),
        nn.Linear(UNITS, 2),
        snntorch.Leaky(beta=0.9, output=True, **options),
    )


def make_recurrent_snntorch() -> nn.Module:
    """Neurons with recurrent connections."""
    return nn.Sequential(
        nn.Linear(INPUTS, UNITS),
        snntorch.RLeaky(
            beta=0.9, linear_features=UNITS, init_hidden=True, spike_grad=snntorch.surrogate.atan()
        ),
        snntorch.SLSTM(UNITS, 2, init_hidden=True, output=True),
    )


def make_slstm() -> nn.Module:
    """A neuron that makes an attribute in its first step."""
    return nn.Sequential(
        nn.Linear(INPUTS, UNITS),
        snntorch.SLSTM(UNITS, UNITS, init_hidden=True),
        nn.Linear(UNITS, 2),
        snntorch.Leaky(beta=0.9, init_hidden=True),
    )


def make_spikingjelly() -> nn.Module:
    """Two layers of nodes in single-step mode."""
    return nn.Sequential(
        layer.Linear(INPUTS, UNITS),
        neuron.LIFNode(detach_reset=True),
        layer.Dropout(0.2),
        layer.Linear(UNITS, 2),
        neuron.ParametricLIFNode(v_reset=None),
    )


def reset_all(net: Any) -> None:
    """Reset a network by hand or by its library."""
    if hasattr(net, "reset"):
        net.reset()
        return
    functional.reset_net(net)
    for one in net.modules():
        for name in ("reset_mem", "reset_hidden"):
            if isinstance(one, snntorch.SpikingNeuron) and name == "reset_mem":
                one.reset_mem()


#: By name: what makes the network.
NETS: dict[str, Callable[[], nn.Module]] = {
    "lazy attribute": LazyAttribute,
    "no attribute yet": NoAttributeYet,
    "result that nothing reads": UnreadResult,
    "buffer changed in place": BufferInPlace,
    "list of layers": Layers,
    "delay line": DelayLine,
    "new dict": NewDict,
    "counter and flag": CounterAndFlag,
    "batch normalization, dropout, record": Normalized,
    "dataclass object": DataclassObject,
    "LSTMCell inside": LSTMInside,
    "plain object": PlainObject,
    "trace without gradient": Trace,
    "fast weights": FastWeights,
    "late state": LateState,
    "chain of attributes": Chain,
    "variable of a function": make_variable,
    "variable without a value": make_unset_variable,
    "first buffer": FirstBuffer,
    "attribute of a function": FunctionAttribute,
    "new global variable": NewGlobal,
    "snnTorch": make_snntorch,
    "snnTorch, recurrent": make_recurrent_snntorch,
    "snnTorch, SLSTM": make_slstm,
    "SpikingJelly": make_spikingjelly,
}
