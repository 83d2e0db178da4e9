"""The results of benchmarks/accuracy_jax.py as a section of docs/accuracy.md, with the targets."""

from __future__ import annotations

import statistics
from collections.abc import Iterable

from benchmarks.accuracy_errors import (
    NOISY,
    Line,
    bias,
    decisions,
    errors_of,
    plan_lines,
    regret_line,
    share_line,
)
from benchmarks.accuracy_tables import MIB, decisions_table, points_table, summary_table, table

#: The bounds of the project: the largest error of a peak, the median and the worst one of a time.
_PEAK, _MEDIAN, _WORST = 0.05, 0.03, 0.10
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


def document(results: Line) -> str:
    """Return the section: the conditions, what was reached, and the tables."""
    points = results["points"]
    parts = [
        _conditions(results),
        _sentence(points),
        _missed_text(points),
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
        f"{first['date'][:10]}; batch 32, the loss inside the chunk. Each cell was calibrated, then its "
        "programs ran in turn: the best plan of every strategy that fits the budget, and base. The peak is "
        f"that of the compiled program. Times are processor time, medians of {results['rounds']} rounds, at "
        "the pace of the calibration."
    )


def _sentence(points: list[Line]) -> str:
    """Return what was reached, in a few lines."""
    noisy = sum(one["spread"] >= NOISY for one in points)
    times = errors_of(points, "seconds")
    return (
        f"**{len(points)} plans.** Bytes of states, tapes, buffers and remote states are equal in "
        f"{_equal_text(points)}. The largest error of the peak is {max(errors_of(points, 'bytes')):.1%}. The "
        f"error of the time is {statistics.median(times):.1%} in the median and {max(times):.1%} at worst. "
        f"{noisy / len(points):.0%} of the plans are noisy: their rounds spread by {NOISY:.0%} or more. The "
        f"chosen plan takes at most {regret_line(points)['reached']:.3f} times as long as the quickest one "
        "measured."
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


def _missed_text(points: list[Line]) -> str:
    """Return which plans miss the bounds of the project, noisy ones included."""
    median = statistics.median(errors_of(points, "seconds"))
    found = [
        f"the median error of the time is {median:.1%} instead of {_MEDIAN:.0%}" if median > _MEDIAN else "",
        _list_missed(points, "bytes", f"peaks off by more than {_PEAK:.0%}", bound=_PEAK),
        _list_missed(points, "seconds", f"times off by more than {_WORST:.0%}", bound=_WORST),
    ]
    missed = "; ".join(one for one in found if one)
    if missed:
        return f"Missed: {missed}."
    return (
        f"No bound is missed: {_PEAK:.0%} for a peak, {_MEDIAN:.0%} for the median time, {_WORST:.0%} for any."
    )


def _list_missed(points: list[Line], what: str, name: str, *, bound: float) -> str:
    off = [one for one in points if abs(bias(one, what)) > bound]
    texts = (f"{one['cell']}, T = {one['steps']:,}, {one['strategy']} {bias(one, what):+.1%}" for one in off)
    return f"{name}: {len(off)} ({'; '.join(texts)})" if off else ""


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
