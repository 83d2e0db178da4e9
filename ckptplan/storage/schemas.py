"""Derives the JSON Schemas of the file formats from the models."""

from __future__ import annotations

import copy
from typing import Any

from ckptplan.model.plan import Plan
from ckptplan.model.profile import NUMBERS, HardwareProfile
from ckptplan.model.workload import Workload
from ckptplan.storage.schedules import ACTIONS, FIELDS, NAMES, REQUIRED
from ckptplan.storage.schedules import KIND as SCHEDULE
from ckptplan.storage.versions import WRITTEN, Kind
from ckptplan.units import MAX_STEPS

_DIALECT = "https://json-schema.org/draft/2020-12/schema"


def file_schema(kind: str) -> dict[str, Any]:
    """Return the JSON Schema of a plan, a profile, a workload, or a line of a schedule.

    The schemas of profiles and workloads describe the document that the TOML file parses to.
    """
    make = {"plan": _plan, "profile": _profile, "schedule": _schedule, "workload": _workload}[kind]
    return {"$schema": _DIALECT, **make()}


def _plan() -> dict[str, Any]:
    """Return the schema of plans, which include workload and profile with their hashes."""
    schema = Plan.model_json_schema()
    for part in ("Workload", "HardwareProfile"):
        definition = schema["$defs"][part]
        definition["properties"]["hash"] = {"type": "string", "pattern": "^sha256:[0-9a-f]{64}$"}
        definition["required"] = [*definition["required"], "hash"]
    schema["required"] = [*schema["required"], "kind", "schema_version"]
    schema["$defs"].update(_loops())
    loops = {"type": "array", "items": {"$ref": "#/$defs/Loops"}, "description": "the loops of the schedule"}
    schema["$defs"]["RegularPlan"]["properties"]["loops"] = loops
    return schema


def _loops() -> dict[str, Any]:
    """Return the definitions of the items of loops: actions and inner loops."""
    integer = {"type": "integer"}
    loop = {
        "title": "loop",
        "description": "Do the body at each offset of range(start, stop, stride); steps and states in it count "
        "from this offset.",
        "type": "object",
        "properties": {
            "action": {"const": "loop"},
            **dict.fromkeys(("start", "stop", "stride"), integer),
            "body": {"type": "array", "items": {"$ref": "#/$defs/Loops"}, "minItems": 1},
        },
        "required": ["action", "start", "stop", "stride", "body"],
        "additionalProperties": False,
    }
    return {"Loops": {"oneOf": [loop, *(_action(name, kind) for name, kind in ACTIONS.items())]}}


def _profile() -> dict[str, Any]:
    """Return the schema of profiles. A number may be plain, text with a unit, or a table with its source."""
    schema = HardwareProfile.model_json_schema()
    source = schema["$defs"].pop("Source")
    properties = schema["properties"]
    del properties["sources"]
    for field in NUMBERS:
        plain = _allow_text(properties[field])
        table = copy.deepcopy(source)
        table["properties"]["value"] = plain
        table["required"] = ["value", "grade"]
        table["title"] = f"{field} with its source"
        properties[field] = {
            "anyOf": [plain, table],
            "description": properties[field].get("description", field),
        }
    return _add_version(schema, "profile")


def _workload() -> dict[str, Any]:
    """Return the schema of workloads. Numbers may be text with a unit, and a network may replace the sizes."""
    schema = Workload.model_json_schema()
    properties = schema["properties"]
    for field in properties:
        if field.endswith(("_bytes", "_bytes_per_step", "_seconds")):
            properties[field] = _allow_text(properties[field])
    network = schema["$defs"]["Network"]["properties"]
    network["other_resident_bytes"] = _allow_text(network["other_resident_bytes"])
    sizes = ["state_bytes", "tape_bytes"]
    schema["required"] = [field for field in schema["required"] if field not in sizes]
    schema["anyOf"] = [{"required": sizes}, {"required": ["network", "units"]}]
    return _add_version(schema, "workload")


def _schedule() -> dict[str, Any]:
    """Return the schema of a line of a schedule: the head, or an action."""
    head = {
        "title": "head, the first line",
        "type": "object",
        "properties": {
            "kind": {"const": SCHEDULE},
            "schema_version": {"const": WRITTEN["schedule"]},
            "steps": {"type": "integer", "minimum": 1, "maximum": MAX_STEPS, "description": "T"},
        },
        "required": ["kind", "schema_version", "steps"],
    }
    return {
        "title": "a line of a schedule",
        "oneOf": [head, *(_action(name, kind) for name, kind in ACTIONS.items())],
    }


def _action(name: str, kind: type) -> dict[str, Any]:
    return {
        "title": name,
        "description": (kind.__doc__ or "").strip(),
        "type": "object",
        "properties": {"action": {"const": name}, **{field: FIELDS[field] for field in NAMES[name]}},
        "required": ["action", *REQUIRED[name]],
        "additionalProperties": False,
    }


def _allow_text(schema: dict[str, Any]) -> dict[str, Any]:
    text = {"type": "string", "description": "a number with a unit, as '624 KiB', '20 GB/s' or '1.5 us'"}
    notes: dict[str, Any] = {key: schema[key] for key in ("description", "title", "default") if key in schema}
    return {"anyOf": [schema, text], **notes}


def _add_version(schema: dict[str, Any], kind: Kind) -> dict[str, Any]:
    schema["properties"]["schema_version"] = {"const": WRITTEN[kind], "description": "version of the format"}
    return schema
