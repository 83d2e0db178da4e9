"""Reads hardware profiles as TOML, where every number may have a source, a date and a grade."""

from __future__ import annotations

import datetime
from pathlib import Path
from typing import Any

from ckptplan.errors import InputError, did_you_mean, quote_value
from ckptplan.model.profile import GRADES, NUMBERS, HardwareProfile
from ckptplan.storage.files import parse_toml, read_text
from ckptplan.storage.library import locate
from ckptplan.storage.versions import drop_version

_SOURCE_KEYS = ("grade", "source", "date", "note", "assumption")


def load_profile(name_or_path: str | Path) -> HardwareProfile:
    """Return a built-in hardware profile by name, or one from a TOML file.

    In the file a number is a plain number, text with a unit, or a table of ``value`` and its ``source``,
    ``grade``, ``date``, ``note`` or ``assumption`` (docs/profiles.md). Raises InputError.
    """
    path = locate(name_or_path, shelf="hardware_profiles", noun="hardware profile")
    source = str(name_or_path)
    document = drop_version(parse_toml(read_text(path), source=source), kind="profile", source=source)
    try:
        return HardwareProfile(**_separate_sources(document))
    except InputError as error:
        raise error.inside(source=source) from None


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
    known = ("value", *_SOURCE_KEYS)
    for key, given in entry.items():
        if key not in known:
            raise InputError(
                f"is not a key of a number.{did_you_mean(key, known)}",
                field=f"{field}.{key[:60]}",
                value=given,
                accepted=", ".join(known),
            )
    if "value" not in entry:
        raise InputError("is missing", field=f"{field}.value", accepted="a number, or text with a unit")
    if "grade" not in entry:
        raise InputError("is missing", field=f"{field}.grade", accepted=", ".join(GRADES))
    date = entry.get("date")
    if date is not None and not isinstance(date, (str, datetime.date)):
        raise InputError(f"{quote_value(date)} is not a date", field=f"{field}.date", accepted="as 2026-11-21")
    source = {key: entry[key] for key in _SOURCE_KEYS if key in entry}
    return entry["value"], source if date is None else {**source, "date": str(date)}
