"""The variants that benchmarks/runtime.py compares: plain backpropagation, torch.utils.checkpoint, plans."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import Any

import torch
from torch.utils._pytree import tree_leaves, tree_structure, tree_unflatten
from torch.utils.checkpoint import checkpoint

import ckptplan
from ckptplan import HardwareProfile, Plan, Workload
from ckptplan.torch import bptt
from ckptplan.torch.adapters import TorchCell
from ckptplan.torch.lif import LIF, Spike

BATCH, INPUTS, NEURONS = 32, 64, 256
MIB = 2**20
#: One level of memory without a limit: plans set their own budgets.
MACHINE = HardwareProfile(
    name="host",
    local_bytes=2**40,
    write_bytes_per_second=1e9,
    read_bytes_per_second=1e9,
    latency_seconds=1e-6,
    synchronisation_seconds=0,
)
#: Steps as a function of the loss so far and the state.
Part = Callable[..., tuple[torch.Tensor, ...]]


class AutogradLIF(torch.nn.Module):
    """The neurons of ckptplan.torch.lif in plain PyTorch: the state and the tape of a step are 64 KiB each."""

    def __init__(self, model: LIF) -> None:
        super().__init__()
        self.model = model

    def forward(self, state: Any, x: torch.Tensor) -> Any:
        """Run a step."""
        membranes, spikes = state
        model = self.model
        current = torch.nn.functional.linear(x, model.weight, model.bias)
        assert model.recurrent_weight is not None  # noqa: S101 - for the type checker
        current = current + torch.nn.functional.linear(spikes, model.recurrent_weight)
        membranes = model.decay * membranes + current - model.threshold * spikes.detach()
        spikes = Spike.apply(membranes - model.threshold, model.slope)  # type: ignore[no-untyped-call]
        return (membranes, spikes), spikes


@dataclass(frozen=True, kw_only=True)
class Job:
    """A network, its data and its loss, all made from seeds."""

    steps: int
    cell: Any
    state: Any
    inputs: torch.Tensor
    parameters: list[torch.nn.Parameter]

    @property
    def nest(self) -> Any:
        """The nesting of the state."""
        return tree_structure(self.state)

    def loss(self, _: int, output: torch.Tensor) -> torch.Tensor:
        """Return the loss of a step; it is computed inside the schedule."""
        return output.square().mean() / self.steps


def gru_job(steps: int) -> Job:
    """Return a GRU cell of torch.nn."""
    torch.manual_seed(0)
    cell = TorchCell(torch.nn.GRUCell(INPUTS, NEURONS))
    return Job(
        steps=steps,
        cell=cell,
        state=torch.zeros(BATCH, NEURONS),
        inputs=torch.randn(steps, BATCH, INPUTS),
        parameters=list(cell.parameters()),
    )


def lif_job(steps: int, *, spiking: bool = False, autograd: bool = False) -> Job:
    """Return recurrent spiking neurons of which about 7 % fire at a time."""
    torch.manual_seed(0)
    cell: Any = LIF(INPUTS, NEURONS, spiking_inputs=spiking)
    inputs = torch.randn(steps, BATCH, INPUTS)
    if spiking:
        inputs = (inputs > 1.4758).float()
    with torch.no_grad():
        # Scaled so that about 7 % fire, with dense inputs or spikes (measured below and printed).
        cell.weight.mul_(2.45 if spiking else 1.15)
        cell.bias.fill_(0.05 if spiking else 0.0)
    parameters = list(cell.parameters())
    zeros = torch.zeros(BATCH, NEURONS)
    if autograd:
        cell = AutogradLIF(cell)
    return Job(
        steps=steps,
        cell=cell,
        state=(zeros, zeros) if autograd else zeros,
        inputs=inputs,
        parameters=parameters,
    )


def plain(job: Job) -> torch.Tensor:
    """Return the loss of plain backpropagation through time."""
    total = torch.zeros(())
    state = job.state
    for step, x in enumerate(job.inputs.unbind(0)):
        state, output = job.cell(state, x)
        total = total + job.loss(step, output)
    return total


def _steps(job: Job, start: int, stop: int) -> Part:
    """Return the steps as a function of flat tensors; nested arguments would all be kept alive."""

    def run(total: torch.Tensor, *leaves: torch.Tensor) -> Any:
        state = tree_unflatten(leaves, job.nest)
        for step, x in enumerate(job.inputs[start:stop].unbind(0), start=start):
            state, output = job.cell(state, x)
            total = total + job.loss(step, output)
        return total, *tree_leaves(state)

    return run


def _cut(steps: Callable[[int, int], Part], start: int, stop: int, chunk: int) -> Part:
    """Return the steps with each chunk of them checkpointed."""

    def run(*carried: torch.Tensor) -> Any:
        for first in range(start, stop, chunk):
            carried = checkpoint(steps(first, min(stop, first + chunk)), *carried, use_reentrant=False)
        return carried

    return run


def chunked(job: Job, chunk: int) -> torch.Tensor:
    """Return the loss of torch.utils.checkpoint, non-reentrant, chunk by chunk."""
    run = _cut(partial(_steps, job), 0, job.steps, chunk)
    return run(torch.zeros(()), *tree_leaves(job.state))[0]


def nested(job: Job, outer: int, inner: int) -> torch.Tensor:
    """Return the loss of torch.utils.checkpoint within torch.utils.checkpoint, both non-reentrant."""
    run = _cut(lambda start, stop: _cut(partial(_steps, job), start, stop, inner), 0, job.steps, outer)
    return run(torch.zeros(()), *tree_leaves(job.state))[0]


def planned(job: Job, plan: Plan) -> torch.Tensor:
    """Return the loss of a plan."""
    return bptt(job.cell, job.inputs, job.state, job.loss, plan=plan).loss


def plan_of(
    strategy: str,
    *,
    steps: int,
    state_bytes: int,
    tape_bytes: int,
    saved_bytes: int = 0,
    local_bytes: int | None = None,
) -> Plan:
    """Return the plan with the least memory, or the quickest one within a budget."""
    workload = Workload(
        name="job",
        steps=steps,
        units=1,
        state_bytes=state_bytes,
        tape_bytes=tape_bytes,
        resident_bytes_per_step=saved_bytes,
        # Only their ratios matter here: they select the plan with the fewest recomputed steps.
        forward_seconds=1e-4,
        backward_seconds=2e-4,
        recompute_seconds=1e-4,
    )
    return ckptplan.optimize(
        workload,
        MACHINE,
        strategies=[strategy],
        objective="memory" if local_bytes is None else "time",
        local_bytes=local_bytes,
        remote_bytes=0,
    )
