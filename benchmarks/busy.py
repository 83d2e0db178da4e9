"""README's way to a plan, while others compute: python -m benchmarks.busy [--small].

Calibrate, plan, validate and train, ten times in a row, while two other processes compute without pause. Then,
on the machine at rest, each plan that was chosen is validated once more, which measures its time. It takes
about 15 minutes on two cores, and three with ``--small``, which calibrates quickly and twice.
"""

from __future__ import annotations

import json
import math
import subprocess
import sys
import tempfile
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from typing import Any

import ckptplan
from benchmarks.harness import Setting, main
from benchmarks.wrong_profiles import JOB, SMALL_CELLS, SMALL_SIZES, calibrate, program
from ckptplan.planning.intervals import find_interval

#: How often, and how many processes compute beside.
TIMES, SMALL_TIMES, OTHERS = 10, 2, 2
#: What computes until it is ended: products whose factors fill the caches, as training does.
_COMPUTING = (
    "import torch; torch.set_num_threads(1); a = torch.rand(512, 512)\nwhile True: a = torch.tanh(a @ a)"
)
#: Goals of how many of the runs end well, have the time at rest in their interval, and choose the same plan.
GOALS = {"exit codes 0": 1.0, "time at rest in the interval": 0.9, "the most frequent strategy": 0.9}
_SIZES, _BUDGET = ("--batch", "32", "--neurons", "128", "--T", "1024"), "20 MiB"
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


def validate(*, folder: Path) -> subprocess.CompletedProcess[str]:
    """Compare the plan in a folder with runs of it."""
    return program("validate", "plan.json", "--format", "json", folder=folder)


def go(folder: Path, *, small: bool) -> dict[str, Any]:
    """Run the four commands in a folder, and return what they gave."""
    sizes, budget = (SMALL_SIZES, SMALL_CELLS["gru"]) if small else (_SIZES, _BUDGET)
    commands: dict[str, Callable[..., subprocess.CompletedProcess[str]]] = {
        "calibrate": partial(calibrate, "gru", sizes),
        "optimize": partial(program, "optimize", *JOB, "--local-bytes", budget, "-o", "plan.json"),
        "validate": validate,
    }
    exits = {}
    for name, command in commands.items():
        done = command(folder=folder)
        exits[name] = done.returncode
        if name != "validate" and done.returncode:
            return {"exits": exits, "why": done.stderr[-400:]}
    found = json.loads(done.stdout)
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
    rows = {one["quantity"]: one for one in json.loads(validate(folder=folder).stdout)["quantities"]}
    return float(rows["total"]["measured"])


def run(setting: Setting) -> dict[str, Any]:
    """Return a line for each time that the commands ran, and the goals with what was reached."""
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
                low, high = line["interval"] or (math.nan, math.nan)
                line |= {"seconds_at_rest": at_rest[key], "contained": low <= at_rest[key] <= high}
    return {"goals": summarise(lines), "runs": lines}


def summarise(lines: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """Return the goals, each with the share of the runs that reached it."""
    strategies = Counter(line["strategy"] for line in lines if line["why"] is None)
    numbers = (
        sum(not any(line["exits"].values()) for line in lines),
        sum(line.get("contained", False) for line in lines),
        max(strategies.values(), default=0),
    )
    return [
        {"goal": goal, "aim": aim, "reached": number / len(lines)}
        for (goal, aim), number in zip(GOALS.items(), numbers, strict=True)
    ]


if __name__ == "__main__":
    main("busy", run, {}, about=__doc__)
