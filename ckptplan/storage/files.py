"""Reads untrusted text, and replaces files atomically.

A process writes to a hidden temporary file beside the target, which then replaces the target. If the process is
killed, the next writer of the target removes this file. The process holds a lock on the file until it ends, so
a temporary file that can be locked is stale. It may also stand for a folder (``storage/remote_folder.py``).
"""

from __future__ import annotations

import errno
import os
import re
import shutil
import sys
import tomllib
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import IO, Any, TextIO

from ckptplan.errors import InputError, quote_value

#: The most characters of a file. Profiles, workloads and plans have some thousands.
MOST_CHARACTERS = 2**20
#: The most of each of these characters in a TOML file. Each makes a table, a key or a value, and a table takes
#: a kilobyte while it is parsed.
_TOML_MARKS: Mapping[str, int] = dict.fromkeys("=.[{,", 10_000)
#: The same for a JSON file. A plan of 16 MiB has room for 200,000 decisions.
_JSON_MARKS: Mapping[str, int] = {"[": 10_000, "{": 210_000, ",": 1_250_000}
#: The most dots of a line, since the parser's time for a dotted key rises with the square of its length.
_MOST_DOTS = 500
#: A line with an unquoted quantity such as 20 GB/s. TOML reads a number and then fails at the unit.
_UNQUOTED = re.compile(r"\s*([\w.-]+)\s*=\s*(\d[\d_.]*\s*[A-Za-z%][\w/]*)\s*(?:#|$)")


def check_file_name(path: str | Path) -> str | Path:
    """Return a path unchanged. Raises InputError if no file can have it.

    An empty path is refused, too, since ``Path`` would turn it into the current folder.
    """
    if not str(path):
        raise InputError("the name of the file is empty", field="file")
    try:
        impossible = b"\0" in os.fsencode(path)
    except UnicodeEncodeError:
        impossible = True
    if impossible:
        raise InputError("no file can have this name", source=quote_value(str(path)))
    return path


def read_text(path: str | Path, *, most: int = MOST_CHARACTERS) -> str:
    """Return a file's text; '-' is standard input.

    Raises InputError with the file's name, also if the text has more than ``most`` characters.
    """
    with open_text(path) as file:
        # A byte order mark is no part of the text.
        text = file.read(most + 2).removeprefix("\ufeff")
    if len(text) > most:
        raise InputError("is too large", source=str(path), accepted=f"files up to {most // 2**20} MiB")
    return text


@contextmanager
def open_text(path: str | Path) -> Iterator[TextIO]:
    """Open a file for reading; '-' is standard input. Raises InputError, also for errors while it is read."""
    try:
        if str(path) == "-":
            yield _require_stdin()
        else:
            with Path(check_file_name(path)).open(encoding="utf-8") as file:
                yield file
    except UnicodeDecodeError as error:
        raise InputError(f"is not UTF-8 text (byte {error.start})", source=str(path)) from None
    except OSError as error:
        raise InputError(f"cannot be read: {error.strerror}", source=str(path)) from None


def _require_stdin() -> TextIO:
    """Return standard input. Raises InputError if the program was started without one."""
    if sys.stdin is None:
        raise InputError("is closed", source="standard input", accepted="a file, or text to read")
    return sys.stdin


def resolve(path: str | Path) -> Path:
    """Return the absolute path without symbolic links. Raises OSError if the links form a circle."""
    try:
        resolved = Path(path).resolve()
    except RuntimeError:  # of Python before 3.13
        resolved = Path(path)
    if resolved.is_symlink():
        raise OSError(errno.ELOOP, os.strerror(errno.ELOOP), str(path))
    return resolved


def parse_toml(text: str, *, source: str) -> dict[str, Any]:
    """Return a TOML document. Raises InputError if it is malformed, too deep, or holds a huge number."""
    _check_marks(text, _TOML_MARKS, source=source)
    if any(line.count(".") > _MOST_DOTS for line in text.splitlines()):
        raise InputError("is nested too deeply for TOML", source=source)
    try:
        document: dict[str, Any] = _parse(tomllib.loads, text, language="TOML", source=source)
    except InputError as error:
        place = re.search(r"\(at line (\d+),", error.message)
        unquoted = _UNQUOTED.match(text.split("\n")[int(place[1]) - 1]) if place else None
        if unquoted is None:
            raise
        field, value = unquoted.groups()
        raise InputError(
            "a value with a unit needs quotes",
            field=field,
            value=value,
            source=source,
            accepted=f'{field} = "{value}"',
        ) from None
    return document


def _check_marks(text: str, limits: Mapping[str, int], *, source: str) -> None:
    """Raise InputError if parsing a text would create too many objects."""
    for mark, most in limits.items():
        if text.count(mark) > most:
            raise InputError(
                f"has more than {most:,} {mark!r}", source=source, accepted=f"up to {most:,} of that character"
            )


def parse_json(text: str, *, source: str, limits: Mapping[str, int] = _JSON_MARKS) -> dict[str, Any]:
    """Return a JSON object. Raises InputError, also for NaN, Infinity, duplicate keys and too many members."""
    import json

    def strict(text: str) -> Any:
        return json.loads(text, object_pairs_hook=_refuse_duplicates, parse_constant=_refuse_constant)

    _check_marks(text, limits, source=source)
    document = _parse(strict, text, language="JSON", source=source)
    if not isinstance(document, dict):
        raise InputError(f"holds {quote_value(document)}, not a JSON object", source=source)
    return document


