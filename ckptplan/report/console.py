"""Prints blocks on a console: tables drop columns until they fit, and a line below names the dropped ones.

No word and no number is broken. What other people wrote does not act on a terminal, and is no markup.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property
from textwrap import wrap

from rich.cells import cell_len
from rich.console import Console, RenderableType
from rich.measure import Measurement
from rich.table import Table as RichTable
from rich.text import Text

from ckptplan.report.blocks import Block, Field, Heading, Paragraph, Style, Table
from ckptplan.wording import Argument, escape_controls

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
#: A long text gets at least this width before columns are dropped. No column is dropped for words that are
#: longer than _LONGEST, such as addresses: they stick out.
_COMFORTABLE, _LONGEST = 20, 24
#: A width that no line has.
_UNLIMITED = 1_000_000
#: Indent of what follows a heading, and space between columns.
_INDENT, _GAP = 2, 2
#: What stands for characters that a console without Unicode lacks.
_PLAIN = str.maketrans({"\u2588": "#", "\u00b2": "2", "\u2264": "<="})
#: Lines do not break at the space in '34 ms' and 'chunk_size 16'. While lines are broken, a character that no
#: text has stands in its place.
_BESIDE_NUMBER = re.compile(r"(?<=\d) (?=\S)|(?<=[\w=]) (?=\d)|(?<=\w) (?== )")
_UNBROKEN = "\ufdd0"


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
        for part in _draw(block, width=width - indent):
            for line in _break_lines(part, width=width - indent, unicode=unicode):
                yield Text.assemble(" " * indent if line.plain else "", line)
        before = block


def print_blocks(blocks: Iterable[Block], console: Console | None = None) -> None:
    """Print blocks on a terminal: in colours, but not with NO_COLOR; other people's text is just text."""
    console = console or Console(highlight=False, markup=False, emoji=False, force_jupyter=False)
    for line in draw_blocks(blocks, width=console.width, unicode=console.encoding.startswith("utf")):
        console.print(line, soft_wrap=True)


def _break_lines(part: RenderableType, *, width: int, unicode: bool) -> Iterator[Text]:
    """Yield the lines of a text or table, without space at their ends."""
    console = Console(width=_UNLIMITED, force_jupyter=False)
    if isinstance(part, RichTable):
        # Its columns have the widths that they need, even if the console is narrower.
        width = max(width, Measurement.get(console, console.options, part).minimum)
    options = console.options.update(width=max(width, 1))
    for segments in console.render_lines(part, options, pad=False):
        line = Text()
        for text, style, _ in segments:
            shown = text.replace(_UNBROKEN, " ")
            line.append(shown if unicode else shown.translate(_PLAIN), style)
        line.rstrip()
        yield line


def _draw(block: Block, *, width: int) -> Iterator[RenderableType]:
    """Yield the parts of a block."""
    if isinstance(block, Table):
        yield from _draw_table(block, width=width)
    elif isinstance(block, Heading):
        yield _make_text(block.text, "strong")
    else:
        text = _make_text(block.whole, "" if block.head else block.style)
        text.stylize(_STYLES[block.style or "strong"], 0, len(escape_controls(block.head)))
        yield text


def _make_text(text: str, style: Style = "") -> Text:
    unbroken = _BESIDE_NUMBER.sub(_UNBROKEN, escape_controls(text))
    return Text(unbroken, style=_STYLES[style], overflow="fold")


@dataclass(frozen=True)
class _Column:
    field: Field
    title: Text
    cells: Sequence[Text]

    @cached_property
    def natural(self) -> int:
        """The width at which nothing is wrapped."""
        return max(map(_measure, (self.title, *self.cells)))

    @cached_property
    def least(self) -> int:
        """The width below which a word or a number would be broken, or a long text squeezed."""
        title = _measure_word(self.title)
        if self.field.wraps:
            longest_word = max(map(_measure_word, self.cells), default=0)
            return max(title, min(longest_word, _LONGEST), min(self.natural, _COMFORTABLE))
        return max(title, *map(_measure, self.cells), 0)


def _draw_table(table: Table, *, width: int) -> Iterator[RenderableType]:
    """Yield a table without the columns that have no room, and a line that names these."""
    rows = [
        [_make_text(text, cell.style) for text, cell in zip(texts, row, strict=True)]
        for texts, row in zip(table.texts, table.rows, strict=True)
    ]
    columns = [
        _Column(field, _make_text(field.heading, "strong"), [row[place] for row in rows])
        for place, field in enumerate(table.fields)
    ]
    kept = list(columns)
    for column in sorted(columns, key=lambda column: column.field.priority, reverse=True):
        if _sum_widths(kept) <= width or not column.field.priority:
            break
        kept.remove(column)
    drawn = RichTable(box=None, pad_edge=False, padding=(0, _GAP, 0, 0), show_header=bool(table.headings))
    wrapped = []
    for column, size in zip(kept, _widen(kept, spare=width - _sum_widths(kept)), strict=True):
        cells = [_wrap(text, size) for text in column.cells] if column.field.wraps else column.cells
        drawn.add_column(
            column.title,
            width=max(size, *map(_measure, cells), 0),
            justify="right" if column.field.is_flush_right else "left",
        )
        wrapped.append(cells)
    for row in zip(*wrapped, strict=True):
        drawn.add_row(*row)
    yield drawn
    if len(kept) < len(columns):
        names = ", ".join(column.field.heading or column.field.name for column in columns if column not in kept)
        every = f"{_sum_widths(columns)} columns or {Argument('format', 'csv')} show all."
        yield _make_text("")
        yield _make_text(f"Left out in {width} columns: {names}; {every}", "faint")


def _sum_widths(columns: Sequence[_Column]) -> int:
    return sum(column.least for column in columns) + _GAP * (len(columns) - 1)


def _widen(columns: Sequence[_Column], *, spare: int) -> list[int]:
    """Return widths with the spare room given to the columns that need it most."""
    widths = [column.least for column in columns]
    lacks = [column.natural - column.least for column in columns]
    for _ in range(min(spare, sum(lacks))):
        place = lacks.index(max(lacks))
        widths[place] += 1
        lacks[place] -= 1
    return widths


def _wrap(text: Text, size: int) -> Text:
    """Return a text with line ends between words, so that its lines have a size unless a word is longer."""
    paragraphs = text.plain.split("\n")
    lines = (wrap(line, max(size, 1), break_long_words=False, break_on_hyphens=False) for line in paragraphs)
    return Text("\n".join(line for found in lines for line in found or [""]), style=text.style)


def _measure(text: Text) -> int:
    """Return the width of the longest line of a text."""
    return max(map(cell_len, text.plain.split("\n")))


def _measure_word(text: Text) -> int:
    """Return the width of the longest part of a text that is not broken."""
    return max(map(cell_len, text.plain.split()), default=0)
