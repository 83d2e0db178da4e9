"""What a state can be: dataclass objects as they are, and nothing that a checkpoint cannot hold."""

from __future__ import annotations

import collections
import enum
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy
import pytest
import torch
from torch.utils import _pytree

from ckptplan import InputError
from ckptplan.torch import bptt, measured_sizes, unroll
from ckptplan.torch.trees import flatten
from tests.torch.support import assert_close, gradients, plan_of

STEPS = 24
STRATEGIES = ("base", "standard", "double", "revolve", "optimal")
PLANS = {name: plan_of(STEPS, name, states=60 if name == "base" else 14) for name in STRATEGIES}


class Mode(enum.Enum):
    """A constant."""

    SOFT = "soft"


@dataclass
class Membrane:
    """An ordinary state, which says how it resets."""

    v: torch.Tensor
    mode: Mode = Mode.SOFT
    count: int = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class Frozen:
    """A frozen state with slots, whose constructor takes what it does not keep."""

    v: torch.Tensor
    trace: torch.Tensor = field(init=False)

    def __post_init__(self) -> None:
        object.__setattr__(self, "trace", torch.zeros_like(self.v))

    def updated(self, v: torch.Tensor, trace: torch.Tensor) -> Frozen:
        made = Frozen(v=v)
        object.__setattr__(made, "trace", trace)
        return made


@dataclass
class Layers:
    """A state with others within."""

    membranes: tuple[Membrane, ...]
    named: dict[str, Any]

    @cached_property
    def total(self) -> torch.Tensor:
        return sum((one.v for one in self.membranes), torch.zeros(()))


@dataclass
class Registered:
    """A state that its own program registers in pytree."""

    v: torch.Tensor
    count: int = 0


def advance(v: torch.Tensor, x: torch.Tensor, weight: torch.Tensor) -> torch.Tensor:
    return torch.tanh(0.9 * v + x @ weight)


def step_membrane(state: Any, x: Any, weight: Any) -> Any:
    assert state.mode is Mode.SOFT
    v = advance(state.v, x, weight) * (1 + 0.01 * state.count)
    return Membrane(v, count=state.count + 1), v


def step_in_place(state: Any, x: Any, weight: Any) -> Any:
    """The fields of the object itself change, as people write it."""
    state.v = advance(state.v, x, weight) * (1 + 0.01 * state.count)
    state.count += 1
    return state, state.v


def step_frozen(state: Any, x: Any, weight: Any) -> Any:
    v = advance(state.v, x, weight) - 0.1 * state.trace
    return state.updated(v, 0.5 * state.trace + v), v


def step_layers(state: Any, x: Any, weight: Any) -> Any:
    first, second = state.membranes
    (one, _), frozen = step_membrane(first, x, weight), state.named["frozen"]
    (other, output) = step_membrane(second, x + state.total.sum(), weight)
    frozen, _ = step_frozen(frozen, x, weight)
    return Layers((one, other), {"frozen": frozen, "name": "layers"}), output + frozen.v


def step_nested(state: Any, x: Any, weight: Any) -> Any:
    (membrane, other), extra = state
    membrane, output = step_membrane(membrane, x, weight)
    return ((membrane, other + output), extra), other


def values(number: int) -> torch.Tensor:
    generator = torch.Generator().manual_seed(number)
    return torch.randn(3, 4, dtype=torch.float64, generator=generator).requires_grad_()


def states() -> dict[str, Any]:
    """Steps with an initial state of each kind, and its tensors."""
    return {
        "ordinary": (step_membrane, Membrane),
        "changed in place": (step_in_place, Membrane),
        "frozen": (step_frozen, lambda v: Frozen(v=v)),
        "within others": (
            step_layers,
            lambda v: Layers(
                (Membrane(v), Membrane(2 * v.detach())), {"frozen": Frozen(v=v), "name": "layers"}
            ),
        ),
        "in tuples": (step_nested, lambda v: ((Membrane(v), torch.zeros_like(v)), None)),
    }


