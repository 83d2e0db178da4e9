"""What could give wrong gradients in silence is right, or refused by name."""

from __future__ import annotations

from array import array
from collections.abc import Callable
from functools import partial
from importlib import import_module
from typing import Any

import pytest
import torch

from ckptplan import InputError, Schedule
from ckptplan.schedule.actions import Action, Backward, Record
from ckptplan.torch import LIF, bptt, measured_sizes, plan_for, scan, unroll, wrap
from ckptplan.torch.adapters import SnnTorchCell, TorchCell
from ckptplan.torch.device.meters import LiveBytes
from tests.torch.support import assert_close, gradients, gru, job, plain, plan_of
from tests.torch.tables import STEPS, STRATEGIES, Call, Row, Table, plan, squares

TABLE = Table()


def lif(**options: Any) -> LIF:
    """Return a LIF cell of the size of ``gru()``."""
    torch.manual_seed(0)
    return LIF(5, 7, dtype=torch.float64, threshold=0.3, **options)


@pytest.mark.parametrize("row", TABLE)
def test_a_call_is_right_or_refused(row: Row) -> None:
    row.check()


@TABLE.row("at step 1 than at the first", ways=["unroll"])
def numbers_in_outputs_differ() -> Call:
    inner, _ = gru()

    def cell(state: Any, x: torch.Tensor) -> Any:
        hidden, output = inner(state[0], x)
        return (hidden, state[1] + 1), (output, state[1])

    return Call(cell=cell, state=(job(STEPS)[1], 0))


@TABLE.row("inputs: returned a tensor that requires a gradient")
def made_inputs_have_a_graph() -> Call:
    embedding, tokens = torch.nn.Embedding(10, 5).double(), torch.randint(10, (STEPS, 3))
    return Call(cell=gru()[0], inputs=lambda start, stop: embedding(tokens[start:stop]))


def norm_weight(make_cell: Callable[[LIF], Any]) -> Call:
    """Return a call of a LIF cell whose weight is computed."""
    inner = lif()
    torch.nn.utils.parametrizations.weight_norm(inner, "weight")
    return Call(cell=make_cell(inner), parameters=list(inner.parameters()))


