"""Counts and times the first touch of new memory, which lengthens a run.

The system gives new memory to a process page by page, when the process first touches a page.
"""

from __future__ import annotations

import mmap
import sys
from contextlib import suppress
from functools import cache
from time import process_time

import numpy as np

#: Environment variables that make the GNU C library keep freed memory. Otherwise it returns each block of more
#: than 32 MiB to the system, and the block is new memory again in the next run.
KEEPS_MEMORY = "MALLOC_ARENA_MAX=1 MALLOC_MMAP_MAX_=0 MALLOC_TRIM_THRESHOLD_=2147483647"
#: The bytes of new memory whose first touch is timed, and the number of timings. The quickest one is used.
_TOUCHED_BYTES, _TOUCHES = 8 * 2**20, 24


def count_new_pages() -> int:
    """Return the number of new pages that this process has touched so far (page faults); 0 on Windows."""
    if sys.platform == "win32":
        return 0
    import resource

    return resource.getrusage(resource.RUSAGE_SELF).ru_minflt


@cache
def time_new_page() -> float:
    """Return the processor time of the first touch of a new page, in seconds; 0 on Windows.

    The timed memory has no huge pages, since touching a huge page takes far longer.
    """
    if sys.platform == "win32":
        return 0.0
    seconds = []
    for _ in range(_TOUCHES):
        memory = mmap.mmap(-1, _TOUCHED_BYTES, flags=mmap.MAP_PRIVATE | mmap.MAP_ANON)
        if hasattr(mmap, "MADV_NOHUGEPAGE"):
            # A system without huge pages refuses this advice, and does not need it.
            with suppress(OSError):
                memory.madvise(mmap.MADV_NOHUGEPAGE)
        pages, began = count_new_pages(), process_time()
        np.frombuffer(memory, np.uint8)[:: mmap.PAGESIZE] = 1
        # The system may give several pages at a time, so divide by the pages that it reports.
        seconds.append((process_time() - began) / max(1, count_new_pages() - pages))
    return min(seconds)
