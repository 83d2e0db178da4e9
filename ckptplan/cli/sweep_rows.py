"""Rows of a sweep: printed, streamed, or written to files that can be continued."""

from __future__ import annotations

import enum
import sys
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, Protocol

from ckptplan.cli.output import note
from ckptplan.cli.wording import as_option
from ckptplan.errors import InputError

if TYPE_CHECKING:
    from rich.console import Console

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
    from ckptplan.report.basis import print_basis
    from ckptplan.report.formats import print_table
    from ckptplan.report.sweep import Summary

    sweep = work.sweep
    summary = Summary(sweep)
    with _watch(sweep, 0) as report:
        for rows in work.rows():
            summary.add(rows)
            report(len(rows))

    def table(console: Console) -> None:
        summary.print(console, wording=as_option)
        print_basis(console, summary.list_basis(), whole=basis, wording=as_option)

    print_table(table)


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
            written = _fill(file, work, named=output)
    note(written if lacking else _say_complete(output, sweep))


def _write_parquet(work: SweepRun, output: str, *, restart: bool) -> None:
    """Collect rows in a partial file, which can be continued, and write the Parquet file when all are there.

    Existing rows must belong to this sweep. Rows of a sweep that --restart began are continued even if the
    Parquet file still holds another sweep.
    """
    from ckptplan.storage.parquet import holds_sweep, import_pyarrow, read_identity, write_parquet

    sweep = work.sweep
    import_pyarrow()  # fail now if it is missing, not when all rows are there
    partial, identity = Path(f"{output}.partial.jsonl"), sweep.identity
    if not restart and not _has_content(partial):
        try:
            found = read_identity(output)
        except InputError as error:
            raise _offer_restart(error) from None
        if found == identity:
            note(_say_complete(output, sweep))
            return
        if found is not None:
            raise _offer_restart(InputError("holds another sweep", source=output, accepted="a new file"))
    # Holds the lock on both files until the partial file is removed.
    with _open_rows(str(partial), sweep, RowFormat.jsonl, restart=restart) as file:
        # False if another process finished the sweep, or was killed before it removed the partial file.
        lacking = restart or not holds_sweep(output, identity)
        if lacking:
            written = _fill(file, work, named=output)
            write_parquet(output, lines=partial, columns=sweep.columns, identity=identity)
        file.remove()
    note(written if lacking else _say_complete(output, sweep))


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


def _fill(file: RowFile, work: SweepRun, *, named: str) -> str:
    """Add the missing rows to a file, and say what they are; ``named`` is the name to show for it."""
    sweep = work.sweep
    if file.done:
        note(f"{named} has {file.done:,} of {len(sweep):,} rows; continuing")
    new, fitting = len(sweep) - file.done, 0
    try:
        with _watch(sweep, file.done) as report:
            for rows in work.rows(start=file.done):
                file.append(rows)
                fitting += sum(bool(row["fits"]) for row in rows)
                report(len(rows))
    except KeyboardInterrupt:
        # Counted in the file: the interruption may have come between a row and its report.
        note(f"{file.count():,} of {len(sweep):,} rows are in {named}; the same command continues there")
        raise
    parts = [f"{new:,} rows written to {named}: plans at {fitting:,}"]
    if new > fitting:
        parts.append(f"nothing fits at {new - fitting:,} (the column binding says why)")
    # Pictures have two axes.
    drawn = work.collectors or len(sweep.grid.axes) > 2
    return ", ".join(parts) + ("" if drawn else "; with --html FILE the same command draws them")


def _say_complete(output: str, sweep: Sweep) -> str:
    return f"{output} is complete: {len(sweep):,} rows"


def _has_content(path: Path) -> bool:
    return path.exists() and path.stat().st_size > 0


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
