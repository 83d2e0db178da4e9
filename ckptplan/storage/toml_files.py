"""Writes workloads and profiles as TOML, which ``load_workload`` and ``load_profile`` read back as equal."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

from ckptplan.errors import InputError
from ckptplan.model.profile import NUMBERS, HardwareProfile
from ckptplan.model.workload import Workload
from ckptplan.storage.files import write_text
from ckptplan.storage.versions import WRITTEN, Kind
from ckptplan.units import (
    format_bytes,
    format_flop_rate,
    format_rate,
    format_seconds,
    parse_bytes,
    parse_flop_rate,
    parse_rate,
    parse_seconds,
)

_Form = tuple[Callable[[float], str], Callable[[object], float]]
#: Ending of a field's name -> how to format and parse its values.
_FORMS: dict[str, _Form] = {
    "_bytes_per_second": (format_rate, parse_rate),
    "_flops_per_second": (format_flop_rate, parse_flop_rate),
    "_bytes": (format_bytes, parse_bytes),
    "_bytes_per_step": (format_bytes, parse_bytes),
    "_seconds": (format_seconds, parse_seconds),
}


def save_workload(workload: Workload, path: str | Path) -> None:
    """Write a workload; an existing file is replaced atomically. Raises InputError."""
    write_text(path, workload_text(workload))


def save_profile(profile: HardwareProfile, path: str | Path) -> None:
    """Write a profile; an existing file is replaced atomically. Raises InputError."""
    write_text(path, profile_text(profile))


def workload_text(workload: Workload) -> str:
    """Return a workload as TOML."""
    document: dict[str, Any] = {}
    given = workload.model_dump(exclude_none=True, exclude_defaults=True)
    if workload.network is not None:
        from ckptplan.model.workload import DERIVED

        # The network derives these fields.
        given = {field: value for field, value in given.items() if field not in (*DERIVED, "batch")}
    for field, value in given.items():
        document[field] = _make_readable(field, value)
    return _format_toml("What a training job is, for ckptplan (docs/workloads.md).", document, kind="workload")


def profile_text(profile: HardwareProfile) -> str:
    """Return a profile as TOML, each number with its source."""
    given = profile.model_dump(exclude_none=True, exclude_defaults=True, exclude={"sources"})
    # Include fields with their default value if they have a source.
    given |= {field: getattr(profile, field) for field in profile.sources}
    document: dict[str, Any] = {}
    for field in type(profile).model_fields:
        if field not in given:
            continue
        value = "unbounded" if given[field] is None else _make_readable(field, given[field])
        source = profile.sources.get(field)
        document[field] = value if source is None else {"value": value, **source.model_dump(exclude_none=True)}
    assert set(document) <= {"name", "description", *NUMBERS}  # noqa: S101 - sources stand beside numbers
    return _format_toml("A machine and its memory, for ckptplan (docs/profiles.md).", document, kind="profile")


def _format_toml(comment: str, document: dict[str, Any], *, kind: Kind) -> str:
    import tomli_w  # only writing needs it

    return f"# {comment}\n" + tomli_w.dumps({"schema_version": WRITTEN[kind], **document})


def _make_readable(field: str, value: Any) -> Any:
    """Return a value with a unit if that reads back as the same number, else unchanged."""
    if isinstance(value, bool) or not isinstance(value, int | float):
        return value
    for suffix, (form, parse) in _FORMS.items():
        if field.endswith(suffix):
            text = form(value).replace(",", "")
            return text if _reads_as(text, parse, value) else value
    return value


def _reads_as(text: str, parse: Callable[[object], float], value: float) -> bool:
    try:
        return parse(text) == value
    except InputError:
        # The rounded text is not a whole number of bytes.
        return False
