"""A folder for remote checkpoints, which goes with its run: also on Ctrl-C, on SIGTERM, and after a kill.

A locked file beside the folder tells that its run lives (``storage/files.py``). What a killed process left
is removed by the next run that makes such a folder in the same place.
"""

from __future__ import annotations

import errno
import os
import shutil
import signal
import threading
import weakref
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path

from ckptplan.errors import InputError
from ckptplan.storage.files import choose_temporary, create_temporary, name_folder, remove_stale
from ckptplan.units import format_bytes
from ckptplan.wording import escape_controls

_FULL = (errno.ENOSPC, getattr(errno, "EDQUOT", errno.ENOSPC))
#: What the names of the locked files are derived from.
_NAME = "ckptplan-remote"
#: How often a folder is removed into which a thread still writes.
_MOST_TRIES = 100
#: What removes each folder of this process that is there.
_open: dict[Path, Callable[[], object]] = {}


class RemoteFolder:
    """A private folder in a given one, until it is closed or dropped, or the process ends."""

    def __init__(self, parent: str | os.PathLike[str]) -> None:
        """Make the folder in one that is there. Raises InputError."""
        self.parent = Path(parent)
        try:
            remove_stale(self.parent / _NAME)
            lock = choose_temporary(self.parent / _NAME)
            descriptor = create_temporary(lock)
        except OSError as error:
            raise _explain(self.parent, error, "cannot be written") from None
        self.path = name_folder(lock)
        # A dropped result goes without a word.
        self._end = weakref.finalize(self, _remove, self.path, lock, descriptor, os.getpid())
        _open[self.path] = self._end
        _watch()
        try:
            self.path.mkdir(mode=0o700)
        except OSError as error:
            self.close()
            raise _explain(self.parent, error, "cannot be written") from None

    def close(self) -> None:
        """Remove the folder with all that is in it."""
        self._end()

    def explain(self, error: OSError, what: str) -> InputError:
        """Return the error for what failed here."""
        return _explain(self.parent, error, what)


def make_parent(folder: str | os.PathLike[str], *, field: str = "remote_dir") -> Path:
    """Return a folder, which is made if it is missing. Raises InputError for the argument that named it."""
    path = Path(folder)
    try:
        path.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        what = "is a file" if path.exists() else "cannot be made"
        raise _explain(path, error, what, field=field) from None
    return path


def check_room(folder: str | os.PathLike[str], needed: int) -> None:
    """Raise InputError if a folder, which is made if it is missing, has no room for so many bytes."""
    parent = make_parent(folder)
    free = shutil.disk_usage(parent).free
    if free < needed:
        raise InputError(
            f"{escape_controls(str(parent))} has no room for the checkpoints of the plan: they take "
            f"{format_bytes(needed)}, and {format_bytes(free)} are free",
            field="remote_dir",
            value=str(parent),
            accepted="a folder with more room, or a plan that keeps less there (remote_bytes)",
        )


def _explain(parent: Path, error: OSError, what: str, *, field: str = "remote_dir") -> InputError:
    free, reason = "", error.strerror or str(error)
    with suppress(OSError):
        free = f" ({format_bytes(shutil.disk_usage(parent).free)} are free)"
    if error.errno in _FULL:
        reason = "the disk is full"
    return InputError(
        f"{escape_controls(str(parent))} {what}: {reason}",
        field=field,
        value=str(parent),
        accepted=f"a writable folder with room for the plan's remote_peak_bytes{free}",
    )


def _remove(path: Path, lock: Path, descriptor: int, owner: int) -> None:
    # A forked process has the same objects, but not the run.
    if os.getpid() == owner:
        # A thread that writes may add a file meanwhile: none when the folder is gone.
        for _ in range(_MOST_TRIES):
            shutil.rmtree(path, ignore_errors=True)
            if not path.exists():
                break
        lock.unlink(missing_ok=True)
        os.close(descriptor)
        _open.pop(path, None)
        _watch()


def _watch() -> None:
    """Handle SIGTERM as long as there is a folder, if nobody else does."""
    if threading.current_thread() is not threading.main_thread():
        return
    present = signal.getsignal(signal.SIGTERM)
    if _open and present is signal.SIG_DFL:
        signal.signal(signal.SIGTERM, _terminate)
    elif not _open and present is _terminate:
        signal.signal(signal.SIGTERM, signal.SIG_DFL)


def _terminate(number: int, _: object) -> None:
    """Remove all folders, and end as without a handler."""
    for end in tuple(_open.values()):
        end()
    signal.signal(number, signal.SIG_DFL)
    os.kill(os.getpid(), number)
