"""Temporary files and folders: a killed process leaves one behind, and the next one in its place removes it.

The name tells the target and the machine: locks may not reach across a network folder. A process holds a lock
on its file while it writes, and the system releases the lock if the process is killed. So a file of this
machine that can be locked is stale, and so is the folder that it stands for (``storage/remote_folder.py``).
"""

from __future__ import annotations

import os
import shutil
import sys
from contextlib import suppress
from pathlib import Path


def lock_file(descriptor: int, *, wait: bool = False) -> None:
    """Lock an open file against other processes; the lock ends with its process, however that ends.

    Raises BlockingIOError if another process holds the lock and ``wait`` is false, and OSError if the file
    system has no locks. Does nothing on Windows, where no other process can delete or replace an open file.
    """
    if sys.platform != "win32":
        import fcntl

        fcntl.flock(descriptor, fcntl.LOCK_EX if wait else fcntl.LOCK_EX | fcntl.LOCK_NB)


def choose_temporary(target: Path) -> Path:
    """Return a new name beside a target, for a file that replaces it when it is whole."""
    return target.parent / f"{_prefix(target)}{os.urandom(8).hex()}.tmp"


def create_temporary(path: Path) -> int:
    """Create a private file, lock it, and return its descriptor. Raises OSError."""
    flags = os.O_WRONLY | os.O_CREAT | os.O_EXCL | getattr(os, "O_BINARY", 0)
    while True:
        descriptor = os.open(path, flags, 0o600)
        # Where no file can be locked, none is taken for stale.
        with suppress(OSError):
            lock_file(descriptor, wait=True)
        if path.exists():
            return descriptor
        # Before it was locked, another process took it for stale.
        os.close(descriptor)


def name_folder(temporary: Path) -> Path:
    """Return the folder that a temporary file stands for."""
    return temporary.with_suffix(".states")


def remove_stale(target: Path) -> None:
    """Remove what killed processes left of earlier attempts to write a target, and no other file."""
    # Some folders can be written to, but not listed.
    with suppress(OSError):
        for path in list(target.parent.glob(f"{_prefix(target)}*.tmp")):
            _remove_if_stale(path)


def _prefix(target: Path) -> str:
    import hashlib  # loads OpenSSL, which reading a file does not need
    import platform

    name, machine = (
        hashlib.sha256(text.encode("utf-8", "surrogatepass")).hexdigest()
        for text in (target.name, platform.node())
    )
    return f".ckptplan-{name[:12]}-{machine[:8]}-"


def _remove_if_stale(path: Path) -> None:
    """Remove a temporary file that nobody writes any more, and its folder."""
    # A file that is being written, that is somebody else's, or that is gone, raises; and all without locks do.
    with suppress(OSError):
        with os.fdopen(os.open(path, os.O_RDWR | getattr(os, "O_NOFOLLOW", 0)), "rb") as file:
            lock_file(file.fileno())
            if sys.platform == "win32":
                file.close()  # Windows cannot delete an open file, whoever has it open
            path.unlink()
        shutil.rmtree(name_folder(path), ignore_errors=True)
