"""Law 5: gradients of any executed plan equal those of plain backpropagation through time, with hooks, too."""

from __future__ import annotations

from contextlib import nullcontext
from functools import partial
from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils.flop_counter import FlopCounterMode

from ckptplan import Infeasible
from ckptplan.planning.playback import make_schedule
from ckptplan.strategies.registry import all_strategies
from ckptplan.torch import bptt, unroll
from ckptplan.torch.device.meters import LiveBytes
from tests.torch.support import assert_close, forget_measurements, gradients, gru, job, plain, plan_of
from tests.torch.tables import STEPS, STRATEGIES, Call, Row, Table, build, differentiate, plan, squares

RERUN = ("standard", "double", "revolve", "optimal")
SOME = ("base", "standard", "double", "revolve")
TABLE = Table()


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
        chosen = plan_of(steps, strategy, states=states, alpha=alpha)
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
    result = bptt(cell, inputs, state, plan=chosen, final_loss=torch.sum, **given_loss)
    assert result.loss.item() == pytest.approx(expected.item(), rel=1e-12)
    assert_close(gradients(result.loss, wanted), theirs, relative=1e-12)
    stacked, last = unroll(cell, inputs, state, plan=chosen)
    assert torch.equal(stacked, torch.stack(outputs))
    assert torch.equal(last, final)
    ours = sum((loss(step, one) for step, one in enumerate(stacked)), last.sum())
    assert_close(gradients(ours, wanted), theirs, relative=1e-12)


@pytest.mark.filterwarnings("ignore:`torch.jit")
@pytest.mark.parametrize("row", TABLE)
def test_a_call_has_the_gradients_of_a_plain_loop(row: Row) -> None:
    row.check()


# Precision


def run_in_single_precision(autocast: bool | None = None, steps: int = STEPS) -> Call:
    """Return a call whose cell enters or leaves autocast by itself.

    Casts are made anew in each step, whether the step runs for the first time or again. Gradients have the
    precision of the steps, as those of a plain loop outside of autocast.
    """
    module = torch.nn.GRUCell(5, 7)

    def cell(state: torch.Tensor, x: torch.Tensor) -> Any:
        with torch.autocast("cpu", dtype=torch.bfloat16, enabled=bool(autocast)):
            state = module(x, state)
        state = state.float()
        return state, state

    inputs, state = job(steps, dtype=torch.float32)
    return Call(
        cell=cell,
        inputs=inputs,
        state=state,
        parameters=list(module.parameters()),
        context=partial(torch.autocast, "cpu", dtype=torch.bfloat16) if autocast is False else nullcontext,
        relative=1e-5,
        steps=steps,
    )


TABLE.add("single precision", partial(run_in_single_precision, steps=64), ways=RERUN)
TABLE.add("a cell enters autocast", partial(run_in_single_precision, True), ways=SOME)
TABLE.add("a cell leaves autocast", partial(run_in_single_precision, False), ways=SOME)


@TABLE.row(ways=["standard", "double"])
def losses_are_less_precise_than_parameters_and_states_are_sparse() -> Call:
    cell, parameters = gru()

    def step(state: Any, x: torch.Tensor) -> Any:
        hidden, _ = cell(state.to_dense(), x)
        return hidden.to_sparse(), hidden.float()

    return Call(
        cell=step,
        state=job(STEPS)[1].detach().to_sparse(),
        loss=lambda _, output: output.square().mean(),
        parameters=parameters,
        relative=1e-5,
    )


# Backward passes


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


@TABLE.row(ways=["base", "standard", "revolve"])
def a_backward_pass_within_another_one_gets_its_own_gradients() -> Call:
    """Gradients of parameters are added up as they come; those of an inner pass are not among them."""
    weight, bias = (torch.randn(7).double().requires_grad_() for _ in range(2))

    def cell(state: torch.Tensor, x: torch.Tensor) -> Any:
        state = Solved.apply(state + x[:, :1], weight) + bias * weight  # type: ignore[no-untyped-call]
        return state, state

    return Call(cell=cell, parameters=[weight, bias])


