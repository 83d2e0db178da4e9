"""The blocks of a result's description: headings, paragraphs and tables, for consoles and pages."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, ClassVar, Literal, TypeAlias

from ckptplan.report.numbers import align_numbers, has_unit

#: The meaning of a highlighted text. The console and pages choose its look.
Style: TypeAlias = Literal["", "strong", "faint", "best", "good", "bad", "warning", "caution"]


@dataclass(frozen=True)
class Field:
    """A quantity of items, and the column of a table that shows it.

    ``name`` is its key in documents and rows; the unit at the end of the name decides how numbers are written.
    A cell is the result of ``show`` for an item, by default the item's member or attribute of this name.
    ``title`` heads the column in place of the name. If a table is too wide, it drops the column with the
    highest ``priority`` first, and never one of priority 0. ``wraps`` allows cells of several lines.
    """

    name: str
    title: str | None = None
    priority: int = 0
    right: bool = False
    wraps: bool = False
    show: Callable[[Any], Content] | None = field(default=None, compare=False)

    def ranked(self, priority: int) -> Field:
        """Return the same field with another priority."""
        return replace(self, priority=priority)

    def make_cell(self, item: Any) -> Cell:
        """Return the cell that the column shows for an item."""
        if self.show is not None:
            content = self.show(item)
        else:
            content = item.get(self.name) if isinstance(item, Mapping) else getattr(item, self.name)
        return content if isinstance(content, Cell) else Cell(content)

    @property
    def heading(self) -> str:
        """The title of the column."""
        return self.name if self.title is None else self.title

    @property
    def is_flush_right(self) -> bool:
        """Whether cells are aligned at the right, as numbers are."""
        return self.right or has_unit(self.name)


@dataclass(frozen=True)
class Cell:
    """A value with a style. A number is formatted together with the other numbers of its column."""

    value: str | float | None
    style: Style = ""


#: The value of a cell; None leaves the cell empty.
Content: TypeAlias = str | float | Cell | None


@dataclass(frozen=True)
class Heading:
    """A heading within a result."""

    kind: ClassVar[str] = "heading"
    text: str


@dataclass(frozen=True)
class Paragraph:
    """A text with its line breaks, after a ``head``. The style is that of the head, or of the whole text."""

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
    """A table with a line for each item. Without headings, the first cell of a line is its heading."""

    kind: ClassVar[str] = "table"
    fields: tuple[Field, ...]
    rows: tuple[tuple[Cell, ...], ...]

    @classmethod
    def of(
        cls, fields: Iterable[Field], items: Iterable[Any], *, style: Callable[[Any], Style] = lambda _: ""
    ) -> Table:
        """Return the table that shows fields of items. A cell is empty if a mapping lacks the name.

        ``style`` returns the style of the line of an item.
        """
        fields, rows = tuple(fields), []
        for item in items:
            cells = tuple(field.make_cell(item) for field in fields)
            look = style(item)
            rows.append(tuple(replace(cell, style=look) for cell in cells) if look else cells)
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


def _write(field: Field, values: Sequence[str | float | None]) -> list[str]:
    numbers = [value for value in values if isinstance(value, (int, float))]
    written = iter(align_numbers(field.name, numbers))
    return [next(written) if isinstance(value, (int, float)) else value or "" for value in values]


def make_facts(facts: Mapping[str, Content], style: Style = "") -> Table:
    """Return a table of names, in a style, with their texts. Names without a text are left out."""
    fields = (
        Field("fact", title="", show=lambda fact: Cell(fact[0], style)),
        Field("text", title="", wraps=True, show=lambda fact: fact[1]),
    )
    return Table.of(fields, (fact for fact in facts.items() if fact[1]))
