"""The largest value that each strategy allows, one line each, the largest first."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from rich.text import Text

from ckptplan.cost.case import Case
from ckptplan.planning.playback import list_same_schedules
from ckptplan.report.columns import Cell, FittedTable, Sheet, TableColumn, align_counts
from ckptplan.report.fields import (
    OVER_BASE,
    PARAMETERS,
    STRATEGY,
    TIME,
    format_parameters,
    list_plan_columns,
    make_parameters_cell,
    make_plan_row,
    print_limits,
)
from ckptplan.report.formats import View
from ckptplan.report.infeasible import format_verdict, limit_words
from ckptplan.storage.plans import plan_document
from ckptplan.storage.tables import Columns, Rows
from ckptplan.strategies.registry import strategy_of
from ckptplan.studies.largest import Reach
from ckptplan.units import format_count, format_percent
from ckptplan.wording import Wording

#: What a row and the document say of a reach besides its plan.
_FINDINGS: Columns = {"value": "whole", "bound_by": "text", "proved": "truth", "interrupted": "truth"}
_OF = {"T": "time steps", "batch": "samples", "neurons": "neurons"}


def view_reaches(
    reaches: Mapping[str, Reach],
    case: Case,
    *,
    quantity: str,
    max_overhead: float | None = None,
    wording: Wording = str,
) -> View:
    """Return the largest value of each strategy, with the plan there, for every format."""
    return View(
        kind="largest",
        table=lambda console: _print_reaches(
            Sheet(console, wording), reaches, case, quantity=quantity, max_overhead=max_overhead
        ),
        document=lambda: _make_document(reaches, quantity=quantity),
        rows=lambda: _list_rows(reaches, quantity=quantity),
        basis=lambda: next((one.plan.estimate_basis for one in reaches.values() if one.plan is not None), ()),
    )


def _print_reaches(
    sheet: Sheet, reaches: Mapping[str, Reach], case: Case, *, quantity: str, max_overhead: float | None
) -> None:
    limit = "" if max_overhead is None else f", at most {format_percent(max_overhead)} over base"
    fixed = "" if quantity == "T" else f", T = {format_count(case.workload.steps)}"
    sheet.console.print(
        Text.assemble(
            (f"Largest {quantity} ({_OF[quantity]})", "bold"),
            f" of {case.workload.name} on {case.profile.name}{fixed}{limit}",
        )
    )
    sheet.gap()
    sheet.show(_make_table(reaches, quantity=quantity))
    for name, others in _merge_lines(reaches).items():
        if others:
            sheet.say(f"{name} also: {', '.join(others)}")
    plan = next((reach.plan for reach in reaches.values() if reach.plan is not None), None)
    interrupted = [name for name, reach in reaches.items() if reach.interrupted]
    unproved = [name for name, reach in reaches.items() if not reach.proved and name not in interrupted]
    for what, names in (
        ("not proved to be the largest", unproved),
        ("interrupted, larger values may fit", interrupted),
    ):
        if names:
            line = f"{what}: {', '.join(names)}"
            sheet.say(line, style="dim")
    if plan is not None:
        print_limits(sheet, plan)


def _make_table(reaches: Mapping[str, Reach], *, quantity: str) -> FittedTable:
    base = reaches["base"].value if "base" in reaches else 0
    ratio = TableColumn(title="of base", short="of\nbase", right=True, priority=3)
    table = FittedTable(
        (
            STRATEGY,
            TableColumn(
                title=f"largest {quantity}", short=f"largest\n{quantity}", form=align_counts, right=True
            ),
            *((ratio,) if base else ()),
            TIME,
            OVER_BASE.ranked(1),
            TableColumn(title="the next breaks", short="the next\nbreaks", priority=2),
            PARAMETERS,
        )
    )
    empty = (None,) * (3 if base else 2)
    for name in _merge_lines(reaches):
        reach = reaches[name]
        if reach.plan is None and reach.interrupted:
            table.add_row(name, None, *empty, None, "interrupted", style="dim")
            continue
        if reach.plan is None:
            reason = format_verdict(reach.infeasible) if reach.infeasible else "does not fit"
            table.add_row(name, "none", *empty, _make_bound_cell(reach), reason, style="dim")
            continue
        predicted = reach.plan.predicted
        table.add_row(
            name,
            reach.value,
            *((f"{reach.value / base:.2f} x",) if base else ()),
            predicted.seconds,
            predicted.overhead,
            "" if reach.interrupted else _make_bound_cell(reach),
            make_parameters_cell(format_parameters(reach.plan)),
        )
    return table


def _merge_lines(reaches: Mapping[str, Reach]) -> dict[str, tuple[str, ...]]:
    """Return the strategy of each line, with the others that reach as far with the same schedule."""
    lines: dict[str, tuple[str, ...]] = {}
    same = _list_same(reaches)
    for name in reaches:
        if name not in lines and not any(name in others for others in lines.values()):
            alike = [other for other in same.get(name, ()) if _is_alike(reaches[name], reaches[other])]
            first, *others = sorted((name, *alike), key=lambda each: strategy_of(each).simplicity)
            lines[first] = tuple(others)
    return lines


def _is_alike(one: Reach, other: Reach) -> bool:
    return _list_findings(one) == _list_findings(other)


def _list_findings(reach: Reach) -> dict[str, Any]:
    """Return what was found besides the plan: members of the document, and cells of a row."""
    return {name: getattr(reach, name) for name in _FINDINGS}


def _list_same(reaches: Mapping[str, Reach]) -> dict[str, tuple[str, ...]]:
    return list_same_schedules(reach.plan for reach in reaches.values() if reach.plan is not None)


def _make_bound_cell(reach: Reach) -> Cell:
    """Return the limit that the next value breaks, in one word where the table is narrow."""
    name = "nothing" if reach.bound_by is None else limit_words(reach.bound_by).name
    return Cell(value=name, short={"solvable length": "length"}.get(name, name.split()[0]))


def _make_document(reaches: Mapping[str, Reach], *, quantity: str) -> dict[str, Any]:
    """Return JSON data: the value of each strategy, what bounds it, and the full plan there."""
    same = _list_same(reaches)
    return {
        "quantity": quantity,
        "strategies": {
            name: {
                **_list_findings(reach),
                "same_schedule": list(same.get(name, ())),
                "plan": None if reach.plan is None else plan_document(reach.plan),
            }
            for name, reach in reaches.items()
        },
    }


def _list_rows(reaches: Mapping[str, Reach], *, quantity: str) -> Rows:
    """Return a flat row for each strategy."""
    return Rows(
        columns={"quantity": "text", **_FINDINGS, **list_plan_columns()},
        rows=[
            {
                "quantity": quantity,
                **_list_findings(reach),
                **({"strategy": name} if reach.plan is None else make_plan_row(reach.plan)),
            }
            for name, reach in reaches.items()
        ],
    )
