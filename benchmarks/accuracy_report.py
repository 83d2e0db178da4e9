"""The results of benchmarks/accuracy.py as a section of docs/accuracy.md, with the targets."""

from __future__ import annotations

import statistics
from collections import defaultdict
from collections.abc import Iterable
from pathlib import Path
from typing import Any

PAGE = Path(__file__).parent.parent / "docs/accuracy.md"
END = "<!-- end -->\n"
MIB = 2**20
Line = dict[str, Any]


def bias(line: Line, what: str) -> float:
    """Return predicted over measured, less one."""
    return float(line[f"predicted_{what}"] / line[f"measured_{what}"] - 1)


def summary(results: dict[str, Any]) -> list[Line]:
    """Return the targets and the values reached."""
    points, peers = results["points"], results["peers"]
    inside = [one for one in points if one["in_range"]]
    equal = sum(one["counted_equal"] for one in points)
    found = [
        {
            "what": f"plans whose counted checkpoints and tapes are equal to the byte, of {len(points)}",
            "bound": len(points),
            "reached": equal,
            "met": equal == len(points),
        }
    ]
    for name, lines in (("plans", inside), ("torch.utils.checkpoint", peers)):
        found += _errors(name, lines, "bytes", "peak", median=0.02, worst=0.05)
        found += _errors(name, lines, "seconds", "time", median=0.05, worst=0.10)
    times = [abs(bias(line, "seconds")) for line in points]
    for statistic, value in (("median", statistics.median(times)), ("worst", max(times))):
        what = f"all {len(points)} plans, those with * included, time, {statistic}"
        found.append({"what": what, "bound": None, "reached": value, "met": True})
    regrets = [one["regret"] for one in decisions(points)]
    found.append(
        {
            "what": f"decision regret, the worst of {len(regrets)} decisions",
            "bound": 1.05,
            "reached": max(regrets),
            "met": max(regrets) <= 1.05,
        }
    )
    return found


def _errors(
    name: str, lines: list[Line], what: str, shown: str, *, median: float, worst: float
) -> Iterable[Line]:
    shares = [abs(bias(line, what)) for line in lines]
    for statistic, value, bound in (
        ("median", statistics.median(shares), median),
        ("worst", max(shares), worst),
    ):
        yield {
            "what": f"{name}, {shown}, {statistic} of {len(lines)}",
            "bound": bound,
            "reached": value,
            "met": value <= bound,
        }
    yield {
        "what": f"{name}, {shown}, mean signed bias",
        "bound": None,
        "reached": statistics.mean(bias(line, what) for line in lines),
        "met": True,
    }


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


def document(results: dict[str, Any]) -> str:
    """Return the tables."""
    return (
        "\n\n".join(
            (
                _conditions(results["calibrations"]),
                _summary_table(results["summary"]),
                "### Decisions",
                _decisions_table(decisions(results["points"])),
                "### Plans",
                "Noise is half the range of the rounds. The chunks of a plan with * are on average shorter "
                "than those for which the calibration holds. Such plans count only in the lines of the summary "
                "that say so, and in the decisions.",
                _points_table(results["points"]),
                "### torch.utils.checkpoint",
                "Non-reentrant. Two numbers are the outer and the inner chunk of nested checkpointing. Live "
                "bytes do not include parameters and inputs.",
                _peers_table(results["peers"]),
            )
        )
        + "\n"
    )


def put_section(benchmark: str, text: str) -> None:
    """Write the results of a benchmark into the page, between its marks."""
    begin = f"<!-- benchmarks.{benchmark} -->\n"
    before, rest = PAGE.read_text().split(begin)
    PAGE.write_text(before + begin + text + END + rest.split(END, 1)[1])


def table(head: list[str], rows: Iterable[list[str]]) -> str:
    """Return a table of Markdown."""
    lines = ["| " + " | ".join(head) + " |", "|" + "---|" * len(head)]
    return "\n".join([*lines, *("| " + " | ".join(row) + " |" for row in rows)])


