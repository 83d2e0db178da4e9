"""The results of benchmarks/accuracy_jax.py: the targets, all tables, and the section of docs/accuracy.md."""

from __future__ import annotations

import statistics
from collections.abc import Iterable

from benchmarks.accuracy_errors import (
    Line,
    decisions,
    plan_lines,
    regret_line,
    share_line,
)
from benchmarks.accuracy_tables import MIB, decisions_table, digest, points_table, summary_table, table

_TIMES = ("forward", "recompute", "record_overhead", "backward", "advance", "chunk", "save", "load")


def summary(results: Line) -> list[Line]:
    """Return the targets and the values that were reached."""
    points = results["points"]
    walls = _wall_errors(points)
    return [
        *plan_lines(points, counted="states, tapes, buffers and remote states"),
        share_line("by wall time at the pace of the reference, median", statistics.median(walls)),
        share_line("by wall time at the pace of the reference, worst", max(walls)),
        regret_line(points),
    ]


def section(results: Line) -> str:
    """Return the section of docs/accuracy.md."""
    points = results["points"]
    parts = [
        f"{_conditions(results)} Bytes of states, tapes, buffers and remote states are equal in "
        f"{_equal_text(points)}. {_without_text(results['without'])}",
        digest([points], [results["summary"]]),
    ]
    return "\n\n".join(parts) + "\n"


def document(results: Line) -> str:
    """Return the conditions and all tables."""
    points = results["points"]
    parts = [
        _conditions(results),
        _without_text(results["without"]),
        summary_table(results["summary"]),
        "Calibrations, times in us:",
        _calibrations_table(results["calibrations"]),
        "Decisions:",
        decisions_table(decisions(points)),
        "Plans; spread is half the range between the quartiles of the rounds:",
        points_table(points),
    ]
    return "\n\n".join(part for part in parts if part) + "\n"


def _conditions(results: Line) -> str:
    first = results["calibrations"][0]["calibration"]
    return (
        f"`python -m benchmarks.accuracy_jax` on {first['machine']}, one thread, JAX {first['jax']}, "
        f"{first['date'][:10]}; batch 32, processor time, medians of {results['rounds']} rounds, at the pace "
        "of the calibration. The peak is that of the compiled program."
    )


def _equal_text(points: list[Line]) -> str:
    unequal = [one for one in points if not one["counted_equal"]]
    if not unequal:
        return "all of them"
    pairs = [(name, *pair) for one in unequal for name, pair in one["sizes"].items() if pair[0] != pair[1]]
    names = ", ".join(sorted({name for name, *_ in pairs}))
    # A prediction can be 0 where something was counted.
    most = max(abs(counted - predicted) / max(predicted, counted) for _, predicted, counted in pairs)
    return f"all but {len(unequal)} of them ({names}; the largest difference is {most:.2%})"


def _without_text(without: list[Line]) -> str:
    """Return which strategies have no plan within a budget; base is measured outside of it."""
    names = (
        f"{one['strategy']} ({one['cell']}, T = {one['steps']:,}, {one['budget'] / MIB:.1f} MiB)"
        for one in without
        if one["strategy"] != "base"
    )
    listed = "; ".join(names)
    return f"Nothing fits the budget for {listed}." if listed else "Every strategy but base has a plan."


def _wall_errors(points: Iterable[Line]) -> list[float]:
    return [abs(one["predicted_seconds"] / one["wall_seconds"] - 1) for one in points]


def _calibrations_table(lines: list[Line]) -> str:
    rows = (
        [
            one["cell"].partition("(")[0],
            one["calibration"]["tape"],
            *(f"{one.get(f'{name}_seconds', 0.0) * 1e6:.0f}" for name in _TIMES),
            f"{one['workspace_bytes'] / MIB:.2f} MiB",
            f"{one['calibration']['uncertainty']:.1%}",
        ]
        for one in lines
    )
    steps = ["forward", "recompute", "recording adds", "backward"]
    actions = ["a run of steps adds", "a chunk adds", "save", "load"]
    return table(["cell", "tape", *steps, *actions, "workspace", "uncertainty"], rows)
