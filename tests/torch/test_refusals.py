"""What could give wrong gradients in silence is right, or refused by name."""

from __future__ import annotations

from array import array
from importlib import import_module
from typing import Any

import pytest
import torch

from ckptplan import InputError, Schedule
from ckptplan.schedule.actions import Action, Backward, Record
from ckptplan.torch import LIF, bptt, plan_for, scan, unroll, wrap
from ckptplan.torch.adapters import SnnTorchCell, TorchCell
from tests.torch.support import assert_close, gradients, gru, job, plain, plan_of

STEPS = 24
STRATEGIES = ["base", "standard", "double", "revolve", "optimal"]
every_strategy = pytest.mark.parametrize("strategy", STRATEGIES)


def plan(strategy: str = "revolve") -> Any:
    return plan_of(STEPS, strategy, states=100 if strategy == "base" else 16)


def squares(_: int, output: torch.Tensor) -> Any:
    return output.square().sum()


def lif() -> LIF:
    torch.manual_seed(0)
    return LIF(5, 7, dtype=torch.float64, threshold=0.3)


def reversed_(cell: Any, loss: Any = squares, *, inputs: Any = None, state: Any = None, **more: Any) -> None:
    """Run forward and backward."""
    given, begun = job(STEPS)
    bptt(
        cell,
        given if inputs is None else inputs,
        begun if state is None else state,
        loss,
        plan=plan(),
        **more,
    ).loss.backward()


@every_strategy
@pytest.mark.parametrize("place", ["first", "middle", "last"])
@pytest.mark.parametrize("make", [lambda: gru()[0], lif])
def test_a_parameter_that_only_some_steps_use_has_its_gradient(strategy: str, place: str, make: Any) -> None:
    """Whichever chunk it is in."""
    late = torch.ones((), dtype=torch.float64, requires_grad=True)
    steps = {"first": range(1, 3), "middle": range(10, 12), "last": range(STEPS - 2, STEPS)}[place]

    def loss(step: int, output: torch.Tensor) -> Any:
        return output.square().sum() * (late if step in steps else 1)

    (inputs, state), cell = job(STEPS), make()
    outputs, _ = plain(cell, inputs, state, STEPS)
    theirs = gradients(sum(loss(step, one) for step, one in enumerate(outputs)), [late])
    result = bptt(cell, inputs, state, loss, plan=plan(strategy))
    assert_close(gradients(result.loss, [late]), theirs, relative=1e-12)


@every_strategy
def test_numbers_in_the_state_go_with_the_checkpoint(strategy: str) -> None:
    """Here a step counter."""
    inner, parameters = gru()

    def cell(state: Any, x: torch.Tensor) -> Any:
        hidden, output = inner(state[0], x)
        return (hidden, state[1] + 1), output * (1 + state[1])

    inputs, state = job(STEPS)
    wanted = [state, inputs, *parameters]
    outputs, _ = plain(cell, inputs, (state, 0), STEPS)
    theirs = gradients(torch.stack(outputs).square().sum(), wanted)
    result = bptt(cell, inputs, (state, 0), squares, plan=plan(strategy))
    assert_close(gradients(result.loss, wanted), theirs, relative=1e-12)
    assert result.state[1] == STEPS


def test_numbers_in_outputs_are_the_same_at_every_step() -> None:
    inner, _ = gru()

    def cell(state: Any, x: torch.Tensor) -> Any:
        hidden, output = inner(state[0], x)
        return (hidden, state[1] + 1), (output, state[1])

    inputs, state = job(STEPS)
    with pytest.raises(InputError, match="at step 1 than at the first"):
        unroll(cell, inputs, (state, 0), plan=plan())


