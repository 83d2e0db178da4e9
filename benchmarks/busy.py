"""README's way to a plan, while others compute: python -m benchmarks.busy [--small].

Calibrate, plan, validate and train, ten times in a row, while two other processes compute without pause. Then,
on the machine at rest, each plan that was chosen is validated once more, which measures its time. Printed are
the exit codes, the interval of each plan's time, whether it has the time at rest, and the strategy. It takes
about 15 minutes on two cores, and three with ``--small``, which calibrates quickly and twice.
"""

from __future__ import annotations

import json
import subprocess
import sys
import tempfile
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import ckptplan
from benchmarks.harness import Setting, main, table
from benchmarks.wrong_profiles import program
from ckptplan.planning.intervals import find_interval

#: How often, and how many processes compute beside.
TIMES, SMALL_TIMES, OTHERS = 10, 2, 2
#: What computes until it is ended: products whose factors fill the caches, as training does.
_COMPUTING = (
    "import torch; torch.set_num_threads(1); a = torch.rand(512, 512)\nwhile True: a = torch.tanh(a @ a)"
)
#: Goals of how many of the runs end well, have the time at rest in their interval, and choose the same plan.
GOALS = {"exit codes 0": 1.0, "time at rest in the interval": 0.9, "the most frequent strategy": 0.9}
_JOB = ("--workload", "./my-gru.toml", "--profile", "./my-machine.toml")
_TRAIN = Path(__file__).parent.parent / "examples" / "train_plan.py"


@contextmanager
def others_compute() -> Iterator[None]:
    """Compute in other processes within a block."""
    started = [subprocess.Popen([sys.executable, "-c", _COMPUTING]) for _ in range(OTHERS)]
    try:
        yield
    finally:
        for one in started:
            one.kill()
            one.wait()


def go(folder: Path, *, small: bool) -> dict[str, Any]:
    """Run the four commands in a folder, and return what they gave."""
    sizes = ("--batch", "4", "--neurons", "32", "--T", "200", "--quick") if small else ("--T", "1024")
    sizes = sizes if small else ("--batch", "32", "--neurons", "128", *sizes)
    budget = "600 KiB" if small else "20 MiB"
    commands = {
        "calibrate": (
            *("calibrate", "--cell", "gru", *sizes, "--threads", "1"),
            *("-o", "my-gru.toml", "--profile-out", "my-machine.toml"),
        ),
        "optimize": ("optimize", *_JOB, "--local-bytes", budget, "-o", "plan.json"),
        "validate": ("validate", "plan.json", "--format", "json"),
    }
    exits, told = {}, {}
    for name, words in commands.items():
        done = program(*words, folder=folder)
        exits[name], told[name] = done.returncode, done
        if name != "validate" and done.returncode:
            return {"exits": exits, "why": done.stderr[-400:]}
    found = json.loads(told["validate"].stdout)
    train = [sys.executable, str(_TRAIN), "plan.json"]
    exits["train"] = subprocess.run(train, check=False, capture_output=True, cwd=folder).returncode
    plan = ckptplan.load_plan(folder / "plan.json")
    return {
        "exits": exits,
        "why": None,
        "strategy": plan.strategy,
        "parameters": dict(plan.parameters),
        "predicted_seconds": plan.predicted.seconds,
        "interval": find_interval(plan),
        "off": found.get("off"),
        "noisy": found.get("noisy"),
    }


def measure_at_rest(folder: Path) -> float:
    """Return the seconds that the plan in a folder takes now."""
    done = program("validate", "plan.json", "--format", "json", folder=folder)
    rows = {one["quantity"]: one for one in json.loads(done.stdout)["quantities"]}
    return float(rows["total"]["measured"])


def run(setting: Setting) -> list[dict[str, Any]]:
    """Return a line for each time that the commands ran."""
    times = setting.pick(SMALL_TIMES, TIMES, TIMES)
    with tempfile.TemporaryDirectory() as name:
        folders = [Path(name) / str(number) for number in range(times)]
        lines = []
        with others_compute():
            for number, folder in enumerate(folders):
                folder.mkdir()
                lines.append(go(folder, small=setting.small))
                print(f"{number + 1} of {times}: {lines[-1]['exits']}", file=sys.stderr, flush=True)
        at_rest: dict[str, float] = {}
        for line, folder in zip(lines, folders, strict=True):
            if line["why"] is None:
                key = f"{line['strategy']} {line['parameters']}"
                if key not in at_rest:
                    at_rest[key] = measure_at_rest(folder)
                line["seconds_at_rest"] = at_rest[key]
        return lines


def holds(line: dict[str, Any]) -> bool:
    """Return whether the interval of a plan has its time at rest."""
    if line["why"] is not None or line["interval"] is None:
        return False
    low, high = line["interval"]
    return bool(low <= line["seconds_at_rest"] <= high)


def summarise(lines: list[dict[str, Any]]) -> dict[str, float]:
    """Return the share of the runs that reached each goal."""
    strategies = Counter(line.get("strategy") for line in lines if line["why"] is None)
    most = max(strategies.values(), default=0)
    reached = (sum(not any(line["exits"].values()) for line in lines), sum(map(holds, lines)), most)
    return {name: number / len(lines) for name, number in zip(GOALS, reached, strict=True)}


def document(lines: list[dict[str, Any]]) -> str:
    """Return the table, and the goals with what was reached."""
    rows = []
    for line in lines:
        exits = " ".join(map(str, line["exits"].values()))
        if line["why"] is not None:
            rows.append([exits, line["why"].splitlines()[-1], "", "", "", ""])
            continue
        low, high = line["interval"] or (0.0, 0.0)
        named = ", ".join([*line["off"], *(f"({name})" for name in line["noisy"])])
        interval = f"{low * 1e3:.0f} to {high * 1e3:.0f} ms"
        rest = f"{line['seconds_at_rest'] * 1e3:.0f} ms"
        rows.append([exits, line["strategy"], interval, rest, "yes" if holds(line) else "no", named])
    head = ["exit codes", "strategy", "interval", "at rest", "contained", "off (too noisy)"]
    goals = [f"{name}: {share:.0%} (goal {GOALS[name]:.0%})" for name, share in summarise(lines).items()]
    return "\n".join([table(head, rows), "", *goals])


if __name__ == "__main__":
    main("busy", run, document, about=__doc__)
