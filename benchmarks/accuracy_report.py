"""The results of benchmarks/accuracy.py as a section of docs/accuracy.md, with the targets."""

from __future__ import annotations

from benchmarks.accuracy_errors import Line, decisions, error_lines, plan_lines, regret_line
from benchmarks.accuracy_tables import (
    NUMBER_COLUMNS,
    decisions_table,
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
        *error_lines("torch.utils.checkpoint", peers, "bytes", "peak", median=0.02, worst=0.05),
        *error_lines("torch.utils.checkpoint", peers, "seconds", "time", median=0.03, worst=0.10),
        regret_line(points),
    ]


def document(results: list[Line]) -> str:
    """Return the tables of all runs."""
    parts = [_conditions(results), _calibrations_table(results)]
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
        f"{first['date'][:10]}; batch 32, the loss inside the chunk. In each run, each network was calibrated, "
        "then its plans ran in turn: the best of every strategy that fits the budget, and base. Times are "
        "processor time, medians of 5 rounds, at the pace of the calibration: the pace of this machine, which "
        "others use as well, changed by tens of percent within minutes, so a reference of 64 steps ran all the "
        "time. The summary also has the errors without this correction. Calibrations:"
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
