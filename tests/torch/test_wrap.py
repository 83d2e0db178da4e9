"""Laws of ``wrap``: a network that keeps its state, over whole sequences, is what a loop over its steps is."""

from __future__ import annotations

import copy
import io
from collections.abc import Callable
from contextvars import ContextVar
from functools import partial
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from ckptplan import InputError
from ckptplan.torch import wrap
from ckptplan.torch.state.reach import walk
from tests.torch import stateful_nets
from tests.torch.limit_tables import plan_steps
from tests.torch.stateful_nets import (
    BATCH,
    FEW_STEPS,
    INPUTS,
    NETS,
    OTHERS,
    STEPS,
    UNITS,
    Net,
    keep_lazily,
    make_snntorch,
    reset_all,
)
from tests.torch.support import assert_close, plan_of
from tests.torch.zoo import import_quietly

snntorch = import_quietly("snntorch")
functional = import_quietly("spikingjelly.activation_based.functional")
norse = import_quietly("norse.torch")


def make(name: str) -> Any:
    torch.manual_seed(0)
    net = {**NETS, **OTHERS}[name]()
    # Neurons of snnTorch make tensors of single precision.
    return net if name.startswith("snnTorch") else net.double()


def make_two(name: str) -> tuple[Any, Any]:
    """Return two networks with the same weights."""
    return make(name), make(name)


def data(steps: int = STEPS, seed: int = 0, *, like: nn.Module | None = None) -> Tensor:
    """Inputs of the type of a network's weights."""
    generator = torch.Generator().manual_seed(seed)
    inputs = 2 * torch.randn(steps, BATCH, INPUTS, dtype=torch.float64, generator=generator)
    return inputs if like is None else inputs.to(next(like.parameters()).dtype)


def gradients(net: nn.Module) -> list[Tensor]:
    return [torch.zeros_like(one) if one.grad is None else one.grad for one in net.parameters()]


def compare(ours: nn.Module, theirs: nn.Module) -> None:
    """Gradients are equal but for rounding."""
    single = next(ours.parameters()).dtype == torch.float32
    assert_close(gradients(ours), gradients(theirs), relative=1e-5 if single else 1e-9)


def loop(net: Any, *inputs: Tensor, **constants: Any) -> Any:
    """What a user of the network would write."""
    outputs = [net(*parts, **constants) for parts in zip(*inputs, strict=True)]
    if isinstance(outputs[0], dict):
        return {key: torch.stack([one[key] for one in outputs]) for key in outputs[0]}
    if isinstance(outputs[0], tuple):
        return tuple(torch.stack(parts) for parts in zip(*outputs, strict=True))
    return torch.stack(outputs)


def take_loss(outputs: Any) -> Tensor:
    """Return a sum in which each output has a weight of its own."""
    parts = outputs.values() if isinstance(outputs, dict) else outputs
    parts = [outputs] if isinstance(outputs, Tensor) else list(parts)
    parts = [torch.view_as_real(part) if part.is_complex() else part for part in parts]
    return torch.stack(
        [(part * torch.linspace(0, 1, part.numel()).view_as(part)).sum() for part in parts]
    ).sum()


def list_values(net: nn.Module) -> list[Any]:
    """All numbers that the modules keep in attributes and buffers."""
    found: list[Any] = []
    for one in net.modules():
        for values in (vars(one), one._buffers, vars(one).get("_memories", {})):
            # Attributes have no order.
            pairs = sorted(values.items())
            found += [value for _, value in pairs if isinstance(value, Tensor | float | int)]
    return found


#: The networks, each with the ways to run it: all strategies for many steps, and two for few.
CASES = [
    *((name, how) for name in NETS for how in ("base", "revolve", "double", "optimal")),
    *((name, how) for name in OTHERS for how in ("memory", "revolve")),
]


@pytest.mark.parametrize(("name", "how"), CASES)
def test_a_wrapped_network_gives_the_outputs_and_gradients_of_a_loop_and_is_left_as_one_leaves_it(
    name: str, how: str
) -> None:
    ours, theirs = make_two(name)
    steps = STEPS if name in NETS else 100 if name == "late reader" else FEW_STEPS
    options: dict[str, Any] = {"memory": "1 MB"}
    if how != "memory":
        options = {"plan": plan_steps(steps, how, states=12 if steps == STEPS else 8)}
    wrapped = wrap(ours, reset=reset_all, **options)
    for seed in range(2):
        inputs = data(steps, seed=seed, like=ours)
        torch.manual_seed(seed)
        reset_all(theirs)
        expected = loop(theirs, inputs)
        take_loss(expected).backward()
        torch.manual_seed(seed)
        found = wrapped(inputs)
        torch.testing.assert_close(found, expected)
        take_loss(found).backward()
        compare(ours, theirs)
        torch.testing.assert_close(list_values(ours), list_values(theirs))


