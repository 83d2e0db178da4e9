"""What a plan is made for, as lists and one by one: hardware profiles with their checks, and workloads."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from rich.console import Console
from rich.text import Text

from ckptplan.cost.roofline import list_missing_peaks
from ckptplan.model.profile import GRADES, NUMBERS, HardwareProfile
from ckptplan.model.workload import Workload
from ckptplan.report.columns import (
    Cell,
    FittedTable,
    Sheet,
    TableColumn,
    align_bytes,
    align_counts,
    align_rates,
)
from ckptplan.report.formats import View
from ckptplan.units import format_bytes, format_flop_rate, format_rate, format_seconds, format_share
from ckptplan.wording import Wording


def view_profiles(profiles: Sequence[HardwareProfile], *, wording: Wording = str) -> View:
    """Return a list of profiles for every format."""
    return View(
        kind="profiles",
        table=lambda console: _print_profiles(Sheet(console, wording), profiles),
        document=lambda: {"profiles": [_make_profile_row(profile) for profile in profiles]},
        rows=lambda: [_make_profile_row(profile) for profile in profiles],
    )


def view_profile(profile: HardwareProfile, *, wording: Wording = str) -> View:
    """Return every number of a profile with its grade and its source, for every format."""
    return View(
        kind="profile",
        table=lambda console: _print_profile(Sheet(console, wording), profile),
        document=lambda: {
            "profile": {
                "hash": profile.hash,
                **profile.model_dump(mode="json", exclude_none=True),
                "headroom": profile.headroom,
            }
        },
        rows=lambda: _list_sources(profile),
    )


def view_checks(profiles: Sequence[HardwareProfile]) -> View:
    """Return what a check reports of each valid profile, for every format."""
    return View(
        kind="check",
        table=lambda console: _print_checks(console, profiles),
        document=lambda: {"profiles": [_check(profile) for profile in profiles]},
        rows=lambda: [_check(profile) for profile in profiles],
    )


def _print_profiles(sheet: Sheet, profiles: Sequence[HardwareProfile]) -> None:
    """Print a line for each profile."""
    table = FittedTable(
        (
            TableColumn(title="name"),
            TableColumn(title="units", form=align_counts, priority=1),
            TableColumn(title="local each", short="local\neach", form=align_bytes),
            TableColumn(title="headroom", right=True, priority=4),
            TableColumn(title="remote", form=align_bytes),
            TableColumn(title="write", form=align_rates, priority=2),
            TableColumn(title="read", form=align_rates, priority=3),
            TableColumn(title="assumed", priority=5),
        )
    )
    for profile in profiles:
        table.add_row(
            Cell(value=profile.name, style="bold"),
            profile.units,
            profile.local_bytes,
            format_share(profile.headroom),
            "unbounded" if profile.remote_bytes is None else profile.remote_bytes,
            profile.write_bytes_per_second,
            profile.read_bytes_per_second,
            f"{len(_list_assumed(profile))} of {len(profile.sources)}",
        )
    sheet.show(table)
    sheet.gap()
    text = "Every number with its source, or the assumption made: ckptplan profiles show NAME"
    sheet.say(text)


def _make_profile_row(profile: HardwareProfile) -> dict[str, Any]:
    """Return a profile as a flat row of SI numbers."""
    return {
        "name": profile.name,
        "description": profile.description,
        **profile.numbers(),
        "assumed": _list_assumed(profile),
        "hash": profile.hash,
    }


def _print_profile(sheet: Sheet, profile: HardwareProfile) -> None:
    """Print every number of a profile with its grade and its source."""
    text = f": {profile.description}" if profile.description else ""
    title = Text.assemble((profile.name, "bold"), text)
    sheet.say(title)
    sheet.gap()
    table = FittedTable(
        (
            TableColumn(title="number"),
            TableColumn(title="value", right=True),
            TableColumn(title="grade"),
            TableColumn(title="source, note or assumption", wraps="early"),
        )
    )
    assumed = _list_assumed(profile)
    for field in NUMBERS:
        value, source = getattr(profile, field), profile.sources.get(field)
        if value is None and source is None:
            continue
        told = () if source is None else (source.assumption, source.source, source.note)
        table.add_row(
            field,
            format_field(field, value),
            Cell(value="" if source is None else source.grade, style="yellow" if field in assumed else ""),
            "; ".join(part for part in told if part) or "stated without a source",
        )
    sheet.show(table)
    sheet.gap()
    grades = "Grades: " + ", ".join(f"{grade} {meaning}" for grade, meaning in GRADES.items())
    sheet.say(grades)


def _list_sources(profile: HardwareProfile) -> list[dict[str, Any]]:
    """Return a row for each number."""
    rows = []
    for field in NUMBERS:
        source = profile.sources.get(field)
        rows.append(
            {"number": field, "value": getattr(profile, field), **(source.model_dump() if source else {})}
        )
    return rows


def _print_checks(console: Console, profiles: Sequence[HardwareProfile]) -> None:
    """Print that each profile is valid, and which numbers lack a source."""
    for profile in profiles:
        checked = _check(profile)
        unsourced, missing = checked["unsourced"], checked["no_estimates_without"]
        console.print(
            f"{profile.name}: valid, {len(profile.sources)} numbers with a source or an assumption, "
            f"{len(_list_assumed(profile))} assumed"
            + (f", without either: {', '.join(unsourced)}" if unsourced else "")
            + (f"; for estimates of step times in float32 it lacks {', '.join(missing)}" if missing else ""),
            soft_wrap=True,
        )


def _check(profile: HardwareProfile) -> dict[str, Any]:
    """Return the result of a check as a flat row."""
    given = [field for field in NUMBERS if field in profile.model_fields_set]
    return {
        "name": profile.name,
        "valid": True,
        "sourced": len(profile.sources) - len(_list_assumed(profile)),
        "assumed": _list_assumed(profile),
        "unsourced": [field for field in given if field not in profile.sources],
        "no_estimates_without": list(list_missing_peaks(profile, "float32")),
    }


def _list_assumed(profile: HardwareProfile) -> list[str]:
    """Return the numbers that are assumed, grade X."""
    return [field for field, source in profile.sources.items() if source.grade == "X"]


def format_field(field: str, value: object) -> str:
    """Return the value of a field with its unit, which the end of its name determines."""
    if value is None:
        return "unbounded" if field == "remote_bytes" else "none"
    if isinstance(value, bool):
        return "yes" if value else "no"
    if not isinstance(value, (int, float)):
        return str(value)
    if field == "headroom":
        return format_share(value)
    for ending, show in _UNITS.items():
        if field.endswith(ending):
            return show(value)
    return f"{value:,}"


_UNITS: dict[str, Callable[[float], str]] = {
    "_bytes_per_second": format_rate,
    "_flops_per_second": format_flop_rate,
    "_bytes_per_step": format_bytes,
    "_bytes": format_bytes,
    "_seconds": format_seconds,
    "_watts": "{:g} W".format,
}


_TEXTS = ("name", "description", "basis", "network")


def view_workloads(workloads: Sequence[Workload], *, wording: Wording = str) -> View:
    """Return a list of workloads for every format."""
    return View(
        kind="workloads",
        table=lambda console: _print_workloads(Sheet(console, wording), workloads),
        document=lambda: {"workloads": [_make_workload_row(workload) for workload in workloads]},
        rows=lambda: [_make_workload_row(workload) for workload in workloads],
    )


def view_workload(workload: Workload, *, wording: Wording = str) -> View:
    """Return every number of a workload with its basis, for every format."""
    return View(
        kind="workload",
        table=lambda console: _print_workload(Sheet(console, wording), workload),
        document=lambda: {
            "workload": {"hash": workload.hash, **workload.model_dump(mode="json", exclude_none=True)}
        },
        rows=lambda: _list_fields(workload),
    )


def _print_workloads(sheet: Sheet, workloads: Sequence[Workload]) -> None:
    """Print a line for each workload."""
    table = FittedTable(
        (
            TableColumn(title="name"),
            TableColumn(title="T", form=align_counts),
            TableColumn(title="state", form=align_bytes),
            TableColumn(title="tape", form=align_bytes),
            TableColumn(title="what it is", wraps="early"),
        )
    )
    for workload in workloads:
        table.add_row(
            Cell(value=workload.name, style="bold"),
            workload.steps,
            workload.state_bytes,
            workload.tape_bytes,
            workload.description,
        )
    sheet.show(table)
    sheet.gap()
    text = "Every number and how it was obtained: ckptplan workloads show NAME"
    sheet.say(text)


def _make_workload_row(workload: Workload) -> dict[str, Any]:
    """Return a workload as a flat row of SI numbers."""
    return {
        "name": workload.name,
        "description": workload.description,
        **workload.numbers(),
        "hash": workload.hash,
    }


def _print_workload(sheet: Sheet, workload: Workload) -> None:
    """Print every number of a workload with its basis."""
    text = f": {workload.description}" if workload.description else ""
    title = Text.assemble((workload.name, "bold"), text)
    sheet.say(title)
    sheet.gap()
    table = FittedTable(
        (
            TableColumn(title="field"),
            TableColumn(title="value", right=True),
            TableColumn(title="basis"),
            TableColumn(title="why", wraps="early"),
        )
    )
    for row in _list_fields(workload):
        kind = row.get("basis", "")
        table.add_row(
            row["field"],
            format_field(row["field"], row["value"]),
            Cell(value=kind, style="yellow" if kind == "assumed" else ""),
            row.get("why", ""),
        )
    if workload.network is not None:
        for field, value in workload.network.model_dump().items():
            table.add_row(f"network.{field}", format_field(field, value), "", "")
    sheet.show(table)


def _list_fields(workload: Workload) -> list[dict[str, Any]]:
    """Return a row for each field."""
    rows: list[dict[str, Any]] = []
    for field in type(workload).model_fields:
        value = getattr(workload, field)
        if field in _TEXTS or value is None:
            continue
        basis = workload.basis.get(field)
        rows.append(
            {"field": field, "value": value, **({"basis": basis.kind, "why": basis.why} if basis else {})}
        )
    return rows
