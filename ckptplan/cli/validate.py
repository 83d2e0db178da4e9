"""``ckptplan validate``: execute a plan and compare its predictions with measurements."""

from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from typing import TYPE_CHECKING, Annotated, Any

import typer

from ckptplan.cli import options
from ckptplan.cli.cells import Device
from ckptplan.cli.groups import takes_groups
from ckptplan.cli.html import Html, check_html, write_page
from ckptplan.cli.options import OutputOptions
from ckptplan.cli.output import note, write_view
from ckptplan.cli.wording import named_by_option
from ckptplan.errors import InputError, quote_value
from ckptplan.units import parse_seconds

if TYPE_CHECKING:
    from ckptplan.calibration.cell_spec import CellSpec
    from ckptplan.calibration.validation import Validation
    from ckptplan.model.plan import Plan
    from ckptplan.model.progress import Progress
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
    overhead_tolerance: Annotated[
        str,
        typer.Option(
            "--overhead-tolerance",
            metavar="POINTS",
            help="How far the time added to base's may be off, in percent of base's, besides the noise.",
        ),
    ] = "3%",
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
    max_seconds: Annotated[
        str | None,
        typer.Option(
            "--max-seconds",
            metavar="SECONDS",
            help="Run nothing if it would take longer (default: 60 for other hardware, else no limit).",
        ),
    ] = None,
    trace: Annotated[
        str | None,
        typer.Option(
            "--trace",
            metavar="FILE",
            help="Write the simulated and the measured timeline for Perfetto, as JSON.",
            callback=options.named_file,
        ),
    ] = None,
    html: Html = None,
    output: OutputOptions,
) -> None:
    """Run a plan and base on the same weights and data: predicted against measured, part by part.

    Exits 4 if anything is outside the tolerance, and names it. Ctrl-C shows what was compared so far.

    Of a plan for other hardware, only counts, bytes and gradients are compared.
    """
    from ckptplan.storage.plans import load_plan

    if trace == "-":
        raise InputError("standard output carries the result", field="--trace", value="-", accepted="a file")
    check_html(html)
    options.keep_inputs({"--output": output.file, "--trace": trace, "--html": html}, plan)
    options.check_folders({"--output": output.file, "--trace": trace})
    times = options.tolerance(tolerance, option="--tolerance")
    peaks = options.tolerance(memory_tolerance, option="--memory-tolerance")
    points = options.tolerance(overhead_tolerance, option="--overhead-tolerance")
    most = _read_seconds(max_seconds)
    rounds = options.plain_integer(repeats, option="--repeats", most=1000)
    thread_count = options.thread_count(threads)
    planned = load_plan(plan)
    from ckptplan.calibration.comparable import choose_cell
    from ckptplan.report.validation import view_validation

    with named_by_option():
        spec = choose_cell(planned.workload, cell=cell, trust=trust_cell)
        options.need_runtime(spec)
        where = _choose_place(planned, spec, device=device, thread_count=thread_count, trace=trace)
    with named_by_option(), _late_bar("running") as progress:
        found = _choose_validation(spec)(
            planned,
            spec=spec,
            **where,
            regret=regret,
            tolerance=times,
            overhead_tolerance=points,
            memory_tolerance=peaks,
            repeats=rounds,
            max_seconds=most,
            progress=progress,
            tell=lambda text: note(f"ckptplan: {text}"),
        )
    view = view_validation(planned, found)
    write_view(view, output)
    if html:
        from ckptplan.report.html.pages import make_validation_page

        write_page(html, lambda: make_validation_page(planned, found, view))
    if trace is not None:
        with _traced(planned, trace) as chrome:
            chrome.beside(
                process=f"{planned.strategy} on {found.machine}, measured (checkpoints and tapes)",
                resident_bytes=0,
            )
            for event in found.timeline:
                chrome.add(event)
        if not found.repeats:
            note("ckptplan: the measured times of the trace are those of a run whose bytes were counted")
    if found.off:
        note(f"ckptplan: outside the tolerance: {', '.join(found.off)}")
    if found.noisy:
        note(f"ckptplan: too noisy to judge: {', '.join(found.noisy)}")
    if found.interrupted:
        # The program ends as after any Ctrl-C.
        raise KeyboardInterrupt
    if found.off or found.noisy:
        raise typer.Exit(OUTSIDE)


def _choose_validation(spec: "CellSpec") -> "Callable[..., Validation]":
    """Return what validates a plan with a cell."""
    if spec.runtime == "jax":
        from ckptplan.calibration.in_jax.validate import validate_jax

        return validate_jax
    from ckptplan.calibration.validate import validate

    return validate


def _choose_place(
    plan: "Plan", spec: "CellSpec", *, device: Device | None, thread_count: int | None, trace: str | None
) -> dict[str, Any]:
    """Return where a cell runs, as arguments of what validates. Raises InputError."""
    name = None if device is None else device.value
    if spec.runtime != "jax":
        return {"device": name, "thread_count": thread_count}
    from ckptplan.calibration.in_jax.threads import set_threads

    options.check_jax_device(name)
    if trace is not None:
        raise InputError(
            "a compiled program of JAX has no times of its actions",
            field="--trace",
            value=trace,
            accepted="`ckptplan simulate` with --trace, for the simulated timeline alone",
        )
    calibration = plan.workload.calibration
    return {"threads": set_threads(thread_count or (calibration.threads if calibration else None))}


def _read_seconds(text: str | None) -> float | None:
    """Return a limit in seconds, None if it is not given. Raises InputError."""
    seconds: float | None = options.parsed("--max-seconds", parse_seconds, text)
    if seconds is not None and seconds <= 0:
        raise InputError(
            f"{quote_value(text)} is out of range", field="--max-seconds", value=text, accepted="more than 0"
        )
    return seconds


@contextmanager
def _late_bar(text: str) -> "Iterator[Progress]":
    """Show a progress bar from the first report on, so that lines written before stay above it."""
    from ckptplan.cli.progress import progress_bar

    with ExitStack() as stack:
        bars: list[Progress | None] = []

        def report(done: int, total: int) -> None:
            if not bars:
                bars.append(stack.enter_context(progress_bar(text)))
            if bars[0] is not None:
                bars[0](done, total)

        yield report


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
