"""Describes a simulation: the cost of a played schedule, compared with its plan's prediction."""

from __future__ import annotations

import dataclasses
import math
from typing import Any

from ckptplan.model.plan import Plan, find_given_memory
from ckptplan.planning.playback import identify_plan
from ckptplan.report.blocks import Field, Paragraph, Table
from ckptplan.report.fields import name_job, name_plan
from ckptplan.report.formats import View
from ckptplan.report.numbers import format_field
from ckptplan.schedule.simulator import Trace
from ckptplan.units import format_count, format_percent, format_seconds

#: Seconds may differ by this share and a rounding error per action, since the simulator adds up durations.
TOLERANCE, ROUNDING = 1e-9, 2.0**-53


def view_simulation(plan: Plan, trace: Trace, *, schedule: str | None = None) -> View:
    """Return the view of a simulation. ``schedule`` is the file that was played instead of the plan's own."""
    rows = _compare(plan, trace)
    document = {
        **identify_plan(plan),
        "schedule": schedule,
        "agrees": all(row["agrees"] for row in rows),
        "simulated": dataclasses.asdict(trace),
        "predicted": {row["quantity"]: row["predicted"] for row in rows},
        "estimate_basis": [dict(entry) for entry in plan.estimate_basis],
    }
    waits = f", waits of {format_seconds(trace.stall_seconds)} for transfers" if trace.stall_seconds else ""
    played = f"{schedule or name_plan(plan)}: {format_count(trace.actions)} actions, every law kept{waits}"
    return View(
        kind="simulation",
        heading="Simulation",
        title=name_job(plan.workload, plan.profile),
        memory=find_given_memory(plan),
        blocks=lambda: (
            Paragraph(played),
            Table.of(_FIELDS, rows, style=lambda row: "" if row["agrees"] else "caution"),
        ),
        document=lambda: document,
        rows=lambda: rows,
        basis=lambda: plan.estimate_basis,
    )


def _compare(plan: Plan, trace: Trace) -> list[dict[str, Any]]:
    """Return a row for each quantity of both. Counts and bytes must be equal, seconds equal up to rounding."""
    tolerance = TOLERANCE + trace.actions * ROUNDING
    pairs = [
        (name, plan.predicted[name], getattr(trace, name)) for name in plan.predicted if hasattr(trace, name)
    ]
    return [
        {
            "quantity": name,
            "predicted": predicted,
            "simulated": simulated,
            "agrees": math.isclose(predicted, simulated, rel_tol=tolerance if name == "seconds" else 0.0),
        }
        for name, predicted, simulated in pairs
    ]


def _show_difference(row: dict[str, Any]) -> str:
    """Return how far the simulation is above or below the prediction."""
    if row["agrees"]:
        return "equal"
    predicted, simulated = row["predicted"], row["simulated"]
    return format_percent(simulated / predicted - 1) if predicted else "more"


_FIELDS = (
    Field("quantity", ""),
    Field("predicted", right=True, show=lambda row: format_field(row["quantity"], row["predicted"])),
    Field("simulated", right=True, show=lambda row: format_field(row["quantity"], row["simulated"])),
    Field("difference", show=_show_difference),
)
