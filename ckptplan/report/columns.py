"""Tables that fit the console: columns are described once, their cells are measured, and words stay whole.

Where the width is scarce, a table becomes narrower in this order: short titles, short cells, less space between
columns, parameters on several lines, long texts below their row. Only then columns are left out, and a line
below the table names them. Numbers of a column have the same unit and decimals where they are of similar size,
and stay on a line with their names and units. What other people wrote does not act on a terminal.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import IO, Any, Literal, TypeAlias

from rich.cells import cell_len
from rich.console import Console, ConsoleOptions, ConsoleRenderable, RenderHook, RenderResult
from rich.measure import Measurement
from rich.segment import Segment
from rich.text import Text

from ckptplan.units import format_bytes, format_count, format_percent, format_rate, format_seconds
from ckptplan.wording import Argument, Phrase, Wording, escape_controls, put_into_words

#: Formats all numbers of a column together, so that they have the same unit and decimals.
Form: TypeAlias = Callable[[Sequence[float]], Sequence[str]]

#: A long text is not squeezed below this width while anything else can be made narrower.
_COMFORTABLE = 28
#: Indent of long texts below their row.
_INDENT = 4


@dataclass(frozen=True, kw_only=True)
class TableColumn:
    """One column of a table.

    ``short`` is the title where width is scarce; it may have several lines. ``name`` is what the hint calls a
    column without a title. Columns of priority 0 always stay; of the others the highest number goes first.
    Cells with ``wraps`` may take several lines: "early" for long texts, "late" for cells that are easier to
    read on one line. ``form`` formats the cells that are numbers, all together; such columns are flush right.
    """

    title: str = ""
    short: str | None = None
    name: str | None = None
    priority: int = 0
    right: bool = False
    wraps: Literal["no", "late", "early"] = "no"
    form: Form | None = None

    def ranked(self, priority: int, **other: Any) -> TableColumn:
        """Return the same column with a priority, and with what else is different."""
        return replace(self, priority=priority, **other)

    @property
    def called(self) -> str:
        """The name in the hint."""
        return self.name or self.title

    @property
    def is_flush_right(self) -> bool:
        """Whether cells end at the same place."""
        return self.right or self.form is not None


@dataclass(frozen=True, kw_only=True)
class Cell:
    """A cell with a style, or with a short form for narrow tables; a number is formatted with its column."""

    value: str | float | None
    short: str | None = None
    style: str = ""


#: What a row is made of. None is an empty cell.
Content: TypeAlias = str | float | Text | Cell | None


@dataclass(frozen=True, kw_only=True)
class _Layout:
    """How far a table is narrowed."""

    short_titles: bool = False
    short_cells: bool = False
    late: bool = False
    below: bool = False
    gap: int = 2


_LAYOUTS = (
    _Layout(),
    _Layout(short_titles=True),
    _Layout(short_titles=True, short_cells=True),
    _Layout(short_titles=True, short_cells=True, gap=1),
    _Layout(short_titles=True, short_cells=True, gap=1, late=True),
    _Layout(short_titles=True, short_cells=True, late=True, below=True),
    _Layout(short_titles=True, short_cells=True, late=True, below=True, gap=1),
)


@dataclass(frozen=True, kw_only=True)
class _Fitted:
    """A layout that was chosen, with the columns that it shows side by side and their widths."""

    layout: _Layout
    shown: tuple[int, ...]
    widths: tuple[int, ...]


@dataclass(frozen=True, kw_only=True)
class _TableRow:
    contents: tuple[Content, ...]
    style: str


@dataclass(frozen=True, eq=False)
class FittedTable:
    """A table of columns, printed at the width of a console: ``print_on``."""

    columns: tuple[TableColumn, ...]
    indent: int = 0
    _rows: list[_TableRow] = field(default_factory=list)

    def add_row(self, *contents: Content, style: str = "") -> None:
        """Add a row; cells that are left out at its end are empty. ``style`` is that of all its cells."""
        missing = (None,) * (len(self.columns) - len(contents))
        self._rows.append(_TableRow(contents=(*contents, *missing), style=style))

    @property
    def titles(self) -> tuple[str, ...]:
        """The whole title of each column."""
        return tuple(escape_controls(column.title) for column in self.columns)

    @property
    def rows(self) -> tuple[tuple[str, ...], ...]:
        """The whole text of each cell, row by row."""
        made = _Cells(self.columns, self._rows)
        return tuple(tuple(whole.plain for whole, _ in row) for row in made.rows)

    def print_on(self, console: Console, *, wording: Wording = str) -> None:
        """Print the table within the console's width, and name the columns that have no room there."""
        made = _Cells(self.columns, self._rows)
        fitted, dropped, needed = _fit(self.columns, made, width=console.width - self.indent)
        lines = _draw(self, made, fitted, width=console.width)
        if lines:
            console.print(PrintedTable(table=self, text=Text("\n").join(lines)), soft_wrap=True)
        if dropped:
            names = ", ".join(self.columns[index].called for index in dropped)
            hint = f"Left out in {console.width} columns: {names}; {needed + self.indent} columns or "
            sheet = Sheet(console, wording)
            sheet.gap()
            sheet.say(Phrase(hint, Argument("format", "csv"), " show all."), style="dim")


