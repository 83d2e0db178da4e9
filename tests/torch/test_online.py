"""Sequences of unknown length in PyTorch: gradients are those of a plain loop, wherever they end."""

from __future__ import annotations

import gc
import re
import weakref
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import pytest
import torch

import ckptplan
from ckptplan import InputError, online
from ckptplan.schedule.actions import Advance, Backward, Record, Tier
from ckptplan.torch import LIF, bptt
from tests.torch.support import assert_close, plain

STEPS = 300


class Net(torch.nn.Module):
    """A recurrent cell; the second part of its state counts the steps."""

    def __init__(self, *, dropout: float = 0.0) -> None:
        super().__init__()
        self.cell = torch.nn.RNNCell(2, 6, dtype=torch.float64)
        self.drop = torch.nn.Dropout(dropout)

    def forward(self, state: Any, x: Any) -> Any:
        hidden, count = state
        hidden = self.drop(self.cell(x, hidden))
        return (hidden, count + 1), hidden


def loss(step: int, output: torch.Tensor) -> torch.Tensor:
    return (output * (1 + step % 3)).square().mean()


def final_loss(state: Any) -> torch.Tensor:
    total: torch.Tensor = state[0].sum()
    return total


def begin() -> tuple[Net, torch.Tensor, Any]:
    torch.manual_seed(3)
    inputs = torch.randn(STEPS, 3, 2, dtype=torch.float64, requires_grad=True)
    return Net(), inputs, (torch.zeros(3, 6, dtype=torch.float64, requires_grad=True), torch.zeros(()))


def ends_at(steps: int) -> Callable[[Any], bool]:
    return lambda state: int(state[1]) == steps


def plain_loss(net: Net, inputs: torch.Tensor, state: Any, steps: int) -> torch.Tensor:
    total = torch.zeros((), dtype=torch.float64)
    for step in range(steps):
        state, output = net(state, inputs[step])
        total = total + loss(step, output)
    return total + final_loss(state)


def gradients(value: torch.Tensor, net: Net, inputs: torch.Tensor, state: Any) -> list[torch.Tensor]:
    return list(torch.autograd.grad(value, [inputs, state[0], *net.parameters()]))


def compare(net: Net, inputs: torch.Tensor, state: Any, steps: int, **options: Any) -> Any:
    """Compare the loss, its gradients and what is drawn next with those of a plain loop; return the result."""
    options = {"final_loss": final_loss, "until": ends_at(steps), **options}
    torch.manual_seed(5)
    result = bptt(net, inputs, state, loss, **options)
    drawn = torch.rand(1)
    found = gradients(result.loss, net, inputs, state)
    torch.manual_seed(5)
    expected = plain_loss(net, inputs, state, steps)
    assert torch.equal(drawn, torch.rand(1))
    torch.testing.assert_close(result.loss, expected)
    torch.testing.assert_close(found, gradients(expected, net, inputs, state))
    assert result.plan.steps == int(result.state[1]) == steps
    return result


@pytest.mark.parametrize("steps", np.random.default_rng(39).choice(STEPS, 30, replace=False) + 1)
def test_gradients_are_those_of_a_plain_loop_wherever_it_ends(steps: int) -> None:
    result = compare(*begin(), steps, plan=online(4))
    assert isinstance(result.plan, ckptplan.Schedule)
    result.plan.check()


def test_random_numbers_are_drawn_again_as_they_were() -> None:
    """Dropout in steps that run several times."""
    _, inputs, state = begin()
    compare(Net(dropout=0.4), inputs, state, 90, plan=online(3))


@pytest.mark.parametrize("steps", [1, 2, 11, 12, 13, 40])
@pytest.mark.parametrize("dropout", [0.0, 0.4])
def test_a_short_sequence_runs_once(steps: int, dropout: float) -> None:
    """While states and tapes find room, steps are recorded; the last one again, with the final loss."""
    _, inputs, state = begin()
    done = list[Any]()
    observer = lambda action, _: done.append(action)  # noqa: E731 - reads as an option
    result = compare(Net(dropout=dropout), inputs, state, steps, plan=online(100), observer=observer)
    assert list(result.plan) == [Record(0, steps), Backward(0, steps)]
    runs = [action.stop - action.start for action in done if isinstance(action, Advance | Record)]
    assert sum(runs) == steps + 1


def test_inputs_may_come_from_an_iterator_that_ends() -> None:
    net, inputs, state = begin()

    def read() -> Iterator[torch.Tensor]:
        yield from inputs.detach()[:77]

    result = bptt(net, read(), state, loss, plan=online(4))
    result.loss.backward()
    found = net.cell.weight_hh.grad
    again = bptt(net, inputs.detach()[:77], state, loss, plan=result.plan)
    (expected,) = torch.autograd.grad(again.loss, [net.cell.weight_hh])
    torch.testing.assert_close(found, expected)


def test_tensors_end_where_their_rows_do() -> None:
    net, inputs, state = begin()
    assert bptt(net, inputs, state, loss, plan=online(4), until=lambda _: False).plan.steps == STEPS


def test_without_gradients_the_sequence_ends_at_the_same_step() -> None:
    net, inputs, state = begin()
    with torch.no_grad():
        result = bptt(net, inputs, state, loss, final_loss=final_loss, plan=online(4), until=ends_at(50))
    torch.testing.assert_close(result.loss, plain_loss(net, inputs, state, 50).detach())
    assert result.plan.steps == 50


class Held:
    """An observer of the bytes that the executor holds in states and tapes, by the sizes of its parts."""

    def __init__(self) -> None:
        self.actions, self.bytes = list[object](), list[int]()

    def __call__(self, action: object, executor: Any) -> None:
        self.actions.append(action)
        self.bytes.append(executor.stores[Tier.LOCAL].bytes + sum(tape.bytes for tape in executor.tapes))


