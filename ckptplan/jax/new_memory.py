"""Counts and times the first touch of new memory, which lengthens a run.

Memory that is new to a process is given to it page by page, when it is first touched.
"""

from __future__ import annotations

import mmap
import sys
from contextlib import suppress
from functools import cache
from time import process_time

import numpy as np

#: Settings in the environment of a process by which it keeps memory that it frees, with the C library of GNU.
#: Otherwise each block of more than 32 MiB is given back, and new again in the next run.
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

    The timed memory has no large pages, since each of these takes far longer.
    """
    if sys.platform == "win32":
        return 0.0
    seconds = []
    for _ in range(_TOUCHES):
        memory = mmap.mmap(-1, _TOUCHED_BYTES, flags=mmap.MAP_PRIVATE | mmap.MAP_ANON)
        if hasattr(mmap, "MADV_NOHUGEPAGE"):
            # A system that has no large pages refuses the advice, and needs none.
            with suppress(OSError):
                memory.madvise(mmap.MADV_NOHUGEPAGE)
        pages, began = count_new_pages(), process_time()
        np.frombuffer(memory, np.uint8)[:: mmap.PAGESIZE] = 1
        # The system may give several at a time.
        seconds.append((process_time() - began) / max(1, count_new_pages() - pages))
    return min(seconds)
