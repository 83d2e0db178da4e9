"""The cost of a played schedule, compared with its plan's prediction."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from rich.text import Text

from ckptplan.model.plan import Plan
from ckptplan.report.columns import FittedTable, Sheet, TableColumn
from ckptplan.report.fields import identify_plan, name_plan, print_title
from ckptplan.report.formats import View
from ckptplan.schedule.simulator import Trace
from ckptplan.units import format_bytes, format_count, format_percent, format_seconds
from ckptplan.wording import Wording

#: Seconds may differ by this share, and by one rounding per action: a clock adds, a closed form multiplies.
TOLERANCE, ROUNDING = 1e-9, 2.0**-53

#: Field of Trace and Predicted -> name and format in the table.
_QUANTITIES: dict[str, tuple[str, Callable[[Any], str]]] = {
    "seconds": ("time", format_seconds),
    "local_peak_bytes": ("local peak", format_bytes),
    "remote_peak_bytes": ("remote peak", format_bytes),
    "recomputed_steps": ("steps run again", format_count),
    "remote_writes": ("states written", format_count),
    "remote_reads": ("states read", format_count),
    "messages": ("messages", format_count),
}


@dataclass(frozen=True, kw_only=True)
class Comparison:
    """One quantity, as predicted by the closed form and as counted by the simulator."""

    quantity: str
    predicted: float
    simulated: float
    tolerance: float = 0.0

    @property
    def agrees(self) -> bool:
        """Whether both are equal: counts and bytes exactly, seconds up to rounding."""
        return math.isclose(self.predicted, self.simulated, rel_tol=self.tolerance)


def compare_quantities(plan: Plan, trace: Trace) -> list[Comparison]:
    """Return each quantity that plan and trace both have."""
    return [
        Comparison(
            quantity=name,
            predicted=plan.predicted[name],
            simulated=getattr(trace, name),
            tolerance=TOLERANCE + trace.actions * ROUNDING if name == "seconds" else 0.0,
        )
        for name in _QUANTITIES
    ]


def view_simulation(plan: Plan, trace: Trace, *, schedule: str | None = None, wording: Wording = str) -> View:
    """Return prediction and simulation for every format.

    ``schedule`` is the file that was played instead of the plan's own.
    """
    return View(
        kind="simulation",
        table=lambda console: _print_simulation(Sheet(console, wording), plan, trace, schedule=schedule),
        document=lambda: _make_document(plan, trace, schedule=schedule),
        rows=lambda: _list_rows(plan, trace),
        basis=lambda: plan.estimate_basis,
    )


def _print_simulation(sheet: Sheet, plan: Plan, trace: Trace, *, schedule: str | None) -> None:
    """Print both side by side."""
    print_title(sheet, plan.workload, plan.profile)
    actions = f"{format_count(trace.actions)} actions, every law kept"
    sheet.say(f"schedule  {schedule or name_plan(plan)}: {actions}")
    sheet.gap()
    table = FittedTable(
        (
            TableColumn(),
            TableColumn(title="predicted", right=True),
            TableColumn(title="simulated", right=True),
            TableColumn(title="difference"),
        )
    )
    for row in compare_quantities(plan, trace):
        name, shown = _QUANTITIES[row.quantity]
        table.add_row(name, shown(row.predicted), shown(row.simulated), _difference(row, shown))
    sheet.show(table)
    if trace.stall_seconds:
        sheet.gap()
        sheet.console.print(f"compute waits {format_seconds(trace.stall_seconds)} for transfers")


def _difference(row: Comparison, shown: Callable[[Any], str]) -> Text:
    if row.agrees:
        return Text("equal", style="green")
    sign = "+" if row.simulated > row.predicted else "-"
    size = shown(abs(row.simulated - row.predicted))
    share = f" ({format_percent(row.simulated / row.predicted - 1)})" if row.predicted else ""
    return Text(f"{sign}{size}{share}", style="yellow")


def _make_document(plan: Plan, trace: Trace, *, schedule: str | None) -> dict[str, Any]:
    """Return both as JSON data, with the basis of the prediction."""
    rows = compare_quantities(plan, trace)
    return {
        **identify_plan(plan),
        "schedule": schedule,
        "agrees": all(row.agrees for row in rows),
        "simulated": dataclasses.asdict(trace),
        "predicted": {row.quantity: row.predicted for row in rows},
        "estimate_basis": [dict(entry) for entry in plan.estimate_basis],
    }


def _list_rows(plan: Plan, trace: Trace) -> list[dict[str, Any]]:
    """Return a row for each quantity."""
    names = ("quantity", "predicted", "simulated", "agrees")
    return [{name: getattr(row, name) for name in names} for row in compare_quantities(plan, trace)]
