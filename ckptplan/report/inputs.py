"""Describes the inputs of plans: lists of profiles and workloads, single ones, and checks of profiles."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from ckptplan.cost.roofline import list_missing_peaks
from ckptplan.model.checked import ModelPart
from ckptplan.model.profile import GRADES, NUMBERS, HardwareProfile
from ckptplan.model.workload import Measured, Workload
from ckptplan.report.blocks import Block, Field, Paragraph, Table, Value, make_facts
from ckptplan.report.formats import View
from ckptplan.report.numbers import format_field
from ckptplan.units import format_seconds

#: Fields of a list of profiles: their numbers, and how many of the numbers are assumed.
_PROFILES = (
    Field("name"),
    Field("units", right=True, priority=1),
    Field("local_bytes", "local each"),
    Field("headroom", priority=4),
    Field(
        "remote_bytes",
        "remote",
        show=lambda row: "unbounded" if row["remote_bytes"] is None else row["remote_bytes"],
    ),
    Field("write_bytes_per_second", "write", priority=2),
    Field("read_bytes_per_second", "read", priority=3),
    Field("assumed", priority=5, right=True, show=lambda row: len(row["assumed"])),
)
_WORKLOADS = (
    Field("name"),
    Field("steps", "T", right=True),
    Field("state_bytes", "state"),
    Field("tape_bytes", "tape"),
    Field("description", "what it is", wraps=True),
)
_HINT = Paragraph("Every number and its source: ckptplan profiles show NAME, ckptplan workloads show NAME")
#: Fields of a workload and its parts that are not listed, since they are texts or shown with the numbers.
_TEXTS = ("name", "description", "basis", "measured")


def view_profiles(profiles: Sequence[HardwareProfile]) -> View:
    """Return the view of a list of profiles. A row has their numbers, and the names of assumed ones."""
    rows = [
        _make_row(profile) | {"assumed": _list_assumed(profile), "hash": profile.hash} for profile in profiles
    ]
    return _view_rows("profiles", "profiles", rows, Table.of(_PROFILES, rows), _HINT)


def view_workloads(workloads: Sequence[Workload]) -> View:
    """Return the view of a list of workloads."""
    rows = [_make_row(workload) | {"hash": workload.hash} for workload in workloads]
    return _view_rows("workloads", "workloads", rows, Table.of(_WORKLOADS, rows), _HINT)


def _make_row(model: HardwareProfile | Workload) -> dict[str, Any]:
    return {"name": model.name, "description": model.description, **model.numbers()}


def _view_rows(kind: str, member: str, rows: Sequence[Mapping[str, Any]], *shown: Block) -> View:
    """Return the view of a list. Its document has the rows as ``member``."""
    return View(kind=kind, blocks=lambda: shown, document=lambda: {member: rows}, rows=lambda: rows)


def view_profile(profile: HardwareProfile) -> View:
    """Return the view of a profile: every number with its grade and its source."""
    sources = {name: profile.sources.get(name) for name in NUMBERS}
    rows = [
        {"number": name, "value": getattr(profile, name), **(source.model_dump() if source else {})}
        for name, source in sources.items()
    ]
    stated = [row for row in rows if row["value"] is not None or "grade" in row]
    return View(
        kind="profile",
        heading="Profile",
        title=_name_model(profile),
        memory=profile.local_bytes,
        blocks=lambda: (make_facts({row["number"]: _describe_number(row) for row in stated}),),
        document=lambda: {"profile": {**_dump(profile), "headroom": profile.headroom}},
        rows=lambda: rows,
    )


def _describe_number(row: Mapping[str, Any]) -> str:
    """Return a number of a profile with its grade and its source."""
    value = format_field(row["number"], row["value"])
    if "grade" not in row:
        return f"{value}, stated without a source"
    why = "; ".join(filter(None, (row["assumption"], row["source"], row["note"])))
    return f"{value}, grade {row['grade']} ({GRADES[row['grade']]}): {why}"


def view_workload(workload: Workload) -> View:
    """Return the view of a workload: every number with its basis."""
    measured = {} if workload.calibration is None else workload.calibration.measured
    rows: list[dict[str, Any]] = []
    facts: dict[str, Value] = {}
    unused = dict(workload.basis)
    for name, value in sorted(_list_parts(workload), key=lambda part: "." in part[0]):
        row, text = {"field": name, "value": value}, format_field(name, value)
        # A table has one basis, which is shown at its first number.
        basis = unused.pop(name.partition(".")[0], None)
        if basis is not None:
            interval = _describe_interval(value, measured[name]) if name in measured else ""
            row |= {"basis": basis.kind, "why": f"{interval}{basis.why}"}
            text += f", {basis.kind}: {interval}{basis.why}"
        rows.append(row)
        facts[name] = text
    return View(
        kind="workload",
        heading="Workload",
        title=_name_model(workload),
        blocks=lambda: (make_facts(facts),),
        document=lambda: {"workload": _dump(workload)},
        rows=lambda: rows,
    )


def _list_parts(model: ModelPart, within: str = "") -> Iterator[tuple[str, object]]:
    """Yield the fields that have a value. Fields of a part have the name of the part in front."""
    for field in type(model).model_fields:
        value = getattr(model, field)
        if isinstance(value, ModelPart):
            yield from _list_parts(value, f"{field}.")
        elif field not in _TEXTS and value is not None and value is not False:
            yield f"{within}{field}", value


def _describe_interval(value: object, measured: Measured) -> str:
    """Return the interval of a measured time, as '1.1 ms to 1.2 ms by 5 rounds; '; '' without one."""
    if measured.low is None or measured.high is None or not isinstance(value, float):
        return ""
    low, high = (format_seconds(value * end) for end in (measured.low, measured.high))
    return f"{low} to {high} by {measured.repeats} rounds; "


def view_checks(profiles: Sequence[HardwareProfile]) -> View:
    """Return the view of a check of valid profiles: assumed numbers, and numbers without a source."""
    rows = [
        {
            "name": profile.name,
            "valid": True,
            "sourced": len(profile.sources) - len(_list_assumed(profile)),
            "assumed": _list_assumed(profile),
            "unsourced": [
                name for name in NUMBERS if name in profile.model_fields_set and name not in profile.sources
            ],
            "no_estimates_without": list(list_missing_peaks(profile, "float32")),
        }
        for profile in profiles
    ]
    return _view_rows("check", "profiles", rows, *(Paragraph(_summarize_check(row)) for row in rows))


def _summarize_check(row: Mapping[str, Any]) -> str:
    assumed, unsourced, missing = row["assumed"], row["unsourced"], row["no_estimates_without"]
    return (
        f"{row['name']}: valid, {row['sourced'] + len(assumed)} numbers with a source or an assumption, "
        f"{len(assumed)} assumed"
        + (f", without either: {', '.join(unsourced)}" if unsourced else "")
        + (f"; for estimates of step times in float32 it lacks {', '.join(missing)}" if missing else "")
    )


def _name_model(model: HardwareProfile | Workload) -> str:
    return f"{model.name}, {model.description}" if model.description else model.name


def _dump(model: HardwareProfile | Workload) -> dict[str, Any]:
    return {"hash": model.hash, **model.model_dump(mode="json", exclude_none=True)}


def _list_assumed(profile: HardwareProfile) -> list[str]:
    """Return the numbers that are assumed, grade X."""
    return [field for field, source in profile.sources.items() if source.grade == "X"]
