"""Fresh calibrations, right and made wrong on purpose: python -m benchmarks.wrong_profiles.

For a GRU and spiking neurons: calibrate, plan, validate. Then the same with four times the bandwidth, half the
bytes of a state, half the tape and half the backward time, to see what `ckptplan validate` names. It takes
about five minutes on an idle machine; with --small half a minute, of a cell too small to judge its times.
"""

from __future__ import annotations

import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

import ckptplan
from benchmarks.harness import DOCS, Setting, main, table

#: Cell -> local budget of its plan; and those of a small one.
CELLS = {"gru": "24 MiB", "lif": "16 MiB"}
SMALL_CELLS = {"gru": "600 KiB"}
_SIZES = ("--batch", "32", "--neurons", "256", "--T", "1024")
SMALL_SIZES = ("--batch", "4", "--neurons", "32", "--T", "200", "--quick")
#: The files of a calibration, as options of what reads them.
JOB = ("--workload", "./workload.toml", "--profile", "./profile.toml")
#: What is wrong -> model, fields, and the factor by which they are wrong.
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


def calibrate(cell: str, sizes: tuple[str, ...], *, folder: Path) -> subprocess.CompletedProcess[str]:
    """Calibrate a network into the files of ``JOB``, in a folder."""
    files = ("-o", "workload.toml", "--profile-out", "profile.toml")
    return program("calibrate", "--cell", cell, *sizes, "--threads", "1", *files, folder=folder)


def judge(cell: str, budget: str, what: str, folder: Path) -> dict[str, Any]:
    """Plan with a wrong number, and validate."""
    kind, fields, factor = WRONG[what]
    models: dict[str, Any] = {
        "workload": ckptplan.load_workload(folder / "workload.toml"),
        "profile": ckptplan.load_profile(folder / "profile.toml"),
    }
    # Bytes of states and tapes stay whole.
    numbers = {field: getattr(models[kind], field) for field in fields}
    wrong_numbers = {field: type(number)(factor * number) for field, number in numbers.items()}
    models[kind] = models[kind].replace(**wrong_numbers)
    # Files keep their names, since times belong to the profile of that name.
    wrong = folder / "wrong"
    wrong.mkdir(exist_ok=True)
    ckptplan.save_workload(models["workload"], wrong / "workload.toml")
    ckptplan.save_profile(models["profile"], wrong / "profile.toml")
    budgeted = ("--local-bytes", budget, "--strategies", "regular", "-o", "plan.json")
    planned = program("optimize", *JOB, *budgeted, folder=wrong)
    if planned.returncode:
        raise SystemExit(planned.stderr)
    done = program("validate", "plan.json", folder=wrong)
    named = done.stderr.partition("outside the tolerance: ")[2].partition("\n")[0].strip()
    print(f"{cell}, wrong: {what}: exit {done.returncode} {named}", file=sys.stderr)
    return {"cell": cell, "wrong": what, "exit_code": done.returncode, "named": named}


def document(results: list[dict[str, Any]]) -> str:
    """Return the table: a row for each thing that is wrong, with exit codes and what is named."""
    rows = []
    for wrong in dict.fromkeys(line["wrong"] for line in results):
        texts = {
            line["cell"]: f"{line['exit_code']}: {line['named'] or 'nothing'}"
            for line in results
            if line["wrong"] == wrong
        }
        differ = len(set(texts.values())) > 1
        cells = [f"{cell}: {text}" for cell, text in texts.items()] if differ else [*texts.values()][:1]
        rows.append([wrong, "; ".join(cells)])
    return table(["what is wrong", "exit code, and what is named"], rows) + "\n"


def run(setting: Setting) -> list[dict[str, Any]]:
    """Return a line for each thing that is wrong, with each cell."""
    cells, sizes = (SMALL_CELLS, SMALL_SIZES) if setting.small else (CELLS, _SIZES)
    lines = []
    for cell, budget in cells.items():
        with tempfile.TemporaryDirectory() as name:
            folder = Path(name)
            done = calibrate(cell, sizes, folder=folder)
            if done.returncode:
                raise SystemExit(done.stderr)
            lines += [judge(cell, budget, what, folder) for what in WRONG]
    return lines


PAGES = {DOCS / "accuracy.md": document}

if __name__ == "__main__":
    main("wrong_profiles", run, PAGES, about=__doc__)
