"""Machines side by side: as a table, the quickest first, and as data."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from ckptplan.cost.case import Case
from ckptplan.errors import Infeasible
from ckptplan.model.workload import TIMES, Workload
from ckptplan.planning.optimize import DETAIL_COLUMNS, JOB_COLUMNS, REASON_COLUMNS, cost_columns
from ckptplan.report import blocks
from ckptplan.report.fields import LOCAL, OVER_BASE, make_result_document, make_result_row, name_plan
from ckptplan.report.formats import ShownPlan, View
from ckptplan.report.infeasible import format_reason
from ckptplan.report.numbers import format_price
from ckptplan.report.picture import Chart
from ckptplan.storage.tables import Rows
from ckptplan.studies.machines import Machine, MachineComparison
from ckptplan.units import format_bytes, format_count, format_duration, format_percent, format_share
from ckptplan.wording import Argument

#: The columns of a row that describe the machine instead of its plan.
_MACHINE_COLUMNS = (
    "times", "missing", "seconds_low", "seconds_high", "largest_steps", "largest_strategy", "batches",
    "run_seconds", "price_per_hour", "run_price", "most_joules", "meets_deadline",
)  # fmt: skip
#: The sign before an estimated time.
_ESTIMATED = "~"
#: The most machines that a line names.
_MOST_NAMED = 3


def view_machines(comparison: MachineComparison) -> View:
    """Return the view of machines side by side."""
    workload, quickest, cheapest = comparison.workload, comparison.quickest, comparison.cheapest
    batches, deadline = comparison.batches, comparison.deadline
    run = "one batch" if batches == 1 else f"a run of {format_count(batches)} batches"
    within = "" if deadline is None else f" within {format_duration(deadline)}"
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
                    **make_result_document(machine.result),
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
            drawing="machines",
            result=comparison,
            title="Time on each machine",
            caption="Hollow dots are estimated times; the lines behind them are their intervals.",
        ),
        plans=lambda: [
            ShownPlan(label=f"{plan.profile.name}: {plan.strategy}", plan=plan, first=plan is plans[0])
            for plan in plans
        ],
    )


def _describe_comparison(comparison: MachineComparison) -> Iterator[blocks.Block]:
    """Yield a table of machines, the quickest and the cheapest one, the plans, and notes about the numbers."""
    workload, machines = comparison.workload, comparison.machines
    yield _make_table(comparison)
    for line in _summarise(comparison):
        yield blocks.Paragraph(line, style="best")
    facts = {
        "Plans": {machine.profile.name: _describe_plan(machine) for machine in machines},
        "Local memory that every schedule needs": {
            machine.profile.name: _describe_resident(machine, workload) for machine in machines
        },
        "What the numbers rest on": dict(_list_notes(comparison)),
    }
    for heading, texts in facts.items():
        if texts:
            yield blocks.Heading(heading)
            yield blocks.make_facts(texts, "caution")


def _list_rows(comparison: MachineComparison) -> Rows:
    """Return a flat row for each machine. Times that were measured on another machine are left out."""
    job = {"workload": comparison.workload.name, "steps": comparison.workload.steps}
    rows = []
    for machine in comparison.machines:
        row = {**job, "profile": machine.profile.name, **make_result_row(machine.result)}
        row |= {**_list_numbers(machine, comparison.deadline), "missing": " ".join(machine.missing)}
        if machine.times == "carried over":
            row |= dict.fromkeys(("overhead", "least_seconds", "gap", "paper_seconds", "paper_overhead"))
        rows.append(row)
    columns = (*JOB_COLUMNS, *cost_columns(), *REASON_COLUMNS, *_MACHINE_COLUMNS, *DETAIL_COLUMNS)
    return Rows(columns=columns, rows=rows)


def _make_table(comparison: MachineComparison) -> blocks.Table:
    """Return a line for each machine, without columns in which no machine has a number."""
    rows = [
        {**row, "time": name_time(machine), "is_quickest": machine is comparison.quickest}
        for row, machine in zip(_list_rows(comparison), comparison.machines, strict=True)
    ]
    fields = (
        blocks.Field("profile", "machine"),
        blocks.Field("time", "time" if comparison.batches == 1 else "run", right=True),
        OVER_BASE.ranked(2),
        LOCAL.ranked(1),
        blocks.Field("largest_steps", "largest T", right=True),
        blocks.Field("run_price", "price"),
        blocks.Field("most_joules", "energy, at most", priority=3),
    )

    def choose_style(row: Mapping[str, Any]) -> blocks.Style:
        if not row["fits"]:
            return "faint"
        return "best" if row["is_quickest"] else ""

    used = [field for field in fields if any(row[field.name] is not None for row in rows)]
    return blocks.Table.of(used, rows, style=choose_style)


def name_time(machine: Machine) -> str:
    """Return the time of a run, or why there is none."""
    if machine.run_seconds is None:
        return "does not fit" if machine.plan is None else "time not known"
    return f"{_ESTIMATED if machine.interval else ''}{format_duration(machine.run_seconds)}"


def _summarise(comparison: MachineComparison) -> Iterator[str]:
    """Yield lines about the quickest machine, and about the cheapest one that meets the deadline."""
    quickest, cheapest, deadline = comparison.quickest, comparison.cheapest, comparison.deadline
    timed = [machine for machine in comparison.machines if machine.seconds is not None]
    if quickest is not None and quickest.run_seconds is not None:
        estimated = f" (estimated: {_format_interval(quickest)})" if quickest.interval else ""
        yield f"Quickest: {quickest.profile.name}, {format_duration(quickest.run_seconds)}{estimated}"
        yield from _list_rivals(quickest, timed)
    within = "" if deadline is None else f" within {format_duration(deadline)}"
    meeting = [machine for machine in timed if deadline is None or machine.meets(deadline)]
    if cheapest is not None and cheapest.run_price is not None:
        sure = deadline is None or cheapest.surely_meets(deadline)
        yield (
            f"Cheapest{within}: {cheapest.profile.name}, {format_price(cheapest.run_price)}"
            f"{'' if sure else ' (it may miss the deadline)'}"
        )
        yield from _list_rivals(
            cheapest, [machine for machine in meeting if machine.run_price is not None], by_price=True
        )
        unpriced = [machine.profile.name for machine in meeting if machine.run_price is None]
        yield from _name_machines("no price is known for {names}", unpriced)
    elif deadline is not None:
        names = ", ".join(machine.profile.name for machine in meeting) or "none of them"
        yield f"Within {format_duration(deadline)}: {names}"


def _list_rivals(first: Machine, machines: Sequence[Machine], *, by_price: bool = False) -> Iterator[str]:
    """Yield a line about the machines that may be ahead of the first, since their intervals overlap.

    Machines with the same step times are left out: the same estimate holds for both, so the order is certain.
    """

    def find_ends(machine: Machine) -> list[float]:
        return [end * (machine.price_per_hour or 0.0) if by_price else end for end in machine.run_ends]

    most, times = find_ends(first)[1], _list_times(first)
    # This also leaves out the first machine itself.
    others = [machine for machine in machines if _list_times(machine) != times]
    rivals = [machine.profile.name for machine in others if find_ends(machine)[0] < most]
    yield from _name_machines(f"{{names}} may be just as {'cheap' if by_price else 'quick'}", rivals)


def _list_times(machine: Machine) -> list[float]:
    """Return the times of a step on a machine in seconds; the list is empty if nothing fits there."""
    return [] if machine.plan is None else [getattr(machine.plan.workload, name) for name in TIMES]


def _name_machines(text: str, names: Sequence[str]) -> Iterator[str]:
    """Yield a line about machines with their names in it, if there are any."""
    if names:
        listed = ", ".join([*names[:_MOST_NAMED], "others"] if len(names) > _MOST_NAMED else names)
        first, comma, last = listed.rpartition(", ")
        yield f"  {text.format(names=f'{first} and {last}' if comma else last)}"


def _format_interval(machine: Machine) -> str:
    return " to ".join(map(format_duration, machine.run_ends))


def _describe_plan(machine: Machine) -> str:
    if isinstance(machine.result, Infeasible):
        return f"nothing: {format_reason(machine.result.binding, machine.result.need)}"
    text = name_plan(machine.result)
    if machine.times == "estimated":
        return f"{text}; {_format_interval(machine)}"
    return f"{text}; no time: without {', '.join(machine.missing)}" if machine.times == "carried over" else text


def _describe_resident(machine: Machine, workload: Workload) -> str:
    """Return the share of a machine's budget that every schedule needs, and its parts."""
    parts = Case(workload=workload, profile=machine.profile).resident_parts
    budget = machine.profile.local_budget_bytes
    listed = "; ".join(f"{name} {format_bytes(size)}" for name, size in parts.items())
    share = format_share(sum(parts.values()) / budget)
    return f"{share} of {format_bytes(budget)}{': ' if listed else ''}{listed}"


