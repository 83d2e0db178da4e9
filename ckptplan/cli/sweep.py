"""``ckptplan sweep``: the best plan at every point of a grid, in a file that survives interruptions.

Rows are printed, streamed, or written to files that can be continued.
"""

from __future__ import annotations

import enum
import sys
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Protocol

import typer

from ckptplan.cli import options
from ckptplan.cli.completion import complete_axis, complete_profiles, complete_workloads
from ckptplan.cli.groups import takes_groups
from ckptplan.cli.html import Html, check_html, write_page
from ckptplan.cli.options import WishOptions
from ckptplan.cli.output import list_basis_blocks, note
from ckptplan.cli.wording import named_by_option
from ckptplan.errors import InputError

if TYPE_CHECKING:
    from ckptplan.report.html.pages import SweepPage
    from ckptplan.report.sweep_plot import SweepPicture
    from ckptplan.storage.rows import RowFile
    from ckptplan.storage.tables import Lines, Row
    from ckptplan.studies.sweep import Sweep


class RowFormat(enum.StrEnum):
    """How rows are written."""

    csv = "csv"
    jsonl = "jsonl"
    parquet = "parquet"


class Collector(Protocol):
    """Takes the rows of a sweep, in their order, for a picture or a page."""

    @property
    def missing(self) -> int:
        """How many rows were not added."""

    def add(self, rows: Iterable[Mapping[str, Any]], *, start: int) -> None:
        """Take some rows, of which the first has the number ``start``."""


@dataclass(frozen=True, kw_only=True)
class SweepRun:
    """A sweep, in how many processes it is planned, and what collects its rows besides their file."""

    sweep: Sweep
    jobs: int | None
    collectors: tuple[Collector, ...]

    def rows(self, *, start: int = 0) -> Iterator[list[Row]]:
        """Yield lists of rows, from number ``start``."""
        from ckptplan.studies.sweep import iterate_rows

        for rows in iterate_rows(self.sweep, start=start, jobs=self.jobs):
            for one in self.collectors:
                one.add(rows, start=start)
            start += len(rows)
            yield rows

    def collect_missing(self) -> None:
        """Plan the rows again that a file had before, if a picture or a page needs them."""
        missing = max((one.missing for one in self.collectors), default=0)
        if not missing:
            return
        note(f"planning {missing:,} rows of the file again, for the picture or the page")
        with _watch(self.sweep, 0) as report:
            for rows in self.rows():
                report(len(rows))
                if not any(one.missing for one in self.collectors):
                    break


def run_sweep(
    work: SweepRun, chosen: RowFormat | None, output: str | None, *, restart: bool, basis: bool
) -> None:
    """Plan a sweep, and print its rows as a table (no format), stream them, or write them to a file."""
    if chosen is None:
        _print(work, basis=basis)
    elif chosen is RowFormat.parquet:
        _write_parquet(work, str(output), restart=restart)
    elif output in (None, "-") or is_no_file(str(output)):
        _stream(work, chosen, output)
    else:
        _write_rows(work, chosen, str(output), restart=restart)
    work.collect_missing()


def is_no_file(path: str) -> bool:
    """Return whether a path exists and is a pipe, a device or a folder."""
    return Path(path).exists() and not Path(path).is_file()


def _print(work: SweepRun, *, basis: bool) -> None:
    from ckptplan.report.formats import show_blocks
    from ckptplan.report.sweep import Summary

    sweep = work.sweep
    summary = Summary(sweep)
    with _watch(sweep, 0) as report:
        for rows in work.rows():
            summary.add(rows)
            report(len(rows))

    show_blocks([*summary.blocks(), *list_basis_blocks(summary.list_basis(), whole=basis)])


def _stream(work: SweepRun, chosen: RowFormat, output: str | None) -> None:
    """Write rows to standard output, a device or a pipe, which cannot be continued."""
    from ckptplan.storage.files import replace_file

    sweep = work.sweep
    lines = _make_lines(sweep, chosen)
    with (
        replace_file(output or "-") as file,
        _watch(sweep, 0, beside_output=file is sys.stdout) as report,
    ):
        file.write(lines.header())
        for rows in work.rows():
            file.write("".join(map(lines.line, rows)))
            file.flush()
            report(len(rows))


def _write_rows(work: SweepRun, chosen: RowFormat, output: str, *, restart: bool) -> None:
    """Write a file of rows, or add the missing rows to it."""
    sweep = work.sweep
    with _open_rows(output, sweep, chosen, restart=restart) as file:
        lacking = file.done < len(sweep)
        if lacking:
            written = _fill(file, work, output)
    note(written if lacking else _say_complete(output, sweep))


