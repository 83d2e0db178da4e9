"""A benchmark's result as data: the timings, and the machine and versions behind them."""

from __future__ import annotations

import json
import os
import platform
import statistics
import sys
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

RESULTS = Path(__file__).parent / "results"


def median_of(repeats: int, action: Callable[[], object]) -> dict[str, float]:
    """Time an action; return the median, minimum and maximum in seconds."""
    times = []
    for _ in range(repeats):
        start = time.perf_counter()
        action()
        times.append(time.perf_counter() - start)
    return spread(times)


def spread(times: Sequence[float]) -> dict[str, float]:
    """Return the median, minimum and maximum of some timings."""
    return {"median_seconds": statistics.median(times), "least": min(times), "most": max(times)}


def make_document(name: str, results: Any, **more: Any) -> dict[str, Any]:
    """Return results with the machine, the versions and the command; ``more`` is added to these."""
    import ckptplan

    return {
        "benchmark": name,
        "command": f"python -m benchmarks.{name}",
        "date": time.strftime("%Y-%m-%d", time.gmtime()),
        "ckptplan": ckptplan.__version__,
        "python": platform.python_version(),
        "machine": platform.machine(),
        "processor_count": os.cpu_count(),
        **more,
        "results": results,
    }


def write(name: str, results: Any) -> None:
    """Write results with the machine, the versions and the command."""
    RESULTS.mkdir(exist_ok=True)
    path = RESULTS / f"{name}.json"
    path.write_text(json.dumps(make_document(name, results), indent=2) + "\n")
    sys.stdout.write(f"written to benchmarks/results/{path.name}\n")


def read(name: str) -> Any:
    """Return the results of the last run of a benchmark."""
    return json.loads((RESULTS / f"{name}.json").read_text())["results"]
