"""``ckptplan sweep``: the best plan at every point of a grid, in a file that survives interruptions.

Rows are printed, streamed, or written to files that can be continued.
"""

from __future__ import annotations

import sys
from collections import deque
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal, TypeAlias, cast, get_args

import typer

from ckptplan.cli import options
from ckptplan.cli.command import Read
from ckptplan.cli.options import MachinesOptions, WishOptions, count, option
from ckptplan.cli.output import Basis, OutputFile, OutputOptions, PictureOptions, note, write_view
from ckptplan.cli.progress import progress_bar
from ckptplan.errors import InputError, MissingExtra, refuse
from ckptplan.storage.files import replace_file
from ckptplan.storage.rows import open_rows
from ckptplan.storage.tables import Lines, Row, import_pyarrow, read_identity, write_parquet
from ckptplan.studies.shards import merge_parts, parse_shard

if TYPE_CHECKING:
    from concurrent.futures import Executor

    from ckptplan.report.sweep import SweepPicture
    from ckptplan.studies.sweep import Sweep


#: How rows are written.
RowFormat: TypeAlias = Literal["csv", "jsonl", "parquet"]


@dataclass(kw_only=True)
class SweepRun:
    """A sweep, the processes or the executor that plan it, and what collects its rows besides their file."""

    sweep: Sweep
    jobs: int | None
    executor: Executor | None
    picture: SweepPicture | None
    #: Rows with a plan among those that were yielded.
    fitting: int = 0

    def rows(self, *, start: int = 0, beside_output: bool = False) -> Iterator[list[Row]]:
        """Yield lists of rows, from number ``start``, and show the progress, which counts rows that were taken.

        A picture needs the rows before these, too, which are planned again. ``beside_output`` says that rows
        go to standard output.
        """
        from ckptplan.studies.sweep import iterate_rows

        first = done = start if self.picture is None else 0
        if done < start:
            note(f"planning {start:,} rows of the file again, for the picture or the page")
        with progress_bar("planning", beside_output=beside_output) as progress:
            for rows in iterate_rows(self.sweep, start=first, jobs=self.jobs, executor=self.executor):
                if self.picture is not None:
                    self.picture.add(rows)
                new = rows[max(0, start - done) :]
                self.fitting += sum(bool(row["fits"]) for row in new)
                yield new
                done += len(rows)
                progress(done - first, len(self.sweep) - first)

    def lines(self, chosen: RowFormat) -> Lines:
        """Return how rows are written as text."""
        return Lines(format="csv" if chosen == "csv" else "jsonl", columns=self.sweep.columns)


def run_sweep(
    work: SweepRun, chosen: RowFormat | None, output: str | None, *, restart: bool, basis: bool
) -> None:
    """Plan a sweep, and print its rows as a table (no format), stream them, or write them to a file."""
    if chosen is None:
        _print(work, basis=basis)
    elif chosen == "parquet":
        _write_parquet(work, str(output), restart=restart)
    elif output in (None, "-") or is_no_file(str(output)):
        _stream(work, chosen, output)
    else:
        _write_rows(work, chosen, str(output), restart=restart)


def is_no_file(path: str) -> bool:
    """Return whether a path exists and is a pipe, a device or a folder."""
    return Path(path).exists() and not Path(path).is_file()


def _print(work: SweepRun, *, basis: bool) -> None:
    from ckptplan.report.formats import View
    from ckptplan.report.sweep import Summary

    summary = Summary(work.sweep)
    for rows in work.rows():
        summary.add(rows)
    view = View(kind="sweep", blocks=summary.blocks, basis=summary.list_basis)
    write_view(view, OutputOptions(basis=basis))


def _stream(work: SweepRun, chosen: RowFormat, output: str | None) -> None:
    """Write rows to standard output, a device or a pipe, which cannot be continued."""
    lines = work.lines(chosen)
    with replace_file(output or "-") as file:
        file.write(lines.header())
        for rows in work.rows(beside_output=file is sys.stdout):
            file.write("".join(map(lines.line, rows)))
            file.flush()


