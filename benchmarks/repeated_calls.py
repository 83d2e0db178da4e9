"""What a call costs on top of its plan's own steps.

Side by side, in turn: a call that recognises the one before, and a bare loop that executes the same actions:
forward, save, recompute, backward, without checks. One thread, processor time; a step forward is without a
graph. The runs of the cell that a first call with ``memory=`` makes besides those of a later one are counted.

Run: python -m benchmarks.repeated_calls
"""

from __future__ import annotations

import copy
import statistics
from array import array
from collections.abc import Iterable
from dataclasses import dataclass, replace
from typing import Any

import torch

import ckptplan
from benchmarks.harness import DOCS, Setting, find_ratio, main, tabulate, time_in_turn
from benchmarks.variants import make_plan
from ckptplan.schedule.actions import Action, Advance, Backward, Free, Load, Record, Save
from ckptplan.torch import bptt
from ckptplan.torch.adapters import TorchCell


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
    """A sequence with a plan, or with a limit of memory."""

    cell: torch.nn.Module
    inputs: torch.Tensor
    state: torch.Tensor
    plan: ckptplan.Plan

    def call(self, **limit: Any) -> ckptplan.Plan:
        """Run the sequence by ``bptt``, forward and backward, and return its plan."""
        how = limit or {"plan": self.plan}
        result = bptt(self.cell, self.inputs, self.state, measure_square, **how)
        result.loss.backward()
        assert isinstance(result.plan, ckptplan.Plan)  # noqa: S101 - as asked for
        return result.plan

    def run_steps(self) -> None:
        """Run the steps alone, without a graph."""
        with torch.no_grad():
            BareLoop(self).advance(0, len(self.inputs))

    def run_bare(self) -> None:
        """Execute the plan's actions, and check nothing."""
        BareLoop(self).run(ckptplan.actions(self.plan))

    def count_runs(self, **limit: Any) -> int:
        """Return how often a first call runs the cell besides the sequence and its steps that run again."""
        fresh, runs = replace(self, cell=copy.deepcopy(self.cell)), array("q", [0])

        def count(*_: object) -> None:
            # No search looks into an array, so that nothing sets it back.
            runs[0] += 1

        handle = fresh.cell.register_forward_pre_hook(count)
        try:
            plan = fresh.call(**limit)
        finally:
            handle.remove()
        return runs[0] - len(self.inputs) - plan.predicted.recomputed_steps


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


def make_jobs(setting: Setting) -> dict[str, Job]:
    """Return the jobs by name."""
    torch.manual_seed(0)

    def make(cell: torch.nn.Module, shape: tuple[int, int, int], neurons: int, states: int) -> Job:
        # A tape is as large as two states.
        plan = make_plan("standard", steps=shape[0], state_bytes=1, tape_bytes=2, local_bytes=states)
        return Job(cell, torch.randn(shape), torch.zeros(shape[1], neurons), plan)

    tanh, gru = torch.nn.RNNCell, torch.nn.GRUCell
    small = {"tanh, 8 x 64, T = 100": make(TorchCell(tanh(64, 64)), (100, 8, 64), 64, 44)}
    more = {
        "tanh, 32 x 256, T = 100": make(TorchCell(tanh(64, 256)), (100, 32, 64), 256, 44),
        "LIF, 32 x 256, T = 100": make(Spiking(64, 256), (100, 32, 64), 256, 44),
        "GRU, 32 x 256, T = 16": make(TorchCell(gru(64, 256)), (16, 32, 64), 256, 16),
        "GRU, 32 x 256, T = 512": make(TorchCell(gru(64, 256)), (512, 32, 64), 256, 100),
        # Steps of about a millisecond.
        "tanh, 32 x 1,024, T = 100": make(TorchCell(tanh(64, 1024)), (100, 32, 64), 1024, 44),
        "GRU, 32 x 512, T = 100": make(TorchCell(gru(64, 512)), (100, 32, 64), 512, 44),
        "GRU, 48 x 512, T = 100": make(TorchCell(gru(64, 512)), (100, 48, 64), 512, 44),
    }
    return setting.pick(small, small | more, small | more)


def run(setting: Setting) -> dict[str, Any]:
    """Return a line for each job."""
    found = {}
    for name, job in make_jobs(setting).items():
        job.run_bare()
        runs = job.count_runs(memory="1 GB")
        times = time_in_turn({"repeated": job.call, "bare": job.run_bare}, rounds=setting.pick(3, 21, 21))
        alone = time_in_turn({"steps": job.run_steps}, rounds=setting.pick(3, 7, 7))["steps"]
        found[name] = {
            "extra_runs": runs,
            "step_seconds": statistics.median(alone) / len(job.inputs),
            **{way: statistics.median(seconds) for way, seconds in times.items()},
            "repeated_over_bare": find_ratio(times, "repeated", "bare"),
        }
        setting.save(found)
    return found


def document(results: dict[str, Any]) -> str:
    """Return the results as a table for a page."""
    columns = (
        ("job", "job"),
        ("a step forward, ms", "step_seconds", "{:.2f}", 1e3),
        ("over a bare loop", lambda one: one["repeated_over_bare"] - 1, "{:+.1%}"),
        ("runs before a first call", "extra_runs"),
    )
    return tabulate([{"job": name, **one} for name, one in results.items()], *columns) + "\n"


if __name__ == "__main__":
    main("repeated_calls", run, document, about=__doc__, page=DOCS / "measured.md")
