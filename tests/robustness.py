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
from typing import Any

from benchmarks.harness import DOCS, RESULTS, list_tables
from tests.fuzz.report import format_page

PAGE = DOCS / "robustness.md"


def tables() -> dict[str, str]:
    """Return the tables of the page, by the name of their marks."""
    return {"fuzz": format_page(_read("fuzz")), "faults": describe_commands(_read("faults"))}


def describe_commands(counts: Sequence[Mapping[str, Any]]) -> str:
    """Return counts as a paragraph of the page; what was wrong has its command and fault."""
    *lines, total = counts
    wrong = ", ".join(f"{line['command']} {line['wrong']} {line['fault']}" for line in lines if line["wrong"])
    return (
        f"{total['runs']} runs of {len({line['command'] for line in lines})} commands: {total['absent']} "
        f"absent, {total['old']} old, {total['new']} new, {total['rows']} rows; {total['left']} left a file "
        f"until the next run. Wrong: {wrong or 'none'}."
    )


def _read(name: str) -> Any:
    return json.loads((RESULTS / f"{name}.json").read_text())


def main() -> None:
    """Write the page, or print all counts."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--show", action="store_true", help="print all counts and write nothing")
    if parser.parse_args().show:
        counts = {name: _read(name) for name in ("fuzz", "faults")}
        sys.stdout.write("\n\n".join(list_tables(counts)) + "\n")
        return
    page = PAGE.read_text()
    for name, table in tables().items():
        page = re.sub(rf"(<!-- {name} -->\n).*?(<!-- end -->)", rf"\g<1>{table}\n\g<2>", page, flags=re.DOTALL)
    PAGE.write_text(page)


if __name__ == "__main__":
    main()
