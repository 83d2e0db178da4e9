"""ckptplan beside ``torch.utils.checkpoint`` at the same memory: python -m benchmarks.equal_memory.

The rival is a loop over segments of sqrt(T) steps, each under ``torch.utils.checkpoint``. Its live tensors over
a whole training step (outputs, loss and gradients included) at most are what ckptplan may take, at T = 16 one
tenth more, and a kibibyte for the single numbers that its checks keep. Of the limits with which a step of
ckptplan stays within that, the quickest is reported. One thread, processor time, runs in turn; the first four
calls, three of which are watched, are not timed.
"""

from __future__ import annotations

import math
import statistics
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import Any

import torch
from torch.utils.checkpoint import checkpoint

from benchmarks.harness import (
    DOCS,
    MIB,
    ROOT,
    Setting,
    find_difference,
    find_ratio,
    main,
    pivot,
    time_in_turn,
)
from benchmarks.variants import measure_peak
from ckptplan.errors import InputError
from ckptplan.torch import scan, wrap
from ckptplan.torch.adapters import TorchCell

#: Limits that are tried, as shares of what the rival takes.
_SHARES = (0.6, 0.75, 0.9, 0.95, 0.98, 1.0, 1.03, 1.06, 1.1)
#: How much more than the rival a step may take, for the fewest time steps, and the bytes of single numbers.
_MORE, _NUMBERS = {16: 1.1}, 1024
#: Calls before those that are timed, besides one for the gradients.
_UNTIMED = 3

Cell = Callable[[Any, torch.Tensor], tuple[Any, torch.Tensor]]


@dataclass(frozen=True, kw_only=True)
class Job:
    """A network that is trained on a sequence, plainly, under checkpoints, and by ckptplan."""

    net: torch.nn.Module
    #: Takes a step; segments of the rival call it.
    run_segment: Callable[[Any, torch.Tensor], tuple[torch.Tensor, Any]]
    #: Returns the outputs of all steps within a limit.
    plan: Callable[[str], Callable[[torch.Tensor], torch.Tensor]]
    inputs: torch.Tensor
    state: Any

    def train(self, run: Callable[[torch.Tensor], torch.Tensor]) -> None:
        """Take a training step without an optimizer."""
        self.net.zero_grad(set_to_none=True)
        outputs = run(self.inputs)
        outputs.square().mean().backward()

    def run_plain(self, inputs: torch.Tensor) -> torch.Tensor:
        """Return the outputs of a plain loop."""
        return self.run_segment(self.state, inputs)[0]

    def run_rival(self, inputs: torch.Tensor) -> torch.Tensor:
        """Return the outputs of segments of sqrt(T) steps under ``torch.utils.checkpoint``."""
        outputs, state = [], self.state
        for segment in inputs.split(math.isqrt(len(inputs))):
            found, state = checkpoint(self.run_segment, state, segment, use_reentrant=False)
            outputs.append(found)
        return torch.cat(outputs)


def find_gradients(job: Job, run: Callable[[torch.Tensor], torch.Tensor]) -> list[torch.Tensor]:
    """Return the gradients of the parameters."""
    job.train(run)
    return [one.grad for one in job.net.parameters() if one.grad is not None]


def make_snn(kind: str, steps: int) -> Job:
    """Return a spiking network of snnTorch: two convolutions, or two dense layers."""
    import snntorch  # type: ignore[import-untyped]

    leak = [snntorch.Leaky(beta=0.9) for _ in range(3)]
    if kind == "conv":
        layers = [torch.nn.Conv2d(1, 8, 5), torch.nn.Conv2d(8, 16, 5), torch.nn.Linear(256, 10)]
        pool: Any = torch.nn.functional.max_pool2d
        shape: tuple[int, ...] = (16, 1, 28, 28)
        states: list[tuple[int, ...]] = [(16, 8, 12, 12), (16, 16, 4, 4), (16, 10)]
    else:
        layers = [torch.nn.Linear(128, 256), torch.nn.Linear(256, 128), torch.nn.Linear(128, 10)]
        shape, states = (16, 128), [(16, 256), (16, 128), (16, 10)]
    net = torch.nn.ModuleList([*layers, *leak])

    def cell(state: Any, x: torch.Tensor) -> tuple[Any, torch.Tensor]:
        new = []
        for layer, neuron, membrane in zip(layers, leak, state, strict=True):
            x = layer(x.flatten(1) if isinstance(layer, torch.nn.Linear) else x)
            if isinstance(layer, torch.nn.Conv2d):
                x = pool(x, 2)
            x, after = neuron(x, membrane)
            new.append(after)
        return tuple(new), x

    inputs = torch.rand(steps, *shape)
    return make_cell_job(net, cell, inputs, tuple(torch.zeros(one) for one in states))


def make_cell_job(net: torch.nn.Module, cell: Cell, inputs: torch.Tensor, state: Any) -> Job:
    """Return the job of a cell that takes a step."""

    def run_segment(state: Any, segment: torch.Tensor) -> tuple[torch.Tensor, Any]:
        outputs = []
        for x in segment.unbind(0):
            state, output = cell(state, x)
            outputs.append(output)
        return torch.stack(outputs), state

    def plan(memory: str) -> Callable[[torch.Tensor], torch.Tensor]:
        return lambda inputs: scan(cell, state, inputs, memory=memory)[1]

    return Job(net=net, run_segment=run_segment, plan=plan, inputs=inputs, state=state)


