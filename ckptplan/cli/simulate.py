"""``ckptplan simulate``, ``schedule`` and ``schema``: what other programs read of plans.

A plan's schedule is played and the prediction checked; its actions and the schemas of files are written.
"""

from __future__ import annotations

import enum
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from typing import TYPE_CHECKING, Annotated

import typer

from ckptplan.cli import options
from ckptplan.cli.groups import takes_groups
from ckptplan.cli.options import OutputOptions
from ckptplan.cli.output import note, write_view
from ckptplan.errors import InputError

if TYPE_CHECKING:
    from ckptplan.model.plan import Plan
    from ckptplan.schedule.timeline import Event, Sink


class ScheduleFormat(enum.StrEnum):
    """How a schedule is written."""

    jsonl = "jsonl"
    csv = "csv"


def write_schedule(
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


#: Exit code if a schedule does not cost what its closed form says.
DISAGREES = 4


@takes_groups
def command(
    *,
    plan: options.PlanFile,
    schedule: Annotated[
        str | None,
        typer.Option(
            "--schedule",
            metavar="FILE",
            help="Play this schedule at the plan's costs and limits.",
            callback=options.named_file,
        ),
    ] = None,
    trace: Annotated[
        str | None,
        typer.Option(
            "--trace",
            metavar="FILE",
            help="Write the timeline for Perfetto, as JSON.",
            callback=options.named_file,
        ),
    ] = None,
    gantt: Annotated[
        str | None,
        typer.Option(
            "--gantt",
            metavar="FILE",
            help="Draw the timeline, as .png, .svg or .pdf.",
            callback=options.named_file,
        ),
    ] = None,
    size: options.PictureSize = "page",
    output: OutputOptions,
) -> None:
    """Play a plan's schedule action by action: every law is checked, time and peaks are counted.

    Exits 4 if the plan's own schedule does not cost what was predicted.
    """
    from ckptplan.cli.progress import progress_bar
    from ckptplan.planning.playback import simulate
    from ckptplan.report.simulation import SimulationView
    from ckptplan.storage.plans import load_plan

    _check_files(plan, schedule, trace, gantt, output.file)
    planned = load_plan(plan)
    # Trace and picture are only written if the result can be.
    with ExitStack() as stack:
        sinks = [stack.enter_context(_traced(planned, schedule, trace))] if trace else []
        sinks += [stack.enter_context(_drawn(planned, schedule, gantt, size))] if gantt else []
        with progress_bar("playing the schedule") as progress:
            seen = simulate(planned, schedule=schedule, sink=_each(sinks), progress=progress)
        view = SimulationView(planned, seen, schedule=schedule)
        write_view(view, output)
    if schedule is None and not view.agrees:
        note("ckptplan: the schedule does not cost what the plan predicts")
        raise typer.Exit(DISAGREES)


def _check_files(
    plan: str, schedule: str | None, trace: str | None, gantt: str | None, output: str | None
) -> None:
    from ckptplan.report.style import picture_format

    if plan == "-" and schedule == "-":
        raise InputError("standard input is already the plan", field="--schedule", value="-")
    if trace == "-":
        raise InputError("standard output carries the result", field="--trace", value="-", accepted="a file")
    if gantt:
        picture_format(gantt, option="--gantt")
    options.keep_inputs({"--output": output, "--trace": trace, "--gantt": gantt}, plan, schedule)


def _each(sinks: list[Sink]) -> Sink | None:
    if len(sinks) < 2:
        return sinks[0] if sinks else None

    def both(event: Event) -> None:
        for sink in sinks:
            sink(event)

    return both


@contextmanager
def _traced(plan: Plan, schedule: str | None, path: str) -> Iterator[Sink]:
    """Stream events to a trace file, which appears when the schedule ends."""
    from ckptplan.cost.case import Case
    from ckptplan.planning.playback import make_schedule_head
    from ckptplan.report.chrome_trace import ChromeTrace
    from ckptplan.storage.files import replace_file

    with replace_file(path) as file:
        chrome = ChromeTrace(
            file,
            process=f"{schedule or plan.strategy} on {plan.profile.name}, simulated",
            about={
                **make_schedule_head(plan, command=options.command_line()),
                "kind": "ckptplan.trace",
                "schedule": schedule,
            },
            resident_bytes=Case(workload=plan.workload, profile=plan.profile).costs.resident_bytes,
        )
        yield chrome.add
        chrome.close()
    note(f"trace written to {path}; open it at ui.perfetto.dev or chrome://tracing")


@contextmanager
def _drawn(plan: Plan, schedule: str | None, path: str, size: str) -> Iterator[Sink]:
    """Collect events, and draw them when the schedule ends."""
    from ckptplan.cost.case import Case
    from ckptplan.report.gantt import Gantt
    from ckptplan.report.style import SIZES, save_picture, styled

    resident = Case(workload=plan.workload, profile=plan.profile).costs.resident_bytes
    picture = Gantt(plan, resident_bytes=resident, schedule=schedule)
    try:
        yield picture.add
    except InputError as error:
        if error.field != "gantt":
            raise
        raise InputError(
            error.message,
            field="--gantt",
            accepted=f"{error.accepted} (a smaller --T); --trace shows any schedule",
        ) from None
    with styled(SIZES[size]):
        save_picture(picture.draw(SIZES[size]), path, option="--gantt")
    note(f"picture written to {path}")


class SchemaKind(enum.StrEnum):
    """File formats that have a schema."""

    plan = "plan"
    profile = "profile"
    schedule = "schedule"
    workload = "workload"


class SchemaFormat(enum.StrEnum):
    """Schemas are JSON; the option exists because every command has it."""

    json = "json"


def print_schema(
    kind: Annotated[SchemaKind, typer.Argument(help="Which file format.")],
    format_: Annotated[SchemaFormat, typer.Option("--format", help="Schemas are JSON.")] = SchemaFormat.json,  # noqa: ARG001
    output: options.OutputFile = None,
) -> None:
    """Print the JSON Schema of a file format.

    For profiles and workloads it is that of the data, once TOML is read; for schedules that of each line.
    """
    from ckptplan.report.formats import json_text
    from ckptplan.storage.files import write_text
    from ckptplan.storage.schemas import file_schema

    write_text(output or "-", json_text(file_schema(kind.value)))
