"""Networks that keep their state, in the ways in which people write them; each takes one time step a call."""

from __future__ import annotations

import collections
import contextlib
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import Any, NamedTuple

import numpy
import torch
from torch import nn
from torch.nn.utils.parametrizations import spectral_norm

from tests.torch.zoo import import_quietly

snntorch = import_quietly("snntorch")
functional, layer, neuron = (
    import_quietly(f"spikingjelly.activation_based.{name}") for name in ("functional", "layer", "neuron")
)

INPUTS, BATCH, UNITS = 6, 3, 5
#: The steps of a sequence: more than are tried first, and few.
STEPS, FEW_STEPS = 90, 20


class Net(nn.Module):
    """A network by hand: its step is a function, and a reset gives attributes their first values.

    Arguments:
        step: takes the network and an input, and returns an output.
        first: by attribute, a value or a function of the network that returns it.
        parts: layers beside the first one, and parameters.
    """

    def __init__(self, step: Any, first: dict[str, Any] | None = None, **parts: Any) -> None:
        super().__init__()
        self.enter = nn.Linear(INPUTS, UNITS)
        for name, part in parts.items():
            setattr(self, name, part)
        self.step, self.first = step, first or {}
        self.reset()

    def reset(self) -> None:
        """Forget the state."""
        for name, value in self.first.items():
            setattr(self, name, value(self) if callable(value) else value)

    def forward(self, x: torch.Tensor) -> Any:
        """Return the output of a step."""
        return self.step(self, x)


def zeros(net: nn.Module, *shape: int) -> torch.Tensor:
    """Return a state of zeros, of the type of the network's weights."""
    return torch.zeros(*(shape or (BATCH, UNITS)), dtype=next(net.parameters()).dtype)


def keep_lazily(net: Any, x: torch.Tensor) -> Any:
    if net.mem is None:
        net.mem = torch.zeros(len(x), UNITS, dtype=x.dtype)
    net.mem = torch.tanh(0.9 * net.mem + net.enter(x))
    return net.mem


def keep_result(net: Any, x: torch.Tensor) -> Any:
    net.out = keep_lazily(net, x).square()
    return net.out


class NoAttributeYet(nn.Module):
    """The first step makes the attribute of the state, and each step one that nothing reads."""

    def __init__(self) -> None:
        super().__init__()
        self.enter = nn.Linear(INPUTS, UNITS)

    def reset(self) -> None:
        """Remove both attributes."""
        for name in ("mem", "out"):
            self.__dict__.pop(name, None)

    def forward(self, x: torch.Tensor) -> Any:
        """Return the output of a step."""
        if not hasattr(self, "mem"):
            self.mem = torch.zeros(len(x), UNITS, dtype=x.dtype)
        self.mem = torch.tanh(0.9 * self.mem + self.enter(x))
        self.out = self.mem.square()
        return self.out


class BufferInPlace(nn.Module):
    """A buffer is changed in place; a reset registers another one."""

    mem: torch.Tensor

    def __init__(self) -> None:
        super().__init__()
        self.enter, self.read = nn.Linear(INPUTS, UNITS), nn.Linear(UNITS, 2)
        self.reset()

    def reset(self) -> None:
        """Register a buffer of zeros."""
        self.register_buffer("mem", zeros(self), persistent=False)

    def forward(self, x: torch.Tensor) -> Any:
        """Return the output of a step."""
        self.mem.mul_(0.9).add_(torch.sigmoid(self.enter(x)))
        return self.read(torch.sin(3 * self.mem))


def keep_list(net: Any, x: torch.Tensor) -> Any:
    h = net.enter(x)
    for number, one in enumerate(net.stack):
        net.mems[number] = torch.tanh(0.8 * net.mems[number] + one(h))
        h = net.mems[number]
    return {"h": h, "size": h.square().sum()}


def delay(net: Any, x: torch.Tensor) -> Any:
    late = net.back(net.line[0]) if len(net.line) == 4 else 0.0
    h = torch.tanh(net.enter(x) + late)
    net.line.append(h)
    return h


def keep_in_dict(net: Any, x: torch.Tensor) -> Any:
    v, threshold = net.state.get("v", torch.zeros_like(net.enter(x))), net.state.get("threshold", 1.0)
    v = 0.9 * v + net.enter(x)
    spikes = torch.sigmoid(5 * (v - threshold))
    net.state["v"], net.state["threshold"] = v - spikes, 0.9 * threshold + 0.1 * spikes
    return spikes


