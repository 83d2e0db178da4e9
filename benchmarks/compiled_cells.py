"""Which cells compile, and how much quicker they are: python -m benchmarks.compiled_cells [NAME...].

T = 256, batch 32, 64 inputs, 128 neurons, fp32, one thread; standard plans in chunks of 32 steps, pieces of 8.
Each cell runs as it is written and in compiled pieces, in turn; times are medians of processor time, forwards
and backwards. Packages that are not installed are left out, by name.
"""

from __future__ import annotations

import statistics
import sys
import time
import warnings
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import partial
from importlib import import_module
from typing import Any

import torch

from benchmarks.harness import write
from benchmarks.variants import make_plan
from ckptplan.torch import CompileFallback, bptt, wrap
from ckptplan.torch.adapters import NorseCell, SnnTorchCell, SpikingJellyCell, TorchCell

STEPS, CHUNK, PIECE, ROUNDS = 256, 32, 8, 5
BATCH, INPUTS, NEURONS = 32, 64, 128
#: Runs forwards and backwards, with or without compiled pieces.
Train = Callable[[int | None], list[torch.Tensor]]


@dataclass(frozen=True, kw_only=True)
class Subject:
    """A cell, by the package that it comes from."""

    package: str
    name: str
    make: Callable[[], Train]


def square(_: int, output: torch.Tensor) -> torch.Tensor:
    """Return the loss of a step."""
    return output.square().mean()


def train_cell(cell: torch.nn.Module, state: Any = None) -> Train:
    """Return what trains a cell under a standard plan."""
    inputs = torch.rand(STEPS, BATCH, INPUTS)
    # Sizes are not compared here.
    room = CHUNK + STEPS // CHUNK - 1
    plan = make_plan("standard", steps=STEPS, state_bytes=1, tape_bytes=1, local_bytes=room)

    def train(compile_: int | None) -> list[torch.Tensor]:
        loss = bptt(cell, inputs, state, square, plan=plan, compile=compile_).loss
        return list(torch.autograd.grad(loss, list(cell.parameters())))

    return train


def train_wrapped(net: torch.nn.Module, **options: Any) -> Train:
    """Return what trains a module over sequences that ``wrap`` makes."""
    inputs = torch.rand(STEPS, BATCH, INPUTS)

    def train(compile_: int | None) -> list[torch.Tensor]:
        found = wrap(net, memory="12 MB", compile=compile_, **options)(inputs)
        outputs = found[0] if isinstance(found, tuple) else found
        return list(torch.autograd.grad(outputs.square().mean(), list(net.parameters())))

    return train


