"""The terminal behind the standard streams: how wide it is, even if one of them is a pipe."""

from __future__ import annotations

import os
import sys


def find_terminal_width() -> int | None:
    """Return the columns of the terminal that standard error or input belongs to, None if there is none.

    Standard output may be a pipe to a pager or a filter, whose lines end at the same terminal.
    """
    for stream in (sys.stderr, sys.stdin):
        try:
            if stream is not None and stream.isatty():
                return os.get_terminal_size(stream.fileno()).columns or None
        except (OSError, ValueError):
            # Closed, or no stream of the system.
            continue
    return None
