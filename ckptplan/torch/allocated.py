"""Measures the memory that tensors take by what allocators report, which also sees inside compiled graphs."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import torch


@dataclass
class Allocated:
    """The bytes that were allocated at most, beyond those at the beginning."""

    peak: int = 0


@contextmanager
def measure_allocated(device: torch.device) -> Iterator[Allocated]:
    """Measure what the block allocates on a device; ``peak`` is known afterwards."""
    found = Allocated()
    if device.type == "cuda":
        torch.cuda.synchronize(device)
        before = torch.cuda.memory_allocated(device)
        torch.cuda.reset_peak_memory_stats(device)
        yield found
        torch.cuda.synchronize(device)
        found.peak = torch.cuda.max_memory_allocated(device) - before
        return
    # Not torch.profiler, which writes lines of its own to standard error.
    legacy: Any = torch.autograd
    kind: Any = torch._C._profiler
    settings = kind.ProfilerConfig(
        kind.ProfilerState.CPU, False, True, False, False, False, kind._ExperimentalConfig()
    )
    legacy._enable_profiler_legacy(settings)
    try:
        yield found
    finally:
        records = legacy._disable_profiler_legacy()
    now = 0
    for event in (one for thread in records for one in thread if one.kind() == "memory_alloc"):
        now += event.cpu_memory_usage()
        found.peak = max(found.peak, now)