class Written(torch.nn.Module):
    """A recurrent cell in a few lines."""

    def __init__(self) -> None:
        super().__init__()
        self.enter, self.recur = torch.nn.Linear(INPUTS, NEURONS), torch.nn.Linear(NEURONS, NEURONS)

    def forward(self, state: torch.Tensor, x: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        """Take a step."""
        state = torch.tanh(self.enter(x) + self.recur(state))
        return state, state


class CompiledStep(torch.nn.Module):
    """The same cell, whose step its author has compiled."""

    def __init__(self) -> None:
        super().__init__()
        self.inner = Written()
        self.step = torch.compile(self.inner)

    def forward(self, state: torch.Tensor, x: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        """Take a step."""
        return self.step(state, x)  # type: ignore[no-any-return]


def list_torch() -> Iterator[Subject]:
    """Yield cells of PyTorch, and of users."""
    nn = torch.nn
    for kind in (nn.RNNCell, nn.GRUCell, nn.LSTMCell):
        make = lambda kind=kind: train_cell(TorchCell(kind(INPUTS, NEURONS)))  # noqa: E731
        yield Subject(package="torch.nn", name=kind.__name__, make=make)
    yield Subject(
        package="torch.nn", name="LSTM through wrap", make=lambda: train_wrapped(nn.LSTM(INPUTS, NEURONS))
    )
    zeros = torch.zeros(BATCH, NEURONS)
    yield Subject(package="user", name="a cell of two layers", make=lambda: train_cell(Written(), zeros))
    yield Subject(
        package="user", name="the same, its step compiled", make=lambda: train_cell(CompiledStep(), zeros)
    )


def list_snntorch() -> Iterator[Subject]:
    """Yield neurons of snnTorch, each behind a layer."""
    snn: Any = import_module("snntorch")

    def make(name: str, **options: Any) -> Train:
        return train_cell(SnnTorchCell(getattr(snn, name)(**options), torch.nn.Linear(INPUTS, NEURONS)))

    recurrent = {"linear_features": NEURONS}
    for name, options in {
        "Leaky": {"beta": 0.9},
        "Synaptic": {"alpha": 0.9, "beta": 0.8},
        "Lapicque": {"beta": 0.9},
        "Alpha": {"alpha": 0.9, "beta": 0.8},
        "RLeaky": {"beta": 0.9, **recurrent},
        "RSynaptic": {"alpha": 0.9, "beta": 0.8, **recurrent},
    }.items():
        yield Subject(package="snnTorch", name=name, make=partial(make, name, **options))

    def make_network() -> Train:
        network = torch.nn.Sequential(torch.nn.Linear(INPUTS, NEURONS), snn.Leaky(beta=0.9, init_hidden=True))
        return train_wrapped(network, reset=import_module("snntorch.utils").reset)

    yield Subject(package="snnTorch", name="network with init_hidden through wrap", make=make_network)


def list_norse() -> Iterator[Subject]:
    """Yield cells of Norse."""
    norse: Any = import_module("norse.torch")
    for name in ("LIFRecurrentCell", "LSNNRecurrentCell", "LIFAdExRecurrentCell"):
        make = lambda name=name: train_cell(NorseCell(getattr(norse, name)(INPUTS, NEURONS)))  # noqa: E731
        yield Subject(package="Norse", name=name, make=make)


def list_spikingjelly() -> Iterator[Subject]:
    """Yield networks of SpikingJelly."""
    neurons: Any = import_module("spikingjelly.activation_based.neuron")

    def make(name: str) -> Train:
        network = torch.nn.Sequential(torch.nn.Linear(INPUTS, NEURONS), getattr(neurons, name)())
        cell: Any = SpikingJellyCell(network)
        return train_cell(cell, cell.initial_state())

    for name in ("IFNode", "LIFNode", "ParametricLIFNode"):
        yield Subject(package="SpikingJelly", name=name, make=partial(make, name))


def list_subjects() -> list[Subject]:
    """Return all cells of packages that are installed."""
    found = list(list_torch())
    for name, subjects in (
        ("snntorch", list_snntorch),
        ("norse", list_norse),
        ("spikingjelly", list_spikingjelly),
    ):
        try:
            found += subjects()
        except ImportError as error:
            sys.stdout.write(f"{name} is left out: {error}\n")
    return found


def measure(subject: Subject) -> dict[str, Any]:
    """Return a line of the table."""
    torch.manual_seed(0)
    train = subject.make()
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        usual, compiled = train(None), train(PIECE)
        times: dict[int | None, list[float]] = {None: [], PIECE: []}
        for _ in range(ROUNDS):
            for one, taken in times.items():
                begun = time.process_time()
                train(one)
                taken.append(time.process_time() - begun)
    reasons = [str(one.message) for one in caught if issubclass(one.category, CompileFallback)]
    written, ours = (statistics.median(taken) for taken in times.values())
    return {
        "package": subject.package,
        "cell": subject.name,
        "step_seconds": written / STEPS,
        "compiled_step_seconds": ours / STEPS,
        "speedup": written / ours,
        "gradient_difference": max(
            float((one - other).abs().max() / other.abs().max().clamp_min(1e-30))
            for one, other in zip(compiled, usual, strict=True)
        ),
        "reason": reasons[0] if reasons else None,
    }


def document(lines: list[dict[str, Any]]) -> str:
    """Return the lines as a table for a page."""
    rows = [
        "| package | cell | a step as written | compiled | quicker | gradients differ by | why not |",
        "|---|---|---|---|---|---|---|",
    ]
    rows += [
        f"| {one['package']} | {one['cell']} | {1e6 * one['step_seconds']:.0f} us "
        f"| {1e6 * one['compiled_step_seconds']:.0f} us | {one['speedup']:.2f}x "
        f"| {one['gradient_difference']:.0e} | {one['reason'] or ''} |"
        for one in lines
    ]
    return "\n".join(rows)


def main(names: list[str]) -> None:
    """Print a table, and write the numbers if it is whole."""
    torch.set_num_threads(1)
    chosen = [one for one in list_subjects() if not names or one.name in names]
    lines = []
    for subject in chosen:
        lines.append(measure(subject))
        sys.stdout.write(f"{document(lines[-1:]).splitlines()[-1]}\n")
        sys.stdout.flush()
    sys.stdout.write(document(lines) + "\n")
    if not names:
        write("compiled_cells", {"steps": STEPS, "chunk": CHUNK, "piece": PIECE, "cells": lines})


if __name__ == "__main__":
    main(sys.argv[1:])
