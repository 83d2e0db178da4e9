"""The results of benchmarks of accuracy: errors, regrets, targets, and the sections of docs/accuracy.md."""

from __future__ import annotations

import re
import statistics
from collections import defaultdict
from collections.abc import Iterable
from typing import Any

from benchmarks.harness import MIB, table

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


def _bound_text(one: Line) -> str:
    bound = one["bound"]
    return "" if bound is None else f"{bound:.0%}" if isinstance(bound, float) and bound <= 1 else f"{bound}"


def _reached_text(one: Line) -> str:
    if isinstance(one["bound"], int):
        return f"{one['reached']}"
    if one["bound"] is not None and one["bound"] > 1:
        return f"{one['reached']:.3f}"
    return (
        f"{one['reached']:+.2%}" if one["bound"] is None and "bias" in one["what"] else f"{one['reached']:.2%}"
    )


def points_table(lines: list[Line]) -> str:
    """Return every plan as a row of a table."""
    rows = []
    for one in lines:
        parameters = ", ".join(f"{name} {value}" for name, value in one["parameters"].items())
        names = ", ".join((one["strategy"], *one["same"]))
        head = [one["cell"].partition("(")[0], f"{one['steps']:,}", names, parameters]
        rows.append([*head, *_list_numbers(one)])
    numbers = ["time predicted", "measured", "bias", "spread", "peak predicted", "measured", "bias"]
    return table(["network", "T", "strategies", "parameters", *numbers], rows)


def _list_numbers(one: Line) -> list[str]:
    return [
        f"{one['predicted_seconds']:.3f} s",
        f"{one['measured_seconds']:.3f} s",
        f"{bias(one, 'seconds'):+.1%}",
        f"{one['spread']:.1%}",
        f"{one['predicted_bytes'] / MIB:.2f} MiB",
        f"{one['measured_bytes'] / MIB:.2f} MiB",
        f"{bias(one, 'bytes'):+.1%}",
    ]


def section(results: list[Line]) -> str:
    """Return a section of docs/accuracy.md: a row a family, and all that is beyond its bound in any run."""
    runs = [one["points"] for one in results]
    # A line knows its run, if there are several.
    lines = [
        {**one, "run": f"run {number} " if len(runs) > 1 else ""}
        for number, points in enumerate(runs, 1)
        for one in points
    ]
    beyond = beyond_list(lines)
    parts = [
        _describe(results),
        families_table(lines),
        f"Missed{_runs_text(runs)}, bounds in brackets: {_missed_text([one['summary'] for one in results])}.",
        f"Every row off by more than {TIME[1]:.0%} in time, or {PEAK[1]:.0%} where the peak is named:"
        + (f"\n\n{beyond}" if beyond else " none."),
        f"Every regret above {MOST_REGRET}: {_regrets_text(runs)}.",
    ]
    return "\n\n".join(parts) + "\n"


def families_table(lines: list[Line]) -> str:
    """Return a row for all plans, each network and each strategy."""
    groups = {"all plans": lines}
    for name in (_network, _strategy):
        for one in lines:
            groups.setdefault(name(one), []).append(one)
    head = ["family", "noisy", "time, median", "worst", "peak, worst"]
    return table(head, ([name, *_family_cells(found)] for name, found in groups.items()))


def _family_cells(lines: list[Line]) -> list[str]:
    noisy = sum(one["spread"] >= NOISY for one in lines)
    worst = [max((bias(one, what) for one in lines), key=abs) for what in ("seconds", "bytes")]
    median = statistics.median(errors_of(lines, "seconds"))
    return [f"{noisy}/{len(lines)}", f"{median:.1%}", *(f"{one:+.1%}" for one in worst)]


def beyond_list(lines: list[Line]) -> str:
    """Return every line whose time or peak is beyond its bound, noisy ones included, by family and place."""
    found: dict[str, dict[str, list[str]]] = defaultdict(lambda: defaultdict(list))
    for one in lines:
        off = [
            f"{word}{bias(one, what):+.1%}"
            for word, what, bound in (("", "seconds", TIME[1]), ("peak ", "bytes", PEAK[1]))
            if abs(bias(one, what)) > bound
        ]
        if off:
            noisy = " (noisy)" if one["spread"] >= NOISY else ""
            family = f"{_network(one)}, {_strategy(one)}"
            found[family][_place(one)].append(f"{one['run']}{', '.join(off)}{noisy}")
    return "\n".join(
        f"- {family}: " + "; ".join(f"{place}: {', '.join(texts)}" for place, texts in places.items())
        for family, places in found.items()
    )


def _runs_text(runs: list[list[Line]]) -> str:
    return f" ({', '.join(f'run {number}' for number in range(1, len(runs) + 1))})" if len(runs) > 1 else ""


def _network(one: Line) -> str:
    return str(one["cell"].partition("(")[0])


def _strategy(one: Line) -> str:
    return f"`{one['strategy']}`"


def _place(one: Line) -> str:
    # Base fits none of the budgets.
    budget = "" if one["strategy"] == "base" else f", {one['budget_bytes'] / MIB:.1f} MiB"
    return f"{one['steps']:,} steps{budget}"


def _missed_text(summaries: list[list[Line]]) -> str:
    """Return the bounds that any run missed, with what each run reached."""
    texts = []
    for lines in zip(*summaries, strict=True):
        if not all(one["met"] for one in lines):
            reached = ", ".join(_reached_text(one) for one in lines)
            # How many plans are calm differs between runs.
            what = re.sub(r" of \d+$", "", lines[0]["what"]) if len(lines) > 1 else lines[0]["what"]
            texts.append(f"{what}: {reached} ({_bound_text(lines[0])})")
    return "; ".join(texts) or "none"


def _regrets_text(runs: list[list[Line]]) -> str:
    texts = []
    for number, points in enumerate(runs, 1):
        found: dict[str, list[str]] = defaultdict(list)
        for one in decisions(points):
            if one["regret"] > MOST_REGRET:
                found[_network(one)].append(f"{one['regret']:.3f}")
        networks = "; ".join(f"{network} {', '.join(regrets)}" for network, regrets in found.items())
        texts.append((f"run {number}: " if len(runs) > 1 else "") + (networks or "none"))
    return ". ".join(text[0].upper() + text[1:] if number else text for number, text in enumerate(texts))


def summarise(results: Line) -> list[Line]:
    """Return the targets and the values that one run reached."""
    points = results["points"]
    return [
        *plan_lines(points, counted="counted bytes of checkpoints and tapes"),
        regret_line(points),
    ]


def _describe(results: list[Line]) -> str:
    first = results[0]["calibrations"][0]
    found = first["calibration"]
    framework = f"JAX {found['jax']}" if found.get("jax") else f"PyTorch {found['torch']}"
    command = "python -m benchmarks.accuracy" + (" jax" if found.get("jax") else "")
    runs = "One run" if len(results) == 1 else f"{len(results)} runs"
    without = sorted({one["strategy"] for run in results for one in run["without"]} - {"base"})
    missing = f" No plan fits some of the budgets: {', '.join(without)}." if without else ""
    return (
        f"`{command}` on {found['machine']}, one thread, {framework}, {found['date'][:10]}; batch "
        f"{first['batch']}. {runs} that calibrated the networks and then ran in turn the best plan of every "
        f"strategy that fits the budget, and base. Medians of {found['clock']} at the pace of the calibration, "
        f"which a reference of 64 steps tells.{missing}"
    )