@pytest.mark.parametrize("kind", ["loss", "chunk_loss"])
def test_a_loss_that_draws_is_replayed_but_for_cells_that_run_chunks(kind: str) -> None:
    """These have their losses computed again in the backward pass; also if a later call begins to draw."""
    inputs, state = job(STEPS)
    draws = array("b", [1])

    def drop(_: int, output: torch.Tensor) -> Any:
        return torch.nn.functional.dropout(output, training=bool(draws[0])).square().sum()

    cell, losses = gru()[0], {kind: drop}
    torch.manual_seed(2)
    theirs = gradients(sum(drop(0, one) for one in plain(cell, inputs, state, STEPS)[0]), [inputs])
    torch.manual_seed(2)
    result = bptt(cell, inputs, state, plan=plan(), **losses)  # type: ignore[arg-type]
    assert_close(gradients(result.loss, [inputs]), theirs, relative=1e-9)
    for draws[0] in (1, 0, 1):
        if draws[0]:
            with pytest.raises(InputError, match="loss: draws random numbers"):
                bptt(lif(), inputs, state, plan=plan(), **losses)  # type: ignore[arg-type]
        else:
            bptt(lif(), inputs, state, plan=plan(), **losses).loss.backward()  # type: ignore[arg-type]


def test_made_inputs_have_no_graph() -> None:
    embedding, tokens = torch.nn.Embedding(10, 5).double(), torch.randint(10, (STEPS, 3))
    with pytest.raises(InputError, match="inputs: returned a tensor that requires a gradient"):
        reversed_(gru()[0], inputs=lambda start, stop: embedding(tokens[start:stop]))


def test_inputs_that_are_called_spikes_are_spikes() -> None:
    cell = LIF(5, 7, dtype=torch.float64, spiking_inputs=True)
    with pytest.raises(InputError, match="inputs: are not all zeros and ones"):
        reversed_(cell)


def test_computed_weights_of_a_lif_are_refused_and_run_step_by_step() -> None:
    cell = lif()
    torch.nn.utils.parametrizations.weight_norm(cell, "weight")
    with pytest.raises(InputError, match="weight is computed from other tensors"):
        reversed_(cell)
    inputs, state = job(STEPS)
    wanted = list(cell.parameters())
    outputs, _ = plain(cell, inputs, state, STEPS)
    theirs = gradients(torch.stack(outputs).square().sum(), wanted)
    result = bptt(lambda one, x: cell(one, x), inputs, state, squares, plan=plan())  # noqa: PLW0108 - no ChunkCell
    assert_close(gradients(result.loss, wanted), theirs, relative=1e-12)


