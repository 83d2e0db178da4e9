"""What a cell holds from one step to another, with its graph, is named where autograd only says "second time".

The cells hold it from the last step on, which no trial of the first steps can see.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

import pytest
import torch
from torch.nn.utils import parametrize
from torch.utils.checkpoint import checkpoint

import ckptplan
from ckptplan.schedule.actions import Backward, Record
from ckptplan.torch import bptt, unroll
from ckptplan.torch.held_graphs import name_graphs
from tests.torch.support import plan_of

STEPS = 16
STRATEGIES = ("standard", "revolve")


class Holder(torch.nn.Module):
    """A cell whose last step keeps something that other steps use, as they run later."""

    def __init__(self) -> None:
        super().__init__()
        self.layer = torch.nn.Linear(4, 4)
        self.membrane: Any = None
        self.cache: dict[str, Any] = {}
        self.trace: list[Any] = []

    def keep(self, value: Any) -> None:
        raise NotImplementedError

    def kept(self) -> Any:
        raise NotImplementedError

    def make(self, state: Any, x: Any) -> Any:
        """What is kept: it depends on the input and the weights."""
        return self.layer(x + state.detach()).exp()

    def forward(self, state: Any, x: Any) -> tuple[Any, Any]:
        if x[0, 0] == STEPS - 1:
            self.keep(self.make(state, x))
        held = self.kept()
        state = torch.tanh(self.layer(x) + state)
        if held is not None:
            state = state + 0.1 * held.square()
        return state, state


class Neuron(Holder):
    def keep(self, value: Any) -> None:
        self.membrane = value

    def kept(self) -> Any:
        return self.membrane


class NeuronOfState(Neuron):
    """What is kept depends on the state, so that its graph begins where another chunk does."""

    def make(self, state: Any, x: Any) -> Any:
        return state.exp() + x


class Buffer(Holder):
    def __init__(self) -> None:
        super().__init__()
        self.register_buffer("last", torch.zeros(3, 4))

    def keep(self, value: Any) -> None:
        self.last = value

    def kept(self) -> Any:
        return self.last


class Cache(Holder):
    def make(self, state: Any, x: Any) -> Any:
        del state, x
        return self.layer.weight.exp().sum(0)

    def keep(self, value: Any) -> None:
        self.cache["weight"] = value

    def kept(self) -> Any:
        return self.cache.get("weight")


class SideList(Holder):
    def keep(self, value: Any) -> None:
        self.trace.append({"spikes": value})

    def kept(self) -> Any:
        return self.trace[-1]["spikes"] if self.trace else None


class Outer(torch.nn.Module):
    """A network that calls the holder."""

    def __init__(self, inner: Holder) -> None:
        super().__init__()
        self.inner = inner

    def forward(self, state: Any, x: Any) -> tuple[Any, Any]:
        state, output = self.inner(state, x)
        return state, output


def a_function() -> Callable[[Any, Any], tuple[Any, Any]]:
    """A cell that is a function, with a list beside it."""
    layer, seen = torch.nn.Linear(4, 4), []

    def cell(state: Any, x: Any) -> tuple[Any, Any]:
        if x[0, 0] == STEPS - 1:
            seen.append(layer(x).exp())
        state = torch.tanh(layer(x) + state)
        return (state + 0.1 * seen[-1].square() if seen else state), state

    return cell


@pytest.fixture(autouse=True)
def _same_weights() -> None:
    """Weights decide whether neurons fire in the steps that are tried, and so which check speaks first."""
    torch.manual_seed(0)


def train(cell: Any, strategy: str, **more: Any) -> None:
    """Compute the gradients of a sequence whose inputs say which step it is."""
    times = torch.arange(STEPS, dtype=torch.float32).view(STEPS, 1, 1).expand(STEPS, 3, 4)
    plan = plan_of(STEPS, strategy)
    bptt(cell, times, torch.zeros(3, 4), lambda _, output: output.sum(), plan=plan, **more).loss.backward()


MAKERS = {
    "cell.membrane": Neuron,
    "cell.membrane of the state": NeuronOfState,
    "cell.last": Buffer,
    "cell.cache['weight']": Cache,
    "cell.trace": SideList,
    "cell.inner.membrane": lambda: Outer(Neuron()),
    "seen": a_function,
}


@pytest.mark.parametrize("strategy", STRATEGIES)
@pytest.mark.parametrize("name", MAKERS)
def test_what_holds_a_tensor_of_other_steps_is_named_after_the_sweep(name: str, strategy: str) -> None:
    with pytest.raises(ckptplan.InputError, match=r"changes? in a step, and later") as refused:
        train(MAKERS[name](), strategy)
    assert name.partition(" ")[0] in str(refused.value)
    assert "part of the state" in str(refused.value)


@pytest.mark.parametrize("strategy", STRATEGIES)
@pytest.mark.parametrize("name", MAKERS)
def test_it_is_named_where_repeated_steps_are_not_compared(name: str, strategy: str) -> None:
    with pytest.raises(ckptplan.InputError) as refused:
        train(MAKERS[name](), strategy, verify=False)
    assert name.partition(" ")[0] in str(refused.value)
    assert "state" in str(refused.value)


class Symmetric(torch.nn.Module):
    def forward(self, weight: Any) -> Any:
        return (weight.triu() + weight.triu(1).T).exp()


@pytest.mark.parametrize("strategy", STRATEGIES)
def test_weights_that_parametrize_caches_are_named(strategy: str) -> None:
    """Outside of the context, and in a step of their own, they are right."""
    cell = Outer(Holder())
    parametrize.register_parametrization(cell.inner.layer, "weight", Symmetric())

    def step(state: Any, x: Any) -> tuple[Any, Any]:
        state = torch.tanh(cell.inner.layer(x) + state)
        return state, state

    more = {"parameters": list(cell.parameters())}
    with pytest.raises(ckptplan.InputError) as refused, parametrize.cached():
        train(step, strategy, **more)
    assert "parametrize.cached() for cell.inner.layer.weight holds one" in str(refused.value)
    train(step, strategy, **more)


def test_a_tensor_changed_in_place_by_another_step_is_explained() -> None:
    scale = torch.ones(4)

    def cell(state: Any, x: Any) -> tuple[Any, Any]:
        state = torch.tanh(state * scale + x)
        if x[0, 0] == 2:
            scale.mul_(1)
        return state, state

    with pytest.raises(ckptplan.InputError, match="changed a tensor in place") as refused:
        bptt(
            cell,
            torch.arange(4.0).view(4, 1, 1).expand(4, 3, 4),
            torch.zeros(3, 4, requires_grad=True),
            lambda _, output: output.sum(),
            plan=ckptplan.Schedule(steps=4, actions=[Record(0, 4), Backward(0, 4)]),
        ).loss.backward()
    assert "inplace operation" in str(refused.value.__cause__)


def test_other_errors_of_a_step_stay_what_they_are() -> None:
    def cell(state: Any, x: Any) -> tuple[Any, Any]:
        if x[0, 0] == STEPS - 1:
            raise RuntimeError("out of paper")
        return state + x, state

    with pytest.raises(RuntimeError, match="out of paper"):
        bptt(
            cell,
            torch.arange(STEPS, dtype=torch.float32).view(STEPS, 1, 1).expand(STEPS, 3, 4),
            torch.zeros(3, 4, requires_grad=True),
            lambda _, output: output.sum(),
            plan=plan_of(STEPS),
        )


def test_unroll_explains_the_same() -> None:
    times = torch.arange(STEPS, dtype=torch.float32).view(STEPS, 1, 1).expand(STEPS, 3, 4)
    with pytest.raises(ckptplan.InputError, match=r"cell\.membrane"):
        unroll(Neuron(), times, torch.zeros(3, 4), plan=plan_of(STEPS, "standard"), verify=False)[
            0
        ].sum().backward()


@pytest.mark.filterwarnings("ignore:None of the inputs")
@pytest.mark.parametrize("how", [{"plan": plan_of(STEPS, "standard")}, {"memory": "1 GB"}])
def test_reentrant_checkpoints_are_refused_by_name(how: dict[str, Any]) -> None:
    module = torch.nn.GRUCell(4, 4)

    def cell(state: torch.Tensor, x: torch.Tensor) -> Any:
        state = checkpoint(module, x, state, use_reentrant=True)
        return state, state

    with pytest.raises(ckptplan.InputError, match="use_reentrant=True"):
        bptt(cell, torch.randn(STEPS, 3, 4), torch.zeros(3, 4), lambda _, h: h.sum(), **how).loss.backward()


def test_holders_are_found_in_objects_methods_and_partial_functions() -> None:
    """Those without a graph are not named, and cycles end."""

    class Memory:
        def __init__(self) -> None:
            self.slots = ({torch.ones(1)}, [torch.ones(1, requires_grad=True).exp()])
            self.me = self

        def step(self, state: Any, x: Any) -> tuple[Any, Any]:
            return state, x

    def name_all(thing: object) -> list[str]:
        return name_graphs({"cell": thing})

    memory = Memory()
    assert name_all(memory) == ["cell.slots[1][0]"]
    assert name_all(memory.step) == ["cell.slots[1][0]"]
    assert name_all(partial(lambda _, state, x: (state, x), memory)) == ["cell.args[0].slots[1][0]"]
    module = torch.nn.Linear(2, 2)
    module.plain, module.weight_of_leaf = torch.ones(2), torch.ones(2, requires_grad=True)
    assert name_all(module) == []
