"""Formats tables as CSV, JSON lines or Parquet. No other module decides how a cell is written.

In CSV, booleans are ``true`` and ``false``, an absent value is an empty field, and spaces separate the members
of a list. A text that a spreadsheet would take for a formula gets an apostrophe in front. Parquet has the same
columns; it needs pyarrow (the extra ``parquet``).
"""

from __future__ import annotations

import csv
import io
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from numbers import Number
from pathlib import Path
from typing import Any, Literal, TypeAlias

from ckptplan.errors import InputError, MissingExtra
from ckptplan.storage.files import replace_file
from ckptplan.wording import Argument, escape_controls

#: The first characters of formulas in a spreadsheet. The last four are full-width, from Asian keyboards.
_FORMULAS = ("=", "+", "-", "@", "\uff1d", "\uff0b", "\uff0d", "\uff20")
#: The cells of a row by column name; None if absent.
Row: TypeAlias = Mapping[str, Any]
Type: TypeAlias = Literal["text", "whole", "number", "truth"]
#: The type of each column, in order.
Columns: TypeAlias = Mapping[str, Type]
Format: TypeAlias = Literal["csv", "jsonl"]


@dataclass(frozen=True, kw_only=True)
class Lines:
    """Formats rows with given columns, one per line."""

    format: Format
    columns: Columns

    def header(self) -> str:
        """Return the text before the first row."""
        return _csv([self.columns]) if self.format == "csv" else ""

    def line(self, row: Row) -> str:
        """Return a row as a line; missing columns are absent values."""
        return self.block([(row.get(name),) for name in self.columns])

    def head(self, row: Row) -> str:
        """Return the beginning of a line, given the first columns of its row."""
        if self.format == "jsonl":
            import json

            return json.dumps(dict(row), allow_nan=False)[:-1] + ","
        # Append a cell and remove it again, since csv.writer quotes an empty cell that is alone in its line.
        return _csv([[*map(_cell, row.values()), "."]]).removesuffix(".\n")

    def block(self, cells: Sequence[Sequence[Any]]) -> str:
        """Return many rows as lines. ``cells`` has one sequence per column, which is faster than row by row."""
        if self.format == "jsonl":
            import json

            rows = (dict(zip(self.columns, row, strict=True)) for row in zip(*cells, strict=True))
            return "".join(json.dumps(row, allow_nan=False) + "\n" for row in rows)
        columns = zip(self.columns.values(), cells, strict=True)
        plain = [map(_cell, column) if type_ in ("truth", "text") else column for type_, column in columns]
        return _csv(zip(*plain, strict=True))


@dataclass(frozen=True, kw_only=True)
class Rows:
    """Rows together with the names of their columns, which do not depend on the content of the rows."""

    columns: Iterable[str]
    rows: Iterable[Row]

    def __iter__(self) -> Iterator[dict[str, Any]]:
        """Yield rows with every column."""
        names = tuple(self.columns)
        for row in self.rows:
            yield {name: row.get(name) for name in names}


@dataclass(frozen=True, kw_only=True)
class Blocks:
    """Many rows with their columns, in blocks that hold one sequence of cells for each column.

    They are written block by block, which is much faster than row by row.
    """

    columns: Columns
    blocks: Iterable[Sequence[Sequence[Any]]]

    def __iter__(self) -> Iterator[dict[str, Any]]:
        """Yield rows with every column."""
        for block in self.blocks:
            for cells in zip(*block, strict=True):
                yield dict(zip(self.columns, cells, strict=True))


def csv_pieces(rows: Iterable[Row]) -> Iterator[str]:
    """Yield CSV with a header. ``Rows`` and ``Blocks`` name their columns; other rows give all that any has."""
    if not isinstance(rows, (Rows, Blocks)):
        rows = list(rows)
        rows = Rows(columns=dict.fromkeys(name for row in rows for name in row), rows=rows)
    # Types of columns are used only for blocks.
    columns: Columns = rows.columns if isinstance(rows, Blocks) else dict.fromkeys(rows.columns, "text")
    lines = Lines(format="csv", columns=columns)
    yield lines.header()
    yield from map(lines.block, rows.blocks) if isinstance(rows, Blocks) else map(lines.line, rows)


def _csv(rows: Iterable[Iterable[Any]]) -> str:
    buffer = io.StringIO()
    csv.writer(buffer, lineterminator="\n").writerows(rows)
    return buffer.getvalue()


def _cell(value: Any) -> Any:
    if isinstance(value, bool):
        return str(value).lower()
    text = " ".join(map(str, value)) if isinstance(value, list) else value
    if value is None or isinstance(text, Number):
        return text
    return _make_plain(str(text))


def _make_plain(text: str) -> str:
    """Escape control characters, and put an apostrophe before a text that looks like a formula."""
    text = escape_controls(text)
    return f"'{text}" if text.lstrip().startswith(_FORMULAS) or text.startswith(("\t", "\n")) else text


#: The number of rows that are converted to Parquet columns at a time.
_BATCH = 50_000
_KEY = b"ckptplan.sweep"
_ARROW_TYPES: Mapping[Type, str] = {"text": "string", "whole": "int64", "number": "float64", "truth": "bool_"}


def import_pyarrow() -> Any:
    """Return the package pyarrow. Raises MissingExtra."""
    try:
        import pyarrow as package
        import pyarrow.parquet
    except ImportError:
        raise MissingExtra("parquet", package="pyarrow") from None
    return package


@contextmanager
def open_parquet(
    path: str | Path, *, columns: Columns, identity: str
) -> Iterator[Callable[[Sequence[Row]], None]]:
    """Open a Parquet file, and yield a function that appends rows. At the end it replaces an existing file.

    Raises InputError, MissingExtra.
    """
    arrow = import_pyarrow()
    schema = arrow.schema(
        [(name, getattr(arrow, _ARROW_TYPES[type_])()) for name, type_ in columns.items()],
        metadata={_KEY: identity.encode()},
    )
    waiting: list[Row] = []
    with replace_file(path, binary=True) as file, arrow.parquet.ParquetWriter(file, schema) as writer:

        def append(rows: Sequence[Row], least: int = _BATCH) -> None:
            waiting.extend(rows)
            if len(waiting) >= least:
                writer.write_table(arrow.Table.from_pylist(waiting, schema=schema))
                waiting.clear()

        yield append
        append((), least=1)


def read_identity(path: str | Path) -> str | None:
    """Return the identity of the sweep in a Parquet file, None if it does not exist.

    Raises InputError, MissingExtra.
    """
    arrow = import_pyarrow()
    source = str(path)
    if not Path(path).exists():
        return None
    try:
        metadata = arrow.parquet.read_schema(source).metadata or {}
    except OSError as error:
        raise InputError(f"cannot be read: {error.strerror}", source=source) from None
    except (arrow.ArrowException, ValueError):
        raise InputError(
            "is not a Parquet file", source=source, accepted=f"a new file, or {Argument('restart', True)}"
        ) from None
    identity: str = metadata.get(_KEY, b"").decode(errors="replace")
    return identity
