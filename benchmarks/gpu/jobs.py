"""Networks on a device, and the ways to train them that the stages compare."""

from __future__ import annotations

import warnings
from collections.abc import Callable
from contextlib import nullcontext
from dataclasses import dataclass
from functools import partial
from typing import Any

import torch
from torch.utils._pytree import tree_leaves, tree_structure, tree_unflatten
from torch.utils.checkpoint import checkpoint

from benchmarks.gpu.setting import Setting
from benchmarks.runtime_variants import AutogradLIF
from ckptplan import Plan, Schedule
from ckptplan.torch import bptt, plan_for
from ckptplan.torch.adapters import TorchCell
from ckptplan.torch.lif import LIF

#: Different inputs; longer sequences repeat them, so that inputs take no memory.
_BANK = 64


@dataclass(frozen=True, kw_only=True)
class Job:
    """A network, its inputs and its loss, all made from seeds."""

    kind: str
    cell: Any
    state: Any
    bank: torch.Tensor
    neurons: int

    @property
    def parameters(self) -> list[torch.nn.Parameter]:
        """The parameters of the cell."""
        return list(self.cell.parameters())

    def x(self, step: int) -> torch.Tensor:
        """Return the input of a step."""
        return self.bank[step % len(self.bank)]

    def inputs(self, start: int, stop: int) -> torch.Tensor:
        """Return the inputs of steps start..stop-1, time first."""
        return self.bank[torch.arange(start, stop, device=self.bank.device) % len(self.bank)]

    @staticmethod
    def loss(_: int, output: torch.Tensor) -> torch.Tensor:
        """Return the loss of a step; it is computed inside the schedule."""
        return output.square().mean()


def make_job(kind: str, setting: Setting, *, neurons: int | None = None) -> Job:
    """Return a network: 'gru', 'lif' (neurons under autograd) or 'replay' (from their spikes)."""
    batch, inputs = setting.pick(4, 256), setting.pick(8, 64)
    neurons = neurons or setting.pick(32, 1024)
    torch.manual_seed(0)
    device = setting.device
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
    bank = torch.randn(_BANK, batch, inputs).to(device)
    return Job(kind=kind, cell=cell, state=state, bank=bank, neurons=neurons)


def run_plain(job: Job, steps: int, *, saved: str = "here", pinned: bool = False) -> torch.Tensor:
    """Return the loss of plain backpropagation; ``saved='cpu'`` keeps tapes in host memory (save_on_cpu)."""
    place = torch.autograd.graph.save_on_cpu(pin_memory=pinned) if saved == "cpu" else nullcontext()
    total, state = job.bank.new_zeros(()), job.state
    with place:
        for step in range(steps):
            state, output = job.cell(state, job.x(step))
            total = total + job.loss(step, output)
    return total


def _run_part(job: Job, start: int, stop: int, total: torch.Tensor, *leaves: torch.Tensor) -> Any:
    """Run steps as a function of flat tensors; nested arguments would all be kept alive."""
    state = tree_unflatten(leaves, tree_structure(job.state))
    for step in range(start, stop):
        state, output = job.cell(state, job.x(step))
        total = total + job.loss(step, output)
    return total, *tree_leaves(state)


def _run_cut(
    job: Job, chunks: tuple[int, ...], reentrant: bool, start: int, stop: int, *carried: torch.Tensor
) -> Any:
    """Run steps in checkpointed chunks: one level for each size, the outermost first."""
    if not chunks:
        return _run_part(job, start, stop, *carried)
    for first in range(start, stop, chunks[0]):
        part = partial(_run_cut, job, chunks[1:], reentrant, first, min(stop, first + chunks[0]))
        carried = checkpoint(part, *carried, use_reentrant=reentrant)
    return carried


def run_checkpoint(job: Job, steps: int, chunks: tuple[int, ...], *, reentrant: bool) -> torch.Tensor:
    """Return the loss of torch.utils.checkpoint, nested if there are several chunk sizes."""
    # The reentrant mode wants an argument that requires a gradient.
    total = job.bank.new_zeros(()).requires_grad_()
    with warnings.catch_warnings():
        # Of the inner level, which the outer one runs without gradients first.
        warnings.filterwarnings("ignore", message="None of the inputs have requires_grad=True")
        loss: torch.Tensor = _run_cut(job, chunks, reentrant, 0, steps, total, *tree_leaves(job.state))[0]
    return loss


def make_fused(job: Job) -> torch.nn.GRU:
    """Return the layer of a GRU job, which cuDNN runs as a whole, with the same weights."""
    cell = job.cell.module
    net = torch.nn.GRU(cell.input_size, cell.hidden_size, device=job.bank.device)
    with torch.no_grad():
        for name, value in cell.named_parameters():
            getattr(net, f"{name}_l0").copy_(value)
    return net


def run_fused(net: torch.nn.GRU, job: Job, steps: int) -> torch.Tensor:
    """Return the loss of a whole layer over all steps."""
    outputs, _ = net(job.inputs(0, steps), job.state.unsqueeze(0))
    loss: torch.Tensor = outputs.square().mean((1, 2)).sum()
    return loss


def make_plan(job: Job, steps: int, memory: int) -> Plan:
    """Return the quickest plan within a limit of memory."""
    return plan_for(job.cell, job.inputs, job.state, job.loss, memory=memory, steps=steps)


def run_plan(job: Job, plan: Plan | Schedule, *, compile_: Any = None) -> torch.Tensor:
    """Return the loss of a plan or a schedule."""
    return bptt(job.cell, job.inputs, job.state, job.loss, plan=plan, compile=compile_).loss


def compute_gradients(job: Job, variant: Callable[[], torch.Tensor]) -> list[torch.Tensor]:
    """Return the gradients of the parameters."""
    return [one.clone() for one in torch.autograd.grad(variant(), job.parameters)]


def find_difference(ones: list[torch.Tensor], others: list[torch.Tensor]) -> float:
    """Return the largest difference of gradients, as a share of the largest entry."""
    return max(
        float((one - other).abs().max() / other.abs().max()) for one, other in zip(ones, others, strict=True)
    )
