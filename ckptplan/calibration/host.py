"""Identifies the processor of this machine, and sets the threads that JAX will run with.

Memory that is new to a process is given to it page by page, when it is first touched, which takes time.
"""

from __future__ import annotations

import mmap
import os
import platform
import sys
from contextlib import suppress
from functools import cache
from pathlib import Path
from time import process_time

import numpy as np

from ckptplan.errors import InputError
from ckptplan.studies.workers import count_cores


def processor_name() -> str:
    """Return the name of the processor with the number of usable cores."""
    return f"{_read_processor()}, {count_cores()} cores"


def _read_processor() -> str:
    """Return the model of the processor, which Python itself knows only on some systems."""
    info = Path("/proc/cpuinfo")
    for line in info.read_text().splitlines() if info.is_file() else ():
        name, _, value = line.partition(":")
        if name.strip() == "model name":
            return value.strip()
    return platform.processor() or platform.machine()


#: The flag of XLA that keeps it to one thread.
_FLAG = "xla_cpu_multi_thread_eigen=false"
_ONE_THREAD = f"--{_FLAG}"


def set_threads(count: int | None) -> int:
    """Set and return the number of threads of JAX. None keeps it.

    Raises InputError if JAX has already been imported with another number.
    """
    present = _read_threads()
    if count is None or count == present:
        return present
    if "jax" in sys.modules:
        raise InputError(
            f"JAX runs with {present} already, which cannot be changed any more",
            field="thread_count",
            value=count,
            accepted=f"{present}, or NPROC={count} in the environment before JAX is imported"
            + (f" together with XLA_FLAGS={_ONE_THREAD}" if count == 1 else ""),
        )
    os.environ["NPROC"] = str(count)
    if count == 1:
        os.environ["XLA_FLAGS"] = " ".join((*os.environ.get("XLA_FLAGS", "").split(), _ONE_THREAD))
    return count


def _read_threads() -> int:
    if _ONE_THREAD in os.environ.get("XLA_FLAGS", "").split():
        return 1
    given = os.environ.get("NPROC", "")
    return int(given) if given.isdecimal() and int(given) > 0 else count_cores()


#: What a process has in its environment to keep what it frees, with the C library of GNU. Otherwise each block
#: of more than 32 MiB is given back, and new again in the next run.
KEEPS_MEMORY = "MALLOC_ARENA_MAX=1 MALLOC_MMAP_MAX_=0 MALLOC_TRIM_THRESHOLD_=2147483647"
#: The new memory whose first touch is timed, and how often; the quickest counts.
_TOUCHED_BYTES, _TOUCHES = 8 * 2**20, 24


def count_new_pages() -> int:
    """Return the pages of memory that this process was given so far (page faults); 0 on Windows."""
    if sys.platform == "win32":
        return 0
    import resource

    return resource.getrusage(resource.RUSAGE_SELF).ru_minflt


@cache
def time_new_page() -> float:
    """Return the seconds of a processor that the first touch of a page of new memory takes; 0 on Windows.

    Large pages, of which each takes far longer, are switched off for what is timed.
    """
    if sys.platform == "win32":
        return 0.0
    found = []
    for _ in range(_TOUCHES):
        memory = mmap.mmap(-1, _TOUCHED_BYTES, flags=mmap.MAP_PRIVATE | mmap.MAP_ANON)
        if hasattr(mmap, "MADV_NOHUGEPAGE"):
            # A system that has no large pages refuses the advice, and needs none.
            with suppress(OSError):
                memory.madvise(mmap.MADV_NOHUGEPAGE)
        pages, began = count_new_pages(), process_time()
        np.frombuffer(memory, np.uint8)[:: mmap.PAGESIZE] = 1
        # The system may give several at a time.
        found.append((process_time() - began) / max(1, count_new_pages() - pages))
    return min(found)
