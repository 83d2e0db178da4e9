"""Files of rows that grow, and that an interruption leaves so that they can be continued.

A row is complete once its line has ended. All rows of a file begin with the same identity, and a file is
never seen without its beginning: a shorter one is somebody else's.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import IO, Any

from ckptplan.errors import InputError
from ckptplan.storage.files import check_file_name, write_bytes
from ckptplan.storage.tables import Lines
from ckptplan.wording import Argument, Phrase

#: No row comes near this; another file may be one long line.
_MOST_BYTES = 2**16


@dataclass(frozen=True, kw_only=True)
class RowFile:
    """A file of rows that is open: ``done`` rows were there when it was opened."""

    done: int
    path: str | Path
    file: IO[bytes]
    lines: Lines

    def append(self, rows: Iterable[Mapping[str, Any]]) -> None:
        """Write rows and hand them to the system, so that only its own end can lose them."""
        self.file.write("".join(map(self.lines.line, rows)).encode())
        self.file.flush()

    def remove(self) -> None:
        """Take the file away, while nobody else can be at it."""
        if sys.platform == "win32":
            self.file.close()  # what is open cannot go there
        Path(self.path).unlink()


def make_beginning(lines: Lines, identity: str) -> str:
    """Return what a file of these rows begins with, whether a row is complete or not."""
    return lines.header() or lines.head({"sweep": identity})


@contextmanager
def open_rows(
    path: str | Path,
    *,
    lines: Lines,
    identity: str,
    total: int,
    head: Callable[[int], Mapping[str, Any]],
    restart: bool = False,
) -> Iterator[RowFile]:
    """Open a file of rows to continue it, or a new one; a line that was cut short goes.

    ``head`` returns the first columns of a row. Raises InputError, and leaves the file as it is, where it
    holds anything but the first of ``total`` rows of ``identity``, where another process writes it, or
    where it cannot be written.
    """
    source = str(check_file_name(path))
    beginning = make_beginning(lines, identity).encode()
    try:
        with _open_begun(path, beginning, source=source, restart=restart) as file:
            done, end = _examine(file, lines, identity=identity, total=total, head=head, source=source)
            # What a first row begins with stays until the row is written over it.
            file.truncate(max(end, len(beginning)))
            file.seek(end)
            yield RowFile(done=done, path=path, file=file, lines=lines)
    except OSError as error:
        if error.filename not in (None, source):
            raise  # the caller's own trouble with another file
        raise InputError(f"cannot be written: {error.strerror}", source=source) from None
    except ValueError as error:
        if isinstance(error, InputError) or "\0" not in source:
            raise
        raise InputError("cannot be written: no file has such a name", source=repr(source)) from None


def _open_begun(path: str | Path, beginning: bytes, *, source: str, restart: bool) -> IO[bytes]:
    """Open a file to read and write, and keep others out; an empty one gets its beginning, all at once."""
    file = _open_locked(path, source)
    if os.fstat(file.fileno()).st_size and not restart:
        return file
    if sys.platform == "win32":
        file.close()  # what is open cannot be replaced there
    with file:
        write_bytes(path, beginning)
    return _open_locked(path, source)


def _open_locked(path: str | Path, source: str) -> IO[bytes]:
    """Open a file without emptying it, and keep others out. Raises InputError where another process is in."""
    while True:
        descriptor = os.open(path, os.O_RDWR | os.O_CREAT | getattr(os, "O_BINARY", 0), 0o666)
        with ExitStack() as until_sure:
            file = until_sure.enter_context(os.fdopen(descriptor, "r+b"))
            _lock(file, source)
            if _is_at(path, file):
                until_sure.pop_all()
                return file


def _is_at(path: str | Path, file: IO[bytes]) -> bool:
    """Return whether nobody replaced the file, or took it away, before it was locked."""
    try:
        return os.path.samestat(os.fstat(file.fileno()), Path(path).stat())
    except FileNotFoundError:
        return False


def _lock(file: IO[bytes], source: str) -> None:
    """Keep others from writing the same rows. Raises InputError where another process does already."""
    if sys.platform != "win32":
        import fcntl

        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            raise InputError("is being written by another process", source=source) from None


def _examine(
    file: IO[bytes],
    lines: Lines,
    *,
    identity: str,
    total: int,
    head: Callable[[int], Mapping[str, Any]],
    source: str,
) -> tuple[int, int]:
    """Return the number of complete rows and where the last one ends. Raises InputError."""
    header = lines.header().encode()
    if file.read(len(header)) != header:
        raise _refuse_file(source, "has other columns" if lines.format == "csv" else "is none")
    first = lines.head({"sweep": identity}).encode()
    done, end, last = 0, len(header), b""
    while line := file.readline(_MOST_BYTES):
        whole = line.endswith(b"\n")
        line = line if whole else _strip_zeros(line, file)
        if end and not line:
            break
        # Only what follows a complete line can have been cut short before it says whose it is.
        expected = first if whole or not end else first[: len(line)]
        if line[: len(first)] != expected or len(line) == _MOST_BYTES or b"\0" in line:
            raise _refuse_file(source, f"its row {done + 1:,} is of another sweep, or no row")
        if whole:
            done, end, last = done + 1, end + len(line), line
    if done > total or (done and not last.startswith(lines.head(head(done - 1)).encode())):
        raise _refuse_file(source, f"its {done:,} rows are not the first of the sweep")
    return done, end


def _strip_zeros(line: bytes, file: IO[bytes]) -> bytes:
    """Return a last line without the zeros that some file systems leave there after a power cut."""
    text = line.rstrip(b"\0")
    while text != line and (more := file.read(_MOST_BYTES)):
        if more.strip(b"\0"):
            return line
    return text


def _refuse_file(source: str, reason: str) -> InputError:
    return InputError(
        f"is not what this sweep began: {reason}",
        source=source,
        accepted=Phrase(
            "a new file, one that the same command with the same inputs began, or ", Argument("restart", True)
        ),
    )
