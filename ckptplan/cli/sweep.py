"""``ckptplan sweep``: the best plan at every point of a grid, in a file that survives interruptions."""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from ckptplan.cli import options
from ckptplan.cli.completion import complete_axis, complete_profiles, complete_workloads
from ckptplan.cli.groups import takes_groups
from ckptplan.cli.html import Html, check_html, write_page
from ckptplan.cli.options import WishOptions, command_line
from ckptplan.cli.output import note
from ckptplan.cli.sweep_rows import RowFormat, SweepRun, is_no_file, run_sweep
from ckptplan.cli.wording import as_option, named_by_option
from ckptplan.errors import InputError

if TYPE_CHECKING:
    from ckptplan.report.html.sweep import SweepPage
    from ckptplan.report.sweep_plot import SweepPicture
    from ckptplan.studies.sweep import Sweep


Over = Annotated[
    list[str] | None,
    typer.Option(
        "--over",
        metavar="NAME=VALUES",
        help="An input and its values: T=256:65536:x2, latency=0:1us:+100ns, bandwidth=5GB/s:80GB/s:n9, "
        "batch=30,60; once for each axis of the grid. docs/sweep.md has the names.",
        autocompletion=complete_axis,
    ),
]


@dataclass(frozen=True, kw_only=True)
class JobsOptions:
    """Workloads and profiles, combined each with each."""

    profile: Annotated[
        list[str],
        typer.Option(
            "--profile",
            metavar="NAMES|PATHS",
            help="Hardware profiles, separated by commas.",
            autocompletion=complete_profiles,
        ),
    ] = field(default_factory=lambda: ["ipu-mk2"])
    workload: Annotated[
        list[str],
        typer.Option(
            "--workload",
            metavar="NAMES|PATHS",
            help="Workloads, separated by commas.",
            autocompletion=complete_workloads,
        ),
    ] = field(default_factory=lambda: ["paper-snn"])
    steps: options.Steps = None
    batch: options.Batch = None
    neurons: options.Neurons = None

    @property
    def profiles(self) -> list[str]:
        """The name of each profile."""
        return _split_names(self.profile)

    @property
    def workloads(self) -> list[str]:
        """The name of each workload."""
        return _split_names(self.workload)


@takes_groups
def command(
    *,
    over: Over = None,
    given: JobsOptions,
    wishes: WishOptions,
    jobs: Annotated[
        str | None,
        typer.Option("--jobs", metavar="INTEGER", help="Number of processes (default: one per core)."),
    ] = None,
    format_: Annotated[
        RowFormat | None, typer.Option("--format", help="How rows are written (default: by the file's name).")
    ] = None,
    output: options.OutputFile = None,
    restart: Annotated[
        bool, typer.Option("--restart", help="Start the file again, whatever it holds.")
    ] = False,
    plot: Annotated[
        str | None,
        typer.Option(
            "--plot",
            metavar="FILE",
            help="Draw lines over one axis, a heat map over two, as .png, .svg or .pdf.",
            callback=options.named_file,
        ),
    ] = None,
    size: options.PictureSize = "page",
    html: Html = None,
    basis: options.Basis = False,
) -> None:
    """Find the best plan at every point of a grid over any inputs.

    With -o FILE rows go to a file (.csv, .jsonl or .parquet) as they come; after an interruption the same
    command continues it. Without, a table shows the first ones. Strategies are those that answer at once
    ('closed'), unless --strategies names others.
    """
    chosen = _format(format_, output)
    processes = None if jobs is None else options.plain_integer(jobs, option="--jobs", most=1024)
    check_html(html)
    outputs = {"--output": output, "--plot": plot, "--html": html}
    with named_by_option():
        sweep = _prepare(over or [], given, wishes.read(), outputs)
        picture = _make_picture(sweep) if plot else None
        page = _make_page(sweep) if html else None
    collectors = tuple(one for one in (picture, page) if one is not None)
    work = SweepRun(sweep=sweep, jobs=processes, collectors=collectors)
    run_sweep(work, chosen, output, restart=restart, basis=basis)
    if picture is not None and plot:
        _draw(picture, plot, size)
    if page is not None:
        write_page(html, lambda: page.make(wording=as_option, command=command_line()))


def _make_picture(sweep: Sweep) -> SweepPicture:
    from ckptplan.report.sweep_plot import SweepPicture

    try:
        return SweepPicture(sweep)
    except InputError as error:
        raise InputError(error.message, field="--plot", accepted=error.accepted) from None


def _make_page(sweep: Sweep) -> SweepPage:
    from ckptplan.report.html.sweep import SweepPage

    try:
        return SweepPage(sweep)
    except InputError as error:
        raise InputError(error.message, field="--html", accepted=error.accepted) from None


def _draw(picture: SweepPicture, path: str, size: str) -> None:
    from ckptplan.report.style import SIZES, save_picture, styled
    from ckptplan.report.sweep_plot import draw_sweep

    with styled(SIZES[size]):
        save_picture(draw_sweep(picture, SIZES[size]), path, option="--plot")
    note(f"picture written to {path}")


def _format(asked: RowFormat | None, output: str | None) -> RowFormat | None:
    """Return the format of the rows, None for a table. Raises InputError if it is not determined."""
    known = [one.value for one in RowFormat]
    if asked is RowFormat.parquet and (output in (None, "-") or is_no_file(str(output))):
        raise InputError(
            "cannot be streamed", field="--format", value="parquet", accepted="-o FILE, or csv or jsonl"
        )
    if asked is not None or output is None:
        return asked
    suffix = Path(output).suffix.removeprefix(".").lower()
    if suffix not in known:
        raise InputError(
            f"{output!r} does not say how rows are written",
            field="--output",
            value=output,
            accepted="a name that ends in .csv, .jsonl or .parquet, or --format",
        )
    return RowFormat(suffix)


def _prepare(
    over: list[str], given: JobsOptions, wishes: dict[str, Any], outputs: dict[str, str | None]
) -> Sweep:
    from ckptplan.report.style import picture_format
    from ckptplan.studies.sweep import make_sweep

    plot = outputs["--plot"]
    if plot:
        picture_format(plot, option="--plot")
    options.keep_inputs(outputs, *given.profiles, *given.workloads)
    sizes = {"steps": given.steps, "batch": given.batch, "neurons": given.neurons}
    sweep = make_sweep(
        over,
        profiles=[options.load_profile(name) for name in given.profiles],
        workloads=[options.load_workload(name, **sizes) for name in given.workloads],
        **wishes,
    )
    for axis in sweep.grid.axes:
        if {"T": given.steps, "batch": given.batch, "neurons": given.neurons}.get(axis.name) is not None:
            raise InputError(
                "is varied by --over and set for all of it",
                field=f"--{axis.name}",
                accepted=f"either --over {axis.name}=... or --{axis.name}",
            )
    if not over and len(sweep) == 1:
        raise InputError(
            "is missing: the sweep would have one point", field="--over", accepted="as T=256:65536:x2"
        )
    return sweep


def _split_names(given: list[str]) -> list[str]:
    return [name.strip() for text in given for name in text.split(",")]
