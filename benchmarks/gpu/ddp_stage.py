"""Plans under DistributedDataParallel: NCCL on two GPUs, gloo where there are fewer.

Two processes train on their shares of a batch. Each compares the gradients of a plan with those of a plain loop
under the same wrapper. ``python -m benchmarks.gpu.ddp_stage RANK BACKEND DEVICE STORE RESULT`` is one of them.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tempfile
import time
from functools import partial
from pathlib import Path
from typing import Any

import torch
from torch import distributed
from torch.nn.parallel import DistributedDataParallel

from benchmarks.gpu.setting import Setting
from ckptplan.planning.playback import make_schedule
from ckptplan.torch import bptt
from ckptplan.torch.adapters import TorchCell

STEPS, CHUNK, BATCH, INPUTS, NEURONS = 32, 8, 8, 16, 32
PROCESSES = 2


class Model(torch.nn.Module):
    """Computes the loss of a sequence: under a plan, or step by step."""

    def __init__(self, *, planned: bool) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.cell = TorchCell(torch.nn.GRUCell(INPUTS, NEURONS).double())
        self.plan = make_schedule("standard", steps=STEPS, chunk_size=CHUNK) if planned else None

    def forward(self, inputs: torch.Tensor, state: torch.Tensor) -> torch.Tensor:
        """Return the loss."""
        if self.plan is not None:
            return bptt(self.cell, inputs, state, lambda _, y: y.square().mean(), plan=self.plan).loss
        total = inputs.new_zeros(())
        for x in inputs.unbind(0):
            state, output = self.cell(state, x)
            total = total + output.square().mean()
        return total


def run(setting: Setting) -> dict[str, Any]:
    """Compare gradients, with each backend that can be had."""
    gpus = torch.cuda.device_count() if setting.on_gpu else 0
    cases = [("nccl", "cuda")] if gpus >= PROCESSES else []
    cases += [("gloo", "cuda" if setting.on_gpu else "cpu")]
    found: dict[str, Any] = {"gpus": gpus, "processes": PROCESSES, "cases": []}
    for backend, device in cases:
        label = f"{backend} on {device}"
        measured = setting.attempt(label, partial(run_both, backend, device, gpus, setting.seconds_left))
        found["cases"].append({"backend": backend, "device": device, **measured})
        setting.save(found)
    return found


def run_both(backend: str, device: str, gpus: int, seconds: float) -> dict[str, Any]:
    """Run both processes; return the worst difference of gradients."""
    with tempfile.TemporaryDirectory() as folder:
        store, results = Path(folder) / "store", [Path(folder) / f"{rank}.json" for rank in range(PROCESSES)]
        workers = [
            subprocess.Popen(
                [
                    *(sys.executable, "-m", "benchmarks.gpu.ddp_stage", str(rank), backend),
                    *(device if device == "cpu" else f"cuda:{rank % gpus}", str(store), str(result)),
                ],
                stderr=subprocess.PIPE,
                text=True,
            )
            for rank, result in enumerate(results)
        ]
        try:
            said = [worker.communicate(timeout=seconds)[1] for worker in workers]
        finally:
            for worker in workers:
                worker.kill()
        missing = [text for text, result in zip(said, results, strict=True) if not result.exists()]
        if missing:
            raise RuntimeError(f"a process ended without a result: {missing[0][-400:]}")
        found = [json.loads(result.read_text()) for result in results]
    return {
        "gradient_difference": max(one["gradient_difference"] for one in found),
        "seconds": max(one["seconds"] for one in found),
    }


def work(rank: int, backend: str, device: str, store: str, result: Path) -> None:
    """Be one of the processes."""
    if device != "cpu":
        torch.cuda.set_device(device)
    distributed.init_process_group(backend, init_method=f"file://{store}", rank=rank, world_size=PROCESSES)
    torch.manual_seed(1 + rank)
    inputs = torch.randn(STEPS, BATCH // PROCESSES, INPUTS, dtype=torch.float64).to(device)
    state = torch.zeros(BATCH // PROCESSES, NEURONS, dtype=torch.float64, device=device)
    gradients = []
    began = time.perf_counter()
    for planned in (True, False):
        model = DistributedDataParallel(Model(planned=planned).to(device))
        model(inputs, state).backward()
        gradients.append([one.grad.clone() for one in model.parameters() if one.grad is not None])
    difference = max(
        float((one - other).abs().max() / other.abs().max()) for one, other in zip(*gradients, strict=True)
    )
    numbers = {"gradient_difference": difference, "seconds": time.perf_counter() - began}
    part = result.with_suffix(".part")
    part.write_text(json.dumps(numbers))
    part.replace(result)
    distributed.barrier()
    distributed.destroy_process_group()
    sys.stdout.flush()
    # Threads of gloo may still be releasing tensors, and abort if Python exits first (pytorch#179291).
    os._exit(0)


if __name__ == "__main__":
    work(int(sys.argv[1]), sys.argv[2], sys.argv[3], sys.argv[4], Path(sys.argv[5]))
