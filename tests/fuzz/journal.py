"""Keeps verdicts in a file as they come, so that a long run can be interrupted and continued."""

from __future__ import annotations

import json
from collections.abc import Iterable
from dataclasses import asdict
from pathlib import Path

from tests.fuzz.case import Verdict


def read_journal(path: Path, *, seed: int) -> list[Verdict]:
    """Return the verdicts that a file holds: those on the first cases of a seed, in order."""
    if not path.exists():
        return []
    lines = path.read_text(encoding="utf-8").splitlines(keepends=True)
    verdicts = [_read_verdict(line) for line in lines if line.endswith("\n")]
    names = [one.name for one in verdicts]
    if names != [f"{seed}:{index}" for index in range(len(names))]:
        raise SystemExit(f"{path} does not hold the first cases of seed {seed}")
    if lines and not lines[-1].endswith("\n"):
        # A line that was cut off would spoil the next one.
        path.write_text("".join(lines[:-1]), encoding="utf-8")
    return verdicts


def append_verdicts(path: Path, verdicts: Iterable[Verdict]) -> None:
    """Add verdicts to a file."""
    with path.open("a", encoding="utf-8") as file:
        file.write("".join(json.dumps(asdict(one)) + "\n" for one in verdicts))


def _read_verdict(line: str) -> Verdict:
    entry = json.loads(line)
    return Verdict(**{**entry, "problems": tuple((kind, words) for kind, words in entry["problems"])})
