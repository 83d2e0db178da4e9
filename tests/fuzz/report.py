"""The report of a campaign: counts, times and memory by kind, and a reproduction of each class of failures."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np

from tests.fuzz.campaign import KINDS, make_case
from tests.fuzz.case import Verdict
from tests.fuzz.judge import CLASSES, signature


def summarise(verdicts: Sequence[Verdict], *, seed: int, seconds: float) -> dict[str, Any]:
    """Return the numbers of a campaign."""
    kinds = {kind: [one for one in verdicts if one.kind == kind] for kind in KINDS}
    return {
        "seed": seed,
        "cases": len(verdicts),
        "seconds": round(seconds, 1),
        "kinds": {kind: _summarise_kind(found) for kind, found in kinds.items() if found},
        "all": _summarise_kind(verdicts),
        "problems": {name: _count(verdicts, name) for name in CLASSES},
    }


def _summarise_kind(verdicts: Sequence[Verdict]) -> dict[str, Any]:
    times = np.array([one.cpu_seconds for one in verdicts])
    return {
        "cases": len(verdicts),
        "codes": {str(code): count for code, count in sorted(Counter(one.code for one in verdicts).items())},
        "median_seconds": float(np.median(times)),
        "p99_seconds": float(np.quantile(times, 0.99)),
        "most_seconds": float(times.max()),
        "most_bytes": max(one.memory for one in verdicts),
        "failing": sum(bool(one.problems) for one in verdicts),
    }


def _count(verdicts: Sequence[Verdict], name: str) -> int:
    return sum(name in [problem for problem, _ in one.problems] for one in verdicts)


def format_page(summary: dict[str, Any]) -> str:
    """Return the numbers as a paragraph of a page: the cases of each kind, and the problems that occurred."""
    numbers = summary["all"]
    kinds = ", ".join(f"{found['cases']:,} {kind}" for kind, found in summary["kinds"].items())
    problems = ", ".join(f"{name} {count:,}" for name, count in summary["problems"].items() if count)
    return (
        f"{numbers['cases']:,} cases ({kinds}). 99 % take at most {numbers['p99_seconds']:.1f} s; the longest "
        f"takes {numbers['most_seconds']:.1f} s, the largest {numbers['most_bytes'] / 2**20:,.0f} MiB. "
        f"{numbers['failing']:,} cases fail ({problems or 'no problems'})."
    )


def list_failures(verdicts: Sequence[Verdict], folder: Path) -> list[dict[str, Any]]:
    """Return the first case of each class of failures, the most frequent first; its files are in the folder."""
    classes: dict[tuple[str, ...], list[Verdict]] = {}
    for verdict in verdicts:
        if verdict.problems:
            classes.setdefault(signature(verdict), []).append(verdict)
    failures = []
    for first, *others in sorted(classes.values(), key=len, reverse=True):
        case, place = make_case(first.name), folder / first.name.replace(":", "-")
        place.mkdir(parents=True, exist_ok=True)
        for file, content in case.files.items():
            (place / file).write_bytes(content)
        failures.append({**case.describe(), "count": 1 + len(others), "problems": first.problems})
    return failures
