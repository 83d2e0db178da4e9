"""Law: whatever a step draws random numbers from, a step that is run again draws the same.

Cells that draw from one generator each, of every kind, are among the impure cells.
"""

# ruff: noqa: NPY002, S311

from __future__ import annotations

import random
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

import ckptplan
from ckptplan.schedule.actions import Advance, Backward, Free, Load, Record, Save, Tier
from ckptplan.schedule.schedule import Schedule
from ckptplan.torch import bptt
from tests.torch.support import assert_close, forget_measurements, gradients, gru, job, plain, plan_of
from tests.torch.tables import STEPS, STRATEGIES, Call, Row, Table, plan, seed_all, squares

#: Half of the steps run again before any is reversed.
EARLY = (
    Save(0, Tier.LOCAL), Advance(0, 12), Save(12, Tier.LOCAL), Advance(12, 24), Load(12, Tier.LOCAL),
    Record(12, 24), Backward(12, 24), Free(12, Tier.LOCAL), Load(0, Tier.LOCAL), Free(0, Tier.LOCAL),
    Record(0, 12), Backward(0, 12),
)  # fmt: skip
TABLE = Table()


def draw_all() -> float:
    """Draw from each default generator; some keep every second number."""
    numbers = (random.random(), random.gauss(0, 1), np.random.rand(), np.random.randn(), torch.rand(()).item())
    return float(sum(numbers))


