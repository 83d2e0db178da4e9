"""Calls that have to stay within a limit of memory: usual cells, and cells with unusual steps.

``test_memory_limit`` compares their gradients with those of a plain loop, and ``benchmarks.limits`` shows how
much of their limits they take.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from types import SimpleNamespace
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.utils.parametrizations import weight_norm
from torch.nn.utils.rnn import pack_padded_sequence
from torch.utils.checkpoint import checkpoint

from ckptplan.torch import LIF, SpikingLayer, bptt, scan, unroll, wrap
from ckptplan.torch.adapters import TorchCell
from ckptplan.torch.surrogates import FastSigmoid, Spike
from tests.torch.limit_tables import mean_square
from tests.torch.zoo import import_quietly

STEPS = 48


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

    run: Callable[[Any], object]
    wanted: Sequence[Tensor]
    relative: float = 1e-3
    beside: int = 0
    tolerance: float = 0.03


def make_call(
    cell: Any, inputs: Any, state: Any, *, wanted: Any = None, relative: float = 1e-3, **options: Any
) -> Job:
    """Return a call that trains a cell within a limit. Its parameters are wanted, unless others are."""
    if not options.keys() & {"loss", "chunk_loss", "final_loss"}:
        options["loss"] = mean_square

    def train(memory: Any) -> object:
        return bptt(cell, inputs, state, memory=memory, **options).loss.backward()

    return Job(train, list(cell.parameters() if wanted is None else wanted), relative)


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


class Stepping(nn.Module):
    """A cell of which a function is the step; it has a GRU cell, linear layers and a list."""

    def __init__(self, step: Any, *, units: int = 24) -> None:
        super().__init__()
        self.step, self.activity = step, list[float]()
        self.gru, self.inner = nn.GRUCell(16, units), nn.Linear(16, units)
        self.wide = nn.Sequential(nn.Linear(units, 300), nn.Tanh(), nn.Linear(300, units))

    def forward(self, state: Any, x: Tensor) -> Any:
        return self.step(self, state, x)


def train_step(
    step: Any, *shape: int, batch: int = 16, count: bool = False, inputs: Any = None, dtype: Any = None
) -> Job:
    """Return a job of a ``Stepping`` whose state is of a shape; ``count`` adds the number of the step to it."""
    cell, state = Stepping(step), torch.zeros(batch, *shape, dtype=dtype)
    given = (state, 0) if count else state
    data = torch.randn(STEPS, batch, 16) if inputs is None else inputs
    return make_call(cell, data, given, parameters=cell.parameters())


# Usual cells


def spiking_convolution() -> Job:
    conv = nn.Conv2d(2, 8, 3, padding=1)

    def cell(state: Tensor, x: Tensor) -> Any:
        state = 0.9 * state + conv(x)
        spikes = Spike.apply(state - 0.5, FastSigmoid(10.0))  # type: ignore[no-untyped-call]
        return state - spikes.detach(), spikes

    return make_call(cell, torch.randn(60, 8, 2, 12, 12), torch.zeros(8, 8, 12, 12), wanted=conv.parameters())


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
        below = self.below(x, state[0])
        above = self.above(nn.functional.dropout(self.norm(below)), state[1])
        return (below, above), above


def autocast() -> Job:
    linear = nn.Linear(64, 64)

    def cell(state: Tensor, x: Tensor) -> Any:
        state = torch.tanh(linear(x) + linear(state))
        return state, state

    job = make_call(cell, torch.randn(STEPS, 8, 64), torch.zeros(8, 64), wanted=linear.parameters())

    def run(memory: Any) -> object:
        with torch.autocast("cpu", torch.bfloat16):
            return job.run(memory)

    return Job(run, job.wanted, relative=0.05)


def embedding() -> Job:
    """The inputs are integers."""
    table, gru = nn.Embedding(500, 16), nn.GRUCell(16, 32)

    def cell(state: Tensor, x: Tensor) -> Any:
        state = gru(table(x), state)
        return state, state

    wanted = [*table.parameters(), *gru.parameters()]
    return make_call(cell, torch.randint(500, (STEPS, 8)), torch.zeros(8, 32), wanted=wanted)


def computed_weight() -> Job:
    cell = weight_norm(nn.RNNCell(16, 32), "weight_hh")
    return make_call(TorchCell(cell), torch.randn(STEPS, 8, 16), torch.zeros(8, 32))


def neurons() -> Job:
    cell = LIF(16, 64, threshold=0.2)
    return make_call(cell, torch.randn(200, 64, 16), cell.initial_state(64))


def few_neurons() -> Job:
    """Spikes of all steps are more than a state."""
    cell = LIF(8, 48, threshold=0.4)
    return make_call(cell, torch.randn(120, 4, 8), cell.initial_state(4))


def spiking_layer(**options: Any) -> Job:
    """Neurons with a further memory."""
    cell = SpikingLayer(16, 128, threshold=0.3, recurrent=False, **options)
    return make_call(cell, torch.randn(STEPS, 32, 16), cell.initial_state(32))


def module(kind: Any, batch: int, *, width: int = 16, steps: int = STEPS, dtype: Any = None) -> Job:
    """A cell of PyTorch."""
    cell = TorchCell(kind.to(dtype))
    relative = 0.1 if dtype is torch.bfloat16 else 1e-3
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


def attend_window(cell: Any, state: Tensor, x: Tensor) -> Any:
    """The state has the last twelve values, and grows until it has them."""
    state = torch.cat([state[:, -11:], cell.inner(x)[:, None]], 1)
    weights = (state * cell.gru(x, state[:, -1])[:, None]).sum(-1, keepdim=True).softmax(1)
    return state, (weights * state).sum(1)


def rotate(cell: Any, state: Tensor, x: Tensor) -> Any:
    """The state is complex."""
    state = torch.exp(1j * cell.gru.bias_ih[:24]) * 0.9 * state + cell.inner(x)
    return state, state.real


def write_state(cell: Any, state: Tensor, x: Tensor) -> Any:
    """The state is written in place."""
    state.mul_(0.9).add_(torch.tanh(cell.inner(x)))
    return state, torch.tanh(state)


def record_activity(cell: Any, state: Tensor, x: Tensor) -> Any:
    state = cell.gru(x, state)
    cell.activity.append(float(state.detach().mean()))
    return state, state


def delay(cell: Any, line: Tensor, x: Tensor) -> Any:
    """The state is most of what a step keeps, and another operation keeps a part of it."""
    output = torch.tanh(cell.gru.weight_ih.sum() * line[:, 0] + cell.inner(x).mean())
    return torch.cat([line[:, 1:], output[:, None]], 1), output


def take_turns(cell: Any, state: tuple[Tensor, Tensor], x: Tensor) -> Any:
    """One half of the state is the other half of the state before, and gets its gradient a step later."""
    before, now = state
    after = torch.tanh(cell.inner(x) + 0.5 * before)
    return (now, after), after


def learn_fast(cell: Any, weights: Tensor, x: Tensor) -> Any:
    key = torch.tanh(cell.inner(x))
    output = torch.einsum("bij,bj->bi", weights, key)
    return 0.9 * weights + 0.1 * key[:, :, None] * (key - output)[:, None], output


def mix_neighbours(cell: Any, state: Tensor, x: Tensor) -> Any:
    """What a step works with is more than its tape."""
    near = state.roll(1, 1) + state.roll(-1, 1)
    state = torch.tanh(0.5 * state + near * cell.inner(x)[:, None] * torch.sigmoid(near))
    return state, state.mean(1)


class Keeps(nn.Module):
    """Keeps its state, and a second part of it from a later step on."""

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
    net, data, wrapped = Keeps(late), torch.randn(STEPS, 16, 32), dict[Any, Any]()

    def run(memory: Any) -> object:
        if memory not in wrapped:
            wrapped[memory] = wrap(net, memory=memory, reset=Keeps.reset)
        return wrapped[memory].bptt(data, loss=mean_square).backward()

    return Job(run, list(net.parameters()))


class KeepsThree(nn.Module):
    """Keeps its last three states in a list, which each step appends to and replaces."""

    def __init__(self) -> None:
        super().__init__()
        self.linear = nn.Linear(16, 16)
        self.kept: list[Tensor] = []

    def forward(self, x: Tensor) -> Tensor:
        state = torch.tanh(self.linear(x) + 0.2 * sum(self.kept))
        self.kept.append(state)
        self.kept = self.kept[-3:]
        return state


def leaky_layers() -> Job:
    """Layers of snnTorch, whose gradients are as large as all else."""
    snntorch, utils = import_quietly("snntorch"), import_quietly("snntorch.utils")
    net = nn.Sequential()
    for before, after in ((64, 96), (96, 96), (96, 2)):
        net.extend([nn.Linear(before, after), snntorch.Leaky(beta=0.9, init_hidden=True)])
    return make_wrapped(net, torch.randn(60, 4, 64), reset=utils.reset)


# Steps that differ


def use_wide(is_used: Callable[[int], bool], cell: Any, state: Any, x: Tensor) -> Any:
    """A large part of the network runs in some steps."""
    h, step = state
    h = cell.gru(x, h)
    return (h + cell.wide(h) if is_used(step) else h, step + 1), h


def repeat(count: Callable[[int], int], cell: Any, state: Any, x: Tensor) -> Any:
    """Steps are of different depths."""
    h, step = state
    h = cell.gru(x, h)
    for _ in range(count(step)):
        h = torch.tanh(h)
    return (h, step + 1), h


def scratch(cell: Any, state: Any, x: Tensor) -> Any:
    """All steps but the first work with much memory of which nothing is kept."""
    h, step = state
    if step > 0:
        with torch.no_grad():
            torch.ones(60_000).add_(1)
    h = cell.gru(x, h)
    return (h, step + 1), h


def choose_samples(cell: Any, state: Tensor, x: Tensor) -> Any:
    """Data decide which samples run through the large part: none in the first half, and then all."""
    chosen = (x[:, 0] > 1).nonzero()[:, 0]
    if len(chosen):
        state = state.index_add(0, chosen, cell.wide(state[chosen]))
    state = cell.gru(x, state)
    return state, state


def train_on_chosen_samples() -> Job:
    inputs = torch.randn(STEPS, 16, 16).clamp(max=0.9)
    inputs[STEPS // 2 :, :, 0] = 2
    return train_step(choose_samples, 24, inputs=inputs)


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


def read_out(option: str, head: nn.Module) -> Job:
    """The loss of the final state, or of the outputs of a chunk, has layers of its own."""

    def loss(*given: Tensor) -> Tensor:
        read: Tensor = head(given[-1])
        return read.square().mean((-2, -1)).sum()

    cell = TorchCell(nn.GRUCell(16, 32))
    wanted = [*cell.parameters(), *head.parameters()]
    losses: dict[str, Any] = {option: loss}
    return make_call(cell, torch.randn(STEPS, 8, 16), torch.zeros(8, 32), wanted=wanted, **losses)


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


def outputs(read: Any, *, shown: int = 32) -> Job:
    """Return a call that stacks outputs, which may be views of states."""
    gru, inputs = nn.GRUCell(16, 32), torch.randn(64, 8, 16)

    def cell(state: Tensor, x: Tensor) -> tuple[Tensor, Tensor]:
        state = gru(x, state)
        return state, state[:, :shown]

    def run(memory: Any) -> object:
        return read(unroll(cell, inputs, torch.zeros(8, 32), memory=memory)[0]).backward()

    return Job(run, list(gru.parameters()))


CELLS: dict[str, Callable[[], Job]] = {
    "GRU": lambda: module(nn.GRUCell(16, 64), 8),
    "LSTM, gradients of inputs": lambda: make_call(
        TorchCell(nn.LSTMCell(16, 32)), torch.randn(STEPS, 16, 16, requires_grad=True), None
    ),
    "large batch": lambda: module(nn.GRUCell(16, 32), 256),
    "large weights": lambda: module(nn.GRUCell(16, 250), 1),
    "double precision": lambda: module(nn.GRUCell(16, 64), 8, dtype=torch.float64),
    "bfloat16": lambda: module(nn.GRUCell(16, 32), 512, dtype=torch.bfloat16),
    "long sequence": lambda: module(nn.GRUCell(8, 8), 2, width=8, steps=400),
    "three steps": lambda: module(nn.GRUCell(16, 64), 8, steps=3),
    "one step": lambda: module(nn.GRUCell(16, 64), 8, steps=1),
    "convolution": convolution,
    "layers": lambda: make_call(Layers(), torch.randn(STEPS, 8, 16), (torch.zeros(8, 32), torch.zeros(8, 32))),
    "spiking convolution": spiking_convolution,
    "LIF": neurons,
    "few neurons": few_neurons,
    "spiking layer": spiking_layer,
    "spiking layer, adaptation": partial(spiking_layer, adaptation=0.3),
    "spiking layer, synapses": partial(spiking_layer, synapse_decay=0.8, reset="zero"),
    "autocast": autocast,
    "embedding": embedding,
    "computed weight": computed_weight,
    "state that grows": lambda: train_step(attend_all, 1, 24),
    "window of states": lambda: train_step(attend_window, 1, 24),
    "state that grows 10 times": lambda: train_step(partial(remember, 10), 2, 24),
    "state that grows 30 times": lambda: train_step(partial(remember, 30), 2, 24),
    "state that grows until the end": lambda: train_step(partial(remember, STEPS - 1), 2, 24),
    "complex state": lambda: train_step(rotate, 24, dtype=torch.complex64),
    "state written in place": lambda: train_step(write_state, 24),
    "record": lambda: train_step(record_activity, 24),
    "delay line": lambda: train_step(delay, 10, 24),
    "states in turn": lambda: make_call(
        Stepping(take_turns), torch.randn(STEPS, 16, 16), (torch.zeros(16, 24), torch.zeros(16, 24))
    ),
    "fast weights": lambda: train_step(learn_fast, 24, 24),
    "large workspace": lambda: train_step(mix_neighbours, 20, 24),
    "kept state": partial(kept_state, STEPS),
    "kept state that begins late": partial(kept_state, STEPS // 2),
    "list of states": lambda: make_wrapped(
        KeepsThree(), torch.randn(STEPS, 8, 16), reset=lambda net: setattr(net, "kept", [])
    ),
    "snnTorch": leaky_layers,
    "part that runs late": lambda: train_step(
        partial(use_wide, lambda step: step > 30), 24, batch=8, count=True
    ),
    "part that runs rarely": lambda: train_step(
        partial(use_wide, lambda step: step % 40 == 39), 24, batch=4, count=True
    ),
    "two large steps": lambda: train_step(
        partial(repeat, lambda step: 40 if 31 <= step < 33 else 0), 24, count=True
    ),
    "depth that changes": lambda: train_step(partial(repeat, lambda step: step % 5), 24, count=True),
    "workspace of later steps": lambda: train_step(scratch, 24, count=True),
    "data decide": train_on_chosen_samples,
    "largest weight late": largest_late,
    "loss of the final state": lambda: read_out(
        "final_loss", nn.Sequential(nn.Linear(32, 500), nn.Tanh(), nn.Linear(500, 10))
    ),
    "loss of chunks": lambda: read_out("chunk_loss", nn.Linear(32, 200)),
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
    "outputs that are views": lambda: outputs(torch.sum, shown=2),
    "last output": lambda: outputs(lambda stacked: stacked[-1].sum()),
    "wrapped GRUCell": lambda: make_wrapped(nn.GRUCell(16, 32), torch.randn(64, 8, 16)),
    "wrapped RNN, short": lambda: make_wrapped(nn.RNN(8, 16, nonlinearity="relu"), torch.randn(18, 8, 8)),
    "wrapped LSTM": lambda: make_wrapped(nn.LSTM(16, 32, num_layers=2), torch.randn(64, 8, 16)),
    "wrapped LSTM, packed": lambda: make_wrapped(
        nn.LSTM(16, 32),
        pack_padded_sequence(torch.randn(72, 8, 16), torch.tensor([72, 60, 60, 48, 36, 24, 12, 5])),
    ),
    "wrapped GRU, both ways": lambda: make_wrapped(nn.GRU(16, 32, bidirectional=True), torch.randn(64, 8, 16)),
}