class Halved(LIF):
    """A cell whose chunk is another thing than its step."""

    def forward(self, state: torch.Tensor, x: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        state, spikes = super().forward(state, x)
        return state * 0.5, spikes


TABLE.add(
    "inputs that are called spikes",
    lambda: Call(cell=lif(spiking_inputs=True)),
    "inputs: are not all zeros and ones",
)
TABLE.add(
    "computed weights of a LIF cell",
    lambda: norm_weight(lambda cell: cell),
    "weight is computed from other tensors",
)
# This is no ChunkCell, and runs step by step.
TABLE.add("the same in a function", lambda: norm_weight(lambda cell: lambda *given: cell(*given)))  # noqa: PLW0108
TABLE.add(
    "a chunk that is another thing than its step",
    lambda: Call(cell=Halved(5, 7, dtype=torch.float64)),
    r"Halved\.run gives something else than its forward: the loss is",
)


@TABLE.row("inputs: are changed in place by a step")
def inputs_are_changed_in_place() -> Call:
    inner, _ = gru()
    return Call(cell=lambda state, x: inner(state, x.mul_(0.5).clone()), inputs=job(STEPS)[0].detach())


def compute_outside(*, is_named: bool) -> Call:
    """Return a call that uses a tensor with a graph from outside: its leaf gets the gradient once."""
    raw = torch.zeros(7, dtype=torch.float64, requires_grad=True)
    decay, (inner, _) = torch.sigmoid(raw), gru()

    def cell(state: torch.Tensor, x: torch.Tensor) -> Any:
        state = decay * inner(state, x)[0]
        return state, state

    return Call(cell=cell, parameters=[raw], options={"parameters": [decay] if is_named else []})


def name_a_view(*, uses_both: bool) -> Call:
    """Return a call with a transposed weight that is named, and used alone or beside the weight itself."""
    weight = torch.randn(7, 7, dtype=torch.float64, requires_grad=True)
    turned, wide = weight.t(), torch.randn(5, 7, dtype=torch.float64)

    def cell(state: torch.Tensor, x: torch.Tensor) -> Any:
        state = torch.tanh((state @ turned @ weight if uses_both else state @ turned) + x @ wide)
        return state, state

    return Call(cell=cell, parameters=[weight], options={"parameters": [turned]})


for _flag in (False, True):
    TABLE.add(f"computed outside, named {_flag}", partial(compute_outside, is_named=_flag), ways=STRATEGIES)
    TABLE.add(f"a view that is named, both {_flag}", partial(name_a_view, uses_both=_flag))


@pytest.mark.parametrize("kind", ["loss", "chunk_loss"])
def test_a_loss_that_draws_is_replayed_but_for_cells_that_run_chunks(kind: str) -> None:
    """These have their losses computed again in the backward pass; also if a later call begins to draw."""
    inputs, state = job(STEPS)
    draws = array("b", [1])

    def drop(_: int, output: torch.Tensor) -> Any:
        return torch.nn.functional.dropout(output, training=bool(draws[0])).square().sum()

    cell, options = gru()[0], {kind: drop, "plan": plan("revolve")}
    torch.manual_seed(2)
    theirs = gradients(sum(drop(0, one) for one in plain(cell, inputs, state, STEPS)[0]), [inputs])
    torch.manual_seed(2)
    assert_close(gradients(bptt(cell, inputs, state, **options).loss, [inputs]), theirs, relative=1e-9)
    for draws[0] in (1, 0, 1):
        if draws[0]:
            with pytest.raises(InputError, match="loss: draws random numbers"):
                bptt(lif(), inputs, state, **options)
        else:
            bptt(lif(), inputs, state, **options).loss.backward()


@pytest.mark.parametrize("in_closure", [False, True])
def test_steps_run_again_with_weights_that_were_swapped_for_the_forward_pass(in_closure: bool) -> None:
    inner = torch.nn.GRUCell(5, 7).double()
    inputs, state = job(STEPS)

    class Net(torch.nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.inner = inner

        def step(self, state: torch.Tensor, x: torch.Tensor) -> Any:
            state = self.inner(torch.nn.functional.dropout(x, 0.1), state)
            return state, state

        def forward(self, planned: bool) -> Any:
            torch.manual_seed(3)
            behind = lambda *given: self.step(*given)  # noqa: E731, PLW0108 - modules are found behind it
            cell: Any = behind if in_closure else self.step
            if planned:
                return bptt(cell, inputs, state, squares, plan=plan("revolve")).loss
            return torch.stack(plain(cell, inputs, state, STEPS)[0]).square().sum()

    swapped = {
        f"inner.{name}": value.detach().clone().requires_grad_() for name, value in inner.named_parameters()
    }
    ours, theirs = (
        gradients(torch.func.functional_call(Net(), swapped, (planned,)), list(swapped.values()))
        for planned in (True, False)
    )
    assert_close(ours, theirs, relative=1e-12)


@pytest.mark.filterwarnings("ignore")
def test_neurons_that_hide_their_state_are_found_in_layers() -> None:
    snntorch = import_module("snntorch")
    layer = torch.nn.Sequential(torch.nn.Linear(5, 7), snntorch.Leaky(beta=0.9, init_hidden=True))
    with pytest.raises(InputError, match="hides its state"):
        SnnTorchCell(snntorch.Leaky(beta=0.9), layer)


def test_gradients_are_not_held_when_they_are_handed_over() -> None:
    """Autograd takes them over: the memory of one gradient each, not of two."""
    cell, parameters = gru()
    inputs, state = job(STEPS)
    with LiveBytes() as live:
        result = bptt(cell, inputs, state, squares, plan=plan("revolve"))
        result.loss.backward()
        assert live.now <= sum(one.nbytes for one in (inputs, state, *parameters)) + state.nbytes + 64


# Arguments


_ACTIONS: list[Action] = [Record(0, STEPS), Backward(0, STEPS)]
_NO_PLAN = r"is not a plan \(.* ckptplan\.load_plan\(path\); a .*\)"


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"parameters": 3}, "parameters: 'int' is no list of tensors"),
        ({"parameters": [1]}, "parameters: 1 is no tensor"),
        ({"parameters": [("name", torch.zeros(1))]}, r"parameters: \('name', .* is no tensor"),
        ({"loss": 3}, "loss: 3 cannot be called"),
        ({"loss": None}, "loss: is missing"),
        ({"loss": lambda *_: 0.0}, "loss: returned 0.0 .*a tensor of one float"),
        ({"loss": lambda _, output: output}, r"loss: returned shape \(3, 7\)"),
        ({"chunk_loss": lambda *_: 0}, "chunk_loss: is given together with loss"),
        ({"inputs": lambda *_: None}, "inputs: returned no tensor for steps 0 to"),
        ({"inputs": None}, "inputs: 'NoneType' holds no tensor"),
        ({"inputs": torch.zeros(STEPS, 3, 7).numpy()}, "inputs: a NumPy array is no tensor"),
        ({"inputs": [torch.zeros(3, 5)] * STEPS}, f"has 3 steps, the plan has {STEPS}: .*torch.stack"),
        ({"inputs": torch.zeros(3, STEPS, 5)}, f"has 3 steps, the plan has {STEPS}: .*is the batch first"),
        ({"cell": 3}, "cell: 3 cannot be called"),
        ({"cell": lambda state, _: state}, "cell: returned Tensor"),
        ({"cell": lambda state, x: (state, x, x)}, "cell: returned tuple of 3"),
        ({"plan": plan_of(STEPS + 1)}, "inputs: has 24 steps, the plan has 25"),
        ({"plan": "plan.json"}, f"plan: 'plan.json' {_NO_PLAN}"),
        ({"plan": 3}, f"plan: 3 {_NO_PLAN}"),
        ({"plan": _ACTIONS}, f"plan: .* {_NO_PLAN}"),
        ({"remote_dir": 3}, "remote_dir: is 3"),
        (
            {"remote_dir": "/proc/nowhere", "plan": plan_of(STEPS, states=8)},
            "remote_dir: /proc/nowhere cannot be made",
        ),
        ({"verify": "allways"}, r"verify: is 'allways'.*True, False or 'always'"),
    ],
)
def test_bad_arguments_are_named(change: dict[str, Any], message: str) -> None:
    inputs, state = job(STEPS)
    arguments = {"cell": gru()[0], "inputs": inputs, "state": state, "loss": squares, "plan": plan("revolve")}
    with pytest.raises(InputError, match=message):
        bptt(**{**arguments, **change})


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"memory": "1 MB", "plan": plan("revolve")}, "memory: is given together with plan"),
        ({"memory": "1 MB", "remote_dir": "here"}, "remote_dir: is given together with memory.*nothing remote"),
        ({"memory": "1 MB", "schedule": _ACTIONS}, "schedule: is given together with memory.*keep the limit"),
        (
            {"plan": Schedule(steps=STEPS, actions=_ACTIONS), "strict": True},
            "strict: has no effect: a Schedule has no sizes",
        ),
    ],
)
def test_options_that_would_have_no_effect_are_refused(options: dict[str, Any], message: str) -> None:
    inputs, state = job(STEPS)
    cell, _ = gru()
    with pytest.raises(InputError, match=message):
        bptt(cell, inputs, state, squares, **options)
    with pytest.raises(InputError, match=message):
        unroll(cell, inputs, state, **options)
    if "schedule" not in options:
        with pytest.raises(InputError, match=message):
            wrap(torch.nn.GRUCell(5, 7), **options)


