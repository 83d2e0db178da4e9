"""Waits until a process is at rest, and counts the pages of memory that it is given."""

from __future__ import annotations

import sys
import time

#: Seconds of a pause, the share of it in which a process at rest may compute, and the most pauses.
_PAUSE, _REST, _MOST_PAUSES = 0.01, 0.2, 50


def settle() -> None:
    """Wait until no thread of this process computes.

    When a program has returned its results, another thread still gives its buffers back to the system. What
    runs meanwhile takes longer by either clock.
    """
    for _ in range(_MOST_PAUSES):
        began = time.process_time()
        time.sleep(_PAUSE)
        if time.process_time() - began < _REST * _PAUSE:
            return


def count_new_pages() -> int:
    """Return the pages of memory that this process was given so far (page faults); 0 on Windows."""
    if sys.platform == "win32":
        return 0
    import resource

    return resource.getrusage(resource.RUSAGE_SELF).ru_minflt
