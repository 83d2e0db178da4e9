"""Cells whose calls have to stay within a limit of memory: usual ones, and cells whose steps differ.

Each function makes another call, which takes a limit of memory and trains once. Tests run some of them with
fewer steps, and compare their gradients with those of a plain loop.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.utils.parametrizations import spectral_norm, weight_norm
from torch.nn.utils.rnn import pack_padded_sequence
from torch.utils.checkpoint import checkpoint

from ckptplan.torch import LIF, bptt, scan, unroll, wrap
from ckptplan.torch.adapters import TorchCell

STEPS = 72
#: A call: it takes a limit of memory, and trains once.
Train = Callable[[Any], object]


@dataclass(frozen=True)
class Job:
    """A call that trains within a limit of memory, and the gradients that tests compare.

    Arguments:
        run: takes the limit, and runs the forward and the backward pass.
        wanted: the tensors whose gradients are compared.
        relative: the share of its largest entry by which a gradient may differ.
        beside: the bytes of tensors that the job computes for the call, which are none of the call's.
        tolerance: the share of a limit by which a call may pass it.
    """

    run: Train
    wanted: Sequence[Tensor] = ()
    relative: float = 1e-3
    beside: int = 0
    tolerance: float = 0.03

    def __call__(self, memory: Any) -> object:
        """Train once within a limit."""
        return self.run(memory)


def mean_square(_: int, output: Tensor) -> Tensor:
    """Return the loss of a step."""
    return output.square().mean()


def make_call(
    cell: Any, inputs: Any, state: Any, *, wanted: Any = None, relative: float = 1e-3, **options: Any
) -> Job:
    """Return a call that trains a cell within a limit. Its parameters are wanted, unless others are."""
    if not options.keys() & {"loss", "chunk_loss", "final_loss"}:
        options["loss"] = mean_square
    if wanted is None:
        wanted = cell.parameters() if isinstance(cell, nn.Module) else ()

    def train(memory: Any) -> object:
        return bptt(cell, inputs, state, memory=memory, **options).loss.backward()

    return Job(train, list(wanted), relative)


def make_wrapped(net: nn.Module, data: Any, **options: Any) -> Job:
    """Return a call that trains a wrapped module; its outputs are a part of the limit."""
    wrapped: dict[Any, Any] = {}

    def train(memory: Any) -> object:
        if memory not in wrapped:
            wrapped[memory] = wrap(net, memory=memory, **options)
        outputs = wrapped[memory](data)
        outputs = outputs[0] if isinstance(outputs, tuple) else outputs
        outputs = outputs.data if not isinstance(outputs, Tensor) else outputs
        # The limit leaves out what the caller's loss makes of the outputs: a sum makes nothing.
        return outputs.sum().backward()

    return Job(train, list(net.parameters()))


def make_gru(inputs: int = 16, neurons: int = 64, **options: Any) -> Any:
    """Return a GRU cell."""
    return TorchCell(nn.GRUCell(inputs, neurons, **options))


def draw(*shape: int, steps: int = STEPS, **options: Any) -> Tensor:
    """Return inputs of shape (T, B, ...)."""
    return torch.randn(steps, *shape, **options)


# Usual cells


def gru() -> Train:
    return make_call(make_gru(), draw(8, 16), None)


def double_precision() -> Train:
    cell = make_gru(dtype=torch.float64)
    return make_call(cell, draw(8, 16, dtype=torch.float64), torch.zeros(8, 64, dtype=torch.float64))


def half_precision() -> Train:
    linear = nn.Linear(64, 64, dtype=torch.bfloat16)

    def cell(state: Tensor, x: Tensor) -> Any:
        state = torch.tanh(linear(x) + 0.5 * state)
        return state, state

    return make_call(cell, draw(8, 64).bfloat16(), torch.zeros(8, 64, dtype=torch.bfloat16))


def large_batch(batch: int = 128, steps: int = STEPS) -> Job:
    return make_call(make_gru(neurons=32), draw(batch, 16, steps=steps), None)


def input_gradients(steps: int = STEPS) -> Job:
    return make_call(TorchCell(nn.LSTMCell(16, 32)), draw(16, 16, steps=steps, requires_grad=True), None)


def convolution() -> Job:
    gates, zeros = nn.Conv2d(12, 32, 3, padding=1), torch.zeros(4, 8, 8, 8)

    def cell(state: Any, x: Tensor) -> Any:
        i, f, o, g = gates(torch.cat([x, state[0]], 1)).chunk(4, 1)
        memory = f.sigmoid() * state[1] + i.sigmoid() * g.tanh()
        output = o.sigmoid() * memory.tanh()
        return (output, memory), output

    return make_call(cell, torch.randn(40, 4, 4, 8, 8), (zeros, zeros), wanted=gates.parameters())


class Layers(nn.Module):
    """Two layers with dropout and BatchNorm between them; the state is a tuple."""

    def __init__(self) -> None:
        super().__init__()
        self.below, self.above = nn.GRUCell(16, 32), nn.GRUCell(32, 32)
        self.norm = nn.BatchNorm1d(32)

    def forward(self, state: Any, x: Tensor) -> Any:
        """Take a step."""
        below = self.below(x, state[0])
        above = self.above(nn.functional.dropout(self.norm(below)), state[1])
        return (below, above), above


def batch_norm(steps: int = STEPS) -> Job:
    return make_call(Layers(), draw(8, 16, steps=steps), (torch.zeros(8, 32), torch.zeros(8, 32)))


def layer_norm() -> Train:
    linear, norm = nn.Linear(16, 64), nn.LayerNorm(64)

    def cell(state: Tensor, x: Tensor) -> Any:
        state = norm(linear(x) + 0.9 * state)
        return state, state

    return make_call(cell, draw(8, 16), torch.zeros(8, 64))


def noise() -> Train:
    linear = nn.Linear(16, 64)

    def cell(state: Tensor, x: Tensor) -> Any:
        state = torch.tanh(linear(x) + 0.5 * state + 0.1 * torch.randn_like(state))
        return state, state

    return make_call(cell, draw(8, 16), torch.zeros(8, 64))


def autocast(steps: int = STEPS) -> Job:
    linear = nn.Linear(64, 64)

    def cell(state: Tensor, x: Tensor) -> Any:
        state = torch.tanh(linear(x) + linear(state))
        return state, state

    call = make_call(cell, draw(8, 64, steps=steps), torch.zeros(8, 64))

    def train(memory: Any) -> object:
        with torch.autocast("cpu", torch.bfloat16):
            return call(memory)

    return Job(train, list(linear.parameters()), relative=0.05)


def spikes() -> Train:
    class Spike(torch.autograd.Function):
        """A step with the slope of a sigmoid."""

        @staticmethod
        def forward(ctx: Any, potential: Tensor) -> Tensor:
            """Fire above zero."""
            ctx.save_for_backward(potential)
            return (potential > 0).to(potential)

        @staticmethod
        def backward(ctx: Any, *gradients: Tensor) -> Tensor:
            """Pass the gradient through the slope."""
            (potential,) = ctx.saved_tensors
            slope: Tensor = gradients[0] / (1 + 5 * potential.abs()) ** 2
            return slope

    linear = nn.Linear(16, 64)

    def cell(state: Tensor, x: Tensor) -> Any:
        potential = 0.9 * state + linear(x)
        fired: Tensor = Spike.apply(potential - 1)  # type: ignore[no-untyped-call]
        return potential - fired, fired

    return make_call(cell, draw(8, 16), torch.zeros(8, 64))


def spiking_layer() -> Train:
    cell = LIF(16, 64, slope=5.0)
    with torch.no_grad():
        cell.weight.mul_(3)
    return make_call(cell, draw(8, 16), cell.initial_state(8))


def lstm_layers(steps: int = STEPS) -> Job:
    return make_wrapped(nn.LSTM(16, 32, num_layers=2), draw(8, 16, steps=steps))


def bidirectional_layer(steps: int = STEPS) -> Job:
    return make_wrapped(nn.GRU(16, 32, bidirectional=True), draw(8, 16, steps=steps))


def packed_sequence() -> Train:
    lengths = torch.tensor([STEPS, 60, 60, 48, 36, 24, 12, 5])
    return make_wrapped(nn.LSTM(16, 32), pack_padded_sequence(draw(8, 16), lengths))


# Losses


def final_loss(steps: int = STEPS) -> Job:
    head = nn.Sequential(nn.Linear(32, 500), nn.Tanh(), nn.Linear(500, 10))

    def loss(state: Tensor) -> Tensor:
        output: Tensor = head(state)
        return output.square().mean()

    cell = make_gru(neurons=32)
    wanted = [*cell.parameters(), *head.parameters()]
    return make_call(cell, draw(8, 16, steps=steps), torch.zeros(8, 32), wanted=wanted, final_loss=loss)


def chunk_loss(steps: int = STEPS) -> Job:
    readout = nn.Linear(32, 200)

    def loss(_: int, outputs: Tensor) -> Tensor:
        read: Tensor = readout(outputs)
        return read.square().mean((1, 2)).sum()

    cell = make_gru(neurons=32)
    wanted = [*cell.parameters(), *readout.parameters()]
    return make_call(cell, draw(8, 16, steps=steps), torch.zeros(8, 32), wanted=wanted, chunk_loss=loss)


def many_classes() -> Train:
    readout, targets = nn.Linear(32, 1000), torch.randint(1000, (STEPS, 8))

    def loss(step: int, output: Tensor) -> Tensor:
        return nn.functional.cross_entropy(readout(output), targets[step])

    return make_call(make_gru(neurons=32), draw(8, 16), torch.zeros(8, 32), loss=loss)


def outputs() -> Train:
    cell, inputs = make_gru(neurons=32), draw(16, 16)
    return lambda memory: unroll(cell, inputs, None, memory=memory)[0].sum().backward()


def large_outputs() -> Train:
    gru, readout, inputs = nn.GRUCell(16, 32), nn.Linear(32, 400), draw(4, 16)

    def cell(state: Tensor, x: Tensor) -> Any:
        state = gru(x, state)
        return state, readout(state)

    start = torch.zeros(4, 32)
    return lambda memory: scan(cell, start, inputs, memory=memory)[1].sum().backward()


# Steps that differ


def growing_state() -> Train:
    linear = nn.Linear(16, 16)

    def cell(state: Tensor, x: Tensor) -> Any:
        state = torch.cat([state, torch.tanh(linear(x + state[-1]))[None]])
        return state, state.mean(0)

    return make_call(cell, draw(8, 16), torch.zeros(1, 8, 16))


def window_of_states(steps: int = STEPS) -> Job:
    query, value = nn.Linear(16, 32), nn.Linear(16, 32)

    def cell(state: Tensor, x: Tensor) -> Any:
        state = torch.cat([state[-11:], value(x)[None]])
        weights = (state * query(x)).sum(-1, keepdim=True).softmax(0)
        return state, (weights * state).sum(0)

    wanted = [*query.parameters(), *value.parameters()]
    return make_call(cell, draw(8, 16, steps=steps), torch.zeros(1, 8, 32), wanted=wanted)


def changing_depth() -> Train:
    linear = nn.Linear(32, 32)

    def cell(state: Any, x: Tensor) -> Any:
        h, step = state
        for _ in range(1 + step % 5):
            h = torch.tanh(linear(h + x))
        return (h, step + 1), h

    return make_call(cell, draw(8, 32), (torch.zeros(8, 32), 0))


def part_that_runs_late(steps: int = STEPS) -> Job:
    fast = nn.GRUCell(16, 16)
    slow = nn.Sequential(nn.Linear(16, 300), nn.Tanh(), nn.Linear(300, 300), nn.Tanh(), nn.Linear(300, 16))

    def cell(state: Any, x: Tensor) -> Any:
        h, step = state
        if step % 40 == 39:
            h = h + slow(h)
        h = fast(x, h)
        return (h, step + 1), h

    wanted, named = [*fast.parameters(), *slow.parameters()], [*slow.parameters()]
    return make_call(cell, draw(4, 16, steps=steps), (torch.zeros(4, 16), 0), wanted=wanted, parameters=named)


def data_dependent(steps: int = STEPS) -> Job:
    small = nn.Linear(6, 6)
    large = nn.Sequential(nn.Linear(6, 500), nn.Tanh(), nn.Linear(500, 6))

    def cell(state: Tensor, x: Tensor) -> Any:
        chosen = (x[:, 0] > 1).nonzero()[:, 0]
        if len(chosen):
            state = state.index_add(0, chosen, large(state[chosen] + x[chosen]))
        state = torch.tanh(0.7 * state + 0.1 * small(state) + 0.1 * x)
        return state, state

    inputs = draw(16, 6, steps=steps).clamp(max=0.9)
    inputs[steps // 2 :, :, 0] = 2
    wanted = [*small.parameters(), *large.parameters()]
    return make_call(cell, inputs, torch.zeros(16, 6), wanted=wanted, parameters=[*large.parameters()])


def inner_gradients() -> Train:
    linear = nn.Linear(16, 32)

    def cell(state: Tensor, x: Tensor) -> Any:
        with torch.enable_grad():
            h = state if state.requires_grad else state.detach().requires_grad_()
            energy = (h - torch.tanh(linear(x) + 0.5 * h)).square().sum()
            (slope,) = torch.autograd.grad(energy, h, create_graph=True)
        state = h - 0.1 * slope
        return state, state

    return make_call(cell, draw(8, 16), torch.zeros(8, 32))


def differential_equation() -> Train:
    net = nn.Sequential(nn.Linear(16, 64), nn.Tanh(), nn.Linear(64, 16))

    def cell(y: Tensor, x: Tensor) -> Any:
        k1 = net(y + x)
        k2 = net(y + 0.05 * k1 + x)
        k3 = net(y + 0.05 * k2 + x)
        k4 = net(y + 0.1 * k3 + x)
        y = y + 0.1 / 6 * (k1 + 2 * k2 + 2 * k3 + k4)
        return y, y

    return make_call(cell, draw(8, 16), torch.zeros(8, 16))


def checkpoint_inside() -> Train:
    net = nn.Sequential(nn.Linear(32, 128), nn.Tanh(), nn.Linear(128, 32), nn.Tanh())

    def cell(state: Tensor, x: Tensor) -> Any:
        state = checkpoint(net, state + x, use_reentrant=False)
        return state, state

    return make_call(cell, draw(8, 32), torch.zeros(8, 32))


def complex_state() -> Train:
    decay, read_in = nn.Parameter(torch.randn(64, dtype=torch.complex64)), nn.Linear(16, 64)

    def cell(state: Tensor, x: Tensor) -> Any:
        state = torch.exp(1j * decay.angle()) * 0.9 * state + read_in(x)
        return state, state.real

    return make_call(
        cell, draw(8, 16), torch.zeros(8, 64, dtype=torch.complex64), parameters=[decay, *read_in.parameters()]
    )


def embedding() -> Train:
    table, gru = nn.Embedding(500, 16), nn.GRUCell(16, 32)

    def cell(state: Tensor, x: Tensor) -> Any:
        state = gru(table(x), state)
        return state, state

    return make_call(cell, torch.randint(500, (STEPS, 8)), torch.zeros(8, 32))


def computed_weights() -> Train:
    below, above = weight_norm(nn.Linear(16, 32)), spectral_norm(nn.Linear(32, 32))

    def cell(state: Tensor, x: Tensor) -> Any:
        state = torch.tanh(below(x) + above(state))
        return state, state

    return make_call(cell, draw(8, 16), torch.zeros(8, 32))


def attention_to_an_encoder() -> Train:
    encoder, cell = nn.Linear(16, 32), nn.GRUCell(32, 32)
    inputs, start = draw(8, 32), torch.zeros(8, 32)
    # Computed before the call, with a graph.
    keys = torch.tanh(encoder(torch.randn(8, 20, 16)))

    def step(state: Tensor, x: Tensor) -> Any:
        weights = (keys @ state.unsqueeze(-1)).softmax(1)
        state = cell(x + (weights * keys).sum(1), state)
        return state, state

    def train(memory: Any) -> object:
        loss = bptt(step, inputs, start, mean_square, memory=memory).loss
        return torch.autograd.grad(loss, [keys, *cell.parameters()])

    return train


# State in places


class Kept(nn.Module):
    """A network that keeps its state, and a second part of it from a later step on."""

    def __init__(self, late: int = STEPS) -> None:
        super().__init__()
        self.linear, self.late = nn.Linear(32, 64), late
        self.reset()

    def reset(self) -> None:
        """Begin again."""
        self.h, self.trace, self.step = torch.zeros(16, 64), torch.zeros(()), 0

    def forward(self, x: Tensor) -> Tensor:
        """Take a step."""
        self.step += 1
        self.h = torch.tanh(self.linear(x) + 0.5 * self.h)
        if self.step > self.late:
            self.trace = 0.9 * self.trace + self.h
        return self.h + 0.1 * self.trace


def kept_state() -> Train:
    return make_wrapped(Kept(), draw(16, 32), reset=Kept.reset)


def late_state() -> Train:
    return make_wrapped(Kept(STEPS // 2), draw(16, 32), reset=Kept.reset)


def sum_of_losses(late: int = STEPS, steps: int = STEPS) -> Job:
    net, data, wrapped = Kept(late), draw(16, 32, steps=steps), dict[Any, Any]()

    def train(memory: Any) -> object:
        if memory not in wrapped:
            wrapped[memory] = wrap(net, memory=memory, reset=Kept.reset)
        return wrapped[memory].bptt(data, loss=mean_square).backward()

    return Job(train, list(net.parameters()))


class ManySteps(nn.Module):
    """A network that takes many time steps a call, and keeps its state."""

    def __init__(self) -> None:
        super().__init__()
        self.linear = nn.Linear(32, 64)
        self.reset()

    def reset(self) -> None:
        """Begin again."""
        self.h = torch.zeros(16, 64)

    def forward(self, x: Tensor) -> Tensor:
        """Take as many steps as there are."""
        states = []
        for driven in self.linear(x).unbind(0):
            self.h = torch.tanh(driven + 0.5 * self.h)
            states.append(self.h)
        return torch.stack(states)


def many_steps_a_call() -> Train:
    return make_wrapped(ManySteps(), draw(16, 32), reset=ManySteps.reset, multi_step=True)


def records() -> Train:
    class Recording(nn.Module):
        """A cell that keeps the mean of each state."""

        def __init__(self) -> None:
            super().__init__()
            self.gru, self.activity = nn.GRUCell(16, 32), list[float]()

        def forward(self, state: Tensor, x: Tensor) -> Any:
            """Take a step."""
            state = self.gru(x, state)
            self.activity.append(float(state.detach().mean()))
            return state, state

    return make_call(Recording(), draw(8, 16), torch.zeros(8, 32))


def delay_line() -> Train:
    class Delayed(nn.Module):
        """A cell that reads its state of six steps ago."""

        def __init__(self) -> None:
            super().__init__()
            self.linear = nn.Linear(16, 64)
            self.line = deque[Tensor]()

        def forward(self, state: Tensor, x: Tensor) -> Any:
            """Take a step."""
            state = torch.tanh(self.linear(x) + 0.5 * self.line.popleft())
            self.line.append(state)
            return state, state

    cell, inputs, start = Delayed(), draw(8, 16), torch.zeros(8, 64)

    def train(memory: Any) -> object:
        cell.line = deque([start] * 6)
        return bptt(cell, inputs, start, mean_square, memory=memory).loss.backward()

    return train


def state_written_in_place() -> Train:
    linear = nn.Linear(16, 64)

    def cell(state: Tensor, x: Tensor) -> Any:
        driven = torch.tanh(linear(x))
        state.mul_(0.9).add_(driven)
        return state, torch.tanh(state)

    return make_call(cell, draw(8, 16), torch.zeros(8, 64))


def short_sequence() -> Train:
    return make_call(make_gru(), torch.randn(9, 8, 16), None)


def small_state() -> Train:
    linear = nn.Linear(2, 4)

    def cell(state: Tensor, x: Tensor) -> Any:
        state = torch.tanh(linear(x) + 0.5 * state)
        return state, state

    return make_call(cell, torch.randn(2000, 2, 2), torch.zeros(2, 4))


CELLS: tuple[Callable[[], Train], ...] = (
    gru, double_precision, half_precision, large_batch, input_gradients, convolution, batch_norm, layer_norm,
    noise, autocast, spikes, spiking_layer, lstm_layers, bidirectional_layer, packed_sequence, final_loss,
    chunk_loss, many_classes, outputs, large_outputs, growing_state, window_of_states, changing_depth,
    part_that_runs_late, data_dependent, inner_gradients, differential_equation, checkpoint_inside,
    complex_state, embedding, computed_weights, attention_to_an_encoder, kept_state, late_state, sum_of_losses,
    many_steps_a_call, records, delay_line, state_written_in_place, short_sequence, small_state,
)  # fmt: skip
