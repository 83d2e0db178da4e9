"""Time of exact fronts, as columns: python -m benchmarks.pareto.

The job is paper-snn on ipu-mk2, whose tapes are as large as its states: a sequence of T steps has a front
of about T points for each strategy. Times are of the search alone, on one core.
"""

from __future__ import annotations

import ckptplan
from benchmarks.record import median_of, write
from ckptplan.cost.derive import step_costs
from ckptplan.model.budget import Budget
from ckptplan.search.box import Limits
from ckptplan.search.front import front_of, merged
from ckptplan.strategies.registry import named


def main() -> None:
    """Print a line for each length and strategy, and for all together."""
    workload, profile = ckptplan.load_workload("paper-snn"), ckptplan.load_profile("ipu-mk2")
    limits = Limits(budget=Budget())
    results = []
    print(f"{'T':>10} {'strategy':<15} {'points':>9} {'median':>9} {'most':>9}")
    for steps, repeats in ((4096, 9), (10**6, 3)):
        costs = step_costs(workload.with_steps(steps), profile)
        fronts = {}
        for strategy in named(["closed"]):
            timing = median_of(repeats, lambda s=strategy: front_of(s, costs=costs, limits=limits))  # type: ignore[misc]
            fronts[strategy.name] = front_of(strategy, costs=costs, limits=limits)
            results.append(
                {"steps": steps, "strategy": strategy.name, "points": len(fronts[strategy.name]), **timing}
            )
        timing = median_of(repeats, lambda: merged(list(fronts.values())))
        results.append(
            {
                "steps": steps,
                "strategy": "(merging all)",
                "points": len(merged(list(fronts.values()))[0]),
                **timing,
            }
        )
        for group in ("paper", "regular", "closed"):
            names = [strategy.name for strategy in named([group])]
            own = [one for one in results if one["steps"] == steps and one["strategy"] in names]
            together = {key: sum(one[key] for one in own) for key in ("median_seconds", "least", "most")}
            results.append(
                {
                    "steps": steps,
                    "strategy": f"all of '{group}'",
                    "points": sum(one["points"] for one in own),
                    **together,
                }
            )
        for one in results:
            if one["steps"] == steps:
                print(
                    f"{steps:>10,} {one['strategy']:<15} {one['points']:>9,} "
                    f"{one['median_seconds'] * 1e3:6.1f} ms {one['most'] * 1e3:6.1f} ms"
                )
    write("pareto", results)


if __name__ == "__main__":
    main()
