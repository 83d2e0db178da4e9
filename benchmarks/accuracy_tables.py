"""Tables of the results of benchmarks, and the sections of docs/accuracy.md that hold them."""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path

from benchmarks.accuracy_errors import Line, bias

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
