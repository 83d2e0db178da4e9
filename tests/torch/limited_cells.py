"""Calls that have to stay within a limit of memory: usual cells, and cells whose steps keep unusual things."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from types import SimpleNamespace
from typing import Any

import torch
from torch import Tensor, nn
from torch.utils.checkpoint import checkpoint

from ckptplan.torch import LIF, bptt, scan, unroll, wrap
from ckptplan.torch.adapters import TorchCell
from ckptplan.torch.surrogates import FastSigmoid, Spike
from tests.torch.zoo import import_quietly

STEPS = 48


@dataclass(frozen=True)
class Job:
    """A call that trains within a limit of memory.

    Arguments:
        run: takes the limit, and runs the forward and the backward pass.
        wanted: the tensors whose gradients are compared.
        relative: the share of its largest entry by which a gradient may differ.
        beside: the bytes of tensors that the job computes for the call, which are none of the call's.
        tolerance: the share of a limit by which a call may pass it.
    """

    run: Callable[[Any], object]
    wanted: Sequence[Tensor]
    relative: float = 1e-3
    beside: int = 0
    tolerance: float = 0.03


def mean_square(_: int, output: Tensor) -> Tensor:
    """The loss of a step."""
    return output.square().mean()


def train(
    cell: Any, inputs: Any, state: Any, *, wanted: Any = None, relative: float = 1e-3, **options: Any
) -> Job:
    """Return a job that runs ``bptt``."""
    if not options.keys() & {"chunk_loss", "final_loss", "loss"}:
        options["loss"] = mean_square
    wanted = list(cell.parameters() if wanted is None else wanted)

    def run(memory: Any) -> object:
        return bptt(cell, inputs, state, memory=memory, **options).loss.backward()

    return Job(run, wanted, relative)


def train_outputs(net: Any, inputs: Any, *, read: Any = torch.sum, **options: Any) -> Job:
    """Return a job that runs a wrapped network, made once for each limit, and a loss of its outputs."""
    made: dict[Any, Any] = {}

    def run(memory: Any) -> object:
        if memory not in made:
            made[memory] = wrap(net, memory=memory, **options)
        outputs = made[memory](inputs)
        return read(outputs[0] if isinstance(outputs, tuple) else outputs).backward()

    return Job(run, list(net.parameters()))


class Stepping(nn.Module):
    """A cell of which a function is the step; it has a GRU cell and linear layers."""

    def __init__(self, step: Any, *, units: int = 24, late: int = 0) -> None:
        super().__init__()
        self.step, self.late = step, late
        self.gru, self.inner = nn.GRUCell(16, units), nn.Linear(16, units)
        self.wide = nn.Sequential(nn.Linear(units, 300), nn.Tanh(), nn.Linear(300, units))

    def forward(self, state: Any, x: Tensor) -> Any:
        return self.step(self, state, x)


def train_step(step: Any, *shape: int, batch: int = 16, count: bool = False, **options: Any) -> Job:
    """Return a job of a ``Stepping`` whose state is of a shape; ``count`` adds the number of the step to it."""
    cell, state = Stepping(step, **options), torch.zeros(batch, *shape)
    given = (state, 0) if count else state
    return train(cell, torch.randn(STEPS, batch, 16), given, parameters=cell.parameters())


# Usual cells


def convolution() -> Job:
    gates, zeros = nn.Conv2d(12, 32, 3, padding=1), torch.zeros(4, 8, 8, 8)

    def cell(state: Any, x: Tensor) -> Any:
        i, f, o, g = gates(torch.cat([x, state[0]], 1)).chunk(4, 1)
        memory = f.sigmoid() * state[1] + i.sigmoid() * g.tanh()
        output = o.sigmoid() * memory.tanh()
        return (output, memory), output

    return train(cell, torch.randn(40, 4, 4, 8, 8), (zeros, zeros), wanted=gates.parameters())


class Layers(nn.Module):
    """Two layers with dropout and BatchNorm between them; the state is a tuple."""

    def __init__(self) -> None:
        super().__init__()
        self.below, self.above = nn.GRUCell(16, 32), nn.GRUCell(32, 32)
        self.norm = nn.BatchNorm1d(32)

    def forward(self, state: Any, x: Tensor) -> Any:
        below = self.below(x, state[0])
        above = self.above(nn.functional.dropout(self.norm(below)), state[1])
        return (below, above), above


def spiking_convolution() -> Job:
    conv = nn.Conv2d(2, 8, 3, padding=1)

    def cell(state: Tensor, x: Tensor) -> Any:
        state = 0.9 * state + conv(x)
        spikes = Spike.apply(state - 0.5, FastSigmoid(10.0))  # type: ignore[no-untyped-call]
        return state - spikes.detach(), spikes

    return train(cell, torch.randn(60, 8, 2, 12, 12), torch.zeros(8, 8, 12, 12), wanted=conv.parameters())


def neurons() -> Job:
    cell = LIF(16, 64, threshold=0.2)
    return train(cell, torch.randn(200, 64, 16), cell.initial_state(64))


def autocast() -> Job:
    linear = nn.Linear(64, 64)

    def cell(state: Tensor, x: Tensor) -> Any:
        state = torch.tanh(linear(x) + linear(state))
        return state, state

    job = train(cell, torch.randn(STEPS, 8, 64), torch.zeros(8, 64), wanted=linear.parameters())

    def run(memory: Any) -> object:
        with torch.autocast("cpu", torch.bfloat16):
            return job.run(memory)

    return Job(run, job.wanted, 0.05)


def module(
    kind: Any, batch: int, *, width: int = 16, steps: int = STEPS, dtype: Any = None, **options: Any
) -> Job:
    """A cell of PyTorch."""
    cell = TorchCell(kind.to(dtype))
    relative = 1e-3 if dtype is None else 0.1
    return train(cell, torch.randn(steps, batch, width, dtype=dtype, **options), None, relative=relative)


# States


def attend_all(cell: Any, state: Any, x: Tensor) -> Any:
    """The state has all earlier states, and grows with each step."""
    last, before = cell.gru(x, state[:, -1]), state
    weights = torch.softmax((before * last[:, None]).sum(-1), 1)
    last = torch.tanh(last + (weights[..., None] * before).sum(1))
    return torch.cat([before, last[:, None]], 1), last


def attend_window(cell: Any, state: Any, x: Tensor) -> Any:
    last = cell.gru(x, state[:, -1])
    shares = torch.softmax((state * cell.inner(x)[:, None]).sum(-1), 1)
    last = torch.tanh(last + (shares[..., None] * state).sum(1))
    return torch.cat([state[:, 1:], last[:, None]], 1), last


def remember(most: int, cell: Any, state: Any, x: Tensor) -> Any:
    """The state has its first steps, and grows until these are ``most``: later steps keep less."""
    last = torch.tanh(cell.gru(x, state[:, 0]) + state.mean(1))
    kept = torch.cat([state, last[:, None]], 1) if state.shape[1] < most else state
    return torch.cat([last[:, None], kept[:, 1:]], 1), last


def delay(cell: Any, line: Tensor, x: Tensor) -> Any:
    """The state is most of what a step keeps, and another operation keeps a part of it."""
    output = torch.tanh(cell.gru.weight_ih.sum() * line[:, 0] + cell.inner(x).mean())
    return torch.cat([line[:, 1:], output[:, None]], 1), output


def learn_fast(cell: Any, weights: Tensor, x: Tensor) -> Any:
    key = torch.tanh(cell.inner(x))
    output = torch.einsum("bij,bj->bi", weights, key)
    return 0.9 * weights + 0.1 * key[:, :, None] * (key - output)[:, None], output


def mix_neighbours(cell: Any, state: Tensor, x: Tensor) -> Any:
    """What a step works with is more than its tape."""
    near = state.roll(1, 1) + state.roll(-1, 1)
    state = torch.tanh(0.5 * state + near * cell.inner(x)[:, None] * torch.sigmoid(near))
    return state, state.mean(1)


class Kept(nn.Module):
    """A network that keeps its state, and a second part of it from a later step on."""

    def __init__(self, late: int) -> None:
        super().__init__()
        self.linear, self.late = nn.Linear(32, 64), late
        self.reset()

    def reset(self) -> None:
        self.h, self.trace, self.step = torch.zeros(16, 64), torch.zeros(()), 0

    def forward(self, x: Tensor) -> Tensor:
        self.step += 1
        self.h = torch.tanh(self.linear(x) + 0.5 * self.h)
        if self.step > self.late:
            self.trace = 0.9 * self.trace + self.h
        return self.h + 0.1 * self.trace


def kept_state(late: int) -> Job:
    net, data, wrapped = Kept(late), torch.randn(STEPS, 16, 32), dict[Any, Any]()

    def run(memory: Any) -> object:
        if memory not in wrapped:
            wrapped[memory] = wrap(net, memory=memory, reset=Kept.reset)
        return wrapped[memory].bptt(data, loss=mean_square).backward()

    return Job(run, list(net.parameters()))


class KeepsThree(nn.Module):
    """Keeps its last three states in a list."""

    def __init__(self) -> None:
        super().__init__()
        self.linear = nn.Linear(16, 16)
        self.kept: list[Tensor] = []

    def forward(self, x: Tensor) -> Tensor:
        state = torch.tanh(self.linear(x) + 0.2 * sum(self.kept))
        self.kept = [*self.kept, state][-3:]
        return state


def leaky_layers() -> Job:
    """Layers of snnTorch, whose gradients are as large as all else."""
    snntorch, utils = import_quietly("snntorch"), import_quietly("snntorch.utils")
    net = nn.Sequential()
    for before, after in ((64, 96), (96, 96), (96, 2)):
        net.extend([nn.Linear(before, after), snntorch.Leaky(beta=0.9, init_hidden=True)])
    return train_outputs(net, torch.randn(60, 4, 64), reset=utils.reset)


# Steps that differ


def use_late(cell: Any, state: Any, x: Tensor) -> Any:
    """A large part of the network runs from a later step on."""
    h, step = state
    h = cell.gru(x, h)
    return (h + cell.wide(h) if step > cell.late else h, step + 1), h


def use_rarely(cell: Any, state: Any, x: Tensor) -> Any:
    """A large part of the network runs in every fortieth step only."""
    h, step = state
    h = cell.gru(x, h + cell.wide(h) if step % 40 == 39 else h)
    return (h, step + 1), h


def burst(cell: Any, state: Any, x: Tensor) -> Any:
    """Two steps in the middle keep much more than all others."""
    h, step = state
    h = cell.gru(x, h)
    for _ in range(40 if 31 <= step < 33 else 0):
        h = torch.tanh(h)
    return (h, step + 1), h


def scratch(cell: Any, state: Any, x: Tensor) -> Any:
    """All steps but the first work with much memory of which nothing is kept."""
    h, step = state
    if step > cell.late:
        with torch.no_grad():
            torch.ones(60_000).add_(1)
    h = cell.gru(x, h)
    return (h, step + 1), h


def data_dependent() -> Job:
    """The data decide which examples pass through large layers, from the second half on."""
    small = nn.Linear(6, 6)
    large = nn.Sequential(nn.Linear(6, 500), nn.Tanh(), nn.Linear(500, 6))

    def cell(state: Tensor, x: Tensor) -> Any:
        chosen = (x[:, 0] > 1).nonzero()[:, 0]
        if len(chosen):
            state = state.index_add(0, chosen, large(state[chosen] + x[chosen]))
        state = torch.tanh(0.7 * state + 0.1 * small(state) + 0.1 * x)
        return state, state

    inputs = torch.randn(STEPS, 16, 6).clamp(max=0.9)
    inputs[STEPS // 2 :, :, 0] = 2
    wanted = [*small.parameters(), *large.parameters()]
    return train(cell, inputs, torch.zeros(16, 6), wanted=wanted, parameters=[*large.parameters()])


class Widening(nn.Module):
    """Uses its largest layer, which is more than all else, from the tenth step on."""

    def __init__(self) -> None:
        super().__init__()
        self.into, self.up = nn.Linear(16, 64), nn.Linear(64, 4096)

    def forward(self, state: Any, x: Tensor) -> Any:
        last, step = state
        last = torch.tanh(last + self.into(x))
        if step >= 10:
            last = torch.tanh(last + self.up(last)[:, ::64])
        return (last, step + 1), last


def largest_late() -> Job:
    cell = Widening()
    return train(cell, torch.randn(40, 1, 16), (torch.zeros(1, 64), 0), parameters=cell.parameters())


# Losses


def final_loss() -> Job:
    head = nn.Sequential(nn.Linear(32, 500), nn.Tanh(), nn.Linear(500, 10))
    cell = TorchCell(nn.GRUCell(16, 32))
    wanted = [*cell.parameters(), *head.parameters()]
    inputs, state = torch.randn(STEPS, 8, 16), torch.zeros(8, 32)
    return train(cell, inputs, state, wanted=wanted, final_loss=lambda end: head(end).square().mean())


def chunk_loss() -> Job:
    readout, cell = nn.Linear(32, 200), TorchCell(nn.GRUCell(16, 32))

    def loss(_: int, outputs: Tensor) -> Tensor:
        read: Tensor = readout(outputs)
        return read.square().mean((1, 2)).sum()

    wanted = [*cell.parameters(), *readout.parameters()]
    return train(cell, torch.randn(STEPS, 8, 16), torch.zeros(8, 32), wanted=wanted, chunk_loss=loss)


def rare_loss() -> Job:
    """A large readout in every tenth step."""
    head, classes, cell = nn.Linear(48, 500), torch.randint(500, (96, 8)), TorchCell(nn.GRUCell(48, 48))

    def loss(step: int, output: Tensor) -> Tensor:
        if step % 10 != 9:
            return output.sum() * 0
        return nn.functional.cross_entropy(head(output), classes[step])

    named = [*head.parameters()]
    inputs, state = torch.randn(96, 8, 48), torch.zeros(8, 48)
    return train(cell, inputs, state, wanted=[*cell.parameters(), *named], loss=loss, parameters=named)


# What operations keep


def run_again(cell: Any, state: Tensor, x: Tensor) -> Any:
    """What it keeps is made when the backward pass asks for it: whoever counts it must not ask."""

    def inner(x: Tensor, state: Tensor) -> Tensor:
        wide = torch.relu(cell.gru(x, state)).repeat(1, 12)
        return state + torch.tanh(wide * wide).view(len(x), 12, -1).mean(1)

    state = checkpoint(inner, x, state, use_reentrant=False)
    return state, state


def run_parts_again(cell: Any, state: Tensor, x: Tensor) -> Any:
    """What each part begins with is held by what runs it again, and by nothing else."""

    def part(x: Tensor, state: Tensor) -> Tensor:
        return state + torch.tanh(cell.gru(x, state)) * state.sigmoid()

    for _ in range(4):
        state = checkpoint(part, x, state, use_reentrant=False, preserve_rng_state=False)
    return state, state


class KeepsAttribute(torch.autograd.Function):
    """tanh, which keeps its result in an attribute, as ``hide`` makes it; ``show`` finds it there."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, hide: Any, show: Any) -> Tensor:
        """Return tanh(x)."""
        ctx.kept, ctx.show = hide(torch.tanh(x)), show
        result: Tensor = show(ctx.kept).clone()
        return result

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> Any:
        """Return the gradient."""
        return gradient * (1 - ctx.show(ctx.kept) ** 2), None, None


