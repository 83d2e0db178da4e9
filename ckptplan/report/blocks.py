"""The blocks that describe a result, for consoles and pages: paragraphs, and tables of quantities."""

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
    A cell is the result of ``show`` for an item, by default the item's member of this name.
    ``title`` heads the column in place of the name. If a table is too wide, it drops the column with the
    highest ``priority`` first, and never one of priority 0. ``wraps`` allows cells of several lines.
    """

    name: str
    title: str | None = None
    priority: int = 0
    right: bool = False
    wraps: bool = False
    show: Callable[[Any], Value] | None = field(default=None, compare=False)

    def ranked(self, priority: int) -> Field:
        """Return the same field with another priority."""
        return replace(self, priority=priority)

    def find_value(self, item: Any) -> Value:
        """Return the value that the column shows for an item."""
        value: Value = item.get(self.name) if self.show is None else self.show(item)
        return value

    @property
    def heading(self) -> str:
        """The title of the column."""
        return self.name if self.title is None else self.title

    @property
    def is_flush_right(self) -> bool:
        """Whether cells are aligned at the right, as numbers are."""
        return self.right or has_unit(self.name)

    def write(self, values: Sequence[Value]) -> list[str]:
        """Return the values of the column as text. Numbers are formatted together."""
        numbers = [value for value in values if isinstance(value, (int, float))]
        written = iter(align_numbers(self.name, numbers))
        return [next(written) if isinstance(value, (int, float)) else value or "" for value in values]


#: What a cell shows; None leaves the cell empty. Numbers of a column are formatted together.
Value: TypeAlias = str | float | None


@dataclass(frozen=True)
class Paragraph:
    """A text with its line breaks."""

    kind: ClassVar[str] = "paragraph"
    text: str
    style: Style = ""


@dataclass(frozen=True)
class Table:
    """A table with a line for each item, under a title. Without headings, the first cell of a line names it.

    ``styles`` has a style for each line.
    """

    kind: ClassVar[str] = "table"
    fields: tuple[Field, ...]
    rows: tuple[tuple[Value, ...], ...]
    styles: tuple[Style, ...]
    title: str = ""

    @classmethod
    def of(
        cls,
        fields: Iterable[Field],
        items: Iterable[Any],
        *,
        title: str = "",
        style: Callable[[Any], Style] = lambda _: "",
    ) -> Table:
        """Return the table that shows fields of items. A cell is empty if a mapping lacks the name.

        ``style`` returns the style of the line of an item.
        """
        fields, items = tuple(fields), list(items)
        rows = tuple(tuple(field.find_value(item) for field in fields) for item in items)
        return cls(fields, rows, tuple(map(style, items)), title)

    @property
    def headings(self) -> tuple[str, ...]:
        """The title of each column; empty if no column has a title."""
        titles = tuple(field.heading for field in self.fields)
        return titles if any(titles) else ()

    @property
    def texts(self) -> list[tuple[str, ...]]:
        """The text of each cell, row by row."""
        columns = (field.write([row[place] for row in self.rows]) for place, field in enumerate(self.fields))
        return list(zip(*columns, strict=True))


Block: TypeAlias = Paragraph | Table


def make_facts(facts: Mapping[str, Value], style: Style = "", *, title: str = "") -> Table:
    """Return a table of names with their texts, in a style. Names without a text are left out."""
    fields = (
        Field("fact", title="", show=lambda fact: fact[0]),
        Field("text", title="", wraps=True, show=lambda fact: fact[1]),
    )
    return Table.of(fields, (fact for fact in facts.items() if fact[1]), title=title, style=lambda _: style)
