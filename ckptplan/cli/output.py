"""Results to standard output or a file, as a table, JSON or CSV."""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Callable, Iterator, Mapping
from typing import TYPE_CHECKING, Any

from ckptplan.cli.options import Format, command_line
from ckptplan.report.view import Column
from ckptplan.storage.files import replacing, write_text
from ckptplan.storage.versions import WRITTEN
from ckptplan.version import __version__

if TYPE_CHECKING:
    from rich.console import Console

    from ckptplan.model.plan import Plan
    from ckptplan.report.view import View

_JSON = json.JSONEncoder(allow_nan=False)


def write_plan(plan: Plan, view: View, *, format_: Format, output: str | None) -> None:
    """Write a plan in the format asked for; beside a table, the file is the plan as JSON.

    Raises InputError if the file cannot be written.
    """
    from ckptplan.storage.plans import save_plan

    if format_ is Format.table and output is not None:
        save_plan(plan, output)
        if output == "-":
            return
        note(f"plan written to {output}")
        output = None
    write_view(view, format_=format_, output=output)


def write_view(view: View, *, format_: Format, output: str | None) -> None:
    """Write a result in the format asked for. Raises InputError if the file cannot be written."""
    if format_ is Format.json:
        document = view.document()
        _write_pieces(json_pieces(document if view.kind is None else enveloped(view.kind, document)), output)
    elif format_ is Format.csv:
        from ckptplan.storage.tables import csv_pieces

        _write_pieces(csv_pieces(view.rows()), output)
    else:
        print_table(view.table, output=output)


def _write_pieces(pieces: Iterator[str], output: str | None) -> None:
    """Write text as it is made: some results are larger than memory."""
    with replacing(output or "-") as file:
        file.writelines(pieces)


def print_table(table: Callable[[Console], None], *, output: str | None = None) -> None:
    """Print a table, or write it as plain text. Raises InputError if the file cannot be written."""
    if output in (None, "-") and sys.stdout.isatty():
        table(_console(sys.stdout))
    else:
        write_text(output or "-", _plain_text(table))


def enveloped(kind: str, content: Mapping[str, Any]) -> dict[str, Any]:
    """Return JSON data that says what it is, and which program and command made it."""
    return {
        "kind": f"ckptplan.{kind}",
        "schema_version": WRITTEN["result"],
        "version": __version__,
        "command": command_line(),
        **content,
    }


def json_text(document: Mapping[str, Any]) -> str:
    """Return JSON as the program prints it."""
    return "".join(json_pieces(document))


def json_pieces(document: Mapping[str, Any]) -> Iterator[str]:
    """Yield JSON as the program prints it, with parts that are functions made when they are reached."""
    yield from _json_of(document, margin="\n")
    yield "\n"


def _json_of(value: Any, *, margin: str) -> Iterator[str]:
    if callable(value):
        value = value()
    deeper = f"{margin}  "
    if isinstance(value, Mapping) and value:
        opening = "{"
        for name, member in value.items():
            yield f"{opening}{deeper}{_JSON.encode(name)}: "
            yield from _json_of(member, margin=deeper)
            opening = ","
        yield f"{margin}}}"
    elif isinstance(value, (list, tuple)) and value and not isinstance(value, Column):
        opening = "["
        for member in value:
            yield f"{opening}{deeper}"
            yield from _json_of(member, margin=deeper)
            opening = ","
        yield f"{margin}]"
    else:
        yield _JSON.encode(value)


def _console(file: Any, *, width: int | None = None) -> Console:
    """Return a console: colours on a terminal only, and not with NO_COLOR; names are no markup."""
    from rich.console import Console

    return Console(file=file, width=width, highlight=False, markup=False, emoji=False)


def _plain_text(table: Callable[[Console], None]) -> str:
    """Return a table as plain text, in characters that standard output can show."""
    import io

    columns = os.environ.get("COLUMNS", "")
    # 80, what rich assumes off a terminal, wraps paths and sources needlessly.
    width = int(columns) if columns.isdecimal() and 0 < int(columns) < 10_000 else 100
    encoding = sys.stdout.encoding or "utf-8"
    buffer = io.TextIOWrapper(io.BytesIO(), encoding=encoding, errors="replace", newline="")
    table(_console(buffer, width=width))
    buffer.seek(0)
    return "".join(f"{line.rstrip()}\n" for line in buffer.read().splitlines())


def note(text: str) -> None:
    """Say something beside the result, on standard error."""
    sys.stderr.write(f"{text}\n")
