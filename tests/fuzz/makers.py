"""Makes hostile cases of files: profiles, workloads, plans and schedules, changed from real ones."""

from __future__ import annotations

import json
import random
import tempfile
import tomllib
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any

import ckptplan
from ckptplan.model.profile import HardwareProfile
from ckptplan.model.workload import Workload
from ckptplan.storage.plans import plan_text
from tests.fuzz.case import Case
from tests.fuzz.mutations import change_bytes, change_structure, mark_raw, write_document

ROOT = Path(__file__).parent.parent.parent
#: Strategies that answer within milliseconds.
CHEAP = ("--strategies", "paper")
#: What a file of this kind is given to, with the exit codes if the library accepts it.
_Use = tuple[tuple[str, ...], frozenset[int]]
_SHOWN, _PLANNED = frozenset({0}), frozenset({0, 2, 3})
_PROFILE_USES: Sequence[_Use] = (
    (("profiles", "show", "FILE"), _SHOWN),
    (("profiles", "check", "FILE"), _SHOWN),
    (("optimize", "--profile", "FILE", "--T", "64", *CHEAP), _PLANNED),
    (("optimize", "--profile", "FILE", *CHEAP, "--objective", "memory"), _PLANNED),
    (("compare", "--profile", "FILE", "--T", "100", *CHEAP), _PLANNED),
    (("sweep", "--profile", "FILE", "--over", "T=8,64", "--jobs", "1", *CHEAP), _PLANNED),
    (("largest", "T", "--profile", "FILE", "--strategies", "standard"), _PLANNED),
)
_WORKLOAD_USES: Sequence[_Use] = (
    (("workloads", "show", "FILE"), _SHOWN),
    (("optimize", "--workload", "FILE", *CHEAP), _PLANNED),
    (("optimize", "--workload", "FILE", "--T", "64", *CHEAP), _PLANNED),
    (("optimize", "--workload", "FILE", "--batch", "3", "--neurons", "64", *CHEAP), _PLANNED),
    (("compare", "--workload", "FILE", "--T", "50", "--strategies", "standard,double"), _PLANNED),
    (("sweep", "--workload", "FILE", "--over", "T=8,64", "--jobs", "1", *CHEAP), _PLANNED),
)
_PLAN_USES: Sequence[_Use] = (
    (("simulate", "FILE"), frozenset({0, 2, 4})),
    (("schedule", "FILE"), _SHOWN),
    (("schedule", "FILE", "--format", "csv"), _SHOWN),
    (("schedule", "FILE", "-o", "out.jsonl"), _SHOWN),
    (("simulate", "FILE", "--trace", "out.json"), frozenset({0, 2, 4})),
    # Refused before anything is executed: the tolerance, or the plan.
    (("validate", "FILE", "--tolerance", "0"), frozenset({2})),
)
_SCHEDULE_USES: Sequence[_Use] = (
    (("simulate", "plan.json", "--schedule", "FILE"), frozenset({0})),
    (("simulate", "plan.json", "--schedule", "FILE", "--trace", "out.json"), frozenset({0})),
)


@dataclass(frozen=True, kw_only=True)
class Document:
    """A real document: its text, and its content if it has one."""

    content: bytes
    language: str
    data: dict[str, Any] | None = None


@cache
def documents(kind: str) -> tuple[Document, ...]:
    """Return real documents of a kind."""
    if kind in ("profile", "workload"):
        folders = ("hardware_profiles",) if kind == "profile" else ("workloads", "examples")
        files = [file for folder in folders for file in sorted((ROOT / folder).glob("*.toml"))]
        texts = [file.read_bytes() for file in files]
        return tuple(
            Document(content=text, language="toml", data=tomllib.loads(text.decode())) for text in texts
        )
    if kind == "plan":
        texts = [(ROOT / "tests/golden/plan.json").read_bytes(), *map(str.encode, map(plan_text, plans()))]
        return tuple(Document(content=text, language="json", data=json.loads(text)) for text in texts)
    return tuple(
        Document(content=_schedule(plan, form), language=form)
        for plan in plans()[:2]
        for form in ("jsonl", "csv")
    )


@cache
def plans() -> tuple[ckptplan.Plan, ...]:
    """Return small plans: with remote memory, without, and with decisions."""
    workload = ckptplan.load_workload("paper-snn").with_steps(48)
    asked = [("ipu-mk2", "double", "250 kB"), ("ipu-mk2", "remote", "250 kB"), ("nvidia-h200", "base", "1 GB")]
    asked += [
        ("ipu-mk2", "optimal", "225 kB"),
        ("ipu-mk2", "bptt-hsm", "225 kB"),
        ("cpu-nvme", "nested", "1 GB"),
    ]
    return tuple(
        ckptplan.optimize(workload, ckptplan.load_profile(profile), strategies=[name], local_bytes=limit)
        for profile, name, limit in asked
    )


