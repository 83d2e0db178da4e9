"""Prints blocks on a console: words stay whole, and tables fit its width.

Where the width is scarce, a table becomes narrower in steps: short titles and short cells, of which some take
several lines; then long texts below their row; then columns are left out, and a line below the table names
them. Numbers stay on a line with their names and units. What other people wrote does not act on a terminal.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import TYPE_CHECKING

from rich.cells import cell_len
from rich.text import Text

from ckptplan.report.blocks import Block, Cell, Field, Heading, Paragraph, Style, Table
from ckptplan.wording import Argument, escape_controls

if TYPE_CHECKING:
    from rich.console import Console

_STYLES: dict[Style, str] = {
    "strong": "bold",
    "faint": "dim",
    "best": "bold green",
    "good": "green",
    "bad": "bold red",
    "warning": "bold yellow",
    "caution": "yellow",
}
#: A long text is not squeezed below this width while anything else can be made narrower.
_COMFORTABLE = 28
#: Indent of what follows a heading, and of long texts below their row.
_INDENT, _BELOW = 2, 4
#: Characters of a bar, full and empty.
_BAR, _FULL, _EMPTY = 24, "█", "░"
#: What stands for characters that a console without Unicode lacks.
_PLAIN = str.maketrans({_FULL: "#", _EMPTY: ".", "²": "2", "≤": "<="})


def draw_blocks(blocks: Iterable[Block], *, width: int, unicode: bool = True) -> Iterator[Text]:
    """Yield the lines of blocks; an empty line separates them, but not paragraphs."""
    before: Block | None = None
    for block in blocks:
        runs_on = isinstance(before, Heading) or (
            isinstance(before, Paragraph) and isinstance(block, Paragraph)
        )
        if before is not None and not runs_on:
            yield Text()
        indent = _INDENT if isinstance(before, Heading) else 0
        for line in _draw(block, width=width - indent, unicode=unicode):
            yield Text.assemble(" " * indent if line.plain else "", line)
        before = block


def print_blocks(blocks: Iterable[Block], console: Console | None = None) -> None:
    """Print blocks on a terminal: in colours, but not with NO_COLOR; other people's text is just text."""
    if console is None:
        from rich.console import Console

        console = Console(highlight=False, markup=False, emoji=False, force_jupyter=False)
    for line in draw_blocks(blocks, width=console.width, unicode=console.encoding.startswith("utf")):
        console.print(line, soft_wrap=True)


def _draw(block: Block, *, width: int, unicode: bool) -> Iterator[Text]:
    """Yield the lines of a block."""
    if isinstance(block, Table):
        yield from _draw_table(block, width=width, unicode=unicode)
        return
    if isinstance(block, Heading):
        text = _make_text(block.text, "strong")
    else:
        text = _make_text(block.whole, "" if block.head else block.style)
        text.stylize(_STYLES.get(block.style or "strong", ""), 0, len(escape_controls(block.head)))
    yield from wrap_text(text, width=width)


def _make_text(text: str, style: Style = "") -> Text:
    return Text(escape_controls(text), style=_STYLES.get(style, ""))


@dataclass(frozen=True, kw_only=True)
class _Column:
    """A column as one step of narrowing has it."""

    field: Field
    title: Text
    cells: Sequence[Text]
    wraps: bool

    @cached_property
    def natural(self) -> int:
        """The width at which no cell is wrapped."""
        return max(map(measure_width, (self.title, *self.cells)))

    @cached_property
    def least(self) -> int:
        """The width below which words would be broken, or a long text squeezed."""
        if not self.wraps:
            return self.natural
        longest = max(measure_width(self.title), *map(measure_pieces, self.cells), 0)
        return max(longest, min(self.natural, _COMFORTABLE)) if self.field.wraps == "early" else longest


def _draw_table(table: Table, *, width: int, unicode: bool) -> Iterator[Text]:
    """Yield the lines of the widest form of a table that fits, then which columns it lacks."""
    whole, short = (_make_columns(table, narrow=narrow, unicode=unicode) for narrow in (False, True))
    # The first to go is the last of the highest priority.
    kept = sorted(range(len(table.fields)), key=lambda place: (table.fields[place].priority, place))
    dropped: list[int] = []
    needed = 0
    while True:
        for columns, below in ((whole, False), (short, False), (short, True)):
            shown = [columns[place] for place in sorted(kept)]
            beside = [column for column in shown if not (below and column.field.wraps == "early")]
            gap = _choose_gap(beside, width=width) if columns is short else 2
            if (least := _measure(beside, gap=gap)) <= width:
                break
        needed = needed or least
        if least <= width or not table.fields[kept[-1]].priority:
            break
        dropped.append(kept.pop())
    yield from _draw_rows(beside, [one for one in shown if one not in beside], gap=gap, width=width)
    if dropped:
        names = ", ".join(table.fields[place].heading or table.fields[place].name for place in sorted(dropped))
        every = f"{needed} columns or {Argument('format', 'csv')} show all."
        yield Text()
        yield from wrap_text(_make_text(f"Left out in {width} columns: {names}; {every}", "faint"), width=width)


