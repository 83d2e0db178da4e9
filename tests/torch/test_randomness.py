"""Law: whatever a step draws random numbers from, a step that is run again draws the same."""

# ruff: noqa: NPY002, S311

from __future__ import annotations

import random
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch

import ckptplan
from ckptplan import InputError
from ckptplan.schedule.actions import Advance, Backward, Free, Load, Record, Save, Tier
from ckptplan.schedule.schedule import Schedule
from ckptplan.torch import bptt
from tests.torch.support import assert_close, forget_measurements, gradients, gru, job, plain, plan_of

STEPS = 24
#: Half of the steps run again before any is reversed.
EARLY = (
    Save(0, Tier.LOCAL), Advance(0, 12), Save(12, Tier.LOCAL), Advance(12, 24), Load(12, Tier.LOCAL),
    Record(12, 24), Backward(12, 24), Free(12, Tier.LOCAL), Load(0, Tier.LOCAL), Free(0, Tier.LOCAL),
    Record(0, 12), Backward(0, 12),
)  # fmt: skip
STRATEGIES = ["base", "standard", "double", "revolve", "optimal"]


def plan(strategy: str) -> Any:
    return plan_of(STEPS, strategy, states=100 if strategy == "base" else 16)


def squares(_: int, output: torch.Tensor) -> Any:
    return output.square().sum()


class Noisy(torch.nn.Module):
    """Noise from a generator of its own."""

    def __init__(self, generator: Any, draw: Callable[[Any], float]) -> None:
        super().__init__()
        self.generators, self.draw = [generator], draw
        self.inner = torch.nn.GRUCell(5, 7).double()

    def forward(self, state: torch.Tensor, x: torch.Tensor) -> Any:
        state = self.inner(x, state) * (0.5 + self.draw(self.generators[0]))
        return state, state


def rand(generator: torch.Generator) -> float:
    return float(torch.rand((), generator=generator))


OWN: dict[str, Callable[[], tuple[Any, Callable[[Any], float]]]] = {
    "torch.Generator": lambda: (torch.Generator().manual_seed(3), rand),
    "numpy.random.Generator": lambda: (np.random.default_rng(3), lambda one: float(one.random())),
    "numpy Mersenne": lambda: (np.random.Generator(np.random.MT19937(3)), lambda one: float(one.random())),
    "numpy.random.RandomState": lambda: (np.random.RandomState(3), lambda one: float(one.randn())),
    "random.Random": lambda: (random.Random(3), lambda one: float(one.gauss(0, 1))),
    "random": lambda: (random, lambda one: float(one.random())),
    "random.gauss": lambda: (random, lambda one: float(one.gauss(0, 1))),
    "numpy.random": lambda: (np.random, lambda one: float(one.rand())),
    "numpy.random.randn": lambda: (np.random, lambda one: float(one.randn())),
}


def seed_all(seed: int = 5) -> None:
    random.seed(seed)
    np.random.seed(seed)
    torch.manual_seed(seed)


HELD = [
    "torch.Generator",
    "numpy.random.Generator",
    "numpy Mersenne",
    "numpy.random.RandomState",
    "random.Random",
]


@pytest.mark.parametrize("strategy", STRATEGIES)
@pytest.mark.parametrize("name", [name for name in OWN if name not in HELD])
def test_what_a_cell_draws_from_default_generators_is_drawn_again(name: str, strategy: str) -> None:
    """Gradients are plain BPTT's, and the generator goes on as after it."""
    inputs, state = job(STEPS)
    found = []
    for planned in (False, True):
        seed_all()
        module = Noisy(*OWN[name]())
        wanted = [state, inputs, *module.parameters()]
        if planned:
            loss = bptt(module, inputs, state, squares, plan=plan(strategy)).loss
        else:
            loss = torch.stack(plain(module, inputs, state, STEPS)[0]).square().sum()
        after = module.draw(module.generators[0])
        found.append((gradients(loss, wanted), after, module.draw(module.generators[0])))
    assert_close(found[1][0], found[0][0], relative=1e-12)
    assert found[0][1:] == found[1][1:]