@pytest.mark.parametrize("strategy", [*STRATEGIES, "hierarchical"])
def test_default_generators_go_on_as_after_a_plain_loop(strategy: str) -> None:
    """Plain backpropagation draws nothing in its backward pass."""
    cell, parameters = gru()

    def noisy(state: torch.Tensor, x: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        state = cell(state, x)[0] * (0.5 + 0.1 * draw_all())
        state = torch.nn.functional.dropout(state, 0.3, training=True)
        return state, state + torch.rand_like(state)

    inputs, state = job(STEPS)
    found, drawn = list[list[torch.Tensor]](), list[list[float]]()
    for planned in (True, False):
        seed_all(5)
        if planned:
            chosen = plan(strategy) if strategy in STRATEGIES else plan_of(STEPS, strategy, states=16)
            loss = bptt(noisy, inputs, state, squares, plan=chosen).loss
        else:
            loss = torch.stack(plain(noisy, inputs, state, STEPS)[0]).square().sum()
        after = draw_all()
        found.append(gradients(loss, [state, inputs, *parameters]))
        drawn.append([after, draw_all()])
    assert_close(*found, relative=1e-12)
    assert drawn[0] == drawn[1]


class NoisyLater(torch.nn.Module):
    """Noise from a generator of its own, from a step on that the first number of its input tells."""

    begin: int

    def __init__(self, generator: Any, draw: Callable[[Any], float]) -> None:
        super().__init__()
        self.generators, self.draw = [generator], draw
        self.inner = torch.nn.GRUCell(5, 7).double()

    def forward(self, state: torch.Tensor, x: torch.Tensor) -> Any:
        state = self.inner(x.clamp(-1, 1), state)
        if float(x[0, 0]) >= self.begin:
            state = state * (0.5 + self.draw(self.generators[0]))
        return state, state


OWN: dict[str, Callable[[], tuple[Any, Callable[[Any], float]]]] = {
    "torch.Generator": lambda: (
        torch.Generator().manual_seed(3),
        lambda one: float(torch.rand((), generator=one)),
    ),
    "numpy.random.Generator": lambda: (np.random.default_rng(3), lambda one: float(one.random())),
    "numpy Mersenne": lambda: (np.random.Generator(np.random.MT19937(3)), lambda one: float(one.random())),
    "numpy.random.RandomState": lambda: (np.random.RandomState(3), lambda one: float(one.randn())),
    "random.Random": lambda: (random.Random(3), lambda one: float(one.gauss(0, 1))),
    "random": lambda: (random, lambda one: float(one.random())),
    "random.gauss": lambda: (random, lambda one: float(one.gauss(0, 1))),
    "numpy.random": lambda: (np.random, lambda one: float(one.rand())),
    "numpy.random.randn": lambda: (np.random, lambda one: float(one.randn())),
}


@pytest.mark.parametrize("begin", [5, 15])
@pytest.mark.parametrize("strategy", ["base", "revolve"])
@pytest.mark.parametrize("name", OWN)
def test_what_steps_draw_from_a_late_one_on_is_drawn_again(name: str, strategy: str, begin: int) -> None:
    """The trial of the first call sees no draw; the third call begins to draw where the others drew nothing."""
    inputs, state = job(STEPS)
    found, drawn = list[list[torch.Tensor]](), list[list[float]]()
    for planned in (False, True):
        seed_all(5)
        module = NoisyLater(*OWN[name]())
        found.append([])
        drawn.append([])
        for late in (begin, STEPS, begin):
            module.begin = begin
            steps = inputs.detach().clone()
            steps[..., 0] = torch.arange(STEPS)[:, None] - (late - begin)
            if planned:
                loss = bptt(module, steps, state, squares, plan=plan(strategy)).loss
            else:
                loss = torch.stack(plain(module, steps, state, STEPS)[0]).square().sum()
            found[-1] += gradients(loss, [state, *module.parameters()])
            drawn[-1].append(module.draw(module.generators[0]))
    assert_close(found[1], found[0], relative=1e-12)
    assert drawn[0] == drawn[1]


class Decoder(torch.nn.Module):
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


def force_teacher(toss: Callable[[], float]) -> Call:
    """Return a call of a decoder, whose first state an encoder computes."""
    encoder = torch.nn.GRU(5, 7, batch_first=True).double()
    target = torch.randint(11, (STEPS + 1, 4))
    encoded, last = encoder(torch.randn(4, 9, 5).double())
    return Call(
        cell=Decoder(toss),
        inputs=target[:-1],
        state=(last[0], target[0], encoded),
        loss=lambda step, scores: torch.nn.functional.cross_entropy(scores, target[step + 1]),
        parameters=list(encoder.parameters()),
        relative=1e-11,
    )


TABLE.add("Python tosses", partial(force_teacher, random.random), ways=STRATEGIES)
TABLE.add("NumPy tosses", partial(force_teacher, lambda: float(np.random.rand())), ways=STRATEGIES)
TABLE.add("PyTorch tosses", partial(force_teacher, lambda: torch.rand(()).item()), ways=STRATEGIES)


@pytest.mark.parametrize("row", TABLE)
def test_teacher_forcing_has_the_gradients_of_plain_bptt(row: Row) -> None:
    row.check()


def test_coins_that_are_tossed_outside_are_refused_where_steps_run_again(tmp_path: Path) -> None:
    forget_measurements()
    path = tmp_path / "drawn"
    path.touch()

    def toss() -> float:
        with path.open("a") as file:
            file.write("x")
        drawn = path.stat().st_size
        return 0.0 if drawn < 48 else 0.9 if drawn % 2 else 0.1

    message = r"when its steps run again|when the step runs again"
    Row(partial(force_teacher, toss), "revolve", message).check()


@pytest.mark.parametrize("strategy", STRATEGIES)
@pytest.mark.parametrize("verify", [True, False])
def test_a_loss_may_draw_from_a_first_or_a_later_call_on(strategy: str, verify: bool) -> None:
    """A loss of each step draws again what it drew when its step ran first."""
    found: list[list[torch.Tensor]] = []
    for planned in (True, False):
        seed_all(5)
        (inputs, state), (cell, parameters) = job(STEPS), gru()
        found.append([])
        for draws in (0, 1, 1):

            def loss(_: int, output: torch.Tensor, *, draws: int = draws) -> Any:
                return output.square().sum() * (draw_all() if draws else 1)

            if planned:
                total = bptt(cell, inputs, state, loss, plan=plan(strategy), verify=verify).loss
            else:
                total = torch.stack([loss(0, one) for one in plain(cell, inputs, state, STEPS)[0]]).sum()
            found[-1] += gradients(total, parameters)
        found[-1].append(torch.tensor(draw_all()))
    assert_close(*found, relative=1e-11)


@pytest.mark.parametrize(
    "schedule",
    [ckptplan.online(4), Schedule(steps=STEPS, actions=EARLY, chunk_size=12, local_states=3)],
    ids=["of unknown length", "that loads before its first backward pass"],
)
def test_steps_that_run_again_within_the_sweep_draw_what_late_ones_drew(schedule: Any) -> None:
    layer = torch.nn.Linear(4, 4).double()

    def cell(state: Any, x: torch.Tensor) -> Any:
        hidden, step = state
        hidden = torch.tanh(layer(hidden) + x)
        if int(step) > STEPS - 8:
            hidden = hidden * (1 + random.random())
        return (hidden, step + 1), hidden

    state = (torch.zeros(2, 4, dtype=torch.float64), torch.zeros((), dtype=torch.long))
    inputs = torch.randn(STEPS, 2, 4, dtype=torch.float64, requires_grad=True)
    for _ in range(3):
        random.seed(1)
        ours = gradients(bptt(cell, inputs, state, squares, plan=schedule).loss, [inputs])
        random.seed(1)
        outputs, _ = plain(cell, inputs, state, STEPS)
        assert_close(ours, gradients(torch.stack(outputs).square().sum(), [inputs]), relative=1e-11)
