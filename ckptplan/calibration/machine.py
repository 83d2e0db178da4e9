"""Identifies the machine that a measurement runs on, and prepares it."""

from __future__ import annotations

import gc
import os
import platform
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import torch

#: Share of a measured machine's memory that plans leave free, and why.
HEADROOM = 0.1
HEADROOM_ASSUMPTION = (
    "10 %: other programs, the driver and holes of the allocator take a part that was not measured."
)


def machine_name(device: torch.device) -> str:
    """Return the name of the accelerator, or of the processor with the number of usable cores.

    Times from machines with equal names can be compared.
    """
    if device.type == "cuda":
        return torch.cuda.get_device_name(device)
    cores = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count()
    return f"{_read_processor()}, {cores} cores"


def memory_bytes(device: torch.device) -> int:
    """Return the memory of a device in bytes; for the host, the most that this process may use."""
    if device.type == "cuda":
        return int(torch.cuda.get_device_properties(device).total_memory)
    installed = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    limit = Path("/sys/fs/cgroup/memory.max")
    text = limit.read_text().strip() if limit.is_file() else ""
    return min(installed, int(text)) if text.isdecimal() else installed


def exclude_loaded_objects() -> None:
    """Exclude all objects from garbage collection, until ``prepare_machine`` ends."""
    gc.collect()
    gc.freeze()


@contextmanager
def prepare_machine(*, threads: int) -> Iterator[None]:
    """Set PyTorch's number of threads, and exclude existing objects from garbage collection.

    Each run begins with a collection, which would take a tenth of a second for all loaded modules.
    """
    before = torch.get_num_threads()
    torch.set_num_threads(threads)
    exclude_loaded_objects()
    try:
        yield
    finally:
        gc.unfreeze()
        torch.set_num_threads(before)


def _read_processor() -> str:
    """Return the model of the processor, which Python itself knows only on some systems."""
    info = Path("/proc/cpuinfo")
    for line in info.read_text().splitlines() if info.is_file() else ():
        name, _, value = line.partition(":")
        if name.strip() == "model name":
            return value.strip()
    return platform.processor() or platform.machine()
