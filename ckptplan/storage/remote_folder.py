"""A folder for remote checkpoints, which goes with its run: also on Ctrl-C, on SIGTERM, and after a kill.

A locked file beside the folder tells that its run lives (``storage/files.py``). What a killed process left
is removed by the next run that makes such a folder in the same place. The states in it are raw bytes.
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
#: What the names of the locked files are derived from.
_NAME = "ckptplan-remote"
#: How often a folder is removed into which a thread still writes.
_MOST_TRIES = 100
#: What removes each folder of this process that is there.
_open: dict[Path, Callable[[], object]] = {}


class RemoteFolder:
    """A private folder in a given one, until it is closed or dropped, or the process ends."""

    def __init__(self, parent: str | os.PathLike[str], *, field: str = "remote_dir") -> None:
        """Make the folder in one that is there. Raises InputError for the argument ``field`` that named it."""
        self.parent, self._field = Path(parent), field
        try:
            remove_stale(self.parent / _NAME)
            lock = choose_temporary(self.parent / _NAME)
            descriptor = create_temporary(lock)
        except OSError as error:
            raise self.explain(error, "cannot be written") from None
        self.path = name_folder(lock)
        # A dropped result goes without a word.
        self._end = weakref.finalize(self, _remove, self.path, lock, descriptor, os.getpid())
        _open[self.path] = self._end
        _watch()
        try:
            self.path.mkdir(mode=0o700)
        except OSError as error:
            self.close()
            raise self.explain(error, "cannot be written") from None

    def close(self) -> None:
        """Remove the folder with all that is in it."""
        self._end()

    def explain(self, error: OSError, what: str) -> InputError:
        """Return the error for what failed here."""
        return _explain(self.parent, error, what, field=self._field)


class StateFiles:
    """States as files of raw bytes, by number, in a folder that goes with the run.

    Files of earlier states are written over. What is written ``through`` reaches the device at once, and does
    not stay in the system's cache: where there is no room for it there, the rate of a run is that of the device
    from the first state on, and other programs keep their files in memory. Raises InputError.
    """

    def __init__(
        self, folder: str | os.PathLike[str], *, through: bool = False, field: str = "remote_dir"
    ) -> None:
        self._folder, self._through = RemoteFolder(folder, field=field), through

    def write(self, number: int, parts: Sequence[memoryview]) -> None:
        """Write the bytes of a state. Raises InputError if the disk is full, or cannot be written."""
        try:
            file = os.open(self._path(number), os.O_WRONLY | os.O_CREAT | getattr(os, "O_BINARY", 0), 0o600)
            try:
                for part in parts:
                    _move(lambda left: os.write(file, left), part)
                if self._through:
                    os.fsync(file)
                    _drop_cached(file)
            finally:
                os.close(file)
        except OSError as error:
            size = format_bytes(sum(part.nbytes for part in parts))
            raise self._folder.explain(error, f"cannot take a checkpoint of {size}") from None

    def read(self, number: int, into: Sequence[memoryview]) -> None:
        """Fill buffers with the bytes of a state. Raises InputError if its file is gone, or too short."""
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
    """Move all bytes: one call of the system moves two gigabytes at most."""
    while data:
        done = move(data)
        if not done:
            raise OSError(None, "the file is too short")
        data = data[done:]


def _drop_cached(file: int) -> None:
    """Have the system forget the content of a file that the device has."""
    if hasattr(os, "posix_fadvise"):
        os.posix_fadvise(file, 0, 0, os.POSIX_FADV_DONTNEED)


def make_parent(folder: str | os.PathLike[str], *, field: str = "remote_dir") -> Path:
    """Return a folder, which is made if it is missing. Raises InputError for the argument that named it."""
    path = Path(folder)
    try:
        path.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        what = "is a file" if path.exists() else "cannot be made"
        raise _explain(path, error, what, field=field) from None
    return path


def check_room(folder: str | os.PathLike[str], needed: int, *, field: str = "remote_dir") -> None:
    """Raise InputError if a folder, which is made if it is missing, has no room for so many bytes."""
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


def _explain(parent: Path, error: OSError, what: str, *, field: str) -> InputError:
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