class NoisyLater(Noisy):
    """Noise from a step on that the first number of its input tells."""

    begin: int

    def forward(self, state: torch.Tensor, x: torch.Tensor) -> Any:
        state = self.inner(x.clamp(-1, 1), state)
        if float(x[0, 0]) >= self.begin:
            state = state * (0.5 + self.draw(self.generators[0]))
        return state, state


@pytest.mark.parametrize("begin", [5, 15])
@pytest.mark.parametrize("strategy", ["base", "revolve"])
@pytest.mark.parametrize("name", OWN)
def test_what_steps_draw_from_a_late_one_on_is_drawn_again(name: str, strategy: str, begin: int) -> None:
    """The trial of the first call sees no draw; the third call begins to draw where the others drew nothing."""
    inputs, state = job(STEPS)
    found: list[list[Any]] = []
    for planned in (False, True):
        seed_all()
        module = NoisyLater(*OWN[name]())
        wanted = [state, *module.parameters()]
        found.append([])
        for late in (begin, STEPS, begin):
            module.begin = begin
            steps = inputs.detach().clone()
            steps[..., 0] = torch.arange(STEPS)[:, None] - (late - begin)
            if planned:
                loss = bptt(module, steps, state, squares, plan=plan(strategy)).loss
            else:
                loss = torch.stack(plain(module, steps, state, STEPS)[0]).square().sum()
            found[-1] += [gradients(loss, wanted), module.draw(module.generators[0])]
    for ours, theirs in zip(found[1], found[0], strict=True):
        if isinstance(ours, float):
            assert ours == theirs
        else:
            assert_close(ours, theirs, relative=1e-12)


class Attention(torch.nn.Module):
    """A decoder with attention that is shown the target, or what it said itself, by the toss of a coin."""

    def __init__(self, toss: Callable[[], float]) -> None:
        super().__init__()
        self.toss = toss
        self.embedding = torch.nn.Embedding(11, 5)
        self.inner = torch.nn.GRUCell(5 + 7, 7)
        self.score = torch.nn.Linear(7, 7)
        self.out = torch.nn.Linear(14, 11)
        self.dropout = torch.nn.Dropout(0.2)
        self.double()

    def forward(self, state: Any, target: torch.Tensor) -> Any:
        hidden, said, encoded = state
        shown = target if self.toss() < 0.5 else said
        weights = torch.softmax((encoded * self.score(hidden).unsqueeze(1)).sum(-1), dim=1)
        context = (weights.unsqueeze(-1) * encoded).sum(1)
        hidden = self.inner(torch.cat([self.dropout(self.embedding(shown)), context], dim=1), hidden)
        scores = self.out(torch.cat([hidden, context], dim=1))
        return (hidden, scores.argmax(-1), encoded), scores


class Seq2Seq(torch.nn.Module):
    """An encoder, and a decoder that runs under a plan."""

    def __init__(self, toss: Callable[[], float]) -> None:
        super().__init__()
        self.encoder = torch.nn.GRU(5, 7, batch_first=True).double()
        self.decoder = Attention(toss)

    def forward(self, source: torch.Tensor, target: torch.Tensor, chosen: Any | None) -> torch.Tensor:
        encoded, last = self.encoder(source)
        state = (last[0], target[0], encoded)

        def loss(step: int, scores: torch.Tensor) -> torch.Tensor:
            return torch.nn.functional.cross_entropy(scores, target[step + 1])

        if chosen is not None:
            return bptt(self.decoder, target[:-1], state, loss, plan=chosen).loss
        outputs, _ = plain(self.decoder, target, state, len(target) - 1)
        return torch.stack([loss(step, one) for step, one in enumerate(outputs)]).sum()


TOSSES: dict[str, Callable[[], float]] = {
    "random": random.random,
    "numpy": lambda: float(np.random.rand()),
    "torch": lambda: torch.rand(()).item(),
}


@pytest.mark.parametrize("strategy", STRATEGIES)
@pytest.mark.parametrize("toss", TOSSES)
def test_teacher_forcing_has_the_gradients_of_plain_bptt(strategy: str, toss: str) -> None:
    for seed in range(3):
        torch.manual_seed(seed)
        net = Seq2Seq(TOSSES[toss])
        source, target = torch.randn(4, 9, 5).double(), torch.randint(11, (STEPS + 1, 4))
        found = []
        for chosen in (None, plan(strategy)):
            seed_all(seed)
            found.append(gradients(net(source, target, chosen), list(net.parameters())))
        assert_close(found[1], found[0], relative=1e-11)


