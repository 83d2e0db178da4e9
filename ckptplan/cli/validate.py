"""``ckptplan validate``: execute a plan and compare its predictions with measurements."""

from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Annotated

import typer

from ckptplan.cli import options
from ckptplan.cli.calibrate import Device
from ckptplan.cli.groups import takes_groups
from ckptplan.cli.options import OutputOptions
from ckptplan.cli.output import note, write_view
from ckptplan.cli.wording import as_option, named_by_option
from ckptplan.errors import InputError

if TYPE_CHECKING:
    from ckptplan.model.plan import Plan
    from ckptplan.report.chrome_trace import ChromeTrace

#: Exit code if a prediction is outside its tolerance.
OUTSIDE = 4


@takes_groups
def command(
    *,
    plan: options.PlanFile,
    tolerance: Annotated[
        str, typer.Option("--tolerance", metavar="SHARE", help="How far times may be off, besides the noise.")
    ] = "10%",
    memory_tolerance: Annotated[
        str, typer.Option("--memory-tolerance", metavar="SHARE", help="How far the live peak may be off.")
    ] = "5%",
    regret: Annotated[
        bool, typer.Option("--regret", help="Run the best plan of each other strategy, too.")
    ] = False,
    repeats: options.Repeats = "5",
    cell: Annotated[
        str | None,
        typer.Option(
            "--cell", metavar="NAME(...)", help="Run this cell, not the workload's: 'gru(neurons=256)'."
        ),
    ] = None,
    trust_cell: Annotated[
        bool,
        typer.Option("--trust-cell", help="Import and run the factory that the plan names: its author's code."),
    ] = False,
    device: Annotated[
        Device | None, typer.Option("--device", help="Where to run (default: where it was calibrated).")
    ] = None,
    threads: options.Threads = None,
    trace: Annotated[
        str | None,
        typer.Option(
            "--trace",
            metavar="FILE",
            help="Write the simulated and the measured timeline for Perfetto, as JSON.",
            callback=options.named_file,
        ),
    ] = None,
    output: OutputOptions,
) -> None:
    """Run a plan and base on the same weights and data: predicted against measured, part by part.

    Exits 4 if anything is outside the tolerance, and names it.
    """
    from ckptplan.cli.progress import progress_bar
    from ckptplan.storage.plans import load_plan

    if trace == "-":
        raise InputError("standard output carries the result", field="--trace", value="-", accepted="a file")
    options.keep_inputs({"--output": output.file, "--trace": trace}, plan)
    options.check_folders({"--output": output.file, "--trace": trace})
    times = options.tolerance(tolerance, option="--tolerance")
    peaks = options.tolerance(memory_tolerance, option="--memory-tolerance")
    rounds = options.plain_integer(repeats, option="--repeats", most=1000)
    thread_count = options.thread_count(threads)
    planned = load_plan(plan)
    options.need_torch()
    from ckptplan.calibration.validate import validate
    from ckptplan.report.validation import view_validation

    with named_by_option(), progress_bar("running") as progress:
        found = validate(
            planned,
            cell=cell,
            trust_cell=trust_cell,
            device=None if device is None else device.value,
            regret=regret,
            tolerance=times,
            memory_tolerance=peaks,
            repeats=rounds,
            thread_count=thread_count,
            progress=progress,
        )
    write_view(view_validation(planned, found, wording=as_option), output)
    if trace is not None:
        with _traced(planned, trace) as chrome:
            chrome.beside(
                process=f"{planned.strategy} on {found.machine}, measured (checkpoints and tapes)",
                resident_bytes=0,
            )
            for event in found.timeline:
                chrome.add(event)
    if found.off:
        note(f"ckptplan: outside the tolerance: {', '.join(found.off)}")
    if found.noisy:
        note(f"ckptplan: too noisy to judge: {', '.join(found.noisy)}")
    if found.off or found.noisy:
        raise typer.Exit(OUTSIDE)


@contextmanager
def _traced(plan: "Plan", path: str) -> "Iterator[ChromeTrace]":
    """Write the simulated timeline to a trace; yields the trace, to add another timeline."""
    from ckptplan.cost.case import Case
    from ckptplan.planning.playback import make_schedule_head, simulate
    from ckptplan.report.chrome_trace import ChromeTrace
    from ckptplan.storage.files import replace_file

    with replace_file(path) as file:
        chrome = ChromeTrace(
            file,
            process=f"{plan.strategy} on {plan.profile.name}, simulated",
            about={**make_schedule_head(plan, command=options.command_line()), "kind": "ckptplan.trace"},
            resident_bytes=Case(workload=plan.workload, profile=plan.profile).costs.resident_bytes,
        )
        simulate(plan, sink=chrome.add)
        yield chrome
        chrome.close()
    note(f"trace written to {path}; open it at ui.perfetto.dev or chrome://tracing")
