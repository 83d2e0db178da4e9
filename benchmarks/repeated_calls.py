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
from dataclasses import dataclass, replace
from functools import partial
from typing import Any

import torch

import ckptplan
from benchmarks.harness import DOCS, Setting, find_ratio, main, tabulate, time_in_turn
from benchmarks.variants import make_plan
from ckptplan.schedule.actions import Record
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

    def advance(self, state: torch.Tensor, start: int, stop: int) -> torch.Tensor:
        """Run steps without a graph, and return the state after them."""
        total = torch.zeros(())
        with torch.no_grad():
            for step, x in enumerate(self.inputs[start:stop].unbind(0), start):
                state, output = self.cell(state, x)
                total = total + measure_square(step, output)
        return state

    def run_bare(self) -> None:
        """Execute the actions of the plan as a user would write them by hand, and check nothing."""
        chunks = [(one.start, one.stop) for one in ckptplan.actions(self.plan) if isinstance(one, Record)]
        states = [self.state]
        for start, stop in reversed(chunks[1:]):
            states.append(self.advance(states[-1], start, stop))
        parameters = list(self.cell.parameters())
        gradient: torch.Tensor | None = None
        for start, stop in chunks:
            state = begin = states.pop().detach().requires_grad_()
            terms: list[torch.Tensor] = []
            for step, x in enumerate(self.inputs[start:stop].unbind(0), start):
                state, output = self.cell(state, x)
                terms.append(measure_square(step, output))
            ends = [] if gradient is None else [state]
            given = [*[None] * len(terms), *([] if gradient is None else [gradient])]
            found = torch.autograd.grad([*terms, *ends], [begin, *parameters], given)
            gradient = found[0]
            for parameter, value in zip(parameters, found[1:], strict=True):
                parameter.grad = value if parameter.grad is None else parameter.grad + value

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
        run_steps = partial(job.advance, job.state, 0, len(job.inputs))
        runs = job.count_runs(memory="1 GB")
        times = time_in_turn({"repeated": job.call, "bare": job.run_bare}, rounds=setting.pick(3, 21, 21))
        alone = time_in_turn({"steps": run_steps}, rounds=setting.pick(3, 7, 7))["steps"]
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


PAGES = {DOCS / "measured.md": document}

if __name__ == "__main__":
    main("repeated_calls", run, PAGES, about=__doc__)
