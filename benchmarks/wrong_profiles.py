"""Fresh calibrations, right and made wrong on purpose: python -m benchmarks.wrong_profiles.

For a GRU and spiking neurons: calibrate, plan, validate. Then the same with four times the bandwidth, half the
bytes of a state, half the tape and half the backward time, to see what `ckptplan validate` names. It takes
about five minutes on an idle machine; with --small half a minute, of a cell too small to judge its times.
"""

from __future__ import annotations

import re
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

from benchmarks.harness import DOCS, Setting, main, table

#: Cell -> local budget of its plan; and those of a small one.
CELLS = {"gru": "24 MiB", "lif": "16 MiB"}
SMALL_CELLS = {"gru": "600 KiB"}
_SIZES, _SMALL_SIZES = (
    ("--batch", "32", "--neurons", "256", "--T", "1024"),
    (
        *("--batch", "4", "--neurons", "32", "--T", "200"),
        "--quick",
    ),
)
#: What is wrong -> file, fields, and the factor by which they are wrong.
WRONG: dict[str, tuple[str, tuple[str, ...], float]] = {
    "nothing": ("workload", (), 1),
    "bandwidth x 4": ("profile", ("write_bytes_per_second", "read_bytes_per_second"), 4),
    "state bytes / 2": ("workload", ("state_bytes",), 0.5),
    "tape bytes / 2": ("workload", ("tape_bytes",), 0.5),
    "backward seconds / 2": ("workload", ("backward_seconds",), 0.5),
}


def program(*arguments: str, folder: Path) -> subprocess.CompletedProcess[str]:
    """Run ckptplan in a process of its own."""
    command = [sys.executable, "-m", "ckptplan", *arguments]
    return subprocess.run(command, check=False, capture_output=True, text=True, cwd=folder)


def lines_of(cell: str, budget: str, sizes: tuple[str, ...] = _SIZES) -> list[dict[str, Any]]:
    """Return a line for each thing that is wrong."""
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        done = program(
            *("calibrate", "--cell", cell),
            *(*sizes, "--threads", "1"),
            *("-o", "workload.toml", "--profile-out", "profile.toml"),
            folder=folder,
        )
        if done.returncode:
            raise SystemExit(done.stderr)
        return [one(cell, budget, what, folder) for what in WRONG]


def one(cell: str, budget: str, what: str, folder: Path) -> dict[str, Any]:
    """Plan with a wrong number, and validate."""
    kind, fields, factor = WRONG[what]
    texts = {name: (folder / f"{name}.toml").read_text() for name in ("workload", "profile")}
    for field in fields:
        texts[kind] = multiplied(texts[kind], field, factor)
    # Files keep their names, since times belong to the profile of that name.
    wrong = folder / "wrong"
    wrong.mkdir(exist_ok=True)
    for name, text in texts.items():
        (wrong / f"{name}.toml").write_text(text)
    job = ("--workload", "./workload.toml", "--profile", "./profile.toml", "--local-bytes", budget)
    planned = program("optimize", *job, "--strategies", "regular", "-o", "plan.json", folder=wrong)
    if planned.returncode:
        raise SystemExit(planned.stderr)
    done = program("validate", "plan.json", folder=wrong)
    named = done.stderr.partition("outside the tolerance: ")[2].partition("\n")[0].strip()
    print(f"{cell}, wrong: {what}: exit {done.returncode} {named}", file=sys.stderr)
    return {"cell": cell, "wrong": what, "exit_code": done.returncode, "named": named}


def multiplied(text: str, field: str, factor: float) -> str:
    """Return a file with one number multiplied by a factor."""
    pattern = rf'(?m)^(\[{field}\]\nvalue|{field}) = "?([\d.]+)'
    changed, count = re.subn(pattern, lambda found: _changed(found, factor), text)
    if count != 1:
        raise ValueError(f"{field} was not found")
    return changed


def _changed(found: re.Match[str], factor: float) -> str:
    quote = '"' if found[0].partition(" = ")[2].startswith('"') else ""
    return f"{found[1]} = {quote}{float(found[2]) * factor:.6g}"


def section(results: list[dict[str, Any]]) -> str:
    """Return the table: a row for each thing that is wrong, with exit codes and what is named."""
    rows = []
    for wrong in dict.fromkeys(line["wrong"] for line in results):
        told = {line["cell"]: _told(line) for line in results if line["wrong"] == wrong}
        differ = len(set(told.values())) > 1
        texts = [f"{cell}: {text}" for cell, text in told.items()] if differ else [*told.values()][:1]
        rows.append([wrong, "; ".join(texts)])
    return table(["what is wrong", "exit code, and what is named"], rows) + "\n"


def _told(line: dict[str, Any]) -> str:
    return f"{line['exit_code']}: {line['named'] or 'nothing'}"


def run(setting: Setting) -> list[dict[str, Any]]:
    """Return the lines of all cells."""
    cells, sizes = (SMALL_CELLS, _SMALL_SIZES) if setting.small else (CELLS, _SIZES)
    return [line for cell, budget in cells.items() for line in lines_of(cell, budget, sizes)]


if __name__ == "__main__":
    main("wrong_profiles", run, section, about=__doc__, page=DOCS / "accuracy.md")
