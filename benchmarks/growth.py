"""Measures by how much a process grows within a limit on a CPU, and what it costs to return memory at once.

    python -m benchmarks.growth [--small]

Each row is a process of its own, whose allocator is that of the C library (glibc).
"""

from __future__ import annotations

import os
import resource
import subprocess
import sys
import time

import torch

from ckptplan.torch import wrap
from ckptplan.units import parse_bytes

BATCH, INPUTS, UNITS = 32, 128, 256
LIMITS, STEPS, CALLS = ("60 MB", "200 MB"), 2000, 4
THRESHOLDS = {"default": {}, "MALLOC_MMAP_THRESHOLD_=16384": {"MALLOC_MMAP_THRESHOLD_": "16384"}}


class Gated(torch.nn.Module):
    """A network whose state decays, and grows by gated inputs."""

    def __init__(self) -> None:
        super().__init__()
        self.enter, self.gate = torch.nn.Linear(INPUTS, UNITS), torch.nn.Linear(UNITS, UNITS)
        self.reset()

    def reset(self) -> None:
        """Begin a sequence."""
        self.state = torch.zeros(BATCH, UNITS)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """Take a time step."""
        entered = self.enter(x)
        gate = torch.sigmoid(entered + self.gate(self.state))
        self.state = 0.9 * self.state + gate * torch.tanh(self.state) + entered
        return self.state[:, :2]


def read_peak() -> float:
    """Return the largest size that this process has had, in MiB."""
    unit = 2**20 if sys.platform == "darwin" else 2**10
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / unit


def measure(limit: str, steps: int) -> tuple[float, float]:
    """Return by how many MiB this process grows in a few calls, and the seconds of the quickest one."""
    data = torch.randn(steps, BATCH, INPUTS)
    # What PyTorch loads for a first call is not counted.
    wrap(Gated(), memory="1 GB", reset=Gated.reset)(data[:8]).sum().backward()
    net, before, seconds = wrap(Gated(), memory=limit, reset=Gated.reset), read_peak(), []
    for _ in range(CALLS):
        began = time.perf_counter()
        net(data).square().mean().backward()
        seconds.append(time.perf_counter() - began)
    return read_peak() - before, min(seconds[1:])


def main() -> None:
    """Print a table."""
    is_small = "--small" in sys.argv
    steps, limits = (100, ("20 MB",)) if is_small else (STEPS, LIMITS)
    if "--limit" in sys.argv:
        torch.set_num_threads(1)
        print(*measure(sys.argv[sys.argv.index("--limit") + 1], steps))
        return
    print("| limit | allocator | growth of the process | a training step |\n|---|---|---|---|")
    for limit in limits:
        for name, variables in THRESHOLDS.items():
            more = ["--small"] if is_small else []
            call = [sys.executable, "-m", "benchmarks.growth", *more, "--limit", limit]
            done = subprocess.run(
                call, env={**os.environ, **variables}, capture_output=True, text=True, check=True
            )
            growth, seconds = map(float, done.stdout.split())
            share = growth * 2**20 / parse_bytes(limit)
            print(f"| {limit} | {name} | {growth:.0f} MiB, {share:.1f} times the limit | {seconds:.2f} s |")


if __name__ == "__main__":
    main()
