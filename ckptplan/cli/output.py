"""Results to standard output or a file, as a table, JSON or CSV."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterable, Mapping
from typing import TYPE_CHECKING, Any

from ckptplan.cli.options import Format, command_line
from ckptplan.storage.files import write_text
from ckptplan.storage.versions import SCHEMA_VERSION
from ckptplan.version import __version__

if TYPE_CHECKING:
    from rich.console import Console


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
        write_text(output or "-", csv_text(rows()))
    elif output in (None, "-"):
        table(terminal())
    else:
        import io

        buffer = io.StringIO()
        table(plain(buffer))
        write_text(output or "-", buffer.getvalue())


def enveloped(kind: str, content: Mapping[str, Any]) -> dict[str, Any]:
    """Return JSON data that says what it is, and which program and command made it."""
    return {
        "kind": f"ckptplan.{kind}",
        "schema_version": SCHEMA_VERSION,
        "version": __version__,
        "command": command_line(),
        **content,
    }


def json_text(document: Any) -> str:
    """Return JSON as the program prints it."""
    import json

    return json.dumps(document, indent=2, allow_nan=False) + "\n"


def csv_text(rows: Iterable[Mapping[str, Any]]) -> str:
    """Return CSV with a header; an absent value is an empty field."""
    import csv
    import io

    rows = list(rows)
    header = list(dict.fromkeys(name for row in rows for name in row))
    buffer = io.StringIO()
    writer = csv.DictWriter(buffer, header, lineterminator="\n", restval="")
    writer.writeheader()
    writer.writerows(rows)
    return buffer.getvalue()


def terminal() -> Console:
    """Return a console on standard output: colours on a terminal only, and not with NO_COLOR."""
    from rich.console import Console

    # Off a terminal rich assumes 80 columns, which wraps paths and sources needlessly.
    return Console(
        file=sys.stdout, highlight=False, markup=False, emoji=False, width=None if sys.stdout.isatty() else 100
    )


def plain(file: Any) -> Console:
    """Return a console that writes plain text to a file."""
    from rich.console import Console

    return Console(
        file=file, highlight=False, markup=False, emoji=False, width=100, no_color=True, force_terminal=False
    )


def note(text: str) -> None:
    """Say something beside the result, on standard error."""
    sys.stderr.write(f"{text}\n")