# State between calls

# What begins in the third call is not known when the first one is reversed: that one is refused.
LATE = {"late state"}
# Two networks cannot run in turn here.
SHARED = {"attribute of a function", "new global variable"}


@pytest.mark.parametrize("name", sorted(NETS.keys() - LATE - SHARED))
def test_the_state_is_carried_on_from_call_to_call_with_its_graph(name: str) -> None:
    ours, theirs = make_two(name)
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


@pytest.mark.parametrize("how", ["outputs", "losses of steps"])
def test_a_loss_of_the_state_that_a_call_leaves_has_its_gradient(how: str) -> None:
    """A sum over time, and the last state; another backward pass needs another graph."""
    ours, theirs = make_two("penalty")
    wrapped: Any = wrap(ours, plan=plan_of(FEW_STEPS, "revolve", states=8))

    def sum_outputs() -> Any:
        if how == "outputs":
            return wrapped(data(FEW_STEPS)).sum()
        return wrapped.bptt(data(FEW_STEPS), loss=lambda _, output: output.sum())

    for net, total in ((ours, sum_outputs()), (theirs, loop(theirs, data(FEW_STEPS)).sum())):
        (total + net.a + net.h.square().sum()).backward()
    compare(ours, theirs)
    second = sum_outputs()
    with pytest.raises(RuntimeError, match=r"a second time.* detach the state or reset the network"):
        second.backward()
    wrapped.detach()
    sum_outputs().backward()


def test_detach_truncates_backpropagation_at_the_start_of_each_call() -> None:
    (ours, theirs), by_hand = make_two("lazy attribute"), make("lazy attribute")
    wrapped = wrap(ours, memory="20 kB", detach=True)
    other: Any = wrap(by_hand, memory="20 kB")
    for part in data().split(30):
        take_loss(wrapped(part)).backward()
        take_loss(other(part)).backward()
        other.detach()
        take_loss(loop(theirs, part)).backward()
        theirs.mem = theirs.mem.detach()
    compare(ours, theirs)
    compare(by_hand, theirs)
    torch.testing.assert_close(ours.mem, theirs.mem)


@pytest.mark.parametrize("library", ["snnTorch", "SpikingJelly", "by hand"])
def test_a_wrapped_network_is_reset_as_the_network_is(library: str) -> None:
    net = make({"by hand": "lazy attribute"}.get(library, library))
    options: dict[str, Any] = {"reset": net.reset} if library == "by hand" else {}
    wrapped = wrap(net, memory="100 kB", **options)
    first = wrapped(data(20, like=net))
    if library == "snnTorch":
        import_quietly("snntorch.utils").reset(wrapped)
    if library == "SpikingJelly":
        functional.reset_net(wrapped)
    torch.testing.assert_close(wrapped(data(20, like=net)), first)


# Arguments and losses


def test_a_limit_of_memory_takes_the_place_of_a_plan_for_batches_of_any_length() -> None:
    ours, theirs = make_two("snnTorch")
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


def test_without_gradients_a_call_is_a_plain_loop() -> None:
    ours, theirs = make_two("list of layers")
    with torch.no_grad():
        torch.testing.assert_close(wrap(ours, memory="1 kB")(data()), loop(theirs, data()))
    torch.testing.assert_close(list_values(ours), list_values(theirs))


def test_bptt_sums_a_loss_of_each_step_and_keeps_no_outputs() -> None:
    ours, theirs = make_two("lazy attribute")
    # The outputs of all steps would take 10.8 kB, and as much again for their gradients.
    wrapped = wrap(ours, memory="6 kB", reset=reset_all)
    loss = wrapped.bptt(data(), loss=lambda t, output: (t + 1) * output.square().mean())
    expected = torch.stack([(t + 1) * one.square().mean() for t, one in enumerate(loop(theirs, data()))]).sum()
    torch.testing.assert_close(loss, expected)
    loss.backward()
    expected.backward()
    compare(ours, theirs)


