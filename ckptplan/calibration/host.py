"""Identifies the processor and the memory of this machine, whatever runs on it."""

from __future__ import annotations

import os
import platform
from pathlib import Path

#: Share of a measured machine's memory that plans leave free, and why.
HEADROOM = 0.1
HEADROOM_ASSUMPTION = (
    "10 %: other programs, the driver and holes of the allocator take a part that was not measured."
)


def processor_name() -> str:
    """Return the name of the processor with the number of usable cores."""
    return f"{_read_processor()}, {usable_cores()} cores"


def usable_cores() -> int:
    """Return the number of cores that this process may use."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


def host_memory_bytes() -> int:
    """Return the most memory that this process may use, in bytes."""
    installed = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    limit = Path("/sys/fs/cgroup/memory.max")
    text = limit.read_text().strip() if limit.is_file() else ""
    return min(installed, int(text)) if text.isdecimal() else installed


def free_memory_bytes() -> int | None:
    """Return the bytes of free memory, None if the system does not report them."""
    report = Path("/proc/meminfo")
    for line in report.read_text().splitlines() if report.is_file() else ():
        if line.startswith("MemAvailable:"):
            return 1024 * int(line.split()[1])
    return None


def _read_processor() -> str:
    """Return the model of the processor, which Python itself knows only on some systems."""
    info = Path("/proc/cpuinfo")
    for line in info.read_text().splitlines() if info.is_file() else ():
        name, _, value = line.partition(":")
        if name.strip() == "model name":
            return value.strip()
    return platform.processor() or platform.machine()
