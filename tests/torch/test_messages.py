"""Messages name what is wrong with inputs or a state, and what was written since the forward pass."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

import pytest
import torch

from ckptplan import InputError
from ckptplan.torch import LIF, bptt, plan_for, wrap
from ckptplan.torch.adapters import TorchCell
from tests.torch.support import gradients, gru
from tests.torch.tables import STEPS, Call, Row, Table, plan, squares

pytestmark = pytest.mark.filterwarnings(
    "ignore:The PyTorch API of nested tensors", "ignore:Sparse CSR tensor support"
)
BOTH, SOME = ("revolve", "memory"), ("base", "standard", "revolve")
CELLS: dict[str, Callable[[], Any]] = {
    "GRU": lambda: TorchCell(torch.nn.GRUCell(5, 7)),
    "LIF": lambda: LIF(5, 7),
}
cells = pytest.mark.parametrize("make", CELLS.values(), ids=CELLS)
TABLE = Table()


def inputs() -> torch.Tensor:
    """Return inputs of batch 3, the same each time."""
    return torch.randn(STEPS, 3, 5, generator=torch.Generator().manual_seed(0))


def call(cell: Any, **options: Any) -> Call:
    """Return a call in single precision."""
    return Call(cell=cell, **{"inputs": inputs(), "state": torch.zeros(3, 7), "relative": 1e-5, **options})


@pytest.mark.parametrize("row", TABLE)
def test_a_call_is_right_or_says_what_is_wrong(row: Row) -> None:
    row.check()


# Inputs


def change_inputs(make: Callable[[], Any], change: Callable[[torch.Tensor], Any]) -> Call:
    """Return a call with other inputs."""
    return call(make(), inputs=change(inputs()))


def train_inputs_alone(make: Callable[[], Any]) -> Call:
    """Return a call whose parameters are frozen."""
    cell = make()
    (cell if isinstance(cell, torch.nn.Module) else cell.module).requires_grad_(False)
    return call(cell, inputs=inputs().requires_grad_())


for _kind, _make in CELLS.items():
    _empty = partial(change_inputs, _make, lambda given: given[:0])
    TABLE.add(f"an empty sequence of {_kind}", _empty, "inputs: hold no time step", ways=["memory"])
    TABLE.add(f"inputs alone of {_kind}", partial(train_inputs_alone, _make), ways=["memory"])

_ODD_INPUTS: list[tuple[str, Callable[[torch.Tensor], Any]]] = [
    ("sparse coo", torch.Tensor.to_sparse),
    ("sparse csr", lambda given: given[:, 0].to_sparse_csr()),
    ("nested", lambda given: torch.nested.nested_tensor(list(given))),
    ("nested", lambda given: torch.nested.nested_tensor(list(given), layout=torch.jagged)),
]
for _kind, _change in _ODD_INPUTS:
    _odd = partial(change_inputs, CELLS["GRU"], _change)
    TABLE.add(f"inputs that are {_kind}", _odd, f"inputs: hold a {_kind} tensor", ways=BOTH)


@TABLE.row("inputs: hold a sparse coo tensor")
def made_inputs_are_sparse() -> Call:
    return call(CELLS["GRU"](), inputs=lambda start, stop: inputs()[start:stop].to_sparse())


@TABLE.row(ways=["memory"])
def a_cell_may_take_a_list() -> Call:
    inner = torch.nn.GRUCell(5, 7)

    def cell(state: torch.Tensor, x: Any) -> Any:
        state = inner(x[0] + x[1] + x[2], state)
        return state, state

    return call(cell, inputs=[inputs()] * 3, parameters=list(inner.parameters()))


@TABLE.row("nothing", ways=["memory"], error=AttributeError)
def errors_of_a_cell_that_takes_a_list_stay_what_they_are() -> Call:
    return call(lambda state, x: (state.nothing, x), inputs=[inputs()] * 3)


@cells
@pytest.mark.parametrize("options", [{"plan": plan("revolve")}, {"memory": "10 MB"}], ids=["plan", "memory"])
def test_an_empty_batch_has_gradients_of_zero(make: Callable[[], Any], options: dict[str, Any]) -> None:
    state = torch.zeros(0, 7, requires_grad=True)
    result = bptt(make(), inputs()[:, :0], state, squares, **options)
    assert result.loss == 0
    assert gradients(result.loss, [state])[0].shape == (0, 7)


@cells
@pytest.mark.parametrize("kind", [list, tuple])
@pytest.mark.parametrize("batch", [3, STEPS])
@pytest.mark.parametrize("options", [{"plan": plan("revolve")}, {"memory": "10 MB"}], ids=["plan", "memory"])
def test_a_list_of_time_steps_is_named(
    make: Callable[[], Any], kind: type, batch: int, options: dict[str, Any]
) -> None:
    """By the message, or by a note if the batch, taken for time, is as long as the sequence."""
    with pytest.raises((InputError, AttributeError, TypeError)) as raised:
        bptt(make(), kind(torch.randn(STEPS, batch, 5)), torch.zeros(batch, 7), squares, **options)
    notes = getattr(raised.value, "__notes__", ())
    assert "torch.stack makes one tensor of" in "".join([str(raised.value), *notes])


@cells
def test_nothing_that_requires_a_gradient_is_named(make: Callable[[], Any]) -> None:
    frozen = train_inputs_alone(make)
    with pytest.raises(InputError, match=r"nothing that requires a gradient.*inputs or a state"):
        plan_for(frozen.cell, inputs(), frozen.state, squares, memory="10 MB")


# States


def with_odd_state(odd: torch.Tensor) -> Call:
    """Return a call whose state has a matrix that steps pass on."""
    inner = torch.nn.GRUCell(5, 7)

    def cell(state: Any, x: torch.Tensor) -> Any:
        hidden, matrix = state
        hidden = inner(x, hidden) + 0.5 * (matrix @ hidden.T).T
        return (hidden, matrix), hidden

    return call(cell, state=(torch.zeros(3, 7), odd), parameters=list(inner.parameters()))


TABLE.add("a sparse tensor in a state", lambda: with_odd_state(torch.eye(7).to_sparse()), ways=BOTH)
TABLE.add(
    "a nested tensor in a state",
    lambda: with_odd_state(torch.nested.nested_tensor([torch.eye(7)])),
    "state: has a nested tensor",
    ways=BOTH,
)


@TABLE.row(ways=SOME)
def a_partial_may_hold_a_constant_tensor() -> Call:
    inner, parameters = gru()
    weight = torch.randn(7).double().requires_grad_()

    def cell(state: Any, x: torch.Tensor) -> Any:
        hidden, scale = state
        hidden, _ = inner(scale(hidden), x)
        # Another object each time.
        return (hidden, partial(torch.mul, *scale.args)), hidden

    state = torch.zeros(3, 7).double(), partial(torch.mul, weight)
    return Call(cell=cell, inputs=inputs().double(), state=state, parameters=[weight, *parameters])


@TABLE.row(r"the gradient of inner\.weight_ih differs", ways=["standard", "revolve"])
def a_partial_passes_a_tensor_on() -> Call:
    """Only base is right: a checkpoint keeps a partial by reference."""
    inner = torch.nn.GRUCell(5, 7)

    def cell(state: Any, x: torch.Tensor) -> Any:
        hidden = inner(x, state[1](state[0]))
        return (hidden, partial(torch.mul, hidden)), hidden

    return call(cell, state=(torch.zeros(3, 7), partial(torch.mul, torch.ones(7))))


# Between the forward and the backward pass


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


def change_between(
    make: Callable[[], Any], change: Callable[[Any], object], *, in_closure: bool = False
) -> Call:
    """Return a call of a cell that something changes between the passes."""
    net = make()
    behind = lambda *given: net(*given)  # noqa: E731, PLW0108 - modules are found behind it
    return call(
        behind if in_closure else net,
        state=torch.zeros(3, 7, requires_grad=True),
        parameters=list(net.parameters()),
        between=lambda: change(net),
    )


def replace_weight(cell: Scaled) -> None:
    """Give a cell another weight."""
    cell.inner.weight = torch.nn.Parameter(cell.inner.weight.detach())


def write_by_numpy(cell: Scaled) -> None:
    """Write memory that a tensor shares: PyTorch does not count such changes."""
    numbers = cell.target.numpy()
    numbers += 1


def write_weight(cell: torch.nn.Module) -> None:
    """Write a parameter in place."""
    next(cell.parameters()).detach().mul_(2)


#: What may change between the passes: steps that run again find what they found in the forward pass.
_CHANGES: dict[str, Callable[[Any], object]] = {
    "frozen": lambda cell: cell.inner.weight.requires_grad_(False),
    "replaced": replace_weight,
    "evaluated": lambda cell: cell.eval(),
    "an entry": lambda cell: cell.scale.update(all=2.0),
    "an attribute": lambda cell: setattr(cell, "scale", {"all": 2.0}),
    "cleared": lambda cell: cell.scale.clear(),
    "a new target": lambda cell: setattr(cell, "target", torch.ones(7)),
}
for _name, _change_cell in _CHANGES.items():
    TABLE.add(f"{_name} between the passes", partial(change_between, Scaled, _change_cell), ways=SOME)
TABLE.add("evaluated, in a closure", partial(change_between, Scaled, _CHANGES["evaluated"], in_closure=True))

_WRITTEN: list[tuple[str, Callable[[], Any], Callable[[Any], object]]] = [
    ("weight", Scaled, write_weight),
    ("weight", CELLS["LIF"], write_weight),
    (r"cell\.target", Scaled, lambda cell: cell.target.add_(1)),
    (r"cell\.target", Scaled, write_by_numpy),
    (r"net\.inner\.weight", Scaled, write_weight),
]
for _number, (_name, _make, _change_cell) in enumerate(_WRITTEN):
    TABLE.add(
        f"{_name} written {_number}",
        partial(change_between, _make, _change_cell, in_closure="net" in _name),
        f"{_name} was written in place.* between the forward and the backward pass",
        error=RuntimeError,
    )


@TABLE.row()
def a_backward_function_reads_what_it_finds_in_the_backward_pass() -> Call:
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

    return call(
        cell,
        state=(torch.zeros(3, 7), torch.tensor(0)),
        parameters=list(inner.parameters()),
        between=lambda: surrogate.update(slope=5.0),
    )


def freeze_for_the_forward_pass(make: Callable[[], Any]) -> Call:
    """As the discriminator of a GAN; it gets no gradient."""
    head = torch.nn.Linear(7, 1).requires_grad_(False)
    return call(
        make(),
        state=torch.zeros(3, 7, requires_grad=True),
        loss=lambda _, output: head(output).sum(),
        parameters=[head.weight],
        between=head.requires_grad_,
    )


for _kind, _make in CELLS.items():
    TABLE.add(f"a head of {_kind} is frozen", partial(freeze_for_the_forward_pass, _make))


def test_what_steps_leave_outside_stays_after_the_backward_pass() -> None:
    cell = Scaled()
    result = bptt(cell, inputs(), torch.zeros(3, 7), squares, plan=plan("revolve"))
    cell.calls, cell.scale["other"] = 0, 3.0
    result.loss.backward()
    assert (cell.calls, cell.scale["other"]) == (0, 3.0)


def test_a_second_backward_needs_another_forward_pass() -> None:
    outputs, _ = wrap(torch.nn.GRUCell(5, 7), memory="10 MB")(inputs(), torch.zeros(3, 7))
    outputs.sum().backward()
    with pytest.raises(RuntimeError, match=r"second time.* whatever retain_graph says\. Run the forward pass"):
        outputs.sum().backward()