class Net(torch.nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.inner = torch.nn.GRUCell(5, 7).double()

    def forward(self, state: torch.Tensor, x: torch.Tensor) -> Any:
        state = self.inner(torch.nn.functional.dropout(x, 0.1, self.training), state)
        return state, state


@pytest.mark.parametrize("closure", [False, True])
@pytest.mark.parametrize("change", ["mode", "swapped", "trained"])
def test_steps_run_again_with_what_they_ran_with(change: str, closure: bool) -> None:
    """A mode, or weights that are swapped for the forward pass alone; weights written since are refused."""
    net = Net()
    inputs, state = job(STEPS)
    cell: Any = (lambda one, x: net(one, x)) if closure else net  # noqa: PLW0108 - modules are found behind it
    swapped = {f"net.{name}": value.detach().clone().requires_grad_() for name, value in net.named_parameters()}
    wanted = list(swapped.values()) if change == "swapped" else list(net.parameters())

    class Call(torch.nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.net = net

        def forward(self, planned: bool) -> Any:
            torch.manual_seed(3)
            if planned:
                return bptt(cell, inputs, state, squares, plan=plan()).loss
            return torch.stack(plain(cell, inputs, state, STEPS)[0]).square().sum()

    found = []
    for planned in (True, False):
        net.train()
        if change == "swapped":
            loss = torch.func.functional_call(Call(), swapped, (planned,))
        else:
            loss = Call()(planned)
        if change == "mode":
            net.eval()
        if change == "trained":
            with torch.no_grad():
                net.inner.weight_hh.mul_(2)
            with pytest.raises(RuntimeError, match=r"written in place|modified by an inplace operation"):
                loss.backward()
        else:
            found.append(gradients(loss, wanted))
    if found:
        assert_close(*found, relative=1e-12)


@every_strategy
@pytest.mark.parametrize("named", [False, True])
def test_a_tensor_computed_outside_gets_its_gradient_once(strategy: str, named: bool) -> None:
    raw = torch.zeros(7, dtype=torch.float64, requires_grad=True)
    decay = torch.sigmoid(raw)
    inner, _ = gru()

    def cell(state: torch.Tensor, x: torch.Tensor) -> Any:
        state = decay * inner(state, x)[0]
        return state, state

    inputs, state = job(STEPS)
    outputs, _ = plain(cell, inputs, state, STEPS)
    theirs = torch.autograd.grad(torch.stack(outputs).square().sum(), [raw], retain_graph=True)
    parameters = [decay] if named else []
    result = bptt(cell, inputs, state, squares, plan=plan(strategy), parameters=parameters)
    assert_close(gradients(result.loss, [raw]), theirs, relative=1e-12)


@pytest.mark.parametrize("both", [False, True])
def test_no_gradient_counts_twice(both: bool) -> None:
    """A transposed weight that is named, and used alone or beside the weight itself."""
    weight = torch.randn(7, 7, dtype=torch.float64, requires_grad=True)
    turned = weight.t()
    inputs, state = job(STEPS)
    wide = torch.randn(5, 7, dtype=torch.float64)

    def cell(one: torch.Tensor, x: torch.Tensor) -> Any:
        one = torch.tanh((one @ turned @ weight if both else one @ turned) + x @ wide)
        return one, one

    outputs, _ = plain(cell, inputs, state, STEPS)
    theirs = gradients(torch.stack(outputs).square().sum(), [weight])
    result = bptt(cell, inputs, state, squares, plan=plan(), parameters=[turned])
    assert_close(gradients(result.loss, [weight]), theirs, relative=1e-12)


class Counting(torch.nn.Module):
    """BatchNorm that is reached in other ways than as the cell itself."""

    def __init__(self) -> None:
        super().__init__()
        self.norm = torch.nn.BatchNorm1d(7).double()

    def step(self, state: torch.Tensor, x: torch.Tensor) -> Any:
        state = self.norm(torch.tanh(state + x.sum()))
        return state, state


@pytest.mark.parametrize("how", ["method", "lambda", "loss"])
def test_running_statistics_are_counted_once_wherever_they_are(how: str) -> None:
    net = Counting()
    head = torch.nn.BatchNorm1d(7).double()
    behind = lambda one, x: net.step(one, x)  # noqa: E731, PLW0108 - modules are found behind it
    cell: Any = {"method": net.step, "lambda": behind, "loss": gru()[0]}[how]
    loss: Any = (lambda _, one: head(one).sum()) if how == "loss" else squares
    reversed_(cell, loss)
    used, unused = (head, net.norm) if how == "loss" else (net.norm, head)
    assert used.num_batches_tracked == STEPS
    assert unused.num_batches_tracked == 0


def test_a_buffer_without_a_number_is_no_change() -> None:
    class Marked(Net):
        def __init__(self) -> None:
            super().__init__()
            self.register_buffer("mark", torch.tensor(float("nan")))

    reversed_(Marked().eval())


@pytest.mark.filterwarnings("ignore")
def test_neurons_that_hide_their_state_are_found_in_layers() -> None:
    snntorch = import_module("snntorch")
    layer = torch.nn.Sequential(torch.nn.Linear(5, 7), snntorch.Leaky(beta=0.9, init_hidden=True))
    with pytest.raises(InputError, match="hides its state"):
        SnnTorchCell(snntorch.Leaky(beta=0.9), layer)


def test_changes_of_inputs_in_place_are_refused() -> None:
    inner, _ = gru()
    inputs, state = job(STEPS)
    with pytest.raises(InputError, match="inputs: are changed in place by a step"):
        bptt(lambda one, x: inner(one, x.mul_(0.5).clone()), inputs.detach(), state, squares, plan=plan())


@every_strategy
def test_a_loss_may_change_an_output_in_place(strategy: str) -> None:
    inner, parameters = gru()

    def cell(state: torch.Tensor, x: torch.Tensor) -> Any:
        state, _ = inner(state, x)
        return state, 2 * state

    def loss(_: int, output: torch.Tensor) -> Any:
        return output.mul_(0.9).square().sum()

    inputs, state = job(STEPS)
    theirs = gradients(sum(loss(0, one) for one in plain(cell, inputs, state, STEPS)[0]), parameters)
    result = bptt(cell, inputs, state, loss, plan=plan(strategy))
    assert_close(gradients(result.loss, parameters), theirs, relative=1e-12)


def test_a_cell_whose_chunk_is_another_thing_than_its_step_is_refused() -> None:
    class Halved(LIF):
        def forward(self, state: torch.Tensor, x: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
            state, spikes = super().forward(state, x)
            return state * 0.5, spikes

    with pytest.raises(InputError, match=r"Halved\.run gives something else than its forward: the loss is"):
        reversed_(Halved(5, 7, dtype=torch.float64))


def test_a_learned_initial_state_may_be_used_in_the_loss_too() -> None:
    cell, _ = gru()
    inputs, state = job(STEPS)
    outputs, _ = plain(cell, inputs, state, STEPS)
    theirs = gradients(sum((one - state).square().sum() for one in outputs), [state])
    result = bptt(cell, inputs, state, lambda _, one: (one - state).square().sum(), plan=plan())
    assert_close(gradients(result.loss, [state]), theirs, relative=1e-12)


def test_gradients_are_not_held_when_they_are_handed_over() -> None:
    """Autograd takes them over: the memory of one gradient each, not of two."""
    cell, _ = gru()
    inputs, state = job(STEPS)
    result = bptt(cell, inputs, state, squares, plan=plan())
    result.loss.backward()
    function: Any = result.loss.grad_fn
    assert function.run is None


@pytest.mark.parametrize(
    ("change", "field"),
    [
        ({"parameters": 3}, "parameters: 'int' is no list of tensors"),
        ({"parameters": [1]}, "parameters: 1 is no tensor"),
        ({"parameters": [("name", torch.zeros(1))]}, r"parameters: \('name', .* is no tensor"),
        ({"loss": 3}, "loss: 3 cannot be called"),
        ({"loss": lambda *_: 0.0}, "loss: returned 0.0 .*a tensor of one float"),
        ({"inputs": lambda *_: None}, "inputs: returned no tensor for steps 0 to"),
        ({"remote_dir": 3}, "remote_dir: is 3"),
    ],
)
def test_bad_arguments_are_named(change: dict[str, Any], field: str) -> None:
    inputs, state = job(STEPS)
    arguments: dict[str, Any] = {"inputs": inputs, "state": state, "loss": squares, "plan": plan(), **change}
    with pytest.raises(InputError, match=field):
        bptt(gru()[0], **arguments)


_ACTIONS: list[Action] = [Record(0, STEPS), Backward(0, STEPS)]


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"memory": "1 MB", "plan": plan()}, "memory: is given together with plan"),
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
    reversed_(cell, parameters=parameters)
    reversed_(cell, parameters=torch.nn.Linear(2, 2))


def test_errors_within_a_cell_stay_what_they_are() -> None:
    """A note says what the cell was called with."""
    with pytest.raises(TypeError, match="foo") as raised:
        reversed_(lambda state, x: (torch.clamp(state, foo=1), x))  # type: ignore[call-overload]
    (note,) = raised.value.__notes__
    assert "cell(state, x) with state float64 (3, 7) and x float64 (3, 5). Accepted: " in note


@pytest.mark.parametrize(
    ("inputs", "hint"),
    [
        ([torch.zeros(3, 5)] * STEPS, "torch.stack"),
        (torch.zeros(3, STEPS, 5), "is the batch first"),
    ],
)
def test_inputs_of_another_length_come_with_a_guess(inputs: Any, hint: str) -> None:
    with pytest.raises(InputError, match=f"has 3 steps, the plan has {STEPS}: .*{hint}"):
        reversed_(gru()[0], inputs=inputs)


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


@pytest.mark.parametrize("callable_", [False, True])
def test_sizes_are_counted(callable_: bool) -> None:
    """Those of the plan that then keeps them; spikes at most a bit each."""
    from ckptplan.torch import measured_sizes

    inputs, state = torch.randn(40, 3, 5), torch.zeros(3, 8)
    given: Any = (lambda start, stop: inputs[start:stop]) if callable_ else inputs
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
    from ckptplan.torch import measured_sizes

    with pytest.raises(InputError, match=message):
        measured_sizes(lambda state, x: (state + x, x), inputs, torch.zeros(3, 7))


def test_inference_mode_evaluates() -> None:
    """Where nothing is stored, tensors of inference mode are as good as others."""
    cell, _ = gru()
    with torch.inference_mode():
        inputs, state = torch.randn(STEPS, 3, 5).double(), torch.zeros(3, 7).double()
        result = bptt(cell, inputs, state, squares, plan=plan())
    assert not result.loss.requires_grad
