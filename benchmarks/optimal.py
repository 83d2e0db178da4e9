"""Time and gap of the optimal schedule, and times of its peers: python -m benchmarks.optimal.

States of one unit; a transfer takes ten forward steps each way unless a case says otherwise; f = r = 1,
b = 2. Each plan is complete: tables, backtracking and counts. The same run times the planners of the package
checkpoint_schedules 1.0.4 on the classical problem (8 states in RAM, as many on disk as there are steps, one
tape).
"""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Any

import checkpoint_schedules
import numpy as np

from benchmarks.harness import spread, write
from ckptplan.cost.exact import Cost
from ckptplan.model.budget import Budget
from ckptplan.model.step_costs import StepCosts
from ckptplan.recursion import classical, table_problem
from ckptplan.strategies.registry import all_strategies
from ckptplan.strategies.solved import Solved, Task

#: Name, strategy, steps, units, tape, effort, repeats.
CASES: list[tuple[str, str, int, int, int, str, int]] = [
    ("classical", "optimal", 1_000, 17, 9, "quick", 5),
    ("classical", "optimal", 4_096, 17, 9, "quick", 5),
    ("classical", "optimal", 100_000, 17, 9, "thorough", 1),
    ("classical", "disk-revolve", 1_000, 9, 1, "quick", 5),
    ("classical", "disk-revolve", 4_096, 9, 1, "quick", 5),
    ("classical", "disk-revolve", 100_000, 9, 1, "quick", 5),
    ("general", "optimal", 1_000, 30, 1, "quick", 5),
    ("general", "optimal", 4_096, 30, 1, "quick", 3),
    ("general", "optimal", 16_384, 30, 1, "thorough", 1),
    ("GRU", "optimal", 4_096, 400, 7, "thorough", 1),
    ("GRU", "optimal", 4_096, 400, 7, "quick", 3),
    ("beyond the tables", "optimal", 100_000, 30, 1, "thorough", 1),
    ("beyond the tables", "optimal", 1_000_000, 300, 1, "thorough", 1),
    ("beyond the tables", "optimal", 1_000_000, 30, 1, "thorough", 1),
    ("closed form", "periodic", 10**9, 30, 1, "quick", 5),
    ("closed form", "disk-revolve", 10**9, 30, 1, "quick", 5),
]


def first(cost: Cost) -> int:
    """Choose the quickest schedule; among equally quick ones, the smallest."""
    return int(np.lexsort((cost.local_peak_bytes, cost.seconds))[0])


def solved(name: str) -> Solved:
    """Return a strategy that is solved decision by decision."""
    strategy = all_strategies()[name]
    if not isinstance(strategy, Solved):
        raise TypeError(name)
    return strategy


def problem(steps: int, tape: int) -> StepCosts:
    """Return the costs of a case."""
    return StepCosts(
        steps=steps,
        state_bytes=1,
        tape_bytes=tape,
        remote_state_bytes=1,
        forward_seconds=1.0,
        backward_seconds=2.0,
        recompute_seconds=1.0,
        write_seconds=10.0,
        read_seconds=10.0,
    )


def timed(repeats: int, action: Callable[[], Any]) -> tuple[dict[str, float], Any]:
    """Time an action several times, with caches cleared before each run."""
    times, result = [], None
    for _ in range(repeats):
        table_problem.clear_caches()
        classical.clear_caches()
        start = time.perf_counter()
        result = action()
        times.append(time.perf_counter() - start)
    return spread(times), result


def ours() -> list[dict[str, Any]]:
    """Plan each case."""
    results = []
    print(f"{'case':<18} {'strategy':<13} {'T':>13} {'units':>5} {'tape':>4} {'effort':<9} {'median':>10} gap")
    for case, name, steps, units, tape, effort, repeats in CASES:
        strategy = solved(name)
        costs, budget = problem(steps, tape), Budget(local_bytes=units)
        timing, solution = timed(
            repeats,
            lambda: strategy.solve(Task(costs=costs, budget=budget, choose=first, effort=effort)),  # noqa: B023
        )
        seconds, least = solution.totals(costs).seconds, solution.least_seconds
        gap = None if least is None else (seconds - least) / seconds
        shown = "" if gap is None else f"{gap:.2%}"
        print(
            f"{case:<18} {name:<13} {steps:>13,} {units:>5} {tape:>4} {effort:<9} "
            f"{timing['median_seconds'] * 1e3:>7.1f} ms {shown}"
        )
        results.append(
            {
                "case": case, "strategy": name, "steps": steps, "units": units, "tape": tape, "effort": effort,
                **timing, "seconds_of_the_plan": seconds, "gap": gap,
            }
        )  # fmt: skip
    return results


def peers() -> list[dict[str, Any]]:
    """Plan the classical problem with checkpoint_schedules and with ckptplan, one after the other."""
    results = []
    optimal = solved("optimal")
    makers: dict[str, Callable[[int], object]] = {
        "HRevolve": lambda n: checkpoint_schedules.HRevolve(n, 8, n, uf=1, ub=1, wd=10, rd=10),
        "DiskRevolve": lambda n: checkpoint_schedules.DiskRevolve(n, 8, uf=1, ub=1, wd=10, rd=10),
    }
    print(f"{'peer':<12} {'T':>6} {'peer':>10} {'optimal':>10} {'ratio':>8}")
    for steps in (256, 1_000):
        for name, make in makers.items():
            theirs, _ = timed(1, lambda: make(steps))  # noqa: B023
            costs, budget = problem(steps, 9), Budget(local_bytes=17)
            mine, _ = timed(5, lambda: optimal.solve(Task(costs=costs, budget=budget, choose=first)))  # noqa: B023
            ratio = theirs["median_seconds"] / mine["median_seconds"]
            print(
                f"{name:<12} {steps:>6,} {theirs['median_seconds']:>8.2f} s "
                f"{mine['median_seconds'] * 1e3:>7.1f} ms {ratio:>7,.0f}x"
            )
            results.append(
                {"peer": name, "steps": steps, "peer_seconds": theirs["median_seconds"],
                 "optimal_seconds": mine["median_seconds"], "ratio": ratio}
            )  # fmt: skip
    return results


def main() -> None:
    """Print both tables."""
    write("optimal", {"cases": ours(), "peers": peers()})


if __name__ == "__main__":
    main()
