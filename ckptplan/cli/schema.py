"""``ckptplan schema plan|profile|workload``: JSON Schemas of the file formats."""

import enum
from typing import Annotated

import typer

from ckptplan.cli import options
from ckptplan.cli.output import json_text
from ckptplan.storage.files import write_text


class Kind(enum.StrEnum):
    """What has a schema."""

    plan = "plan"
    profile = "profile"
    workload = "workload"


class SchemaFormat(enum.StrEnum):
    """A schema is JSON; the option is there because every command has it."""

    json = "json"


def command(
    kind: Annotated[Kind, typer.Argument(help="Which format.")],
    format_: Annotated[SchemaFormat, typer.Option("--format", help="Schemas are JSON.")] = SchemaFormat.json,  # noqa: ARG001
    output: options.Output = None,
) -> None:
    """Print the JSON Schema of plans, or of profile and workload files (as data, once TOML is read)."""
    from ckptplan.storage.schemas import file_schema

    write_text(output or "-", json_text(file_schema(kind.value)))