def _parse(parse: Callable[[str], Any], text: str, *, language: str, source: str) -> Any:
    try:
        return parse(text)
    except RecursionError:
        raise InputError(f"is nested too deeply for {language}", source=source) from None
    except InputError as error:
        raise error.inside(source=source) from None
    except ValueError as error:
        # Python's own message about a huge integer advises changing the interpreter's settings.
        reason = "an integer of thousands of digits" if "set_int_max_str_digits" in str(error) else str(error)
        raise InputError(f"is not valid {language}: {reason}", source=source) from None


def _refuse_duplicates(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    result: dict[str, Any] = {}
    for key, value in pairs:
        if key in result:
            raise InputError("is given twice", field=key[:60])
        result[key] = value
    return result


def _refuse_constant(name: str) -> Any:
    raise InputError(f"{name} is not a JSON number")


def write_text(path: str | Path, text: str) -> None:
    """Write a file atomically (see ``replace_file``). Raises InputError if it cannot be written."""
    with replace_file(path) as file:
        file.write(text)


def write_bytes(path: str | Path, content: bytes) -> None:
    """Write a binary file atomically, as ``write_text`` does; here '-' is a file name."""
    with replace_file(path, binary=True) as file:
        file.write(content)


@contextmanager
def replace_file(path: str | Path, *, binary: bool = False) -> Iterator[IO[Any]]:
    """Open a file for writing so that readers see either the old file or the new one; '-' is standard output.

    At the end of the block, a temporary file replaces the target. If the block raises, the temporary file is
    deleted. Raises InputError if the file cannot be written.
    """
    if str(path) == "-" and not binary:
        yield sys.stdout
        return
    named = Path(check_file_name(path))
    mode, encoding = ("wb", None) if binary else ("w", "utf-8")
    # Choose the name before the file exists, so that it can be deleted after an interruption at any moment.
    temporary = choose_temporary(named)
    try:
        if named.is_dir():
            raise IsADirectoryError(errno.EISDIR, "it is a folder")
        if named.exists() and not named.is_file():
            # Write to a device or a pipe directly.
            with named.open(mode, encoding=encoding) as file:
                yield file
        else:
            # Replace the target of a link, not the link.
            target = resolve(named)
            temporary = choose_temporary(target)
            remove_stale(target)
            with _write_temporary(target, temporary, mode=mode, encoding=encoding) as file:
                yield file
    except OSError as error:
        if error.filename not in (None, str(path), str(temporary)):
            raise  # the caller's error about another file
        raise InputError(f"cannot be written: {error.strerror}", source=str(path)) from None


@contextmanager
def _write_temporary(target: Path, temporary: Path, *, mode: str, encoding: str | None) -> Iterator[IO[Any]]:
    try:
        with os.fdopen(create_temporary(temporary), mode, encoding=encoding) as file:
            yield file
            file.flush()
            os.fsync(file.fileno())
            if sys.platform == "win32":
                file.close()  # Windows cannot replace an open file
            # Until now the file was private. A new file gets the default rights, a replaced one keeps its own.
            temporary.chmod(target.stat().st_mode & 0o7777 if target.exists() else 0o666 & ~_read_umask())
            # The file is still open, and so locked. No other process can take it for stale.
            temporary.replace(target)
    except BaseException:
        temporary.unlink(missing_ok=True)
        raise


def _read_umask() -> int:
    mask = os.umask(0)
    os.umask(mask)
    return mask


def choose_temporary(target: Path) -> Path:
    """Return a new name beside a target, for a temporary file that replaces the target when it is complete."""
    return target.parent / f"{_prefix(target)}{os.urandom(8).hex()}.tmp"


def _prefix(target: Path) -> str:
    """Return a prefix for the target and this machine, as locks may not reach across a network folder."""
    import hashlib  # loads OpenSSL, which reading a file does not need
    import platform

    text = f"{platform.node()}/{target.name}"
    return f".ckptplan-{hashlib.sha256(text.encode('utf-8', 'surrogatepass')).hexdigest()[:16]}-"


def create_temporary(path: Path) -> int:
    """Create a private file, lock it, and return its descriptor. Raises OSError."""
    while True:
        descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL | getattr(os, "O_BINARY", 0), 0o600)
        # If the file system has no locks, remove_stale removes nothing.
        with suppress(OSError):
            lock_file(descriptor, wait=True)
        if path.exists():
            return descriptor
        # Another process took the file for stale before it was locked. Create it again.
        os.close(descriptor)


def remove_stale(target: Path) -> None:
    """Remove the temporary files (and their folders) that killed processes left beside a target."""
    # Some folders can be written to, but not listed.
    with suppress(OSError):
        for path in list(target.parent.glob(f"{_prefix(target)}*.tmp")):
            # OSError: the file is being written, is another user's, or is gone, or the system has no locks.
            with suppress(OSError):
                with os.fdopen(os.open(path, os.O_RDWR | getattr(os, "O_NOFOLLOW", 0)), "rb") as file:
                    lock_file(file.fileno())
                    if sys.platform == "win32":
                        file.close()  # Windows cannot delete an open file, whoever has it open
                    path.unlink()
                shutil.rmtree(name_folder(path), ignore_errors=True)


def name_folder(temporary: Path) -> Path:
    """Return the folder that a temporary file stands for."""
    return temporary.with_suffix(".states")


def lock_file(descriptor: int, *, wait: bool = False) -> None:
    """Lock an open file against other processes. The system releases the lock when this process ends.

    Raises BlockingIOError if another process holds the lock and ``wait`` is false, and OSError if the file
    system has no locks. Does nothing on Windows, where no other process can delete or replace an open file.
    """
    if sys.platform != "win32":
        import fcntl

        fcntl.flock(descriptor, fcntl.LOCK_EX if wait else fcntl.LOCK_EX | fcntl.LOCK_NB)
