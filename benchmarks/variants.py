"""Networks on a device, and ways to train them: plainly, by ``torch.utils.checkpoint``, under a plan."""

from __future__ import annotations

import warnings
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import Any

import torch
from torch.utils._pytree import tree_leaves, tree_structure, tree_unflatten
from torch.utils.checkpoint import checkpoint

import ckptplan
from ckptplan import HardwareProfile, Plan, Schedule, Workload
from ckptplan.torch import bptt
from ckptplan.torch.adapters import TorchCell
from ckptplan.torch.device.meters import LiveBytes
from ckptplan.torch.lif import LIF
from ckptplan.torch.surrogates import FastSigmoid, Spike

#: One level of memory without a limit: plans set their own budgets.
MACHINE = HardwareProfile(
    name="host",
    local_bytes=2**40,
    write_bytes_per_second=1e9,
    read_bytes_per_second=1e9,
    latency_seconds=1e-6,
    synchronisation_seconds=0,
)
#: Different inputs of a job; longer sequences repeat them, so that inputs take no memory.
_BANK = 64
#: Runs steps start..stop-1 from a loss so far and the leaves of a state.
Part = Callable[..., tuple[torch.Tensor, ...]]


class AutogradLIF(torch.nn.Module):
    """The neurons of ckptplan.torch.lif in plain PyTorch: a state and a tape of a step are as large."""

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
        spikes = Spike.apply(membranes - model.threshold, FastSigmoid(model.slope))  # type: ignore[no-untyped-call]
        return (membranes, spikes), spikes


@dataclass(frozen=True, kw_only=True)
class Job:
    """A network, its inputs and its loss, all made from seeds; it runs for any number of steps."""

    kind: str
    cell: Any
    state: Any
    bank: torch.Tensor

    @property
    def parameters(self) -> list[torch.nn.Parameter]:
        """The parameters of the cell."""
        return list(self.cell.parameters())

    def x(self, step: int) -> torch.Tensor:
        """Return the input of a step."""
        return self.bank[step % len(self.bank)]

    def inputs(self, start: int, stop: int) -> torch.Tensor:
        """Return the inputs of steps start..stop-1, time first."""
        first = start % len(self.bank)
        if first + stop - start <= len(self.bank):
            return self.bank[first : first + stop - start]
        return self.bank[torch.arange(start, stop, device=self.bank.device) % len(self.bank)]

    @staticmethod
    def loss(_: int, output: torch.Tensor) -> torch.Tensor:
        """Return the loss of a step; it is computed inside the schedule."""
        return output.square().mean()


def make_job(kind: str, *, batch: int, inputs: int, neurons: int, device: str = "cpu") -> Job:
    """Return a network: 'gru', 'lif' (neurons under autograd), or 'replay' (from their spikes)."""
    torch.manual_seed(0)
    zeros = torch.zeros(batch, neurons, device=device)
    cell: Any
    state: Any = zeros
    if kind == "gru":
        cell = TorchCell(torch.nn.GRUCell(inputs, neurons, device=device))
    else:
        cell = LIF(inputs, neurons, device=device)
        with torch.no_grad():
            # About 7 % of the neurons fire at a time.
            cell.weight.mul_(1.15)
        if kind == "lif":
            cell, state = AutogradLIF(cell), (zeros, zeros.clone())
    return Job(kind=kind, cell=cell, state=state, bank=torch.randn(_BANK, batch, inputs).to(device))


def run_plain(job: Job, steps: int) -> torch.Tensor:
    """Return the loss of plain backpropagation."""
    loss: torch.Tensor = _run_steps(job, 0, steps, job.bank.new_zeros(()), *tree_leaves(job.state))[0]
    return loss


def _run_steps(job: Job, start: int, stop: int, total: torch.Tensor, *leaves: torch.Tensor) -> Any:
    """Run steps as a function of flat tensors; nested arguments would all be kept alive."""
    state = tree_unflatten(leaves, tree_structure(job.state))
    for step in range(start, stop):
        state, output = job.cell(state, job.x(step))
        total = total + job.loss(step, output)
    return total, *tree_leaves(state)


def run_checkpoint(
    job: Job, steps: int, chunks: tuple[int, ...], *, reentrant: bool = False, run_part: Any = _run_steps
) -> torch.Tensor:
    """Return the loss of torch.utils.checkpoint, nested if there are several chunk sizes."""

    def run(chunks: tuple[int, ...], start: int, stop: int, *carried: torch.Tensor) -> Any:
        if not chunks:
            return run_part(job, start, stop, *carried)
        for first in range(start, stop, chunks[0]):
            part = partial(run, chunks[1:], first, min(stop, first + chunks[0]))
            carried = checkpoint(part, *carried, use_reentrant=reentrant)
        return carried

    # The reentrant mode wants an argument that requires a gradient.
    total = job.bank.new_zeros(()).requires_grad_(reentrant)
    with warnings.catch_warnings():
        # Of the inner level, which the outer one runs without gradients first.
        warnings.filterwarnings("ignore", message="None of the inputs have requires_grad=True")
        loss: torch.Tensor = run(chunks, 0, steps, total, *tree_leaves(job.state))[0]
    return loss


def run_plan(job: Job, plan: Plan | Schedule, *, compile_: Any = None) -> torch.Tensor:
    """Return the loss of a plan or a schedule."""
    return bptt(job.cell, job.inputs, job.state, job.loss, plan=plan, compile=compile_).loss


def make_plan(strategy: str, *, steps: int, state_bytes: int, tape_bytes: int, **budget: Any) -> Plan:
    """Return the plan with the least memory, or the quickest one within ``local_bytes``."""
    workload = Workload(
        name="job",
        steps=steps,
        units=1,
        state_bytes=state_bytes,
        tape_bytes=tape_bytes,
        # Only their ratios matter here: they select the plan with the fewest recomputed steps.
        forward_seconds=1e-4,
        backward_seconds=2e-4,
        recompute_seconds=1e-4,
    )
    objective = "time" if budget else "memory"
    return ckptplan.optimize(
        workload, MACHINE, strategies=[strategy], objective=objective, remote_bytes=0, **budget
    )


def measure_peak(step: Callable[[], object]) -> int:
    """Return the bytes of the tensors that a step makes, at most at a time."""
    with LiveBytes() as live:
        # Inside, a call is of another kind: the first one measures.
        step()
        live.forget()
        step()
    peak: int = live.peak
    return peak


def compute_gradients(job: Job, variant: Callable[[], torch.Tensor]) -> list[torch.Tensor]:
    """Return the gradients of the parameters."""
    return [one.clone() for one in torch.autograd.grad(variant(), job.parameters)]
