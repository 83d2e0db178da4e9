"""Identifies the machine that a measurement runs on, and prepares it."""

from __future__ import annotations

import gc
from collections.abc import Iterator
from contextlib import contextmanager

import torch

from ckptplan.calibration.host import host_memory_bytes, processor_name


def machine_name(device: torch.device) -> str:
    """Return the name of the accelerator, or of the processor with the number of usable cores.

    Times from machines with equal names can be compared.
    """
    if device.type == "cuda":
        return torch.cuda.get_device_name(device)
    return processor_name()


def memory_bytes(device: torch.device) -> int:
    """Return the memory of a device in bytes; for the host, the most that this process may use."""
    if device.type == "cuda":
        return int(torch.cuda.get_device_properties(device).total_memory)
    return host_memory_bytes()


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
