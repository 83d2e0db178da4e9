"""A sweep as a table: its first rows, and how often each strategy is best."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator, Mapping
from itertools import product
from typing import Any

from ckptplan.model.prediction import BasisEntry
from ckptplan.report.basis import list_basis
from ckptplan.report.blocks import Block, Cell, Field, Paragraph, Table
from ckptplan.report.fields import LOCAL, OVER_BASE, PARAMETERS, TIME, format_cells, make_parameters_cell
from ckptplan.report.infeasible import LIMITS
from ckptplan.studies.sweep import Sweep
from ckptplan.units import format_count
from ckptplan.wording import Argument

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

    def blocks(self) -> Iterator[Block]:
        """Yield the rows kept, the number left out, and how often each strategy is best."""
        sweep = self.sweep
        # A single workload or profile is named in the title, several have a column.
        several = {name: len(getattr(sweep, f"{name}s")) > 1 for name in ("workload", "profile")}
        single = [getattr(sweep, f"{name}s")[0].name for name, column in several.items() if not column]
        if single:
            yield Paragraph("", head=" on ".join(single))
        jobs = [Field(name) for name, column in several.items() if column]
        axes = [
            Field(axis.column, axis.name, axis.name.replace("-", "\n"), right=True) for axis in sweep.grid.axes
        ]
        plan = (Field("strategy", "best"), PARAMETERS.ranked(1), TIME, OVER_BASE.ranked(3), LOCAL.ranked(2))
        yield Table.of((*jobs, *axes, *plan), map(self._tell, self.shown))
        if self.count > len(self.shown):
            more = f"{format_count(self.count - len(self.shown))} more rows"
            yield Paragraph(f"{more}; {Argument('output', 'FILE.csv')} (or .jsonl, .parquet) writes all")
        shares = ", ".join(f"{name} {format_count(count)}" for name, count in self.best.most_common())
        yield Paragraph(f"best of {format_count(self.count)}: {shares}")

    def list_basis(self) -> tuple[BasisEntry, ...]:
        """Return the inputs of all jobs of the sweep, each once, as they are before the grid changes them."""
        jobs = product(self.sweep.workloads, self.sweep.profiles)
        found = (entry for job in jobs for entry in list_basis(*job, self.sweep.goal))
        return tuple({(entry.field, entry.text): entry for entry in found}.values())

    def _tell(self, row: Mapping[str, Any]) -> dict[str, Any]:
        """Return what the table says of a row."""
        axes = {axis.column: axis.kind.show(row[axis.column]) for axis in self.sweep.grid.axes}
        if row["fits"]:
            return {**row, **axes, "parameters": make_parameters_cell(format_cells(row))}
        words = LIMITS[row["binding"]]
        needs = f"{words.needs_in_cell} {words.short(row['need'])}"
        reason = Cell(format_reason(row), short=needs, style="faint")
        return {**row, **axes, "strategy": Cell("none", style="faint"), "parameters": reason}


def format_reason(row: Mapping[str, Any]) -> str:
    """Return why nothing fits at a row: the limit that binds, what is needed, and what there is."""
    words = LIMITS[row["binding"]]
    return f"{words.name}: {words.needs_in_cell} {words.short(row['need'])}, has {words.short(row['have'])}"
