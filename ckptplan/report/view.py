"""The forms of a result that output formats write: a table, a document, rows."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from ckptplan.model.prediction import BasisEntry
from ckptplan.storage.tables import Row

if TYPE_CHECKING:
    from rich.console import Console


@dataclass(frozen=True, kw_only=True, eq=False, repr=False)
class View:
    """One result for every format. Each form is made when a format asks for it.

    ``kind`` names the document, as in ``ckptplan.comparison``; None for a document that names itself, as a
    plan does.
    """

    kind: str | None
    #: Prints the result for people.
    table: Callable[[Console], None]
    #: Returns all of it as nested JSON data, in SI base units. A part may be a function without arguments,
    #: called when the part is written, so that long parts are not all in memory at once.
    document: Callable[[], Mapping[str, Any]]
    #: Returns flat rows, in SI base units.
    rows: Callable[[], Iterable[Row]]
    #: Returns the inputs of the estimate with their origins; none for a result that estimates nothing. Where
    #: tables are printed, a line counts them; documents have them in full.
    basis: Callable[[], Sequence[BasisEntry]] = tuple


class Column(list[Any]):
    """A long list of plain values in a document; JSON keeps it on one line."""
