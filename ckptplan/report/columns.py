"""Tables that fit the console: columns are described once, their cells are measured, and words stay whole.

Where the width is scarce, a table becomes narrower in this order: short titles, short cells, less space between
columns, parameters on several lines, long texts below their row. Only then columns are left out, and a line
below the table names them.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Literal, TypeAlias

from rich.console import Console, ConsoleOptions, RenderResult
from rich.text import Text

from ckptplan.report.wrapping import measure_pieces, measure_width, wrap_text
from ckptplan.wording import Argument, Wording, escape_controls

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
            rest = wording(Argument("format", "csv"))
            console.print()
            enough = needed + self.indent
            hint = f"Left out in {console.width} columns: {names}; {enough} columns or {rest} show all."
            console.print(wrap_lines(hint, width=console.width, style="dim"), soft_wrap=True)


@dataclass(frozen=True, kw_only=True, eq=False)
class PrintedTable:
    """A table as a console prints it, which knows its cells: a page makes a table of its own from them."""

    table: FittedTable
    text: Text

    def __rich_console__(self, console: Console, options: ConsoleOptions) -> RenderResult:
        yield self.text


def wrap_lines(text: str | Text, *, width: int, style: str = "") -> Text:
    """Return a text wrapped between words; numbers keep their units, and words that are longer stay whole."""
    one = text if isinstance(text, Text) else Text(text, style=style)
    return Text("\n").join(wrap_text(one, width=width))


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