@pytest.mark.parametrize("strategy", PLANS)
@pytest.mark.parametrize("kind", states())
def test_dataclass_objects_are_states(kind: str, strategy: str) -> None:
    step, make = states()[kind]
    start = values(2)
    weight = torch.randn(5, 4, dtype=torch.float64, generator=torch.Generator().manual_seed(1)).requires_grad_()
    inputs = torch.randn(STEPS, 3, 5, dtype=torch.float64, generator=torch.Generator().manual_seed(3))
    inputs.requires_grad_()

    def cell(state: Any, x: torch.Tensor) -> Any:
        return step(state, x, weight)

    state, outputs, wanted = make(start), [], [inputs, start, weight]
    for x in inputs.unbind():
        state, output = cell(state, x)
        outputs.append(output)
    tensors = flatten(state)[0]
    expected = torch.stack(outputs).square().sum() + sum((one.sum() for one in tensors), torch.zeros(()))
    theirs = gradients(expected, wanted)

    def final(state: Any) -> torch.Tensor:
        return sum((one.sum() for one in flatten(state)[0]), torch.zeros(()))

    result = bptt(
        cell,
        inputs,
        make(start),
        lambda _, output: output.square().sum(),
        final_loss=final,
        plan=PLANS[strategy],
    )
    assert_close(gradients(result.loss, wanted), theirs, relative=1e-12)
    assert type(result.state) is type(state)
    stacked, last = unroll(cell, inputs, make(start), plan=PLANS[strategy])
    assert_close(gradients(stacked.square().sum() + final(last), wanted), theirs, relative=1e-12)


def test_dataclass_objects_are_inputs_and_outputs() -> None:
    inputs = Membrane(torch.rand(STEPS, 3, 4), count=2)

    def cell(state: Any, x: Any) -> Any:
        state = state + x.v * x.count
        return state, Membrane(state.square(), count=7)

    outputs, _ = unroll(cell, inputs, torch.zeros(3, 4, requires_grad=True), plan=PLANS["standard"])
    assert isinstance(outputs, Membrane)
    assert outputs.v.shape == (STEPS, 3, 4)
    assert outputs.count == 7
    assert torch.allclose(outputs.v[1], (2 * (inputs.v[0] + inputs.v[1])).square())


def test_measured_sizes_count_the_tensors_of_dataclass_objects() -> None:
    weight = torch.ones(5, requires_grad=True)

    def cell(state: Any, x: torch.Tensor) -> Any:
        return Membrane(state.v + weight * x), x

    sizes = measured_sizes(cell, torch.rand(4, 3, 5), Membrane(torch.zeros(3, 5)), lambda _, one: one.sum())
    assert sizes.state_bytes == 4 * 3 * 5


@pytest.mark.parametrize("when", ["before", "after"])
def test_a_class_that_its_program_registers_is_left_to_pytree(when: str) -> None:
    """Before the first call or after it; nothing that is not ckptplan's own is registered by ckptplan."""

    @dataclass
    class Own:
        v: torch.Tensor
        count: int = 0

    if when == "after":
        assert len(flatten(Own(torch.zeros(2)))[0]) == 1
        assert Own not in _pytree.SUPPORTED_NODES
    calls = []

    def take_apart(own: Own) -> Any:
        calls.append(own)
        return [own.v], own.count

    _pytree.register_pytree_node(Own, take_apart, lambda values, count: Own(next(iter(values)), count))
    leaves, structure = flatten((Own(torch.ones(2), 3), 4))
    assert calls
    ((one, other),) = [structure.fill(leaves)]
    assert (one.count, other) == (3, 4)
    del _pytree.SUPPORTED_NODES[Own]


def test_what_an_object_computed_from_its_fields_is_not_part_of_it() -> None:
    """A cached property would be another tensor in some states; other attributes are kept."""
    layers = Layers((Membrane(torch.ones(2)),), {})
    before = flatten(layers)[1]
    assert layers.total.sum() == 2
    assert flatten(layers)[1] == before
    layers.extra = torch.ones(3)  # type: ignore[attr-defined]
    leaves, structure = flatten(layers)
    assert [len(leaf) for leaf in leaves] == [2, 3]
    assert structure.fill(leaves).extra is layers.extra  # type: ignore[attr-defined]


