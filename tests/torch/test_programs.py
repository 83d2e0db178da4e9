"""Programs of users: what steps keep, what they compute before the loop, and hooks, under a plan and in a loop.

Each program trains once, by ``run(net, data)``, which returns the outputs of all steps. It returns what is
compared.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterator
from typing import Any

import pytest
import torch
from torch import Tensor, nn

import ckptplan
from ckptplan import InputError
from ckptplan.schedule.actions import Action, Advance, Backward, Free, Load, Record, Save, Tier
from ckptplan.torch import bptt, check, unroll, wrap
from ckptplan.torch.adapters import TorchCell
from ckptplan.torch.device.meters import LiveBytes
from tests.torch.support import assert_close, plan_of

STEPS = 60
#: Takes a module that keeps its state, and data with time first.
Run = Callable[[Any, Tensor], Tensor]


class Net(nn.Module):
    """A recurrent network that keeps its state."""

    def __init__(self) -> None:
        super().__init__()
        self.enter, self.state = nn.Linear(5, 6).double(), torch.zeros(3, 6).double()

    def forward(self, x: Tensor) -> Tensor:
        self.state = torch.tanh(self.enter(x) + 0.9 * self.state)
        return self.state


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


class LateRate(Net):
    """The width of a surrogate follows a firing rate, which begins to move in the middle of the sequence."""

    def __init__(self) -> None:
        super().__init__()
        self.rate, self.calls = torch.zeros(6).double(), 0

    def forward(self, x: Tensor) -> Tensor:
        self.calls += 1
        self.state = 0.95 * self.state + self.enter(x) * (self.calls > 30)
        spikes: Tensor = Surrogate.apply(self.state - 0.5, 0.2 + self.rate)  # type: ignore[no-untyped-call]
        self.rate = 0.9 * self.rate + spikes.detach().mean(0)
        self.state = self.state - spikes.detach()
        return spikes


class LeftGraph(Net):
    """Leaves a result with its graph in an attribute that no step reads."""

    def forward(self, x: Tensor) -> Tensor:
        found = super().forward(x)
        self.rate = found.mean()
        return found


def late_rate(run: Run, data: Tensor) -> list[Any]:
    net = LateRate()
    (run(net, data) - 0.1).square().mean().backward()
    return [net.enter.weight.grad, net.rate]


def left_graph(run: Run, data: Tensor) -> list[Any]:
    net = LeftGraph()
    torch.stack([net(x) for x in data]).sum().backward()
    net.state, net.enter.weight.grad = torch.zeros(3, 6).double(), None
    run(net, data).square().mean().backward()
    return [net.enter.weight.grad]


def carried_on(run: Run, data: Tensor) -> list[Any]:
    net = Net()
    (run(net, data).sum() + run(net, data).square().sum()).backward()
    return [net.enter.weight.grad]


def shared_hooks(run: Run, data: Tensor) -> list[Any]:
    """A forward and a backward hook write into one log."""
    net, log = Net(), list[str]()
    net.enter.register_forward_hook(lambda *_: log.append("forward"))
    net.enter.register_full_backward_hook(lambda *_: log.append("backward"))
    run(net, data.clone().requires_grad_()).square().mean().backward()
    return [net.enter.weight.grad, torch.tensor([log.count("forward"), log.count("backward")])]


def default_dtype(run: Run, data: Tensor) -> list[Any]:
    """The default type is set around the forward pass only."""

    class Typed(Net):
        def forward(self, x: Tensor) -> Tensor:
            return super().forward(x) * torch.ones(1)

    net = Typed()
    torch.set_default_dtype(torch.float64)
    try:
        outputs = run(net, data)
    finally:
        torch.set_default_dtype(torch.float32)
    outputs.square().mean().backward()
    return [net.enter.weight.grad]


def final_state(run: Run, data: Tensor) -> list[Any]:
    """A loss of the state that the network was left with."""
    net = Net()
    (run(net, data).mean() + net.state.square().sum()).backward()
    return [net.enter.weight.grad]


def written_in_place(run: Run, data: Tensor) -> list[Any]:
    """A buffer that steps write in place, with gradients that flow through it from call to call."""

    class InPlace(Net):
        trace: Tensor

        def __init__(self) -> None:
            super().__init__()
            self.register_buffer("trace", torch.zeros(3, 6).double())

        def forward(self, x: Tensor) -> Tensor:
            self.trace.mul_(0.9).add_(torch.sigmoid(self.enter(x)))
            return torch.sin(3 * self.trace)

    net = InPlace()
    torch.stack([run(net, data).square().mean() for _ in range(3)]).sum().backward()
    return [net.enter.weight.grad]


def lazy_parameters(run: Run, data: Tensor) -> list[Any]:
    """A network whose first step creates parameters, beside what it keeps."""

    class Lazy(Net):
        def __init__(self) -> None:
            super().__init__()
            self.readout, self.calls = nn.LazyLinear(4, dtype=torch.float64), 0

        def forward(self, x: Tensor) -> Tensor:
            self.calls += 1
            output: Tensor = self.readout(super().forward(x))
            return output

    net = Lazy()
    run(net, data).square().mean().backward()
    return [net.enter.weight.grad, net.readout.weight.grad, net.state.detach(), torch.tensor(net.calls)]


def global_state(run: Run, data: Tensor) -> list[Any]:
    """A network that keeps its state in a global variable, which its first step creates."""
    globals().pop("_kept", None)
    net = GlobalNet()
    run(net, data).square().mean().backward()
    return [net.enter.weight.grad, globals().pop("_kept").detach()]


#: Made by the first step of a ``GlobalNet``.
_kept: Tensor


class GlobalNet(Net):
    """A network that keeps its state in a global variable."""

    def forward(self, x: Tensor) -> Tensor:
        global _kept  # noqa: PLW0603 - as in notebooks
        before = _kept if "_kept" in globals() else torch.zeros(3, 6).double()
        _kept = torch.tanh(self.enter(x) + 0.9 * before)
        return _kept


PROGRAMS = (
    lazy_parameters,
    global_state,
    late_rate,
    left_graph,
    carried_on,
    shared_hooks,
    default_dtype,
    final_state,
    written_in_place,
)


@pytest.fixture
def data() -> Tensor:
    return torch.randn(STEPS, 3, 5, dtype=torch.float64, generator=torch.Generator().manual_seed(1))


@pytest.mark.parametrize("strategy", ["base", "double", "revolve"])
@pytest.mark.parametrize("program", PROGRAMS, ids=lambda program: program.__name__)
def test_a_program_trains_as_in_a_plain_loop(program: Any, strategy: str, data: Tensor) -> None:
    plan = plan_of(STEPS, strategy, states=1_000 if strategy == "base" else 16)
    torch.manual_seed(0)
    expected = program(lambda net, inputs: torch.stack([net(x) for x in inputs]), data)
    for _ in range(2):
        torch.manual_seed(0)
        found = program(lambda net, inputs: wrap(net, plan=plan)(inputs), data)
        assert_close(found, expected, relative=1e-9)


def test_outputs_are_stacked_once_without_gradients() -> None:
    cell, data = TorchCell(nn.GRUCell(5, 64)), torch.randn(200, 8, 5)
    with torch.no_grad(), LiveBytes() as live:
        outputs, _ = unroll(cell, data, None, plan=plan_of(200, states=99))
    assert live.peak <= 1.2 * outputs.nbytes


@pytest.mark.parametrize("named", ["both", "first", "second", "none", "state"])
def test_tensors_that_are_computed_before_the_loop_get_their_gradients(named: str, data: Tensor) -> None:
    """Two constants, one computed from the other, as the keys of an attention decoder are."""
    torch.manual_seed(0)
    encoder, keys, cell = (
        nn.Linear(5, 5).double(),
        nn.Linear(5, 5, bias=False).double(),
        nn.GRUCell(5, 5).double(),
    )
    text, wanted = (
        torch.randn(3, 4, 5).double(),
        [*encoder.parameters(), *keys.parameters(), *cell.parameters()],
    )

    def attend(h: Tensor, x: Tensor, encoded: Tensor, processed: Tensor) -> Tensor:
        weights = (processed @ h.unsqueeze(-1)).softmax(1)
        found: Tensor = cell(x + (weights * encoded).sum(1), h)
        return found

    def train(plan: Any) -> list[Tensor]:
        encoded = torch.tanh(encoder(text))
        processed = keys(encoded)
        h = torch.zeros(3, 5).double()
        if plan is None:
            outputs = []
            for x in data:
                h = attend(h, x, encoded, processed)
                outputs.append(h)
            return list(torch.autograd.grad(torch.stack(outputs).square().sum(), wanted))
        parameters = {"both": [encoded, processed], "first": [encoded], "second": [processed]}.get(named, [])

        def step(state: Any, x: Tensor) -> Any:
            if named == "state":
                return (h := attend(state[0], x, *state[1:]), *state[1:]), h
            h = attend(state, x, encoded, processed)
            return h, h

        start = (h, encoded, processed) if named == "state" else h
        result = bptt(step, data, start, lambda _, h: h.square().sum(), plan=plan, parameters=parameters)
        return list(torch.autograd.grad(result.loss, wanted))

    assert_close(train(plan_of(STEPS, "double", states=16)), train(None), relative=1e-9)


def test_a_step_may_differentiate_inside(data: Tensor) -> None:
    net = nn.Sequential(nn.Linear(5, 8), nn.Tanh(), nn.Linear(8, 1)).double()

    def cell(state: Tensor, _: Any) -> Any:
        with torch.enable_grad():
            (force,) = torch.autograd.grad(net(state).sum(), state, create_graph=True)
        return state - 0.1 * force, None

    start = data[0].clone().requires_grad_()
    plan = plan_of(STEPS, "revolve", states=16)
    assert check(cell, data, start, final_loss=lambda state: state.square().mean(), plan=plan)


def record_known_and_new_steps() -> Iterator[Action]:
    """Yield actions that run steps 0 to 24, and then record steps 5 to 59 at once."""
    yield from (Save(0, Tier.LOCAL), Advance(0, 5), Save(5, Tier.LOCAL), Advance(5, 25))
    yield from (Load(5, Tier.LOCAL), Free(5, Tier.LOCAL), Record(5, STEPS), Backward(5, STEPS))
    yield from (Load(0, Tier.LOCAL), Free(0, Tier.LOCAL), Record(0, 5), Backward(0, 5))


@pytest.mark.parametrize("losses", ["loss", "chunk_loss", "none"])
def test_a_recording_may_have_known_and_new_steps(losses: str, data: Tensor) -> None:
    """Each loss is added once, and each output is stacked once."""
    cell = TorchCell(nn.GRUCell(5, 7).double())
    weights, state = torch.arange(1, STEPS + 1).double(), torch.zeros(3, 7).double()
    outputs = []
    for x in data:
        state, output = cell(state, x)
        outputs.append(output)
    stacked = torch.stack(outputs)
    expected = (weights * stacked.square().sum((1, 2))).sum()
    options: Any = {"plan": plan_of(STEPS, states=200), "schedule": record_known_and_new_steps()}

    def chunk_loss(start: int, outputs: Tensor) -> Tensor:
        return (weights[start : start + len(outputs)] * outputs.square().sum((1, 2))).sum()

    if losses == "loss":
        options["loss"] = lambda step, output: weights[step] * output.square().sum()
    if losses == "chunk_loss":
        options["chunk_loss"] = chunk_loss
    if losses == "none":
        found = chunk_loss(0, unroll(cell, data, None, **options)[0])
    else:
        found = bptt(cell, data, None, **options).loss
    wanted = list(cell.parameters())
    assert_close([found.detach()], [expected.detach()], relative=1e-12)
    assert_close(torch.autograd.grad(found, wanted), torch.autograd.grad(expected, wanted), relative=1e-12)


@pytest.mark.parametrize("inputs", ["none", "repeat", "count"])
def test_a_sequence_of_unknown_length_needs_no_inputs(inputs: str) -> None:
    weight = nn.Linear(3, 3)
    given: Any = {"none": None, "repeat": itertools.repeat(None), "count": itertools.count()}[inputs]
    result = bptt(
        lambda state, _: (state + 0.1 * torch.tanh(weight(state)) + 0.1, None),
        given,
        torch.ones(3),
        final_loss=lambda state: state.sum(),
        until=lambda state: bool(state.abs().max() > 1.5),
        plan=ckptplan.online(3),
    )
    result.loss.backward()
    assert weight.weight.grad is not None
    assert result.plan.steps > 1


def test_check_prints_each_gradient(data: Tensor, capsys: pytest.CaptureFixture[str]) -> None:
    net = Net()
    assert wrap(net, plan=plan_of(STEPS, "double", states=16)).check(data)
    lines = capsys.readouterr().out.splitlines()
    assert any("enter.weight: differs by" in line for line in lines)
    assert lines[-1].startswith("loss: ")


def test_a_network_that_keeps_nothing_is_refused(data: Tensor) -> None:
    plan = plan_of(STEPS, "double", states=16)
    with pytest.raises(InputError, match="net: keeps nothing from one time step to the next"):
        wrap(nn.Sequential(nn.Linear(5, 2), nn.Dropout()).double(), plan=plan)(data)


def test_modules_and_apply_reach_the_module_inside() -> None:
    net = Net()
    model = nn.Sequential(wrap(net, plan=plan_of(STEPS, "double", states=16)))
    reached: list[nn.Module] = []
    model.apply(reached.append)
    assert net in reached
    assert net in list(model.modules())
    assert list(model.state_dict()) == ["0.enter.weight", "0.enter.bias"]
