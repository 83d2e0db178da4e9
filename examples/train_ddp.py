"""Data-parallel training under a plan: each process keeps checkpoints and tapes of its share of the batch.

    ckptplan optimize --workload examples/gru.toml --profile nvidia-h200 --local-bytes "80 kB" -o plan.json
    torchrun --nproc-per-node 2 examples/train_ddp.py --plan plan.json

The first command plans for one process. Without torchrun, one process takes the whole batch; the gradients
are the same. With --compile, pieces of its steps run as compiled code. If each process has its own GPU, it uses
that with NCCL, which has not been measured; otherwise all use CPUs with gloo.
"""

from __future__ import annotations

import argparse
import os
import sys
from pathlib import Path
from typing import Any, NamedTuple

import torch
from torch import distributed
from torch.nn.functional import cross_entropy, one_hot

import ckptplan
from ckptplan.torch import bptt
from ckptplan.torch.adapters import TorchCell

CHANNELS, UNITS = 3, 32


class Finder(torch.nn.Module):
    """Finds the channel that carries a signal. The plan is executed inside ``forward``, which DDP wraps."""

    def __init__(self, plan: ckptplan.Plan, *, compiled: bool) -> None:
        super().__init__()
        self.plan, self.compiled = plan, 16 if compiled else None
        self.cell = TorchCell(torch.nn.GRUCell(CHANNELS, UNITS))
        self.readout = torch.nn.Linear(UNITS, CHANNELS)

    def forward(self, inputs: torch.Tensor, target: torch.Tensor) -> torch.Tensor:
        """Return the mean loss over time steps and samples."""

        def loss(t: int, output: torch.Tensor) -> torch.Tensor:
            return cross_entropy(self.readout(output), target) / self.plan.steps

        return bptt(self.cell, inputs, None, loss, plan=self.plan, compile=self.compiled).loss


class Place(NamedTuple):
    """The number of this process, its device, and the backend that connects it to the others."""

    rank: int
    processes: int
    device: torch.device
    backend: str


def main() -> None:
    place = this_place()
    options, plan = asked(place.processes)
    if place.processes > 1:
        distributed.init_process_group(place.backend)
    saved = train(options, plan, place)
    if options.save is not None and place.rank == 0:
        torch.save(saved, options.save)
    if place.processes > 1:
        distributed.destroy_process_group()
        if place.backend == "gloo":
            # Its threads may still be releasing tensors, and abort if Python exits first (pytorch#179291).
            sys.stdout.flush()
            os._exit(0)


def this_place() -> Place:
    """Return what torchrun sets in the environment; without torchrun there is a single process."""
    names = {"RANK": 0, "WORLD_SIZE": 1, "LOCAL_RANK": 0, "LOCAL_WORLD_SIZE": 1}
    rank, processes, local, neighbours = (int(os.environ.get(name, alone)) for name, alone in names.items())
    if torch.cuda.device_count() < neighbours:
        return Place(rank, processes, torch.device("cpu"), "gloo")
    torch.cuda.set_device(local)
    return Place(rank, processes, torch.device("cuda", local), "nccl")


def asked(processes: int) -> tuple[argparse.Namespace, ckptplan.Plan]:
    """Return the options and the plan, or exit with an error message."""
    parser = argparse.ArgumentParser(description="Train a GRU under a plan, in one process or several.")
    add = parser.add_argument
    add("--plan", required=True, metavar="FILE", help="a plan, as ckptplan optimize -o writes it")
    add("--steps-of-training", type=positive, default=20, metavar="N", help="20 if not given")
    add("--batch", type=positive, default=16, metavar="N", help="samples in all processes; 16 if not given")
    add("--dtype", choices=("float32", "float64"), default="float32")
    add("--seed", type=int, default=0, metavar="N")
    add("--compile", action="store_true", help="compile pieces of 16 steps")
    add("--save", type=Path, metavar="FILE.pt", help="write losses, first gradients and parameters")
    options = parser.parse_args()
    if options.batch % processes:
        parser.error(
            f"argument --batch: {options.batch} samples cannot be shared equally by {processes} processes"
        )
    if options.save is not None and not options.save.absolute().parent.is_dir():
        parser.error(f"argument --save: there is no folder {options.save.parent}")
    try:
        return options, ckptplan.load_plan(options.plan)
    except ckptplan.InputError as error:
        parser.error(f"argument --plan: {error}")


def positive(text: str) -> int:
    """Return a whole number from 1."""
    number = int(text)
    if number < 1:
        raise ValueError
    return number


def train(options: argparse.Namespace, plan: ckptplan.Plan, place: Place) -> dict[str, Any]:
    """Train, and return losses, the gradients of the first step, and the parameters."""
    dtype, share = getattr(torch, options.dtype), options.batch // place.processes
    mine = slice(place.rank * share, (place.rank + 1) * share)
    torch.manual_seed(options.seed)
    finder = Finder(plan, compiled=options.compile).to(place.device, dtype)
    model = torch.nn.parallel.DistributedDataParallel(finder) if place.processes > 1 else finder
    optimizer = torch.optim.Adam(model.parameters(), lr=1e-2)
    if place.rank == 0:
        print(summary(plan, share, place), flush=True)
    losses: list[float] = []
    gradients: dict[str, torch.Tensor] = {}
    for step in range(options.steps_of_training):
        # Each process draws the whole batch from the same seed and takes its share.
        target = torch.randint(CHANNELS, (options.batch,))
        inputs = torch.randn(plan.steps, options.batch, CHANNELS, dtype=dtype) + one_hot(target, CHANNELS)
        loss = model(inputs[:, mine].to(place.device), target[mine].to(place.device))
        optimizer.zero_grad()
        loss.backward()
        gradients = gradients or {name: one.grad.cpu().clone() for name, one in finder.named_parameters()}
        optimizer.step()
        losses.append(mean(loss.detach(), place.processes))
        if place.rank == 0:
            print(f"{step:3d}  loss {losses[-1]:.3f}", flush=True)
    parameters = {name: one.detach().cpu() for name, one in finder.named_parameters()}
    return {"losses": losses, "gradients": gradients, "parameters": parameters}


def summary(plan: ckptplan.Plan, share: int, place: Place) -> str:
    """Return what is trained, where, and in how many bytes."""
    base = ckptplan.optimize(plan.workload, plan.profile, strategies=["base"], local_bytes=10**18)
    where = f"{place.device.type}, {place.backend}" if place.processes > 1 else place.device.type
    lines = [
        f"plan       {plan.strategy}, T = {plan.steps:,}, {plan.predicted.overhead:+.1%} time over base",
        f"bytes      {plan.predicted.local_peak_bytes:,} a process; "
        f"base would need {base.predicted.local_peak_bytes:,}",
        f"processes  {place.processes} ({where}), {share} samples each",
    ]
    if plan.workload.batch not in (None, share):
        lines.append(f"           the bytes are those of {plan.workload.batch} samples, as planned")
    return "\n".join(lines)


def mean(value: torch.Tensor, processes: int) -> float:
    """Return the mean over all processes."""
    if processes > 1:
        distributed.all_reduce(value)
    return value.item() / processes


if __name__ == "__main__":
    main()