def _hide_in_closure(tensor: Tensor) -> Any:
    return lambda: tensor


#: Where a function of autograd keeps a tensor: how it is put there, and how it is found.
HIDDEN: dict[str, tuple[Any, Any]] = {
    "an attribute": (lambda one: one, lambda one: one),
    "an object": (lambda one: SimpleNamespace(one=[one]), lambda kept: kept.one[0]),
    "a closure": (_hide_in_closure, lambda kept: kept()),
}


def keep(where: str, cell: Any, state: Tensor, x: Tensor) -> Any:
    """The tape is mostly attributes of operations."""
    state = cell.gru(x, state)
    for _ in range(4):
        state = KeepsAttribute.apply(state, *HIDDEN[where])  # type: ignore[no-untyped-call]
    return state, state


class Transposed(torch.autograd.Function):
    """Saves a tensor that does not lie in memory as it is read, and needs to find it so."""

    @staticmethod
    def forward(ctx: Any, x: Tensor) -> Tensor:
        """Return half of x."""
        ctx.save_for_backward(x.t())
        return 0.5 * x

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> Tensor:
        """Return the gradient."""
        (kept,) = ctx.saved_tensors
        kept.t().view(-1)
        return 0.5 * gradients[0]


def _without_hooks(x: Tensor) -> Tensor:
    with torch.autograd.graph.disable_saved_tensors_hooks("not here"):
        return x.tanh()