def count_steps(net: Any, x: torch.Tensor) -> Any:
    if net.begins:
        net.h, net.begins = torch.ones(len(x), UNITS, dtype=x.dtype), False
    net.t += 1
    h = torch.tanh(net.h + net.enter(x))
    net.h = 0.5 * h if net.t % 7 == 0 else h
    return net.h


def normalize(net: Any, x: torch.Tensor) -> Any:
    net.h = torch.tanh(0.8 * net.h + net.drop(net.norm(net.enter(x))))
    net.record.append(float(net.h.detach().mean()))
    return net.h


@dataclass
class Membrane:
    """A state as a dataclass object."""

    v: torch.Tensor
    i: torch.Tensor


def make_object(net: Any, x: torch.Tensor) -> Any:
    old = net.state or Membrane(torch.zeros_like(net.enter(x)), torch.zeros_like(net.enter(x)))
    i = 0.8 * old.i + net.enter(x)
    net.state = Membrane(torch.tanh(old.v + i), i)
    return net.state.v


class Pair(NamedTuple):
    """A state as a named tuple."""

    h: torch.Tensor
    c: torch.Tensor


def step_lstm(net: Any, x: torch.Tensor) -> Any:
    net.hc = Pair(*net.cell(net.enter(x), net.hc))
    return net.hc.h


class Holder:
    """An object of a class of one's own, which is no module."""

    def __init__(self, v: Any) -> None:
        self.v = v


def keep_in_object(net: Any, x: torch.Tensor) -> Any:
    net.holder.v = torch.tanh(net.holder.v + net.enter(x))
    return net.holder.v


def adapt(net: Any, x: torch.Tensor) -> Any:
    net.v = 0.9 * net.v + net.enter(x)
    spikes = torch.sigmoid(4 * (net.v - 0.3 - net.trace))
    with torch.no_grad():
        net.trace.mul_(0.95).add_(spikes, alpha=0.1)
    return spikes


def learn_fast(net: Any, x: torch.Tensor) -> Any:
    h = net.begin.expand(len(x), -1) if net.h is None else net.h
    fast = 0.9 * net.fast if net.fast is not None else torch.zeros(len(x), UNITS, UNITS, dtype=x.dtype)
    net.fast = fast + 0.1 * h[:, :, None] * h[:, None, :]
    net.h = torch.tanh(net.enter(x) + (net.fast @ h[:, :, None])[:, :, 0])
    return net.h


def keep_late(net: Any, x: torch.Tensor) -> Any:
    net.t += 1
    net.h = torch.tanh(net.enter(x) + net.h)
    if net.t > 70:
        net.late = 0.5 * net.late + net.h
    return net.h + net.late


def pass_on(net: Any, x: torch.Tensor) -> Any:
    net.c, net.b, net.a = net.b, net.a, torch.tanh(net.enter(x))
    return net.c + net.a


def make_variable() -> nn.Module:
    """Return a network that keeps its state in a variable of a function."""
    kept: Any = None

    def reset(_: Any) -> None:
        nonlocal kept
        kept = None

    def step(net: Any, x: torch.Tensor) -> Any:
        nonlocal kept
        kept = torch.tanh(net.enter(x) + (0.0 if kept is None else kept))
        return kept

    return Net(step, {"nothing": reset})


def make_unset_variable() -> nn.Module:
    """Return a network that keeps its state in a variable without a value before the first step."""
    if UNITS < 0:
        kept = torch.zeros(())

    def reset(_: Any) -> None:
        nonlocal kept
        with contextlib.suppress(NameError):
            del kept

    def step(net: Any, x: torch.Tensor) -> Any:
        nonlocal kept
        try:
            last = kept
        except NameError:
            last = torch.zeros(len(x), UNITS, dtype=x.dtype)
        kept = torch.tanh(net.enter(x) + 0.9 * last)
        return kept

    return Net(step, {"nothing": reset})


def register_buffer(net: Any, x: torch.Tensor) -> Any:
    """The first step registers the only buffer, a number that counts up to five."""
    if "count" not in net._buffers:
        net.register_buffer("count", torch.zeros(()), persistent=False)
    net.count = net.count + 1
    net.mem = torch.tanh(0.9 * net.mem + 0.2 * min(int(net.count), 5) * net.enter(x))
    return net.mem