def _schedule(plan: ckptplan.Plan, form: str) -> bytes:
    with tempfile.TemporaryDirectory() as folder:
        file = Path(folder) / f"schedule.{form}"
        ckptplan.save_schedule(plan, file)
        return file.read_bytes()


def make_file_case(name: str, kind: str, chance: random.Random) -> Case:
    """Return a case of a changed file."""
    document = chance.choice(documents(kind))
    content, codes = _change(document, kind, chance)
    file = f"given.{document.language}"
    uses = {
        "profile": _PROFILE_USES,
        "workload": _WORKLOAD_USES,
        "plan": _PLAN_USES,
        "schedule": _SCHEDULE_USES,
    }
    arguments, accepted = chance.choice(uses[kind])
    files = {file: content}
    if kind == "schedule":
        files["plan.json"] = plan_text(chance.choice(plans()[:2])).encode()
    given = [file if argument == "FILE" else argument for argument in arguments]
    # Without a folder, a name is that of a built-in file.
    given = [
        f"./{file}" if argument == file and kind in ("profile", "workload") else argument for argument in given
    ]
    from_stdin = kind in ("plan", "profile", "workload") and chance.random() < 0.06
    if from_stdin:
        given = ["-" if argument in (file, f"./{file}") else argument for argument in given]
    if "--format" not in given and given[0] not in ("schedule", "sweep") and chance.random() < 0.4:
        given += ["--format", chance.choice(["json", "json", "csv", "table"])]
    return Case(
        name=name,
        kind=kind,
        arguments=tuple(given),
        files=files,
        stdin=content if from_stdin else b"",
        outputs=frozenset({"out.json", "out.jsonl"} & set(given)),
        codes=accepted if codes is None else codes,
        loads=(kind, file, *(["plan.json"] if kind == "schedule" else [])),
    )


def _change(document: Document, kind: str, chance: random.Random) -> tuple[bytes, frozenset[int] | None]:
    """Return a changed document, and the exit codes if they are known without the library."""
    draw = chance.random()
    if draw < 0.02:
        return document.content, None
    if draw < 0.10:
        wrong = chance.choice(_SURELY_WRONG)(document, chance)
        return (document.content, None) if wrong is None else (wrong, frozenset({2}))
    if document.data is None or draw < 0.35:
        return change_bytes(document.content, chance), None
    data = change_structure(document.data, chance)
    if kind == "plan" and chance.random() < 0.5:
        _sign(data)
    content = write_document(data, language=document.language)
    return (change_bytes(content, chance) if draw > 0.95 else content), None


def _sign(plan: dict[str, Any]) -> None:
    """Give the parts of a changed plan the hashes that belong to them, as a deceiver would."""
    for part, model in (("profile", HardwareProfile), ("workload", Workload)):
        entry = plan.get(part)
        if isinstance(entry, dict):
            try:
                entry["hash"] = model(**{key: value for key, value in entry.items() if key != "hash"}).hash
            except (ckptplan.InputError, TypeError):
                # Not a part that could be signed.
                continue


def _no_text(document: Document, chance: random.Random) -> bytes:
    place = chance.randrange(len(document.content) + 1)
    return document.content[:place] + b"\xff" + document.content[place:]


def _unknown_field(document: Document, chance: random.Random) -> bytes | None:  # noqa: ARG001 - one signature
    if document.data is None:
        return None
    return write_document({**document.data, "not_a_field": 1}, language=document.language)


def _no_end(document: Document, chance: random.Random) -> bytes | None:
    text = document.content.rstrip()
    return text[: chance.randrange(len(text))] if document.language == "json" else None


def _twice(document: Document, chance: random.Random) -> bytes | None:
    if document.data is None:
        return None
    name = chance.choice([key for key, value in document.data.items() if isinstance(value, (int, str))])
    value = json.dumps(document.data[name]).encode()
    if document.language == "json":
        return document.content.replace(b"{", b'{"%s": %s,' % (name.encode(), value), 1)
    return b"%s = %s\n" % (name.encode(), value) + document.content


def _no_number(document: Document, chance: random.Random) -> bytes | None:
    if document.data is None or document.data.get("steps") is None:
        return None
    raw = chance.choice(["NaN", "Infinity", "1e999"] if document.language == "json" else ["nan", "-inf", "-0"])
    return write_document({**document.data, "steps": mark_raw(raw)}, language=document.language)


_SURELY_WRONG: tuple[Callable[[Document, random.Random], bytes | None], ...] = (
    _no_text,
    _unknown_field,
    _no_end,
    _twice,
    _no_number,
)