#: What follows a GRU cell in a step.
AFTER: dict[str, Callable[[Tensor], Tensor]] = {
    "a slice": lambda x: torch.tanh(x + x[:, :1].square()),
    "a transposed tensor": Transposed.apply,
    "noise": partial(nn.functional.rrelu, training=True),
    "parts of complex numbers": lambda x: (x + 0j).conj().imag + x,
    "a ban of hooks": _without_hooks,
}


def follow(name: str, cell: Any, state: Tensor, x: Tensor) -> Any:
    state = AFTER[name](cell.gru(x, state))
    return state, state


class Doubles(torch.autograd.Function):
    """Twice its argument, which it keeps in an attribute."""

    @staticmethod
    def forward(ctx: Any, x: Tensor) -> Tensor:
        """Return 2 x."""
        ctx.x = x
        return 2 * x

    @staticmethod
    def backward(_: Any, gradient: Tensor) -> Any:
        """Return the gradient."""
        return 2 * gradient


def write_later(cell: Any, state: Tensor, x: Tensor) -> Any:
    """An operation keeps a part of a tensor that is written into afterwards."""
    gates = cell.inner(torch.tanh(cell.gru(x, state))[:, :16] + x)
    first = Doubles.apply(gates.chunk(2, 1)[0])  # type: ignore[no-untyped-call]
    gates[:, 12:] *= 0.5
    state = torch.cat([first, gates[:, 12:]], 1).tanh()
    return state, state