def _list_notes(comparison: MachineComparison) -> Iterator[tuple[str, str]]:
    """Yield notes about times that are estimated, missing, or the same for all machines."""
    workload, machines = comparison.workload, comparison.machines
    estimated = [machine for machine in machines if machine.times == "estimated"]
    if estimated:
        elsewhere = f"the times of {workload.name} belong to {workload.timed_on}"
        whose = f"nobody timed {workload.name}" if workload.is_estimated else elsewhere
        yield (
            f"{_ESTIMATED} estimated",
            f"by a roofline of peak rates, as {whose}; "
            "each plan has its interval. A calibration on the machine itself always wins",
        )
    for machine in machines:
        if machine.times == "carried over" and machine.plan is not None:
            yield (
                machine.profile.name,
                f"the plan was chosen with the step times of {workload.timed_on}, which say nothing about "
                f"the time here. To estimate it, give {', '.join(machine.missing)}",
            )
    if any(machine.times == "given" for machine in machines):
        yield (
            "step times",
            f"those of {workload.name}, the same on every machine: it does not say whose they are",
        )
    limit = comparison.reach_overhead
    if limit is not None:
        base = "twice base's time" if limit == 1 else f"{format_percent(limit)} over base"
        yield "largest T", f"at most {base}; {Argument('max_overhead')} sets the limit"


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
