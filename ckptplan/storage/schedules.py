"""Reads and writes schedules: a JSON object or a CSV row for each action (docs/schedule-format.md).

Files are read and written line by line, so memory does not grow with the length of the schedule.
"""

from __future__ import annotations

import csv
import dataclasses
from collections.abc import Iterable, Iterator, Mapping, Sequence
from functools import partial
from itertools import count
from pathlib import Path
from typing import Any, Literal, TextIO, get_args

from ckptplan.errors import InputError, did_you_mean, quote_value, refuse
from ckptplan.schedule.actions import Action, Tier
from ckptplan.schedule.loops import Loop, Nest
from ckptplan.storage.files import open_text, parse_json
from ckptplan.storage.versions import check_kind
from ckptplan.units import MAX_STEPS

KIND = "ckptplan.schedule"
ScheduleFormat = Literal["jsonl", "csv"]

#: The name of each action in a file.
ACTIONS: Mapping[str, type] = {kind.__name__.lower(): kind for kind in get_args(Action)}
_FIELDS = {name: dataclasses.fields(kind) for name, kind in ACTIONS.items()}
#: The fields of each action in a file, and its required fields.
NAMES: Mapping[str, list[str]] = {name: [field.name for field in own] for name, own in _FIELDS.items()}
REQUIRED: Mapping[str, list[str]] = {
    name: [field.name for field in own if field.default is dataclasses.MISSING] for name, own in _FIELDS.items()
}
#: Columns of optional fields come last. Files without one or more of the last columns are also accepted.
_FORMER_COLUMNS = ["action", *dict.fromkeys(name for names in REQUIRED.values() for name in names)]
_COLUMNS = list(dict.fromkeys([*_FORMER_COLUMNS, *(name for names in NAMES.values() for name in names)]))
_READ_COLUMNS = [_COLUMNS[:columns] for columns in range(len(_FORMER_COLUMNS), len(_COLUMNS) + 1)]
_STEP: dict[str, Any] = {"type": "integer", "minimum": 0, "maximum": MAX_STEPS}
_TIER: dict[str, Any] = {"enum": [tier.value for tier in Tier]}
#: The JSON Schema of each field of an action.
FIELDS: Mapping[str, dict[str, Any]] = {
    "start": {**_STEP, "description": "the first step of a range"},
    "stop": {**_STEP, "description": "the step behind the last of a range"},
    "cached": {**_STEP, "description": "of these steps, the last ones that keep their caches; all if absent"},
    "state": {**_STEP, "description": "the state before the step of that number"},
    "states": {
        "type": "array", "items": _STEP, "uniqueItems": True, "description": "all in one message"
    },
    "tier": {**_TIER, "description": "where the state is stored"},
    "source": {**_TIER, "description": "where the states were stored"},
    "target": {**_TIER, "description": "where the states are stored afterwards"},
    "caches": {
        "type": "array", "items": _STEP, "minItems": 2, "maxItems": 2,
        "description": "a range of steps, from the first to the one behind the last, whose caches move too",
    },
}  # fmt: skip
#: The most characters of a line; a message of a million states is as long.
_MOST_CHARACTERS = 8 * 2**20
#: The most of each of these characters in a line. An action has only one object and a few lists of numbers.
_LINE_MARKS: Mapping[str, int] = {"[": 1000, "{": 1000}
#: The most blank lines at the end, since a pipe could send them for ever.
_MOST_BLANK = 1000


def schedule_lines(
    actions: Iterable[Action], *, head: Mapping[str, Any], format_: ScheduleFormat
) -> Iterator[str]:
    """Yield the lines of a schedule file: the head (in CSV the column names), then the actions."""
    return _json_lines(actions, head) if format_ == "jsonl" else _csv_lines(actions)


def _json_lines(actions: Iterable[Action], head: Mapping[str, Any]) -> Iterator[str]:
    import json

    encode = json.JSONEncoder(separators=(",", ":"), allow_nan=False).encode
    yield encode(head) + "\n"
    for action in actions:
        yield encode(action_fields(action)) + "\n"


