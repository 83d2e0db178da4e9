"""Time of exact fronts, as columns: python -m benchmarks.pareto.

The job is paper-snn on ipu-mk2, whose tapes are as large as its states: a sequence of T steps has a front
of about T points for each strategy. Times are those of the search alone, on one core.
"""

from __future__ import annotations

from functools import partial
from typing import Any

import ckptplan
from benchmarks.record import median_of, write
from ckptplan.cost.case import Case
from ckptplan.model.budget import Budget
from ckptplan.search.box import Limits
from ckptplan.search.front import merge_fronts, trace_front
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


def main() -> None:
    """Print the table for both lengths."""
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