def test_coins_that_are_tossed_outside_are_refused_where_steps_run_again(tmp_path: Any) -> None:
    forget_measurements()
    path = tmp_path / "drawn"
    path.touch()

    def toss() -> float:
        with path.open("a") as file:
            file.write("x")
        drawn = path.stat().st_size
        return 0.0 if drawn < 48 else 0.9 if drawn % 2 else 0.1

    net = Seq2Seq(toss)
    source, target = torch.randn(4, 9, 5).double(), torch.randint(11, (STEPS + 1, 4))
    loss = net(source, target, plan("revolve"))
    with pytest.raises(InputError, match=r"when its steps run again|when the step runs again"):
        loss.backward()


DRAWS: dict[str, Callable[[], float]] = {
    "random": random.random,
    "numpy": np.random.rand,
    "torch": lambda: float(torch.rand(())),
}


@pytest.mark.parametrize("strategy", STRATEGIES)
@pytest.mark.parametrize("verify", [True, False])
@pytest.mark.parametrize("draw", DRAWS)
def test_a_loss_may_draw_from_a_first_or_a_later_call_on(strategy: str, verify: bool, draw: str) -> None:
    """A loss of each step draws again what it drew when its step ran first."""
    found: list[list[Any]] = []
    for planned in (True, False):
        seed_all()
        (inputs, state), (cell, parameters), found = job(STEPS), gru(), [*found, []]
        for draws in (0, 1, 1):

            def loss(_: int, output: torch.Tensor, *, draws: int = draws) -> Any:
                return output.square().sum() * (DRAWS[draw]() if draws else 1)

            if planned:
                total = bptt(cell, inputs, state, loss, plan=plan(strategy), verify=verify).loss
            else:
                total = torch.stack([loss(0, one) for one in plain(cell, inputs, state, STEPS)[0]]).sum()
            found[-1] += gradients(total, parameters)
        found[-1].append(torch.tensor(DRAWS[draw]()))
    assert_close(*found, relative=1e-11)


@pytest.mark.parametrize("strategy", STRATEGIES)
def test_a_backward_pass_leaves_the_default_generators_where_they_were(strategy: str) -> None:
    """As plain BPTT does, which draws nothing in its backward pass."""
    found = []
    for backward in (False, True):
        inputs, state = job(STEPS)
        seed_all()
        module = Noisy(None, lambda _: random.random() + np.random.randn() + torch.rand(()).item())
        loss = bptt(module, inputs, state, squares, plan=plan(strategy)).loss
        if backward:
            loss.backward()
        found.append([draw() for draw in DRAWS.values()])
    assert found[0] == found[1]


def _draw_late(after: int) -> tuple[Any, Any]:
    """A cell that draws from Python's generator after some steps, and its first state."""
    torch.manual_seed(0)
    layer = torch.nn.Linear(4, 4).double()

    def cell(state: Any, x: torch.Tensor) -> Any:
        hidden, step = state
        hidden = torch.tanh(layer(hidden) + x)
        if int(step) > after:
            hidden = hidden * (1 + random.random())
        return (hidden, step + 1), hidden

    return cell, (torch.zeros(2, 4, dtype=torch.float64), torch.zeros((), dtype=torch.long))


def _compare_late(cell: Any, state: Any, schedule: Any) -> None:
    inputs = torch.randn(STEPS, 2, 4, dtype=torch.float64, requires_grad=True)
    for _ in range(3):
        random.seed(1)
        ours = gradients(bptt(cell, inputs, state, squares, plan=schedule).loss, [inputs])
        random.seed(1)
        outputs, _ = plain(cell, inputs, state, STEPS)
        assert_close(ours, gradients(torch.stack(outputs).square().sum(), [inputs]), relative=1e-11)


@pytest.mark.parametrize(
    "schedule",
    [ckptplan.online(4), Schedule(steps=STEPS, actions=EARLY, chunk_size=12, local_states=3)],
    ids=["of unknown length", "that loads before its first backward pass"],
)
def test_steps_that_run_again_within_the_sweep_draw_what_late_ones_drew(schedule: Any) -> None:
    _compare_late(*_draw_late(STEPS - 8), schedule)
