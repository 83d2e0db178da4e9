"""What a result says to people: headings, paragraphs and tables, which a console and a page render alike.

A page has charts and schedules besides, in sections.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any, ClassVar, Literal, TypeAlias

from ckptplan.report.numbers import align_numbers, has_unit

if TYPE_CHECKING:
    from ckptplan.model.plan import Plan

#: How a text stands out: its meaning, not its look.
Style: TypeAlias = Literal["", "strong", "faint", "best", "good", "bad", "warning", "caution"]


@dataclass(frozen=True)
class Field:
    """A quantity of records, and the column of a table that shows it.

    ``name`` is its key in records, documents and rows; the unit at its end says how numbers are written.
    ``title`` heads the column in place of the name. A table that is too wide drops columns: the highest
    ``priority`` first, those of priority 0 never. ``wraps`` allows cells of several lines, for long texts.
    """

    name: str
    title: str | None = None
    priority: int = 0
    right: bool = False
    wraps: bool = False

    def ranked(self, priority: int) -> Field:
        """Return the same field with another priority."""
        return replace(self, priority=priority)

    @property
    def heading(self) -> str:
        """The title of the column."""
        return self.name if self.title is None else self.title

    @property
    def is_flush_right(self) -> bool:
        """Whether the cells end at the same place, as numbers do."""
        return self.right or has_unit(self.name)


@dataclass(frozen=True)
class Cell:
    """A value that stands out; a number is formatted together with the others of its column."""

    value: str | float | None
    style: Style = ""


#: Names of fields and their values; absent and None are empty cells.
Record: TypeAlias = Mapping[str, Any]


@dataclass(frozen=True)
class Heading:
    """A heading within a result."""

    kind: ClassVar[str] = "heading"
    text: str


@dataclass(frozen=True)
class Paragraph:
    """A text whose line ends are kept, after a ``head`` that stands out; without a head, all of it does."""

    kind: ClassVar[str] = "paragraph"
    text: str
    head: str = ""
    style: Style = ""

    @property
    def whole(self) -> str:
        """The head and the text."""
        return f"{self.head}{self.text}"


@dataclass(frozen=True)
class Table:
    """A table with a line for each record; without headings, the first cell of a line is its heading."""

    kind: ClassVar[str] = "table"
    fields: tuple[Field, ...]
    rows: tuple[tuple[Cell, ...], ...]

    @classmethod
    def of(cls, fields: Iterable[Field], records: Iterable[Record]) -> Table:
        """Return the table that shows fields of records."""
        fields = tuple(fields)
        rows = (tuple(_as_cell(record.get(field.name)) for field in fields) for record in records)
        return cls(fields, tuple(rows))

    @property
    def headings(self) -> tuple[str, ...]:
        """The title of each column; empty if no column has a title."""
        titles = tuple(field.heading for field in self.fields)
        return titles if any(titles) else ()

    @property
    def texts(self) -> list[tuple[str, ...]]:
        """The text of each cell, row by row; the numbers of a column are formatted together."""
        columns = [
            _write(field, [row[place].value for row in self.rows]) for place, field in enumerate(self.fields)
        ]
        return list(zip(*columns, strict=True))


Block: TypeAlias = Heading | Paragraph | Table


@dataclass(frozen=True)
class Chart:
    """A picture of a page, with a caption; ``draw`` returns the figure when the page is rendered."""

    kind: ClassVar[str] = "chart"
    name: str
    title: str
    caption: str
    draw: Callable[[], Any]


@dataclass(frozen=True)
class Section:
    """A part of a page, with a heading of its own: blocks and charts."""

    name: str
    title: str
    blocks: Iterable[object]


@dataclass(frozen=True, kw_only=True)
class Schedules:
    """The part of a page where a reader chooses a plan by its name and sees its schedule.

    ``own`` is the plan that the page is about, listed before all others and drawn more finely; ``first`` is the
    place of the plan that is shown at first.
    """

    title: str = "The chosen plan"
    own: Plan | None = None
    plans: Sequence[tuple[str, Plan]] = ()
    first: int = 0


def _as_cell(content: str | float | Cell | None) -> Cell:
    return content if isinstance(content, Cell) else Cell(content)


def _write(field: Field, values: Sequence[str | float | None]) -> list[str]:
    numbers = [value for value in values if isinstance(value, (int, float))]
    written = iter(align_numbers(field.name, numbers))
    return [next(written) if isinstance(value, (int, float)) else value or "" for value in values]


def make_facts(facts: Mapping[str, str | float | Cell | None], style: Style = "") -> Table:
    """Return a table of names, in a style, with a text for each; names without a text are left out."""
    fields = (Field("fact", title=""), Field("text", title="", wraps=True))
    return Table.of(
        fields, ({"fact": Cell(name, style=style), "text": text} for name, text in facts.items() if text)
    )


def make_faint(record: Record) -> Record:
    """Return a record whose cells are faint."""
    return {name: Cell(_as_cell(content).value, style="faint") for name, content in record.items()}