def test_wrap_without_a_plan_has_a_limit() -> None:
    with pytest.raises(InputError, match="remote_dir: is given together with memory"):
        wrap(torch.nn.GRUCell(5, 7), remote_dir="here")


def test_steps_are_those_of_the_inputs() -> None:
    inputs, state = job(STEPS)
    with pytest.raises(InputError, match="inputs: has 24 steps, the call has 7"):
        plan_for(gru()[0], inputs, state, squares, memory="1 MB", steps=7)


def test_parameters_may_be_a_module_and_frozen_ones_are_left_out() -> None:
    cell, parameters = gru()
    parameters[0].requires_grad = False
    for named in (parameters, torch.nn.Linear(2, 2)):
        options: dict[str, Any] = {"plan": plan("revolve"), "parameters": named}
        bptt(cell, *job(STEPS), squares, **options).loss.backward()


def test_errors_within_a_cell_stay_what_they_are() -> None:
    """A note says what the cell was called with."""
    with pytest.raises(TypeError, match="foo") as raised:
        bptt(lambda state, x: (torch.clamp(state, foo=1), x), *job(STEPS), squares, plan=plan("revolve"))  # type: ignore[call-overload]
    (note,) = raised.value.__notes__
    assert "cell(state, x) with state float64 (3, 7) and x float64 (3, 5). Accepted: " in note


