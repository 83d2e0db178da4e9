"""The largest value that each strategy allows, one line each, the largest first."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from ckptplan.cost.case import Case
from ckptplan.model.plan import Plan
from ckptplan.planning.playback import group_same_schedules, list_same_schedules
from ckptplan.report import fields
from ckptplan.report.blocks import Block, Chart, Field, Paragraph, Record, Section, Table, make_faint
from ckptplan.report.formats import View
from ckptplan.report.infeasible import LIMITS, format_reason
from ckptplan.report.picture import draw_later
from ckptplan.storage.plans import plan_document
from ckptplan.storage.tables import Rows
from ckptplan.strategies.registry import strategy_of
from ckptplan.studies.largest import LargestValues, Reach
from ckptplan.units import format_count, format_percent

#: Fields of a reach in rows and in the document; its plan follows them.
_FINDINGS = ("value", "bound_by", "proved", "interrupted")
#: What the numbers of a quantity count.
COUNTED = {"T": "time steps", "batch": "samples", "neurons": "neurons"}


def view_reaches(
    reaches: Mapping[str, Reach], case: Case, quantity: str, max_overhead: float | None = None
) -> View:
    """Return the largest value of each strategy, with the plan there."""
    plans = [reach.plan for reach in reaches.values() if reach.plan is not None]
    findings = {name: {one: getattr(reach, one) for one in _FINDINGS} for name, reach in reaches.items()}
    within = "" if max_overhead is None else f", at most {format_percent(max_overhead)} over base"
    fixed = "" if quantity == "T" else f", T = {format_count(case.workload.steps)}"
    title = Paragraph(
        f" of {case.workload.name} on {case.profile.name}{fixed}{within}",
        head=f"Largest {quantity} ({COUNTED[quantity]})",
    )

    draw = draw_later(reaches)

    def list_blocks() -> Iterator[Block]:
        yield title
        yield from _compare_reaches(reaches, quantity, plans)

    chart = Chart(
        "largest", title.whole, "Each dot is the largest value of a strategy, and the limit there.", draw
    )

    def make_document() -> dict[str, Any]:
        same = list_same_schedules(plans)
        strategies = {
            name: {
                **findings[name],
                "same_schedule": list(same.get(name, ())),
                "plan": None if reach.plan is None else plan_document(reach.plan),
            }
            for name, reach in reaches.items()
        }
        left_out = reaches.left_out if isinstance(reaches, LargestValues) else {}
        return {"quantity": quantity, "left_out": left_out, "strategies": strategies}

    def make_row(name: str, plan: Plan | None) -> dict[str, Any]:
        costs = {"strategy": name} if plan is None else fields.make_plan_row(plan)
        return {"quantity": quantity, **findings[name], **costs}

    return View(
        kind="largest",
        unmet="" if plans else "nothing fits",
        blocks=list_blocks,
        title=title.whole,
        lede="The largest value that each strategy allows.",
        sections=lambda: [Section("largest", "Strategies", [chart, *list_blocks()])],
        draw=draw,
        document=make_document,
        rows=lambda: Rows(
            columns=("quantity", *_FINDINGS, *fields.list_plan_columns()),
            rows=[make_row(name, reach.plan) for name, reach in reaches.items()],
        ),
        basis=lambda: plans[0].estimate_basis if plans else (),
    )


def _compare_reaches(reaches: Mapping[str, Reach], quantity: str, plans: list[Plan]) -> Iterator[Block]:
    """Yield a line for each strategy, and what is not proved."""
    # The largest value without checkpoints.
    base = reaches["base"].value if "base" in reaches else 0
    yield Table.of(
        (
            fields.STRATEGY,
            Field("value", f"largest {quantity}", right=True),
            *((Field("of base", right=True, priority=4),) if base else ()),
            fields.TIME,
            fields.OVER_BASE.ranked(2),
            Field("bound_by", "the next breaks", priority=3),
            fields.PARAMETERS,
        ),
        (_make_record(name, reach, base) for name, reach in reaches.items()),
    )
    yield from fields.note_same_schedules(
        [plan.strategy for plan in group] for group in group_same_schedules(plans)
    )
    interrupted = [name for name, reach in reaches.items() if reach.interrupted]
    unproved = [name for name, reach in reaches.items() if not reach.proved and not reach.interrupted]
    if unproved:
        yield Paragraph(f"not proved to be the largest: {', '.join(unproved)}", style="faint")
    if interrupted:
        yield Paragraph(f"interrupted, larger values may fit: {', '.join(interrupted)}", style="faint")
    for line in fields.note_closed_forms(map(strategy_of, reaches)):
        yield Paragraph(line, style="faint")
    for plan in plans[:1]:
        yield from fields.list_budget(plan.profile, budget=plan.goal.local_bytes, headroom=plan.goal.headroom)
        yield from fields.list_warnings(plan)


def _make_record(name: str, reach: Reach, base: int) -> Record:
    """Return what the table says of a strategy."""
    bound = "nothing" if reach.bound_by is None else LIMITS[reach.bound_by].name
    record: dict[str, Any] = {"strategy": name, "value": reach.value or "none", "bound_by": bound}
    if reach.interrupted:
        record |= {"bound_by": None, "parameters": "interrupted"}
    elif reach.infeasible is not None:
        record["parameters"] = format_reason(reach.infeasible.binding, reach.infeasible.need)
    if reach.plan is None:
        return make_faint(record)
    of_base = f"{reach.value / base:.2f} x" if base else None
    return {**record, **fields.make_plan_record(reach.plan), "of base": of_base}
