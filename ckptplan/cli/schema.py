"""``ckptplan schema plan|profile|schedule|workload``: JSON Schemas of the file formats."""

import enum
from typing import Annotated

import typer

from ckptplan.cli import options
from ckptplan.storage.files import write_text


class SchemaKind(enum.StrEnum):
    """File formats that have a schema."""

    plan = "plan"
    profile = "profile"
    schedule = "schedule"
    workload = "workload"


class SchemaFormat(enum.StrEnum):
    """Schemas are JSON; the option exists because every command has it."""

    json = "json"


def command(
    kind: Annotated[SchemaKind, typer.Argument(help="Which file format.")],
    format_: Annotated[SchemaFormat, typer.Option("--format", help="Schemas are JSON.")] = SchemaFormat.json,  # noqa: ARG001
    output: options.OutputFile = None,
) -> None:
    """Print the JSON Schema of a file format.

    For profiles and workloads it is that of the data, once TOML is read; for schedules that of each line.
    """
    from ckptplan.report.formats import json_text
    from ckptplan.storage.schemas import file_schema

    write_text(output or "-", json_text(file_schema(kind.value)))