def make_gru(steps: int) -> Job:
    """Return a GRU cell in a loop."""
    gru = TorchCell(torch.nn.GRUCell(64, 256))
    return make_cell_job(gru, gru, torch.randn(steps, 32, 64), torch.zeros(32, 256))


def make_lstm(steps: int) -> Job:
    """Return an ``nn.LSTM`` of two layers."""
    lstm = torch.nn.LSTM(64, 128, num_layers=2)

    def run_segment(state: Any, segment: torch.Tensor) -> tuple[torch.Tensor, Any]:
        found: tuple[torch.Tensor, Any] = lstm(segment, state)
        return found

    def plan(memory: str) -> Callable[[torch.Tensor], torch.Tensor]:
        wrapped = wrap(lstm, memory=memory)
        return lambda inputs: wrapped(inputs)[0]

    return Job(
        net=lstm,
        run_segment=run_segment,
        plan=plan,
        inputs=torch.randn(steps, 32, 64),
        state=(torch.zeros(2, 32, 128), torch.zeros(2, 32, 128)),
    )


_NETWORKS: dict[str, Callable[[int], Job]] = {
    "conv SNN, scan": lambda steps: make_snn("conv", steps),
    "dense SNN, scan": lambda steps: make_snn("dense", steps),
    "GRU cell, scan": make_gru,
    "nn.LSTM, wrap": make_lstm,
}


def compare(job: Job, steps: int, setting: Setting) -> dict[str, Any]:
    """Return what one network takes in the two ways."""
    plain = find_gradients(job, job.run_plain)
    difference = find_difference(find_gradients(job, job.run_rival), plain)
    peak = measure_peak(lambda: job.train(job.run_rival))
    allowed = int(peak * _MORE.get(steps, 1.0)) + _NUMBERS
    ways: dict[str, Callable[[], object]] = {"rival": lambda: job.train(job.run_rival)}
    peaks: dict[str, int] = {}
    least = None
    for share in _SHARES:
        run = job.plan(str(int(share * peak)))
        try:
            difference = max(difference, find_difference(find_gradients(job, run), plain))
        except InputError:
            continue
        train = partial(job.train, run)
        taken = measure_peak(train)
        least = taken if least is None else min(least, taken)
        if taken <= allowed:
            ways[str(share)] = train
            peaks[str(share)] = taken
    found: dict[str, Any] = {"rival_bytes": peak, "least_bytes": least, "difference": difference}
    if not peaks:
        return found
    time_in_turn(ways, rounds=setting.pick(0, _UNTIMED, _UNTIMED))
    rounds = setting.pick(3, max(3, min(21, 2048 // steps)), 21)
    times = time_in_turn(ways, rounds=rounds)
    over = {way: find_ratio(times, way, "rival") for way in peaks}
    best = min(over, key=over.__getitem__)
    return {
        **found,
        "rival_seconds": statistics.median(times["rival"]),
        "share": float(best),
        "bytes": peaks[best],
        "seconds": statistics.median(times[best]),
        "time_over_rival": over[best],
        "all": over,
    }


def run(setting: Setting) -> dict[str, Any]:
    """Return a line for each network and number of steps."""
    found: dict[str, Any] = {}
    for name, make in _NETWORKS.items():
        for steps in setting.pick((16,), (16, 64, 256, 1024), (16, 64, 256, 1024)):
            torch.manual_seed(0)
            job = make(steps)
            found[f"{name}, T = {steps}"] = setting.attempt(name, partial(compare, job, steps, setting))
            setting.save(found)
    return found


def document(results: dict[str, Any]) -> str:
    """Return a row for each network and a column for each length: the ratio of times, and the rival's peak."""

    def show(one: dict[str, Any]) -> str:
        ratio = f"{one['time_over_rival']:.2f}" if "time_over_rival" in one else str(one["status"])
        return f"{ratio} ({one['rival_bytes'] / MIB:.1f})" if "rival_bytes" in one else ratio

    names = {name: name.rpartition(", T = ") for name in results}
    cells = ((network, f"T = {steps}", show(results[name])) for name, (network, _, steps) in names.items())
    return pivot("network", cells) + "\n"


def in_short(results: dict[str, Any]) -> str:
    """Return the range of the ratios, and each case in which the rival is quicker, as text for README."""
    ratios = {name: one["time_over_rival"] for name, one in results.items() if "time_over_rival" in one}
    slower = [
        f"{name.replace(', T =', ' at T =')} ({ratio:.2f})" for name, ratio in ratios.items() if ratio > 1.005
    ]
    return (
        f"In the memory of `torch.utils.checkpoint` over segments of \u221aT steps, ckptplan takes "
        f"{min(ratios.values()):.2f} to {max(ratios.values()):.2f} of its time "
        f"([{len(ratios)} cases](docs/measured.md#at-the-same-memory)). "
        f"It is slower in {len(slower)} of them: {', '.join(slower) or 'none'}.\n"
    )


PAGES = {DOCS / "measured.md": document, ROOT / "README.md": in_short}

if __name__ == "__main__":
    main("equal_memory", run, PAGES, about=__doc__)
