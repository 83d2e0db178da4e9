"""Machines side by side: as a table, the quickest first, and as data."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator, Mapping
from typing import Any

from ckptplan.cost.case import Case
from ckptplan.planning.optimize import DETAIL_COLUMNS, JOB_COLUMNS, REASON_COLUMNS, cost_columns
from ckptplan.report import blocks, fields
from ckptplan.report.formats import ShownPlan, View
from ckptplan.report.numbers import format_price
from ckptplan.report.picture import Chart
from ckptplan.storage.tables import Rows
from ckptplan.studies.machines import Machine, MachineComparison
from ckptplan.units import format_count, format_duration, format_percent
from ckptplan.wording import Argument

#: The columns of a row that describe the machine instead of its plan.
_MACHINE_COLUMNS = (
    "times", "missing", "seconds_low", "seconds_high", "largest_steps", "largest_strategy", "batches",
    "run_seconds", "price_per_hour", "run_price", "most_joules", "meets_deadline",
)  # fmt: skip


def view_machines(comparison: MachineComparison) -> View:
    """Return the view of machines side by side."""
    workload, quickest, cheapest = comparison.workload, comparison.quickest, comparison.cheapest
    batches, deadline = comparison.batches, comparison.deadline
    run = "one batch" if batches == 1 else f"a run of {format_count(batches)} batches"
    within = _name_deadline(comparison)
    plans = [machine.plan for machine in comparison.machines if machine.plan is not None]
    return View(
        kind="machines",
        heading="Machines",
        title=f"{workload.name}, T = {format_count(workload.steps)} time steps, {run}{within}",
        memory=comparison.machines[0].profile.local_bytes,
        unmet="" if comparison.fits else "it fits on no machine",
        blocks=lambda: _describe_comparison(comparison),
        document=lambda: {
            "workload": {**workload.identify(), "steps": workload.steps},
            "batches": batches,
            "deadline_seconds": deadline,
            "largest_max_overhead": comparison.reach_overhead,
            "quickest": None if quickest is None else quickest.profile.name,
            "cheapest": None if cheapest is None else cheapest.profile.name,
            "machines": [
                {
                    "profile": machine.profile.identify(),
                    **_list_numbers(machine, deadline),
                    "missing": list(machine.missing),
                    **fields.make_result_document(machine.result),
                }
                for machine in comparison.machines
            ],
        },
        rows=lambda: _list_rows(comparison),
        basis=lambda: tuple(
            dataclasses.replace(entry, field=f"{plan.profile.name}: {entry.field}")
            for plan in plans
            for entry in plan.estimate_basis
        ),
        chart=lambda: Chart(
            result=comparison,
            caption="The time on each machine; hollow dots are estimates, lines their intervals.",
        ),
        plans=lambda: [
            ShownPlan(label=f"{plan.profile.name}: {plan.strategy}", plan=plan, first=plan is plans[0])
            for plan in plans
        ],
    )


def _name_deadline(comparison: MachineComparison) -> str:
    return "" if comparison.deadline is None else f" within {format_duration(comparison.deadline)}"


def _describe_comparison(comparison: MachineComparison) -> Iterator[blocks.Block]:
    """Yield a table of machines, the quickest and the cheapest one, and what the times rest on."""
    rows = [
        {**row, "time": name_time(machine), "ends": _name_interval(machine)}
        for row, machine in zip(_list_rows(comparison), comparison.machines, strict=True)
    ]
    columns = (
        blocks.Field("profile", "machine"),
        blocks.Field("time", "time" if comparison.batches == 1 else "run", right=True),
        blocks.Field("ends", "interval", priority=6, right=True),
        blocks.Field("times", "origin", priority=7),
        fields.OVER_BASE.ranked(2),
        fields.LOCAL.ranked(3),
        blocks.Field("largest_steps", "largest T", right=True),
        blocks.Field("run_price", "price"),
        blocks.Field("most_joules", "energy, at most", priority=5),
        fields.STRATEGY.ranked(4),
        fields.PARAMETERS,
    )
    used = [column for column in columns if any(column.find_value(row) not in (None, "") for row in rows)]
    first = rows[0]["profile"]
    yield blocks.Table.of(used, rows, style=lambda row: _choose_style(row, first))
    within, quickest, cheapest = _name_deadline(comparison), comparison.quickest, comparison.cheapest
    if quickest is not None:
        ends = f" ({_name_interval(quickest)})" if quickest.interval else ""
        yield blocks.Paragraph(f"Quickest: {quickest.profile.name}, {name_time(quickest)}{ends}", style="best")
    if cheapest is not None and cheapest.run_price is not None:
        sure = comparison.deadline is None or cheapest.surely_meets(comparison.deadline)
        price = f"{format_price(cheapest.run_price)}{'' if sure else ', which may miss the deadline'}"
        yield blocks.Paragraph(f"Cheapest{within}: {cheapest.profile.name}, {price}", style="best")
    elif comparison.deadline is not None:
        meeting = (machine for machine in comparison.machines if machine.meets(comparison.deadline))
        names = ", ".join(machine.profile.name for machine in meeting) or "none of them"
        yield blocks.Paragraph(f"Meeting the deadline{within}: {names}", style="best")
    for text in _list_notes(comparison):
        yield blocks.Paragraph(text, style="caution")
    yield blocks.make_facts(
        {
            machine.profile.name: fields.describe_resident(
                Case(workload=comparison.workload, profile=machine.profile), machine.profile.local_budget_bytes
            )
            for machine in comparison.machines
        },
        title="Local memory",
    )


def _list_notes(comparison: MachineComparison) -> Iterator[str]:
    """Yield notes about times that are estimated or missing, and about prices that are not known."""
    workload, machines = comparison.workload, comparison.machines
    estimated = [machine.profile.name for machine in machines if machine.interval]
    if estimated:
        yield (
            f"estimated by a roofline: {', '.join(estimated)}. Machines whose intervals overlap may be equally "
            "quick or cheap; a calibration on the machine itself decides"
        )
    for machine in machines:
        if machine.times == "carried over":
            lack = ", ".join(machine.missing)
            yield f"{machine.profile.name}: the times are those of {workload.timed_on}; estimates lack {lack}"
    unpriced = [
        machine.profile.name for machine in machines if machine.run_seconds and machine.run_price is None
    ]
    if comparison.cheapest is not None and unpriced:
        yield f"no price is known for {', '.join(unpriced)}"
    limit = comparison.reach_overhead
    if limit is not None:
        yield f"largest T: at most {format_percent(limit)} over base; {Argument('max_overhead')} sets the limit"


def _choose_style(row: Mapping[str, Any], first: str) -> blocks.Style:
    """Return the style of the line of a machine; the quickest one comes first."""
    if not row["fits"]:
        return "faint"
    return "best" if row["profile"] == first and row["run_seconds"] is not None else ""


def _list_rows(comparison: MachineComparison) -> Rows:
    """Return a flat row for each machine. Times that were measured on another machine are left out."""
    job = {"workload": comparison.workload.name, "steps": comparison.workload.steps}
    rows = []
    for machine in comparison.machines:
        row = {**job, "profile": machine.profile.name, **fields.make_result_row(machine.result)}
        row |= {**_list_numbers(machine, comparison.deadline), "missing": " ".join(machine.missing)}
        if machine.times == "carried over":
            row |= dict.fromkeys(("overhead", "least_seconds", "gap", "paper_seconds", "paper_overhead"))
        rows.append(row)
    columns = (*JOB_COLUMNS, *cost_columns(), *REASON_COLUMNS, *_MACHINE_COLUMNS, *DETAIL_COLUMNS)
    return Rows(columns=columns, rows=rows)


def name_time(machine: Machine) -> str:
    """Return the time of a run, with '~' if it is estimated, or why there is none."""
    if machine.run_seconds is None:
        return "does not fit" if machine.plan is None else "time not known"
    return f"{'~' if machine.interval else ''}{format_duration(machine.run_seconds)}"


def _name_interval(machine: Machine) -> str | None:
    return " to ".join(map(format_duration, machine.run_ends)) if machine.interval else None


def _list_numbers(machine: Machine, deadline: float | None) -> dict[str, Any]:
    """Return the numbers of a machine: members of the document, and cells of a row."""
    low, high = machine.interval or (None, None)
    columns = {
        "seconds_low": low,
        "seconds_high": high,
        "largest_strategy": machine.largest_strategy or None,
        "meets_deadline": None if deadline is None else machine.meets(deadline),
    }
    names = ("times", "seconds", *(name for name in _MACHINE_COLUMNS if name not in ("times", "missing")))
    return {name: columns[name] if name in columns else getattr(machine, name) for name in names}