@dataclass(frozen=True, kw_only=True, eq=False)
class PrintedTable:
    """A table as a console prints it, which knows its cells: a page makes a table of its own from them."""

    table: FittedTable
    text: Text

    def __rich_console__(self, console: Console, options: ConsoleOptions) -> RenderResult:
        yield self.text


class _Cells:
    """The texts of all cells, whole and short; numbers of a column are formatted together."""

    def __init__(self, columns: Sequence[TableColumn], rows: Sequence[_TableRow]) -> None:
        self.titles = tuple(
            (_styled(one.title, "bold"), _styled(one.short or one.title, "bold")) for one in columns
        )
        by_column = [_make_texts(column, rows, index) for index, column in enumerate(columns)]
        self.rows = [tuple(cells[place] for cells in by_column) for place in range(len(rows))]

    def title(self, column: int, layout: _Layout) -> Text:
        return self.titles[column][layout.short_titles]

    def cell(self, row: int, column: int, layout: _Layout) -> Text:
        return self.rows[row][column][layout.short_cells]

    def texts(self, column: int, layout: _Layout) -> list[Text]:
        return [row[column][layout.short_cells] for row in self.rows]


def _styled(text: str, style: str) -> Text:
    return Text(escape_controls(text), style=style)


def _make_texts(column: TableColumn, rows: Sequence[_TableRow], index: int) -> list[tuple[Text, Text]]:
    """Return each cell of a column, whole and short."""
    cells = [_as_cell(row.contents[index]) for row in rows]
    numbers = [cell.value for cell in cells if isinstance(cell, Cell) and isinstance(cell.value, (int, float))]
    formatted = iter(column.form(numbers) if column.form is not None and numbers else map(str, numbers))
    texts = []
    for cell, row in zip(cells, rows, strict=True):
        if isinstance(cell, Text):
            texts.append((cell, cell))
            continue
        style = cell.style or row.style
        whole = next(formatted) if isinstance(cell.value, (int, float)) else cell.value or ""
        texts.append((_styled(whole, style), _styled(whole if cell.short is None else cell.short, style)))
    return texts


def _as_cell(content: Content) -> Cell | Text:
    return content if isinstance(content, (Cell, Text)) else Cell(value=content)


def _fit(columns: Sequence[TableColumn], made: _Cells, *, width: int) -> tuple[_Fitted, list[int], int]:
    """Return the widest layout that fits, the columns left out, and the width that all of them need."""
    shown = list(range(len(columns)))
    dropped: list[int] = []
    needed = 0
    while True:
        for layout in _LAYOUTS:
            beside = tuple(i for i in shown if not (layout.below and columns[i].wraps == "early"))
            least = [_least_width(columns[i], made, i, layout) for i in beside]
            total = sum(least) + layout.gap * max(0, len(beside) - 1)
            if total <= width:
                widths = _widen(made, beside, least, layout=layout, spare=width - total)
                return _Fitted(layout=layout, shown=beside, widths=widths), sorted(dropped), needed
        needed = needed or total
        least_needed = [i for i in shown if columns[i].priority]
        if not least_needed:
            # Nothing more to leave out: the terminal breaks the lines.
            return _Fitted(layout=layout, shown=beside, widths=tuple(least)), sorted(dropped), needed
        last = max(least_needed, key=lambda i: (columns[i].priority, i))
        shown.remove(last)
        dropped.append(last)


def _natural_width(made: _Cells, index: int, layout: _Layout) -> int:
    return max(measure_width(text) for text in (made.title(index, layout), *made.texts(index, layout)))


def _least_width(column: TableColumn, made: _Cells, index: int, layout: _Layout) -> int:
    natural = _natural_width(made, index, layout)
    if column.wraps == "no" or (column.wraps == "late" and not layout.late):
        return natural
    longest = max(
        measure_width(made.title(index, layout)),
        *(measure_pieces(text) for text in made.texts(index, layout)),
        0,
    )
    return max(longest, min(natural, _COMFORTABLE)) if column.wraps == "early" else longest