@TABLE.row(ways=["memory"])
def a_step_uses_forward_mode_inside() -> Call:
    """What it keeps has zeros without memory among it."""
    inner = torch.nn.GRUCell(5, 7).double()

    def cell(state: torch.Tensor, x: torch.Tensor) -> Any:
        pair: Any = torch.func.jvp(lambda one: inner(x, one), (state,), (torch.ones_like(state),))
        after, moved = pair
        return (state + after) / 2, moved

    return Call(cell=cell, parameters=list(inner.parameters()), options={"memory": "1 MB"}, relative=1e-9)


def test_one_gradient_of_a_parameter_is_alive_beside_the_sums() -> None:
    """Steps are reversed one at a time here: each parameter is added to its sum before the next one comes."""
    torch.manual_seed(0)
    layers = torch.nn.Sequential(*(torch.nn.Linear(128, 128, bias=False) for _ in range(8)))

    def cell(state: torch.Tensor, x: torch.Tensor) -> Any:
        state = torch.tanh(layers(state) + x)
        return state, state

    chosen = make_schedule("revolve", steps=12, chunk_size=1, nb_local=3)
    inputs = torch.randn(12, 1, 128)
    for _ in range(2):
        with LiveBytes() as live:
            bptt(cell, inputs, torch.zeros(1, 128), lambda _, h: h.sum(), plan=chosen).loss.backward()
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


