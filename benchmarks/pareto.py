"""Time of exact fronts, as columns: python -m benchmarks.pareto.

The job is paper-snn on ipu-mk2, whose tapes are as large as its states: a sequence of T steps has a front
of about T points for each strategy. Times are those of the search alone, on one core.

``python -m benchmarks.pareto whole`` measures whole calls of ``ckptplan.pareto`` instead, each in a process of
its own, with the peak of its memory: the strategies compared by default, and the closed forms of a long
sequence.
"""

from __future__ import annotations

import resource
import sys
import time
from concurrent.futures import ProcessPoolExecutor
from functools import partial
from multiprocessing import get_context
from typing import Any

import ckptplan
from benchmarks.record import median_of, write
from ckptplan.cost.case import Case
from ckptplan.model.budget import Budget
from ckptplan.search.best_setting import Limits
from ckptplan.search.trace_closed import merge_fronts, trace_front
from ckptplan.strategies.registry import closed_form_of, select_strategies


def measured(steps: int, *, repeats: int) -> list[dict[str, Any]]:
    """Return a line for each strategy, for merging their fronts, and for groups of strategies."""
    workload, profile = ckptplan.load_workload("paper-snn"), ckptplan.load_profile("ipu-mk2")
    costs = Case(workload=workload.with_steps(steps), profile=profile).costs
    limits = Limits(budget=Budget())
    fronts = {}
    lines: list[dict[str, Any]] = []
    for strategy in select_strategies(["closed"]):
        search = partial(trace_front, closed_form_of(strategy.name), costs=costs, limits=limits)
        fronts[strategy.name] = search()
        timing = median_of(repeats, search)
        lines.append({"strategy": strategy.name, "points": len(fronts[strategy.name]), **timing})
    several = list(fronts.values())
    merging = median_of(repeats, lambda: merge_fronts(several))
    lines.append({"strategy": "(merging all)", "points": len(merge_fronts(several)[0]), **merging})
    groups = {
        group: {strategy.name for strategy in select_strategies([group])}
        for group in ("paper", "regular", "closed")
    }
    for group, names in groups.items():
        own = [line for line in lines if line["strategy"] in names]
        totals = {key: sum(line[key] for line in own) for key in ("points", "median_seconds", "least", "most")}
        lines.append({"strategy": f"all of '{group}'", **totals})
    return [{"steps": steps, **line} for line in lines]


#: Workload, profile, T and strategies of whole calls.
WHOLE = [
    ("paper-snn", "ipu-mk2", 4096, "default"),
    ("paper-snn", "ipu-mk2", 100_000, "default"),
    ("gru", "nvidia-a100-80gb", 100_000, "default"),
    ("paper-snn", "ipu-mk2", 1_000_000, "closed"),
]


def trace_whole(workload: str, profile: str, steps: int, strategies: str) -> dict[str, Any]:
    """Return the time and the peak memory of one call, in a process that does nothing else."""
    job, machine = ckptplan.load_workload(workload).with_steps(steps), ckptplan.load_profile(profile)
    start, used = time.perf_counter(), time.process_time()
    front = ckptplan.pareto(job, machine, strategies=None if strategies == "default" else strategies)
    return {
        "workload": workload,
        "profile": profile,
        "steps": steps,
        "strategies": strategies,
        "points": len(front),
        "seconds": time.perf_counter() - start,
        "processor_seconds": time.process_time() - used,
        "peak_bytes": resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024,
    }


def measure_whole(*, repeats: int = 3) -> list[dict[str, Any]]:
    """Return the quickest of some calls for each case."""
    results = []
    for case in WHOLE:
        calls = []
        for _ in range(repeats):
            with ProcessPoolExecutor(1, mp_context=get_context("spawn")) as pool:
                calls.append(pool.submit(trace_whole, *case).result())
        best = min(calls, key=lambda call: call["seconds"])
        print(
            f"{best['workload']:<10} {best['profile']:<17} {best['steps']:>9,} {best['strategies']:<8} "
            f"{best['points']:>9,} points {best['seconds']:6.2f} s {best['peak_bytes'] / 1e6:6.0f} MB",
            flush=True,
        )
        results.append(best)
    return results


def main() -> None:
    """Print the table for both lengths, or that of whole calls."""
    if sys.argv[1:] == ["whole"]:
        write("pareto_whole", measure_whole())
        return
    results = [*measured(4096, repeats=9), *measured(10**6, repeats=3)]
    print(f"{'T':>10} {'strategy':<17} {'points':>9} {'median':>11} {'most':>11}")
    for line in results:
        print(
            f"{line['steps']:>10,} {line['strategy']:<17} {line['points']:>9,} "
            f"{line['median_seconds'] * 1e3:8.1f} ms {line['most'] * 1e3:8.1f} ms"
        )
    write("pareto", results)


if __name__ == "__main__":
    main()
