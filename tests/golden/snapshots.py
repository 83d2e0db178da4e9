"""Snapshots of what commands print: made, written to files, and compared up to the rounding of numbers."""

from __future__ import annotations

import csv
import io
import json
import math
import pickle
import re
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any
from unittest.mock import patch

from typer.main import get_command

import ckptplan
from ckptplan.cli.app import make_app
from tests.golden.jobs import (
    ALONE,
    FORMATS,
    INSTEAD,
    JOBS,
    MEASURED,
    MY_JOB,
    NEEDS,
    OF_A_PLAN,
    TOO_LONG,
    WITHOUT,
)
from tests.support import run

FOLDER = Path(__file__).parent / "commands"
#: Results say when they were made, and are as wide as the terminal.
_FIXED = {"SOURCE_DATE_EPOCH": "1700000000", "COLUMNS": "100"}
_NUMBER = re.compile(r"-?\d+(?:\.\d+)?(?:e[+-]?\d+)?")
#: A sum in another order differs by less.
_ROUNDING = 1e-9


def all_commands() -> dict[str, Any]:
    """Return the commands of the program by name; those of a group as 'profiles-list'."""
    root: Any = get_command(make_app())
    found = {}
    for name, command in root.commands.items():
        inner = getattr(command, "commands", None)
        found.update({name: command} if inner is None else {f"{name}-{one}": inner[one] for one in inner})
    return found


def asked_of_jobs() -> list[str]:
    """Return the commands that take the options of a job."""
    commands = all_commands().items()
    others = {*MEASURED, *ALONE, *OF_A_PLAN}
    return [name for name, one in commands if "--T" in _options(one) and name not in others]


def take_job(job: str, folder: Path) -> Iterator[tuple[str, str]]:
    """Yield the snapshot of each command on a job, with its name; plans are written to a folder."""
    for name in asked_of_jobs():
        if job != "machines" or name in ("compare", "sweep"):
            yield (
                name,
                take(name, *NEEDS.get(name, ()), *_chosen(job, name), formats=_formats(name), folder=folder),
            )
    if (
        job == "machines"
        or run("optimize", *_chosen(job, "optimize"), "-o", "plan.json", cwd=folder).returncode
    ):
        return
    for name in OF_A_PLAN:
        if (job, name) not in TOO_LONG:
            yield name, take(name, "plan.json", formats=_formats(name), folder=folder)


def take_alone(folder: Path) -> Iterator[tuple[str, str]]:
    """Yield the snapshot of each command that no job changes, with its name."""
    for name, call in ALONE.items():
        yield name, take(*call, formats=_formats(name), folder=folder)


def take(*call: str, formats: tuple[str, ...], folder: Path) -> str:
    """Return what a command prints in each format: the call, the exit code, standard output and error."""
    parts = []
    with varied_once():
        for form in formats:
            done = run(*call, *(("--format", form) if form else ()), cwd=folder, **_FIXED)
            # A schema is a document, though no format was asked for.
            is_document = form == "json" or (not form and done.stdout.startswith("{"))
            text = _without_repeats(done.stdout) if is_document else done.stdout
            errors = "".join(f"stderr: {line}\n" for line in done.stderr.splitlines())
            shown = f"$ {' '.join(('ckptplan', *call, form))}\nexit code {done.returncode}\n{text}{errors}"
            parts.append(shown)
            for path in folder.glob("*.toml"):
                path.unlink()
    return "\n".join(line.rstrip() for line in "\n".join(parts).splitlines()) + "\n"


@contextmanager
def varied_once() -> Iterator[None]:
    """Let ``sensitivity`` plan a job once: each format renders the same study, which takes seconds to make.

    Studies of other commands hold the command line that made them, and are made for each format.
    """
    vary = ckptplan.sensitivity
    studies: dict[bytes, Any] = {}

    def recall(*job: Any, progress: Any = None, command: str = "", **wishes: Any) -> Any:
        asked = pickle.dumps((job, wishes))
        if asked not in studies:
            studies[asked] = vary(*job, progress=progress, command=command, **wishes)
        return studies[asked]

    with patch.object(ckptplan, "sensitivity", recall):
        yield


