"""Reads and writes workloads and profiles as TOML. Reading a written file gives an equal object.

In a profile every number may have a source, a date and a grade (docs/machines.md). Templates that users edit
have a comment on each number: the description of its field.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from pathlib import Path
from typing import Any, TypeVar

from pydantic.fields import FieldInfo

from ckptplan import units
from ckptplan.errors import InputError, did_you_mean
from ckptplan.model.network import Network
from ckptplan.model.profile import GRADES, NUMBERS, HardwareProfile, Source
from ckptplan.model.workload import DERIVED, Workload
from ckptplan.storage.files import parse_toml, read_text, replace_file, write_text
from ckptplan.storage.library import locate
from ckptplan.storage.versions import WRITTEN, Kind, drop_version, explain_kind, keep_spikes_resident

#: The keys of a number with its source.
_KEYS = ("value", *Source.model_fields)
_Model = TypeVar("_Model", HardwareProfile, Workload)


def load_profile(name_or_path: str | Path) -> HardwareProfile:
    """Return a built-in hardware profile by name, or one from a TOML file.

    In the file a number is a plain number, text with a unit, or a table of ``value`` and its ``source``,
    ``grade``, ``date``, ``note`` or ``assumption`` (docs/machines.md). Raises InputError.
    """
    path = locate(name_or_path, shelf="hardware_profiles", noun="hardware profile")
    return _load(path, lambda numbers: HardwareProfile(**_separate_sources(numbers)), name_or_path, "profile")


def load_workload(name_or_path: str | Path) -> Workload:
    """Return a built-in workload by name, or one from a TOML file (docs/workloads.md).

    Raises InputError.
    """
    path = locate(name_or_path, shelf="workloads", noun="workload")
    return _load(path, lambda numbers: Workload(**numbers), name_or_path, "workload")


def _convert(document: dict[str, Any]) -> dict[str, Any]:
    """Convert a document of an earlier version to the current version."""
    return keep_spikes_resident(document) if document.get("schema_version") == 1 else document


def _load(path: Path, make: Callable[[dict[str, Any]], _Model], given: str | Path, kind: Kind) -> _Model:
    source = str(given)
    text = read_text(path)
    try:
        document = _convert(parse_toml(text, source=source))
        return make(drop_version(document, kind=kind, source=source))
    except InputError as error:
        raise explain_kind(text, wanted=kind, source=source) or error.inside(source=source) from None


def _separate_sources(document: dict[str, Any]) -> dict[str, Any]:
    """Separate the numbers from their sources."""
    if "sources" in document:
        raise InputError(
            "is not a field: give the source with each number",
            field="sources",
            accepted="tables with value, source, grade",
        )
    numbers: dict[str, Any] = {}
    sources: dict[str, dict[str, Any]] = {}
    for field, entry in document.items():
        if field in NUMBERS and isinstance(entry, dict):
            numbers[field], sources[field] = _read_number(field, entry)
        else:
            numbers[field] = entry
    return {**numbers, "sources": sources}


def _read_number(field: str, entry: dict[str, Any]) -> tuple[Any, dict[str, Any]]:
    for key, given in entry.items():
        if key not in _KEYS:
            raise InputError(
                f"is not a key of a number.{did_you_mean(key, _KEYS)}",
                field=f"{field}.{key[:60]}",
                value=given,
                accepted=", ".join(_KEYS),
            )
    for key, accepted in (("value", "a number, or text with a unit"), ("grade", ", ".join(GRADES))):
        if key not in entry:
            raise InputError("is missing", field=f"{field}.{key}", accepted=accepted)
    return entry["value"], {key: value for key, value in entry.items() if key != "value"}


_Form = tuple[Callable[[float], str], Callable[[object], float]]
#: Ending of a field's name -> how to format and parse its values.
_FORMS: dict[str, _Form] = {
    "_bytes_per_second": (units.format_rate, units.parse_rate),
    "_flops_per_second": (units.format_flop_rate, units.parse_flop_rate),
    "_bytes": (units.format_bytes, units.parse_bytes),
    "_bytes_per_step": (units.format_bytes, units.parse_bytes),
    "_seconds": (units.format_seconds, units.parse_seconds),
}


def save_workload(workload: Workload, path: str | Path) -> None:
    """Write a workload; an existing file is replaced atomically. Raises InputError."""
    write_text(path, workload_text(workload))


def save_profile(profile: HardwareProfile, path: str | Path) -> None:
    """Write a profile; an existing file is replaced atomically. Raises InputError."""
    write_text(path, profile_text(profile))


def save_job(workload: Workload, workload_path: str, profile: HardwareProfile, profile_path: str) -> None:
    """Write a workload and a profile, or neither. Raises InputError."""
    texts = workload_text(workload), profile_text(profile)
    with replace_file(workload_path) as first, replace_file(profile_path) as second:
        first.write(texts[0])
        second.write(texts[1])


def workload_text(workload: Workload) -> str:
    """Return a workload as TOML."""
    given = workload.model_dump(exclude_none=True, exclude_defaults=True)
    if workload.network is not None:
        # These fields are derived from the network.
        given = {field: value for field, value in given.items() if field not in (*DERIVED, "batch")}
    document = {field: _make_readable(field, value) for field, value in given.items()}
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
    return _format_toml("A machine and its memory, for ckptplan (docs/machines.md).", document, kind="profile")


def _format_toml(comment: str, document: dict[str, Any], *, kind: Kind) -> str:
    import tomli_w  # only writing needs it

    return f"# {comment}\n" + tomli_w.dumps({"schema_version": WRITTEN[kind], **document})


def _make_readable(field: str, value: Any) -> Any:
    """Format a value with a unit if the text reads back as the same number; otherwise return it unchanged."""
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


#: A table, or a field with its value.
_LINE = re.compile(r"\[(\w+)\]|(\w+) = .*")


def commented_text(model: Workload | HardwareProfile, *, head: str) -> str:
    """Return a workload or a profile as TOML with a comment on each number; ``head`` is the first comment."""
    text = workload_text(model) if isinstance(model, Workload) else profile_text(model)
    described: dict[str, dict[str, FieldInfo]] = {"": type(model).model_fields, "network": Network.model_fields}
    lines, table = [f"# {line}" for line in head.splitlines()], ""
    for line in text.splitlines()[1:]:
        match = _LINE.fullmatch(line)
        opened, named = match.groups() if match else (None, None)
        if line.startswith("["):
            table = opened or line
        field = described.get("" if opened else table, {}).get(opened or named or "")
        lines.append(f"{line}  # {field.description}" if field and field.description else line)
    return "\n".join(lines) + "\n"