def action_fields(action: Action) -> dict[str, Any]:
    """Return an action as JSON data: ``{"action": "save", "state": 0, "tier": "remote"}``."""
    name = type(action).__name__.lower()
    fields = {field: getattr(action, field) for field in NAMES[name]}
    given = {
        field: list(value) if isinstance(value, tuple) else value
        for field, value in fields.items()
        if value is not None
    }
    return {"action": name, **given}


def nest_fields(nest: Nest) -> list[dict[str, Any]]:
    """Return a nest of loops as JSON data. Steps and states in a loop are relative to its offset."""
    return [
        {
            "action": "loop",
            "start": item.start,
            "stop": item.stop,
            "stride": item.stride,
            "body": nest_fields(item.body),
        }
        if isinstance(item, Loop)
        else action_fields(item)
        for item in nest
    ]


def _csv_lines(actions: Iterable[Action]) -> Iterator[str]:
    yield ",".join(_COLUMNS) + "\n"
    for action in actions:
        fields = action_fields(action)
        values = (fields.get(column, "") for column in _COLUMNS)
        yield (
            ",".join(" ".join(map(str, value)) if isinstance(value, list) else str(value) for value in values)
            + "\n"
        )


def load_schedule(path: str | Path, *, steps: int | None = None) -> Iterator[Action]:
    """Yield the actions of a schedule file, JSON lines or CSV; '-' is standard input.

    If the head of the file has a T, it must equal ``steps``. Action n is on line n + 1. Raises InputError while
    the actions are read, with the line and the field that is not accepted.
    """
    source = "standard input" if str(path) == "-" else str(path)
    with open_text(path) as file:
        lines = _read_lines(file, source=source)
        first = next(lines, "")
        if first.startswith("{"):
            _check_head(parse_json(first, source=f"{source}: line 1"), steps=steps, source=f"{source}: line 1")
            parse = _parse_json_line
        elif (columns := _split_cells(first)) in _READ_COLUMNS:
            parse = partial(_parse_csv_line, columns=columns)
        else:
            raise InputError(
                f"{quote_value(first)} is not the first line of a schedule",
                source=f"{source}: line 1",
                accepted=f'{{"kind": "{KIND}", ...}}, or the columns {",".join(_COLUMNS)}',
            )
        for number, line in enumerate(lines, start=2):
            where = f"{source}: line {number}"
            if not line.strip() and _is_end(lines, source=where):
                return
            try:
                yield _make_action(parse(line, where=where))
            except InputError as error:
                raise (error if error.source else error.inside(source=where)) from None


def _is_end(lines: Iterator[str], *, source: str) -> bool:
    """Return whether only blank lines follow. Raises InputError if there are too many."""
    for number, line in enumerate(lines):
        if line.strip():
            return False
        if number == _MOST_BLANK:
            raise InputError(f"is followed by more than {_MOST_BLANK:,} blank lines", source=source)
    return True


def _read_lines(file: TextIO, *, source: str) -> Iterator[str]:
    """Yield the lines without line breaks. Raises InputError if a line has more than _MOST_CHARACTERS."""
    for number in count(1):
        try:
            line = file.readline(_MOST_CHARACTERS + 1)
        except UnicodeDecodeError as error:
            raise InputError(
                f"is not UTF-8 text (byte {error.start})", source=f"{source}: after line {number - 1}"
            ) from None
        if not line:
            return
        if len(line) > _MOST_CHARACTERS:
            raise InputError(
                "is too long",
                source=f"{source}: line {number}",
                accepted=f"lines up to {_MOST_CHARACTERS // 2**20} MiB",
            )
        yield line.rstrip("\r\n").removeprefix("\ufeff" if number == 1 else "")


