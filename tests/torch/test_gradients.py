"""Law 5: gradients of any executed plan equal those of plain backpropagation through time."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch.utils._python_dispatch import TorchDispatchMode

from ckptplan import Infeasible
from ckptplan.planning.playback import make_schedule
from ckptplan.strategies.registry import all_strategies
from ckptplan.torch import bptt, unroll
from ckptplan.torch.device.meters import LiveBytes
from tests.torch.support import assert_close, gradients, gru, job, plain, plan_of


@pytest.mark.parametrize("strategy", all_strategies())
@given(
    steps=st.integers(1, 40),
    states=st.integers(3, 60),
    alpha=st.integers(1, 4),
    seed=st.integers(0, 99),
    chunked=st.booleans(),
)
@settings(max_examples=8)
def test_gradients_equal_those_of_plain_bptt(
    strategy: str, steps: int, states: int, alpha: int, seed: int, chunked: bool
) -> None:
    """Of parameters, of another module in the loss, of inputs and of the initial state; in fp64."""
    try:
        plan = plan_of(steps, strategy, states=states, alpha=alpha)
    except Infeasible:
        return
    cell, parameters = gru(seed)
    head = torch.nn.Linear(7, 2).double()
    inputs, state = job(steps, seed=seed)
    wanted = [state, inputs, *parameters, *head.parameters()]

    def loss(step: int, output: torch.Tensor) -> Any:
        return (step + 1) * head(output).square().sum()

    def chunk_loss(start: int, outputs: torch.Tensor) -> Any:
        weights = torch.arange(start + 1, start + 1 + len(outputs), dtype=outputs.dtype)
        return (weights * head(outputs).square().sum(dim=(1, 2))).sum()

    outputs, final = plain(cell, inputs, state, steps)
    expected = sum((loss(step, one) for step, one in enumerate(outputs)), final.sum())
    theirs = gradients(expected, wanted)
    given_loss: dict[str, Any] = {"chunk_loss": chunk_loss} if chunked else {"loss": loss}
    result = bptt(cell, inputs, state, plan=plan, final_loss=torch.sum, **given_loss)
    assert result.loss.item() == pytest.approx(expected.item(), rel=1e-12)
    assert_close(gradients(result.loss, wanted), theirs, relative=1e-12)
    stacked, last = unroll(cell, inputs, state, plan=plan)
    assert torch.equal(stacked, torch.stack(outputs))
    assert torch.equal(last, final)
    ours = sum((loss(step, one) for step, one in enumerate(stacked)), last.sum())
    assert_close(gradients(ours, wanted), theirs, relative=1e-12)


@pytest.mark.parametrize("strategy", ["standard", "double", "optimal", "revolve"])
def test_in_single_precision(strategy: str) -> None:
    cell, parameters = gru(dtype=torch.float32)
    inputs, state = job(64, dtype=torch.float32)
    wanted = [state, inputs, *parameters]
    outputs, _ = plain(cell, inputs, state, 64)
    theirs = gradients(torch.stack(outputs).square().sum(), wanted)
    result = bptt(
        cell, inputs, state, lambda _, output: output.square().sum(), plan=plan_of(64, strategy, states=30)
    )
    assert_close(gradients(result.loss, wanted), theirs, relative=1e-5)


@pytest.mark.parametrize("strategy", ["base", "standard", "double", "revolve"])
def test_a_cell_may_enter_autocast_by_itself(strategy: str) -> None:
    """Its casts are made anew in each step, whether the step runs for the first time or again."""
    torch.manual_seed(0)
    module = torch.nn.GRUCell(5, 7)

    def cell(state: torch.Tensor, x: torch.Tensor) -> Any:
        with torch.autocast("cpu", dtype=torch.bfloat16):
            state = module(x, state)
        state = state.float()
        return state, state

    inputs, state = job(24, dtype=torch.float32)
    outputs, _ = plain(cell, inputs, state, 24)
    theirs = torch.stack([one.square().sum() for one in outputs]).sum()
    plan = plan_of(24, strategy, states=1000 if strategy == "base" else 16)
    ours = bptt(cell, inputs, state, lambda _, one: one.square().sum(), plan=plan).loss
    wanted = list(module.parameters())
    assert_close(gradients(ours, wanted), gradients(theirs, wanted), relative=1e-5)


@pytest.mark.parametrize("strategy", ["base", "standard", "double", "revolve"])
def test_a_cell_may_leave_autocast_by_itself(strategy: str) -> None:
    """Its gradients have the precision of its steps, as those of a plain loop outside of autocast."""
    torch.manual_seed(0)
    module = torch.nn.GRUCell(5, 7)

    def cell(state: torch.Tensor, x: torch.Tensor) -> Any:
        with torch.autocast("cpu", enabled=False):
            state = module(x, state)
        return state, state

    inputs, state = job(24, dtype=torch.float32)
    plan = plan_of(24, strategy, states=1000 if strategy == "base" else 16)
    with torch.autocast("cpu", dtype=torch.bfloat16):
        outputs, _ = plain(cell, inputs, state, 24)
        theirs = torch.stack([one.square().sum() for one in outputs]).sum()
        ours = bptt(cell, inputs, state, lambda _, one: one.square().sum(), plan=plan).loss
    wanted = list(module.parameters())
    assert_close(gradients(ours, wanted), gradients(theirs, wanted), relative=1e-5)


class Solved(torch.autograd.Function):
    """tanh(w x), whose backward pass holds another one, as that of an implicit layer."""

    @staticmethod
    def forward(ctx: Any, x: torch.Tensor, weight: torch.Tensor) -> torch.Tensor:
        """Return tanh(w x)."""
        ctx.save_for_backward(x)
        ctx.weight = weight
        return torch.tanh(weight * x)

    @staticmethod
    def backward(ctx: Any, gradient: torch.Tensor) -> Any:
        """Return the gradients by autograd, of the parameter itself."""
        (x,) = ctx.saved_tensors
        with torch.enable_grad():
            x = x.detach().requires_grad_()
            return torch.autograd.grad(torch.tanh(ctx.weight * x), [x, ctx.weight], gradient)


@pytest.mark.parametrize("strategy", ["base", "standard", "revolve"])
def test_a_backward_pass_within_another_one_gets_its_own_gradients(strategy: str) -> None:
    """Gradients of parameters are added up as they come; those of an inner pass are not among them."""
    torch.manual_seed(0)
    weight, bias = (torch.randn(7).double().requires_grad_() for _ in range(2))

    def cell(state: torch.Tensor, x: torch.Tensor) -> Any:
        state = Solved.apply(state + x[:, :1], weight) + bias * weight  # type: ignore[no-untyped-call]
        return state, state

    inputs, state = job(24)
    wanted = [weight, bias, state]
    theirs = gradients(torch.stack(plain(cell, inputs, state, 24)[0]).square().sum(), wanted)
    plan = plan_of(24, strategy, states=60 if strategy == "base" else 14)
    result = bptt(cell, inputs, state, lambda _, h: h.square().sum(), plan=plan)
    assert_close(gradients(result.loss, wanted), theirs, relative=1e-12)


def test_one_gradient_of_a_parameter_is_alive_beside_the_sums() -> None:
    """Steps are reversed one at a time here: each parameter is added to its sum before the next one comes."""
    torch.manual_seed(0)
    layers = torch.nn.Sequential(*(torch.nn.Linear(128, 128, bias=False) for _ in range(8)))

    def cell(state: torch.Tensor, x: torch.Tensor) -> Any:
        state = torch.tanh(layers(state) + x)
        return state, state

    plan = make_schedule("revolve", steps=12, chunk_size=1, nb_local=3)
    inputs = torch.randn(12, 1, 128)
    for _ in range(2):
        with LiveBytes() as live:
            bptt(cell, inputs, torch.zeros(1, 128), lambda _, h: h.sum(), plan=plan).loss.backward()
        layers.zero_grad()
    size = 4 * 128 * 128
    assert (8 + 1) * size < live.peak < (8 + 3) * size


class Watching(TorchDispatchMode):
    """Sees each operation."""

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        return func(*args, **(kwargs or {}))


@pytest.mark.parametrize("steps", [2, 3, 6])
def test_gradients_are_the_same_while_something_watches_operations(steps: int) -> None:
    """A mode makes autograd add out of place: sums may come to lie where others did, and count all the same."""
    for size in range(1001, 1021):
        cell, parameters = gru(seed=size)
        shift = torch.nn.Parameter(torch.ones(size, dtype=torch.float64))

        def shifted(state: torch.Tensor, x: torch.Tensor, *, shift: Any = shift, cell: Any = cell) -> Any:
            return cell(state, x + shift.mean())

        inputs, state = job(steps)
        wanted = [shift, *parameters]
        expected = gradients(plain(shifted, inputs, state, steps)[1].sum(), wanted)
        with Watching():  # type: ignore[no-untyped-call]
            _, final = unroll(shifted, inputs, state, plan=plan_of(steps, "base", states=100, alpha=1))
            found = gradients(final.sum(), wanted)
        assert_close(found, expected, relative=1e-12)


@pytest.mark.filterwarnings("ignore:`torch.jit")
def test_a_step_may_use_forward_mode_inside() -> None:
    """What it keeps has zeros without memory among it."""
    torch.manual_seed(0)
    inner = torch.nn.GRUCell(5, 7).double()

    def cell(state: torch.Tensor, x: torch.Tensor) -> Any:
        pair: Any = torch.func.jvp(lambda one: inner(x, one), (state,), (torch.ones_like(state),))
        after, moved = pair
        return (state + after) / 2, moved

    inputs, state = job(12)
    wanted = [inputs, *inner.parameters()]
    result = bptt(cell, inputs, state, lambda _, output: output.square().sum(), memory="1 MB")
    outputs, _ = plain(cell, inputs, state, 12)
    theirs = torch.stack(outputs).square().sum()
    assert_close(gradients(result.loss, wanted), gradients(theirs, wanted), relative=1e-9)


@pytest.mark.parametrize("strategy", ["standard", "double"])
def test_losses_may_be_less_precise_than_parameters_and_states_sparse(strategy: str) -> None:
    cell, wanted = gru()
    inputs, state = job(24)

    def step(given: Any, x: torch.Tensor) -> Any:
        hidden, _ = cell(given.to_dense(), x)
        return hidden.to_sparse(), hidden.float()

    def loss(_: int, output: torch.Tensor) -> torch.Tensor:
        return output.square().mean()

    outputs, _ = plain(step, inputs, state.detach().to_sparse(), 24)
    theirs = gradients(torch.stack([loss(0, output) for output in outputs]).sum(), wanted)
    result = bptt(step, inputs, state.detach().to_sparse(), loss, plan=plan_of(24, strategy, states=14))
    assert_close(gradients(result.loss, wanted), theirs, relative=1e-5)


def test_sparse_gradients_stay_sparse() -> None:
    """As in plain backpropagation: some optimizers take no others."""
    table, cell = torch.nn.Embedding(20, 5, sparse=True).double(), torch.nn.RNNCell(5, 7).double()
    inputs, state = torch.randint(0, 20, (12, 3)), torch.zeros(3, 7, dtype=torch.float64)

    def step(state: torch.Tensor, x: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        state = cell(table(x), state)
        return state, state

    def loss(_: int, output: torch.Tensor) -> torch.Tensor:
        return output.square().sum()

    wanted = [table.weight, *cell.parameters()]
    outputs, _ = plain(step, inputs, state, 12)
    theirs = torch.autograd.grad(torch.stack(outputs).square().sum(), wanted)
    result = bptt(step, inputs, state, loss, plan=plan_of(12, "double", states=5))
    ours = torch.autograd.grad(result.loss, wanted)
    assert ours[0].is_sparse
    assert_close([ours[0].to_dense(), *ours[1:]], [theirs[0].to_dense(), *theirs[1:]], relative=1e-12)


@pytest.mark.parametrize("verify", [True, False])
@pytest.mark.parametrize("case", ["hook", "chain", "leaf"])
def test_named_tensors_may_be_computed_with_hooks_or_from_each_other(case: str, *, verify: bool) -> None:
    """A hook sees the whole gradient once, as in a plain loop."""
    weight = torch.randn(5, 5, dtype=torch.float64).requires_grad_()
    inputs, state = torch.randn(12, 3, 5, dtype=torch.float64), torch.zeros(3, 5, dtype=torch.float64)
    found = []
    for planned in (True, False):
        first = 2 * weight
        second = first + 1
        if case == "hook":
            first.register_hook(lambda gradient: gradient.clamp(-1, 1))
        named = {"hook": [first], "chain": [second, first], "leaf": [first, weight]}[case]

        def step(state: torch.Tensor, x: torch.Tensor, *, named: Any = named) -> Any:
            state = torch.tanh(state @ named[0] + x)
            return state, state

        if planned:
            plan = plan_of(12, "double", states=5)
            options: Any = {"plan": plan, "parameters": named, "verify": verify}
            total = bptt(step, inputs, state, lambda _, one: one.sum(), **options).loss
        else:
            total = torch.stack(plain(step, inputs, state, 12)[0]).sum()
        found.append(gradients(total, [weight]))
    assert_close(*found, relative=1e-12)
