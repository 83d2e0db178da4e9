"""Machines side by side, one line each, the quickest first; below, the plan on each and what was estimated."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

from ckptplan.errors import Infeasible
from ckptplan.model.prediction import BasisEntry
from ckptplan.planning.optimize import DETAIL_COLUMNS, JOB_COLUMNS, REASON_COLUMNS, cost_columns
from ckptplan.report.blocks import Block, Cell, Field, Heading, Paragraph, Record, Table, make_facts, make_faint
from ckptplan.report.fields import LOCAL, OVER_BASE, make_result_document, make_result_row, name_plan
from ckptplan.report.formats import View
from ckptplan.report.infeasible import format_verdict
from ckptplan.storage.tables import Columns, Rows
from ckptplan.studies.machines import Machine, MachineComparison
from ckptplan.units import format_count, format_duration, format_percent
from ckptplan.wording import Argument

#: The columns of a row that are about the machine, and not about its plan.
_MACHINE_COLUMNS: Columns = {
    "times": "text",
    "missing": "text",
    "seconds_low": "number",
    "seconds_high": "number",
    "largest_steps": "whole",
    "largest_strategy": "text",
    "batches": "whole",
    "run_seconds": "number",
    "price_per_hour": "number",
    "run_price": "number",
    "most_joules": "number",
    "meets_deadline": "truth",
}
#: What stands before an estimated time, and after the energy.
_ESTIMATED = "~"
#: Machines that a line names at most.
_SOME = 3


@dataclass(frozen=True)
class MachinesView(View):
    """Machines side by side."""

    kind = "machines"
    comparison: MachineComparison

    def blocks(self) -> Iterator[Block]:
        """Yield a line for each machine, the answers, the plans, and what the numbers rest on."""
        comparison = self.comparison
        workload = comparison.workload
        title = f"Machines for {workload.name}, T = {format_count(workload.steps)} time steps"
        yield Paragraph(f", {_name_run(comparison)}", head=title)
        yield _make_table(comparison)
        for line in summarise(comparison):
            yield Paragraph(line, style="best")
        yield Heading("Plans")
        plans = {machine.profile.name: _describe_plan(machine) for machine in comparison.machines}
        yield make_facts(plans, "caution")
        if notes := dict(_list_notes(comparison)):
            yield Heading("What the numbers rest on")
            yield make_facts(notes, "caution")

    def document(self) -> dict[str, Any]:
        """Return full plans, and reasons where there is none."""
        comparison = self.comparison
        workload, quickest, cheapest = comparison.workload, comparison.quickest, comparison.cheapest
        return {
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
        }

    def rows(self) -> Rows:
        """Return a flat row for each machine; times that belong to another machine are left out."""
        job = {"workload": self.comparison.workload.name, "steps": self.comparison.workload.steps}
        rows = []
        for machine in self.comparison.machines:
            row = {**job, "profile": machine.profile.name, **make_result_row(machine.result)}
            row |= {**_list_numbers(machine, self.comparison.deadline), "missing": " ".join(machine.missing)}
            if machine.times == "carried over":
                row |= dict.fromkeys(("overhead", "least_seconds", "gap", "paper_seconds", "paper_overhead"))
            rows.append(row)
        columns = {**JOB_COLUMNS, **cost_columns(), **REASON_COLUMNS, **_MACHINE_COLUMNS, **DETAIL_COLUMNS}
        return Rows(columns=columns, rows=rows)

    def basis(self) -> Sequence[BasisEntry]:
        """Return the inputs of all plans, each under the name of its machine."""
        return tuple(
            dataclasses.replace(entry, field=f"{machine.profile.name}: {entry.field}")
            for machine in self.comparison.machines
            if machine.plan is not None
            for entry in machine.plan.estimate_basis
        )


def _name_run(comparison: MachineComparison) -> str:
    batches = comparison.batches
    run = "one batch" if batches == 1 else f"a run of {format_count(batches)} batches"
    return run if comparison.deadline is None else f"{run} within {format_duration(comparison.deadline)}"


def _make_table(comparison: MachineComparison) -> Table:
    priced = any(machine.price_per_hour is not None for machine in comparison.machines)
    powered = any(machine.most_joules is not None for machine in comparison.machines)
    fields = (
        Field("machine"),
        Field("time", "time" if comparison.batches == 1 else "run", right=True),
        OVER_BASE.ranked(2),
        LOCAL.ranked(1),
        Field("largest T", short="largest\nT", right=True),
        *((Field("price", right=True),) if priced else ()),
        *((Field("energy", right=True, priority=3),) if powered else ()),
    )
    return Table.of(fields, (_tell(one, best=one is comparison.quickest) for one in comparison.machines))


def _tell(machine: Machine, *, best: bool) -> Record:
    """Return what the table says of a machine."""
    record: dict[str, Any] = {
        "machine": Cell(machine.profile.name, style="best" if best else ""),
        "largest T": format_count(machine.largest_steps) if machine.largest_steps else "none",
        "price": None if machine.run_price is None else format_price(machine.run_price),
        "energy": None if machine.most_joules is None else f"≤ {format_energy(machine.most_joules)}",
    }
    if isinstance(machine.result, Infeasible):
        need = machine.result.need if machine.result.binding == "local_bytes" else None
        return make_faint({**record, "time": "does not fit", "local_peak_bytes": need})
    record["local_peak_bytes"] = machine.result.predicted.local_peak_bytes
    if machine.run_seconds is None:
        return {**record, "time": "not known"}
    mark = _ESTIMATED if machine.times == "estimated" else ""
    time = f"{mark}{format_duration(machine.run_seconds)}"
    return {**record, "time": time, "overhead": machine.result.predicted.overhead}


def format_price(price: float) -> str:
    """Return a price with two digits after the point, more for a small one: '12.40', '0.0031'."""
    return f"{price:,.2f}" if price >= 0.1 or price == 0 else f"{price:.2g}"


def format_energy(joules: float) -> str:
    """Return an energy in joules, or in kilowatt-hours from a tenth of one."""
    return f"{joules / 3.6e6:,.3g} kWh" if joules >= 3.6e5 else f"{joules:,.3g} J"


def summarise(comparison: MachineComparison) -> Iterator[str]:
    """Yield the answer in a line or two: the quickest machine, and the cheapest that meets the deadline."""
    quickest, cheapest, deadline = comparison.quickest, comparison.cheapest, comparison.deadline
    if quickest is not None and quickest.run_seconds is not None:
        estimated = f" (estimated: {_tell_interval(quickest)})" if quickest.interval else ""
        yield f"Quickest: {quickest.profile.name}, {format_duration(quickest.run_seconds)}{estimated}"
        yield from _tell_others("not told apart within the estimates", _find_rivals(comparison))
    within = "" if deadline is None else f" within {format_duration(deadline)}"
    if cheapest is not None and cheapest.run_price is not None:
        sure = deadline is None or cheapest.surely_meets(deadline)
        yield (
            f"Cheapest{within}: {cheapest.profile.name}, {format_price(cheapest.run_price)}"
            f"{'' if sure else ' (the estimate also allows for more time than that)'}"
        )
        yield from _tell_others("not told apart within the estimates", _find_price_rivals(comparison, cheapest))
        unpriced = [one.profile.name for one in _list_meeting(comparison) if one.run_price is None]
        yield from _tell_others("not compared, as they have no price", unpriced)
    elif deadline is not None:
        meeting = [machine.profile.name for machine in comparison.machines if machine.meets(deadline)]
        yield f"Within {format_duration(deadline)}: {', '.join(meeting) or 'none of them'}"


def _tell_others(what: str, names: Sequence[str]) -> Iterator[str]:
    """Yield a line about machines, if there are any."""
    if names:
        yield f"  {what}: {', '.join(names[:_SOME])}{', ...' if len(names) > _SOME else ''}"


def _find_rivals(comparison: MachineComparison) -> list[str]:
    """Return the machines that may be quicker than the quickest, as the intervals of their times overlap."""
    first, *others = [one for one in comparison.machines if one.seconds is not None]
    most = _ends(first)[1]
    return [one.profile.name for one in others if _ends(one)[0] < most]


def _find_price_rivals(comparison: MachineComparison, cheapest: Machine) -> list[str]:
    """Return the machines that may be cheaper: the intervals of prices are those of times."""
    most = _price_ends(cheapest)[1]
    return [
        one.profile.name
        for one in _list_meeting(comparison)
        if one is not cheapest and one.run_price is not None and _price_ends(one)[0] < most
    ]


def _list_meeting(comparison: MachineComparison) -> list[Machine]:
    """Return the machines with a time, which meets the deadline if there is one."""
    deadline = comparison.deadline
    timed = [one for one in comparison.machines if one.seconds is not None]
    return [one for one in timed if deadline is None or one.meets(deadline)]


def _price_ends(machine: Machine) -> tuple[float, float]:
    low, high = _ends(machine)
    each = (machine.run_price or 0.0) / (machine.seconds or 1.0)
    return low * each, high * each


def _ends(machine: Machine) -> tuple[float, float]:
    seconds = machine.seconds or 0.0
    return machine.interval or (seconds, seconds)


def _tell_interval(machine: Machine) -> str:
    assert machine.interval is not None  # noqa: S101 - the caller asked for it
    low, high = (format_duration(end * machine.batches) for end in machine.interval)
    return f"{low} to {high}"


def _describe_plan(machine: Machine) -> str:
    if isinstance(machine.result, Infeasible):
        return f"nothing: {format_verdict(machine.result)}"
    text = name_plan(machine.result)
    if machine.times == "estimated":
        return f"{text}; {_tell_interval(machine)}"
    return f"{text}; no time: without {', '.join(machine.missing)}" if machine.times == "carried over" else text


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