def test_inputs_without_time_are_given_to_each_step() -> None:
    ours, theirs = make_two("snnTorch")
    image = data(1, like=ours)[0].requires_grad_()
    found = wrap(ours, memory="100 kB")(image, steps=20)
    expected = loop(theirs, image.expand(20, *image.shape))
    torch.testing.assert_close(found, expected)
    slopes = [torch.autograd.grad(take_loss(outputs), [image])[0] for outputs in (found, expected)]
    torch.testing.assert_close(*slopes)


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
        compare(net, theirs)


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


# The module


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
    reached: list[nn.Module] = []
    outer.apply(reached.append)
    assert net in reached
    assert net in list(outer.modules())


def test_attributes_and_the_mode_are_those_of_the_network_however_they_are_set() -> None:
    net = make("lazy attribute")
    wrapped = wrap(net, memory="100 kB")
    wrapped(data(20))
    assert wrapped.mem is net.mem
    wrapped.mem = None
    assert net.mem is None
    wrapped.reset()
    wrapped.training = False
    assert not net.training
    net.training = True
    assert wrapped.training


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


def test_a_copy_holds_no_graph_and_leaves_that_of_the_network() -> None:
    def step(net: Any, x: Tensor) -> Any:
        net.shown = [keep_lazily(net, x)]
        return net.shown[0]

    wrapped: Any = wrap(Net(step, {"mem": None}).double(), memory="100 kB")
    loss = take_loss(wrapped(data(40)))
    held = wrapped.shown[0], wrapped.mem
    twin: Any = copy.deepcopy(nn.Sequential(wrapped))[0]
    assert (wrapped.shown[0], wrapped.mem) == held
    assert [one.grad_fn for one in (twin.shown[0], twin.mem)] == [None, None]
    torch.testing.assert_close((twin.shown[0], twin.mem), held)
    loss.backward()


def test_a_global_variable_may_have_the_name_of_an_attribute(monkeypatch: pytest.MonkeyPatch) -> None:
    """As in a notebook, where ``out`` is what a network with a layer ``out`` returned."""
    for _ in range(2):
        net = make("lazy attribute")
        outputs = wrap(net, memory="40 kB", reset=reset_all)(data(like=net))
        monkeypatch.setattr(stateful_nets, "enter", outputs, raising=False)
        outputs.sum().backward()


def test_other_networks_of_snntorch_in_the_process_are_not_searched() -> None:
    """No result tells: a search of all of them takes longer."""
    net = make_snntorch()
    before = len(walk({"net": net}).holders)
    others = [make_snntorch() for _ in range(5)]
    assert len(walk({"net": net}).holders) == before
    assert len(others) == 5


# Programs: each trains by ``run(net, inputs)``, which returns all outputs, and returns what is compared


class Surrogate(torch.autograd.Function):
    """A spike, whose surrogate gradient has a width."""

    @staticmethod
    def forward(ctx: Any, potential: Tensor, width: Tensor) -> Any:
        ctx.save_for_backward(potential, width)
        return (potential > 0).double()

    @staticmethod
    def backward(ctx: Any, *gradients: Any) -> Any:
        potential, width = ctx.saved_tensors
        return gradients[0] / (1 + (potential / width) ** 2), None


class KeptDict(nn.Module):
    """A layer whose steps put their state into the dict that it was given."""

    def __init__(self, kept: dict[str, Tensor]) -> None:
        super().__init__()
        self.dense = nn.Linear(INPUTS, INPUTS)
        self.state = kept

    def forward(self, x: Tensor) -> Any:
        self.state["h"] = torch.tanh(self.dense(x) + self.state["h"])
        return self.state["h"]


class SharedDict(nn.Module):
    """A layer that keeps its state in a dict, which the module around it reads."""

    def __init__(self) -> None:
        super().__init__()
        self.state = {"h": torch.zeros(BATCH, INPUTS, dtype=torch.float64)}
        self.layer = KeptDict(self.state)

    def forward(self, x: Tensor) -> Any:
        return self.layer(x + self.state["h"])