def _widen(
    made: _Cells,
    shown: Sequence[int],
    least: Sequence[int],
    *,
    layout: _Layout,
    spare: int,
) -> tuple[int, ...]:
    """Return widths with the spare room given to the cells that need it most."""
    widths = list(least)
    wanted = [_natural_width(made, index, layout) for index in shown]
    while spare > 0 and widths != wanted:
        most = max(range(len(widths)), key=lambda place: wanted[place] - widths[place])
        widths[most] += 1
        spare -= 1
    return tuple(widths)


def _draw(table: FittedTable, made: _Cells, fitted: _Fitted, *, width: int) -> list[Text]:
    """Return the lines of a table."""
    lines: list[Text] = []
    titles = [made.title(index, fitted.layout) for index in fitted.shown]
    if any(title.plain for title in titles):
        lines += _draw_row(table, fitted, titles, at_bottom=True)
    below = [
        index for index, column in enumerate(table.columns) if fitted.layout.below and column.wraps == "early"
    ]
    for row in range(len(made.rows)):
        lines += _draw_row(table, fitted, [made.cell(row, index, fitted.layout) for index in fitted.shown])
        for index in below:
            inset = table.indent + _INDENT
            text = made.cell(row, index, fitted.layout)
            lines += [
                Text.assemble(" " * inset, line) for line in wrap_text(text, width=width - inset) if line.plain
            ]
    return lines


def _draw_row(
    table: FittedTable, fitted: _Fitted, cells: Sequence[Text], *, at_bottom: bool = False
) -> list[Text]:
    """Return the lines of one row; titles stand at the bottom of theirs."""
    wrapped = [wrap_text(cell, width=width) for cell, width in zip(cells, fitted.widths, strict=True)]
    height = max(map(len, wrapped), default=0)
    lines = []
    for place in range(height):
        line = Text(" " * table.indent)
        for number, (index, parts) in enumerate(zip(fitted.shown, wrapped, strict=True)):
            at = place - (height - len(parts)) if at_bottom else place
            part = parts[at] if 0 <= at < len(parts) else Text()
            blank = " " * max(0, fitted.widths[number] - measure_width(part))
            line.append(" " * fitted.layout.gap if number else "")
            for piece in (blank, part) if table.columns[index].is_flush_right else (part, blank):
                line.append(piece)
        line.rstrip()
        lines.append(line)
    return lines


@dataclass(frozen=True, eq=False)
class Sheet:
    """A console on which a result prints paragraphs and tables, with arguments in the words of who asks."""

    console: Console
    wording: Wording = str

    def gap(self) -> None:
        """Print an empty line."""
        self.console.print()

    def say(self, text: str | Text, *, style: str = "", indent: int = 0) -> None:
        """Print a paragraph, whose lines break between words."""
        words = put_into_words(text, self.wording) if isinstance(text, str) else text
        lines = wrap_lines(words, width=self.console.width - indent, style=style)
        if indent:
            lines = Text("\n").join(Text.assemble(" " * indent, line) for line in lines.split("\n"))
        self.console.print(lines, soft_wrap=True)

    def show(self, table: FittedTable) -> None:
        """Print a table."""
        table.print_on(self.console, wording=self.wording)


def make_console(file: IO[str], *, width: int | None = None) -> Console:
    """Return a console: colours on a terminal only, and not with NO_COLOR; other people's text is just text."""
    console = Console(file=file, width=width, highlight=False, markup=False, emoji=False, force_jupyter=False)
    console.push_render_hook(HarmlessText())
    return console


class HarmlessText(RenderHook):
    """Makes a console show every text as ``escape_controls`` returns it; its own colours remain."""

    def process_renderables(self, renderables: list[ConsoleRenderable]) -> list[ConsoleRenderable]:
        """Return what a console prints instead."""
        return [_Harmless(one) for one in renderables]


@dataclass(frozen=True)
class _Harmless:
    inner: ConsoleRenderable

    def __rich_console__(self, console: Console, options: ConsoleOptions) -> RenderResult:
        segments: Iterable[Segment] = console.render(self.inner, options)
        for text, style, control in segments:
            yield Segment(text if control else escape_controls(text), style, control)

    def __rich_measure__(self, console: Console, options: ConsoleOptions) -> Measurement:
        return Measurement.get(console, options, self.inner)


#: Numbers of a column have one unit if the largest is less than this many times the smallest.
_SIMILAR = 1000.0
#: No number has more digits before its point than this one.
_LARGE = 1e6


def align_seconds(values: Sequence[float]) -> list[str]:
    """Format times: '33.40 ms' below '32.34 ms'."""
    return _align(values, format_seconds, {"s": 1.0, "ms": 1e-3, "us": 1e-6, "ns": 1e-9})