def transforms() -> Job:
    """Transforms of ``torch.func`` within a step, which hide from the trial what they save."""
    weight = torch.randn(16, 64, requires_grad=True)
    slope = torch.func.vmap(torch.func.grad(lambda one: (one**3).sum()))
    inputs = torch.randn(60, 64, 16)

    def cell(state: Tensor, x: Tensor) -> Any:
        return (torch.tanh(slope(state) + x @ weight),) * 2

    job = train(cell, inputs, torch.zeros(64, 64), wanted=[weight])
    return Job(job.run, job.wanted, tolerance=0.2)


class Holding(Tensor):
    """Holds another tensor, as quantized and distributed weights do; it has no memory of its own."""

    @staticmethod
    def __new__(cls, inner: Tensor) -> Any:
        """Return a tensor without memory."""
        make: Any = Tensor._make_wrapper_subclass
        return make(cls, inner.shape, dtype=inner.dtype, requires_grad=inner.requires_grad)

    def __init__(self, inner: Tensor) -> None:
        self.held = inner

    @classmethod
    def __torch_dispatch__(  # type: ignore[override]
        cls, func: Any, types: Any, args: Any = (), kwargs: Any = None
    ) -> Any:
        """Run an operation on what is held."""
        found = func(*(one.held if isinstance(one, Holding) else one for one in args), **(kwargs or {}))
        same = func in (torch.ops.aten.detach.default, torch.ops.aten.clone.default)
        return Holding(found) if same else found