def _make_columns(table: Table, *, narrow: bool, unicode: bool) -> list[_Column]:
    texts = table.texts
    return [
        _Column(
            field=field,
            title=_make_text(field.short or field.heading if narrow else field.heading, "strong"),
            cells=[
                _make_cell(row[place], text[place], narrow=narrow, unicode=unicode)
                for row, text in zip(table.rows, texts, strict=True)
            ],
            wraps=field.wraps == "early" or (narrow and field.wraps == "late"),
        )
        for place, field in enumerate(table.fields)
    ]


def _make_cell(cell: Cell, text: str, *, narrow: bool, unicode: bool) -> Text:
    if narrow and cell.short is not None:
        text = cell.short
    if cell.filled is not None:
        full = min(_BAR, round(_BAR * cell.filled))
        text = f"{_FULL * full}{_EMPTY * (_BAR - full)} {text}"
    return _make_text(text if unicode else text.translate(_PLAIN), cell.style)


def _choose_gap(columns: Sequence[_Column], *, width: int) -> int:
    """Return the space between columns: two, or one where no cell is wrapped then or words would be broken."""
    gaps, natural = max(0, len(columns) - 1), sum(column.natural for column in columns)
    if natural + gaps <= width < natural + 2 * gaps:
        return 1
    return 2 if _measure(columns, gap=2) <= width else 1


def _measure(columns: Sequence[_Column], *, gap: int) -> int:
    """Return the least width of columns side by side."""
    return sum(column.least for column in columns) + gap * max(0, len(columns) - 1)


def _draw_rows(beside: Sequence[_Column], below: Sequence[_Column], *, gap: int, width: int) -> Iterator[Text]:
    """Yield the lines of titles and rows, with long texts below their row."""
    widths = _widen(beside, spare=width - _measure(beside, gap=gap))
    columns = list(zip(beside, widths, strict=True))
    if any(column.title for column in beside):
        yield from _draw_row([(one, one.title, size) for one, size in columns], gap=gap, at_bottom=True)
    for row in range(len(beside[0].cells)):
        yield from _draw_row([(one, one.cells[row], size) for one, size in columns], gap=gap)
        for column in below:
            for line in wrap_text(column.cells[row], width=width - _BELOW):
                if line:
                    yield Text.assemble(" " * _BELOW, line)


def _widen(columns: Sequence[_Column], *, spare: int) -> list[int]:
    """Return widths with the spare room given to the columns that need it most."""
    widths = [column.least for column in columns]
    lacks = [column.natural - column.least for column in columns]
    for _ in range(min(spare, sum(lacks))):
        place = lacks.index(max(lacks))
        widths[place] += 1
        lacks[place] -= 1
    return widths


def _draw_row(
    cells: Sequence[tuple[_Column, Text, int]], *, gap: int, at_bottom: bool = False
) -> Iterator[Text]:
    """Yield the lines of one row; titles stand at the bottom of theirs."""
    wrapped = [wrap_text(text, width=width) for _, text, width in cells]
    height = max(map(len, wrapped))
    for place in range(height):
        line = Text()
        for (column, _, width), parts in zip(cells, wrapped, strict=True):
            at = place - (height - len(parts)) if at_bottom else place
            part = parts[at] if 0 <= at < len(parts) else Text()
            blank = " " * max(0, width - measure_width(part))
            line.append(" " * gap if line else "")
            for piece in (blank, part) if column.field.is_flush_right else (part, blank):
                line.append(piece)
        line.rstrip()
        yield line


#: A part of a line that is never broken, with the space that follows it: words of which each but the last ends
#: in a digit, as '34 ms', or is before a sign of equality, or is a name before a number, as 'chunk_size 16'.
_PIECE = re.compile(
    r"(?: \S*\d\s+(?=\S) | \S+\s+(?==(?!\S)) | (?:[a-z_]+|=)\s+(?=\d[\d,]*(?!\S)) )* \S+\s* | \s+", re.VERBOSE
)


def measure_width(text: Text) -> int:
    """Return the width of the longest line of a text, in columns of a terminal."""
    return max((cell_len(line) for line in text.plain.split("\n")), default=0)


def measure_pieces(text: Text) -> int:
    """Return the width of the longest part of a text that is never broken."""
    lines = text.plain.split("\n")
    return max((cell_len(piece.rstrip()) for line in lines for piece in split_pieces(line)), default=0)


def split_pieces(line: str) -> list[str]:
    """Return the parts of a line that are never broken, each with the space that follows it."""
    return _PIECE.findall(line)


def wrap_text(text: Text, *, width: int) -> list[Text]:
    """Return the lines of a text; a part longer than ``width`` is a line of its own."""
    lines: list[Text] = []
    for line in text.split("\n", allow_blank=True):
        parts = line.divide(_find_breaks(line.plain, width=width))
        if len(parts) > 1:
            # Elsewhere, space at the end of a number stands in place of a unit.
            for part in parts:
                part.rstrip()
        lines += parts
    return lines or [Text()]


def _find_breaks(line: str, *, width: int) -> list[int]:
    """Return where lines begin, but for the first one."""
    if cell_len(line) <= width:
        return []
    breaks: list[int] = []
    place = used = 0
    for piece in split_pieces(line):
        size = cell_len(piece)
        if used and used + cell_len(piece.rstrip()) > width:
            breaks.append(place)
            used = 0
        place += len(piece)
        used += size
    return breaks