def align_bytes(values: Sequence[float]) -> list[str]:
    """Format sizes in binary units: '624.0 KiB' below '638.1 KiB'."""
    return _align(values, format_bytes, {unit: 1024.0**i for i, unit in enumerate(_BINARY)})


def align_rates(values: Sequence[float]) -> list[str]:
    """Format transfer rates in decimal units: '20.0 GB/s' below '63.5 GB/s'."""
    return _align(values, format_rate, {f"{unit}/s": 1000.0**i for i, unit in enumerate(_DECIMAL)})


def align_percents(values: Sequence[float]) -> list[str]:
    """Format shares as signed percentages."""
    return _pad_units([format_percent(value) for value in values])


def align_counts(values: Sequence[float]) -> list[str]:
    """Format counts: '1,472'."""
    return [format_count(int(value)) for value in values]


def align_ratios(values: Sequence[float]) -> list[str]:
    """Format ratios with three decimals: '1.116'."""
    return [f"{value:.3f}" for value in values]


_BINARY = ("B", "KiB", "MiB", "GiB", "TiB", "PiB", "EiB")
_DECIMAL = ("B", "kB", "MB", "GB", "TB", "PB")


def _align(
    values: Sequence[float], format_one: Callable[[float], str], units: Mapping[str, float]
) -> list[str]:
    """Return the numbers in the unit of the smallest if all are similar, else each in its own."""
    sizes = [abs(value) for value in values if value]
    unit = format_one(min(sizes, default=0.0)).rpartition(" ")[2]
    if not sizes or max(sizes) >= min(_SIMILAR * min(sizes), _LARGE * units[unit]):
        return _pad_units([format_one(value) for value in values])
    decimals = max(_count_decimals(value / units[unit]) for value in values)
    return [f"{value / units[unit]:,.{decimals}f} {unit}" for value in values]


def _count_decimals(value: float) -> int:
    """Return the decimals that four significant digits of a number need."""
    return len(f"{float(f'{value:.4g}'):f}".rstrip("0").partition(".")[2])


def _pad_units(texts: Sequence[str]) -> list[str]:
    """Return texts with short units padded, so that numbers flush right end at the same place."""
    units = [text.rpartition(" ")[2] if " " in text else "" for text in texts]
    widest = max(map(len, units), default=0)
    return [f"{text}{' ' * (widest - len(unit))}" for text, unit in zip(texts, units, strict=True)]


#: A word with the space that follows it.
_WORD = re.compile(r"\S+\s*|\s+")
#: What stays on one line with a number after it: the name of a parameter, and a sign of equality.
_NAME = re.compile(r"[a-z_]+|=")
_NUMBER = re.compile(r"\d[\d,]*")


def measure_width(text: Text) -> int:
    """Return the width of the longest line of a text, in columns of a terminal."""
    return max((cell_len(line) for line in text.plain.split("\n")), default=0)


def measure_pieces(text: Text) -> int:
    """Return the width of the longest part of a text that is never broken."""
    lines = text.plain.split("\n")
    return max((cell_len(piece.rstrip()) for line in lines for piece in split_pieces(line)), default=0)


def split_pieces(line: str) -> list[str]:
    """Return the parts of a line that are never broken, each with the space that follows it.

    They are words, but a number stays with its unit or with what it counts, and 'chunk_size 16' and 'T = 5'
    stay whole.
    """
    pieces: list[str] = []
    last = ""
    for word in _WORD.findall(line):
        if pieces and _belong_together(last, word.rstrip()):
            pieces[-1] += word
        else:
            pieces.append(word)
        last = word.rstrip()
    return pieces


def _belong_together(before: str, word: str) -> bool:
    if not before or not word:
        return False
    named = word == "=" or (_NAME.fullmatch(before) and _NUMBER.fullmatch(word))
    return before[-1].isdigit() or bool(named)


def wrap_lines(text: str | Text, *, width: int, style: str = "") -> Text:
    """Return a text wrapped between words; numbers keep their units, and words that are longer stay whole."""
    one = text if isinstance(text, Text) else Text(text, style=style)
    return Text("\n").join(wrap_text(one, width=width))


def wrap_text(text: Text, *, width: int) -> list[Text]:
    """Return the lines of a text; a part longer than ``width`` is a line of its own."""
    lines: list[Text] = []
    for line in text.split("\n", allow_blank=True):
        breaks = _find_breaks(line.plain, width=width)
        if not breaks:
            # Space at the end of a number stands in place of a unit.
            lines.append(line)
            continue
        for part in line.divide(breaks):
            part.rstrip()
            lines.append(part)
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
