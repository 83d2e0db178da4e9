"""Prepares the process of a command: environment variables, closed streams and standard error."""

from __future__ import annotations

import os
import re
import sys
from pathlib import Path
from typing import TextIO

#: Variables that libraries convert without a check, and patterns of values that do not make them fail.
_READABLE = {
    **dict.fromkeys(("COLUMNS", "LINES", "TERMINAL_WIDTH"), "0*[1-9][0-9]{0,3}"),
    "SOURCE_DATE_EPOCH": "[0-9]{1,10}",
    # A shell sets these two when it completes a command line.
    "COMP_CWORD": "[0-9]{1,4}",
    "_CKPTPLAN_COMPLETE": "(complete|source)_(bash|zsh|fish|powershell|pwsh)",
}


def settle() -> None:
    """Remove unreadable variables and open closed streams. Call this before other modules are imported."""
    for name, readable in _READABLE.items():
        if not re.fullmatch(readable, os.environ.get(name, "")):
            os.environ.pop(name, None)
    if os.environ.get("_CKPTPLAN_COMPLETE") == "complete_bash" and not {"COMP_WORDS", "COMP_CWORD"} <= {
        *os.environ
    }:
        del os.environ["_CKPTPLAN_COMPLETE"]
    if sys.stdin is None:
        # Take its descriptor, so that no other file becomes standard input.
        os.open(os.devnull, os.O_RDONLY)
    for name in ("stdout", "stderr"):
        if getattr(sys, name) is None:
            setattr(sys, name, Path(os.devnull).open("w", encoding="utf-8"))  # noqa: SIM115 - open until exit
    if hasattr(sys.stdout, "reconfigure"):
        # Escape characters that the terminal cannot show.
        sys.stdout.reconfigure(errors="backslashreplace")


def write_error(text: str) -> None:
    """Write text to standard error. On a terminal, break its lines between words.

    The text is discarded if standard error is full or closed.
    """
    try:
        sys.stderr.write(f"{_wrap(text) if sys.stderr.isatty() else text}\n")
        sys.stderr.flush()
    except OSError:
        discard(sys.stderr)


def _wrap(text: str) -> str:
    import shutil
    import textwrap

    wrapper = textwrap.TextWrapper(
        width=max(20, shutil.get_terminal_size().columns),
        subsequent_indent="    ",
        break_long_words=False,
        break_on_hyphens=False,
        replace_whitespace=False,
    )
    return "\n".join(map(wrapper.fill, text.split("\n")))


def discard(stream: TextIO) -> None:
    """Redirect a broken stream to the null device, since Python would report its unwritten buffer at exit."""
    os.dup2(os.open(os.devnull, os.O_WRONLY), stream.fileno())
