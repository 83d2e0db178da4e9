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
#: Rounds that spread by this share or more say little about a prediction.
NOISY = 0.05
_ACTIONS = ("advance", "chunk", "save", "load")
Line = dict[str, Any]


def bias(line: Line, what: str) -> float:
    """Return predicted over measured, less one."""
    return float(line[f"predicted_{what}"] / line[f"measured_{what}"] - 1)


def summary(results: Line) -> list[Line]:
    """Return the targets and the values that one run reached."""
    points, peers = results["points"], results["peers"]
    calm = [one for one in points if one["spread"] < NOISY]
    equal = sum(one["counted_equal"] for one in points)
    regrets = [one["regret"] for one in decisions(points)]
    return [
        {
            "what": f"plans whose counted checkpoints and tapes are equal to the byte, of {len(points)}",
            "bound": len(points),
            "reached": equal,
            "met": equal == len(points),
        },
        *_errors("plans", points, "bytes", "peak", median=0.02, worst=0.05),
        *_errors("plans whose rounds spread by less than 5%", calm, "seconds", "time", median=0.03, worst=0.10),
        _share("plans whose rounds spread by 5% or more", 1 - len(calm) / len(points), bound=0.1),
        _share(f"all {len(points)} plans, time, median", statistics.median(_errors_of(points, "seconds"))),
        _share(f"all {len(points)} plans, time, worst", max(_errors_of(points, "seconds"))),
        _share("the same at the machine's own pace, median", statistics.median(_raw_errors(points))),
        _share("the same at the machine's own pace, worst", max(_raw_errors(points))),
        *_errors("torch.utils.checkpoint", peers, "bytes", "peak", median=0.02, worst=0.05),
        *_errors("torch.utils.checkpoint", peers, "seconds", "time", median=0.03, worst=0.10),
        {
            "what": f"decision regret, the worst of {len(regrets)} decisions",
            "bound": 1.03,
            "reached": max(regrets),
            "met": max(regrets) <= 1.03,
        },
    ]


def _share(what: str, reached: float, *, bound: float | None = None) -> Line:
    return {"what": what, "bound": bound, "reached": reached, "met": bound is None or reached <= bound}


def _errors_of(lines: list[Line], what: str) -> list[float]:
    return [abs(bias(line, what)) for line in lines]


def _raw_errors(points: list[Line]) -> list[float]:
    return [abs(one["predicted_seconds"] / one["raw_seconds"] - 1) for one in points]


def _errors(
    name: str, lines: list[Line], what: str, shown: str, *, median: float, worst: float
) -> Iterable[Line]:
    shares = _errors_of(lines, what)
    yield _share(f"{name}, {shown}, median of {len(lines)}", statistics.median(shares), bound=median)
    yield _share(f"{name}, {shown}, worst of {len(lines)}", max(shares), bound=worst)
    yield _share(f"{name}, {shown}, mean signed bias", statistics.mean(bias(line, what) for line in lines))


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


def document(results: list[Line]) -> str:
    """Return the tables of all runs."""
    parts = [_conditions(results), _calibrations_table(results)]
    for number, one in enumerate(results, 1):
        parts += [f"### Run {number}: summary", _summary_table(one["summary"])]
    for number, one in enumerate(results, 1):
        parts += [f"### Run {number}: decisions", _decisions_table(decisions(one["points"]))]
    for number, one in enumerate(results, 1):
        parts += [
            f"### Run {number}: plans",
            "Spread is half the range between the quartiles of the rounds.",
            _points_table(one["points"]),
        ]
    for number, one in enumerate(results, 1):
        parts += [
            f"### Run {number}: torch.utils.checkpoint",
            "Non-reentrant. Two numbers are the outer and the inner chunk of nested checkpointing. Live "
            "bytes do not include parameters and inputs.",
            _peers_table(one["peers"]),
        ]
    return "\n\n".join(parts) + "\n"


def put_section(benchmark: str, text: str) -> None:
    """Write the results of a benchmark into the page, between its marks."""
    begin = f"<!-- benchmarks.{benchmark} -->\n"
    before, rest = PAGE.read_text().split(begin)
    PAGE.write_text(before + begin + text + END + rest.split(END, 1)[1])


def table(head: list[str], rows: Iterable[list[str]]) -> str:
    """Return a table of Markdown."""
    lines = ["| " + " | ".join(head) + " |", "|" + "---|" * len(head)]
    return "\n".join([*lines, *("| " + " | ".join(row) + " |" for row in rows)])


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
        f"{one['spread']:.1%}",
        f"{one['predicted_bytes'] / MIB:.2f} MiB",
        f"{one['measured_bytes'] / MIB:.2f} MiB",
        f"{bias(one, 'bytes'):+.1%}",
    ]


_COLUMNS = ["time predicted", "measured", "bias", "spread", "peak predicted", "measured", "bias"]


def _points_table(lines: list[Line]) -> str:
    rows = []
    for one in lines:
        parameters = ", ".join(f"{name} {value}" for name, value in one["parameters"].items())
        names = ", ".join((one["strategy"], *one["same"]))
        rows.append([one["cell"].partition("(")[0], f"{one['steps']:,}", names, parameters, *_numbers(one)])
    return table(["network", "T", "strategies", "parameters", *_COLUMNS], rows)


def _peers_table(lines: list[Line]) -> str:
    rows = []
    for one in lines:
        chunks = " / ".join(str(chunk) for chunk in one["chunks"])
        rows.append([one["network"], f"{one['steps']:,}", chunks, *_numbers(one)])
    return table(["network", "T", "chunk", *_COLUMNS], rows)