def test_sparse_gradients_stay_sparse() -> None:
    """As in plain backpropagation: some optimizers take no others."""
    table, cell = torch.nn.Embedding(20, 5, sparse=True).double(), torch.nn.RNNCell(5, 7).double()
    inputs, state = torch.randint(0, 20, (12, 3)), torch.zeros(3, 7, dtype=torch.float64)

    def step(state: torch.Tensor, x: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        state = cell(table(x), state)
        return state, state

    wanted = [table.weight, *cell.parameters()]
    outputs, _ = plain(step, inputs, state, 12)
    theirs = torch.autograd.grad(torch.stack(outputs).square().sum(), wanted)
    result = bptt(step, inputs, state, squares, plan=plan_of(12, "double", states=5))
    ours = torch.autograd.grad(result.loss, wanted)
    assert ours[0].is_sparse
    assert_close([ours[0].to_dense(), *ours[1:]], [theirs[0].to_dense(), *theirs[1:]], relative=1e-12)


# Hooks


def name_tensors(case: str, *, verify: bool) -> Call:
    """Return a call with named tensors that have a hook, or are computed from each other or from a leaf."""
    weight = torch.randn(5, 5, dtype=torch.float64).requires_grad_()
    first = 2 * weight
    second = first + 1
    if case == "hook":
        # It sees the whole gradient once.
        first.register_hook(clip)
    named = {"hook": [first], "chain": [second, first], "leaf": [first, weight]}[case]

    def cell(state: torch.Tensor, x: torch.Tensor) -> Any:
        state = torch.tanh(state @ named[0] + x)
        return state, state

    state, options = torch.zeros(3, 5, dtype=torch.float64), {"parameters": named, "verify": verify}
    return Call(cell=cell, state=state, loss=lambda _, one: one.sum(), parameters=[weight], options=options)


def clip(gradient: torch.Tensor) -> torch.Tensor:
    """Clip a gradient: not linear, so that parts of it give another result than the whole."""
    return gradient.clamp(-0.2, 0.2)


def hook_returned_state(*, is_output: bool, is_hooked: bool = True) -> Call:
    """Return a call of a cell that clips the gradient of the state that it returns.

    The hook sees the whole gradient, also where one recorded run of steps ends and the loss of its last step
    depends on the state.
    """
    inner, parameters = gru()

    def cell(state: torch.Tensor, x: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        state, _ = inner(state, x)
        if state.requires_grad and is_hooked:
            state.register_hook(clip)
        return state, state if is_output else torch.sin(3 * state)

    return Call(cell=cell, parameters=parameters, final_loss=torch.sum)


def hook_given_state(*, passes_on: bool) -> Call:
    """Return a call of a cell that clips the gradients of the state that it is given.

    Where a recorded run of steps begins, the loss of the step before adds to them in the run before. A part of
    the state that steps pass on as it is has the hooks of all steps.
    """
    inner, parameters = gru()

    def cell(state: Any, x: torch.Tensor) -> tuple[Any, torch.Tensor]:
        for one in state:
            if one.requires_grad:
                one.register_hook(clip)
        hidden, same = state
        new = inner(hidden, x)[0] + 0.1 * same
        return (new, same if passes_on else 0.9 * same), torch.sin(3 * new)

    second = torch.ones(3, 7).double().requires_grad_()
    return Call(cell=cell, state=(job(STEPS)[1], second), parameters=parameters)


for _flag in (False, True):
    for _case in ("hook", "chain", "leaf"):
        TABLE.add(f"named, {_case}, {_flag}", partial(name_tensors, _case, verify=_flag), ways=["double"])
    _make = partial(hook_returned_state, is_output=_flag)
    TABLE.add(f"hooks of the returned state {_flag}", _make, ways=(*STRATEGIES, "unroll"))
    _make = partial(hook_given_state, passes_on=_flag)
    TABLE.add(f"hooks of the given state {_flag}", _make, ways=STRATEGIES)


def test_a_hook_on_the_returned_state_changes_each_gradient() -> None:
    """Otherwise the comparison with a plain loop would show nothing."""
    hooked, others = (
        differentiate(build(partial(hook_returned_state, is_output=False, is_hooked=is_hooked)), None)
        for is_hooked in (True, False)
    )
    assert not any(torch.allclose(one, other) for one, other in zip(hooked, others, strict=True))


@pytest.mark.parametrize("strategy", STRATEGIES)
def test_operations_are_counted_while_a_network_trains(strategy: str) -> None:
    """FlopCounterMode hooks what each module is given, which torch.autograd.grad refuses for leaves."""
    module = torch.nn.GRUCell(5, 7).double()

    def cell(state: torch.Tensor, x: torch.Tensor) -> Any:
        state = module(x, state)
        return state, state

    inputs, start = job(STEPS)
    inputs = inputs.detach()
    wanted = [start, *module.parameters()]
    found: list[list[Any]] = []
    counted: list[int] = []
    for planned in (False, True):
        with FlopCounterMode(display=False) as counter:
            state = 1 * start
            if planned:
                loss = bptt(cell, inputs, state, squares, plan=plan(strategy)).loss
            else:
                loss = torch.stack(plain(cell, inputs, state, STEPS)[0]).square().sum()
            loss.backward()
        found.append([one.grad for one in wanted])
        counted.append(counter.get_total_flops())
        for one in wanted:
            one.grad = None
    assert_close(found[1], found[0], relative=1e-12)
    assert counted[1] >= counted[0] > 0
    if strategy != "base":
        forget_measurements()
        with FlopCounterMode(display=False), pytest.raises(RuntimeError, match="A leaf node was passed"):
            bptt(cell, inputs, start, squares, plan=plan(strategy))


def test_a_hook_on_the_initial_state_is_the_callers() -> None:
    """It sees the whole gradient once, and the steps do not see it."""
    call, seen = hook_returned_state(is_output=False), list[torch.Tensor]()
    call.state.register_hook(lambda gradient: seen.append(gradient.clone()))
    result = bptt(call.cell, call.inputs, call.state, squares, plan=plan("standard"))
    (found,) = gradients(result.loss, [call.state])
    (once,) = seen
    assert torch.equal(once, found)


def shrink(tensor: torch.Tensor) -> torch.Tensor:
    """Change a tensor that is saved."""
    return 0.9 * tensor if tensor.is_floating_point() else tensor


@TABLE.row(ways=["base", "standard", "revolve"])
def hooks_on_saved_tensors_apply_to_all_tapes() -> Call:
    """Those in force in the forward pass; tapes of steps that run again are made in the backward pass."""
    cell, parameters = gru()
    context = partial(torch.autograd.graph.saved_tensors_hooks, shrink, lambda tensor: tensor)
    return Call(cell=cell, parameters=parameters, context=context)