def _write_rows(work: SweepRun, chosen: RowFormat, output: str, *, restart: bool) -> None:
    """Write a file of rows, or add the missing rows to it."""
    sweep = work.sweep
    with open_rows(
        output,
        lines=work.lines(chosen),
        identity=sweep.identity,
        total=len(sweep),
        head=sweep.head,
        restart=restart,
    ) as file:
        new = len(sweep) - file.done
        if new and file.done:
            note(f"{output} has {file.done:,} of {len(sweep):,} rows; continuing")
        try:
            for rows in work.rows(start=file.done):
                file.append(rows)
        except KeyboardInterrupt:
            # Counted in the file: the interruption may have come between a row and its report.
            note(f"{file.count():,} of {len(sweep):,} rows are in {output}; the same command continues there")
            raise
    note(_say_written(work, output, new=new))


def _write_parquet(work: SweepRun, output: str, *, restart: bool) -> None:
    """Write a Parquet file, which is there when all its rows are; an interrupted sweep begins anew."""
    sweep, identity = work.sweep, work.sweep.identity
    import_pyarrow()  # fail now if it is missing, not when all rows are there
    found = None if restart else read_identity(output)
    if found not in (None, identity):
        raise InputError("holds another sweep", source=output, accepted="a new file, or --restart")
    rows = work.rows(start=0 if found is None else len(sweep))
    if found is None:
        write_parquet(output, rows, columns=sweep.columns, identity=identity)
    # Whatever a picture needs besides.
    deque(rows, maxlen=0)
    note(_say_written(work, output, new=0 if found else len(sweep)))


def _say_written(work: SweepRun, output: str, *, new: int) -> str:
    if not new:
        return f"{output} is complete: {len(work.sweep):,} rows"
    parts = [f"{new:,} rows written to {output}: plans at {work.fitting:,}"]
    if new > work.fitting:
        parts.append(f"nothing fits at {new - work.fitting:,} (the column binding says why)")
    # Pictures have two axes, and show all parts.
    drawn = work.picture or len(work.sweep.grid.axes) > 2 or work.sweep.shard is not None
    return ", ".join(parts) + ("" if drawn else "; with --html FILE the same command draws them")


@dataclass(frozen=True, kw_only=True)
class JobsOptions(MachinesOptions):
    """Workloads and profiles, combined each with each."""

    workload: Annotated[
        list[Any] | None,
        options.pick(
            "workloads", "Workloads, separated by commas, or 'all' (default: paper-snn).", several=True
        ),
    ] = None  # type: ignore[assignment]  # names in place of one

    @property
    def workloads(self) -> list[str]:
        """The names of the workloads, each once. Raises InputError if there are none."""
        return options.join_names(
            self.workload, default=options.DEFAULT_WORKLOAD, option="--workload", shelf="workloads"
        )


def _read_engine(text: str) -> str:
    """Return HOST:PORT of a cluster. Raises InputError."""
    scheme, _, address = text.partition("://")
    host, _, port = address.rpartition(":")
    if scheme != "dask" or not host or not port.isdecimal():
        raise refuse(
            text, "is not a cluster", accepted="dask://HOST:PORT, as the scheduler prints it after tcp://"
        )
    return address


@contextmanager
def _connect(engine: str | None) -> Iterator[Executor | None]:
    """Connect to a cluster, if there is one. Raises InputError, MissingExtra."""
    if engine is None:
        yield None
        return
    try:
        from distributed import Client
    except ImportError:
        raise MissingExtra("dask", package="distributed") from None
    try:
        client = Client(f"tcp://{engine}")
    except OSError:
        raise InputError(
            "no scheduler of Dask answers",
            field="--engine",
            value=engine,
            accepted="the address that `dask scheduler` prints",
        ) from None
    with client:
        yield client.get_executor()


def _merge(parts: list[str], chosen: RowFormat | None, output: str | None) -> None:
    """Write the rows of all parts of a sweep in order. Raises InputError."""
    if chosen not in ("csv", "jsonl") or output is None:
        raise InputError(
            "needs a file for the rows",
            field="--merge",
            accepted="-o FILE.csv or -o FILE.jsonl, as the parts are; a folder of Parquet files is one table",
        )
    count = merge_parts(parts, output, wanted=chosen)
    note(f"{count:,} rows of {len(parts):,} parts written to {output}")


def _complete_axis() -> list[str]:
    from ckptplan.studies.axes import all_axes

    return [f"{name}=" for name in all_axes()]


