"""Laws of ``wrap``: a network that keeps its state, over whole sequences, is what a loop over its steps is."""

from __future__ import annotations

import copy
import io
from contextvars import ContextVar
from typing import Any

import pytest
import torch
from torch import nn

from ckptplan import InputError
from ckptplan.torch import wrap
from tests.torch import stateful_nets
from tests.torch.stateful_nets import BATCH, INPUTS, NETS, UNITS, LazyAttribute, make_snntorch, reset_all
from tests.torch.support import assert_close, plan_of
from tests.torch.zoo import import_quietly

snntorch = import_quietly("snntorch")
functional, layer, neuron = (
    import_quietly(f"spikingjelly.activation_based.{name}") for name in ("functional", "layer", "neuron")
)
norse = import_quietly("norse.torch")
STEPS = 90


def make(name: str) -> Any:
    torch.manual_seed(0)
    net = NETS[name]()
    # Neurons of snnTorch make tensors of single precision.
    return net if name.startswith("snnTorch") else net.double()


def data(steps: int = STEPS, seed: int = 0, *, like: nn.Module | None = None) -> torch.Tensor:
    """Inputs of the type of a network's weights."""
    generator = torch.Generator().manual_seed(seed)
    inputs = 2 * torch.randn(steps, BATCH, INPUTS, dtype=torch.float64, generator=generator)
    return inputs if like is None else inputs.to(next(like.parameters()).dtype)


def compare(ours: nn.Module, theirs: nn.Module) -> None:
    """Gradients are equal but for rounding."""
    single = next(ours.parameters()).dtype == torch.float32
    assert_close(gradients(ours), gradients(theirs), relative=1e-5 if single else 1e-9)


def loop(net: Any, inputs: torch.Tensor) -> Any:
    """What a user of the network would write."""
    outputs = [net(x) for x in inputs]
    if isinstance(outputs[0], dict):
        return {key: torch.stack([one[key] for one in outputs]) for key in outputs[0]}
    if isinstance(outputs[0], tuple):
        return tuple(torch.stack(parts) for parts in zip(*outputs, strict=True))
    return torch.stack(outputs)


def take_loss(outputs: Any) -> torch.Tensor:
    parts = outputs.values() if isinstance(outputs, dict) else outputs
    parts = [outputs] if isinstance(outputs, torch.Tensor) else list(parts)
    return torch.stack([(one * torch.linspace(0, 1, one.numel()).view_as(one)).sum() for one in parts]).sum()


def gradients(net: nn.Module) -> list[torch.Tensor]:
    return [torch.zeros_like(one) if one.grad is None else one.grad for one in net.parameters()]


def list_values(net: nn.Module) -> list[Any]:
    """All numbers that the modules keep in attributes and buffers."""
    found: list[Any] = []
    for one in net.modules():
        for values in (vars(one), one._buffers, vars(one).get("_memories", {})):
            # Attributes have no order.
            pairs = sorted(values.items())
            found += [value for _, value in pairs if isinstance(value, torch.Tensor | float | int)]
    return found


@pytest.mark.parametrize("name", NETS)
@pytest.mark.parametrize("strategy", ["base", "revolve", "double", "optimal"])
def test_a_wrapped_network_gives_the_outputs_and_gradients_of_a_loop_and_is_left_as_one_leaves_it(
    name: str, strategy: str
) -> None:
    ours, theirs = make(name), make(name)
    wrapped = wrap(
        ours, plan=plan_of(STEPS, strategy, states=1_000 if strategy == "base" else 12), reset=reset_all
    )
    for seed in range(2):
        torch.manual_seed(seed)
        reset_all(theirs)
        expected = loop(theirs, data(seed=seed, like=theirs))
        take_loss(expected).backward()
        torch.manual_seed(seed)
        found = wrapped(data(seed=seed, like=ours))
        torch.testing.assert_close(found, expected)
        take_loss(found).backward()
        compare(ours, theirs)
        torch.testing.assert_close(list_values(ours), list_values(theirs))


# What begins in the third call is not known when the first one is reversed: that one is refused.
LATE = {"late state"}
# Two networks cannot run in turn here.
SHARED = {"attribute of a function", "new global variable"}


