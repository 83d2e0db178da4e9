"""Time of the search for the largest job, strategy by strategy: python -m benchmarks.largest.

The job is paper-snn, on every shipped profile, for each quantity, without a limit on the overhead. Caches are
cleared between searches. Times are processor times of one core, because other programs may run.
"""

from __future__ import annotations

import time
from typing import Any

import ckptplan
from benchmarks.record import write
from ckptplan.recursion import classical, table_problem
from ckptplan.storage.library import list_names
from ckptplan.strategies.registry import select_strategies

QUANTITIES = ("T", "batch", "neurons")


def searched(quantity: str, profile: str) -> list[dict[str, Any]]:
    """Return a line for each strategy: how far it goes, and how long it took to say so."""
    workload, machine = ckptplan.load_workload("paper-snn"), ckptplan.load_profile(profile)
    lines = []
    for strategy in select_strategies(["all"]):
        table_problem.clear_caches()
        classical.clear_caches()
        start = time.process_time()
        reach = ckptplan.largest(quantity, workload, machine, strategies=[strategy.name])[strategy.name]
        lines.append(
            {
                "profile": profile,
                "quantity": quantity,
                "strategy": strategy.name,
                "value": reach.value,
                "bound_by": reach.bound_by,
                "proved": reach.proved,
                "processor_seconds": time.process_time() - start,
            }
        )
    return lines


def main() -> None:
    """Print a line for each profile and quantity, with the strategy that took longest."""
    results = []
    print(f"{'profile':<26} {'quantity':<8} {'all':>9} {'longest':>9} strategy")
    for profile in list_names("hardware_profiles"):
        for quantity in QUANTITIES:
            lines = searched(quantity, profile)
            longest = max(lines, key=lambda line: line["processor_seconds"])
            whole = sum(line["processor_seconds"] for line in lines)
            most = f"{longest['processor_seconds']:>7.2f} s {longest['strategy']}"
            print(f"{profile:<26} {quantity:<8} {whole:>7.2f} s {most}", flush=True)
            results += lines
    write("largest", results)


if __name__ == "__main__":
    main()