def _without_repeats(text: str) -> str:
    """Return a JSON document where a part that stood before is named by its place, and without the version."""
    places: dict[str, str] = {}

    def shorten(value: Any, place: str) -> Any:
        if not isinstance(value, dict | list):
            return value
        whole = json.dumps(value)
        if len(whole) > 100 and places.setdefault(whole, place) != place:
            return f"as at {places[whole]}"
        if isinstance(value, list):
            return [shorten(one, f"{place}[{i}]") for i, one in enumerate(value)]
        return {
            name: "any" if name == "version" else shorten(one, f"{place}.{name}") for name, one in value.items()
        }

    # Each number of a column, each decision of a tree on its own line would make files too long to read.
    lines = json.dumps(shorten(json.loads(text), ""), indent=2)
    return re.sub(r"\[[^\[\]{}]*\]", lambda found: re.sub(r"\n\s*", " ", found[0]), lines) + "\n"


def take_measured(folder: Path) -> Iterator[tuple[str, str]]:
    """Yield the words of each command that measures: the fields of its results, and what they describe."""
    for name, call in MEASURED.items():
        parts = []
        for form in ("json", "csv"):
            done = run(*call, "--format", form, cwd=folder)
            assert done.returncode in (0, 4), done.stderr
            lines = _measured_fields(json.loads(done.stdout)) if form == "json" else _first_columns(done.stdout)
            parts += [f"$ {' '.join(('ckptplan', *call, form))}", *lines]
        yield name, "\n".join(parts) + "\n"
        done = run("optimize", *MY_JOB, "-o", "plan.json", cwd=folder)
        assert done.returncode == 0, done.stderr


def differ(taken: str, golden: str) -> str:
    """Return how two snapshots differ, '' if they are equal up to the rounding of their numbers."""
    mine, theirs = taken.splitlines(), golden.splitlines()
    for number, (one, other) in enumerate(zip(mine, theirs, strict=False), start=1):
        if one != other and not _equal_up_to_rounding(one, other):
            return f"line {number}: {one!r}, in the golden file {other!r}"
    return "" if len(mine) == len(theirs) else f"{len(mine)} lines, in the golden file {len(theirs)}"


def _equal_up_to_rounding(one: str, other: str) -> bool:
    if _NUMBER.sub("", one) != _NUMBER.sub("", other):
        return False
    pairs = zip(_NUMBER.findall(one), _NUMBER.findall(other), strict=True)
    return all(math.isclose(float(mine), float(theirs), rel_tol=_ROUNDING) for mine, theirs in pairs)


def _options(command: Any) -> set[str]:
    return {name for parameter in command.params for name in parameter.opts}


def _chosen(job: str, command: str) -> list[str]:
    """Return the options of a job that a command takes, with their values."""
    taken = _options(all_commands()[command]) - {*WITHOUT.get(command, ())}
    options = {**JOBS[job], **INSTEAD.get((job, command), {})}
    return [text for pair in options.items() if pair[0] in taken for text in pair]


def _formats(name: str) -> tuple[str, ...]:
    if "--format" not in _options(all_commands()[name]):
        return ("",)
    return FORMATS.get(name, ("table", "json", "csv"))


def _fields(document: Any, place: str = "") -> list[str]:
    """Return the paths of a document, each with the type of its value; of a list, those of its items."""
    if isinstance(document, Mapping):
        return [line for name, value in document.items() for line in _fields(value, f"{place}.{name}")]
    if isinstance(document, list):
        return sorted({line for value in document for line in _fields(value, f"{place}[]")})
    return [f"{place}: {type(document).__name__}"]


def _measured_fields(document: dict[str, Any]) -> list[str]:
    """Return the fields of a document, whatever the machine did meanwhile: whether anything is off is its."""
    unsettled: dict[str, list[str]] = {name: [] for name in ("off", "noisy", "notes") if name in document}
    return [*_fields({**document, **unsettled}), *(f".{name}[]: str" for name in unsettled)]


def _first_columns(text: str) -> list[str]:
    """Return the header of a CSV file, and the first column of its rows."""
    header, *rows = list(csv.reader(io.StringIO(text)))
    return [",".join(header), *(row[0] for row in rows)]