def _conditions(calibrations: list[Line]) -> str:
    first = calibrations[0]["calibration"]
    head = (
        f"`python -m benchmarks.accuracy` on {first['machine']}, one thread, PyTorch {first['torch']}, "
        f"{first['date'][:10]}; batch 32, the loss inside the chunk. Each network was calibrated, then its "
        "plans ran in turn; times are medians of 5 rounds. Calibration:"
    )
    rows = []
    for one in calibrations:
        found = one["calibration"]
        spread = max(measured["spread"] for measured in found["measured"].values())
        rows.append(
            [
                one["cell"],
                *(f"{one[f'{name}_seconds'] * 1e6:.1f} us" for name in ("forward", "recompute")),
                f"{one['record_overhead_seconds'] * 1e6:.1f} us",
                f"{one['backward_seconds'] * 1e6:.1f} us",
                f"{spread:.1%}",
                f"{found['uncertainty']:.1%}",
                f"{found['shortest_chunk']} steps",
                f"{found['chunk_overhead_seconds'] * 1e3:.2f} ms",
            ]
        )
    columns = ["network", "forward", "recompute", "recording adds", "backward", "largest spread"]
    return f"{head}\n\n" + table([*columns, "uncertainty", "holds from", "a chunk adds"], rows)


def _summary_table(lines: list[Line]) -> str:
    rows = []
    for one in lines:
        bound = one["bound"]
        whole = isinstance(bound, int)
        ratio = bound is not None and bound > 1 and not whole
        text = f"{one['reached']}" if whole else f"{one['reached']:.3f}" if ratio else f"{one['reached']:.2%}"
        if bound is None and "bias" in one["what"]:
            text = f"{one['reached']:+.2%}"
        limit = "" if bound is None else f"{bound}" if whole or ratio else f"{bound:.0%}"
        rows.append([one["what"], limit, text + ("" if one["met"] else " (missed)")])
    return table(["what", "bound", "reached"], rows)


def _decisions_table(lines: list[Line]) -> str:
    return table(
        ["network", "T", "budget", "chosen", "quickest measured", "regret", "slowest over quickest"],
        (
            [
                one["cell"],
                f"{one['steps']:,}",
                f"{one['budget_bytes'] / MIB:.1f} MiB",
                one["chosen"],
                f"{one['best']} of {one['plans']}",
                f"{one['regret']:.3f}",
                f"{one['worst']:.2f}",
            ]
            for one in lines
        ),
    )


def _numbers(one: Line) -> list[str]:
    return [
        f"{one['predicted_seconds']:.3f} s",
        f"{one['measured_seconds']:.3f} s",
        f"{bias(one, 'seconds'):+.1%}",
        f"{one['noise']:.1%}",
        f"{one['predicted_bytes'] / MIB:.2f} MiB",
        f"{one['measured_bytes'] / MIB:.2f} MiB",
        f"{bias(one, 'bytes'):+.1%}",
    ]


_COLUMNS = ["time predicted", "measured", "bias", "noise", "peak predicted", "measured", "bias"]


def _points_table(lines: list[Line]) -> str:
    rows = []
    for one in lines:
        parameters = ", ".join(f"{name} {value}" for name, value in one["parameters"].items())
        strategy = one["strategy"] + ("" if one["in_range"] else " *")
        rows.append([one["cell"].partition("(")[0], f"{one['steps']:,}", strategy, parameters, *_numbers(one)])
    return table(["network", "T", "strategy", "parameters", *_COLUMNS], rows)


def _peers_table(lines: list[Line]) -> str:
    rows = []
    for one in lines:
        chunks = " / ".join(str(chunk) for chunk in one["chunks"])
        rows.append([one["network"], f"{one['steps']:,}", chunks, *_numbers(one)])
    return table(["network", "T", "chunk", *_COLUMNS], rows)
