"""``ckptplan sweep``: the best plan at every point of a grid, in a file that survives interruptions."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import nullcontext
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, cast, get_args

import typer

import ckptplan
from ckptplan.cli import options
from ckptplan.cli.command import Read
from ckptplan.cli.options import JobOptions, WishOptions, count, option
from ckptplan.cli.output import Basis, OutputFile, OutputOptions, PictureOptions, note, publish
from ckptplan.cli.progress import progress_bar
from ckptplan.errors import InputError, refuse
from ckptplan.storage.rows import RowFormat, is_stream, open_output
from ckptplan.studies.shards import merge_parts, parse_shard

if TYPE_CHECKING:
    from concurrent.futures import Executor

    from ckptplan.storage.tables import Row
    from ckptplan.studies.sweep import Sweep, SweepResult


def _read_engine(text: str) -> str:
    """Return HOST:PORT of a cluster. Raises InputError."""
    scheme, _, address = text.partition("://")
    host, _, port = address.rpartition(":")
    if scheme != "dask" or not host or not port.isdecimal():
        accepted = "dask://HOST:PORT, as the scheduler prints it after tcp://"
        raise refuse(text, "is not a cluster", accepted=accepted)
    return address


def _complete_axis() -> list[str]:
    from ckptplan.studies.axes import all_axes

    return [f"{name}=" for name in all_axes()]


_ABOUT_OVER = (
    "An input and its values: T=256:65536:x2, latency=0:1us:+100ns, bandwidth=5GB/s:80GB/s:n9, "
    "batch=30,60; once for each axis of the grid. docs/sweep.md has the names."
)


def sweep(
    *,
    parts: Annotated[
        list[Any] | None,
        typer.Argument(metavar="[PARTS]...", help="The files that --merge merges.", parser=Read),
    ] = None,
    over: Annotated[list[str] | None, option("NAME=VALUES", _ABOUT_OVER, autocompletion=_complete_axis)] = None,
    job: JobOptions,
    wishes: WishOptions,
    jobs: Annotated[int | None, count("Number of processes (default: one per core).", most=1024)] = None,
    format_: Annotated[RowFormat | None, option("NAME", "Rows as csv, jsonl or parquet.")] = None,
    output: OutputFile = None,
    shard: Annotated[
        Any, option("NUMBER/COUNT", "Plan one part of several, as 3/64.", parser=parse_shard)
    ] = None,
    merge: Annotated[bool, typer.Option(help="Write the rows of all PARTS in order to -o FILE.")] = False,
    engine: Annotated[
        str | None, option("URL", "Plan on a cluster: dask://HOST:PORT.", parser=_read_engine)
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
        if chosen not in ("csv", "jsonl") or output is None:
            accepted = "-o FILE.csv or -o FILE.jsonl, as the parts are; a folder of Parquet files is one table"
            raise InputError("needs a file for the rows", field="--merge", accepted=accepted)
        total = merge_parts(parts or [], output, wanted=chosen)
        note(f"{total:,} rows of {len(parts or []):,} parts written to {output}")
        return
    if parts:
        raise InputError("are files to merge", field="PARTS", accepted="--merge with them")
    if shard is not None and chosen is None:
        raise InputError("writes a part of a sweep", field="--shard", accepted="-o FILE beside it, or --format")
    grid = _make_sweep(over or [], job, wishes, shard)
    from ckptplan.report.sweep import check_drawn, view_sweep
    from ckptplan.studies.workers import connect_to_dask

    is_drawn = bool(picture.plot or picture.html)
    if is_drawn:
        check_drawn(grid)
    result = ckptplan.SweepResult(grid)
    first_rows: list[Row] = []
    view = view_sweep(result, first_rows, is_drawn=is_drawn)
    with nullcontext() if engine is None else connect_to_dask(engine) as executor:
        plan = partial(_plan_rows, result, first_rows, jobs=jobs, executor=executor, is_drawn=is_drawn)
        if chosen is not None:
            _write_rows(grid, chosen, output or "-", plan, restart=restart, is_drawn=is_drawn)
        else:
            plan(lambda _: None)
            publish(view, OutputOptions(basis=basis))
    picture.draw(view)


def _make_sweep(over: list[str], job: JobOptions, wishes: WishOptions, shard: tuple[int, int] | None) -> Sweep:
    """Return the sweep of a grid over the jobs. Raises InputError."""
    from ckptplan.studies.sweep import make_sweep

    profiles, workloads = job.load_profiles(), job.load_workloads()
    sweep = make_sweep(over, profiles=profiles, workloads=workloads, shard=shard, **wishes.read())
    for axis in sweep.grid.axes:
        if {"T": job.steps, "batch": job.batch, "neurons": job.neurons}.get(axis.name) is not None:
            problem = "is varied by --over and set for all of it"
            accepted = f"either --over {axis.name}=... or --{axis.name}"
            raise InputError(problem, field=f"--{axis.name}", accepted=accepted)
    if not over and len(sweep) == 1:
        problem = "is missing: the sweep would have one point"
        raise InputError(problem, field="--over", accepted="as T=256:65536:x2")
    return sweep


def _choose_format(requested: RowFormat | None, output: str | None) -> RowFormat | None:
    """Return the format of the rows, None for a table. Raises InputError if the file's name implies none."""
    if requested == "parquet" and is_stream(output or "-"):
        accepted = "-o FILE, or csv or jsonl"
        raise InputError("cannot be streamed", field="--format", value="parquet", accepted=accepted)
    if requested is not None or output is None:
        return requested
    suffix = Path(output).suffix.removeprefix(".").lower()
    if suffix in get_args(RowFormat):
        return cast("RowFormat", suffix)
    accepted = "a name that ends in .csv, .jsonl or .parquet, or --format"
    raise refuse(output, "does not say how rows are written", field="--output", accepted=accepted)


