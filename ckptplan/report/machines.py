"""Machines side by side: as a table, the quickest first, and as data."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator, Sequence
from typing import Any

from ckptplan.cost.case import Case
from ckptplan.errors import Infeasible
from ckptplan.model.workload import TIMES, Workload
from ckptplan.planning.optimize import DETAIL_COLUMNS, JOB_COLUMNS, REASON_COLUMNS, cost_columns
from ckptplan.report import blocks
from ckptplan.report.fields import LOCAL, OVER_BASE, make_result_document, make_result_row, name_plan
from ckptplan.report.formats import View
from ckptplan.report.infeasible import format_reason
from ckptplan.report.picture import draw_later
from ckptplan.storage.tables import Rows
from ckptplan.studies.machines import Machine, MachineComparison
from ckptplan.units import format_bytes, format_count, format_duration, format_percent, format_share
from ckptplan.wording import Argument

#: The columns of a row that are about the machine, and not about its plan.
_MACHINE_COLUMNS = (
    "times", "missing", "seconds_low", "seconds_high", "largest_steps", "largest_strategy", "batches",
    "run_seconds", "price_per_hour", "run_price", "most_joules", "meets_deadline",
)  # fmt: skip
#: What stands before an estimated time, and after the energy.
_ESTIMATED = "~"
#: Machines that a line names at most.
_SOME = 3


def view_machines(comparison: MachineComparison) -> View:
    """Return machines side by side."""
    workload, quickest, cheapest = comparison.workload, comparison.quickest, comparison.cheapest
    plans = [(one.profile.name, one.plan) for one in comparison.machines if one.plan is not None]

    draw = draw_later(comparison)

    def list_sections() -> Iterator[blocks.Section | blocks.Schedules]:
        about = "Hollow dots are estimated times; the lines behind them are their intervals."
        chart = blocks.Chart("machines", "Time on each machine", about, draw)
        yield blocks.Section("machines", "Machines", [chart, *_describe_comparison(comparison)])
        yield blocks.Schedules(plans=[(f"{name}: {plan.strategy}", plan) for name, plan in plans])

    return View(
        kind="machines",
        unmet="" if comparison.fits else "it fits on no machine",
        blocks=lambda: _describe_comparison(comparison),
        document=lambda: {
            "workload": {**workload.identify(), "steps": workload.steps},
            "batches": comparison.batches,
            "deadline_seconds": comparison.deadline,
            "largest_max_overhead": comparison.reach_overhead,
            "quickest": None if quickest is None else quickest.profile.name,
            "cheapest": None if cheapest is None else cheapest.profile.name,
            "machines": [
                {
                    "profile": machine.profile.identify(),
                    **_list_numbers(machine, comparison.deadline),
                    "missing": list(machine.missing),
                    **make_result_document(machine.result),
                }
                for machine in comparison.machines
            ],
        },
        rows=lambda: _list_rows(comparison),
        basis=lambda: tuple(
            dataclasses.replace(entry, field=f"{machine.profile.name}: {entry.field}")
            for machine in comparison.machines
            if machine.plan is not None
            for entry in machine.plan.estimate_basis
        ),
        title=f"Machines for {workload.name}, T = {format_count(workload.steps)}",
        lede="The best plan on each machine." if plans else "It fits on no machine.",
        sections=list_sections,
        draw=draw,
    )


def _describe_comparison(comparison: MachineComparison) -> Iterator[blocks.Block]:
    """Yield a line for each machine, the answers, the plans, and what the numbers rest on."""
    workload, machines = comparison.workload, comparison.machines
    title = f"Machines for {workload.name}, T = {format_count(workload.steps)} time steps"
    batches, deadline = comparison.batches, comparison.deadline
    run = "one batch" if batches == 1 else f"a run of {format_count(batches)} batches"
    within = "" if deadline is None else f" within {format_duration(deadline)}"
    yield blocks.Paragraph(f", {run}{within}", head=title)
    yield _make_table(comparison)
    for line in _summarise(comparison):
        yield blocks.Paragraph(line, style="best")
    yield blocks.Heading("Plans")
    plans = {machine.profile.name: _describe_plan(machine) for machine in machines}
    yield blocks.make_facts(plans, "caution")
    yield blocks.Heading("Local memory that every schedule needs")
    needs = {machine.profile.name: _describe_resident(machine, workload) for machine in machines}
    yield blocks.make_facts(needs, "caution")
    if notes := dict(_list_notes(comparison)):
        yield blocks.Heading("What the numbers rest on")
        yield blocks.make_facts(notes, "caution")


def _list_rows(comparison: MachineComparison) -> Rows:
    """Return a flat row for each machine; times that belong to another machine are left out."""
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
    priced = any(machine.price_per_hour is not None for machine in comparison.machines)
    powered = any(machine.most_joules is not None for machine in comparison.machines)
    fields = (
        blocks.Field("machine"),
        blocks.Field("time", "time" if comparison.batches == 1 else "run", right=True),
        OVER_BASE.ranked(2),
        LOCAL.ranked(1),
        blocks.Field("largest T", right=True),
        *((blocks.Field("price", right=True),) if priced else ()),
        *((blocks.Field("energy", right=True, priority=3),) if powered else ()),
    )
    machines = comparison.machines
    return blocks.Table.of(fields, (_make_record(one, best=one is comparison.quickest) for one in machines))


def _make_record(machine: Machine, *, best: bool) -> blocks.Record:
    """Return what the table says of a machine."""
    record: dict[str, Any] = {
        "machine": blocks.Cell(machine.profile.name, style="best" if best else ""),
        "time": name_time(machine),
        "largest T": format_count(machine.largest_steps) if machine.largest_steps else "none",
        "price": None if machine.run_price is None else format_price(machine.run_price),
        "energy": None if machine.most_joules is None else f"≤ {_format_energy(machine.most_joules)}",
    }
    if isinstance(machine.result, Infeasible):
        need = machine.result.need if machine.result.binding == "local_bytes" else None
        return blocks.make_faint({**record, "local_peak_bytes": need})
    added = {} if machine.run_seconds is None else {"overhead": machine.result.predicted.overhead}
    return {**record, **added, "local_peak_bytes": machine.result.predicted.local_peak_bytes}


def name_time(machine: Machine) -> str:
    """Return the time of a run, or why there is none."""
    if machine.run_seconds is None:
        return "does not fit" if machine.plan is None else "time not known"
    return f"{_ESTIMATED if machine.interval else ''}{format_duration(machine.run_seconds)}"


def format_price(price: float) -> str:
    """Return a price with two digits after the point, more for a small one: '12.40', '0.0031'."""
    return f"{price:,.2f}" if price >= 0.1 or price == 0 else f"{price:.2g}"


def _format_energy(joules: float) -> str:
    """Return an energy in joules, or in kilowatt-hours from a tenth of one."""
    return f"{joules / 3.6e6:,.3g} kWh" if joules >= 3.6e5 else f"{joules:,.3g} J"


def _summarise(comparison: MachineComparison) -> Iterator[str]:
    """Yield the answer in a line or two: the quickest machine, and the cheapest that meets the deadline."""
    quickest, cheapest, deadline = comparison.quickest, comparison.cheapest, comparison.deadline
    timed = [one for one in comparison.machines if one.seconds is not None]
    if quickest is not None and quickest.run_seconds is not None:
        estimated = f" (estimated: {_format_interval(quickest)})" if quickest.interval else ""
        yield f"Quickest: {quickest.profile.name}, {format_duration(quickest.run_seconds)}{estimated}"
        yield from _list_rivals(quickest, timed)
    within = "" if deadline is None else f" within {format_duration(deadline)}"
    meeting = [one for one in timed if deadline is None or one.meets(deadline)]
    if cheapest is not None and cheapest.run_price is not None:
        sure = deadline is None or cheapest.surely_meets(deadline)
        yield (
            f"Cheapest{within}: {cheapest.profile.name}, {format_price(cheapest.run_price)}"
            f"{'' if sure else ' (it may miss the deadline)'}"
        )
        yield from _list_rivals(cheapest, [one for one in meeting if one.run_price is not None], by_price=True)
        unpriced = [one.profile.name for one in meeting if one.run_price is None]
        yield from _name_some("no price is known for {names}", unpriced)
    elif deadline is not None:
        names = ", ".join(one.profile.name for one in meeting) or "none of them"
        yield f"Within {format_duration(deadline)}: {names}"


def _list_rivals(first: Machine, machines: Sequence[Machine], *, by_price: bool = False) -> Iterator[str]:
    """Yield a line about the machines that may be ahead of the first, as their intervals overlap.

    If two machines have the same times of a step, one estimate holds for both, so their order is certain.
    """

    def find_ends(one: Machine) -> list[float]:
        return [end * (one.price_per_hour or 0.0) if by_price else end for end in one.run_ends]

    most, times = find_ends(first)[1], _list_times(first)
    # The first itself has its own times, too.
    others = [machine for machine in machines if _list_times(machine) != times]
    rivals = [machine.profile.name for machine in others if find_ends(machine)[0] < most]
    yield from _name_some(f"{{names}} may be just as {'cheap' if by_price else 'quick'}", rivals)


def _list_times(machine: Machine) -> list[float]:
    """Return the times of a step on a machine in seconds; the list is empty if nothing fits there."""
    return [] if machine.plan is None else [getattr(machine.plan.workload, name) for name in TIMES]


def _name_some(text: str, names: Sequence[str]) -> Iterator[str]:
    """Yield a line about machines with their names in it, if there are any."""
    if names:
        listed = ", ".join([*names[:_SOME], "others"] if len(names) > _SOME else names)
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
    """Yield what is estimated, missing, or the same for all machines."""
    workload, machines = comparison.workload, comparison.machines
    estimated = [machine for machine in machines if machine.times == "estimated"]
    if estimated:
        theirs = f"the times of {workload.name} belong to {workload.timed_on}"
        whose = f"nobody timed {workload.name}" if workload.is_estimated else theirs
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
    if any(machine.most_joules is not None for machine in machines):
        yield "energy", "an upper figure: the time at the power under load"


def _list_numbers(machine: Machine, deadline: float | None) -> dict[str, Any]:
    """Return the numbers of a machine: members of the document, and cells of a row."""
    low, high = machine.interval or (None, None)
    found = {
        "seconds_low": low,
        "seconds_high": high,
        "largest_strategy": machine.largest_strategy or None,
        "meets_deadline": None if deadline is None else machine.meets(deadline),
    }
    names = ("times", "seconds", *(name for name in _MACHINE_COLUMNS if name not in ("times", "missing")))
    return {name: found[name] if name in found else getattr(machine, name) for name in names}
