"""``ckptplan schedule``: the actions of a plan, for trainers in any language."""

import enum
from typing import Annotated

import typer

from ckptplan.cli import options
from ckptplan.cli.output import note


class ScheduleFormat(enum.StrEnum):
    """How a schedule is written."""

    jsonl = "jsonl"
    csv = "csv"


def command(
    plan: options.PlanFile,
    format_: Annotated[
        ScheduleFormat | None,
        typer.Option("--format", help="One JSON object or CSV row per action (default: by the file's name)."),
    ] = None,
    output: options.OutputFile = None,
) -> None:
    """Write the actions of a plan, one per line (docs/schedule-format.md)."""
    from ckptplan.cli.progress import progress_bar
    from ckptplan.planning.playback import save_schedule
    from ckptplan.storage.plans import load_plan

    options.keep_inputs({"--output": output}, plan)
    planned = load_plan(plan)
    path = output or "-"
    with progress_bar("writing the schedule", beside_output=path == "-") as progress:
        count = save_schedule(
            planned,
            path,
            format=None if format_ is None else format_.value,
            progress=progress,
            command=options.command_line(),
        )
    if path != "-":
        note(f"{count:,} actions written to {path}")
