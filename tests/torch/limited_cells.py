"""Calls that have to stay within a limit of memory: some of ``benchmarks``, and cells with unusual steps."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from types import SimpleNamespace
from typing import Any

import torch
from torch import Tensor, nn
from torch.utils.checkpoint import checkpoint

from benchmarks import limited_cells as cells
from benchmarks.limited_cells import Job, make_call, make_wrapped
from ckptplan.torch import LIF, scan, unroll
from ckptplan.torch.adapters import TorchCell
from ckptplan.torch.surrogates import FastSigmoid, Spike
from tests.torch.zoo import import_quietly

STEPS = 48


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
    return make_call(cell, torch.randn(STEPS, batch, 16), given, parameters=cell.parameters())


# Usual cells


def spiking_convolution() -> Job:
    conv = nn.Conv2d(2, 8, 3, padding=1)

    def cell(state: Tensor, x: Tensor) -> Any:
        state = 0.9 * state + conv(x)
        spikes = Spike.apply(state - 0.5, FastSigmoid(10.0))  # type: ignore[no-untyped-call]
        return state - spikes.detach(), spikes

    return make_call(cell, torch.randn(60, 8, 2, 12, 12), torch.zeros(8, 8, 12, 12), wanted=conv.parameters())


def neurons() -> Job:
    cell = LIF(16, 64, threshold=0.2)
    return make_call(cell, torch.randn(200, 64, 16), cell.initial_state(64))


def module(kind: Any, batch: int, *, width: int = 16, steps: int = STEPS, dtype: Any = None) -> Job:
    """A cell of PyTorch."""
    cell = TorchCell(kind.to(dtype))
    relative = 1e-3 if dtype is None else 0.1
    return make_call(cell, torch.randn(steps, batch, width, dtype=dtype), None, relative=relative)


# States


def attend_all(cell: Any, state: Any, x: Tensor) -> Any:
    """The state has all earlier states, and grows with each step."""
    last, before = cell.gru(x, state[:, -1]), state
    weights = torch.softmax((before * last[:, None]).sum(-1), 1)
    last = torch.tanh(last + (weights[..., None] * before).sum(1))
    return torch.cat([before, last[:, None]], 1), last


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
    return make_wrapped(net, torch.randn(60, 4, 64), reset=utils.reset)


# Steps that differ


def use_late(cell: Any, state: Any, x: Tensor) -> Any:
    """A large part of the network runs from a later step on."""
    h, step = state
    h = cell.gru(x, h)
    return (h + cell.wide(h) if step > cell.late else h, step + 1), h


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
    return make_call(cell, torch.randn(40, 1, 16), (torch.zeros(1, 64), 0), parameters=cell.parameters())


def rare_loss() -> Job:
    """A large readout in every tenth step."""
    head, classes, cell = nn.Linear(48, 500), torch.randint(500, (96, 8)), TorchCell(nn.GRUCell(48, 48))

    def loss(step: int, output: Tensor) -> Tensor:
        if step % 10 != 9:
            return output.sum() * 0
        return nn.functional.cross_entropy(head(output), classes[step])

    named = [*head.parameters()]
    inputs, state = torch.randn(96, 8, 48), torch.zeros(8, 48)
    return make_call(cell, inputs, state, wanted=[*cell.parameters(), *named], loss=loss, parameters=named)


def sum_late(step: int, output: Tensor) -> Tensor:
    """A loss of the last steps; those before have none, and no gradient."""
    return output.square().sum() if step >= 80 else torch.zeros(())


def late_loss(kind: str) -> Job:
    """The first steps show no gradient: the state, which is passed or kept, shows that there is one."""
    linear, inputs, start = nn.Linear(8, 32), torch.randn(90, 4, 8), torch.zeros(4, 32)
    holder = SimpleNamespace(h=start)

    def pass_on(state: Tensor, x: Tensor) -> Any:
        state = torch.tanh(linear(x) + 0.9 * state)
        return state, state

    def keep(state: Tensor, x: Tensor) -> Any:
        holder.h = torch.tanh(linear(x) + 0.9 * holder.h)
        return state, holder.h

    spiking = LIF(8, 32, threshold=0.3)
    cell = {"passed": pass_on, "kept": keep, "LIF": spiking}[kind]
    wanted = list(spiking.parameters() if kind == "LIF" else linear.parameters())
    job = make_call(cell, inputs, start, wanted=wanted, loss=sum_late)

    def run(memory: Any) -> object:
        holder.h = start
        return job.run(memory)

    return Job(run, wanted)


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

    job = make_call(cell, inputs, torch.zeros(64, 64), wanted=[weight])
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
    return make_call(cell, inputs, state, wanted=[weight, *layer.parameters()])


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


CELLS: dict[str, Callable[[], Job]] = {
    "GRU": lambda: module(nn.GRUCell(16, 64), 8),
    "LSTM, gradients of inputs": partial(cells.input_gradients, STEPS),
    "large batch": partial(cells.large_batch, 256, STEPS),
    "large weights": lambda: module(nn.GRUCell(16, 250), 1),
    "bfloat16": lambda: module(nn.GRUCell(16, 32), 512, dtype=torch.bfloat16),
    "long sequence": lambda: module(nn.GRUCell(8, 8), 2, width=8, steps=400),
    "three steps": lambda: module(nn.GRUCell(16, 64), 8, steps=3),
    "one step": lambda: module(nn.GRUCell(16, 64), 8, steps=1),
    "convolution": cells.convolution,
    "layers": partial(cells.batch_norm, STEPS),
    "spiking convolution": spiking_convolution,
    "LIF": neurons,
    "autocast": partial(cells.autocast, STEPS),
    "state that grows": lambda: train_step(attend_all, 1, 24),
    "window of states": partial(cells.window_of_states, STEPS),
    "state that grows 10 times": lambda: train_step(partial(remember, 10), 2, 24),
    "state that grows 30 times": lambda: train_step(partial(remember, 30), 2, 24),
    "state that grows until the end": lambda: train_step(partial(remember, STEPS - 1), 2, 24),
    "delay line": lambda: train_step(delay, 10, 24),
    "fast weights": lambda: train_step(learn_fast, 24, 24),
    "large workspace": lambda: train_step(mix_neighbours, 20, 24),
    "kept state": partial(cells.sum_of_losses, STEPS, STEPS),
    "kept state that begins late": partial(cells.sum_of_losses, STEPS // 2, STEPS),
    "list of states": lambda: make_wrapped(
        KeepsThree(), torch.randn(STEPS, 8, 16), reset=lambda net: setattr(net, "kept", [])
    ),
    "snnTorch": leaky_layers,
    "part that runs late": lambda: train_step(use_late, 24, batch=8, count=True, late=30),
    "part that runs rarely": partial(cells.part_that_runs_late, STEPS),
    "two large steps": lambda: train_step(burst, 24, count=True),
    "workspace of later steps": lambda: train_step(scratch, 24, count=True, late=0),
    "data decide": partial(cells.data_dependent, STEPS),
    "largest weight late": largest_late,
    "loss of the final state": partial(cells.final_loss, STEPS),
    "loss of chunks": partial(cells.chunk_loss, STEPS),
    "loss of some steps": rare_loss,
    **{f"loss of the last steps, {kind}": partial(late_loss, kind) for kind in ("passed", "kept", "LIF")},
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
    "wrapped GRUCell": lambda: make_wrapped(nn.GRUCell(16, 32), torch.randn(64, 8, 16)),
    "wrapped LSTM": partial(cells.lstm_layers, 64),
    "wrapped GRU, both ways": partial(cells.bidirectional_layer, 64),
}
