"""A sweep as a table: its first rows, and how often each strategy is best."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping
from itertools import product
from typing import Any

from rich.console import Console
from rich.text import Text

from ckptplan.model.prediction import BasisEntry
from ckptplan.report.basis import list_basis
from ckptplan.report.columns import (
    Cell,
    Content,
    FittedTable,
    TableColumn,
    align_bytes,
    align_percents,
    align_seconds,
    wrap_lines,
)
from ckptplan.report.fields import shorten_parameters
from ckptplan.report.infeasible import limit_words
from ckptplan.strategies.registry import all_parameters
from ckptplan.studies.axes import Axis
from ckptplan.studies.sweep import Sweep
from ckptplan.units import format_count
from ckptplan.wording import Argument, Wording

#: Rows shown on a console; the others are only counted.
MOST_ROWS = 40


class Summary:
    """Collects rows (``add``): keeps the first ones, counts all."""

    def __init__(self, sweep: Sweep, *, most_rows: int = MOST_ROWS) -> None:
        self.sweep = sweep
        self.most_rows = most_rows
        self.shown: list[Mapping[str, Any]] = []
        self.best: Counter[str] = Counter()
        self.count = 0

    def add(self, rows: Iterable[Mapping[str, Any]]) -> None:
        """Take some rows."""
        for row in rows:
            self.count += 1
            self.best[row["strategy"] or "nothing fits"] += 1
            if len(self.shown) < self.most_rows:
                self.shown.append(row)

    def print(self, console: Console, *, wording: Wording = str) -> None:
        """Print the rows kept, the number left out, and how often each strategy is best."""
        title = _format_title(self.sweep)
        if title:
            console.print(Text(title, style="bold"))
        _make_table(self.sweep, self.shown).print_on(console, wording=wording)
        console.print()
        if self.count > len(self.shown):
            file = wording(Argument("output", "FILE.csv"))
            more = format_count(self.count - len(self.shown))
            text = f"{more} more rows; {file} (or .jsonl, .parquet) writes all"
            console.print(wrap_lines(text, width=console.width), soft_wrap=True)
        shares = ", ".join(f"{name} {format_count(count)}" for name, count in self.best.most_common())
        text = f"best of {format_count(self.count)}: {shares}"
        console.print(wrap_lines(text, width=console.width), soft_wrap=True)

    def list_basis(self) -> tuple[BasisEntry, ...]:
        """Return the inputs of all jobs of the sweep, each once, as they are before the grid changes them."""
        jobs = product(self.sweep.workloads, self.sweep.profiles)
        found = (entry for job in jobs for entry in list_basis(*job, self.sweep.goal))
        return tuple({(entry.field, entry.text): entry for entry in found}.values())


def _list_jobs(sweep: Sweep) -> list[str]:
    """Return which of workload and profile have a column: those of which there are several."""
    return [name for name in ("workload", "profile") if len(getattr(sweep, f"{name}s")) > 1]


def _format_title(sweep: Sweep) -> str:
    """Return the single workload and the single profile."""
    jobs = _list_jobs(sweep)
    names = {"workload": sweep.workloads[0].name, "profile": sweep.profiles[0].name}
    return " on ".join(text for name, text in names.items() if name not in jobs)


def _make_table(sweep: Sweep, rows: Iterable[Mapping[str, Any]]) -> FittedTable:
    """Return a table with a line for each row; a single workload or profile is named in the title."""
    jobs = _list_jobs(sweep)
    table = FittedTable(
        (
            *(TableColumn(title=name) for name in jobs),
            *(
                TableColumn(title=axis.name, short=axis.name.replace("-", "\n"), right=True)
                for axis in sweep.grid.axes
            ),
            TableColumn(title="best"),
            TableColumn(title="parameters", wraps="late", priority=1),
            TableColumn(title="time", form=align_seconds),
            TableColumn(title="over base", short="over\nbase", form=align_percents, priority=3),
            TableColumn(title="local", form=align_bytes, priority=2),
        )
    )
    for row in rows:
        cells = [row[name] for name in jobs] + [_shown(axis, row) for axis in sweep.grid.axes]
        table.add_row(*cells, *(_plan(row) if row["fits"] else _reason(row)))
    return table


def _shown(axis: Axis, row: Mapping[str, Any]) -> str:
    return axis.kind.show(row[axis.column])


def format_parameters_of(row: Mapping[str, Any]) -> str:
    """Return the parameters of a row's plan, as 'chunk_size 64'."""
    return ", ".join(
        f"{name} {row[name]}"
        for name in all_parameters()
        if row[name] is not None and not name.endswith("_units")
    )


def format_reason(row: Mapping[str, Any]) -> str:
    """Return why nothing fits at a row: the limit that binds, what is needed, and what there is."""
    words = limit_words(row["binding"])
    return f"{words.name}: {words.needs_in_cell} {words.short(row['need'])}, has {words.short(row['have'])}"


def _plan(row: Mapping[str, Any]) -> list[Content]:
    parameters = format_parameters_of(row)
    return [
        row["strategy"],
        Cell(value=parameters, short=shorten_parameters(parameters)),
        row["seconds"],
        row["overhead"],
        row["local_peak_bytes"],
    ]


def _reason(row: Mapping[str, Any]) -> list[Content]:
    words = limit_words(row["binding"])
    needs = f"{words.needs_in_cell} {words.short(row['need'])}"
    return [Cell(value="none", style="dim"), Cell(value=format_reason(row), short=needs, style="dim")]
