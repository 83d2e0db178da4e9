"""Tables of the results of benchmarks, and the sections of docs/accuracy.md that hold them."""

from __future__ import annotations

import re
import statistics
from collections import defaultdict
from collections.abc import Iterable, Mapping
from pathlib import Path

from benchmarks.accuracy_errors import MOST_REGRET, NOISY, PEAK, TIME, Line, bias, decisions, errors_of

PAGE = Path(__file__).parent.parent / "docs/accuracy.md"
END = "<!-- end -->\n"
MIB = 2**20


def put_section(benchmark: str, text: str) -> None:
    """Write the results of a benchmark into the page, between its marks."""
    begin = f"<!-- benchmarks.{benchmark} -->\n"
    before, rest = PAGE.read_text().split(begin)
    PAGE.write_text(before + begin + text + END + rest.split(END, 1)[1])


def table(head: list[str], rows: Iterable[list[str]]) -> str:
    """Return a table of Markdown."""
    lines = ["| " + " | ".join(head) + " |", "|" + "---|" * len(head)]
    return "\n".join([*lines, *("| " + " | ".join(row) + " |" for row in rows)])


def summary_table(lines: list[Line]) -> str:
    """Return the targets as a table."""
    return table(
        ["what", "bound", "reached"],
        (
            [one["what"], _bound_text(one), _reached_text(one) + ("" if one["met"] else " (missed)")]
            for one in lines
        ),
    )


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


def decisions_table(lines: list[Line]) -> str:
    """Return the regrets as a table."""
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


def number_cells(one: Line) -> list[str]:
    """Return the cells of predicted and measured time and peak; their titles are ``NUMBER_COLUMNS``."""
    return [
        f"{one['predicted_seconds']:.3f} s",
        f"{one['measured_seconds']:.3f} s",
        f"{bias(one, 'seconds'):+.1%}",
        f"{one['spread']:.1%}",
        f"{one['predicted_bytes'] / MIB:.2f} MiB",
        f"{one['measured_bytes'] / MIB:.2f} MiB",
        f"{bias(one, 'bytes'):+.1%}",
    ]


#: The titles of the cells of ``number_cells``.
NUMBER_COLUMNS = ["time predicted", "measured", "bias", "spread", "peak predicted", "measured", "bias"]


def points_table(lines: list[Line]) -> str:
    """Return the plans as a table."""
    rows = []
    for one in lines:
        parameters = ", ".join(f"{name} {value}" for name, value in one["parameters"].items())
        names = ", ".join((one["strategy"], *one["same"]))
        rows.append([one["cell"].partition("(")[0], f"{one['steps']:,}", names, parameters, *number_cells(one)])
    return table(["network", "T", "strategies", "parameters", *NUMBER_COLUMNS], rows)


def digest(
    runs: list[list[Line]], summaries: list[list[Line]], peers: Mapping[str, list[list[Line]]] | None = None
) -> str:
    """Return what a page shows of one or more runs: a row a family, and all that is beyond its bound.

    Arguments:
        runs: the plans of each run.
        summaries: the targets of each run.
        peers: what was measured beside plans, by name, for each run.
    """
    lines = [_labelled(one, number, runs) for number, points in enumerate(runs, 1) for one in points]
    for name, found in (peers or {}).items():
        lines += [
            _labelled({**one, "peer": name}, number, runs) for number, run in enumerate(found, 1) for one in run
        ]
    return "\n\n".join(
        [
            families_table(lines),
            f"Missed{_runs_text(runs)}, bounds in brackets: {_missed_text(summaries)}.",
            f"Every row off by more than {TIME[1]:.0%} in time, or {PEAK[1]:.0%} where the peak is named:",
            beyond_list(lines),
            f"Every regret above {MOST_REGRET}: {_regrets_text(runs)}.",
        ]
    )


def families_table(lines: list[Line]) -> str:
    """Return a row for all plans, each network, each strategy and each peer."""
    groups: dict[str, list[Line]] = {"all plans": [one for one in lines if "peer" not in one]}
    for name in (_network, _strategy):
        for one in groups["all plans"]:
            groups.setdefault(name(one), []).append(one)
    for one in lines:
        if "peer" in one:
            groups.setdefault(_strategy(one), []).append(one)
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


def _labelled(one: Line, number: int, runs: list[list[Line]]) -> Line:
    """Return a line that knows its run, if there are several."""
    return {**one, "run": f"run {number} " if len(runs) > 1 else ""}


def _runs_text(runs: list[list[Line]]) -> str:
    return f" ({', '.join(f'run {number}' for number in range(1, len(runs) + 1))})" if len(runs) > 1 else ""


def _network(one: Line) -> str:
    return str(one["network"] if "peer" in one else one["cell"].partition("(")[0])


def _strategy(one: Line) -> str:
    return f"`{one.get('peer') or one['strategy']}`"


def _place(one: Line) -> str:
    if "peer" in one:
        return f"{one['steps']:,} steps, chunk {' / '.join(map(str, one['chunks']))}"
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