def sweep(
    *,
    parts: Annotated[
        list[Any] | None,
        typer.Argument(metavar="[PARTS]...", help="The files that --merge merges.", parser=Read),
    ] = None,
    over: Annotated[
        list[str] | None,
        option(
            "NAME=VALUES",
            "An input and its values: T=256:65536:x2, latency=0:1us:+100ns, bandwidth=5GB/s:80GB/s:n9, "
            "batch=30,60; once for each axis of the grid. docs/sweep.md has the names.",
            autocompletion=_complete_axis,
        ),
    ] = None,
    given: JobsOptions,
    wishes: WishOptions,
    jobs: Annotated[int | None, count("Number of processes (default: one per core).", most=1024)] = None,
    format_: Annotated[
        RowFormat | None,
        option("NAME", "How rows are written: csv, jsonl or parquet (default: by the file's name)."),
    ] = None,
    output: OutputFile = None,
    shard: Annotated[
        Any,
        option("NUMBER/COUNT", "Plan one of several parts, as 3/64, each on a machine.", parser=parse_shard),
    ] = None,
    merge: Annotated[bool, typer.Option(help="Write the rows of all PARTS in order to -o FILE.")] = False,
    engine: Annotated[
        str | None,
        option("URL", "Plan on the workers of a cluster, as dask://HOST:PORT.", parser=_read_engine),
    ] = None,
    restart: Annotated[bool, typer.Option(help="Start the file again, whatever it holds.")] = False,
    picture: PictureOptions,
    basis: Basis = False,
) -> None:
    """Find the best plan at every point of a grid over any inputs.

    With -o FILE rows go to a file (.csv, .jsonl or .parquet) as they come; after an interruption the same
    command continues it. Without, a table shows the first ones. Strategies are those that answer at once
    ('closed'), unless --strategies names others. With --shard 3/64 a machine plans one of 64 parts, and
    --merge part-*.csv -o all.csv puts the parts together.
    """
    drawings = {"--plot": picture.plot, "--html": picture.html}
    options.keep_apart({"--over": over, "--shard": shard, "--engine": engine, **drawings, "--merge": merge})
    options.keep_apart({**drawings, "--shard": shard})
    options.keep_apart({"--jobs": jobs, "--engine": engine})
    chosen = _choose_format(format_, output)
    if merge:
        _merge(parts or [], chosen, output)
        return
    if parts:
        raise InputError("are files to merge", field="PARTS", accepted="--merge with them")
    if shard is not None and chosen is None:
        raise InputError("writes a part of a sweep", field="--shard", accepted="-o FILE beside it, or --format")
    grid = _prepare(over or [], given, wishes, shard)
    collected = None
    if picture.plot or picture.html:
        from ckptplan.report.sweep import SweepPicture, view_sweep

        collected = SweepPicture(grid, page=picture.html is not None)
    with _connect(engine) as executor:
        work = SweepRun(sweep=grid, jobs=jobs, executor=executor, picture=collected)
        run_sweep(work, chosen, output, restart=restart, basis=basis)
    if collected is not None:
        picture.draw(view_sweep(collected))


def _choose_format(asked: RowFormat | None, output: str | None) -> RowFormat | None:
    """Return the format of the rows, None for a table. Raises InputError if it is not determined."""
    if asked == "parquet" and (output in (None, "-") or is_no_file(str(output))):
        raise InputError(
            "cannot be streamed", field="--format", value="parquet", accepted="-o FILE, or csv or jsonl"
        )
    if asked is not None or output is None:
        return asked
    suffix = Path(output).suffix.removeprefix(".").lower()
    if suffix in get_args(RowFormat):
        return cast("RowFormat", suffix)
    accepted = "a name that ends in .csv, .jsonl or .parquet, or --format"
    raise refuse(output, "does not say how rows are written", field="--output", accepted=accepted)


def _prepare(over: list[str], given: JobsOptions, wishes: WishOptions, shard: tuple[int, int] | None) -> Sweep:
    """Return the sweep. Raises InputError."""
    from ckptplan.storage.toml_files import load_profile
    from ckptplan.studies.sweep import make_sweep

    profiles = [load_profile(name) for name in given.profiles]
    workloads = [given.load_workload(name) for name in given.workloads]
    made = make_sweep(over, profiles=profiles, workloads=workloads, shard=shard, **wishes.read())
    for axis in made.grid.axes:
        if {"T": given.steps, "batch": given.batch, "neurons": given.neurons}.get(axis.name) is not None:
            raise InputError(
                "is varied by --over and set for all of it",
                field=f"--{axis.name}",
                accepted=f"either --over {axis.name}=... or --{axis.name}",
            )
    if not over and len(made) == 1:
        raise InputError(
            "is missing: the sweep would have one point", field="--over", accepted="as T=256:65536:x2"
        )
    return made