def _write_parquet(work: SweepRun, output: str, *, restart: bool) -> None:
    """Write a Parquet file, which is there when all its rows are; an interrupted sweep begins anew."""
    from ckptplan.storage.tables import import_pyarrow, read_identity, write_parquet

    sweep = work.sweep
    import_pyarrow()  # fail now if it is missing, not when all rows are there
    identity = sweep.identity
    try:
        found = None if restart else read_identity(output)
    except InputError as error:
        raise _offer_restart(error) from None
    if found == identity:
        note(_say_complete(output, sweep))
        return
    if found is not None:
        raise _offer_restart(InputError("holds another sweep", source=output, accepted="a new file"))
    fitting = 0

    def plan() -> Iterator[list[Row]]:
        nonlocal fitting
        for rows in work.rows():
            yield rows
            fitting += sum(bool(row["fits"]) for row in rows)
            report(len(rows))

    with _watch(sweep, 0) as report:
        write_parquet(output, plan(), columns=sweep.columns, identity=identity)
    note(_say_written(work, output, new=len(sweep), fitting=fitting))


def _offer_restart(error: InputError) -> InputError:
    """Return the error with --restart as another remedy."""
    if error.accepted is None:
        return error
    return InputError(error.message, source=error.source, accepted=f"{error.accepted}, or --restart")


def _open_rows(path: str, sweep: Sweep, chosen: RowFormat, *, restart: bool) -> AbstractContextManager[RowFile]:
    """Open a file of the sweep's rows. Raises InputError as ``row_file`` does."""
    from ckptplan.storage.rows import open_rows

    identity = sweep.identity
    return open_rows(
        path,
        lines=_make_lines(sweep, chosen),
        identity=identity,
        total=len(sweep),
        head=lambda index: sweep.head(index, identity=identity),
        restart=restart,
    )


def _fill(file: RowFile, work: SweepRun, output: str) -> str:
    """Add the missing rows to a file, and say what they are."""
    sweep = work.sweep
    if file.done:
        note(f"{output} has {file.done:,} of {len(sweep):,} rows; continuing")
    new, fitting = len(sweep) - file.done, 0
    try:
        with _watch(sweep, file.done) as report:
            for rows in work.rows(start=file.done):
                file.append(rows)
                fitting += sum(bool(row["fits"]) for row in rows)
                report(len(rows))
    except KeyboardInterrupt:
        # Counted in the file: the interruption may have come between a row and its report.
        note(f"{file.count():,} of {len(sweep):,} rows are in {output}; the same command continues there")
        raise
    return _say_written(work, output, new=new, fitting=fitting)


def _say_written(work: SweepRun, output: str, *, new: int, fitting: int) -> str:
    parts = [f"{new:,} rows written to {output}: plans at {fitting:,}"]
    if new > fitting:
        parts.append(f"nothing fits at {new - fitting:,} (the column binding says why)")
    # Pictures have two axes.
    drawn = work.collectors or len(work.sweep.grid.axes) > 2
    return ", ".join(parts) + ("" if drawn else "; with --html FILE the same command draws them")


def _say_complete(output: str, sweep: Sweep) -> str:
    return f"{output} is complete: {len(sweep):,} rows"


def _make_lines(sweep: Sweep, chosen: RowFormat) -> Lines:
    from ckptplan.storage.tables import Lines

    return Lines(format="csv" if chosen is RowFormat.csv else "jsonl", columns=sweep.columns)


@contextmanager
def _watch(sweep: Sweep, done: int, *, beside_output: bool = False) -> Iterator[Callable[[int], None]]:
    """Show a progress bar; yields a callback for the number of new rows."""
    from ckptplan.cli.progress import progress_bar

    start = done
    with progress_bar("planning", beside_output=beside_output) as progress:

        def report(rows: int) -> None:
            nonlocal done
            done += rows
            if progress is not None:
                # Rows of an earlier run would distort the estimate of the time left.
                progress(done - start, len(sweep) - start)

        yield report


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
        write_page(html, page.make)


def _make_picture(sweep: Sweep) -> SweepPicture:
    from ckptplan.report.sweep_plot import SweepPicture

    try:
        return SweepPicture(sweep)
    except InputError as error:
        raise InputError(error.message, field="--plot", accepted=error.accepted) from None


def _make_page(sweep: Sweep) -> SweepPage:
    from ckptplan.report.html.pages import SweepPage

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
