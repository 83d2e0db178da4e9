"""What a result prints for people, as parts of a page: headings, paragraphs and tables.

Every result prints itself on a console. A page has the same words and numbers, because it collects them there.
"""

from __future__ import annotations

import io
import re
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import ClassVar, TypeAlias

from rich.console import Console, ConsoleRenderable, RenderHook
from rich.padding import Padding
from rich.style import Style
from rich.table import Table
from rich.text import Text

from ckptplan.report.columns import FittedTable, PrintedTable

#: Columns of the console: so many that no line is wrapped.
_WIDTH = 1_000_000
#: A bar of characters at the beginning of a cell, which says nothing that the numbers behind it do not say.
_BAR = re.compile("^[█░]+ *")


@dataclass(frozen=True, kw_only=True)
class Heading:
    """A heading within a section."""

    kind: ClassVar[str] = "heading"
    text: str


@dataclass(frozen=True, kw_only=True)
class Paragraph:
    """A paragraph, whose line ends are kept."""

    kind: ClassVar[str] = "paragraph"
    text: str
    #: What it is besides plain text: 'warning', or '' for nothing.
    role: str = ""


@dataclass(frozen=True, kw_only=True)
class TableBlock:
    """A table: its headings (none: the first cell of a row is its heading), and its cells as text."""

    kind: ClassVar[str] = "table"
    headings: tuple[str, ...]
    rows: tuple[tuple[str, ...], ...]
    #: Which columns hold numbers, and so are aligned to the right.
    numeric: tuple[bool, ...]
    #: What the table holds, for readers that do not see the page.
    caption: str = ""


Block: TypeAlias = Heading | Paragraph | TableBlock


def collect_blocks(table: Callable[[Console], None]) -> tuple[Block, ...]:
    """Return what ``table`` prints on a console, as blocks in the same order."""
    collector = _Collector()
    console = Console(
        file=io.StringIO(), width=_WIDTH, highlight=False, markup=False, emoji=False, force_jupyter=False
    )
    console.push_render_hook(collector)
    table(console)
    return tuple(collector.blocks)


class _Collector(RenderHook):
    """Takes what a console would print, and lets it print nothing."""

    def __init__(self) -> None:
        self.blocks: list[Block] = []

    def process_renderables(self, renderables: list[ConsoleRenderable]) -> list[ConsoleRenderable]:
        """Keep what is printed."""
        for renderable in renderables:
            self.blocks += _blocks_of(renderable)
        return []


def _blocks_of(renderable: object) -> Iterator[Block]:
    if isinstance(renderable, Padding):
        yield from _blocks_of(renderable.renderable)
    elif isinstance(renderable, PrintedTable):
        yield _block_of_fitted(renderable.table)
    elif isinstance(renderable, Table):
        yield from _blocks_of_table(renderable)
    elif isinstance(renderable, Text) and renderable.plain.strip():
        yield _block_of_text(renderable)


def _block_of_text(text: Text) -> Block:
    plain = "\n".join(line.strip() for line in text.plain.strip().splitlines())
    # A console joins texts, which makes the style of one that is printed alone a span.
    styles = [text.style, *(span.style for span in text.spans if span.end - span.start >= len(text.plain))]
    if any(_is_bold(style) for style in styles):
        return Heading(text=plain)
    return Paragraph(text=plain, role="warning" if plain.startswith("warning:") else "")


def _is_bold(style: str | Style) -> bool:
    return bool((Style.parse(style) if isinstance(style, str) else style).bold)


def _blocks_of_table(table: Table) -> Iterator[Block]:
    if table.title is not None:
        yield Heading(text=_plain(table.title))
    columns = table.columns
    yield TableBlock(
        headings=tuple(_plain(column.header) for column in columns) if table.show_header else (),
        rows=tuple(zip(*([_plain(cell) for cell in column.cells] for column in columns), strict=True)),
        numeric=tuple(column.justify == "right" for column in columns),
    )


def _block_of_fitted(table: FittedTable) -> TableBlock:
    titles = table.titles
    return TableBlock(
        headings=titles if any(titles) else (),
        rows=tuple(tuple(_BAR.sub("", cell) for cell in row) for row in table.rows),
        numeric=tuple(column.is_flush_right for column in table.columns),
    )


def _plain(cell: object) -> str:
    text = cell.plain if isinstance(cell, Text) else str(cell)
    return _BAR.sub("", text)
