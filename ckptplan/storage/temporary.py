"""Temporary files and folders: a killed process leaves one behind, and the next one in its place removes it.

The name tells the target and the machine. A process holds a lock on its file while it writes, and the system
releases the lock if the process is killed. So a file that can be locked is stale, and so is the folder that it
stands for (``storage/remote_folder.py``).
"""

from __future__ import annotations

import os
import re
import shutil
import stat
import sys
import time
from contextlib import suppress
from pathlib import Path


def lock_file(descriptor: int) -> None:
    """Lock an open file, and return at once.

    Raises BlockingIOError if another process holds the lock, and OSError if the file system has no locks. Does
    nothing on Windows, where no other process can delete or replace an open file.
    """
    if sys.platform != "win32":
        import fcntl

        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)


#: Seconds after which files of other machines are stale: locks may not reach across a network folder.
_OLD = 86_400
_NAME = re.compile(r"\.ckptplan-[0-9a-f]{12}-([0-9a-f]{8})-[0-9a-f]{16}\.tmp", re.ASCII)


def choose_temporary(target: Path) -> Path:
    """Return a new name beside a target, for a file that replaces it when it is whole."""
    return target.parent / f"{_prefix(target)}{_machine()}-{os.urandom(8).hex()}.tmp"


def create_temporary(path: Path) -> int:
    """Create a private file, lock it, and return its descriptor. Raises OSError."""
    flags = os.O_WRONLY | os.O_CREAT | os.O_EXCL | getattr(os, "O_BINARY", 0)
    while True:
        descriptor = os.open(path, flags, 0o600)
        try:
            _lock_if_possible(descriptor)
            if path.exists():
                return descriptor
        except BlockingIOError:
            # Another process takes it for stale, since it was not locked yet, and is about to remove it.
            path.unlink(missing_ok=True)
        except BaseException:
            os.close(descriptor)
            raise
        os.close(descriptor)


def name_folder(temporary: Path) -> Path:
    """Return the folder that a temporary file stands for."""
    return temporary.with_suffix(".states")


def remove_stale(target: Path) -> None:
    """Remove what killed processes left of earlier attempts to write a target, and no other file."""
    prefix = _prefix(target)
    found: list[Path] = []
    # Some folders can be written to, but not listed.
    with suppress(OSError):
        found = [path for path in target.parent.iterdir() if path.name.startswith(prefix)]
    for path in found:
        if name := _NAME.fullmatch(path.name):
            _remove_if_stale(path, machine=name[1])


def _prefix(target: Path) -> str:
    return f".ckptplan-{_digest(target.name)[:12]}-"


def _machine() -> str:
    import platform

    return _digest(platform.node())[:8]


def _digest(text: str) -> str:
    import hashlib  # loads OpenSSL, which reading a file does not need

    return hashlib.sha256(text.encode("utf-8", "surrogatepass")).hexdigest()


def _lock_if_possible(descriptor: int) -> None:
    """Lock a file. Raises BlockingIOError; other errors mean that no file can be locked, or taken for stale."""
    try:
        lock_file(descriptor)
    except OSError as error:
        if isinstance(error, BlockingIOError):
            raise


def _remove_if_stale(path: Path, *, machine: str) -> None:
    """Remove a temporary file if it belongs to this user, and nobody writes it any more; and its folder."""
    # On Windows files are not locked, so that only their age tells.
    known = machine == _machine() and sys.platform != "win32"
    # A file that is being written, or gone already, raises; so does every file where there are no locks.
    with suppress(OSError):
        found = path.lstat()
        folder = name_folder(path)
        # A run may take longer than a write.
        old = time.time() - found.st_mtime > _OLD and not folder.exists()
        if _is_own(found) and (known or old):
            with os.fdopen(os.open(path, os.O_RDWR | getattr(os, "O_NOFOLLOW", 0)), "rb") as file:
                lock_file(file.fileno())
                if sys.platform == "win32":
                    file.close()  # Windows cannot delete an open file
                shutil.rmtree(folder, ignore_errors=True)
                # Its writer, which may only now come to lock it, finds the lock taken or the file gone.
                path.unlink()


def _is_own(found: os.stat_result) -> bool:
    return stat.S_ISREG(found.st_mode) and (not hasattr(os, "getuid") or found.st_uid == os.getuid())
