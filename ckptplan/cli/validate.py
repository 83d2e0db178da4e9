"""``ckptplan validate``: execute a plan and compare its predictions with measurements."""

from typing import Annotated

import typer

from ckptplan.cli import options
from ckptplan.cli.cells import Device
from ckptplan.cli.options import count, option
from ckptplan.cli.output import OutputOptions, PageOptions, note, write_view
from ckptplan.cli.plans import traced
from ckptplan.cli.progress import progress_bar
from ckptplan.errors import InputError

#: Exit code if a prediction is outside its tolerance.
OUTSIDE = 4


def validate(
    *,
    plan: options.PlanFile,
    tolerance: Annotated[
        float,
        option("SHARE", "How far times may be off, besides their intervals.", parser=options.parse_tolerance),
    ] = 0.1,
    overhead_tolerance: Annotated[
        float,
        option(
            "SHARE",
            "How far the time added to base's may be off, as a share of the longer of both, besides intervals.",
            parser=options.parse_tolerance,
        ),
    ] = 0.03,
    memory_tolerance: Annotated[
        float, option("SHARE", "How far the live peak may be off.", parser=options.parse_tolerance)
    ] = 0.05,
    regret: Annotated[bool, typer.Option(help="Run the best plan of each other strategy, too.")] = False,
    repeats: Annotated[int, count("Rounds; times are their lower quartiles.", most=1000)] = 5,
    strict: Annotated[bool, typer.Option(help="Exit 4 if anything is too noisy to judge, too.")] = False,
    cell: Annotated[
        str | None, option("NAME(...)", "Run this cell, not the workload's: 'gru(neurons=256)'.")
    ] = None,
    trust_cell: Annotated[
        bool, typer.Option(help="Import and run the factory that the plan names: its author's code.")
    ] = False,
    device: Annotated[
        Device | None, typer.Option(help="Where to run (default: where it was calibrated).")
    ] = None,
    thread_count: options.Threads = None,
    remote_dir: Annotated[
        str | None, option("DIR", "Keep remote checkpoints in this folder, not in host memory; in wall time.")
    ] = None,
    max_seconds: Annotated[
        float | None,
        option(
            "SECONDS",
            "Run nothing if it would take longer (default: 60 for other hardware, else 600).",
            parser=options.parse_limit,
        ),
    ] = None,
    trace: options.Trace = None,
    page: PageOptions,
    output: OutputOptions,
) -> None:
    """Run a plan and base on the same weights and data: predicted against measured, part by part.

    Exits 4 if anything is outside the tolerance, and names it; what is too noisy to judge is only named. Ctrl-C
    shows what was compared so far.

    Of a plan for other hardware, only counts, bytes and gradients are compared.
    """
    from ckptplan.calibration.validate import choose_cell
    from ckptplan.calibration.validate import validate as compare_with_runs
    from ckptplan.report.validation import view_validation
    from ckptplan.storage.plans import load_plan

    planned = load_plan(plan)
    spec = choose_cell(planned.workload, cell=cell, trust=trust_cell)
    if spec.runtime == "jax" and trace is not None:
        raise InputError(
            "a compiled program of JAX has no times of its actions",
            field="--trace",
            value=trace,
            accepted="`ckptplan simulate` with --trace, for the simulated timeline alone",
        )
    with progress_bar("running") as progress:
        found = compare_with_runs(
            planned,
            spec=spec,
            device=device,
            thread_count=thread_count,
            remote_dir=remote_dir,
            regret=regret,
            tolerance=tolerance,
            overhead_tolerance=overhead_tolerance,
            memory_tolerance=memory_tolerance,
            repeats=repeats,
            max_seconds=max_seconds,
            progress=progress,
            tell=lambda text: progress.say(f"ckptplan: {text}"),
        )
    view = view_validation(found)
    write_view(view, output)
    page.draw(view)
    if trace is not None:
        from ckptplan.planning.playback import simulate

        with traced(planned, trace) as chrome:
            simulate(planned, sink=chrome.add)
            chrome.beside(
                process=f"{planned.strategy} on {found.environment.machine}, measured (checkpoints and tapes)",
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
    if found.off or (strict and found.noisy):
        raise typer.Exit(OUTSIDE)
