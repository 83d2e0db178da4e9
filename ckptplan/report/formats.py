"""A result in every format: as blocks for people, a JSON document, rows of CSV, a page and a picture.

A result is a ``View``, whose forms are functions: a form is made when a format asks for it. A new format is one
more entry here; every command takes it up.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from ckptplan.storage.files import replace_file
from ckptplan.storage.tables import Row, csv_pieces
from ckptplan.units import sizes_like

if TYPE_CHECKING:
    from ckptplan.model.plan import Plan
    from ckptplan.model.prediction import BasisEntry
    from ckptplan.report.blocks import Block
    from ckptplan.report.picture import Chart

#: The width of plain text that no terminal limits. 80, what rich assumes off a terminal, wraps paths and
#: sources needlessly.
_WIDE = 100


@dataclass(frozen=True, kw_only=True)
class View:
    """One result for every format."""

    #: Names the document, as in ``ckptplan.comparison``; None for one that names itself, as a plan does.
    kind: str | None
    #: The title that console, page and picture print, as 'Plan: gru on ipu-mk2'.
    heading: str = ""
    title: str = ""
    #: The local memory of the job in bytes, as the user gave it: people read sizes in units like it.
    memory: float = 0
    #: The blocks below the title.
    blocks: Callable[[], Iterable[Block]] = tuple
    #: All of it as nested JSON data, in SI base units. A part may be a function without arguments, called when
    #: the part is written, so that long parts are not all in memory at once.
    document: Callable[[], Mapping[str, Any]] = dict
    #: Flat rows, in SI base units.
    rows: Callable[[], Iterable[Row]] = tuple
    #: The inputs of the estimate with their origins; none for a result that estimates nothing. Below what
    #: people read, a line counts them; documents have them in full.
    basis: Callable[[], Sequence[BasisEntry]] = tuple
    #: That nothing fits, as 'no strategy fits'; commands then exit with the code for that.
    unmet: str = ""
    #: Its picture, None if it has none.
    chart: Callable[[], Chart | None] = lambda: None
    #: The plans whose schedules its page shows, by label.
    plans: Callable[[], Sequence[ShownPlan]] = tuple

    def list_blocks(self) -> Iterator[Block]:
        """Yield the title and the blocks below it."""
        from ckptplan.report.blocks import Paragraph

        if self.title:
            yield Paragraph(self.title, head=f"{self.heading}: ")
        yield from self.blocks()


@dataclass(frozen=True, kw_only=True)
class ShownPlan:
    """A plan whose schedule a page shows when a reader chooses it.

    The ``first`` one is shown before, and drawn more finely than the others.
    """

    label: str
    plan: Plan
    first: bool = False


class Column(list[Any]):
    """A long list of plain values in a document; JSON keeps it on one line."""


@dataclass(frozen=True, kw_only=True)
class Format:
    """One way to write any result."""

    #: Yields a result as text, piece by piece: some results are larger than memory.
    render: Callable[[View], Iterator[str]]
    #: How a file's name ends that asks for this format, as '.json'; None if no name does.
    suffix: str | None = None

    def write(self, view: View, path: str) -> None:
        """Write a result to a file, '-' for standard output. Raises InputError if it cannot be written."""
        with sizes_like(view.memory):
            if self is TEXT and path == "-" and sys.stdout.isatty():
                from ckptplan.report.console import print_blocks

                print_blocks(view.list_blocks())
                return
            with replace_file(path) as file:
                file.writelines(self.render(view))


def _render_text(view: View) -> Iterator[str]:
    """Yield the blocks as plain text, in characters that standard output can show."""
    from ckptplan.report.console import draw_blocks

    encoding = (sys.stdout.encoding or "utf-8").lower()
    lines = draw_blocks(view.list_blocks(), width=_find_width(), unicode=encoding.startswith("utf"))
    text = "".join(f"{line.plain.rstrip()}\n" for line in lines)
    yield text.encode(encoding, errors="replace").decode(encoding)


#: What people read: with colours on a terminal, as plain text elsewhere.
TEXT = Format(render=_render_text)
#: Every format by name, as ``--format`` takes it, the default first.
FORMATS: dict[str, Format] = {
    "table": TEXT,
    # Parts of a document that are functions are called when they are reached.
    "json": Format(render=lambda view: generate_json(view.document()), suffix=".json"),
    "csv": Format(render=lambda view: csv_pieces(view.rows()), suffix=".csv"),
}


def format_of_file(path: str) -> Format | None:
    """Return the format that a file's name asks for, None if it asks for none."""
    suffix = Path(path).suffix.lower()
    return next((format_ for format_ in FORMATS.values() if suffix and format_.suffix == suffix), None)


def _find_width() -> int:
    """Return COLUMNS; or the width of the terminal that a pipe or pager probably leads to; or else 100."""
    columns = os.environ.get("COLUMNS", "")
    if columns.isascii() and columns.isdecimal() and 0 < int(columns[:9]) < 10_000:
        return int(columns)
    for stream in (sys.stderr, sys.stdin):
        # A stream may be no terminal, closed, or none of the system's.
        with suppress(AttributeError, OSError, ValueError):
            return min(os.get_terminal_size(stream.fileno()).columns or _WIDE, _WIDE)
    return _WIDE


def json_text(document: Mapping[str, Any]) -> str:
    """Return JSON as the program prints it."""
    return "".join(generate_json(document))


def generate_json(document: Mapping[str, Any]) -> Iterator[str]:
    """Yield JSON as the program prints it: two spaces a level, NaN and infinity refused with ValueError."""
    import json  # --help names the format, and writes nothing

    yield from _generate(document, encode=json.JSONEncoder(allow_nan=False).encode, margin="\n")
    yield "\n"


def _generate(value: Any, *, encode: Callable[[Any], str], margin: str) -> Iterator[str]:
    if callable(value):
        value = value()
    deeper = f"{margin}  "
    if isinstance(value, Mapping) and value:
        opening = "{"
        for name, member in value.items():
            yield f"{opening}{deeper}{encode(name)}: "
            yield from _generate(member, encode=encode, margin=deeper)
            opening = ","
        yield f"{margin}}}"
    elif isinstance(value, (list, tuple)) and value and not isinstance(value, Column):
        opening = "["
        for member in value:
            yield f"{opening}{deeper}"
            yield from _generate(member, encode=encode, margin=deeper)
            opening = ","
        yield f"{margin}]"
    else:
        yield encode(value)