def holding_parameter() -> Job:
    weight, layer = nn.Parameter(Holding(torch.randn(32, 32) / 8)), nn.Linear(32, 32)

    def cell(state: Tensor, x: Tensor) -> tuple[Tensor, Tensor]:
        state = torch.tanh(x @ weight + layer(state))
        return state, state

    inputs, state = torch.randn(60, 16, 32), torch.zeros(16, 32)
    return train(cell, inputs, state, wanted=[weight, *layer.parameters()])


def masked() -> Job:
    """With a mask, the state of a step is none that its kernel saves."""
    layer, outer = nn.LSTM(64, 12).double(), nn.Linear(6, 64).double()

    def cell(state: Any, x: Any) -> Any:
        mask = (1 - x[1]).view(1, -1, 1)
        output, state = layer(x[0].unsqueeze(0), (mask * state[0], mask * state[1]))
        return state, output.squeeze(0)

    done, zeros = (torch.rand(40, 4) < 0.1).double(), torch.zeros(1, 4, 12).double()
    seen = torch.randn(40, 4, 6).double()

    def run(memory: Any) -> object:
        return scan(cell, (zeros, zeros), (outer(seen), done), memory=memory)[1].square().sum().backward()

    return Job(run, [*layer.parameters(), *outer.parameters()], beside=40 * 4 * 64 * 8)


