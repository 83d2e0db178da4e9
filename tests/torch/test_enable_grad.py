"""A cell that switches autograd on keeps no graph of the steps that run without a tape."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch.utils._pytree import tree_leaves

from ckptplan.torch import LIF, bptt, unroll
from ckptplan.torch.device.meters import LiveBytes
from tests.torch.support import assert_close, gradients, plain, plan_of

STEPS, BATCH, UNITS = 400, 8, 64
STATE = 4 * BATCH * UNITS
is_nested = pytest.mark.parametrize("nested", [False, True], ids=["tensor", "nested"])


class Switched(torch.nn.Module):
    """A cell with what energy-based layers do, or by mistake: it enables gradients for its own operations."""

    def __init__(self, *, nested: bool, since: int = 0) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.layer, self.nested, self.since = torch.nn.Linear(UNITS, UNITS), nested, since

    def forward(self, state: Any, x: Any) -> tuple[Any, Any]:
        begun = bool(x[0, 0] >= self.since)
        with torch.set_grad_enabled(torch.is_grad_enabled() or begun):
            hidden, trace = state if self.nested else (state, state)
            hidden = torch.tanh(self.layer(hidden) + torch.tanh(x))
            after = (hidden, 0.9 * trace + hidden) if self.nested else hidden
            return after, (hidden.exp(), hidden) if self.nested else hidden.exp()


def loss(_: int, output: Any) -> torch.Tensor:
    with torch.enable_grad():
        first: torch.Tensor = output[0] if isinstance(output, tuple) else output
        return first.square().mean()


def start(nested: bool) -> Any:
    return (torch.zeros(BATCH, UNITS), torch.zeros(BATCH, UNITS)) if nested else torch.zeros(BATCH, UNITS)


def times() -> torch.Tensor:
    return torch.arange(STEPS, dtype=torch.float32).view(STEPS, 1, 1).expand(STEPS, BATCH, UNITS)


def run_spiking(cell: LIF) -> Any:
    """Run a cell of chunks under a plan."""
    inputs, plan = torch.randn(STEPS, BATCH, 8), plan_of(STEPS, "standard", states=60, alpha=1)
    return bptt(cell, inputs, cell.initial_state(BATCH), lambda _, spikes: spikes.mean(), plan=plan)


@pytest.fixture(autouse=True, scope="module")
def _shared_arrays() -> None:
    """What all calls of a process share is made by its first one."""
    cell = Switched(nested=True)
    bptt(cell, times(), start(True), loss, plan=plan_of(STEPS, "standard", states=60)).loss.backward()
    run_spiking(LIF(8, UNITS)).loss.backward()


@pytest.mark.parametrize("since", [0, 100])
@is_nested
@pytest.mark.parametrize("strategy", ["standard", "double", "revolve"])
def test_the_graph_of_a_sweep_is_not_kept(strategy: str, nested: bool, since: int) -> None:
    """That of a piece of 64 steps may be, once, before a nested state was seen to have one."""
    peaks = []
    for cell in (Switched(nested=nested, since=since), Switched(nested=nested, since=STEPS)):
        plan = plan_of(STEPS, strategy, states=100, alpha=4)
        with LiveBytes() as live:
            result = bptt(cell, times(), start(nested), loss, plan=plan)
        peaks.append(live.peak)
        del result
    switched, ordinary = peaks
    once = 64 * 5 * STATE if nested and since else 0
    # All steps with a graph would be more than 1,200 states.
    assert switched <= ordinary + once + 10 * STATE


@is_nested
def test_gradients_of_such_a_cell_are_those_of_plain_bptt(nested: bool) -> None:
    cell = Switched(nested=nested)
    outputs, _ = plain(cell, times(), start(nested), STEPS)
    parameters = list(cell.parameters())
    expected = gradients(torch.stack([loss(0, one) for one in outputs]).sum(), parameters)
    for strategy in ("standard", "revolve"):
        result = bptt(cell, times(), start(nested), loss, plan=plan_of(STEPS, strategy, states=60))
        assert_close(gradients(result.loss, parameters), expected, relative=1e-4)
        assert not any(one.requires_grad for one in tree_leaves(result.state))


@is_nested
def test_nor_without_gradients(nested: bool) -> None:
    """The outputs of unroll are kept; the graphs of 400 steps would be as many again, three times."""
    cell = Switched(nested=nested)
    with torch.no_grad(), LiveBytes() as live:
        outputs, state = unroll(cell, times(), start(nested), plan=plan_of(STEPS, "standard", states=60))
    assert live.peak <= sum(one.nbytes for one in tree_leaves(outputs)) + 20 * STATE
    assert not any(one.requires_grad for one in tree_leaves((outputs, state)))


class SwitchedLIF(LIF):
    """A cell of chunks that enables gradients in what runs without a tape."""

    def run(self, state: Any, inputs: Any, before: Any | None) -> tuple[Any, Any]:
        states, saved = super().run(state, inputs, before)
        return self._graph(states), saved

    def replay(self, state: Any, inputs: Any, outputs: Any) -> Any:
        return self._graph(super().replay(state, inputs, outputs))

    def _graph(self, states: torch.Tensor) -> torch.Tensor:
        with torch.enable_grad():
            one = self.weight.sum().exp()
            return states * (one / one.detach())


def test_nor_by_a_cell_of_chunks() -> None:
    """A tape would hold its states twice."""
    peaks, found = [], []
    for kind in (SwitchedLIF, LIF):
        torch.manual_seed(0)
        cell = kind(8, UNITS)
        with LiveBytes() as live:
            found.append(gradients(run_spiking(cell).loss, list(cell.parameters())))
        peaks.append(live.peak)
    assert peaks[0] <= peaks[1] + 35 * STATE
    assert_close(found[0], found[1], relative=1e-4)
