"""Prints blocks on a console: tables drop columns until they fit, and a line below names the dropped ones.

Words and numbers are never broken: a word that is wider than its column sticks out. Text from files is printed
without markup, and its control characters are escaped.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Literal

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
#: A long text gets at least this width before columns are dropped.
_COMFORTABLE = 20
#: A console wider than any line, to measure texts and to break lines at a given width.
_CONSOLE = Console(width=1_000_000, force_jupyter=False)
#: Indent of the block after a heading, and space between columns.
_INDENT, _GAP = 2, 2
#: Replacements of characters that a console without Unicode lacks.
_PLAIN = str.maketrans({"\u2588": "#", "\u00b2": "2", "\u2264": "<="})
#: Lines do not break at the space in '34 ms' and 'chunk_size 16'. While lines are broken, a character that
#: occurs in no text replaces this space.
_BESIDE_NUMBER = re.compile(r"(?<=\d) (?=\S)|(?<=[\w=]) (?=\d)|(?<=\w) (?== )")
_UNBROKEN = "\ufdd0"
#: A longer word, as a link, may stick out of its column if the table has no room. While lines are broken, tag
#: characters, which have no width and occur in no text, replace the characters beyond this length.
_LONG_WORD = 24
_TAGS = {number: 0xE0000 + number for number in range(0x21, 0x7F)}
_UNTAGGED = {tag: number for number, tag in _TAGS.items()}


def draw_blocks(blocks: Iterable[Block], *, width: int, unicode: bool = True) -> Iterator[Text]:
    """Yield the lines of blocks. An empty line separates two blocks, unless both are paragraphs."""
    previous: Block | None = None
    for block in blocks:
        runs_on = isinstance(previous, Heading) or (
            isinstance(previous, Paragraph) and isinstance(block, Paragraph)
        )
        if previous is not None and not runs_on:
            yield Text()
        indent = _INDENT if isinstance(previous, Heading) else 0
        for part in _draw(block, width=width - indent):
            for line in _break_lines(part, width=width - indent, unicode=unicode):
                yield Text.assemble(" " * indent if line.plain else "", line)
        previous = block


def print_blocks(blocks: Iterable[Block], console: Console | None = None) -> None:
    """Print blocks on a terminal, in colours unless NO_COLOR is set. Text is never taken for markup."""
    console = console or Console(highlight=False, markup=False, emoji=False, force_jupyter=False)
    for line in draw_blocks(blocks, width=console.width, unicode=console.encoding.startswith("utf")):
        console.print(line, soft_wrap=True)


def _break_lines(part: RenderableType, *, width: int, unicode: bool) -> Iterator[Text]:
    """Yield the lines of a text or table, without space at their ends."""
    if isinstance(part, RichTable):
        # Columns keep the widths that they need, even if the console is narrower.
        width = max(width, Measurement.get(_CONSOLE, _CONSOLE.options, part).minimum)
    options = _CONSOLE.options.update(width=max(width, 1))
    for segments in _CONSOLE.render_lines(part, options, pad=False):
        line = Text()
        for text, style, _ in segments:
            shown = text.replace(_UNBROKEN, " ").translate(_UNTAGGED)
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


def _draw_table(table: Table, *, width: int) -> Iterator[RenderableType]:
    """Yield a table without the columns that have no room, and a line that names the dropped columns."""
    texts, columns = table.texts, {}
    for place, field in enumerate(table.fields):
        lines = zip(texts, table.rows, strict=True)
        cells = [_make_text(line[place], row[place].style) for line, row in lines]
        columns[field] = [_make_text(field.heading, "strong"), *cells]
    widths = _measure_all(columns)
    if _add_widths(column.minimum for column in widths.values()) > width:
        columns = {field: [_shorten_words(text) for text in texts] for field, texts in columns.items()}
        widths = _measure_all(columns)
    shown = list(columns)
    for field in sorted(columns, key=lambda field: field.priority, reverse=True):
        if not field.priority or _add_widths(widths[column].minimum for column in shown) <= width:
            break
        shown.remove(field)
    spare = max(0, width - _add_widths(widths[column].minimum for column in shown))
    share = min(1.0, spare / max(1, sum(widths[column].span for column in shown)))
    drawn = RichTable(box=None, pad_edge=False, padding=(0, _GAP, 0, 0), show_header=bool(table.headings))
    for field in shown:
        size = widths[field].minimum + int(share * widths[field].span)
        side: Literal["left", "right"] = "right" if field.is_flush_right else "left"
        drawn.add_column(columns[field][0], width=size, justify=side)
    for line in zip(*(columns[field][1:] for field in shown), strict=True):
        drawn.add_row(*line)
    yield drawn
    if len(shown) < len(columns):
        names = ", ".join(field.heading or field.name for field in columns if field not in shown)
        every = _add_widths(width.minimum for width in widths.values())
        yield _make_text("")
        hint = f"{every} columns or {Argument('format', 'csv')} show all."
        yield _make_text(f"Left out in {width} columns: {names}; {hint}", "faint")


def _shorten_words(text: Text) -> Text:
    """Return a text whose words have at most _LONG_WORD visible characters. A longer word gets its own line."""
    shorter = re.sub(
        rf" ?(?<!\S)(\S{{{_LONG_WORD}}})(\S+) ?",
        lambda word: f"\n{word[1]}{word[2].translate(_TAGS)}\n",
        text.plain,
    )
    return Text(shorter.strip("\n"), style=text.style, overflow=text.overflow)


def _measure_all(columns: Mapping[Field, Sequence[Text]]) -> dict[Field, Measurement]:
    return {field: _measure(texts, wraps=field.wraps) for field, texts in columns.items()}


def _measure(texts: Sequence[Text], *, wraps: bool) -> Measurement:
    """Return the width at which no word of a column is broken, and the width at which no line is broken.

    The first text is the heading, whose words may stand below each other.
    """
    heading, *cells = (Measurement.get(_CONSOLE, _CONSOLE.options, text) for text in texts)
    natural = max((cell.maximum for cell in cells), default=0)
    if not wraps:
        least = max(heading.minimum, natural)
        return Measurement(least, max(least, heading.maximum))
    longest_word = max((cell.minimum for cell in cells), default=0)
    least = max(heading.minimum, longest_word, min(natural, _COMFORTABLE))
    return Measurement(least, max(least, natural, heading.maximum))


def _add_widths(widths: Iterable[int]) -> int:
    widths = list(widths)
    return sum(widths) + _GAP * (len(widths) - 1)
