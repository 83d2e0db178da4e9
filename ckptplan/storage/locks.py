"""Locks open files against other processes; the lock ends with its process, however that ends."""

from __future__ import annotations

import sys


def lock_file(descriptor: int) -> None:
    """Lock an open file, and return at once.

    Raises BlockingIOError if another process holds the lock, and OSError if the file system has no locks. Does
    nothing on Windows, where no other process can delete or replace an open file.
    """
    if sys.platform != "win32":
        import fcntl

        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
