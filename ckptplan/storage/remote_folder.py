"""Makes a folder for remote checkpoints, and removes it when its run ends, also on Ctrl-C and SIGTERM.

A locked file beside the folder shows that the run is alive (``storage/files.py``). If a process was killed, the
next run that makes such a folder in the same place removes the old one. States are files of raw bytes.
"""

from __future__ import annotations

import errno
import os
import shutil
import signal
import threading
import weakref
from collections.abc import Callable, Sequence
from contextlib import suppress
from pathlib import Path

from ckptplan.errors import InputError
from ckptplan.storage.files import choose_temporary, create_temporary, name_folder, remove_stale
from ckptplan.units import format_bytes
from ckptplan.wording import escape_controls

_FULL = (errno.ENOSPC, getattr(errno, "EDQUOT", errno.ENOSPC))
#: The name from which the names of the locked files are derived.
_NAME = "ckptplan-remote"
#: How often the removal of a folder is tried while a thread still writes to it.
_MOST_TRIES = 100
#: For each existing folder of this process: the function that removes it.
_open: dict[Path, Callable[[], object]] = {}


class RemoteFolder:
    """A private folder that exists until it is closed or garbage collected, or the process ends."""

    def __init__(self, parent: str | os.PathLike[str], *, field: str = "remote_dir") -> None:
        """Make the folder in an existing one. Raises InputError for ``field``, the argument that named it."""
        self.parent, self._field = Path(parent), field
        try:
            remove_stale(self.parent / _NAME)
            lock = choose_temporary(self.parent / _NAME)
            descriptor = create_temporary(lock)
        except OSError as error:
            raise self.explain(error, "cannot be written") from None
        self.path = name_folder(lock)
        # The finalizer removes the folder if this object is garbage collected without close().
        self._end = weakref.finalize(self, _remove, self.path, lock, descriptor, os.getpid())
        _open[self.path] = self._end
        _watch()
        try:
            self.path.mkdir(mode=0o700)
        except OSError as error:
            self.close()
            raise self.explain(error, "cannot be written") from None

    def close(self) -> None:
        """Remove the folder with all its files."""
        self._end()

    def explain(self, error: OSError, problem: str) -> InputError:
        """Return the InputError for a system error in this folder. ``problem`` says which action failed."""
        return _explain(self.parent, error, problem, field=self._field)


class StateFiles:
    """Stores states as files of raw bytes, by number, in a folder that is removed when the run ends.

    A new state overwrites the file of an earlier state with its number. With ``through``, states reach the
    device at once and leave the system's cache. Use it if the cache has no room for all states: then all states
    move at the rate of the device, and the files of other programs stay in memory. Raises InputError.
    """

    def __init__(
        self, folder: str | os.PathLike[str], *, through: bool = False, field: str = "remote_dir"
    ) -> None:
        self._folder, self._through = RemoteFolder(folder, field=field), through

    def write(self, number: int, parts: Sequence[memoryview]) -> None:
        """Write the bytes of a state. Raises InputError if the disk is full or cannot be written to."""
        try:
            file = os.open(self._path(number), os.O_WRONLY | os.O_CREAT | getattr(os, "O_BINARY", 0), 0o600)
            try:
                for part in parts:
                    _move(lambda remaining: os.write(file, remaining), part)
                if self._through:
                    os.fsync(file)
                    _drop_cached(file)
            finally:
                os.close(file)
        except OSError as error:
            size = format_bytes(sum(part.nbytes for part in parts))
            raise self._folder.explain(error, f"cannot take a checkpoint of {size}") from None

    def read(self, number: int, into: Sequence[memoryview]) -> None:
        """Fill buffers with the bytes of a state. Raises InputError if its file is gone or too short."""
        path = self._path(number)
        try:
            with path.open("rb", buffering=0) as file:
                for part in into:
                    _move(file.readinto, part)
                if self._through:
                    _drop_cached(file.fileno())
        except OSError as error:
            raise self._folder.explain(error, f"has lost the checkpoint in {path.name}") from None

    def close(self) -> None:
        """Remove the folder."""
        self._folder.close()

    def _path(self, number: int) -> Path:
        return self._folder.path / f"{number}.state"


def _move(move: Callable[[memoryview], int], data: memoryview) -> None:
    """Call ``move`` until all bytes are moved, since one system call moves at most 2 GB."""
    while data:
        moved = move(data)
        if not moved:
            raise OSError(None, "the file is too short")
        data = data[moved:]


def _drop_cached(file: int) -> None:
    """Drop a file from the system's cache. Its content must be on the device already."""
    if hasattr(os, "posix_fadvise"):
        os.posix_fadvise(file, 0, 0, os.POSIX_FADV_DONTNEED)


def make_parent(folder: str | os.PathLike[str], *, field: str = "remote_dir") -> Path:
    """Make a folder if it is missing, and return it. Raises InputError for the argument that named it."""
    path = Path(folder)
    try:
        path.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        problem = "is a file" if path.exists() else "cannot be made"
        raise _explain(path, error, problem, field=field) from None
    return path


def check_room(folder: str | os.PathLike[str], needed: int, *, field: str = "remote_dir") -> None:
    """Raise InputError if a folder has no room for ``needed`` bytes. A missing folder is made."""
    parent = make_parent(folder, field=field)
    free = shutil.disk_usage(parent).free
    if free < needed:
        raise InputError(
            f"{escape_controls(str(parent))} has no room for the checkpoints of the plan: they take "
            f"{format_bytes(needed)}, and {format_bytes(free)} are free",
            field=field,
            value=str(parent),
            accepted="a folder with more room, or a plan that keeps less there (remote_bytes)",
        )


def _explain(parent: Path, error: OSError, problem: str, *, field: str) -> InputError:
    free, reason = "", error.strerror or str(error)
    with suppress(OSError):
        free = f" ({format_bytes(shutil.disk_usage(parent).free)} are free)"
    if error.errno in _FULL:
        reason = "the disk is full"
    return InputError(
        f"{escape_controls(str(parent))} {problem}: {reason}",
        field=field,
        value=str(parent),
        accepted=f"a writable folder with room for the plan's remote_peak_bytes{free}",
    )


def _remove(path: Path, lock: Path, descriptor: int, owner: int) -> None:
    # A forked process inherits this finalizer, but the folder belongs to the parent's run.
    if os.getpid() == owner:
        # A thread may add a file during the removal. It cannot once the folder is gone.
        for _ in range(_MOST_TRIES):
            shutil.rmtree(path, ignore_errors=True)
            if not path.exists():
                break
        lock.unlink(missing_ok=True)
        os.close(descriptor)
        _open.pop(path, None)
        _watch()


def _watch() -> None:
    """Handle SIGTERM as long as a folder exists, unless the program has its own handler."""
    if threading.current_thread() is not threading.main_thread():
        return
    handler = signal.getsignal(signal.SIGTERM)
    if _open and handler is signal.SIG_DFL:
        signal.signal(signal.SIGTERM, _terminate)
    elif not _open and handler is _terminate:
        signal.signal(signal.SIGTERM, signal.SIG_DFL)


def _terminate(number: int, _: object) -> None:
    """Remove all folders, and then end the process as SIGTERM does without a handler."""
    for remove in tuple(_open.values()):
        remove()
    signal.signal(number, signal.SIG_DFL)
    os.kill(os.getpid(), number)
