"""Messages name what is wrong: the inputs, the state, or what changed since the forward pass."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

import numpy as np
import pytest
import torch

from ckptplan import InputError
from ckptplan.torch import LIF, bptt, plan_for, wrap
from ckptplan.torch.adapters import TorchCell
from tests.torch.support import assert_close, gradients, plain, plan_of

STEPS = 12
ways = pytest.mark.parametrize("way", ["plan", "memory"])
cells = pytest.mark.parametrize("make", [lambda: TorchCell(torch.nn.GRUCell(5, 7)), lambda: LIF(5, 7)])


def squares(_: int, output: torch.Tensor) -> torch.Tensor:
    return output.square().sum()


def how(way: str, strategy: str = "revolve") -> dict[str, Any]:
    states = 100 if strategy == "base" else 12
    return {"plan": plan_of(STEPS, strategy, states=states)} if way == "plan" else {"memory": "10 MB"}


def run(cell: Any, inputs: Any, state: Any, way: str = "plan") -> None:
    bptt(cell, inputs, state, squares, **how(way)).loss.backward()


def data() -> tuple[torch.Tensor, torch.Tensor]:
    torch.manual_seed(0)
    return torch.randn(STEPS, 3, 5), torch.zeros(3, 7)


# Inputs


@cells
def test_an_empty_batch_is_named(make: Callable[[], Any]) -> None:
    inputs, state = data()
    with pytest.raises(InputError, match=r"inputs: have no elements: the shape of a step is \(0, 5\)"):
        run(make(), inputs[:, :0], state[:0], "memory")


@cells
def test_an_empty_sequence_is_named(make: Callable[[], Any]) -> None:
    inputs, state = data()
    with pytest.raises(InputError, match="inputs: hold no time step"):
        run(make(), inputs[:0], state, "memory")


@cells
@pytest.mark.parametrize("kind", [list, tuple])
@pytest.mark.parametrize("batch", [3, STEPS])
@ways
def test_a_list_of_time_steps_is_named(make: Callable[[], Any], kind: type, batch: int, way: str) -> None:
    """Also if the batch, taken for time, is as long as the sequence."""
    inputs, state = torch.randn(STEPS, batch, 5), torch.zeros(batch, 7)
    with pytest.raises(InputError, match=r"inputs: .* of 12 tensors.* is a nest of 12 inputs.*torch.stack"):
        run(make(), kind(inputs), state, way)


def test_a_cell_may_take_a_list() -> None:
    """And errors of its own stay what they are."""
    inputs, state = data()
    inner = torch.nn.GRUCell(5, 7)

    def cell(one: torch.Tensor, x: Any) -> Any:
        one = inner(x[0] + x[1] + x[2], one)
        return one, one

    run(cell, [inputs, inputs, inputs], state, "memory")

    def failing(one: Any, x: Any) -> Any:
        return one.nothing, x

    with pytest.raises(AttributeError, match="nothing"):
        run(failing, [inputs, inputs, inputs], state, "memory")


@pytest.mark.filterwarnings("ignore:The PyTorch API of nested tensors", "ignore:Sparse CSR tensor support")
@ways
@pytest.mark.parametrize(
    ("change", "kind"),
    [
        (torch.Tensor.to_sparse, "sparse_coo"),
        (lambda inputs: inputs[:, 0].to_sparse_csr(), "sparse_csr"),
        (lambda inputs: torch.nested.nested_tensor(list(inputs)), "nested"),
        (lambda inputs: torch.nested.nested_tensor(list(inputs), layout=torch.jagged), "nested"),
    ],
)
def test_sparse_and_nested_inputs_are_refused(change: Any, kind: str, way: str) -> None:
    inputs, state = data()
    cell = TorchCell(torch.nn.GRUCell(5, 7))
    with pytest.raises(InputError, match=f"inputs: hold a {kind} tensor"):
        run(cell, change(inputs), state, way)
    if way == "plan":
        with pytest.raises(InputError, match="inputs: hold a sparse_coo tensor"):
            run(cell, lambda start, stop: inputs[start:stop].to_sparse(), state)


@cells
def test_inputs_alone_may_need_gradients(make: Callable[[], Any]) -> None:
    cell = make()
    for one in cell.parameters() if isinstance(cell, torch.nn.Module) else cell.module.parameters():
        one.requires_grad = False
    inputs, state = data()
    inputs.requires_grad_()
    outputs, _ = plain(cell, inputs, state, STEPS)
    theirs = gradients(torch.stack(outputs).square().sum(), [inputs])
    result = bptt(cell, inputs, state, squares, memory="10 MB")
    assert_close(gradients(result.loss, [inputs]), theirs, relative=1e-5)
    with pytest.raises(InputError, match=r"nothing that requires a gradient.*inputs or a state"):
        plan_for(cell, inputs.detach(), state, squares, memory="10 MB")


# States


@pytest.mark.filterwarnings("ignore:The PyTorch API of nested tensors", "ignore:Sparse CSR tensor support")
@ways
@pytest.mark.parametrize("kind", ["sparse_coo", "nested"])
def test_sparse_and_nested_states_are_refused(kind: str, way: str) -> None:
    inputs, state = data()
    odd = state.to_sparse() if kind == "sparse_coo" else torch.nested.nested_tensor(list(state))
    with pytest.raises(InputError, match=rf"state: has a {kind} tensor as state\[1\]"):
        run(lambda one, x: (one, x), inputs, (state, odd), way)


@ways
@pytest.mark.parametrize(
    ("odd", "message"),
    [
        (partial(max, [1, 2]), r"state: has list as state\[1\].args\[0\]"),
        (partial(max, key={}), r"state: has dict as state\[1\].keywords\['key'\]"),
        (partial(max, partial(min, (1, object()))), r"state: has object as state\[1\].args\[0\].args\[0\]"),
    ],
)
def test_what_a_partial_in_the_state_holds_is_named(odd: Any, message: str, way: str) -> None:
    inputs, state = data()
    with pytest.raises(InputError, match=message):
        run(lambda one, x: (one, x), inputs, (state, odd), way)


@pytest.mark.parametrize("strategy", ["base", "standard", "revolve"])
def test_a_partial_may_hold_a_constant_tensor(strategy: str) -> None:
    inner, weight = torch.nn.GRUCell(5, 7).double(), torch.randn(7).double().requires_grad_()
    inputs, state = (one.double() for one in data())

    def cell(given: Any, x: torch.Tensor) -> Any:
        hidden, scale = given
        hidden = inner(x, scale(hidden))
        # Another object each time.
        return (hidden, partial(torch.mul, *scale.args)), hidden

    begin, wanted = (state, partial(torch.mul, weight)), [weight, *inner.parameters()]
    outputs, _ = plain(cell, inputs, begin, STEPS)
    theirs = gradients(torch.stack(outputs).square().sum(), wanted)
    result = bptt(cell, inputs, begin, squares, plan=how("plan", strategy)["plan"])
    assert_close(gradients(result.loss, wanted), theirs, relative=1e-12)


@pytest.mark.parametrize("strategy", ["base", "standard", "revolve"])
def test_a_tensor_that_a_partial_passes_on_is_refused(strategy: str) -> None:
    inner = torch.nn.GRUCell(5, 7)
    inputs, state = data()

    def cell(given: Any, x: torch.Tensor) -> Any:
        hidden = inner(x, given[1](given[0]))
        return (hidden, partial(torch.mul, hidden)), hidden

    with pytest.raises(InputError, match=r"computed outside.*the tensor in the state"):
        bptt(cell, inputs, (state, partial(torch.mul, torch.ones(7))), squares, **how("plan", strategy))


# Between the forward and the backward pass


def between(change: Callable[[torch.nn.Module], object], strategy: str, cell: torch.nn.Module) -> None:
    inputs, state = data()
    result = bptt(cell, inputs, state, squares, **how("plan", strategy))
    change(cell)
    result.loss.backward()


@pytest.mark.parametrize("strategy", ["base", "revolve"])
@pytest.mark.parametrize(
    ("change", "message"),
    [
        (lambda cell: cell.weight.requires_grad_(False), "weight was frozen"),
        (lambda cell: cell.double(), "weight was converted"),
        (lambda cell: cell.weight.detach().mul_(2), "weight was changed in place"),
        (lambda cell: setattr(cell, "weight", torch.nn.Parameter(cell.weight.detach())), "weight was replaced"),
        (lambda cell: cell.eval(), r"train\(\) or eval\(\) was called"),
    ],
)
def test_what_changed_of_a_parameter_is_said(change: Any, message: str, strategy: str) -> None:
    with pytest.raises(RuntimeError, match=f"{message}.* between the forward and the backward pass"):
        between(change, strategy, LIF(5, 7))


@pytest.mark.parametrize("strategy", ["base", "revolve"])
@pytest.mark.parametrize("where", ["cell", "loss"])
def test_so_it_is_for_parameters_of_functions(where: str, strategy: str) -> None:
    scale = torch.ones(7, requires_grad=True)
    inner = TorchCell(torch.nn.GRUCell(5, 7))
    inputs, state = data()

    def cell(one: torch.Tensor, x: torch.Tensor) -> Any:
        return inner(one * scale, x) if where == "cell" else inner(one, x)

    def loss(_: int, output: torch.Tensor) -> torch.Tensor:
        return (output * scale).sum() if where == "loss" else output.sum()

    result = bptt(cell, inputs, state, loss, **how("plan", strategy))
    scale.requires_grad = False
    with pytest.raises(RuntimeError, match=r"scale was frozen .* between the forward and the backward pass"):
        result.loss.backward()


class Scaled(torch.nn.Module):
    """A cell that reads an attribute, and counts its calls."""

    def __init__(self) -> None:
        super().__init__()
        self.inner, self.scale, self.calls = torch.nn.GRUCell(5, 7), {"all": 1.0}, 0

    def forward(self, state: torch.Tensor, x: torch.Tensor) -> Any:
        self.calls += 1
        state = self.inner(x, state * self.scale["all"])
        return state, state


@pytest.mark.parametrize(
    ("change", "name"),
    [
        (lambda cell: cell.scale.update(all=2.0), r"cell.scale\['all'\]"),
        (lambda cell: setattr(cell, "scale", {"all": 2.0}), "cell.scale"),
    ],
)
def test_whatever_changed_is_named_where_steps_differ(change: Any, name: str) -> None:
    with pytest.raises(InputError, match=rf"{name} changed between the forward and the backward pass"):
        between(change, "revolve", Scaled())


def test_what_lets_the_cell_fail_is_named() -> None:
    cell = Scaled()
    with pytest.raises(
        InputError, match=r"cell.scale\['all'\] changed between the forward and the backward pass"
    ):
        between(lambda _: cell.scale.clear(), "revolve", cell)


@pytest.mark.parametrize("change", ["by PyTorch", "by numpy"])
def test_a_target_that_changed_is_named(change: str) -> None:
    """Numpy does not count changes of memory that it shares."""
    inputs, state = data()
    numbers = np.zeros(7, np.float32)
    target = torch.from_numpy(numbers)
    cell = TorchCell(torch.nn.GRUCell(5, 7))
    result = bptt(cell, inputs, state, lambda _, one: (one - target).square().sum(), **how("plan"))
    if change == "by numpy":
        numbers += 1
    else:
        target.add_(1)
    with pytest.raises(InputError, match="target changed between the forward and the backward pass"):
        result.loss.backward()


def test_later_steps_that_run_again_are_tried_if_something_changed() -> None:
    """Here only the first ones read it, in their backward pass, so that no value tells."""
    inner, surrogate = torch.nn.GRUCell(5, 7), {"slope": 1.0}

    class Gate(torch.autograd.Function):
        @staticmethod
        def forward(ctx: Any, state: torch.Tensor, step: int) -> torch.Tensor:
            ctx.step = step
            return state.clone()

        @staticmethod
        def backward(ctx: Any, gradient: torch.Tensor) -> Any:
            return gradient * surrogate["slope"] if ctx.step < 10 else gradient, None

    def cell(state: Any, x: torch.Tensor) -> Any:
        last, step = state
        after = Gate.apply(inner(x, last), int(step))  # type: ignore[no-untyped-call]
        return (after, step + 1), after

    inputs, state = data()
    result = bptt(cell, inputs, (state, torch.tensor(0)), squares, **how("plan", "revolve"))
    surrogate["slope"] = 5.0
    with pytest.raises(InputError, match=r"surrogate\['slope'\] changed between the forward and the backward"):
        result.loss.backward()


@cells
def test_a_parameter_that_is_trained_since_is_named(make: Callable[[], Any]) -> None:
    """As the discriminator of a GAN that is frozen for the forward pass alone."""
    inputs, state = data()
    head = torch.nn.Linear(7, 1).requires_grad_(False)
    result = bptt(make(), inputs, state, lambda _, one: head(one).sum(), **how("plan"))
    head.requires_grad_()
    with pytest.raises(
        InputError, match=r"weight.requires_grad changed between the forward and the backward pass"
    ):
        result.loss.backward()


def test_what_steps_do_not_read_may_change() -> None:
    cell = Scaled()

    def change(_: object) -> None:
        cell.calls = 0
        cell.scale["other"] = 3.0

    between(change, "revolve", cell)


def test_a_second_backward_needs_another_forward_pass() -> None:
    inputs, state = data()
    outputs, _ = wrap(torch.nn.GRUCell(5, 7), memory="10 MB")(inputs, state)
    outputs.sum().backward()
    with pytest.raises(
        RuntimeError, match=r"run the forward pass again .*the wrapped network.* whatever retain_graph"
    ):
        outputs.sum().backward()
