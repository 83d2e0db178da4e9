"""Results to standard output or a file, as a table, JSON or CSV."""

from __future__ import annotations

import os
import sys
from collections.abc import Callable, Iterable, Mapping
from typing import TYPE_CHECKING, Any

from ckptplan.cli.options import Format, command_line
from ckptplan.storage.files import write_text
from ckptplan.storage.versions import WRITTEN
from ckptplan.version import __version__

if TYPE_CHECKING:
    from rich.console import Console

    from ckptplan.report.view import View


def emit(
    *,
    format_: Format,
    output: str | None,
    table: Callable[[Console], None],
    document: Callable[[], Any],
    rows: Callable[[], Iterable[Mapping[str, Any]]],
) -> None:
    """Write a result in the format asked for. Raises InputError if the file cannot be written."""
    if format_ is Format.json:
        write_text(output or "-", json_text(document()))
    elif format_ is Format.csv:
        from ckptplan.storage.tables import csv_text

        write_text(output or "-", csv_text(rows()))
    elif output in (None, "-") and sys.stdout.isatty():
        table(_console(sys.stdout))
    else:
        write_text(output or "-", _plain_text(table))


def write_view(view: View, *, format_: Format, output: str | None) -> None:
    """Write a result in the format asked for. Raises InputError if the file cannot be written."""
    emit(
        format_=format_,
        output=output,
        table=view.table,
        document=lambda: view.document() if view.kind is None else enveloped(view.kind, view.document()),
        rows=view.rows,
    )


def enveloped(kind: str, content: Mapping[str, Any]) -> dict[str, Any]:
    """Return JSON data that says what it is, and which program and command made it."""
    return {
        "kind": f"ckptplan.{kind}",
        "schema_version": WRITTEN["result"],
        "version": __version__,
        "command": command_line(),
        **content,
    }


def json_text(document: Any) -> str:
    """Return JSON as the program prints it."""
    import json

    return json.dumps(document, indent=2, allow_nan=False) + "\n"


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
