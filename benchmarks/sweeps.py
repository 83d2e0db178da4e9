"""What rows of a sweep cost, and what engines add: python -m benchmarks.sweeps.

A row is the best plan of a job at a point of one of several grids. Its seconds are processor time of one core;
its bytes are what it adds to a file. Engines plan the same grid in turn, each with two workers that were
started before, in blocks of a second; what counts is the ratio of rows per second.
"""

from __future__ import annotations

import re
import statistics
import tempfile
import time
from collections.abc import Iterable, Iterator, Mapping
from concurrent.futures import Executor
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import ckptplan
from benchmarks.harness import DOCS, Setting, main, table
from ckptplan.storage.tables import Lines, Row, open_parquet
from ckptplan.studies.sweep import Sweep, iterate_rows, make_sweep
from ckptplan.studies.workers import WorkerPool

#: Rows of a long sweep, and machines with so many cores.
LONG = (10**6, 10**9)
CORES = (1, 64, 1024)
#: Rows of a file at most.
_MOST = 10_000_000


#: The grids whose points are measured, by strategies: a workload, a profile and axes.
GRIDS: Mapping[str, tuple[tuple[str, str, dict[str, str]], ...]] = {
    "closed": (
        ("paper-snn", "ipu-mk2", {
            "T": "256:4096:n24", "local-bytes": "300KiB:624KiB:n10", "bandwidth": "5GB/s:80GB/s:n5",
        }),
        ("paper-snn", "ipu-mk2", {"T": "64:4096:n30", "batch": "30,60,90,120", "headroom": "0,5%,10%,20%"}),
        ("gru", "nvidia-a100-80gb", {"T": "256:1000000:n24", "local-bytes": "30MB:3GB:n20"}),
        ("lstm-stack", "cpu-nvme", {"T": "256:16384:n16", "local-bytes": "100MB:4GB:n8", "latency": "0,1us"}),
    ),
    "optimal": (
        ("paper-snn", "ipu-mk2", {
            "T": "256:4096:n8", "local-bytes": "300KiB:624KiB:n5", "bandwidth": "10GB/s,40GB/s",
        }),
        ("gru", "nvidia-a100-80gb", {"T": "256:16384:n6", "local-bytes": "30MB:3GB:n6"}),
    ),
}  # fmt: skip


def make_grid_sweep(strategies: str, workload: str, profile: str, axes: Mapping[str, str]) -> Sweep:
    """Return a sweep over a grid."""
    job, machine = ckptplan.load_workload(workload), ckptplan.load_profile(profile)
    return make_sweep(axes, workloads=job, profiles=machine, strategies=strategies)


def measure_grids(strategies: str, *, small: bool) -> dict[str, Any]:
    """Return the mean of all points of the grids of some strategies, and each grid by itself."""
    found = []
    for workload, profile, axes in GRIDS[strategies]:
        few = {name: re.sub(r":n\d+$", ":n2", values) if small else values for name, values in axes.items()}
        found.append(measure_rows(make_grid_sweep(strategies, workload, profile, few)))
    rows = sum(one["rows"] for one in found)

    def average(numbers: Iterable[float]) -> float:
        mean: float = sum(number * one["rows"] for number, one in zip(numbers, found, strict=True)) / rows
        return mean

    return {
        "rows": rows,
        "seconds": average(one["seconds"] for one in found),
        "bytes": {name: average(one["bytes"][name] for one in found) for name in found[0]["bytes"]},
        "grids": found,
    }


def measure_rows(sweep: Sweep) -> dict[str, Any]:
    """Return the processor seconds of a row, and its bytes in each format."""
    began = time.process_time()
    rows = [row for some in iterate_rows(sweep) for row in some]
    seconds = (time.process_time() - began) / len(rows)
    lines = Lines(format="csv", columns=sweep.columns)
    sizes = {"csv": sum(len(lines.line(row)) for row in rows) / len(rows)}
    with tempfile.TemporaryDirectory() as folder:
        # Two files: what both have at their ends is not of rows.
        half, file = len(rows) // 2, Path(folder) / "rows.parquet"
        written = []
        for some in (rows, rows[:half]):
            with open_parquet(file, columns=sweep.columns, identity=sweep.identity) as append:
                append(some)
            written.append(file.stat().st_size)
        sizes["parquet"] = (written[0] - written[1]) / (len(rows) - half)
    return {"rows": len(rows), "seconds": seconds, "bytes": sizes, "fit": sum(row["fits"] for row in rows)}


