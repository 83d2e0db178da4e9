"""Removes what is odd about a process: variables that libraries cannot read, and closed standard streams."""

from __future__ import annotations

import os
import re
import sys
from pathlib import Path
from typing import TextIO

#: Variables that libraries convert without asking, and what they can convert; other values are dropped.
_READABLE = {
    **dict.fromkeys(("COLUMNS", "LINES", "TERMINAL_WIDTH"), "0*[1-9][0-9]{0,3}"),
    "SOURCE_DATE_EPOCH": "[0-9]{1,10}",
    "TYPER_USE_RICH": r"(?i)\s*(1|0|true|false|t|f|yes|no|y|n|on|off)\s*",
    # What a shell asks of a program that completes its command line.
    "COMP_CWORD": "[0-9]{1,4}",
    "_CKPTPLAN_COMPLETE": "(complete|source)_(bash|zsh|fish|powershell|pwsh)",
}


def settle() -> None:
    """Prepare variables and standard streams, before anything else is imported."""
    for name, readable in _READABLE.items():
        if not re.fullmatch(readable, os.environ.get(name, "")):
            os.environ.pop(name, None)
    if os.environ.get("_CKPTPLAN_COMPLETE") == "complete_bash" and not {"COMP_WORDS", "COMP_CWORD"} <= {
        *os.environ
    }:
        del os.environ["_CKPTPLAN_COMPLETE"]
    _open_streams()


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
