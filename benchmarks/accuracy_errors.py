"""Errors of predictions, and the regret of decisions, in the results of benchmarks of accuracy."""

from __future__ import annotations

import statistics
from collections import defaultdict
from collections.abc import Iterable
from typing import Any

#: A plan is noisy if its rounds spread by this share or more, and calm otherwise.
NOISY = 0.05
#: The bounds of the project: the median and the worst error of a time and of a peak, the share of noisy plans.
TIME, PEAK, MOST_NOISY = (0.03, 0.10), (0.02, 0.05), 0.1
#: How much longer than the quickest plan measured the chosen one may take.
MOST_REGRET = 1.03
Line = dict[str, Any]


def bias(line: Line, what: str) -> float:
    """Return predicted over measured, less one."""
    return float(line[f"predicted_{what}"] / line[f"measured_{what}"] - 1)


def plan_lines(points: list[Line], *, counted: str) -> list[Line]:
    """Return the targets for the bytes and times of plans, and the values reached; ``counted`` names bytes."""
    calm = [one for one in points if one["spread"] < NOISY]
    equal = sum(one["counted_equal"] for one in points)
    return [
        {
            "what": f"plans whose {counted} are equal to the byte, of {len(points)}",
            "bound": len(points),
            "reached": equal,
            "met": equal == len(points),
        },
        *error_lines("plans", points, "bytes", "peak", bounds=PEAK),
        *error_lines("calm plans", calm, "seconds", "time", bounds=TIME),
        share_line("share of noisy plans", 1 - len(calm) / len(points), bound=MOST_NOISY),
        share_line(f"all {len(points)} plans, time, median", statistics.median(errors_of(points, "seconds"))),
        share_line(f"all {len(points)} plans, time, worst", max(errors_of(points, "seconds"))),
        share_line("the same at the machine's own pace, median", statistics.median(raw_errors(points))),
        share_line("the same at the machine's own pace, worst", max(raw_errors(points))),
    ]


def regret_line(points: list[Line]) -> Line:
    """Return the target for the regret of decisions, and the value reached."""
    regrets = [one["regret"] for one in decisions(points)]
    return {
        "what": f"decision regret, the worst of {len(regrets)} decisions",
        "bound": MOST_REGRET,
        "reached": max(regrets),
        "met": max(regrets) <= MOST_REGRET,
    }


def share_line(what: str, reached: float, *, bound: float | None = None) -> Line:
    """Return a share that was reached, and whether it is within its bound."""
    return {"what": what, "bound": bound, "reached": reached, "met": bound is None or reached <= bound}


def errors_of(lines: list[Line], what: str) -> list[float]:
    """Return by how much predictions are off, as shares."""
    return [abs(bias(line, what)) for line in lines]


def raw_errors(points: list[Line]) -> list[float]:
    """Return by how much times are off at the pace that the machine had."""
    return [abs(one["predicted_seconds"] / one["raw_seconds"] - 1) for one in points]


def error_lines(
    name: str, lines: list[Line], what: str, shown: str, *, bounds: tuple[float, float]
) -> Iterable[Line]:
    """Yield the median and the worst error with their bounds, and the mean bias; nothing without lines."""
    if not lines:
        return
    shares = errors_of(lines, what)
    yield share_line(f"{name}, {shown}, median of {len(lines)}", statistics.median(shares), bound=bounds[0])
    yield share_line(f"{name}, {shown}, worst of {len(lines)}", max(shares), bound=bounds[1])
    yield share_line(f"{name}, {shown}, mean signed bias", statistics.mean(bias(line, what) for line in lines))


def decisions(points: list[Line]) -> list[Line]:
    """Return the regret of the chosen plan for each budget; base fits none of the budgets."""
    groups: dict[tuple[str, int, int], list[Line]] = defaultdict(list)
    for one in points:
        groups[one["cell"], one["steps"], one["budget_bytes"]].append(one)
    found = []
    for (cell, steps, budget), lines in groups.items():
        fitting = [one for one in lines if one["predicted_bytes"] <= budget]
        chosen = next(one for one in fitting if one["chosen"])
        best = min(fitting, key=lambda one: float(one["measured_seconds"]))
        found.append(
            {
                "cell": cell,
                "steps": steps,
                "budget_bytes": budget,
                "chosen": chosen["strategy"],
                "best": best["strategy"],
                "regret": chosen["measured_seconds"] / best["measured_seconds"],
                "worst": max(one["measured_seconds"] for one in fitting) / best["measured_seconds"],
                "plans": len(fitting),
            }
        )
    return found
