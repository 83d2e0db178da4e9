"""Put the counts of both commands into docs/robustness.md: ``python -m tests.robustness``.

They are what ``python -m tests.fuzz -o`` and ``python -m tests.faults -o`` wrote into benchmarks/results.
"""

from __future__ import annotations

import json
import re
from pathlib import Path

from tests.faults import format_counts
from tests.fuzz.report import format_summary

ROOT = Path(__file__).parent.parent
PAGE = ROOT / "docs/robustness.md"


def tables() -> dict[str, str]:
    """Return the tables of the page, by the name of their marks."""
    results = ROOT / "benchmarks/results"
    return {
        "fuzz": format_summary(json.loads((results / "fuzz.json").read_text())),
        "faults": format_counts(json.loads((results / "faults.json").read_text())),
    }


def main() -> None:
    """Write the page."""
    page = PAGE.read_text()
    for name, table in tables().items():
        page = re.sub(rf"(<!-- {name} -->\n).*?(<!-- end -->)", rf"\g<1>{table}\n\g<2>", page, flags=re.DOTALL)
    PAGE.write_text(page)


if __name__ == "__main__":
    main()