class Holder:
    """An object that holds a tensor."""

    def __init__(self) -> None:
        self.v = torch.zeros(2)


@dataclass
class Mapping(dict[str, Any]):
    """A dataclass that is also a dict, whose entries are not among its fields."""

    v: torch.Tensor


OTHERS: dict[str, tuple[Any, str]] = {
    "an array": ((torch.zeros(2), numpy.zeros(2)), r"ndarray as state\[1\].*torch.from_numpy"),
    "a set": ({"seen": {1, 2}}, r"set as state\['seen'\].*a tuple or dict"),
    "an object": ((0, [Holder()]), r"Holder as state\[1\]\[0\].*register_pytree_node"),
    "in a dataclass": (Membrane(Holder()), r"Holder as state\.v"),  # type: ignore[arg-type]
    "a module": (torch.nn.Linear(2, 2), "Linear as state"),
    "a generator": ((torch.Generator(),), r"Generator as state\[0\]"),
    "a list in disguise": (collections.UserList([1]), "UserList as state"),
    "a dict with fields": (Mapping(torch.zeros(2)), "Mapping as state"),
    "a random source": ((numpy.random.default_rng(),), r"Generator as state\[0\]"),
    "bytes that change": (bytearray(b"12"), "bytearray as state"),
}


@pytest.mark.parametrize("kind", OTHERS)
def test_leaves_that_a_checkpoint_cannot_hold_are_refused_by_name(kind: str) -> None:
    state, message = OTHERS[kind]
    with pytest.raises(InputError, match=f"state: has {message}"):
        bptt(lambda state, x: (state, x), torch.ones(STEPS, 2), state, _sum, plan=PLANS["base"])


def test_such_leaves_of_a_returned_state_are_refused_too() -> None:
    weight = torch.ones(2, requires_grad=True)

    def cell(state: Any, x: torch.Tensor) -> Any:
        v, _ = state
        v = v + weight * x
        return (v, {1, 2}), v

    for plan in PLANS.values():
        with pytest.raises(InputError, match=r"cell: returns set as state\[1\]"):
            bptt(cell, torch.ones(STEPS, 2), (torch.zeros(2), None), _sum, plan=plan)


def test_a_container_that_does_not_name_its_parts_is_named() -> None:
    class Pair:
        def __init__(self, *values: Any) -> None:
            self.values = values

    _pytree.register_pytree_node(Pair, lambda pair: (list(pair.values), None), lambda one, _: Pair(*one))
    with pytest.raises(InputError, match="state: has Holder as a part of the state"):
        bptt(lambda s, x: (s, x), torch.ones(STEPS, 2), Pair(1, Holder()), _sum, plan=PLANS["base"])
    del _pytree.SUPPORTED_NODES[Pair]


def test_constants_and_containers_of_pytree_are_parts_of_states() -> None:
    weight = torch.ones(2, requires_grad=True)
    constants = (
        1, 2.5, 1j, True, "text", b"bytes", None, Mode.SOFT, torch.float32, torch.device("cpu"),
        torch.Size([2]), numpy.float32(1), numpy.bool_(True), Path("a"), range(3), torch.tanh, int,
        frozenset({1}), ...,
    )  # fmt: skip

    def cell(state: Any, x: torch.Tensor) -> Any:
        recent, kept = state
        assert kept == constants
        recent = collections.deque(recent, maxlen=2)
        recent.append(torch.tanh(weight * x + recent[0]))
        return (recent, kept), recent[-1]

    zeros = torch.zeros(2)
    inputs = torch.rand(STEPS, 2)
    outputs = []
    state = (collections.deque([zeros, zeros], maxlen=2), constants)
    for x in inputs:
        state, output = cell(state, x)
        outputs.append(output)
    theirs = gradients(torch.stack(outputs).sum(), [weight])
    for plan in PLANS.values():
        first = (collections.deque([zeros, zeros], maxlen=2), constants)
        assert_close(
            gradients(bptt(cell, inputs, first, _sum, plan=plan).loss, [weight]), theirs, relative=1e-5
        )


def _sum(_: int, output: torch.Tensor) -> torch.Tensor:
    return output.sum()
