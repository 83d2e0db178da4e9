"""The largest value that each strategy allows, one line each, the largest first."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from rich.console import Console
from rich.text import Text

from ckptplan.cost.case import Case
from ckptplan.planning.same_schedules import list_same_schedules
from ckptplan.report.columns import (
    Cell,
    FittedTable,
    TableColumn,
    align_counts,
    align_percents,
    align_seconds,
    wrap_lines,
)
from ckptplan.report.fields import (
    list_plan_columns,
    make_parameters_cell,
    make_plan_row,
    print_budget,
    print_warning,
)
from ckptplan.report.formats import View
from ckptplan.report.infeasible import format_verdict, limit_words
from ckptplan.storage.plans import plan_document
from ckptplan.storage.tables import Columns, Rows
from ckptplan.strategies.registry import strategy_of
from ckptplan.studies.reach import Reach
from ckptplan.units import format_count, format_percent
from ckptplan.wording import Wording

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
            console, reaches, case, quantity=quantity, max_overhead=max_overhead, wording=wording
        ),
        document=lambda: _make_document(reaches, quantity=quantity),
        rows=lambda: _list_rows(reaches, quantity=quantity),
        basis=lambda: next((one.plan.estimate_basis for one in reaches.values() if one.plan is not None), ()),
    )


def _print_reaches(
    console: Console,
    reaches: Mapping[str, Reach],
    case: Case,
    *,
    quantity: str,
    max_overhead: float | None,
    wording: Wording,
) -> None:
    limit = "" if max_overhead is None else f", at most {format_percent(max_overhead)} over base"
    fixed = "" if quantity == "T" else f", T = {format_count(case.workload.steps)}"
    console.print(
        Text.assemble(
            (f"Largest {quantity} ({_OF[quantity]})", "bold"),
            f" of {case.workload.name} on {case.profile.name}{fixed}{limit}",
        )
    )
    console.print()
    _make_table(reaches, quantity=quantity).print_on(console, wording=wording)
    for name, others in _merge_lines(reaches).items():
        if others:
            console.print(wrap_lines(f"{name} also: {', '.join(others)}", width=console.width), soft_wrap=True)
    plan = next((reach.plan for reach in reaches.values() if reach.plan is not None), None)
    interrupted = [name for name, reach in reaches.items() if reach.interrupted]
    unproved = [name for name, reach in reaches.items() if not reach.proved and name not in interrupted]
    for what, names in (
        ("not proved to be the largest", unproved),
        ("interrupted, larger values may fit", interrupted),
    ):
        if names:
            line = f"{what}: {', '.join(names)}"
            console.print(wrap_lines(line, width=console.width, style="dim"), soft_wrap=True)
    if plan is not None:
        print_budget(console, case.profile, budget=plan.goal.local_bytes, headroom=plan.goal.headroom)
        print_warning(console, plan, wording=wording)


def _make_table(reaches: Mapping[str, Reach], *, quantity: str) -> FittedTable:
    base = reaches["base"].value if "base" in reaches else 0
    ratio = TableColumn(title="of base", short="of\nbase", right=True, priority=3)
    table = FittedTable(
        (
            TableColumn(title="strategy"),
            TableColumn(
                title=f"largest {quantity}", short=f"largest\n{quantity}", form=align_counts, right=True
            ),
            *((ratio,) if base else ()),
            TableColumn(title="time", form=align_seconds),
            TableColumn(title="over base", short="over\nbase", form=align_percents, priority=1),
            TableColumn(title="the next breaks", short="the next\nbreaks", priority=2),
            TableColumn(title="parameters", wraps="late"),
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
            make_parameters_cell(reach.plan),
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
    return (one.value, one.bound_by, one.proved, one.interrupted) == (
        other.value,
        other.bound_by,
        other.proved,
        other.interrupted,
    )


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
                "value": reach.value,
                "bound_by": reach.bound_by,
                "proved": reach.proved,
                "interrupted": reach.interrupted,
                "same_schedule": list(same.get(name, ())),
                "plan": None if reach.plan is None else plan_document(reach.plan),
            }
            for name, reach in reaches.items()
        },
    }


def _list_rows(reaches: Mapping[str, Reach], *, quantity: str) -> Rows:
    """Return a flat row for each strategy."""
    columns: Columns = {
        "quantity": "text",
        "value": "whole",
        "bound_by": "text",
        "proved": "truth",
        "interrupted": "truth",
    }
    return Rows(
        columns={**columns, **list_plan_columns()},
        rows=[
            {
                "quantity": quantity,
                "value": reach.value,
                "bound_by": reach.bound_by,
                "proved": reach.proved,
                "interrupted": reach.interrupted,
                **({"strategy": name} if reach.plan is None else make_plan_row(reach.plan)),
            }
            for name, reach in reaches.items()
        ],
    )