@pytest.mark.parametrize("name", sorted(NETS.keys() - LATE - SHARED))
def test_the_state_is_carried_on_from_call_to_call_with_its_graph(name: str) -> None:
    ours, theirs = make(name), make(name)
    for net in (ours, theirs):
        reset_all(net)
    wrapped = wrap(ours, plan=plan_of(STEPS // 3, "standard", states=30))
    torch.manual_seed(0)
    expected = [loop(theirs, part) for part in data(like=ours).split(STEPS // 3)]
    torch.manual_seed(0)
    found = [wrapped(part) for part in data(like=ours).split(STEPS // 3)]
    torch.testing.assert_close(found, expected)
    for parts in (expected, found):
        torch.stack([take_loss(one) for one in parts]).sum().backward()
    compare(ours, theirs)


def test_detach_truncates_backpropagation_at_the_start_of_each_call() -> None:
    ours, theirs, by_hand = make("lazy attribute"), make("lazy attribute"), make("lazy attribute")
    wrapped = wrap(ours, memory="20 kB", detach=True)
    other: Any = wrap(by_hand, memory="20 kB")
    for part in data().split(30):
        take_loss(wrapped(part)).backward()
        take_loss(other(part)).backward()
        other.detach()
        take_loss(loop(theirs, part)).backward()
        theirs.mem = theirs.mem.detach()
    compare(ours, theirs)
    assert_close(gradients(by_hand), gradients(theirs), relative=1e-9)
    torch.testing.assert_close(ours.mem, theirs.mem)


def test_a_limit_of_memory_takes_the_place_of_a_plan_for_batches_of_any_length() -> None:
    ours, theirs = make("snnTorch"), make("snnTorch")
    wrapped: Any = wrap(ours, memory="60 kB", reset=reset_all)
    strategies = set()
    for steps in (20, 90, 150):
        found = wrapped(data(steps, like=ours))
        assert wrapped.plan is not None
        assert wrapped.plan.steps == steps
        assert wrapped.plan.predicted.local_peak_bytes <= 60_000
        strategies.add(wrapped.plan.strategy)
        reset_all(theirs)
        take_loss(found).backward()
        take_loss(loop(theirs, data(steps, like=ours))).backward()
    assert strategies > {"base"}
    compare(ours, theirs)


def test_a_library_resets_the_wrapped_network_as_it_does_the_network() -> None:
    ours = make("snnTorch")
    wrapped = wrap(ours, memory="100 kB")
    first = wrapped(data(20, like=ours))
    import_quietly("snntorch.utils").reset(wrapped)
    torch.testing.assert_close(wrapped(data(20, like=ours)), first)
    nodes = make("SpikingJelly")
    again = wrap(nodes, memory="100 kB")
    first = again(data(20))
    functional.reset_net(again)
    torch.testing.assert_close(again(data(20)), first)


def test_parameters_buffers_and_children_have_the_names_of_the_network() -> None:
    net: Any = make_snntorch()
    wrapped: Any = wrap(net, memory="1 MB")
    assert list(wrapped.state_dict()) == list(net.state_dict())
    assert dict(wrapped.named_parameters()) == dict(net.named_parameters())
    assert list(wrapped.children()) == list(net.children())
    assert wrapped[1] is net[1]
    assert len(wrapped) == len(net)
    outer = nn.ModuleDict({"snn": wrapped, "head": nn.Linear(2, 2)})
    assert set(outer.state_dict()) == {f"snn.{key}" for key in net.state_dict()} | {"head.weight", "head.bias"}
    torch.manual_seed(3)
    outer.load_state_dict(nn.ModuleDict({"snn": make_snntorch(), "head": nn.Linear(2, 2)}).state_dict())
    torch.manual_seed(3)
    again: Any = make_snntorch()
    torch.testing.assert_close(net[0].weight, again[0].weight)
    wrapped.double().eval()
    assert net[0].weight.dtype == torch.float64
    assert not net[1].training


def test_attributes_of_the_network_are_read_and_set_by_the_wrapped_one() -> None:
    net = make("lazy attribute")
    wrapped = wrap(net, memory="100 kB")
    wrapped(data(20))
    assert wrapped.mem is net.mem
    wrapped.mem = None
    assert net.mem is None
    wrapped.reset()


def test_a_wrapped_network_can_be_copied_and_pickled_after_a_call() -> None:
    wrapped = wrap(make("lazy attribute"), memory="100 kB")
    take_loss(wrapped(data(40))).backward()
    twin = copy.deepcopy(wrapped)
    assert twin.net is not wrapped.net
    assert twin.enter.weight is not wrapped.enter.weight
    torch.testing.assert_close(twin.mem, wrapped.mem.detach())
    torch.testing.assert_close(twin(data(40)), wrapped(data(40)))
    wrapped.detach()
    file = io.BytesIO()
    torch.save(wrapped, file)
    file.seek(0)
    loaded = torch.load(file, weights_only=False)
    torch.testing.assert_close(loaded(data(20)), twin(data(20)))


class Showing(LazyAttribute):
    """A network that keeps its last output, too, in a list."""

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """Return the output of a step."""
        self.shown = [super().forward(x)]
        found: torch.Tensor = self.shown[0]
        return found


def test_a_copy_holds_no_graph_and_leaves_that_of_the_network() -> None:
    wrapped: Any = wrap(Showing().double(), memory="100 kB")
    loss = take_loss(wrapped(data(40)))
    held = wrapped.shown[0], wrapped.mem
    twin: Any = copy.deepcopy(torch.nn.Sequential(wrapped))[0]
    assert (wrapped.shown[0], wrapped.mem) == held
    assert [one.grad_fn for one in (twin.shown[0], twin.mem)] == [None, None]
    torch.testing.assert_close((twin.shown[0], twin.mem), held)
    loss.backward()


def test_without_gradients_a_call_is_a_plain_loop() -> None:
    ours, theirs = make("list of layers"), make("list of layers")
    with torch.no_grad():
        torch.testing.assert_close(wrap(ours, memory="1 kB")(data()), loop(theirs, data()))
    torch.testing.assert_close(list_values(ours), list_values(theirs))


def test_bptt_sums_a_loss_of_each_step_and_keeps_no_outputs() -> None:
    ours, theirs = make("lazy attribute"), make("lazy attribute")
    # The outputs of all steps would take 10.8 kB, and as much again for their gradients.
    wrapped = wrap(ours, memory="6 kB", reset=reset_all)
    loss = wrapped.bptt(data(), loss=lambda t, output: (t + 1) * output.square().mean())
    expected = torch.stack([(t + 1) * one.square().mean() for t, one in enumerate(loop(theirs, data()))]).sum()
    torch.testing.assert_close(loss, expected)
    loss.backward()
    expected.backward()
    compare(ours, theirs)


def test_inputs_without_time_are_given_to_each_step() -> None:
    ours, theirs = make("snnTorch"), make("snnTorch")
    image = data(1, like=ours)[0].requires_grad_()
    found = wrap(ours, memory="100 kB")(image, steps=20)
    torch.testing.assert_close(found, loop(theirs, image.expand(20, *image.shape)))
    (ours_gradient,) = torch.autograd.grad(take_loss(found), [image])
    (theirs_gradient,) = torch.autograd.grad(
        take_loss(loop(make("snnTorch"), image.expand(20, -1, -1))), [image]
    )
    torch.testing.assert_close(ours_gradient, theirs_gradient)


class Gated(nn.Module):
    """Takes two inputs a step, and a keyword that is the same in each."""

    def __init__(self) -> None:
        super().__init__()
        self.enter = nn.Linear(INPUTS, UNITS)
        self.h: Any = 0.0

    def forward(self, x: torch.Tensor, gate: torch.Tensor, *, scale: torch.Tensor) -> Any:
        self.h = torch.tanh(self.enter(x) + self.h) * torch.sigmoid(gate) * scale
        return self.h


def test_several_inputs_and_keywords_are_passed_on_with_their_gradients() -> None:
    torch.manual_seed(0)
    ours, theirs = Gated().double(), Gated().double()
    theirs.load_state_dict(ours.state_dict())
    weight = torch.full((UNITS,), 0.3, dtype=torch.float64, requires_grad=True)
    gates = torch.randn(STEPS, BATCH, UNITS, dtype=torch.float64, requires_grad=True)
    wrapped = wrap(ours, plan=plan_of(STEPS, "standard", states=50))
    # The keyword has a graph of its own.
    found = wrapped(data(), gates, scale=torch.exp(weight))
    expected = torch.stack(
        [theirs(x, gate, scale=torch.exp(weight)) for x, gate in zip(data(), gates, strict=True)]
    )
    torch.testing.assert_close(found, expected)
    wanted = [weight, gates]
    assert_close(
        torch.autograd.grad(take_loss(found), [*wanted, *ours.parameters()]),
        torch.autograd.grad(take_loss(expected), [*wanted, *theirs.parameters()]),
        relative=1e-9,
    )


def test_networks_of_norse_take_a_state_and_return_it() -> None:
    torch.manual_seed(0)
    net = norse.SequentialState(nn.Linear(INPUTS, UNITS), norse.LIFCell(), nn.Linear(UNITS, 2), norse.LICell())
    net = net.double()
    theirs = norse.Lift(copy.deepcopy(net))
    inputs = 5 * data()
    for wrapped in (
        wrap(net, plan=plan_of(STEPS, "standard", states=50)),
        wrap(norse.Lift(net), memory="200 kB"),
    ):
        net.zero_grad()
        theirs.zero_grad()
        outputs, state = wrapped(inputs)
        expected, expected_state = theirs(inputs)
        torch.testing.assert_close(outputs, expected)
        torch.testing.assert_close(state[1], expected_state[1])
        more, _ = wrapped(inputs, state)
        expected_more, _ = theirs((inputs, expected_state))
        torch.testing.assert_close(more, expected_more)
        take_loss(more).backward()
        take_loss(expected_more).backward()
        assert_close(gradients(net), gradients(theirs), relative=1e-9)


def test_cells_of_pytorch_take_a_state_and_return_it() -> None:
    torch.manual_seed(0)
    cell = nn.LSTMCell(INPUTS, UNITS).double()
    outputs, (h, _) = wrap(cell, memory="100 kB")(data())
    state, expected = None, []
    for x in data():
        state = cell(x, state)
        expected.append(state[0])
    torch.testing.assert_close(outputs, torch.stack(expected))
    torch.testing.assert_close(h, expected[-1])


def test_a_global_variable_may_be_called_as_an_attribute_is(monkeypatch: pytest.MonkeyPatch) -> None:
    """As in a notebook, where ``out`` is what a network with a layer ``out`` returned."""
    for _ in range(2):
        net = make("lazy attribute")
        outputs = wrap(net, memory="40 kB", reset=reset_all)(data(like=net))
        monkeypatch.setattr(stateful_nets, "enter", outputs, raising=False)
        outputs.sum().backward()


class Feedforward(nn.Module):
    """Counts its calls, and keeps nothing else."""

    def __init__(self) -> None:
        super().__init__()
        self.enter, self.calls = nn.Linear(INPUTS, 2), 0

    def forward(self, x: torch.Tensor) -> Any:
        self.calls += 1
        return self.enter(x)


def test_a_network_that_keeps_nothing_is_refused() -> None:
    with pytest.raises(InputError, match="keeps nothing from one time step to the next"):
        wrap(nn.Linear(INPUTS, 2).double(), memory="1 MB")(data())
    torch.manual_seed(0)
    ours = Feedforward().double()
    theirs = copy.deepcopy(ours)
    take_loss(wrap(ours, memory="40 kB")(data())).backward()
    take_loss(loop(theirs, data())).backward()
    compare(ours, theirs)
    assert ours.calls == STEPS


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"memory": "1 MB", "plan": plan_of(5)}, "memory: is given together with plan"),
        ({"memory": "a lot"}, "memory"),
        ({"memory": "10 megabytes"}, "unknown unit 'megabytes'. Units are B, kB, MB, "),
        ({"memory": "1 kB"}, "memory: 1 kB are too little: this call needs"),
        (
            {"memory": "1 kB"},
            "outputs and gradients of the sequence, more than the limit: .* with .* bptt of a wrapped network",
        ),
        ({"reset": 3}, "reset: 3 cannot be called"),
        ({"reset": "reset"}, "reset: 'reset' cannot be called .* its own method, as net.reset"),
        ({"piece_size": 3}, "piece_size: is not an argument of wrap"),
        (
            {"memmory": "1 MB"},
            "memmory: .* Did you mean 'memory'?.*accepted: .*detach, memory, .* reset, ",
        ),
    ],
)
def test_bad_arguments_are_refused(arguments: dict[str, Any], message: str) -> None:
    with pytest.raises(InputError, match=message):
        wrap(make("lazy attribute"), **arguments)(data())


def test_an_array_of_numpy_is_named_as_what_it_is() -> None:
    """Whether it is what a wrapped network gets, or within what it gets."""
    for given in (data().numpy(), [data().numpy()]):
        with pytest.raises(InputError, match=r"inputs: a NumPy array is no tensor .*torch\.from_numpy"):
            wrap(make("lazy attribute"), memory="1 MB")(given)


def test_a_context_variable_without_a_value_is_refused() -> None:
    """Nothing takes a first value away from it, so that steps could not run again as they were."""
    kept: ContextVar[torch.Tensor] = ContextVar("kept")

    class Net(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.enter = nn.Linear(INPUTS, UNITS)

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            h = torch.tanh(self.enter(x) + kept.get(torch.zeros(BATCH, UNITS)))
            kept.set(h)
            return h

    net = Net()
    with pytest.raises(InputError, match="kept, a context variable, its first value"):
        wrap(net, memory="20 kB")(data(like=net))


def test_what_is_no_module_is_refused() -> None:
    with pytest.raises(InputError, match="'function' is not a module"):
        wrap(lambda x: x, memory="1 MB")  # type: ignore[arg-type]
    wrapped = wrap(LazyAttribute(), memory="1 MB")
    with pytest.raises(InputError, match="is wrapped already"):
        wrap(wrapped, memory="1 MB")
    with pytest.raises(InputError, match="inputs: are missing"):
        wrapped()
    with pytest.raises(InputError, match="reset: has no meaning"):
        wrap(norse.LIFCell(), memory="1 MB", reset=reset_all)


def test_modules_that_are_replaced_are_searched_anew() -> None:
    net: Any = nn.Sequential(nn.Linear(INPUTS, UNITS), snntorch.Leaky(beta=0.9, init_hidden=True)).double()
    wrapped = wrap(net, memory="1 MB")
    wrapped(data(20))
    net[1] = snntorch.Synaptic(alpha=0.9, beta=0.8, init_hidden=True)
    found = wrapped(data(20))
    net[1].reset_mem()
    torch.testing.assert_close(found, loop(net, data(20)))


def test_recurrent_layers_of_pytorch_keep_their_call() -> None:
    torch.manual_seed(0)
    net = nn.LSTM(INPUTS, UNITS, num_layers=2).double()
    wrapped = wrap(net, memory="100 kB", piece=10)
    torch.testing.assert_close(wrapped(data()), net(data()))
    with pytest.raises(InputError, match="piece: has no meaning for LazyAttribute"):
        wrap(LazyAttribute(), memory="1 MB", piece=10)
    with pytest.raises(InputError, match="reset: has no meaning"):
        wrap(net, memory="1 MB", reset=reset_all)


class Switched(nn.Module):
    """A second state that has a graph only if something is switched on: a weight, or from some step on."""

    def __init__(self, *, begins: int = 0) -> None:
        super().__init__()
        self.enter, self.scale = nn.Linear(INPUTS, UNITS), nn.Parameter(torch.tensor(0.5))
        self.begins = begins
        self.reset()

    def reset(self) -> None:
        self.h: Any = 0.0
        self.side: Any = torch.ones(BATCH, UNITS, dtype=torch.float64)
        self.t = 0

    def forward(self, x: torch.Tensor) -> Any:
        self.t += 1
        self.h = torch.tanh(self.enter(x) + 0.5 * self.h + self.side)
        self.side = 0.9 * self.side * (self.scale if self.t > self.begins else 1.0)
        return self.h


def test_a_state_that_has_a_gradient_only_later_is_carried_on_with_it() -> None:
    """A weight that is frozen in the first call, and steps after the 64 that are tried."""
    for begins, frozen in ((0, True), (70, False)):
        torch.manual_seed(0)
        ours, theirs = Switched(begins=begins).double(), Switched(begins=begins).double()
        theirs.load_state_dict(ours.state_dict())
        wrapped = wrap(ours, plan=plan_of(STEPS, "standard", states=50))
        for net in (ours, theirs):
            net.scale.requires_grad_(not frozen)
        with torch.no_grad():
            loop(theirs, data())
        wrapped(data()).sum().backward()
        for net in (ours, theirs):
            net.scale.requires_grad_()
            net.zero_grad()
            net.reset()
        (take_loss(wrapped(data())) + take_loss(wrapped(data(seed=1)))).backward()
        (take_loss(loop(theirs, data())) + take_loss(loop(theirs, data(seed=1)))).backward()
        assert theirs.scale.grad is not None
        compare(ours, theirs)


def test_gradients_flow_from_the_state_that_bptt_leaves() -> None:
    def loss(_: int, output: torch.Tensor) -> torch.Tensor:
        return output.sum()

    ours, theirs = make("lazy attribute"), make("lazy attribute")
    wrapped: Any = wrap(ours, memory="20 kB")
    for net, total in ((ours, wrapped.bptt(data(), loss=loss)), (theirs, loop(theirs, data()).sum())):
        (total + net.mem.square().sum()).backward()
    compare(ours, theirs)
    second = wrapped.bptt(data(), loss=loss)
    with pytest.raises(RuntimeError, match=r"a second time.* detach the state or reset the network"):
        second.backward()
    wrapped.detach()
    wrapped.bptt(data(), loss=loss).backward()


def test_the_mode_of_a_wrapped_network_is_that_of_the_network_however_it_is_set() -> None:
    net = make("lazy attribute")
    wrapped = wrap(net, memory="1 MB")
    wrapped.training = False
    assert not net.training
    net.training = True
    assert wrapped.training


def test_a_reset_may_be_a_method_of_the_network() -> None:
    net = make("lazy attribute")
    wrapped = wrap(net, memory="100 kB", reset=net.reset)
    torch.testing.assert_close(wrapped(data()), wrapped(data()))


def test_inputs_without_a_time_axis_are_told_apart_where_the_network_fails() -> None:
    net = nn.Sequential(nn.BatchNorm1d(INPUTS), LazyAttribute()).double()
    with pytest.raises(ValueError, match="expected 2D or 3D input") as failed:
        wrap(net, memory="1 MB")(data()[0])
    assert "net(x, steps=100)" in "".join(failed.value.__notes__)


class SharedDict(nn.Module):
    """A layer that keeps its state in a dict, which the module around it reads."""

    def __init__(self) -> None:
        super().__init__()
        self.state = {"h": torch.zeros(BATCH, INPUTS, dtype=torch.float64)}
        self.layer = KeptDict(self.state)

    def forward(self, x: torch.Tensor) -> Any:
        return self.layer(x + self.state["h"])


class KeptDict(nn.Module):
    """A layer whose steps put their state into the dict that it was given."""

    def __init__(self, kept: dict[str, torch.Tensor]) -> None:
        super().__init__()
        self.dense = nn.Linear(INPUTS, INPUTS)
        self.state = kept

    def forward(self, x: torch.Tensor) -> Any:
        self.state["h"] = torch.tanh(self.dense(x) + self.state["h"])
        return self.state["h"]


class SharedBuffer(nn.Module):
    """A buffer that steps write into, and a view of it that they read."""

    traces: torch.Tensor
    slow: torch.Tensor

    def __init__(self) -> None:
        super().__init__()
        self.dense = nn.Linear(INPUTS, INPUTS)
        self.register_buffer("traces", torch.zeros(2, BATCH, INPUTS, dtype=torch.float64))
        self.slow = self.traces[0]

    def forward(self, x: torch.Tensor) -> Any:
        after = torch.tanh(self.dense(x) + self.slow.clone())
        self.traces.mul_(0.8).add_(after.detach())
        return after


@pytest.mark.parametrize("options", [{}, {"detach": True}])
@pytest.mark.parametrize("kind", [SharedDict, SharedBuffer])
def test_two_attributes_may_share_a_state(kind: Any, options: Any) -> None:
    """What steps write into one of them shows in the other, when steps run again, too."""
    torch.manual_seed(0)
    ours = kind().double()
    theirs = copy.deepcopy(ours)
    found = wrap(ours, plan=plan_of(STEPS, "revolve", states=12), **options)(data())
    expected = loop(theirs, data())
    torch.testing.assert_close(found, expected)
    take_loss(found).backward()
    take_loss(expected).backward()
    compare(ours, theirs)


@pytest.mark.parametrize("options", [{}, {"detach": True}])
def test_a_container_stays_the_one_that_the_user_knows(options: dict[str, Any]) -> None:
    """Who resets the state by the dict that he gave the network finds it there in each call."""
    results = []
    for planned in (True, False):
        torch.manual_seed(0)
        kept: dict[str, torch.Tensor] = {}
        net = KeptDict(kept).double()
        run = wrap(net, plan=plan_of(STEPS, "standard", states=50), **options) if planned else None
        found = []
        for call in range(3):
            kept["h"] = torch.full((BATCH, INPUTS), float(call), dtype=torch.float64)
            net.zero_grad()
            outputs = loop(net, data()) if run is None else run(data())
            outputs.square().sum().backward()
            assert net.state is kept
            found.append([outputs.detach(), *gradients(net)])
        results.append(found)
    for ours, theirs in zip(*results, strict=True):
        assert_close(ours, theirs, relative=1e-9)


def test_a_cell_that_takes_its_state_is_pointed_to_the_function_for_it() -> None:
    class Cell(torch.nn.Module):
        def forward(self, state: torch.Tensor, x: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
            return state + x, x

    with pytest.raises(TypeError, match="missing 1 required positional argument") as failed:
        wrap(Cell(), memory="1 MB")(torch.randn(20, 3, 5))
    assert "takes (state, x), use ckptplan.torch.scan or bptt" in "".join(failed.value.__notes__)
