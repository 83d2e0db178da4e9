"""What a result says to people: headings, paragraphs and tables, which a console and a page render alike.

A page has charts and schedules besides, in sections.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any, ClassVar, Literal, TypeAlias

if TYPE_CHECKING:
    from ckptplan.model.plan import Plan

#: How a text stands out: what it means, not how it looks.
Style: TypeAlias = Literal["", "strong", "faint", "best", "good", "bad", "warning", "caution"]
#: Formats all numbers of a column together, so that they have the same unit and decimals.
Form: TypeAlias = Callable[[Sequence[float]], Sequence[str]]


@dataclass(frozen=True)
class Field:
    """One thing that records tell, and the column of a table that shows it.

    ``name`` is its key in a record; ``title`` is the same unless it is given, and ``short`` the title where
    width is scarce, which may have several lines. Columns of priority 0 always stay; of the others the highest
    number goes first. Cells with ``wraps`` may take several lines where width is scarce: "late" for cells that
    are easier to read on one line, "early" for long texts. ``form`` formats the cells that are numbers, all
    together; such columns are flush right.
    """

    name: str
    title: str | None = None
    short: str | None = None
    form: Form | None = None
    right: bool = False
    priority: int = 0
    wraps: Literal["no", "late", "early"] = "no"

    def ranked(self, priority: int, **other: Any) -> Field:
        """Return the same field with a priority, and with what else is different."""
        return replace(self, priority=priority, **other)

    @property
    def heading(self) -> str:
        """The title of the column."""
        return self.name if self.title is None else self.title

    @property
    def is_flush_right(self) -> bool:
        """Whether cells end at the same place."""
        return self.right or self.form is not None


@dataclass(frozen=True)
class Cell:
    """What a record tells of a field. ``short`` is for narrow tables; a number is formatted with its column."""

    value: str | float | None
    short: str | None = None
    style: Style = ""
    #: A share that a console draws as a bar before the text.
    filled: float | None = None


#: Names of fields and what a table shows of them; absent and None are empty cells.
Record: TypeAlias = Mapping[str, str | float | Cell | None]


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
    def of(cls, fields: Iterable[Field], records: Iterable[Mapping[str, Any]]) -> Table:
        """Return the table of some fields of records."""
        fields = tuple(fields)
        return cls(fields, tuple(tuple(_as_cell(record.get(one.name)) for one in fields) for record in records))

    @property
    def headings(self) -> tuple[str, ...]:
        """The title of each column, nothing if none has one."""
        titles = tuple(one.heading for one in self.fields)
        return titles if any(titles) else ()

    @property
    def texts(self) -> list[tuple[str, ...]]:
        """The text of each cell, row by row; numbers of a column are formatted together."""
        columns = [
            _format(one, [row[place].value for row in self.rows]) for place, one in enumerate(self.fields)
        ]
        return list(zip(*columns, strict=True))


Block: TypeAlias = Heading | Paragraph | Table


@dataclass(frozen=True)
class Chart:
    """A chart of a page: its specification in Vega-Lite, and what it shows in words.

    Its ``caption`` says what is seen and what can be done.
    """

    kind: ClassVar[str] = "chart"
    name: str
    title: str
    caption: str
    spec: Mapping[str, Any]
    #: Whether its time axis, or both axes, can be moved and scaled.
    zooms: bool = False


@dataclass(frozen=True)
class Section:
    """A part of a page, with a heading of its own: blocks and charts."""

    name: str
    title: str
    blocks: Iterable[object]


@dataclass(frozen=True, kw_only=True)
class Schedules:
    """The part of a page where a reader chooses a plan by its name and sees its schedule.

    ``own`` is the plan that the page is about, before all others and drawn more finely; ``first`` is the place
    of the one that is shown at first.
    """

    title: str = "The chosen plan"
    own: Plan | None = None
    plans: Sequence[tuple[str, Plan]] = ()
    first: int = 0


def _as_cell(content: str | float | Cell | None) -> Cell:
    return content if isinstance(content, Cell) else Cell(content)


def _format(field: Field, values: Sequence[str | float | None]) -> list[str]:
    numbers = [value for value in values if isinstance(value, (int, float))]
    formatted = iter(field.form(numbers) if field.form is not None and numbers else map(str, numbers))
    return [next(formatted) if isinstance(value, (int, float)) else value or "" for value in values]


def make_facts(facts: Mapping[str, str | float | Cell | None], style: Style = "") -> Table:
    """Return a table of headings and what belongs to each."""
    fields = (Field("fact", title="", wraps="late"), Field("text", title="", wraps="early"))
    return Table.of(fields, ({"fact": Cell(name, style=style), "text": text} for name, text in facts.items()))


def make_faint(record: Record) -> Record:
    """Return a record whose cells do not stand out."""
    return {
        name: replace(_as_cell(content), style="faint") if content is not None else None
        for name, content in record.items()
    }
