"""The results of benchmarks/accuracy.py: the targets, all tables, and the section of docs/accuracy.md."""

from __future__ import annotations

from benchmarks.accuracy_errors import PEAK, TIME, Line, decisions, error_lines, plan_lines, regret_line
from benchmarks.accuracy_tables import (
    NUMBER_COLUMNS,
    decisions_table,
    digest,
    number_cells,
    points_table,
    summary_table,
    table,
)

_ACTIONS = ("advance", "chunk", "save", "load")


def summary(results: Line) -> list[Line]:
    """Return the targets and the values that one run reached."""
    points, peers = results["points"], results["peers"]
    return [
        *plan_lines(points, counted="counted checkpoints and tapes"),
        *error_lines("torch.utils.checkpoint", peers, "bytes", "peak", bounds=PEAK),
        *error_lines("torch.utils.checkpoint", peers, "seconds", "time", bounds=TIME),
        regret_line(points),
    ]


def section(results: list[Line]) -> str:
    """Return the section of docs/accuracy.md."""
    found = digest(
        [one["points"] for one in results],
        [one["summary"] for one in results],
        {"torch.utils.checkpoint": [one["peers"] for one in results]},
    )
    return f"{_conditions(results)}\n\n{found}\n"


def document(results: list[Line]) -> str:
    """Return the tables of all runs."""
    parts = [_conditions(results), "Calibrations:", _calibrations_table(results)]
    for number, one in enumerate(results, 1):
        parts += [f"### Run {number}: summary", summary_table(one["summary"])]
    for number, one in enumerate(results, 1):
        parts += [f"### Run {number}: decisions", decisions_table(decisions(one["points"]))]
    for number, one in enumerate(results, 1):
        parts += [
            f"### Run {number}: plans",
            "Spread is half the range between the quartiles of the rounds.",
            points_table(one["points"]),
        ]
    for number, one in enumerate(results, 1):
        parts += [
            f"### Run {number}: torch.utils.checkpoint",
            "Non-reentrant. Two numbers are the outer and the inner chunk of nested checkpointing. Live "
            "bytes do not include parameters and inputs.",
            _peers_table(one["peers"]),
        ]
    return "\n\n".join(parts) + "\n"


def _conditions(results: list[Line]) -> str:
    first = results[0]["calibrations"][0]["calibration"]
    return (
        f"`python -m benchmarks.accuracy` on {first['machine']}, one thread, PyTorch {first['torch']}, "
        f"{first['date'][:10]}; batch 32. {len(results)} runs, each of which calibrated the networks and then "
        "ran in turn the best plan of every strategy that fits the budget, and base. Processor time, medians "
        "of 5 rounds, at the pace of the calibration, which a reference of 64 steps tells."
    )


def _calibrations_table(results: list[Line]) -> str:
    rows = []
    for number, run in enumerate(results, 1):
        for one in run["calibrations"]:
            found = one["calibration"]
            times = ("forward", "recompute", "record_overhead", "backward", *_ACTIONS)
            rows.append(
                [
                    str(number),
                    one["cell"].partition("(")[0],
                    *(f"{one.get(f'{name}_seconds', 0.0) * 1e6:.0f}" for name in times),
                    f"{found['uncertainty']:.1%}",
                ]
            )
    columns = ["run", "network", "forward, us", "recompute", "recording adds", "backward"]
    return table([*columns, "a run of steps adds", "a chunk adds", "save", "load", "uncertainty"], rows)


def _peers_table(lines: list[Line]) -> str:
    rows = []
    for one in lines:
        chunks = " / ".join(str(chunk) for chunk in one["chunks"])
        rows.append([one["network"], f"{one['steps']:,}", chunks, *number_cells(one)])
    return table(["network", "T", "chunk", *NUMBER_COLUMNS], rows)
