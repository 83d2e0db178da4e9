"""Commands about a plan: ``simulate``, ``schedule`` and ``report``. Also ``schema``, about file formats."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import replace
from functools import partial
from typing import TYPE_CHECKING, Annotated, Any, Literal

import typer

import ckptplan
from ckptplan.cli import options
from ckptplan.cli import output as out
from ckptplan.cli.command import Read, Written
from ckptplan.cli.options import command_line, count, option
from ckptplan.cli.output import OutputFile, OutputOptions, PictureOptions, note, picture_option, publish
from ckptplan.cli.progress import progress_bar
from ckptplan.cost.case import Case
from ckptplan.errors import InputError, refuse
from ckptplan.model.plan import Plan
from ckptplan.model.progress import Progress
from ckptplan.report.formats import json_text, make_view
from ckptplan.storage.files import replace_file, write_text

if TYPE_CHECKING:
    from ckptplan.report.chrome_trace import ChromeTrace
    from ckptplan.report.formats import View
    from ckptplan.schedule.timeline import Event

#: Exit status if the simulated cost of a schedule differs from the plan's prediction.
DISAGREES = 4


def _read_lengths(value: str) -> tuple[int, int]:
    """Return the first and the last length of '1:5000', or twice the length of '5000'. Raises InputError."""
    first, _, last = value.replace(",", "").partition(":")
    ends = first, last or first
    # Python refuses thousands of digits.
    is_whole = all(end.isascii() and end.isdecimal() and len(end) < 20 for end in ends)
    if not (is_whole and 1 <= int(ends[0]) <= int(ends[1])):
        accepted = "FIRST:LAST, as 1:5000, of fewer than 20 digits each"
        raise refuse(value, "is no range of lengths", accepted=accepted)
    return int(ends[0]), int(ends[1])


def simulate(
    *,
    plan: Annotated[str | None, options.PLAN] = None,
    schedule: Annotated[str | None, option("FILE", "Play this schedule, not the plan's.", parser=Read)] = None,
    trace: options.Trace = None,
    gantt: Annotated[str | None, picture_option("Draw the timeline")] = None,
    online: Annotated[bool, typer.Option("--online", help="Sequences whose length nobody knows.")] = False,
    slots: Annotated[int | None, count("With --online: the states that are held at a time.")] = None,
    lengths: Annotated[
        Any, option("FIRST:LAST", "With --online: the lengths.", "--T", parser=_read_lengths)
    ] = None,
    plot: Annotated[str | None, picture_option("With --online: draw the factor")] = None,
    size: out.PictureSize = "page",
    output: OutputOptions,
) -> None:
    """Play a plan's schedule action by action: every law is checked, time and peaks are counted.

    With --online, sequences of every length are compared with the optimum that knows T (docs/online.md).

    Exits 4 if the plan's own schedule does not cost what was predicted.
    """
    if online:
        given = {"PLAN": plan, "--schedule": schedule, "--trace": trace, "--gantt": gantt}
        options.keep_apart({**given, "--online": online})
        if slots is None:
            accepted = "the states that are held at a time, as 10"
            raise InputError("is missing", field="--slots", accepted=accepted)
        from ckptplan.studies.online import compare_online

        first, last = lengths or (1, 5000)
        factors = compare_online(slots=slots, first=first, last=last)
        publish(make_view(factors), output, PictureOptions(plot=plot, size=size))
        return
    for name, value in (("--slots", slots), ("--T", lengths), ("--plot", plot)):
        if value is not None:
            accepted = "--online --slots N beside it, without a plan"
            raise InputError("needs --online", field=name, value=value, accepted=accepted)
    if plan is None:
        raise InputError("is missing", field="PLAN", accepted="a plan file, or --online")
    if plan == "-" and schedule == "-":
        raise InputError("standard input is already the plan", field="--schedule", value="-")
    from ckptplan.report.simulation import view_simulation

    loaded = ckptplan.load_plan(plan)
    sinks: list[Callable[[Event], None]] = []

    def forward_event(event: Event) -> None:
        for sink in sinks:
            sink(event)

    # Trace and picture are only written if the result can be written.
    with ExitStack() as stack:
        if trace:
            sinks.append(stack.enter_context(traced(loaded, trace, schedule=schedule)).add)
        if gantt:
            from ckptplan.report.sketch import TimelineCollector

            timeline = TimelineCollector(loaded)
            sinks.append(timeline.add)
        with progress_bar("playing the schedule") as progress:
            sink = forward_event if sinks else None
            playback = ckptplan.simulate(loaded, schedule=schedule, sink=sink, progress=progress)
        view = view_simulation(loaded, playback, schedule=schedule)
        publish(view, output)
        if gantt:
            from ckptplan.report.plots import make_picture

            draw = partial(make_picture, loaded, sketch=timeline.finish(), schedule=schedule)
            out.save_picture(gantt, draw, size=size)
    if schedule is None and not view.document()["agrees"]:
        note("ckptplan: the schedule does not cost what the plan predicts")
        raise typer.Exit(DISAGREES)


@contextmanager
def traced(plan: Plan, path: str, *, schedule: str | None = None) -> Iterator[ChromeTrace]:
    """Stream events of a simulation to a trace file, which appears when the block ends.

    ``schedule`` is the file of the simulated schedule if it is not the plan's own.
    """
    from ckptplan.planning.playback import make_schedule_head
    from ckptplan.report.chrome_trace import ChromeTrace

    case = Case(workload=plan.workload, profile=plan.profile)
    head = make_schedule_head(plan, command=command_line())
    with replace_file(path) as file:
        chrome = ChromeTrace(
            file,
            process=f"{schedule or plan.strategy} on {plan.profile.name}, simulated",
            about={**head, "kind": "ckptplan.trace", "schedule": schedule},
            resident_bytes=case.costs.resident_bytes,
        )
        yield chrome
        chrome.close()
    note(f"trace written to {path}; open it at ui.perfetto.dev or chrome://tracing")


def schedule(
    *,
    plan: options.PlanFile,
    format_: Annotated[
        Literal["jsonl", "csv"] | None, typer.Option(help="One JSON object or CSV row per action.")
    ] = None,
    output: OutputFile = None,
) -> None:
    """Write the actions of a plan, one per line (docs/schedule-format.md)."""
    loaded, path = ckptplan.load_plan(plan), output or "-"
    with progress_bar("writing the schedule", beside_output=path == "-") as progress:
        count = ckptplan.save_schedule(loaded, path, format=format_, progress=progress, command=command_line())
    if path != "-":
        note(f"{count:,} actions written to {path}")


def report(
    *,
    plan: options.PlanFile,
    html: Annotated[str, option("FILE", "The page.", "-o", "--output", parser=Written)] = "report.html",
) -> None:
    """Write a page about a plan: its schedule, the front around it, its rivals, and its inputs.

    One file that works offline: point at a dot to read it, click a plan of the front to see its schedule.
    Strategies of the front are those that answer at once ('closed').
    """
    loaded = ckptplan.load_plan(plan)
    with progress_bar("planning for the report") as progress:
        views = _view_all(loaded, progress)
    out.write_page(html, *views)


def _view_all(plan: Plan, progress: Progress) -> list[View]:
    """Return the parts of the report about a plan: the plan, the front, the other strategies, the inputs.

    Raises Infeasible if the goal of the plan cannot be met.
    """
    from ckptplan.planning.optimize import rank_strategies
    from ckptplan.planning.request import Request

    ranked = rank_strategies(Request.of_plan(plan, command=command_line(), progress=progress), every=True)
    ranked.best()  # raises the reason, with suggestions, if the goal cannot be met
    goal = plan.goal
    budgets: dict[str, Any] = {
        "local_bytes": goal.local_bytes,
        "remote_bytes": "unbounded" if goal.remote_bytes is None else goal.remote_bytes,
    }
    # Closed forms alone, since solved strategies take long to trace.
    limits = {**budgets, "strategies": "closed", "objective": goal.objective}
    front = ckptplan.pareto(plan.workload, plan.profile, **limits, progress=progress)
    compared = ranked.by_strategy()
    # The page shows schedules in one part only: the front.
    about, rivals = make_view(plan, compared=lambda: compared), make_view(compared)
    return [
        replace(about, plans=tuple, chart=lambda: None),
        make_view(front, own=plan),
        replace(rivals, plans=tuple),
        make_view(ckptplan.sensitivity(plan=plan, progress=progress)),
    ]


def schema(
    *,
    kind: Annotated[
        Literal["plan", "profile", "schedule", "workload"],
        typer.Argument(metavar="NAME", help="plan, profile, schedule or workload."),
    ],
    output: OutputFile = None,
) -> None:
    """Print the JSON Schema of a file format.

    For profiles and workloads it is that of the data, once TOML is read; for schedules that of each line.
    """
    from ckptplan.storage.schemas import file_schema

    write_text(output or "-", json_text(file_schema(kind)))
