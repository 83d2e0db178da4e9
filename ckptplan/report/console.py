"""Prints blocks on a console: tables drop columns until they fit, and a line below names the dropped ones.

Words and numbers are never broken: a word that is wider than its column sticks out. Text from files is printed
without markup, and its control characters are escaped.
"""

from __future__ import annotations

import re
import textwrap
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Literal

from rich.cells import cell_len
from rich.console import Console
from rich.table import Table as RichTable
from rich.text import Text

from ckptplan.report.blocks import Block, Field, Style, Table
from ckptplan.report.numbers import NO_BREAK, keep_numbers
from ckptplan.wording import Argument

_STYLES: dict[Style, str] = {
    "": "",
    "strong": "bold",
    "faint": "dim",
    "best": "bold green",
    "good": "green",
    "bad": "bold red",
    "warning": "bold yellow",
    "caution": "yellow",
}
#: A long text gets at least this width before columns are dropped; a longer word, as a link, gets no more.
_COMFORTABLE, _LONG_WORD = 20, 24
#: A console wider than any line, to align the cells of tables.
_CONSOLE = Console(width=1_000_000, force_jupyter=False)
#: The space between columns, and the indent of a table under its title.
_GAP, _INDENT = 2, "  "
#: Replacements of characters that a console without Unicode lacks.
_PLAIN = str.maketrans({"\u2588": "#", "\u00b2": "2", "\u2264": "<="})


def draw_blocks(blocks: Iterable[Block], *, width: int) -> Iterator[Text]:
    """Yield the lines of blocks. An empty line separates two blocks, unless both are paragraphs."""
    previous: Block | None = None
    for block in blocks:
        if isinstance(previous, Table) or (previous is not None and isinstance(block, Table)):
            yield Text()
        if isinstance(block, Table):
            yield from _draw_table(block, width=width)
        else:
            yield from _draw_text(block.text, block.style, width=width)
        previous = block


def print_blocks(blocks: Iterable[Block], console: Console | None = None) -> None:
    """Print blocks on a terminal, in colours unless NO_COLOR is set. Text is never taken for markup."""
    console = console or Console(highlight=False, markup=False, emoji=False, force_jupyter=False)
    for line in draw_blocks(blocks, width=console.width):
        if not console.encoding.startswith("utf"):
            line.plain = line.plain.translate(_PLAIN)
        console.print(line, soft_wrap=True)


def write_blocks(blocks: Iterable[Block], *, width: int | None = None, encoding: str = "utf-8") -> str:
    """Return blocks as plain text in characters of an encoding.

    The default width is COLUMNS, or that of the terminal behind any standard stream, or 80.
    """
    lines = draw_blocks(blocks, width=width or Console(force_jupyter=False).width)
    text = "".join(f"{line.plain}\n" for line in lines)
    text = text if encoding.startswith("utf") else text.translate(_PLAIN)
    return text.encode(encoding, errors="replace").decode(encoding)


def _draw_text(text: str, style: Style, *, width: int) -> Iterator[Text]:
    for line in _wrap(keep_numbers(text), width).split("\n"):
        yield Text(line, style=_STYLES[style])


def _wrap(text: str, width: int) -> str:
    """Break the lines of a text between words."""
    wrapper = textwrap.TextWrapper(max(1, width), break_long_words=False, break_on_hyphens=False)
    return "\n".join("\n".join(wrapper.wrap(line)) for line in text.split("\n")).replace(NO_BREAK, " ")


@dataclass(frozen=True)
class _Column:
    """The field of a column with its heading and cells, in which numbers stay with their units."""

    field: Field
    heading: str
    cells: Sequence[str]

    @property
    def least(self) -> int:
        """The width at which no word is broken, or no line if the field does not wrap."""
        heading = max(map(cell_len, self.heading.split(" ")))
        natural = max(map(cell_len, self.cells), default=0)
        if self.field.wraps:
            words = (cell_len(word) for cell in self.cells for word in re.split("[ \n]", cell))
            natural = min(natural, max(_COMFORTABLE, min(max(words, default=0), _LONG_WORD)))
        return max(heading, natural)

    @property
    def natural(self) -> int:
        """The width at which no line is broken."""
        return max(self.least, *map(cell_len, (self.heading, *self.cells)))


def _draw_table(table: Table, *, width: int) -> Iterator[Text]:
    """Yield a table without the columns that have no room, and a line that names the dropped columns."""
    if table.title:
        yield from _draw_text(table.title, "strong", width=width)
    indent, texts = _INDENT if table.title else "", table.texts
    columns = [
        _Column(field, keep_numbers(field.heading), [keep_numbers(row[place]) for row in texts])
        for place, field in enumerate(table.fields)
    ]
    shown = list(columns)
    for column in sorted(columns, key=lambda column: column.field.priority, reverse=True):
        if not column.field.priority or _add_least(shown) <= width - len(indent):
            break
        shown.remove(column)
    drawn = _align(shown, table, width - len(indent))
    for segments in _CONSOLE.render_lines(drawn, pad=False):
        line = Text.assemble(indent, *((text, style or "") for text, style, _ in segments))
        line.rstrip()
        yield line
    # A bar without a heading repeats a number.
    if names := ", ".join(column.heading for column in columns if column.heading and column not in shown):
        hint = f"{_add_least(columns) + len(indent)} columns or {Argument('format', 'csv')} show all."
        yield Text()
        yield from _draw_text(f"Left out in {width} columns: {names}; {hint}", "faint", width=width)


def _align(columns: Sequence[_Column], table: Table, width: int) -> RichTable:
    """Return columns of a table side by side, which share the room that they do not need."""
    drawn = RichTable(box=None, pad_edge=False, padding=(0, _GAP, 0, 0), show_header=bool(table.headings))
    missing = sum(column.natural - column.least for column in columns)
    share = min(1.0, max(0, width - _add_least(columns)) / max(1, missing))
    cells: list[list[Text]] = []
    for column in columns:
        size = column.least + int(share * (column.natural - column.least))
        side: Literal["left", "right"] = "right" if column.field.is_flush_right else "left"
        drawn.add_column(Text(_wrap(column.heading, size), "bold"), justify=side, no_wrap=True)
        looks = zip(column.cells, table.styles, strict=True)
        cells.append([Text(_wrap(text, size), _STYLES[style]) for text, style in looks])
    for row in zip(*cells, strict=True):
        drawn.add_row(*row)
    return drawn


def _add_least(columns: Sequence[_Column]) -> int:
    """Return the least width of columns side by side."""
    return sum(column.least for column in columns) + _GAP * (len(columns) - 1)
