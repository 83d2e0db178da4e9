"""The page of a sweep: lines or heat maps of its best plans, and its rows."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

from rich.console import Console

from ckptplan.report.basis import print_basis
from ckptplan.report.html.blocks import collect_blocks
from ckptplan.report.html.charts.sweep import chart_sweep
from ckptplan.report.html.page import ChartBlock, Page, Section
from ckptplan.report.sweep import Summary
from ckptplan.report.sweep_plot import SweepPicture
from ckptplan.studies.sweep import Sweep
from ckptplan.wording import Wording

#: More points make a page of over 5 MB, and a table that nobody reads.
_MOST_POINTS, _MOST_ROWS = 10_000, 1_000


class SweepPage:
    """Collects rows of a sweep (``add``), and makes a page of all of them."""

    def __init__(self, sweep: Sweep) -> None:
        """Raise InputError for a sweep that no chart of two dimensions shows."""
        self.sweep = sweep
        self._picture = SweepPicture(sweep, most_points=_MOST_POINTS, place="page")
        self._rows: dict[int, Mapping[str, Any]] = {}

    @property
    def missing(self) -> int:
        """How many rows were not added."""
        return self._picture.missing

    def add(self, rows: Iterable[Mapping[str, Any]], *, start: int) -> None:
        """Take some rows, of which the first has the number ``start``."""
        taken = list(rows)
        self._picture.add(taken, start=start)
        self._rows |= dict(enumerate(taken, start))

    def make(self, *, wording: Wording = str, command: str = "") -> Page:
        """Return the page. All rows must have been added."""
        rows = [self._rows[number] for number in range(len(self.sweep))]
        summary = Summary(self.sweep, most_rows=_MOST_ROWS)
        summary.add(rows)

        def basis(console: Console) -> None:
            print_basis(console, summary.list_basis(), whole=True, wording=wording)

        what, job = self._picture.title()
        return Page(
            title=f"Sweep: {job}",
            lede=f"{what}.",
            sections=(
                Section(
                    name="sweep",
                    title="The best plans",
                    blocks=tuple(ChartBlock(chart=chart) for chart in chart_sweep(self._picture, rows)),
                ),
                Section(
                    name="numbers",
                    title="Numbers",
                    blocks=collect_blocks(lambda console: summary.print(console, wording=wording)),
                ),
                Section(name="basis", title="Estimate basis", blocks=collect_blocks(basis)[1:]),
            ),
            command=command,
        ).tidied()