def _plan_rows(
    result: SweepResult,
    first_rows: list[Row],
    append: Callable[[list[Row]], object],
    *,
    jobs: int | None,
    executor: Executor | None,
    is_drawn: bool,
    done: int = 0,
    to_stdout: bool = False,
) -> int:
    """Plan the rows from number ``done`` on, append them, and return how many of them have a plan.

    The planned rows are also added to the result and, up to the length of a table, to its first rows. If a
    picture is drawn, plan the earlier rows again, since the picture needs them, too.
    """
    from ckptplan.report.sweep import MOST_IN_TABLE
    from ckptplan.studies.sweep import iterate_rows

    first, position, total = (0 if is_drawn else done), (0 if is_drawn else done), len(result.sweep)
    if first < done:
        note(f"planning {done:,} rows of the file again, for the picture or the page")
    fitting = 0
    with progress_bar("planning", beside_output=to_stdout) as progress:
        for rows in iterate_rows(result.sweep, start=first, jobs=jobs, executor=executor):
            result.add(rows)
            first_rows += rows[: MOST_IN_TABLE - len(first_rows)]
            new = rows[max(0, done - position) :]
            append(new)
            fitting += sum(bool(row["fits"]) for row in new)
            position += len(rows)
            progress(position - first, total - first)
    return fitting


def _write_rows(
    sweep: Sweep, chosen: RowFormat, path: str, plan: Callable[..., int], *, restart: bool, is_drawn: bool
) -> None:
    """Write the rows to a file or a stream, and print how many there are. Raises InputError."""
    total = len(sweep)
    rows: dict[str, Any] = {"columns": sweep.columns, "identity": sweep.identity, "head": sweep.head}
    with open_output(path, chosen, **rows, total=total, restart=restart) as file:
        if 0 < file.done < total:
            note(f"{path} has {file.done:,} of {total:,} rows; continuing")
        try:
            fitting = plan(file.append, done=file.done, to_stdout=path == "-")
        except KeyboardInterrupt:
            if file.count is not None:
                # Count in the file, since the interruption may come between writing rows and counting them.
                note(f"{file.count():,} of {total:,} rows are in {path}; the same command continues there")
            raise
    new = total - file.done
    if is_stream(path):
        return
    if not new:
        note(f"{path} is complete: {total:,} rows")
        return
    text = f"{new:,} rows written to {path}: plans at {fitting:,}"
    if new > fitting:
        text += f", nothing fits at {new - fitting:,} (the column binding says why)"
    # A picture has at most two axes and needs all parts.
    if not is_drawn and len(sweep.grid.axes) <= 2 and sweep.shard is None:
        text += "; with --html FILE the same command draws them"
    note(text)
