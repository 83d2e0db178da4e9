"""What a repeated call costs on top of its plan's own steps.

Side by side, in turn: a call that begins with a trial (as each call did before findings were kept), a call that
recognises the one before, and a bare loop that executes the same actions: forward, save, recompute, backward,
without checks. One thread, processor time, since other programs share the machine. The search for a plan is
timed in fresh processes. Run: python -m benchmarks.repeated_calls
"""

from __future__ import annotations

import gc
import json
import os
import statistics
import subprocess
import sys
import time
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Any

import torch

import ckptplan
from benchmarks.record import write
from ckptplan.schedule.actions import Action, Advance, Backward, Free, Load, Record, Save
from ckptplan.torch import bptt, kept
from ckptplan.torch.adapters import TorchCell
from ckptplan.torch.executor import Executor

MACHINE = ckptplan.HardwareProfile(name="units", local_bytes=10**9, remote_bytes=0)
#: The limit that repeated calls are held to, over the plan's own steps.
MOST = 0.05

#: Loads the packages, then makes a plan; the argument is T.
SEARCH = """
import sys, time, torch, ckptplan
from ckptplan.torch import budget
from ckptplan.torch.measurement import Measurement
from ckptplan.strategies.registry import all_strategies
all_strategies()
sizes = dict(state_bytes=32768, tape_bytes=7 * 32768, resident_bytes_per_step=0, output_bytes=32768)
seconds = dict(forward_seconds=2e-4, record_seconds=2.4e-4, backward_seconds=4e-4)
one = Measurement(**sizes, **seconds, workspace_bytes=2_000_000, parameter_bytes=1_000_000, counted=4, steps=16)
steps = int(sys.argv[1])
begun = time.process_time()
budget._plan(one, steps, int(0.15 * steps * 7 * 32768) + 3_000_000, 0)
print(time.process_time() - begun)
"""


def measure_square(_: int, output: torch.Tensor) -> torch.Tensor:
    """Return the loss of a step."""
    return output.square().mean()


