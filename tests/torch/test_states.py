"""What a state can be: dataclass objects as they are, and nothing that a checkpoint cannot hold."""

from __future__ import annotations

import collections
import enum
from collections.abc import Callable
from dataclasses import dataclass, field
from functools import cached_property, partial
from pathlib import Path
from typing import Any

import numpy
import pytest
import torch
from torch.utils import _pytree

from ckptplan.torch import bptt, measured_sizes, unroll
from ckptplan.torch.state.nests import flatten
from tests.torch.tables import STEPS, STRATEGIES, Call, Row, Table, plan, squares

TABLE = Table()


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


#: Steps, each with a function that makes the initial state of its kind from a tensor.
STATES: dict[str, tuple[Callable[..., Any], Callable[[torch.Tensor], Any]]] = {
    "ordinary": (step_membrane, Membrane),
    "changed in place": (step_in_place, Membrane),
    "frozen": (step_frozen, lambda v: Frozen(v=v)),
    "within others": (
        step_layers,
        lambda v: Layers((Membrane(v), Membrane(2 * v.detach())), {"frozen": Frozen(v=v), "name": "layers"}),
    ),
    "in tuples": (step_nested, lambda v: ((Membrane(v), torch.zeros_like(v)), None)),
}


def sum_state(state: Any) -> torch.Tensor:
    """Return the sum of all tensors of a state."""
    return sum((tensor.sum() for tensor in flatten(state)[0]), torch.zeros(()))


def step_dataclass(kind: str) -> Call:
    """Return a call with dataclass objects in its state."""
    step, make = STATES[kind]
    start, weight, inputs = (
        torch.randn(*shape, dtype=torch.float64).requires_grad_() for shape in ((3, 4), (5, 4), (STEPS, 3, 5))
    )
    return Call(
        cell=lambda state, x: step(state, x, weight),
        inputs=inputs,
        state=make(start),
        final_loss=sum_state,
        parameters=[start, weight],
    )


for _kind in STATES:
    TABLE.add(_kind, partial(step_dataclass, _kind), ways=(*STRATEGIES, "unroll"))


@pytest.mark.parametrize("row", TABLE)
def test_a_state_has_the_gradients_of_a_plain_loop(row: Row) -> None:
    row.check()


@pytest.mark.parametrize("kind", STATES)
def test_the_final_state_is_of_the_type_of_the_first(kind: str) -> None:
    call = step_dataclass(kind)
    result = bptt(call.cell, call.inputs, call.state, squares, plan=plan("standard"))
    assert type(result.state) is type(call.state)


def test_dataclass_objects_are_inputs_and_outputs() -> None:
    inputs = Membrane(torch.rand(STEPS, 3, 4), count=2)

    def cell(state: Any, x: Any) -> Any:
        state = state + x.v * x.count
        return state, Membrane(state.square(), count=7)

    outputs, _ = unroll(cell, inputs, torch.zeros(3, 4, requires_grad=True), plan=plan("standard"))
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


class Holder:
    """An object that holds a tensor."""

    def __init__(self) -> None:
        self.v = torch.zeros(2)


class Pair:
    """A container that its program registers in pytree."""

    def __init__(self, *values: Any) -> None:
        self.values = values


_pytree.register_pytree_node(Pair, lambda pair: (list(pair.values), None), lambda one, _: Pair(*one))


@dataclass
class Mapping(dict[str, Any]):
    """A dataclass that is also a dict, whose entries are not among its fields."""

    v: torch.Tensor


def count_in_array(array: Any) -> float:
    array += 1
    return float(array.sum())


def count_in_set(seen: Any) -> float:
    seen.add(len(seen))
    return len(seen)


def count_in_holder(holder: Any) -> float:
    holder.v = holder.v + 1
    return float(holder.v.sum())


def count_in_mapping(mapping: Any) -> float:
    mapping["count"] = mapping.get("count", 0) + 1
    mapping.v = mapping.v + mapping["count"]
    return float(mapping.v.sum())


def count_in_bytes(array: Any) -> float:
    array[0] += 1
    return float(array[0])


#: Objects in a state, each with a function that changes the object in place and returns a number.
OBJECTS: dict[str, tuple[Callable[[], Any], Callable[[Any], float]]] = {
    "an array": (lambda: numpy.zeros(2), count_in_array),
    "a set": (lambda: {1, 2}, count_in_set),
    "an object": (Holder, count_in_holder),
    "in a container": (lambda: [Holder()], lambda holders: count_in_holder(holders[0])),
    "in a dataclass": (lambda: Membrane(Holder()), lambda one: count_in_holder(one.v)),  # type: ignore[arg-type]
    "in a registered container": (lambda: Pair(1, Holder()), lambda pair: count_in_holder(pair.values[1])),
    "a module": (lambda: torch.nn.BatchNorm1d(2), lambda norm: float(norm(torch.rand(3, 2)).sum())),
    "a generator": (torch.Generator, lambda one: float(torch.rand((), generator=one))),
    "a random source": (lambda: numpy.random.default_rng(3), lambda one: float(one.random())),
    "a dict with fields": (lambda: Mapping(torch.zeros(2)), count_in_mapping),
    "bytes that change": (lambda: bytearray(b"12"), count_in_bytes),
    "a list in disguise": (lambda: collections.UserList([1]), lambda one: one.append(1) or len(one)),
}


def hold_object(kind: str) -> Call:
    """Return a call with an object in its state: it is saved and put back, whatever steps do to it in place."""
    make, count = OBJECTS[kind]
    weight = torch.ones(2, requires_grad=True)

    def cell(state: Any, x: torch.Tensor) -> Any:
        v, kept = state
        v = torch.tanh(v + weight * x) * (1 + 0.01 * count(kept))
        return (v, kept), v

    return hold(cell, (torch.zeros(2), make()), weight)


def hold(cell: Any, state: Any, weight: torch.Tensor) -> Call:
    """Return a call in single precision."""
    return Call(
        cell=cell,
        inputs=torch.rand(STEPS, 2),
        state=state,
        loss=lambda _, output: output.sum(),
        parameters=[weight],
        relative=1e-5,
    )


for _kind in OBJECTS:
    TABLE.add(_kind, partial(hold_object, _kind), ways=STRATEGIES)


@TABLE.row(ways=STRATEGIES)
def constants_and_containers_of_pytree() -> Call:
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
    return hold(cell, (collections.deque([zeros, zeros], maxlen=2), constants), weight)
