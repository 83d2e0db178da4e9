"""The version of the file formats; a reader refuses what it would misunderstand."""

from __future__ import annotations

from typing import Any

from ckptplan.errors import InputError, shown

#: The version that this program writes and reads, for plans, profiles and workloads.
SCHEMA_VERSION = 1


def without_version(document: dict[str, Any], *, source: str) -> dict[str, Any]:
    """Return a document without its schema_version (which may be left out). Raises InputError."""
    version = document.get("schema_version", SCHEMA_VERSION)
    check_version(version, source=source)
    return {key: value for key, value in document.items() if key != "schema_version"}


def check_version(version: object, *, source: str) -> None:
    """Raise InputError for another version than this program's."""
    if type(version) is not int or version != SCHEMA_VERSION:
        raise InputError(
            f"{shown(version)} is a version that this ckptplan does not read; use the one that wrote the file",
            field="schema_version",
            value=version,
            accepted=str(SCHEMA_VERSION),
            source=source,
        )
