"""What a plan is made for, as lists and one by one: hardware profiles with their checks, and workloads."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from ckptplan.cost.roofline import list_missing_peaks
from ckptplan.model.checked import ModelPart
from ckptplan.model.profile import GRADES, NUMBERS, HardwareProfile
from ckptplan.model.workload import Measured, Workload
from ckptplan.report.blocks import Block, Cell, Field, Paragraph, Record, Table
from ckptplan.report.fields import align_bytes, align_counts, align_rates, format_field
from ckptplan.report.formats import View
from ckptplan.units import format_seconds, format_share

#: Fields of profiles in a list: their numbers, and how many of these are assumed.
_PROFILES = (
    Field("name"),
    Field("units", form=align_counts, priority=1),
    Field("local_bytes", "local each", "local\neach", form=align_bytes),
    Field("headroom", right=True, priority=4),
    Field("remote_bytes", "remote", form=align_bytes),
    Field("write_bytes_per_second", "write", form=align_rates, priority=2),
    Field("read_bytes_per_second", "read", form=align_rates, priority=3),
    Field("assumed", priority=5),
)
_WORKLOADS = (
    Field("name"),
    Field("steps", "T", form=align_counts),
    Field("state_bytes", "state", form=align_bytes),
    Field("tape_bytes", "tape", form=align_bytes),
    Field("description", "what it is", wraps="early"),
)
#: Fields of the numbers of one profile or workload.
_NUMBER, _VALUE = Field("number"), Field("value", right=True)
_SOURCE = Field("told", "source, note or assumption", wraps="early")
#: Fields of a workload and its parts that are no numbers, or are told with them.
_TEXTS = ("name", "description", "basis", "measured")


def _view_list(kind: str, member: str, rows: Sequence[Mapping[str, Any]], *told: Block) -> View:
    """Return a list, whose document has it as a member."""
    return View(kind=kind, blocks=lambda: told, document=lambda: {member: rows}, rows=lambda: rows)


def view_profiles(profiles: Sequence[HardwareProfile]) -> View:
    """Return a list of profiles."""

    def tell(profile: HardwareProfile) -> Record:
        return {
            **profile.numbers(),
            "name": Cell(profile.name, style="strong"),
            "headroom": format_share(profile.headroom),
            "remote_bytes": "unbounded" if profile.remote_bytes is None else profile.remote_bytes,
            "assumed": f"{len(_list_assumed(profile))} of {len(profile.sources)}",
        }

    rows = [
        {**_describe(profile), **profile.numbers(), "assumed": _list_assumed(profile), "hash": profile.hash}
        for profile in profiles
    ]
    hint = "Every number with its source, or the assumption made: ckptplan profiles show NAME"
    return _view_list("profiles", "profiles", rows, Table.of(_PROFILES, map(tell, profiles)), Paragraph(hint))


def view_workloads(workloads: Sequence[Workload]) -> View:
    """Return a list of workloads."""
    rows = [{**_describe(one), **one.numbers(), "hash": one.hash} for one in workloads]
    table = Table.of(_WORKLOADS, ({**row, "name": Cell(row["name"], style="strong")} for row in rows))
    hint = "Every number and how it was obtained: ckptplan workloads show NAME"
    return _view_list("workloads", "workloads", rows, table, Paragraph(hint))


def view_profile(profile: HardwareProfile) -> View:
    """Return every number of a profile with its grade and its source."""
    rows = [
        {
            "number": name,
            "value": getattr(profile, name),
            **(profile.sources[name].model_dump() if name in profile.sources else {}),
        }
        for name in NUMBERS
    ]

    def tell(row: Mapping[str, Any]) -> Record:
        told = "; ".join(filter(None, (row.get(name) for name in ("assumption", "source", "note"))))
        return {
            "number": row["number"],
            "value": format_field(row["number"], row["value"]),
            "grade": Cell(row.get("grade"), style="caution" if row.get("grade") == "X" else ""),
            "told": told or "stated without a source",
        }

    # What is neither given nor sourced, nothing is said of.
    records = [tell(row) for row in rows if row["value"] is not None or "grade" in row]
    grades = ", ".join(f"{grade} {meaning}" for grade, meaning in GRADES.items())
    headroom = {"headroom": profile.headroom}
    return View(
        kind="profile",
        blocks=lambda: (
            _make_title(profile),
            Table.of((_NUMBER, _VALUE, Field("grade"), _SOURCE), records),
            Paragraph(f"Grades: {grades}"),
        ),
        document=lambda: {"profile": {**_dump(profile), **headroom}},
        rows=lambda: rows,
    )


def view_workload(workload: Workload) -> View:
    """Return every number of a workload with its basis."""
    known = {} if workload.calibration is None else workload.calibration.measured
    rows, untold = [], dict(workload.basis)
    for name, value in sorted(_list_parts(workload), key=lambda part: "." in part[0]):
        # That of a table is told with its first number.
        basis = untold.pop(name.partition(".")[0], None)
        interval = _tell_interval(value, known[name]) if name in known else ""
        why = {"basis": basis.kind, "why": f"{interval}{basis.why}"} if basis else {}
        rows.append({"field": name, "value": value, **why})

    def tell(row: Mapping[str, Any]) -> Record:
        kind = row.get("basis")
        value = format_field(row["field"], row["value"])
        return {**row, "value": value, "basis": Cell(kind, style="caution" if kind == "assumed" else "")}

    fields = (Field("field"), _VALUE, Field("basis"), Field("why", wraps="early"))
    return View(
        kind="workload",
        blocks=lambda: (_make_title(workload), Table.of(fields, map(tell, rows))),
        document=lambda: {"workload": _dump(workload)},
        rows=lambda: rows,
    )


def _list_parts(model: ModelPart, within: str = "") -> Iterator[tuple[str, object]]:
    """Yield the fields that are known with their values; those of a part are named after it, too."""
    for field in type(model).model_fields:
        value = getattr(model, field)
        if isinstance(value, ModelPart):
            yield from _list_parts(value, f"{field}.")
        elif field not in _TEXTS and value is not None and value is not False:
            yield f"{within}{field}", value


def _tell_interval(value: object, known: Measured) -> str:
    """Return the interval of a measured time, as the beginning of how it was measured."""
    if known.low is None or known.high is None or not isinstance(value, float):
        return ""
    low, high = (format_seconds(value * end) for end in (known.low, known.high))
    return f"{low} to {high} by {known.repeats} rounds; "


def view_checks(profiles: Sequence[HardwareProfile]) -> View:
    """Return what a check reports of each valid profile: which numbers are assumed, and which lack a source."""
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
    return _view_list("check", "profiles", rows, *(Paragraph(_summarize_check(row)) for row in rows))


def _summarize_check(row: Mapping[str, Any]) -> str:
    assumed, unsourced, missing = row["assumed"], row["unsourced"], row["no_estimates_without"]
    return (
        f"{row['name']}: valid, {row['sourced'] + len(assumed)} numbers with a source or an assumption, "
        f"{len(assumed)} assumed"
        + (f", without either: {', '.join(unsourced)}" if unsourced else "")
        + (f"; for estimates of step times in float32 it lacks {', '.join(missing)}" if missing else "")
    )


def _make_title(model: HardwareProfile | Workload) -> Paragraph:
    return Paragraph(f": {model.description}" if model.description else "", head=model.name)


def _describe(model: HardwareProfile | Workload) -> dict[str, Any]:
    return {"name": model.name, "description": model.description}


def _dump(model: HardwareProfile | Workload) -> dict[str, Any]:
    return {"hash": model.hash, **model.model_dump(mode="json", exclude_none=True)}


def _list_assumed(profile: HardwareProfile) -> list[str]:
    """Return the numbers that are assumed, grade X."""
    return [field for field, source in profile.sources.items() if source.grade == "X"]
