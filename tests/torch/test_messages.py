"""Messages name what is wrong: the inputs, the state, or what changed since the forward pass."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

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
@ways
def test_an_empty_batch_has_gradients_of_zero(make: Callable[[], Any], way: str) -> None:
    (inputs, state), cell = data(), make()
    begin = state[:0].requires_grad_()
    result = bptt(cell, inputs[:, :0], begin, squares, **how(way))
    assert result.loss == 0
    assert gradients(result.loss, [begin])[0].shape == (0, 7)


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
    """By the message, or by a note if the batch, taken for time, is as long as the sequence."""
    inputs, state = torch.randn(STEPS, batch, 5), torch.zeros(batch, 7)
    with pytest.raises((InputError, AttributeError, TypeError)) as raised:
        run(make(), kind(inputs), state, way)
    notes = getattr(raised.value, "__notes__", ())
    assert "torch.stack makes one tensor of" in "".join([str(raised.value), *notes])


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
        (torch.Tensor.to_sparse, "sparse coo"),
        (lambda inputs: inputs[:, 0].to_sparse_csr(), "sparse csr"),
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
        with pytest.raises(InputError, match="inputs: hold a sparse coo tensor"):
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
def test_sparse_tensors_may_be_in_a_state_and_nested_ones_are_refused(way: str) -> None:
    inner, (inputs, state), sparse = torch.nn.GRUCell(5, 7), data(), torch.eye(7).to_sparse()

    def cell(given: Any, x: torch.Tensor) -> Any:
        hidden, odd = given
        hidden = inner(x, hidden) + 0.5 * (odd @ hidden.T).T
        return (hidden, odd), hidden

    parameters = list(inner.parameters())
    theirs = gradients(torch.stack(plain(cell, inputs, (state, sparse), STEPS)[0]).square().sum(), parameters)
    result = bptt(cell, inputs, (state, sparse), squares, **how(way))
    assert_close(gradients(result.loss, parameters), theirs, relative=1e-5)
    with pytest.raises(InputError, match="state: has a nested tensor"):
        bptt(cell, inputs, (state, torch.nested.nested_tensor([torch.eye(7)])), squares, **how(way))


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


@pytest.mark.parametrize("strategy", ["standard", "revolve"])
def test_a_tensor_that_a_partial_passes_on_is_refused(strategy: str) -> None:
    """Only base is right: a checkpoint keeps a partial by reference."""
    inner = torch.nn.GRUCell(5, 7)
    inputs, state = data()

    def cell(given: Any, x: torch.Tensor) -> Any:
        hidden = inner(x, given[1](given[0]))
        return (hidden, partial(torch.mul, hidden)), hidden

    with pytest.raises(InputError, match=r"the gradient of inner\.weight_ih differs"):
        bptt(cell, inputs, (state, partial(torch.mul, torch.ones(7))), squares, **how("plan", strategy))


# Between the forward and the backward pass


Change = Callable[[Any], object]


class Scaled(torch.nn.Module):
    """A cell that reads an attribute, and counts its calls."""

    def __init__(self) -> None:
        super().__init__()
        self.inner, self.scale, self.calls = torch.nn.Linear(12, 7), {"all": 1.0}, 0
        self.target = torch.zeros(7)

    def forward(self, state: torch.Tensor, x: torch.Tensor) -> Any:
        self.calls += 1
        state = self.inner(torch.cat([x, state * self.scale["all"]], dim=1)) - self.target
        return state, torch.tanh(state if self.training else 2 * state)


def replace_weight(cell: Scaled) -> None:
    cell.inner.weight = torch.nn.Parameter(cell.inner.weight.detach())


#: What may change between the passes: steps that run again find what they found in the forward pass.
CHANGES: dict[str, Change] = {
    "frozen": lambda cell: cell.inner.weight.requires_grad_(False),
    "replaced": replace_weight,
    "evaluated": lambda cell: cell.eval(),
    "an entry": lambda cell: cell.scale.update(all=2.0),
    "an attribute": lambda cell: setattr(cell, "scale", {"all": 2.0}),
    "cleared": lambda cell: cell.scale.clear(),
    "a new target": lambda cell: setattr(cell, "target", torch.ones(7)),
}


@pytest.mark.parametrize("strategy", ["base", "standard", "revolve"])
@pytest.mark.parametrize("change", CHANGES)
def test_changes_after_the_forward_pass_change_no_gradient(change: str, strategy: str) -> None:
    inputs, state = data()
    state.requires_grad_()
    found = []
    for planned in (True, False):
        torch.manual_seed(0)
        cell = Scaled()
        if planned:
            loss = bptt(cell, inputs, state, squares, **how("plan", strategy)).loss
        else:
            loss = torch.stack(plain(cell, inputs, state, STEPS)[0]).square().sum()
        wanted = [state, cell.inner.bias]
        CHANGES[change](cell)
        found.append(gradients(loss, wanted))
    assert_close(*found, relative=1e-5)


def write_by_numpy(cell: Scaled) -> None:
    numbers = cell.target.numpy()
    numbers += 1


@pytest.mark.parametrize("make", [Scaled, lambda: LIF(5, 7)])
@pytest.mark.parametrize(
    ("change", "name"),
    [
        (lambda cell: next(cell.parameters()).detach().mul_(2), "weight was written in place"),
        (lambda cell: cell.target.add_(1), r"cell\.target was written in place"),
        (write_by_numpy, r"cell\.target was written in place"),
    ],
)
def test_tensors_that_are_written_after_the_forward_pass_are_named(
    make: Any, change: Change, name: str
) -> None:
    """Numpy does not count changes of memory that it shares."""
    (inputs, state), cell = data(), make()
    if "target" in name and not isinstance(cell, Scaled):
        return
    result = bptt(cell, inputs, state, squares, **how("plan"))
    change(cell)
    with pytest.raises(RuntimeError, match=f"{name}.* between the forward and the backward pass"):
        result.loss.backward()


def test_a_backward_function_reads_what_it_finds_in_the_backward_pass() -> None:
    """As in a plain loop, though steps that run again read what they read in the forward pass."""
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
    found = []
    for planned in (True, False):
        surrogate["slope"] = 1.0
        begin = (state, torch.tensor(0))
        if planned:
            loss = bptt(cell, inputs, begin, squares, **how("plan", "revolve")).loss
        else:
            loss = torch.stack(plain(cell, inputs, begin, STEPS)[0]).square().sum()
        surrogate["slope"] = 5.0
        found.append(gradients(loss, list(inner.parameters())))
    assert_close(*found, relative=1e-5)


@cells
def test_a_module_may_be_frozen_for_the_forward_pass_alone(make: Callable[[], Any]) -> None:
    """As the discriminator of a GAN; it gets no gradient."""
    (inputs, state), cell = data(), make()
    state.requires_grad_()
    head = torch.nn.Linear(7, 1)
    found = []
    for planned in (True, False):
        head.requires_grad_(False)
        if planned:
            loss = bptt(cell, inputs, state, lambda _, one: head(one).sum(), **how("plan")).loss
        else:
            loss = head(torch.stack(plain(cell, inputs, state, STEPS)[0])).sum()
        head.requires_grad_()
        found.append(gradients(loss, [state, head.weight]))
    assert_close(*found, relative=1e-5)


def test_what_steps_leave_outside_stays_after_the_backward_pass() -> None:
    (inputs, state), cell = data(), Scaled()
    result = bptt(cell, inputs, state, squares, **how("plan"))
    cell.calls, cell.scale["other"] = 0, 3.0
    result.loss.backward()
    assert (cell.calls, cell.scale["other"]) == (0, 3.0)


def test_a_second_backward_needs_another_forward_pass() -> None:
    inputs, state = data()
    outputs, _ = wrap(torch.nn.GRUCell(5, 7), memory="10 MB")(inputs, state)
    outputs.sum().backward()
    with pytest.raises(RuntimeError, match=r"second time.* whatever retain_graph says\. Run the forward pass"):
        outputs.sum().backward()
