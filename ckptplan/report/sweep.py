"""A sweep as a table: its first rows, and how often each strategy is best."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping
from typing import Any

from rich.console import Console
from rich.table import Table
from rich.text import Text

from ckptplan.report.limits import limit_words
from ckptplan.strategies.registry import all_parameters
from ckptplan.studies.axes import Axis
from ckptplan.studies.sweep import Sweep
from ckptplan.units import format_bytes, format_count, format_percent, format_seconds
from ckptplan.wording import Argument, Wording

#: Rows shown; the others are only counted.
MOST_ROWS = 40


class Summary:
    """Collects rows (``add``): keeps the first ones, counts all."""

    def __init__(self, sweep: Sweep) -> None:
        self.sweep = sweep
        self.shown: list[Mapping[str, Any]] = []
        self.best: Counter[str] = Counter()
        self.count = 0

    def add(self, rows: Iterable[Mapping[str, Any]]) -> None:
        """Take some rows."""
        for row in rows:
            self.count += 1
            self.best[row["strategy"] or "nothing fits"] += 1
            if len(self.shown) < MOST_ROWS:
                self.shown.append(row)

    def print(self, console: Console, *, wording: Wording = str) -> None:
        """Print the rows kept, the number left out, and how often each strategy is best."""
        console.print(_make_table(self.sweep, self.shown))
        console.print()
        if self.count > len(self.shown):
            file = wording(Argument("output", "FILE.csv"))
            more = format_count(self.count - len(self.shown))
            console.print(f"{more} more rows; {file} (or .jsonl, .parquet) writes all")
        shares = ", ".join(f"{name} {format_count(count)}" for name, count in self.best.most_common())
        console.print(f"best of {format_count(self.count)}: {shares}")


def _make_table(sweep: Sweep, rows: Iterable[Mapping[str, Any]]) -> Table:
    """Return a table with a line for each row; a single workload or profile is named in the title."""
    jobs = [name for name in ("workload", "profile") if len(getattr(sweep, f"{name}s")) > 1]
    fixed = [
        text
        for name, text in (("workload", sweep.workloads[0].name), ("profile", sweep.profiles[0].name))
        if name not in jobs
    ]
    table = Table(
        box=None,
        pad_edge=False,
        header_style="bold",
        padding=(0, 2, 0, 0),
        title=" on ".join(fixed) or None,
        title_justify="left",
        title_style="bold",
    )
    for name in jobs:
        table.add_column(name, no_wrap=True)
    for axis in sweep.grid.axes:
        table.add_column(axis.name, justify="right", no_wrap=True)
    table.add_column("best", no_wrap=True)
    table.add_column("parameters", overflow="fold")
    for heading in ("time", "over base", "local"):
        table.add_column(heading, justify="right", no_wrap=True)
    for row in rows:
        cells = [row[name] for name in jobs] + [_shown(axis, row) for axis in sweep.grid.axes]
        table.add_row(*cells, *(_plan(row) if row["fits"] else _reason(row)))
    return table


def _shown(axis: Axis, row: Mapping[str, Any]) -> str:
    return axis.kind.show(row[axis.column])


def _plan(row: Mapping[str, Any]) -> list[str | Text]:
    parameters = ", ".join(
        f"{name} {row[name]}"
        for name in all_parameters()
        if row[name] is not None and not name.endswith("_units")
    )
    return [
        row["strategy"],
        parameters,
        format_seconds(row["seconds"]),
        format_percent(row["overhead"]),
        format_bytes(row["local_peak_bytes"]),
    ]


def _reason(row: Mapping[str, Any]) -> list[str | Text]:
    words = limit_words(row["binding"])
    text = f"{words.name}: {words.needs_in_cell} {words.short(row['need'])}, has {words.short(row['have'])}"
    return [Text("none", style="dim"), Text(text, style="dim"), "", "", ""]
