"""Laws of ``wrap`` for networks of other kinds: what they leave behind, and what is refused by name."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy
import pytest
import torch
from torch import nn

from ckptplan import InputError
from ckptplan.torch import wrap
from ckptplan.torch.state.reach import walk
from tests.torch.stateful_nets import BATCH, INPUTS, UNITS, Net, make_snntorch, reset_all
from tests.torch.support import assert_close, plan_of
from tests.torch.test_wrap import data, gradients, list_values, loop, take_loss
from tests.torch.zoo import import_quietly

snntorch = import_quietly("snntorch")
functional, layer, neuron = (
    import_quietly(f"spikingjelly.activation_based.{name}") for name in ("functional", "layer", "neuron")
)
STEPS = 20


class SpectralNorm(Net):
    """A weight divided by its largest singular value, which each step estimates in buffers without a graph."""

    def __init__(self) -> None:
        super().__init__()
        self.back = nn.utils.parametrizations.spectral_norm(nn.Linear(UNITS, UNITS))

    def reset(self) -> None:
        self.h = torch.zeros(BATCH, UNITS, dtype=self.enter.weight.dtype)

    def forward(self, x: torch.Tensor) -> Any:
        self.h = torch.tanh(self.enter(x) + self.back(self.h))
        return self.h


class ReadsStatistics(Net):
    """The running mean, which batch normalization writes without counting it as a change, is an input, too."""

    def __init__(self) -> None:
        super().__init__()
        self.norm = nn.BatchNorm1d(UNITS)

    def reset(self) -> None:
        self.h = 0.0

    def forward(self, x: torch.Tensor) -> Any:
        self.h = torch.tanh(self.norm(self.enter(x)) + 0.5 * self.h)
        return self.h - self.norm.running_mean


class NumberOnly(Net):
    """The state is a number of Python."""

    def reset(self) -> None:
        self.gain = 1.0

    def forward(self, x: torch.Tensor) -> Any:
        self.gain = 0.9 * self.gain + 0.05 * float(x.detach().mean())
        return torch.tanh(self.enter(x)) * self.gain


class ComplexOutput(Net):
    """A resonator."""

    def __init__(self) -> None:
        super().__init__()
        self.frequency = nn.Parameter(torch.linspace(0.1, 1, UNITS))

    def reset(self) -> None:
        self.h = 0.0

    def forward(self, x: torch.Tensor) -> Any:
        self.h = 0.9 * torch.exp(1j * self.frequency) * self.h + self.enter(x)
        return torch.view_as_real(self.h) if self.training else self.h


class PureComplexOutput(ComplexOutput):
    """Returns complex numbers."""

    def forward(self, x: torch.Tensor) -> Any:
        super().forward(x)
        return self.h


class SparseBuffer(Net):
    """Connections in a sparse buffer."""

    def __init__(self) -> None:
        super().__init__()
        self.register_buffer("back", (0.5 * torch.eye(UNITS, dtype=torch.float64)).to_sparse())

    def reset(self) -> None:
        self.h = torch.zeros(BATCH, UNITS, dtype=torch.float64)

    def forward(self, x: torch.Tensor) -> Any:
        self.h = torch.tanh(self.enter(x) + (self.back @ self.h.T).T)
        return self.h


class WeightsOfSteps(Net):
    """A weight for each time step, as in batch normalization through time: there is no step after the last."""

    def __init__(self) -> None:
        super().__init__()
        self.scales = nn.ParameterList(torch.full((UNITS,), 1 + step / STEPS) for step in range(STEPS))

    def reset(self) -> None:
        self.h, self.t = 0.0, 0

    def forward(self, x: torch.Tensor) -> Any:
        self.h = torch.tanh(self.enter(x) * self.scales[self.t] + 0.5 * self.h)
        self.t += 1
        return self.h


class LateReader(Net):
    """A sum that the output depends on only from the 81st step on."""

    def reset(self) -> None:
        self.h, self.a, self.t = 0.0, 0.0, 0

    def forward(self, x: torch.Tensor) -> Any:
        self.t += 1
        self.h = torch.tanh(self.enter(x) + 0.5 * self.h)
        self.a = 0.9 * self.a + self.h
        return self.h + (self.a if self.t > 80 else 0.0)


class LearnedTrace(Net):
    """A threshold that begins with a weight, and is then updated without a gradient."""

    def __init__(self) -> None:
        super().__init__()
        self.first = nn.Parameter(torch.linspace(0.1, 0.5, UNITS))

    def reset(self) -> None:
        first = getattr(self, "first", None)
        self.v = torch.zeros(BATCH, UNITS, dtype=torch.float64)
        self.trace = None if first is None else first.expand(BATCH, -1)

    def forward(self, x: torch.Tensor) -> Any:
        trace = self.first.expand(BATCH, -1) if self.trace is None else self.trace
        self.v = 0.9 * self.v + self.enter(x)
        spikes = torch.sigmoid(4 * (self.v - trace))
        self.trace = (0.95 * trace + 0.1 * spikes).detach()
        return spikes


class ArrayState(Net):
    """Keeps an array of NumPy."""

    def reset(self) -> None:
        self.a, self.h = numpy.ones(UNITS), 0.0

    def forward(self, x: torch.Tensor) -> Any:
        self.h = torch.tanh(self.enter(x) * torch.from_numpy(self.a.copy()) + self.h)
        self.a *= 0.95
        return self.h


def take_real_loss(outputs: torch.Tensor) -> torch.Tensor:
    return take_loss(torch.view_as_real(outputs) if outputs.is_complex() else outputs)


@pytest.mark.parametrize(
    ("kind", "steps"),
    [
        (SpectralNorm, STEPS),
        (ReadsStatistics, STEPS),
        (NumberOnly, STEPS),
        (ComplexOutput, STEPS),
        (PureComplexOutput, STEPS),
        (SparseBuffer, STEPS),
        (WeightsOfSteps, STEPS),
        (LateReader, 100),
        (LearnedTrace, STEPS),
        (ArrayState, STEPS),
    ],
)
@pytest.mark.parametrize("strategy", ["base", "revolve"])
def test_a_wrapped_network_is_a_loop_over_its_steps_in_each_of_several_calls(
    kind: Callable[[], Any], steps: int, strategy: str
) -> None:
    nets = []
    for _ in range(2):
        torch.manual_seed(0)
        nets.append(kind().double())
    ours, theirs = nets
    limit: Any = {"memory": "1 MB"} if strategy == "base" else {"plan": plan_of(steps, "revolve", states=8)}
    wrapped = wrap(ours, reset=reset_all, **limit)
    for seed in range(2):
        inputs = data(steps, seed=seed)
        reset_all(theirs)
        expected, found = loop(theirs, inputs), wrapped(inputs)
        torch.testing.assert_close(found, expected)
        for one in (expected, found):
            take_real_loss(one).backward()
        assert_close(gradients(ours), gradients(theirs), relative=1e-9)
        torch.testing.assert_close(list_values(ours), list_values(theirs))


def test_a_state_that_a_plain_loop_has_left_is_carried_on_with_its_graph() -> None:
    nets = []
    for _ in range(2):
        torch.manual_seed(0)
        nets.append(LearnedTrace().double())
    ours, theirs = nets
    before = [loop(net, data(STEPS)) for net in nets]
    found, expected = (
        wrap(ours, plan=plan_of(STEPS, "revolve", states=8))(data(STEPS)),
        loop(theirs, data(STEPS)),
    )
    torch.testing.assert_close(found, expected)
    for parts in zip(before, (found, expected), strict=True):
        torch.stack([take_loss(one) for one in parts]).sum().backward()
    assert_close(gradients(ours), gradients(theirs), relative=1e-9)


class Penalty(Net):
    """Sums up a penalty over time, which the output does not depend on."""

    def reset(self) -> None:
        self.h, self.a = 0.0, 0.0

    def forward(self, x: torch.Tensor) -> Any:
        self.h = torch.tanh(self.enter(x) + 0.5 * self.h)
        self.a = self.a + self.h.square().mean()
        return self.h


def test_a_sum_over_time_has_its_gradient_after_the_call() -> None:
    torch.manual_seed(0)
    ours, theirs = Penalty().double(), Penalty().double()
    theirs.load_state_dict(ours.state_dict())
    found = wrap(ours, plan=plan_of(STEPS, "revolve", states=8))(data(STEPS))
    (found.mean() + ours.a).backward()
    (loop(theirs, data(STEPS)).mean() + theirs.a).backward()
    assert_close(gradients(ours), gradients(theirs), relative=1e-9)


def test_a_lazy_layer_is_made_by_the_first_call() -> None:
    net = nn.Sequential(nn.LazyLinear(UNITS), snntorch.Leaky(beta=0.9, init_hidden=True))
    inputs = data(STEPS).float()
    found = wrap(net, memory="1 MB", reset=reset_all)(inputs)
    reset_all(net)
    torch.testing.assert_close(found, loop(net, inputs))


class InPlaceOutput(Net):
    """Returns its state, and changes it in place."""

    def reset(self) -> None:
        self.h = torch.zeros(BATCH, UNITS, dtype=torch.float64)

    def forward(self, x: torch.Tensor) -> Any:
        self.h.mul_(0.9).add_(self.enter(x))
        return self.h


def make_random_backward() -> nn.Module:
    """A surrogate gradient that draws random numbers in the backward pass."""
    return nn.Sequential(
        nn.Linear(INPUTS, UNITS),
        snntorch.Leaky(beta=0.9, init_hidden=True, spike_grad=snntorch.surrogate.SSO()).double(),
    )


def test_an_output_that_later_steps_change_in_place_is_refused() -> None:
    with pytest.raises(InputError, match="returns tensors that its later steps change in place"):
        wrap(InPlaceOutput().double(), memory="1 MB")(data(STEPS))


def test_random_numbers_of_the_backward_pass_are_those_of_a_loop() -> None:
    results = []
    for planned in (True, False):
        torch.manual_seed(0)
        net = make_random_backward()
        inputs = data(STEPS).float()
        outputs = wrap(net, plan=plan_of(STEPS, "revolve", states=8))(inputs) if planned else loop(net, inputs)
        take_loss(outputs).backward()
        results.append([*gradients(net), torch.rand(1)])
    assert_close(*results, relative=1e-5)


def test_a_sequence_of_no_steps_is_refused() -> None:
    wrapped = wrap(Penalty().double(), memory="1 MB")
    with pytest.raises(InputError, match="inputs: hold no time step"):
        wrapped(data(0))
    with torch.no_grad(), pytest.raises(InputError, match="inputs: hold no time step"):
        wrapped(data(0))


@pytest.mark.parametrize("steps", ["100", 2.5, True, -1, 0])
def test_a_number_of_steps_that_is_none_is_named(steps: Any) -> None:
    wrapped = wrap(Penalty().double(), memory="1 MB")
    with pytest.raises(
        InputError, match=rf"steps: {steps!r} is not accepted \(accepted: a whole number from 1"
    ):
        wrapped(data(1)[0], steps=steps)


def test_other_networks_of_snntorch_in_the_process_are_not_searched() -> None:
    net = make_snntorch()
    before = len(walk({"net": net}).holders)
    others = [make_snntorch() for _ in range(5)]
    assert len(walk({"net": net}).holders) == before
    assert len(others) == 5
