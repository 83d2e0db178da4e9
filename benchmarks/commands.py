"""Time and memory of whole commands, in turn: python -m benchmarks.commands [GROUP...].

Each command runs in a process of its own, with all that a user waits for. Install ckptplan without ``-e`` and
without coverage hooks to measure start-up as users have it.
"""

from __future__ import annotations

import os
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

from benchmarks.harness import DOCS, Setting, main, spread, table

#: The exit status of a command that says why nothing fits.
_NOTHING_FITS = 3
BARE = "import numpy, pydantic, typer, rich"
PLAN = "optimize --T 1000000 --strategies double --local-bytes 96300kB -o plan.json"
#: Ten jobs, from a hundred to a million steps, and the commands that each of them is given to.
JOBS = (
    "--T 100 --profile ipu-mk2",
    "--T 1000 --profile ipu-mk2",
    "--T 4096 --profile ipu-mk2",
    "--T 4096 --profile cpu-nvme",
    "--T 10000 --workload gru --profile ipu-bow",
    "--T 20000 --workload lstm-stack --profile google-tpu-v5e",
    "--T 40000 --profile raspberry-pi-5",
    "--T 100000 --workload gru --profile nvidia-a100-80gb",
    "--T 400000 --profile nvidia-h200",
    "--T 1000000 --workload gru --profile nvidia-a100-80gb",
)
COMMANDS = (
    "optimize {job} -o plan{number}.json",
    "compare {job}",
    "pareto {job}",
    "largest batch --max-overhead 50% {job}",
    "sensitivity {job}",
    "report plan{number}.json",
)
#: Rounds and commands. The group ``schedule`` reads the file of PLAN.
GROUPS: dict[str, tuple[int, tuple[str, ...]]] = {
    "start": (
        15,
        (
            "--help",
            "optimize --T 4096 --profile ipu-mk2 --strategies paper,nested",
            "optimize --T 4096 --profile ipu-mk2",
        ),
    ),
    "jobs": (
        1,
        tuple(
            command.format(job=job, number=number) for number, job in enumerate(JOBS) for command in COMMANDS
        ),
    ),
    "schedule": (
        3,
        (
            "simulate plan.json",
            "schedule plan.json -o schedule.jsonl",
            "simulate plan.json --trace trace.json",
        ),
    ),
}


def run_process(command: list[str], folder: Path) -> dict[str, float]:
    """Return the seconds of a command in a folder, its processor seconds and its peak memory in bytes.

    Raises RuntimeError if it fails. That nothing fits is an answer.
    """
    # A user's first run writes the byte code.
    hidden = ("PYTHONDONTWRITEBYTECODE", "PYTHONUNBUFFERED")
    environment = {key: value for key, value in os.environ.items() if key not in hidden}
    with (folder / "errors").open("w") as errors:
        begun = time.perf_counter()
        process = subprocess.Popen(
            command, cwd=folder, env=environment, stdout=subprocess.DEVNULL, stderr=errors
        )
        _, status, used = os.wait4(process.pid, 0)
        seconds = time.perf_counter() - begun
    process.returncode = os.waitstatus_to_exitcode(status)
    if process.returncode not in (0, _NOTHING_FITS):
        raise RuntimeError(f"{' '.join(command)}: {(folder / 'errors').read_text()}")
    return {
        "seconds": seconds,
        "processor_seconds": used.ru_utime + used.ru_stime,
        "peak_bytes": used.ru_maxrss * 1024,
    }


def measure(group: str, *, small: bool) -> list[dict[str, Any]]:
    """Return a line for each command of a group; ``small`` runs the first one once."""
    rounds, commands = (1, GROUPS[group][1][:1]) if small else GROUPS[group]
    program = [sys.executable, "-m", "ckptplan"]
    jobs = {BARE: [sys.executable, "-c", BARE]} if group == "start" else {}
    jobs |= {command: [*program, *command.split()] for command in commands}
    found: dict[str, list[dict[str, float]]] = {job: [] for job in jobs}
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        if group == "schedule":
            run_process([*program, *PLAN.split()], folder)
        for round_ in range(rounds + 1):
            # The first round warms up, where what is measured is short.
            if not round_ and group != "start":
                continue
            for job, words in jobs.items():
                taken = run_process(words, folder)
                if round_:
                    found[job].append(taken)
    return [
        {
            "group": group,
            "command": command,
            **spread([one["seconds"] for one in runs]),
            "processor_seconds": min(one["processor_seconds"] for one in runs),
            "peak_bytes": max(one["peak_bytes"] for one in runs),
        }
        for command, runs in found.items()
    ]


def document(lines: list[dict[str, Any]]) -> str:
    """Return tables: start-up beside bare imports, schedules, and a row for the jobs of each command."""
    bare = next((one["median_seconds"] for one in lines if one["command"] == BARE), None)
    rows = []
    for one in (line for line in lines if line["group"] in ("start", "schedule")):
        is_bare, seconds = one["command"] == BARE, one["median_seconds"]
        name = f"python -c '{BARE}'" if is_bare else f"ckptplan {one['command']}"
        is_compared = bare and one["group"] == "start" and not is_bare
        times = f" ({seconds / bare:.1f} times the first line)" if is_compared else ""
        rows.append([f"`{name}`", f"{seconds:.2f} s{times}", f"{one['peak_bytes'] / 1e6:,.0f} MB"])
    tables = [table(["command", "time", "memory"], rows)]
    if jobs := [line for line in lines if line["group"] == "jobs"]:
        tables.append(summarise_jobs(jobs))
    return "\n\n".join(tables) + "\n"


def summarise_jobs(lines: list[dict[str, Any]]) -> str:
    """Return a row for each command: the least, median and largest time of the jobs, and the largest memory."""
    rows = []
    for place, command in enumerate(COMMANDS):
        of_command = lines[place :: len(COMMANDS)]
        times = sorted(line["median_seconds"] for line in of_command)
        memory = max(line["peak_bytes"] for line in of_command) / 1e6
        shown = (f"{seconds:.1f} s" for seconds in (times[0], statistics.median(times), times[-1]))
        rows.append([f"`{command.split()[0]}`", *shown, f"{memory:,.0f} MB"])
    return table([f"{len(JOBS)} jobs", "least", "median", "longest", "most memory"], rows)


def run(setting: Setting) -> list[dict[str, Any]]:
    """Measure the groups of commands that are asked for."""
    return [line for group in setting.parts for line in measure(group, small=setting.small)]


PAGES = {DOCS / "finding-optima.md": document}

if __name__ == "__main__":
    main("commands", run, PAGES, about=__doc__, parts=GROUPS)
