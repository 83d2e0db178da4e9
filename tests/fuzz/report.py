"""The report of a campaign: counts, times and memory by kind, and a reproduction of each class of failures."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np

from tests.fuzz.campaign import KINDS, Failure
from tests.fuzz.case import Verdict
from tests.fuzz.judge import CLASSES


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


def format_summary(summary: dict[str, Any]) -> str:
    """Return all numbers as tables."""
    columns = ("kind", "cases", "exit codes", "median", "99 %", "longest", "most memory", "failing")
    head = f"| {' | '.join(columns)} |\n{'|---' * len(columns)}|"
    rows = [_format_row(kind, numbers) for kind, numbers in {**summary["kinds"], "all": summary["all"]}.items()]
    problems = "\n".join(f"| {name} | {count:,} |" for name, count in summary["problems"].items())
    return "\n".join([head, *rows, "", "| problem | cases |", "|---|---|", problems])


def _format_row(kind: str, numbers: dict[str, Any]) -> str:
    codes = ", ".join(f"{code}: {count:,}" for code, count in numbers["codes"].items())
    times = [f"{numbers[f'{name}_seconds'] * 1e3:.0f} ms" for name in ("median", "p99", "most")]
    memory = f"{numbers['most_bytes'] / 2**20:.0f} MiB"
    cells = [kind, f"{numbers['cases']:,}", codes, *times, memory, f"{numbers['failing']:,}"]
    return f"| {' | '.join(cells)} |"


def format_failures(failures: Sequence[Failure], folder: Path) -> str:
    """Return each class of failures in words."""
    return "\n".join(
        f"{failure.count} x {failure.verdict.problems[0][0]}: {failure.verdict.problems[0][1]}\n"
        f"    first {failure.verdict.name}: python -m tests.fuzz --only {failure.verdict.name}\n"
        f"    shortest: {failure.shortest.describe()['command'][:300]}\n"
        f"    files in {folder / failure.verdict.name.replace(':', '-')}"
        for failure in failures
    )


def save_failures(failures: Sequence[Failure], folder: Path) -> None:
    """Write the documents of failing cases into a folder: each first case, and the short one."""
    for failure in failures:
        for name, case in (("first", failure.first), ("shortest", failure.shortest)):
            place = folder / failure.verdict.name.replace(":", "-") / name
            place.mkdir(parents=True, exist_ok=True)
            for file, content in case.files.items():
                (place / file).write_bytes(content)
            about = {**case.describe(), "problems": failure.verdict.problems, "count": failure.count}
            (place / "case.txt").write_text(json.dumps(about, indent=2) + "\n", encoding="utf-8")
