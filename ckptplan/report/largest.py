"""The largest value that each strategy allows, one line each, the largest first."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from rich.console import Console
from rich.table import Table
from rich.text import Text

from ckptplan.cost.case import Case
from ckptplan.planning.same_schedules import list_same_schedules
from ckptplan.report.budget import print_budget, print_warning
from ckptplan.report.infeasible import format_verdict
from ckptplan.report.limits import limit_words
from ckptplan.report.plan_rows import list_plan_columns, make_plan_row
from ckptplan.report.plan_text import format_parameters, print_basis
from ckptplan.report.view import View
from ckptplan.storage.plans import plan_document
from ckptplan.storage.tables import Columns, Rows
from ckptplan.strategies.registry import strategy_of
from ckptplan.studies.reach import Reach
from ckptplan.units import format_count, format_percent, format_seconds
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
    console.print(_make_table(reaches, quantity=quantity))
    for name, others in _merge_lines(reaches).items():
        if others:
            console.print(f"{name} also: {', '.join(others)}")
    plan = next((reach.plan for reach in reaches.values() if reach.plan is not None), None)
    interrupted = [name for name, reach in reaches.items() if reach.interrupted]
    unproved = [name for name, reach in reaches.items() if not reach.proved and name not in interrupted]
    if unproved:
        console.print(Text(f"not proved to be the largest: {', '.join(unproved)}", style="dim"))
    if interrupted:
        console.print(Text(f"interrupted, larger values may fit: {', '.join(interrupted)}", style="dim"))
    if plan is not None:
        print_budget(console, case.profile, budget=plan.goal.local_bytes, headroom=plan.goal.headroom)
        print_warning(console, plan, wording=wording)
        print_basis(console, plan, wording=wording)


def _make_table(reaches: Mapping[str, Reach], *, quantity: str) -> Table:
    table = Table(box=None, pad_edge=False, header_style="bold", padding=(0, 2, 0, 0))
    base = reaches["base"].value if "base" in reaches else 0
    table.add_column("strategy", no_wrap=True)
    headings = (f"largest {quantity}", *(("of base",) if base else ()), "time", "over base")
    for heading in headings:
        table.add_column(heading, justify="right", no_wrap=True)
    table.add_column("the next breaks", no_wrap=True)
    table.add_column("parameters", overflow="fold")
    for name in _merge_lines(reaches):
        reach = reaches[name]
        if reach.plan is None and reach.interrupted:
            table.add_row(name, *["", *[""] * len(headings)], "interrupted", style="dim")
            continue
        if reach.plan is None:
            reason = format_verdict(reach.infeasible) if reach.infeasible else "does not fit"
            cells = (name, "none", *[""] * (len(headings) - 1), _bound(reach), reason)
            table.add_row(*(Text(text, style="dim") for text in cells))
            continue
        predicted = reach.plan.predicted
        table.add_row(
            name,
            format_count(reach.value),
            *((f"{reach.value / base:.2f} x",) if base else ()),
            format_seconds(predicted.seconds),
            format_percent(predicted.overhead),
            "" if reach.interrupted else _bound(reach),
            format_parameters(reach.plan),
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


def _bound(reach: Reach) -> str:
    return "nothing" if reach.bound_by is None else limit_words(reach.bound_by).name


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