def measure_engines(sweep: Sweep, *, rounds: int) -> dict[str, Any]:
    """Return rows per second of each engine in each round, in turn."""
    from distributed import Client, LocalCluster

    found: dict[str, list[float]] = {"own": [], "dask": []}
    with ExitStack() as open_:
        cluster = open_.enter_context(LocalCluster(n_workers=2, threads_per_worker=1, dashboard_address=":0"))
        client = open_.enter_context(Client(cluster))
        engines: Mapping[str, Executor] = {
            "own": open_.enter_context(WorkerPool(2)),
            "dask": client.get_executor(),
        }
        for engine in engines.values():
            _count(iterate_rows(sweep, start=len(sweep) - 20, executor=engine))
        for round_ in range(rounds):
            for name in list(engines)[:: 1 if round_ % 2 else -1]:
                began = time.perf_counter()
                count = _count(iterate_rows(sweep, executor=engines[name]))
                found[name].append(count / (time.perf_counter() - began))
    ratios = [dask / own for own, dask in zip(found["own"], found["dask"], strict=True)]
    return {"rows_per_second": found, "ratios": ratios, "ratio": statistics.median(ratios)}


def _count(rows: Iterator[list[Row]]) -> int:
    return sum(map(len, rows))


def run(setting: Setting) -> dict[str, Any]:
    """Measure rows of closed forms and of ``optimal``, then engines."""
    small = setting.small
    axes = {"T": "256:4096:n16", "local-bytes": f"300KiB:624KiB:n{4 if small else 1024}"}
    long = make_grid_sweep("closed", "paper-snn", "ipu-mk2", axes)
    return {
        "closed": setting.attempt("closed", lambda: measure_grids("closed", small=small)),
        "optimal": setting.attempt("optimal", lambda: measure_grids("optimal", small=small)),
        "engines": setting.attempt("engines", lambda: measure_engines(long, rounds=1 if small else 5)),
    }


def document(results: Any) -> str:
    """Return the tables of the page."""
    rows = []
    for name, told in (("closed", "closed forms"), ("optimal", "`optimal`")):
        found = results[name]
        for count in LONG:
            times = (_say_hours(found["seconds"] * count / cores) for cores in CORES)
            sizes = (_say_bytes(found["bytes"][kind] * count) for kind in ("csv", "parquet"))
            rows.append((told, f"{count:,}", *times, *sizes, f"{max(1, count // _MOST):,}"))
    cores = (f"{cores:,} core{'s' * (cores > 1)}" for cores in CORES)
    engines = results["engines"]
    own, dask = (statistics.median(engines["rows_per_second"][name]) for name in ("own", "dask"))
    spent = ", ".join(
        _say_spent(results[name], told) for name, told in (("closed", "closed forms"), ("optimal", "`optimal`"))
    )
    return (
        table(("strategies", "points", *cores, "CSV", "Parquet", "files"), rows)
        + f"\n\nProcessor time of a point: {spent}. Two workers of Dask plan {dask:,.0f} rows a second, two "
        f"processes of one machine {own:,.0f}.\n"
    )


def _say_spent(found: dict[str, Any], told: str) -> str:
    """Return the mean of a point's time, and from where to where the means of the grids go."""
    least, most = (pick(one["seconds"] for one in found["grids"]) * 1e3 for pick in (min, max))
    return (
        f"{found['seconds'] * 1e3:,.3g} ms ({told}, {found['rows']:,} points, {least:,.3g} to {most:,.3g} ms)"
    )


def _say_hours(seconds: float) -> str:
    for size, unit in ((86400 * 365, "years"), (86400, "days"), (3600, "h"), (60, "min")):
        if seconds >= 2 * size:
            return f"{seconds / size:,.2g} {unit}" if seconds < 100 * size else f"{seconds / size:,.0f} {unit}"
    return f"{float(f'{seconds:.2g}'):,g} s"


def _say_bytes(size: float) -> str:
    for factor, unit in ((1e12, "TB"), (1e9, "GB"), (1e6, "MB")):
        if size >= factor:
            return f"{size / factor:,.3g} {unit}"
    return f"{size:,.0f} B"


PAGES = {DOCS / "sweep.md": document}

if __name__ == "__main__":
    main("sweeps", run, PAGES, about=__doc__)
