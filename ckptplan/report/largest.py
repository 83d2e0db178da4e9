"""The largest value that each strategy allows, one line each, the largest first."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from ckptplan.model.budget import find_memory
from ckptplan.planning.playback import group_same_schedules, list_same_schedules
from ckptplan.report import fields
from ckptplan.report.blocks import Block, Field, Paragraph, Table
from ckptplan.report.formats import View
from ckptplan.report.infeasible import DEADLINE, name_limit
from ckptplan.report.picture import Chart
from ckptplan.storage.plans import plan_document
from ckptplan.storage.tables import Rows
from ckptplan.strategies.registry import strategy_of
from ckptplan.studies.largest import LargestValues, Reach
from ckptplan.units import format_count, format_percent, format_seconds
from ckptplan.wording import Argument

#: Fields of a reach in rows and in the document, before the fields of its plan.
_OUTCOMES = ("value", "bound_by", "proved", "interrupted")
#: The unit of each quantity.
COUNTED = {"T": "time steps", "batch": "samples", "neurons": "neurons"}


def view_largest(reaches: LargestValues) -> View:
    """Return the view of the largest value of each strategy, with the plan for it."""
    quantity, case = reaches.quantity, reaches.case
    plans = [reach.plan for reach in reaches.values() if reach.plan is not None]
    results = (reach.plan or reach.infeasible for reach in reaches.values())
    budget, headroom = fields.find_limits(results, case.profile)
    limits = {plan.goal.max_overhead for plan in plans} - {None}
    within = "".join(f", at most {format_percent(limit or 0)} over base" for limit in limits)
    within += "" if reaches.deadline is None else f", at most {format_seconds(reaches.deadline)} a batch"
    fixed = "" if quantity == "T" else f", T = {format_count(case.workload.steps)}"
    rows = [{"strategy": name, "quantity": quantity, **_make_row(reach)} for name, reach in reaches.items()]
    same = list_same_schedules(plans)
    return View(
        kind="largest",
        heading=f"Largest {quantity} ({COUNTED[quantity]})",
        title=f"{case.workload.name} on {case.profile.name}{fixed}{within}",
        memory=find_memory(budget, headroom, machine=case.profile.local_bytes),
        unmet="" if plans else "nothing fits",
        blocks=lambda: _compare_reaches(reaches, rows),
        document=lambda: {
            "quantity": quantity,
            "deadline": reaches.deadline,
            "left_out": reaches.left_out,
            "strategies": {
                name: {
                    **{column: row[column] for column in _OUTCOMES},
                    "same_schedule": list(same.get(name, ())),
                    "plan": None if reach.plan is None else plan_document(reach.plan),
                }
                for (name, reach), row in zip(reaches.items(), rows, strict=True)
            },
        },
        rows=lambda: Rows(columns=("quantity", *_OUTCOMES, *fields.list_plan_columns()), rows=rows),
        basis=lambda: plans[0].estimate_basis if plans else (),
        chart=lambda: Chart(
            result=reaches, caption="Each dot is the largest value of a strategy, and the limit there."
        ),
    )


def _make_row(reach: Reach) -> dict[str, Any]:
    """Return the row of a strategy: the largest value and the plan for it, or the reason why there is none."""
    row = {name: getattr(reach, name) for name in _OUTCOMES}
    if reach.plan is not None:
        return {**row, **fields.make_plan_row(reach.plan)}
    if reach.infeasible is None or reach.interrupted:
        return row
    return {**row, **fields.make_result_row(reach.infeasible)}


def _compare_reaches(reaches: LargestValues, rows: list[dict[str, Any]]) -> Iterator[Block]:
    """Yield a table with a line for each strategy, and notes about the values."""
    plans = [reach.plan for reach in reaches.values() if reach.plan is not None]
    yield Table.of(
        (
            fields.STRATEGY,
            Field("value", "largest", right=True, show=lambda row: row["value"] or "none"),
            fields.TIME,
            fields.OVER_BASE.ranked(3),
            Field("bound_by", "limit", priority=1, show=describe_limit),
            fields.PARAMETERS.ranked(2),
        ),
        rows,
        style=lambda row: "" if row["value"] else "faint",
    )
    yield from fields.note_same_schedules(
        [plan.strategy for plan in group] for group in group_same_schedules(plans)
    )
    if reaches.deadline is None and any(
        describe_limit(vars(reach)) == "no limit" for reach in reaches.values()
    ):
        yield Paragraph(
            f"no limit: the largest value that is considered fits; {Argument('deadline')} limits the time"
        )
    yield from fields.note_closed_forms(map(strategy_of, reaches))
    for plan in plans[:1]:
        yield from fields.list_warnings(plan)


def describe_limit(row: Mapping[str, Any]) -> str:
    """Return the limit that the next value breaks, and whether a larger value may fit."""
    if row["interrupted"]:
        return "interrupted: more may fit"
    if row["bound_by"] is None:
        return "no limit"
    if row["bound_by"] == DEADLINE and not row["value"]:
        return "even 1 takes longer"
    return f"{name_limit(row['bound_by'])}{'' if row['proved'] or not row['value'] else ', not proved'}"