def test_a_limit_of_memory_is_kept() -> None:
    """Inputs lie beside states and tapes."""
    net, inputs, state = begin()
    most = []
    for limit in (16_000, 24_000):
        held = Held()
        compare(net, inputs, state, 200, memory=inputs.nbytes + limit, observer=held)
        assert 0 < max(held.bytes) <= limit
        most.append(max(held.bytes))
    assert most[0] < most[1]
    with pytest.raises(InputError, match="memory: "):
        compare(net, inputs, state, 200, memory=inputs.nbytes + 2_000)


@pytest.mark.parametrize("part", ["state", "tape"])
def test_a_limit_is_kept_where_states_or_tapes_grow_later(part: str) -> None:
    """As a state that remembers all outputs. The sequence begins again, planned for what was seen."""
    net, inputs, (hidden, count) = begin()
    inputs = inputs.detach()

    def cell(state: Any, x: Any) -> Any:
        hidden, count, memory = state
        (hidden, count), output = net((hidden, count), x)
        if part == "state":
            memory = torch.cat([memory, hidden[:, :1]], 1)
        else:
            # From here on, a step keeps much more.
            for _ in range(40 if count > 30 else 0):
                hidden = hidden.sin()
        return (hidden, count, memory), output + memory.mean()

    def train(**options: Any) -> list[torch.Tensor]:
        state = hidden, count, torch.zeros(3, 1, dtype=torch.float64)
        result = bptt(cell, inputs, state, loss, until=ends_at(120), **options)
        assert result.plan.steps == 120
        return list(torch.autograd.grad(result.loss, [hidden, *net.parameters()]))

    theirs = train(plan=online(200))
    limit, held = 60_000, Held()
    torch.testing.assert_close(train(memory=limit, observer=held), theirs)
    assert 0 < max(held.bytes) <= limit
    assert 1 < held.actions.count(Advance(0, 1)) < 20


@pytest.mark.parametrize("where", ["cell", "until", "backward"])
def test_a_run_that_an_exception_ends_leaves_nothing(where: str) -> None:
    net, inputs, state = begin()
    states: list[weakref.ref[torch.Tensor]] = []

    def check(present: Any) -> bool:
        states.append(weakref.ref(present[0]))
        if where == "until" and int(present[1]) == 60:
            raise FloatingPointError("diverged")
        return int(present[1]) == 100

    def cell(present: Any, x: Any) -> Any:
        if where == "cell" and int(present[1]) == 60:
            raise FloatingPointError("diverged")
        if where == "backward" and int(present[1]) == 10 and torch._C._current_graph_task_id() != -1:
            raise FloatingPointError("diverged")
        return net(present, x)

    def train() -> None:
        bptt(cell, inputs, state, loss, plan=online(4), until=check, verify=False).loss.backward()

    with pytest.raises(FloatingPointError, match="diverged"):
        train()
    gc.collect()
    assert len(states) > 50
    assert [one for one in states if one() is not None] == []


def compare_cell(cell: Any, inputs: Any, state: Any, wanted: Any, **options: Any) -> None:
    """Compare the gradients of any cell with those of a plain loop."""
    outputs, _ = plain(cell, inputs, state, len(inputs))
    theirs = torch.autograd.grad(torch.stack([*map(loss, range(len(inputs)), outputs)]).sum(), wanted)
    result = bptt(cell, inputs, state, loss, plan=online(4), **options)
    assert_close(torch.autograd.grad(result.loss, wanted), theirs, relative=1e-9)


def test_a_variable_that_steps_count_in_is_a_part_of_the_state() -> None:
    net, inputs, state = begin()
    seen = [0.0]

    def cell(present: Any, x: Any) -> Any:
        seen[0] += 1
        (hidden, count), output = net(present, x)
        return (hidden * (1 + 0.001 * (seen[0] % 90)), count), output

    compare_cell(cell, inputs[:90], state, [inputs, *net.parameters()])
    assert seen == [180.0]


def test_steps_after_the_end_never_run() -> None:
    """Also not in the trial of the first steps."""
    net, inputs, state = begin()

    def cell(present: Any, x: Any) -> Any:
        assert int(present[1]) < 5, "the sequence has ended"
        return net(present, x)

    result = bptt(cell, inputs, state, loss, plan=online(2), until=ends_at(5))
    result.loss.backward()
    assert result.plan.steps == 5


def test_a_cell_that_runs_chunks_runs_step_by_step() -> None:
    """The sequence may end after any of them."""
    torch.manual_seed(3)
    cell = LIF(2, 6, dtype=torch.float64, threshold=0.3)
    inputs = torch.randn(STEPS, 3, 2, dtype=torch.float64)
    compare_cell(cell, list(inputs), cell.initial_state(3), list(cell.parameters()))


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"plan": None}, "plan: is missing, and so is memory"),
        ({"plan": ckptplan.Schedule(steps=1, actions=[])}, "plan: knows the number of its steps"),
        ({"until": 3}, "until: 3 cannot be called"),
        ({"compile": True}, "compile: needs a number of steps that is known beforehand"),
        ({"inputs": iter(())}, "inputs: have no steps"),
        ({"inputs": lambda *_: None, "until": None}, "until: is missing: these inputs do not end"),
    ],
)
def test_arguments_that_are_refused(change: dict[str, Any], message: str) -> None:
    net, inputs, state = begin()
    call: dict[str, Any] = {"inputs": inputs, "plan": online(3), "until": ends_at(9), **change}
    with pytest.raises(InputError, match=re.escape(message)):
        bptt(net, state=state, loss=loss, **call)