@pytest.mark.parametrize("way", [{"memory": "1 MB"}, {"memory": "1 kB"}, {"plan": plan_of(STEPS, "revolve")}])
@pytest.mark.parametrize(
    "call",
    [
        scan,
        lambda cell, inputs, state, **how: unroll(cell, state, inputs, **how),
        lambda cell, inputs, state, **how: bptt(cell, state, inputs, lambda _, one: one.sum(), **how),
    ],
)
def test_inputs_and_state_in_the_place_of_each_other_are_named(call: Any, way: dict[str, Any]) -> None:
    """Whatever fails then, a cell or the limit: bptt and scan have them in another order."""
    with pytest.raises((ValueError, InputError)) as raised:
        call(gru()[0], torch.zeros(STEPS, 3, 5), torch.zeros(3, 7), **way)
    assert (
        "are the two exchanged? bptt, unroll and plan_for take (cell, inputs, state), scan "
        in (raised.value.__notes__[-1])
    )


def test_a_missing_state_in_the_place_of_inputs_is_named() -> None:
    with pytest.raises(InputError) as raised:
        scan(gru()[0], torch.zeros(STEPS, 3, 5), None, memory="1 MB")
    assert (
        "inputs are None, and state is float32 (24, 3, 5): are the two exchanged?" in raised.value.__notes__[-1]
    )


def test_errors_of_inputs_in_their_place_say_nothing_of_their_order() -> None:
    with pytest.raises(InputError) as raised:
        bptt(gru()[0], *job(STEPS), squares, memory="100 B")
    assert not hasattr(raised.value, "__notes__")


def test_adapters_take_what_they_are_for() -> None:
    with pytest.raises(InputError, match="module: GRU is not such a cell"):
        TorchCell(torch.nn.GRU(5, 7))
    with pytest.raises(InputError, match="neuron: Linear is not a neuron of snnTorch"):
        SnnTorchCell(torch.nn.Linear(5, 7))


@pytest.mark.parametrize("is_made", [False, True])
def test_sizes_are_counted(is_made: bool) -> None:
    """Those of the plan that then keeps them; spikes at most a bit each."""
    inputs, state = torch.randn(40, 3, 5), torch.zeros(3, 8)
    given: Any = (lambda start, stop: inputs[start:stop]) if is_made else inputs
    tanh = measured_sizes(TorchCell(torch.nn.RNNCell(5, 8)), given, state)
    assert vars(tanh) == {"state_bytes": 96, "tape_bytes": 96, "resident_bytes_per_step": 0}
    spiking = measured_sizes(LIF(5, 8), given, state, lambda _, one: one.sum())
    assert spiking.state_bytes == 96 <= spiking.tape_bytes <= 110
    assert 0 < spiking.resident_bytes_per_step <= 2 * 3 * (1 + 8)


@pytest.mark.parametrize(
    ("inputs", "message"),
    [
        (torch.zeros(4, 3, 7), "cell: has nothing that requires a gradient"),
        (3, "inputs: 'int' holds no tensor"),
        (torch.zeros(()), "inputs: hold no time step"),
    ],
)
def test_sizes_of_nothing_are_refused(inputs: Any, message: str) -> None:
    with pytest.raises(InputError, match=message):
        measured_sizes(lambda state, x: (state + x, x), inputs, torch.zeros(3, 7))
