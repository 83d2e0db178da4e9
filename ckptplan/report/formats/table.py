"""Results as tables for people: with colours on a terminal, as plain text elsewhere."""

from __future__ import annotations

import os
import sys
from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING, Any

from ckptplan.report.formats.protocol import Format
from ckptplan.storage.streams import find_terminal_width

if TYPE_CHECKING:
    from rich.console import Console

    from ckptplan.report.view import View


class Table(Format):
    """What a result prints."""

    name = "table"
    rank = 0

    def render(self, view: View) -> Iterator[str]:
        """Yield the table as plain text."""
        yield _render_plain(view.table)

    def write(self, view: View, path: str) -> None:
        """Print to a terminal as it can show it; otherwise write plain text."""
        if path == "-" and sys.stdout.isatty():
            print_table(view.table)
        else:
            super().write(view, path)


def print_table(table: Callable[[Console], None]) -> None:
    """Print to standard output."""
    if sys.stdout.isatty():
        table(_make_console(sys.stdout))
    else:
        sys.stdout.write(_render_plain(table))


def _make_console(file: Any, *, width: int | None = None) -> Console:
    """Return a console: colours on a terminal only, and not with NO_COLOR; other people's text is just text."""
    from rich.console import Console

    from ckptplan.report.columns import HarmlessText

    console = Console(file=file, width=width, highlight=False, markup=False, emoji=False)
    console.push_render_hook(HarmlessText())
    return console


def _render_plain(table: Callable[[Console], None]) -> str:
    """Return a table as plain text, in characters that standard output can show."""
    import io

    encoding = sys.stdout.encoding or "utf-8"
    buffer = io.TextIOWrapper(io.BytesIO(), encoding=encoding, errors="replace", newline="")
    table(_make_console(buffer, width=_find_width()))
    buffer.seek(0)
    return "".join(f"{line.rstrip()}\n" for line in buffer.read().splitlines())


def _find_width() -> int:
    """Return COLUMNS; or the width of the terminal that a pipe or pager probably leads to; or else 100.

    80, what rich assumes off a terminal, wraps paths and sources needlessly.
    """
    columns = os.environ.get("COLUMNS", "")
    if columns.isascii() and columns.isdecimal() and 0 < int(columns[:9]) < 10_000:
        return int(columns)
    return min(find_terminal_width() or _WIDE, _WIDE)


#: The width of plain text that no terminal limits.
_WIDE = 100


FORMAT = Table()