# Outputs


def outputs(read: Any) -> Job:
    cell, inputs = TorchCell(nn.GRUCell(16, 32)), torch.randn(64, 8, 16)

    def run(memory: Any) -> object:
        return read(unroll(cell, inputs, torch.zeros(8, 32), memory=memory)[0]).backward()

    return Job(run, list(cell.parameters()))


def layer(kind: Any, **options: Any) -> Job:
    return train_outputs(kind(16, 32, **options), torch.randn(64, 8, 16))


CELLS: dict[str, Callable[[], Job]] = {
    "GRU": lambda: module(nn.GRUCell(16, 64), 8),
    "LSTM, gradients of inputs": lambda: module(nn.LSTMCell(16, 32), 16, requires_grad=True),
    "large batch": lambda: module(nn.GRUCell(16, 32), 256),
    "large weights": lambda: module(nn.GRUCell(16, 250), 1),
    "bfloat16": lambda: module(nn.GRUCell(16, 32), 512, dtype=torch.bfloat16),
    "long sequence": lambda: module(nn.GRUCell(8, 8), 2, width=8, steps=400),
    "three steps": lambda: module(nn.GRUCell(16, 64), 8, steps=3),
    "one step": lambda: module(nn.GRUCell(16, 64), 8, steps=1),
    "convolution": convolution,
    "layers": lambda: train(Layers(), torch.randn(STEPS, 8, 16), (torch.zeros(8, 32), torch.zeros(8, 32))),
    "spiking convolution": spiking_convolution,
    "LIF": neurons,
    "autocast": autocast,
    "state that grows": lambda: train_step(attend_all, 1, 24),
    "window of states": lambda: train_step(attend_window, 16, 24),
    "state that grows 10 times": lambda: train_step(partial(remember, 10), 2, 24),
    "state that grows 30 times": lambda: train_step(partial(remember, 30), 2, 24),
    "state that grows until the end": lambda: train_step(partial(remember, STEPS - 1), 2, 24),
    "delay line": lambda: train_step(delay, 10, 24),
    "fast weights": lambda: train_step(learn_fast, 24, 24),
    "large workspace": lambda: train_step(mix_neighbours, 20, 24),
    "kept state": lambda: kept_state(STEPS),
    "kept state that begins late": lambda: kept_state(STEPS // 2),
    "list of states": lambda: train_outputs(
        KeepsThree(), torch.randn(STEPS, 8, 16), reset=lambda net: setattr(net, "kept", [])
    ),
    "snnTorch": leaky_layers,
    "part that runs late": lambda: train_step(use_late, 24, batch=8, count=True, late=30),
    "part that runs rarely": lambda: train_step(use_rarely, 24, batch=4, count=True),
    "two large steps": lambda: train_step(burst, 24, count=True),
    "workspace of later steps": lambda: train_step(scratch, 24, count=True, late=0),
    "data decide": data_dependent,
    "largest weight late": largest_late,
    "loss of the final state": final_loss,
    "loss of chunks": chunk_loss,
    "loss of some steps": rare_loss,
    "checkpoint inside": lambda: train_step(run_again, 24),
    "checkpoints inside": lambda: train_step(run_parts_again, 24),
    **{f"kept in {where}": partial(train_step, partial(keep, where), 24) for where in HIDDEN},
    **{name: partial(train_step, partial(follow, name), 24, batch=64) for name in AFTER},
    "part that is written later": lambda: train_step(write_later, 24),
    "transforms": transforms,
    "parameter that holds another": holding_parameter,
    "mask": masked,
    "outputs": lambda: outputs(torch.sum),
    "last output": lambda: outputs(lambda stacked: stacked[-1].sum()),
    "wrapped GRUCell": lambda: layer(nn.GRUCell),
    "wrapped LSTM": lambda: layer(nn.LSTM, num_layers=2),
    "wrapped GRU, both ways": lambda: layer(nn.GRU, bidirectional=True),
}