def _check_head(head: dict[str, Any], *, steps: int | None, source: str) -> None:
    check_kind(head, kind="schedule", source=source)
    _check_step(head.get("steps"), "steps", source=source)
    if steps is not None and head.get("steps") != steps:
        raise InputError(
            f"the schedule is for {quote_value(head.get('steps'))} steps, the plan for {steps}",
            field="steps",
            value=head.get("steps"),
            accepted=str(steps),
            source=source,
        )


def _parse_json_line(line: str, *, where: str) -> dict[str, Any]:
    if not line.strip():
        raise InputError("is empty", accepted="one action per line")
    return parse_json(line, source=where, limits=_LINE_MARKS)


def _parse_csv_line(line: str, *, where: str, columns: Sequence[str]) -> dict[str, Any]:  # noqa: ARG001 - as JSON
    cells = _split_cells(line)
    if len(cells) != len(columns):
        raise InputError(f"has {len(cells)} cells", accepted=f"{len(columns)}: {','.join(columns)}")
    fields: dict[str, Any] = {name: text for name, text in zip(columns, cells, strict=True) if text != ""}
    for name in ("start", "stop", "state", "cached"):
        if name in fields:
            fields[name] = _read_integer(fields[name])
    for name in ("states", "caches"):
        if name in fields:
            fields[name] = [_read_integer(text) for text in fields[name].split()]
    if "caches" in fields:
        # Caches may move without a state.
        fields.setdefault("states", [])
    return fields


def _split_cells(line: str) -> list[str]:
    """Split a row. Only spreadsheets quote cells, and Python's reader refuses long ones. Raises InputError."""
    if '"' not in line:
        return line.split(",") if line else []
    try:
        return next(csv.reader([line]), [])
    except csv.Error as error:
        raise InputError(f"is not a row of CSV: {error}", accepted=",".join(_COLUMNS)) from None


def _read_integer(text: str) -> object:
    """Return the number in a cell, or the text unchanged, for a later error message."""
    return int(text) if text.isascii() and text.isdecimal() and len(text) < 20 else text


def _make_action(given: Mapping[str, Any]) -> Action:
    name = given.get("action")
    if not isinstance(name, str) or name not in ACTIONS:
        hint = did_you_mean(name, ACTIONS) if isinstance(name, str) else ""
        raise refuse(name, f"is not an action.{hint}", field="action", accepted=", ".join(ACTIONS))
    for field in given:
        if field != "action" and field not in NAMES[name]:
            raise InputError(f"is not a field of {name}", field=field, accepted=", ".join(NAMES[name]))
    for field in REQUIRED[name]:
        if field not in given:
            raise InputError("is missing", field=field, accepted=f"{name} has {', '.join(REQUIRED[name])}")
    fields = {field: _read_field(value, field) for field, value in given.items() if field != "action"}
    action: Action = ACTIONS[name](**fields)
    return action


def _read_field(value: Any, field: str) -> Any:
    """Return the value of a field of an action: a tier, a step or a tuple of steps. Raises InputError."""
    if "enum" in FIELDS[field]:
        if value not in _TIER["enum"]:
            raise refuse(value, "is not a tier", field=field, accepted=" or ".join(_TIER["enum"]))
        return Tier(value)
    if "items" not in FIELDS[field]:
        return _check_step(value, field)
    if not isinstance(value, list):
        raise refuse(value, "is not a list", field=field, accepted="a list of steps")
    if len(value) > FIELDS[field].get("maxItems", len(value)) or len(value) < FIELDS[field].get("minItems", 0):
        raise refuse(
            value, "is not a range", field=field, accepted="two steps: the first, and one behind the last"
        )
    return tuple(_check_step(state, field) for state in value)


def _check_step(value: object, field: str, source: str | None = None) -> int:
    if isinstance(value, float) and value.is_integer():
        value = int(value)  # some languages write all numbers as floats
    if type(value) is not int or not 0 <= value <= MAX_STEPS:
        raise refuse(
            value,
            "is not a step",
            field=field,
            accepted=f"a whole number from 0 to {MAX_STEPS:,}",
            source=source,
        )
    return value