class SharedBuffer(nn.Module):
    """A buffer that steps write into, and a view of it that they read."""

    traces: Tensor
    slow: Tensor

    def __init__(self) -> None:
        super().__init__()
        self.dense = nn.Linear(INPUTS, INPUTS)
        self.register_buffer("traces", torch.zeros(2, BATCH, INPUTS, dtype=torch.float64))
        self.slow = self.traces[0]

    def forward(self, x: Tensor) -> Any:
        after = torch.tanh(self.dense(x) + self.slow.clone())
        self.traces.mul_(0.8).add_(after.detach())
        return after


Run = Callable[..., Tensor]


def share_state(kind: Callable[[], nn.Module], run: Run, inputs: Tensor) -> list[Any]:
    """What steps write into one of two attributes shows in the other, when steps run again, too."""
    net = kind().double()
    outputs = run(net, inputs)
    take_loss(outputs).backward()
    return [outputs.detach(), *gradients(net)]


def put_into_container(run: Run, inputs: Tensor) -> list[Any]:
    """Who resets the state by the dict that he gave the network finds it there in each call."""
    kept: dict[str, Tensor] = {}
    net, found = KeptDict(kept).double(), list[Any]()
    for call in range(3):
        kept["h"] = torch.full((BATCH, INPUTS), float(call), dtype=torch.float64)
        net.zero_grad()
        outputs = run(net, inputs)
        outputs.square().sum().backward()
        assert net.state is kept
        found += [outputs.detach(), *gradients(net)]
    return found


def begin_with_loop(run: Run, inputs: Tensor) -> list[Any]:
    """A plain loop leaves a state with its graph; its first step begins with a weight."""
    net = make("learned trace")
    net.trace = None
    outputs = loop(net, inputs), run(net, inputs)
    torch.stack([take_loss(part) for part in outputs]).sum().backward()
    return [*(part.detach() for part in outputs), *gradients(net)]


def need_gradients_later(begins: int, frozen: bool, run: Run, inputs: Tensor) -> list[Any]:
    """A second state has a graph after a weight is thawed, or from a step after those that are tried."""

    def step(net: Any, x: Tensor) -> Any:
        net.t += 1
        net.h = torch.tanh(net.enter(x) + 0.5 * net.h + net.side)
        net.side = 0.9 * net.side * (net.scale if net.t > begins else 1.0)
        return net.h

    first = {"h": 0.0, "t": 0, "side": lambda net: torch.ones_like(stateful_nets.zeros(net))}
    net: Any = Net(step, first, scale=nn.Parameter(torch.tensor(0.5))).double()
    net.reset()
    net.scale.requires_grad_(not frozen)
    run(net, inputs).sum().backward()
    net.scale.requires_grad_()
    net.zero_grad()
    net.reset()
    (take_loss(run(net, inputs)) + take_loss(run(net, -inputs))).backward()
    assert net.scale.grad is not None
    return gradients(net)


