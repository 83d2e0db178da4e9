"""The largest value that each strategy allows, one line each, the largest first."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from functools import cache
from typing import Any

from ckptplan.cost.case import Case
from ckptplan.planning.playback import list_same_schedules
from ckptplan.report import fields
from ckptplan.report.blocks import Block, Cell, Field, Paragraph, Record, Table, make_faint
from ckptplan.report.formats import View
from ckptplan.report.infeasible import LIMITS, format_verdict
from ckptplan.storage.plans import plan_document
from ckptplan.storage.tables import Rows
from ckptplan.strategies.registry import strategy_of
from ckptplan.studies.largest import Reach
from ckptplan.units import format_count, format_percent

#: What a row and the document say of a reach besides its plan.
_FINDINGS = ("value", "bound_by", "proved", "interrupted")
_OF = {"T": "time steps", "batch": "samples", "neurons": "neurons"}
_OF_BASE = Field("of base", short="of\nbase", right=True, priority=3)
_BREAKS = Field("bound_by", "the next breaks", "the next\nbreaks", priority=2)


def view_reaches(
    reaches: Mapping[str, Reach], case: Case, quantity: str, max_overhead: float | None = None
) -> View:
    """Return the largest value of each strategy, with the plan there."""
    plans = [reach.plan for reach in reaches.values() if reach.plan is not None]
    same = cache(lambda: list_same_schedules(plans))
    within = "" if max_overhead is None else f", at most {format_percent(max_overhead)} over base"
    fixed = "" if quantity == "T" else f", T = {format_count(case.workload.steps)}"
    title = Paragraph(
        f" of {case.workload.name} on {case.profile.name}{fixed}{within}",
        head=f"Largest {quantity} ({_OF[quantity]})",
    )
    return View(
        kind="largest",
        unmet="" if plans else "nothing fits",
        blocks=lambda: (
            title,
            *_tell(reaches, quantity, same()),
            *(fields.list_limits(plans[0]) if plans else ()),
        ),
        document=lambda: {
            "quantity": quantity,
            "strategies": {
                name: {
                    **_list_findings(reach),
                    "same_schedule": list(same().get(name, ())),
                    "plan": None if reach.plan is None else plan_document(reach.plan),
                }
                for name, reach in reaches.items()
            },
        },
        rows=lambda: Rows(
            columns=("quantity", *_FINDINGS, *fields.list_plan_columns()),
            rows=[
                {
                    "quantity": quantity,
                    **_list_findings(reach),
                    **({"strategy": name} if reach.plan is None else fields.make_plan_row(reach.plan)),
                }
                for name, reach in reaches.items()
            ],
        ),
        basis=lambda: plans[0].estimate_basis if plans else (),
    )


def _tell(reaches: Mapping[str, Reach], quantity: str, same: Mapping[str, tuple[str, ...]]) -> Iterator[Block]:
    """Yield a line for each value and schedule, and what is not proved; ``same`` names equal schedules."""
    lines = _merge_lines(reaches, same)
    # Without checkpoints.
    base = reaches["base"].value if "base" in reaches else 0
    largest = Field("value", f"largest {quantity}", f"largest\n{quantity}", form=fields.align_counts)
    yield Table.of(
        (
            fields.STRATEGY,
            largest,
            *((_OF_BASE,) if base else ()),
            fields.TIME,
            fields.OVER_BASE.ranked(1),
            _BREAKS,
            fields.PARAMETERS,
        ),
        (_tell_reach(name, reaches[name], base) for name in lines),
    )
    for name, others in lines.items():
        if others:
            yield Paragraph(f"{name} also: {', '.join(others)}")
    interrupted = [name for name, reach in reaches.items() if reach.interrupted]
    unproved = [name for name, reach in reaches.items() if not reach.proved and not reach.interrupted]
    if unproved:
        yield Paragraph(f"not proved to be the largest: {', '.join(unproved)}", style="faint")
    if interrupted:
        yield Paragraph(f"interrupted, larger values may fit: {', '.join(interrupted)}", style="faint")
    for line in fields.note_closed_forms(map(strategy_of, reaches)):
        yield Paragraph(line, style="faint")


def _tell_reach(name: str, reach: Reach, base: int) -> Record:
    """Return what the table says of a strategy."""
    if reach.plan is None and reach.interrupted:
        return make_faint({"strategy": name, "parameters": "interrupted"})
    # The limit that the next value breaks, in one word where the table is narrow.
    limit = "nothing" if reach.bound_by is None else LIMITS[reach.bound_by].name
    short = {"solvable length": "length"}.get(limit, limit.split()[0])
    bound = None if reach.interrupted else Cell(limit, short=short)
    if reach.plan is None:
        reason = format_verdict(reach.infeasible) if reach.infeasible else "does not fit"
        return make_faint({"strategy": name, "value": "none", "bound_by": bound, "parameters": reason})
    return {
        **fields.tell_plan(reach.plan),
        "value": reach.value,
        "of base": f"{reach.value / base:.2f} x" if base else None,
        "bound_by": bound,
    }


def _merge_lines(
    reaches: Mapping[str, Reach], same: Mapping[str, tuple[str, ...]]
) -> dict[str, tuple[str, ...]]:
    """Return the strategy of each line, with the others that reach as far with the same schedule."""
    lines: dict[str, tuple[str, ...]] = {}
    for name, reach in reaches.items():
        found = _list_findings(reach)
        alike = [one for one in same.get(name, ()) if _list_findings(reaches[one]) == found]
        first, *others = sorted((name, *alike), key=lambda each: strategy_of(each).simplicity)
        lines.setdefault(first, tuple(others))
    return lines


def _list_findings(reach: Reach) -> dict[str, Any]:
    """Return what was found besides the plan: members of the document, and cells of a row."""
    return {name: getattr(reach, name) for name in _FINDINGS}