class Spiking(torch.nn.Module):
    """A layer of leaky integrate-and-fire neurons, written step by step."""

    def __init__(self, inputs: int, neurons: int) -> None:
        super().__init__()
        self.linear = torch.nn.Linear(inputs, neurons)

    def forward(self, state: torch.Tensor, x: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        """Take a step."""
        membrane = 0.9 * state + self.linear(x)
        smooth = torch.sigmoid(10 * (membrane - 1))
        # Spikes forward, the slope of the sigmoid backward.
        spikes = smooth + ((membrane > 1).to(membrane) - smooth).detach()
        return membrane - spikes.detach(), spikes


@dataclass(frozen=True)
class Job:
    """A sequence with its plan."""

    cell: torch.nn.Module
    inputs: torch.Tensor
    state: torch.Tensor
    plan: ckptplan.Plan

    def call(self) -> None:
        """Run the sequence by ``bptt``, forward and backward."""
        bptt(self.cell, self.inputs, self.state, measure_square, plan=self.plan).loss.backward()

    def call_anew(self) -> None:
        """Run it as if it were the first time."""
        kept.forget_all()
        self.call()

    def run_bare(self) -> None:
        """Execute the plan's actions, and check nothing."""
        BareLoop(self).run(ckptplan.actions(self.plan))


class BareLoop:
    """The actions of a plan, executed as a user would write them by hand."""

    def __init__(self, job: Job) -> None:
        self.cell, self.inputs, self.state = job.cell, job.inputs, job.state
        self.parameters = list(job.cell.parameters())
        self.saved: dict[int, torch.Tensor] = {}
        self.tapes: list[tuple[torch.Tensor, torch.Tensor, list[torch.Tensor]]] = []
        self.total, self.frontier = torch.zeros(()), 0
        self.gradient: torch.Tensor | None = None

    def run(self, actions: Iterable[Action]) -> None:
        """Execute actions."""
        for action in actions:
            match action:
                case Advance(start, stop):
                    self.advance(start, stop)
                case Record(start, stop):
                    self.record(start, stop)
                case Backward():
                    self.reverse()
                case Save(number, _):
                    self.saved[number] = self.state
                case Load(number, _):
                    self.state = self.saved[number]
                case Free(number, _):
                    del self.saved[number]

    def advance(self, start: int, stop: int) -> None:
        """Run steps without a graph."""
        with torch.no_grad():
            for step, x in enumerate(self.inputs[start:stop].unbind(0), start):
                self.state, output = self.cell(self.state, x)
                if step >= self.frontier:
                    self.total = self.total + measure_square(step, output)
        self.frontier = max(self.frontier, stop)

    def record(self, start: int, stop: int) -> None:
        """Run steps with a graph."""
        state = begin = self.state.detach().requires_grad_()
        terms = []
        for step, x in enumerate(self.inputs[start:stop].unbind(0), start):
            state, output = self.cell(state, x)
            terms.append(measure_square(step, output))
            if step >= self.frontier:
                self.total = self.total + terms[-1].detach()
        self.tapes.append((begin, state, terms))
        self.state, self.frontier = state.detach(), max(self.frontier, stop)

    def reverse(self) -> None:
        """Backpropagate through the last graph."""
        begin, end, terms = self.tapes.pop()
        ends = [] if self.gradient is None else [end]
        given = [None] * len(terms) + ([] if self.gradient is None else [self.gradient])
        found = torch.autograd.grad([*terms, *ends], [begin, *self.parameters], given)
        self.gradient = found[0]
        for parameter, gradient in zip(self.parameters, found[1:], strict=True):
            parameter.grad = gradient if parameter.grad is None else parameter.grad + gradient


def make_plan(steps: int, states: int) -> ckptplan.Plan:
    """Return a plan with room for so many states, each tape as large as two."""
    workload = ckptplan.Workload(
        name="units", steps=steps, units=1, state_bytes=1, tape_bytes=2,
        forward_seconds=1, backward_seconds=2, recompute_seconds=1,
    )  # fmt: skip
    return ckptplan.optimize(workload, MACHINE, strategies=["standard"], local_bytes=states)


def make_jobs() -> dict[str, tuple[Job, int]]:
    """Return the jobs by name, with the number of rounds."""
    torch.manual_seed(0)

    def make(cell: torch.nn.Module, shape: tuple[int, int, int], neurons: int, states: int) -> Job:
        state = torch.zeros(shape[1], neurons)
        return Job(cell, torch.randn(shape), state, make_plan(shape[0], states))

    tanh, gru = torch.nn.RNNCell, torch.nn.GRUCell
    return {
        "tanh, 8 x 64, T = 100": (make(TorchCell(tanh(64, 64)), (100, 8, 64), 64, 44), 41),
        "tanh, 32 x 256, T = 100": (make(TorchCell(tanh(64, 256)), (100, 32, 64), 256, 44), 41),
        "LIF, 32 x 256, T = 100": (make(Spiking(64, 256), (100, 32, 64), 256, 44), 41),
        "GRU, 32 x 256, T = 16": (make(TorchCell(gru(64, 256)), (16, 32, 64), 256, 16), 41),
        "GRU, 32 x 256, T = 512": (make(TorchCell(gru(64, 256)), (512, 32, 64), 256, 100), 9),
    }


class ActionTime:
    """Adds up the time that the actions of plans take, to tell it from what is around them."""

    def __init__(self) -> None:
        self.seconds = 0.0
        for name in ("sweep", "reverse"):
            setattr(Executor, name, self._time(getattr(Executor, name)))

    def _time(self, method: Callable[..., Any]) -> Callable[..., Any]:
        def run(*arguments: Any, **named: Any) -> Any:
            begun = time.process_time()
            try:
                return method(*arguments, **named)
            finally:
                self.seconds += time.process_time() - begun

        return run


def time_job(job: Job, rounds: int, within: ActionTime) -> dict[str, float]:
    """Time the three ways in turn."""
    ways = {"first": job.call_anew, "repeated": job.call, "own": job.run_bare}
    times: dict[str, list[float]] = {name: [] for name in (*ways, "around")}
    for way in ways.values():
        way()
    gc.collect()
    gc.disable()
    for _ in range(rounds):
        for name, way in ways.items():
            job.cell.zero_grad()
            within.seconds = 0.0
            begun = time.process_time()
            way()
            times[name].append(time.process_time() - begun)
            if name == "repeated":
                times["around"].append(times[name][-1] - within.seconds)
    gc.enable()
    found = {name: statistics.median(values) for name, values in times.items()}
    for name in ("first", "repeated"):
        found[f"{name}_over_own"] = statistics.median(
            one / other for one, other in zip(times[name], times["own"], strict=True)
        )
    found["around_over_own"] = found["around"] / found["own"]
    found["least_over_own"] = min(times["repeated"]) / min(times["own"])
    return found


def time_search(steps: int) -> dict[str, float]:
    """Return the seconds of the search for a plan in a fresh process."""
    command = [sys.executable, "-c", SEARCH, str(steps)]
    environment = {**os.environ, "OMP_NUM_THREADS": "1"}
    found = subprocess.run(command, env=environment, check=True, capture_output=True).stdout
    return {"search_seconds": float(json.loads(found))}


def main() -> None:
    """Print the tables."""
    torch.set_num_threads(1)
    within = ActionTime()
    print("| job | with a trial | repeated | own steps | repeated over own | around the actions |")
    print("|---|---|---|---|---|---|")
    jobs = {}
    for name, (job, rounds) in make_jobs().items():
        found = jobs[name] = time_job(job, rounds, within)
        print(
            f"| {name} | {found['first'] * 1e3:.1f} ms | {found['repeated'] * 1e3:.1f} ms "
            f"| {found['own'] * 1e3:.1f} ms | {100 * (found['repeated_over_own'] - 1):+.1f} % "
            f"| {found['around'] * 1e3:.2f} ms, {100 * found['around_over_own']:.1f} % |",
            flush=True,
        )
    print("\n| T | search |\n|---|---|")
    searches = {}
    for steps in (256, 4_096, 100_000):
        one = searches[str(steps)] = time_search(steps)
        print(f"| {steps:,} | {one['search_seconds'] * 1e3:.1f} ms |")
    write("repeated_calls", {"most": MOST, "jobs": jobs, "searches": searches})


if __name__ == "__main__":
    main()
