"""Put the counts of both commands into docs/robustness.md: ``python -m tests.robustness``.

They are what ``python -m tests.fuzz -o`` and ``python -m tests.faults -o`` wrote into benchmarks/results. The
page has a paragraph for each; ``--show`` prints all counts.
"""

from __future__ import annotations

import argparse
import json
import re
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from tests.faults import format_counts
from tests.fuzz.report import format_page, format_summary

ROOT = Path(__file__).parent.parent
PAGE = ROOT / "docs/robustness.md"
RESULTS = ROOT / "benchmarks/results"


def tables() -> dict[str, str]:
    """Return the tables of the page, by the name of their marks."""
    return {"fuzz": format_page(_read("fuzz")), "faults": describe_commands(_read("faults"))}


def describe_commands(counts: Sequence[Mapping[str, Any]]) -> str:
    """Return counts as a paragraph of the page; what was wrong has its command and fault."""
    *lines, total = [line.strip("| ").split(" | ") for line in format_commands(counts).splitlines()[2:]]
    wrong = ", ".join(f"{line[0]} {line[7]}" for line in lines if line[7] != "0")
    return (
        f"{total[1]} runs of {len(lines)} commands: {total[2]} absent, {total[3]} old, {total[4]} new, "
        f"{total[5]} rows; {total[6]} left a file until the next run. Wrong: {wrong or 'none'}."
    )


def format_commands(counts: Sequence[Mapping[str, Any]]) -> str:
    """Return counts as a table with a row for each command; what was wrong has its fault."""
    columns = ("command", "runs", "absent", "old", "new", "rows", "left until the next run", "wrong")
    rows = []
    for command in dict.fromkeys(line["command"] for line in counts):
        lines = [line for line in counts if line["command"] == command]
        sums = [sum(line[name] for line in lines) for name in ("runs", "absent", "old", "new", "rows", "left")]
        wrong = ", ".join(f"{line['wrong']} {line['fault']}".strip() for line in lines if line["wrong"])
        rows.append([command, *map(str, sums), wrong or "0"])
    head, *body = (f"| {' | '.join(row)} |" for row in [columns, *rows])
    return "\n".join([head, f"{'|---' * len(columns)}|", *body])


def _read(name: str) -> Any:
    return json.loads((RESULTS / f"{name}.json").read_text())


def main() -> None:
    """Write the page, or print all counts."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--show", action="store_true", help="print all counts and write nothing")
    if parser.parse_args().show:
        sys.stdout.write(f"{format_summary(_read('fuzz'))}\n\n{format_counts(_read('faults'))}\n")
        return
    page = PAGE.read_text()
    for name, table in tables().items():
        page = re.sub(rf"(<!-- {name} -->\n).*?(<!-- end -->)", rf"\g<1>{table}\n\g<2>", page, flags=re.DOTALL)
    PAGE.write_text(page)


if __name__ == "__main__":
    main()
