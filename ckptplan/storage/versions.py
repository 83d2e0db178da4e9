"""Defines the versions of the file formats, and refuses versions that this program cannot read."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Literal, TypeAlias

from ckptplan.errors import InputError, quote_value
from ckptplan.model.plan import SCHEMA_VERSION as PLAN_VERSION
from ckptplan.model.profile import HardwareProfile
from ckptplan.model.workload import Workload
from ckptplan.storage.files import parse_json, parse_toml
from ckptplan.wording import Argument

#: Formats with a version: files that are read and written, and results, which are only written.
Kind: TypeAlias = Literal["plan", "profile", "result", "schedule", "workload"]
#: The version that this program writes.
WRITTEN: Mapping[Kind, int] = {"plan": PLAN_VERSION, "profile": 1, "result": 1, "schedule": 1, "workload": 2}
#: The oldest version that this program reads. It also reads all later versions up to the written one.
_OLDEST = 1


def drop_version(document: dict[str, Any], *, kind: Kind, source: str) -> dict[str, Any]:
    """Check and remove the schema_version of a document, which may lack it. Raises InputError."""
    check_version(document.get("schema_version", WRITTEN[kind]), kind=kind, source=source)
    return {key: value for key, value in document.items() if key != "schema_version"}


def keep_spikes_resident(workload: dict[str, Any]) -> dict[str, Any]:
    """Convert a workload of version 1 to version 2. In version 1, the spikes of all steps stay resident."""
    network = workload.get("network")
    if not isinstance(network, dict) or not network.get("activity"):
        return workload
    return {**workload, "network": {"spikes": "resident", **network}}


def check_kind(document: dict[str, Any], *, kind: Kind, source: str) -> int:
    """Return the version of a document of this kind. Raises InputError for another kind or version."""
    if document.get("kind") != f"ckptplan.{kind}":
        raise InputError(
            f"{quote_value(document.get('kind'))} is not a {kind}",
            field="kind",
            accepted=repr(f"ckptplan.{kind}"),
            source=source,
        )
    return check_version(document.get("schema_version"), kind=kind, source=source)


def explain_kind(text: str, *, wanted: Kind, source: str) -> InputError | None:
    """Return the error for a file of a known kind that is not ``wanted``; None if the kind is unknown or right.

    Call this for a text that was refused. If the file is of another kind, the first wrong field says little.
    """
    kind = _find_kind(text, source=source)
    if kind in (None, wanted):
        return None
    if kind in ("workload", "profile"):
        how = f"pass it as {Argument(kind)}"
        if wanted == "plan":
            how = "`ckptplan optimize` makes a plan with it"
    else:
        how = "it holds its workload and its profile" if kind == "plan" else "it cannot be used here"
    return InputError(f"this is a {kind}: {how}", source=source, accepted=f"a {wanted}")


def _find_kind(text: str, *, source: str) -> str | None:
    """Return the kind of a file by its field ``kind``, or by fields that only one kind has; None if unclear."""
    try:
        parse = parse_json if text.lstrip().startswith("{") else parse_toml
        document = parse(text, source=source)
    except InputError:
        return None
    named = str(document.get("kind", "")).removeprefix("ckptplan.")
    if named in WRITTEN:
        return named
    fields = {"workload": set(Workload.model_fields), "profile": set(HardwareProfile.model_fields)}
    shared = set.intersection(*fields.values())
    kinds = [kind for kind, names in fields.items() if document.keys() & (names - shared)]
    return kinds[0] if len(kinds) == 1 else None


def check_version(version: object, *, kind: Kind, source: str) -> int:
    """Return the version. Raises InputError if this program cannot read it."""
    if type(version) is not int or not _OLDEST <= version <= WRITTEN[kind]:
        raise InputError(
            f"this ckptplan does not read version {quote_value(version)}; use the one that wrote the file",
            field="schema_version",
            value=version,
            accepted=" or ".join(map(str, range(_OLDEST, WRITTEN[kind] + 1))),
            source=source,
        )
    return version
