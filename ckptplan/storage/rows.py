"""Writes files of rows that can be continued after an interruption.

A row is complete if its line ends with a line break. All rows of a file begin with the same identity. A file
that ends within its beginning, as after a power cut, counts as empty. Other files are refused.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import IO, Any, Literal, TypeAlias

from ckptplan.errors import InputError
from ckptplan.storage.files import check_file_name, lock_file, replace_file
from ckptplan.storage.tables import Columns, Lines, Row, open_parquet, read_identity
from ckptplan.wording import Argument

RowFormat: TypeAlias = Literal["csv", "jsonl", "parquet"]
#: Upper limit on the bytes of a row, in case a file of another kind is one long line.
_MOST_BYTES = 2**16


@dataclass(frozen=True, kw_only=True)
class RowOutput:
    """An open file or stream of rows, which had ``done`` rows when it was opened."""

    append: Callable[[Sequence[Row]], object]
    done: int = 0
    #: Returns the number of complete rows of a file that can be continued, None for other outputs.
    count: Callable[[], int] | None = None


def is_stream(path: str) -> bool:
    """Return whether a path is standard output, a pipe, a device or a folder, which a file cannot replace."""
    return path == "-" or (Path(path).exists() and not Path(path).is_file())


@contextmanager
def open_output(
    path: str,
    form: RowFormat,
    *,
    columns: Columns,
    identity: str,
    total: int,
    head: Callable[[int], Row],
    restart: bool = False,
) -> Iterator[RowOutput]:
    """Open an output for rows: a stream, a file that may be continued, or a Parquet file.

    Parquet files appear when complete. Arguments are as in ``open_rows``. May raise InputError or MissingExtra.
    """
    if form == "parquet":
        existing = None if restart else read_identity(path)
        if existing not in (None, identity):
            accepted = f"a new file, or {Argument('restart', True)}"
            raise InputError("holds another sweep", source=path, accepted=accepted)
        if existing is not None:
            yield RowOutput(append=list, done=total)
            return
        with open_parquet(path, columns=columns, identity=identity) as append:
            yield RowOutput(append=append)
        return
    lines = Lines(format=form, columns=columns)
    if not is_stream(path):
        with open_rows(path, lines=lines, identity=identity, total=total, head=head, restart=restart) as output:
            yield output
        return
    with replace_file(path) as stream:
        stream.write(lines.header())

        def send(rows: Sequence[Row]) -> None:
            stream.write("".join(map(lines.line, rows)))
            stream.flush()

        yield RowOutput(append=send)


def make_beginning(lines: Lines, identity: str) -> str:
    """Return the beginning of every file of these rows: the header, or the identity if there is no header."""
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
) -> Iterator[RowOutput]:
    """Open a new file of rows, or one to continue; an incomplete last line is removed.

    Arguments:
        path: the file.
        lines: how rows are written.
        identity: the identity of the sweep, with which each row begins.
        total: the number of rows of the whole sweep.
        head: returns the first columns of the row with a given number.
        restart: whether to discard existing rows.

    Raises InputError, without changing the file, if it holds anything but the first rows of ``identity``, if
    another process is writing it, or if it cannot be written.
    """
    source = str(check_file_name(path))
    beginning = make_beginning(lines, identity).encode()
    try:
        with _open_locked(path, source) as file:
            first_bytes = file.read(len(beginning))
            file.seek(0)
            if restart or (first_bytes != beginning and beginning.startswith(first_bytes)):
                file.truncate()
                file.write(beginning)
                file.seek(0)
            done, end = _scan_rows(file, lines, identity=identity, total=total, head=head, source=source)
            # Keep the beginning if there are no rows: it marks the file until the first row overwrites it.
            file.truncate(max(end, len(beginning)))
            file.seek(end)

            def append(rows: Sequence[Row]) -> None:
                """Write rows and flush them to the operating system."""
                file.write("".join(map(lines.line, rows)).encode())
                file.flush()

            def count() -> int:
                """Leave the file position at the end."""
                file.seek(0)
                return sum(line.endswith(b"\n") for line in file) - lines.header().count("\n")

            yield RowOutput(append=append, done=done, count=count)
    except OSError as error:
        if error.filename not in (None, source):
            raise  # the caller's error about another file
        raise InputError(f"cannot be written: {error.strerror}", source=source) from None


@contextmanager
def _open_locked(path: str | Path, source: str) -> Iterator[IO[bytes]]:
    """Open a file without emptying it, and lock it. Raises InputError if another process holds the lock."""
    descriptor = os.open(path, os.O_RDWR | os.O_CREAT | getattr(os, "O_BINARY", 0), 0o666)
    with os.fdopen(descriptor, "r+b") as file:
        try:
            lock_file(file.fileno())
        except BlockingIOError:
            raise InputError("is being written by another process", source=source) from None
        yield file


def _scan_rows(
    file: IO[bytes],
    lines: Lines,
    *,
    identity: str,
    total: int,
    head: Callable[[int], Mapping[str, Any]],
    source: str,
) -> tuple[int, int]:
    """Check a file, and return the number of complete rows and the offset of their end. Raises InputError."""
    header = lines.header().encode()
    if file.read(len(header)) != header:
        raise _refuse_file(source, "the columns differ" if lines.format == "csv" else "it holds no rows")
    first = lines.head({"sweep": identity}).encode()
    done, end, last = 0, len(header), b""
    while line := file.readline(_MOST_BYTES):
        is_complete = line.endswith(b"\n")
        line = line if is_complete else _strip_zeros(line, file)
        if end and not line:
            break
        # Only the last line, if it follows a complete one, may be cut short within its identity.
        expected = first if is_complete or not end else first[: len(line)]
        if line[: len(first)] != expected or len(line) == _MOST_BYTES or b"\0" in line:
            raise _refuse_file(source, f"row {done + 1:,} belongs to another sweep, or is not a row")
        if is_complete:
            done, end, last = done + 1, end + len(line), line
    if done > total or (done and not last.startswith(lines.head(head(done - 1)).encode())):
        raise _refuse_file(source, f"the {done:,} rows are not the first rows of the sweep")
    return done, end


def _strip_zeros(line: bytes, file: IO[bytes]) -> bytes:
    """Return a last line without the zeros that some file systems append after a power failure."""
    text = line.rstrip(b"\0")
    while text != line and (part := file.read(_MOST_BYTES)):
        if part.strip(b"\0"):
            return line
    return text


def _refuse_file(source: str, reason: str) -> InputError:
    return InputError(
        f"is not a partial result of this sweep: {reason}",
        source=source,
        accepted="a new file, a partial result of the same command with the same inputs, or "
        f"{Argument('restart', True)}",
    )
