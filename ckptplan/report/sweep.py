"""A sweep as a table: its first rows, and how often each strategy is best."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping
from itertools import product
from typing import Any

from rich.console import Console

from ckptplan.model.prediction import BasisEntry
from ckptplan.report.basis import list_basis
from ckptplan.report.columns import Cell, Content, FittedTable, Sheet, TableColumn
from ckptplan.report.fields import LOCAL, OVER_BASE, PARAMETERS, TIME, format_cells, make_parameters_cell
from ckptplan.report.infeasible import limit_words
from ckptplan.studies.sweep import Sweep
from ckptplan.units import format_count
from ckptplan.wording import Argument, Phrase, Wording

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
        sheet = Sheet(console, wording)
        title = _format_title(self.sweep)
        if title:
            sheet.say(title, style="bold")
        sheet.show(_make_table(self.sweep, self.shown))
        sheet.gap()
        if self.count > len(self.shown):
            more = f"{format_count(self.count - len(self.shown))} more rows; "
            sheet.say(Phrase(more, Argument("output", "FILE.csv"), " (or .jsonl, .parquet) writes all"))
        shares = ", ".join(f"{name} {format_count(count)}" for name, count in self.best.most_common())
        sheet.say(f"best of {format_count(self.count)}: {shares}")

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
            PARAMETERS.ranked(1),
            TIME,
            OVER_BASE.ranked(3),
            LOCAL.ranked(2),
        )
    )
    for row in rows:
        cells = [row[name] for name in jobs]
        cells += [axis.kind.show(row[axis.column]) for axis in sweep.grid.axes]
        table.add_row(*cells, *(_plan(row) if row["fits"] else _reason(row)))
    return table


def format_reason(row: Mapping[str, Any]) -> str:
    """Return why nothing fits at a row: the limit that binds, what is needed, and what there is."""
    words = limit_words(row["binding"])
    return f"{words.name}: {words.needs_in_cell} {words.short(row['need'])}, has {words.short(row['have'])}"


def _plan(row: Mapping[str, Any]) -> list[Content]:
    return [
        row["strategy"],
        make_parameters_cell(format_cells(row)),
        row["seconds"],
        row["overhead"],
        row["local_peak_bytes"],
    ]


def _reason(row: Mapping[str, Any]) -> list[Content]:
    words = limit_words(row["binding"])
    needs = f"{words.needs_in_cell} {words.short(row['need'])}"
    return [Cell(value="none", style="dim"), Cell(value=format_reason(row), short=needs, style="dim")]
