"""Removes what is odd about a process: variables that libraries cannot read, and closed standard streams."""

from __future__ import annotations

import os
import re
import sys
from pathlib import Path
from typing import TextIO

#: Sizes of the terminal, which rich and typer convert without asking whether they are numbers.
_SIZES = ("COLUMNS", "LINES", "TERMINAL_WIDTH")
#: What shells ask of a program that completes its command line.
_COMPLETION = re.compile(r"(complete|source)_(bash|zsh|fish|powershell|pwsh)")
#: The values of TYPER_USE_RICH that typer accepts.
_TRUTHS = ("1", "0", "true", "false", "t", "f", "yes", "no", "y", "n", "on", "off")


def settle() -> None:
    """Prepare variables and standard streams, before anything else is imported."""
    _drop_variables()
    _open_streams()


def _drop_variables() -> None:
    for name in _SIZES:
        if not _is_number(os.environ.get(name, "80"), digits=4):
            del os.environ[name]
    if not _is_number(os.environ.get("SOURCE_DATE_EPOCH", "0"), digits=10):
        del os.environ["SOURCE_DATE_EPOCH"]
    if os.environ.get("TYPER_USE_RICH", "1").strip().lower() not in _TRUTHS:
        del os.environ["TYPER_USE_RICH"]
    if not _is_completion():
        os.environ.pop("_CKPTPLAN_COMPLETE", None)
    # Pictures are files. Any other backend would be imported, whatever it is.
    os.environ["MPLBACKEND"] = "agg"


def _is_completion() -> bool:
    """Return whether a shell asks for completion, and says what was typed."""
    if not _COMPLETION.fullmatch(os.environ.get("_CKPTPLAN_COMPLETE", "")):
        return False
    bash = os.environ["_CKPTPLAN_COMPLETE"] == "complete_bash"
    return not bash or ("COMP_WORDS" in os.environ and _is_number(os.environ.get("COMP_CWORD", ""), digits=4))


def _is_number(text: str, *, digits: int) -> bool:
    return text.isascii() and text.isdecimal() and len(text) <= digits and (digits > 4 or int(text) > 0)


def _open_streams() -> None:
    if sys.stdin is None:
        # Kept open, so that no other file becomes standard input.
        os.open(os.devnull, os.O_RDONLY)
    if sys.stdout is None:
        sys.stdout = _open_nothing()
    if sys.stderr is None:
        sys.stderr = _open_nothing()
    if hasattr(sys.stdout, "reconfigure"):
        # A character that a terminal cannot show is shown by its number.
        sys.stdout.reconfigure(errors="backslashreplace")


def _open_nothing() -> TextIO:
    return Path(os.devnull).open("w", encoding="utf-8")


def write_error(text: str) -> None:
    """Write text to standard error, wrapped between words on a terminal.

    It is discarded if standard error is full or its reader gone.
    """
    try:
        sys.stderr.write(f"{_wrap(text) if sys.stderr.isatty() else text}\n")
        sys.stderr.flush()
    except OSError:
        discard(sys.stderr)


def _wrap(text: str) -> str:
    """Return a text whose lines are no longer than the terminal is wide, if words allow it."""
    import shutil
    import textwrap

    width = max(20, shutil.get_terminal_size().columns)
    return "\n".join(
        textwrap.fill(
            line,
            width=width,
            subsequent_indent=" " * (len(line) - len(line.lstrip()) + 2),
            break_long_words=False,
            break_on_hyphens=False,
            replace_whitespace=False,
        )
        if len(line) > width
        else line
        for line in text.split("\n")
    )


def discard(stream: TextIO) -> None:
    """Discard what a stream holds and what is still written to it; Python would report it again at exit."""
    os.dup2(os.open(os.devnull, os.O_WRONLY), stream.fileno())
