"""Time of a sweep of 10,000 plans on all cores: python -m benchmarks.sweep."""

from __future__ import annotations

import csv
import subprocess
import sys
import tempfile
import time
from collections import Counter
from pathlib import Path

from benchmarks.record import write
from ckptplan.studies.workers import count_cores

#: 25 lengths x 20 budgets x 20 bandwidths, from jobs that fit without checkpoints to jobs that never fit.
GRID = ("T=256:16384:n25", "local-bytes=256KiB:4MiB:n20", "bandwidth=2GB/s:200GB/s:n20")


def main() -> None:
    """Print the time, and how often each strategy was best."""
    command = [sys.executable, "-m", "ckptplan", "sweep"]
    for axis in GRID:
        command += ["--over", axis]
    with tempfile.TemporaryDirectory() as folder:
        file = Path(folder) / "sweep.csv"
        start = time.perf_counter()
        subprocess.run([*command, "-o", str(file)], check=True)
        seconds = time.perf_counter() - start
        with file.open(newline="") as lines:
            best = Counter(row["strategy"] or "nothing fits" for row in csv.DictReader(lines))
    plans = best.total()
    print(f"{'plans':>8} {'cores':>6} {'time':>8} {'plans/s':>8}")
    print(f"{plans:>8,} {count_cores():>6} {seconds:6.1f} s {plans / seconds:>8.0f}")
    for name, count in best.most_common():
        print(f"  {name:<16} {count:>6,}")
    write(
        "sweep",
        {
            "axes": list(GRID),
            "plans": plans,
            "cores": count_cores(),
            "seconds": seconds,
            "plans_per_second": plans / seconds,
            "best": dict(best.most_common()),
        },
    )


if __name__ == "__main__":
    main()