def give_several_inputs(run: Run, inputs: Tensor) -> list[Any]:
    """Two inputs a step, and a keyword with a graph that is the same in each."""

    class Gated(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.enter = nn.Linear(INPUTS, UNITS)
            self.h: Any = 0.0

        def forward(self, x: Tensor, gate: Tensor, *, scale: Tensor) -> Any:
            self.h = torch.tanh(self.enter(x) + self.h) * torch.sigmoid(gate) * scale
            return self.h

    net = Gated().double()
    weight = torch.full((UNITS,), 0.3, dtype=torch.float64, requires_grad=True)
    gates = torch.randn(len(inputs), BATCH, UNITS, dtype=torch.float64, requires_grad=True)
    outputs = run(net, inputs, gates, scale=torch.exp(weight))
    wanted = [weight, gates, *net.parameters()]
    return [outputs.detach(), *torch.autograd.grad(take_loss(outputs), wanted)]


def replace_neurons(run: Run, inputs: Tensor) -> list[Any]:
    """Modules that are replaced between calls are searched again."""
    net: Any = nn.Sequential(nn.Linear(INPUTS, UNITS), snntorch.Leaky(beta=0.9, init_hidden=True)).double()
    run(net, inputs)
    net[1] = snntorch.Synaptic(alpha=0.9, beta=0.8, init_hidden=True)
    return [run(net, inputs).detach()]


def leave_graph(run: Run, inputs: Tensor) -> list[Any]:
    """A result stays with its graph in an attribute that no step reads."""

    def step(net: Any, x: Tensor) -> Any:
        output = keep_lazily(net, x)
        net.rate = output.mean()
        return output

    net: Any = Net(step, {"mem": None}).double()
    torch.stack([net(x) for x in inputs]).sum().backward()
    net.mem, net.enter.weight.grad = None, None
    run(net, inputs).square().mean().backward()
    return [net.enter.weight.grad]


def move_late(run: Run, inputs: Tensor) -> list[Any]:
    """The width of a surrogate follows a firing rate, which begins to move in the middle of the sequence."""

    def step(net: Any, x: Tensor) -> Any:
        net.calls += 1
        net.state = 0.95 * net.state + net.enter(x) * (net.calls > 30)
        spikes: Tensor = Surrogate.apply(net.state - 0.5, 0.2 + net.rate)  # type: ignore[no-untyped-call]
        net.rate = 0.9 * net.rate + spikes.detach().mean(0)
        net.state = net.state - spikes.detach()
        return spikes

    first = {"calls": 0, "state": 0.0, "rate": lambda _: torch.zeros(UNITS).double()}
    net: Any = Net(step, first).double()
    (run(net, inputs) - 0.1).square().mean().backward()
    return [net.enter.weight.grad, net.rate]


def write_one_log(run: Run, inputs: Tensor) -> list[Any]:
    """A forward and a backward hook write into one log."""
    net, log = make("lazy attribute"), list[str]()
    net.enter.register_forward_hook(lambda *_: log.append("forward"))
    net.enter.register_full_backward_hook(lambda *_: log.append("backward"))
    run(net, inputs.clone().requires_grad_()).square().mean().backward()
    return [net.enter.weight.grad, torch.tensor([log.count("forward"), log.count("backward")])]


def set_default_dtype(run: Run, inputs: Tensor) -> list[Any]:
    """The default type is set around the forward pass only."""

    def step(net: Any, x: Tensor) -> Any:
        return keep_lazily(net, x) * torch.ones(1)

    net = Net(step, {"mem": None}).double()
    torch.set_default_dtype(torch.float64)
    try:
        outputs = run(net, inputs)
    finally:
        torch.set_default_dtype(torch.float32)
    outputs.square().mean().backward()
    return [net.enter.weight.grad]


def create_parameters(run: Run, inputs: Tensor) -> list[Any]:
    """The first step creates parameters, beside the state."""

    def step(net: Any, x: Tensor) -> Any:
        net.calls += 1
        return net.readout(keep_lazily(net, x))

    readout = nn.LazyLinear(4, dtype=torch.float64)
    net: Any = Net(step, {"mem": None, "calls": 0}, readout=readout).double()
    run(net, inputs).square().mean().backward()
    return [net.enter.weight.grad, net.readout.weight.grad, net.mem.detach(), torch.tensor(net.calls)]


#: Made by the first step of the program below.
_kept: Tensor


def keep_globally(run: Run, inputs: Tensor) -> list[Any]:
    """The state is in a global variable, which the first step creates."""

    def step(net: Any, x: Tensor) -> Any:
        global _kept  # noqa: PLW0603 - as in notebooks
        before = _kept if "_kept" in globals() else torch.zeros(BATCH, UNITS).double()
        _kept = torch.tanh(net.enter(x) + 0.9 * before)
        return _kept

    globals().pop("_kept", None)
    net = Net(step).double()
    run(net, inputs).square().mean().backward()
    return [net.enter.weight.grad, globals().pop("_kept").detach()]


def draw_in_backward(run: Run, inputs: Tensor) -> list[Any]:
    """A surrogate gradient draws random numbers in the backward pass."""
    spikes = snntorch.Leaky(beta=0.9, init_hidden=True, spike_grad=snntorch.surrogate.SSO())
    net = nn.Sequential(nn.Linear(INPUTS, UNITS), spikes).double()
    take_loss(run(net, inputs)).backward()
    return [*gradients(net), torch.rand(1)]


def keep_nothing(run: Run, inputs: Tensor) -> list[Any]:
    """A network that counts its calls, and keeps nothing else."""

    def step(net: Any, x: Tensor) -> Any:
        net.calls += 1
        return net.enter(x)

    net: Any = Net(step, {"calls": 0}).double()
    take_loss(run(net, inputs)).backward()
    return [*gradients(net), torch.tensor(net.calls)]


PROGRAMS: dict[str, Callable[[Run, Tensor], list[Any]]] = {
    "two attributes share a dict": partial(share_state, SharedDict),
    "two attributes share a buffer": partial(share_state, SharedBuffer),
    "a container of the user": put_into_container,
    "a state that a plain loop has left": begin_with_loop,
    "a weight that is thawed": partial(need_gradients_later, 0, True),
    "a gradient of late steps": partial(need_gradients_later, 70, False),
    "several inputs": give_several_inputs,
    "modules that are replaced": replace_neurons,
    "a graph in an attribute": leave_graph,
    "a rate that moves late": move_late,
    "one log of two hooks": write_one_log,
    "the default dtype": set_default_dtype,
    "lazy parameters": create_parameters,
    "a global variable": keep_globally,
    "random numbers of the backward pass": draw_in_backward,
    "nothing but a counter": keep_nothing,
}
#: Programs that run within a limit, too, and those that do not need the graphs of earlier calls.
LIMITED = ("two attributes share a buffer", "several inputs", "lazy parameters", "nothing but a counter")
DETACHED = ("two attributes share a dict", "two attributes share a buffer", "a container of the user")


@pytest.mark.parametrize(
    ("name", "how"),
    [
        *((name, how) for name in PROGRAMS for how in ("base", "double", "revolve")),
        *((name, "memory") for name in LIMITED),
        *((name, "detach") for name in DETACHED),
    ],
)
def test_a_program_trains_as_in_a_plain_loop(name: str, how: str) -> None:
    program, options = PROGRAMS[name], dict[str, Any](memory="1 MB")
    if how != "memory":
        options = {"plan": plan_steps(STEPS, "revolve" if how == "detach" else how, states=16)}
        options["detach"] = how == "detach"
    torch.manual_seed(0)
    expected = program(loop, data())
    for _ in range(2):
        torch.manual_seed(0)
        wrapped: dict[int, Any] = {}

        def run(net: Any, *inputs: Tensor, wrapped: Any = wrapped, **constants: Any) -> Any:
            if id(net) not in wrapped:
                wrapped[id(net)] = wrap(net, **options)
            return wrapped[id(net)](*inputs, **constants)

        assert_close(program(run, data()), expected, relative=1e-9)


@pytest.mark.parametrize(
    ("name", "options"),
    [
        ("lazy attribute", {"plan": plan_of(60, "double", states=16)}),
        ("snnTorch", {"memory": "80 kB"}),
        ("SpikingJelly", {"plan": plan_of(15, "double", states=8), "multi_step": True}),
    ],
)
def test_check_prints_each_gradient(
    name: str, options: dict[str, Any], capsys: pytest.CaptureFixture[str]
) -> None:
    """Of a network under a plan, within a limit, and in pieces of several time steps."""
    net = make(name)
    if "multi_step" in options:
        functional.set_step_mode(net, "m")
    assert wrap(net, **options).check(data(60, like=net))
    lines = capsys.readouterr().out.splitlines()
    named = next(parameter for parameter, _ in net.named_parameters())
    assert any(f"{named}: differs by" in line for line in lines)
    assert lines[-1].startswith("loss: ")


# What is refused


def write_output(net: Any, x: Tensor) -> Any:
    """Return the state, which the next step changes in place."""
    net.h.mul_(0.9).add_(net.enter(x))
    return net.h


def call_lazy(inputs: Any = None, **options: Any) -> Any:
    """Call a network that keeps its state with some arguments of ``wrap``."""
    return wrap(make("lazy attribute"), **(options or {"memory": "1 MB"}))(data() if inputs is None else inputs)


def call_with_steps(steps: Any) -> Any:
    return wrap(make("penalty"), memory="1 MB")(data(1)[0], steps=steps)


def call_with_context_variable() -> Any:
    """Nothing takes a first value away from it, so that steps could not run again as they were."""
    kept: ContextVar[Tensor] = ContextVar("kept")

    def step(net: Any, x: Tensor) -> Any:
        h = torch.tanh(net.enter(x) + kept.get(torch.zeros(BATCH, UNITS)))
        kept.set(h)
        return h

    net = Net(step)
    return wrap(net, memory="20 kB")(data(like=net))


def call_without_gradients() -> Any:
    with torch.no_grad():
        return call_lazy(data(0))


def feed_forward() -> nn.Module:
    return nn.Sequential(nn.Linear(INPUTS, 2), nn.Dropout()).double()


def call_in_place() -> Any:
    return wrap(Net(write_output, {"h": stateful_nets.zeros}).double(), memory="1 MB")(data(FEW_STEPS))


KEEPS_NOTHING = "net: keeps nothing from one time step to the next"
LARGE = "outputs and gradients of the sequence, more than the limit: .* with .* bptt of a wrapped network"
NO_TENSOR = r"inputs: a NumPy array is no tensor .*torch\.from_numpy"
NO_STEPS = r"steps: {!r} is not accepted \(accepted: a whole number from 1"
REFUSED: list[tuple[Callable[[], Any], str]] = [
    (lambda: call_lazy(memory="1 MB", plan=plan_of(5)), "memory: is given together with plan"),
    (lambda: call_lazy(memory="a lot"), "memory"),
    (lambda: call_lazy(memory="10 megabytes"), "unknown unit 'megabytes'. Units are B, kB, MB, "),
    (lambda: call_lazy(memory="1 kB"), "memory: 1 kB are too little: this call needs"),
    (lambda: call_lazy(memory="1 kB"), LARGE),
    (lambda: call_lazy(reset=3), "reset: 3 cannot be called"),
    (lambda: call_lazy(reset="reset"), "reset: 'reset' cannot be called .* its own method, as net.reset"),
    (lambda: call_lazy(piece_size=3), "piece_size: is not an argument of wrap"),
    (
        lambda: call_lazy(memmory=1),
        "memmory: .* Did you mean 'memory'?.*accepted: .*detach, memory, .* reset, ",
    ),
    (lambda: call_lazy(memory="1 MB", piece=10), "piece: has no meaning for Net"),
    (lambda: call_lazy(memory="1 MB", time_dim=1), "time_dim: has no meaning for Net"),
    (lambda: call_lazy(data().numpy()), NO_TENSOR),
    (lambda: call_lazy([data().numpy()]), NO_TENSOR),
    (lambda: call_lazy(data(0)), "inputs: hold no time step"),
    (call_without_gradients, "inputs: hold no time step"),
    (wrap(make("penalty"), memory="1 MB"), "inputs: are missing"),
    *((partial(call_with_steps, steps), NO_STEPS.format(steps)) for steps in ("100", 2.5, True, -1, 0)),
    (lambda: wrap(nn.Linear(6, 2).double(), memory="1 MB")(data()), KEEPS_NOTHING),
    (lambda: wrap(feed_forward(), plan=plan_of(STEPS))(data()), KEEPS_NOTHING),
    (lambda: wrap(take_loss, memory="1 MB"), "'function' is not a module"),  # type: ignore[arg-type]
    (lambda: wrap(wrap(make("penalty"), memory="1 MB"), memory="1 MB"), "is wrapped already"),
    (lambda: wrap(norse.LIFCell(), memory="1 MB", reset=reset_all), "reset: has no meaning"),
    (lambda: wrap(nn.LSTM(INPUTS, UNITS), memory="1 MB", reset=reset_all), "reset: has no meaning"),
    (call_in_place, "returns tensors that its later steps change in place"),
    (call_with_context_variable, "kept, a context variable, its first value"),
]


@pytest.mark.parametrize(("call", "message"), REFUSED)
def test_what_cannot_be_wrapped_or_called_is_refused_by_name(call: Callable[[], Any], message: str) -> None:
    with pytest.raises(InputError, match=message):
        call()


class TakesState(nn.Module):
    """A cell that takes its state."""

    def forward(self, state: Tensor, x: Tensor) -> tuple[Tensor, Tensor]:
        return state + x, x


@pytest.mark.parametrize(
    ("net", "inputs", "error", "message", "note"),
    [
        (
            nn.Sequential(nn.BatchNorm1d(INPUTS), Net(keep_lazily, {"mem": None})).double(),
            data()[0],
            ValueError,
            "expected 2D or 3D input",
            "net(x, steps=100)",
        ),
        (
            TakesState(),
            torch.zeros(20, 3, 5),
            TypeError,
            "missing 1 required positional argument",
            "takes (state, x), use ckptplan.torch.scan or bptt",
        ),
    ],
    ids=["inputs without time", "a cell that takes its state"],
)
def test_an_error_of_the_network_has_a_note(
    net: nn.Module, inputs: Tensor, error: type[Exception], message: str, note: str
) -> None:
    with pytest.raises(error, match=message) as failed:
        wrap(net, memory="1 MB")(inputs)
    assert note in "".join(failed.value.__notes__)
