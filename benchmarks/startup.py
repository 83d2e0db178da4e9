"""Whole-process time of the main job and of importing its libraries, measured in turn.

Run it with ckptplan installed, neither editable nor with coverage hooks: python -m benchmarks.startup
"""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import time

from benchmarks.record import spread, write

REPEATS = 31
MAIN_JOB = ("optimize", "--T", "4096", "--profile", "ipu-mk2", "--strategies", "paper,nested")
BARE = "import numpy, pydantic, typer, rich"


def main() -> None:
    """Time each command in turn, REPEATS times."""
    program = shutil.which("ckptplan", path=os.path.dirname(sys.executable))  # noqa: PTH120
    if program is None:
        raise SystemExit("install ckptplan in this environment first: pip install .")
    commands = {
        "bare imports": [sys.executable, "-c", BARE],
        "optimize": [program, *MAIN_JOB],
        "optimize --format json": [program, *MAIN_JOB, "--format", "json"],
        "--help": [program, "--help"],
    }
    # A warm-up writes the byte code, as a user's first run does.
    hidden = ("PYTHONDONTWRITEBYTECODE", "PYTHONUNBUFFERED")
    environment = {key: value for key, value in os.environ.items() if key not in hidden}
    times: dict[str, list[float]] = {name: [] for name in commands}
    for repeat in range(REPEATS + 2):
        for name, command in commands.items():
            start = time.perf_counter()
            subprocess.run(command, check=True, stdout=subprocess.DEVNULL, env=environment)
            if repeat >= 2:
                times[name].append(time.perf_counter() - start)
    results = {name: spread(measured) for name, measured in times.items()}
    bare = results["bare imports"]["median_seconds"]
    print(f"{'command':<24} {'median':>9} {'least':>9} {'of bare imports':>16}")
    for name, result in results.items():
        result["ratio"] = result["median_seconds"] / bare
        print(
            f"{name:<24} {result['median_seconds'] * 1e3:6.0f} ms {result['least'] * 1e3:6.0f} ms "
            f"{result['ratio']:15.2f}x"
        )
    print(f"bare imports: python -c {BARE!r}; {REPEATS} runs each, in turn")
    write("startup", results)


if __name__ == "__main__":
    main()