def count_calls() -> int:
    """Return how often it was called: an attribute of its own, which the first call makes, up to five."""
    kept: Any = count_calls.__dict__
    kept["calls"] = min(kept.get("calls", 0) + 1, 5)
    return int(kept["calls"])


def count_by_function(net: Any, x: torch.Tensor) -> Any:
    """A function that steps call counts."""
    net.mem = torch.tanh(0.9 * net.mem + 0.2 * count_calls() * net.enter(x))
    return net.mem


#: It has no value before a step of the network below.
made: int


class NewGlobal(nn.Module):
    """A global variable that the first step makes."""

    def __init__(self) -> None:
        super().__init__()
        self.enter = nn.Linear(INPUTS, UNITS)
        self.reset()

    def reset(self) -> None:
        """Forget the state and the variable."""
        self.mem: Any = 0.0
        globals().pop("made", None)

    def forward(self, x: torch.Tensor) -> Any:
        """Return the output of a step."""
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
    surrogate = snntorch.surrogate.atan()
    return nn.Sequential(
        nn.Linear(INPUTS, UNITS),
        snntorch.RLeaky(beta=0.9, linear_features=UNITS, init_hidden=True, spike_grad=surrogate),
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
        if isinstance(one, snntorch.SpikingNeuron):
            one.reset_mem()


# Networks of other kinds


def read_statistics(net: Any, x: torch.Tensor) -> Any:
    """The running mean, which batch normalization writes without counting it as a change, is an input, too."""
    net.h = torch.tanh(net.norm(net.enter(x)) + 0.5 * net.h)
    return net.h - net.norm.running_mean


def keep_number(net: Any, x: torch.Tensor) -> Any:
    """The state is a number of Python."""
    net.gain = 0.9 * net.gain + 0.05 * float(x.detach().mean())
    return torch.tanh(net.enter(x)) * net.gain


def resonate(net: Any, x: torch.Tensor, *, is_complex: bool) -> Any:
    """A complex state."""
    net.h = 0.9 * torch.exp(1j * net.frequency) * net.h + net.enter(x)
    return net.h if is_complex else torch.view_as_real(net.h)


def multiply(net: Any, x: torch.Tensor) -> Any:
    """A linear layer with a normalized weight, whose norm steps estimate; or connections in a sparse buffer."""
    back = net.back(net.h) if callable(net.back) else (net.back @ net.h.T).T
    net.h = torch.tanh(net.enter(x) + back)
    return net.h


def use_own_weight(net: Any, x: torch.Tensor) -> Any:
    """A weight for each time step, as in batch normalization through time: there is no step after the last."""
    net.h = torch.tanh(net.enter(x) * net.scales[net.t] + 0.5 * net.h)
    net.t += 1
    return net.h


def read_late(net: Any, x: torch.Tensor) -> Any:
    """A sum that the output depends on only from the 81st step on."""
    net.t += 1
    net.h = torch.tanh(net.enter(x) + 0.5 * net.h)
    net.a = 0.9 * net.a + net.h
    return net.h + (net.a if net.t > 80 else 0.0)


def learn_trace(net: Any, x: torch.Tensor) -> Any:
    """A threshold that begins with a weight, and is then updated without a gradient."""
    trace = net.begin.expand(BATCH, -1) if net.trace is None else net.trace
    net.v = 0.9 * net.v + net.enter(x)
    spikes = torch.sigmoid(4 * (net.v - trace))
    net.trace = (0.95 * trace + 0.1 * spikes).detach()
    return spikes


def keep_array(net: Any, x: torch.Tensor) -> Any:
    """An array of NumPy."""
    net.h = torch.tanh(net.enter(x) * torch.from_numpy(net.array.copy()) + net.h)
    net.array *= 0.95
    return net.h


def sum_penalty(net: Any, x: torch.Tensor) -> Any:
    """A penalty that is summed up over time, and that the output does not depend on."""
    net.h = torch.tanh(net.enter(x) + 0.5 * net.h)
    net.a = net.a + net.h.square().mean()
    return net.h


def make_sparse() -> nn.Module:
    net = Net(multiply, {"h": zeros})
    net.register_buffer("back", (0.5 * torch.eye(UNITS, dtype=torch.float64)).to_sparse())
    return net


def vary(start: float, stop: float) -> nn.Parameter:
    """Return a parameter with a value for each unit."""
    return nn.Parameter(torch.linspace(start, stop, UNITS))


#: By name: what makes the network.
NETS: dict[str, Callable[[], nn.Module]] = {
    "lazy attribute": partial(Net, keep_lazily, {"mem": None}),
    "no attribute yet": NoAttributeYet,
    "result that nothing reads": partial(Net, keep_result, {"mem": zeros}),
    "buffer changed in place": BufferInPlace,
    "list of layers": lambda: Net(
        keep_list,
        {"mems": lambda _: [0.0, 0.0]},
        stack=nn.ModuleList([nn.Linear(UNITS, UNITS) for _ in range(2)]),
    ),
    "delay line": lambda: Net(
        delay, {"line": lambda _: collections.deque(maxlen=4)}, back=nn.Linear(UNITS, UNITS)
    ),
    "new dict": partial(Net, keep_in_dict, {"state": lambda _: {}}),
    "counter and flag": partial(Net, count_steps, {"begins": True, "t": 0, "h": None}),
    "batch normalization, dropout, record": lambda: Net(
        normalize, {"h": 0.0}, norm=nn.BatchNorm1d(UNITS), drop=nn.Dropout(0.2), record=[]
    ),
    "dataclass object": partial(Net, make_object, {"state": None}),
    "LSTMCell inside": lambda: Net(step_lstm, {"hc": None}, cell=nn.LSTMCell(UNITS, UNITS)),
    "plain object": partial(Net, keep_in_object, {"holder": lambda net: Holder(zeros(net))}),
    "trace without gradient": partial(Net, adapt, {"v": 0.0, "trace": zeros}),
    "fast weights": lambda: Net(learn_fast, {"h": None, "fast": None}, begin=vary(0.1, 0.1)),
    "late state": partial(Net, keep_late, {"h": 0.0, "t": 0, "late": 0.0}),
    "chain of attributes": partial(Net, pass_on, {"a": 0.0, "b": 0.0, "c": 0.0}),
    "variable of a function": make_variable,
    "variable without a value": make_unset_variable,
    "first buffer": partial(Net, register_buffer, {"mem": 0.0, "nothing": lambda net: net._buffers.clear()}),
    "attribute of a function": partial(
        Net, count_by_function, {"mem": 0.0, "nothing": lambda _: count_calls.__dict__.clear()}
    ),
    "new global variable": NewGlobal,
    "snnTorch": make_snntorch,
    "snnTorch, recurrent": make_recurrent_snntorch,
    "snnTorch, SLSTM": make_slstm,
    "SpikingJelly": make_spikingjelly,
}
#: Networks that are tried with few steps.
OTHERS: dict[str, Callable[[], nn.Module]] = {
    "spectral norm": lambda: Net(multiply, {"h": zeros}, back=spectral_norm(nn.Linear(UNITS, UNITS))),
    "statistics that steps read": lambda: Net(read_statistics, {"h": 0.0}, norm=nn.BatchNorm1d(UNITS)),
    "number": partial(Net, keep_number, {"gain": 1.0}),
    "complex state": lambda: Net(partial(resonate, is_complex=False), {"h": 0.0}, frequency=vary(0.1, 1)),
    "complex output": lambda: Net(partial(resonate, is_complex=True), {"h": 0.0}, frequency=vary(0.1, 1)),
    "sparse buffer": make_sparse,
    "weights of steps": lambda: Net(
        use_own_weight,
        {"h": 0.0, "t": 0},
        scales=nn.ParameterList(torch.full((UNITS,), 1 + step / FEW_STEPS) for step in range(FEW_STEPS)),
    ),
    "late reader": partial(Net, read_late, {"h": 0.0, "a": 0.0, "t": 0}),
    "learned trace": lambda: Net(
        learn_trace, {"v": 0.0, "trace": lambda net: net.begin.expand(BATCH, -1)}, begin=vary(0.1, 0.5)
    ),
    "array": partial(Net, keep_array, {"array": lambda _: numpy.ones(UNITS), "h": 0.0}),
    "penalty": partial(Net, sum_penalty, {"h": 0.0, "a": 0.0}),
}
