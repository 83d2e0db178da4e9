"""Write the tables of docs/runtime-cells.md: ``python -m tests.torch.impure``.

``--show`` prints a row for each case.
"""

from __future__ import annotations

import re
import sys
import warnings
from collections.abc import Iterable, Sequence
from pathlib import Path

from tests.torch.impure.cases import CASES, Case, run
from tests.torch.tables import STRATEGIES

PAGE = Path(__file__).parents[3] / "docs/runtime-cells.md"
BEGIN, END = "<!-- impure -->\n", "<!-- end -->\n"


def make_section() -> str:
    """Return the part of the page between its marks: the number of cases, and the refused ones by message."""
    outcomes = {name: _describe(name, case) for name, case in CASES.items()}
    refused = {name: outcome for name, outcome in outcomes.items() if outcome != "right"}
    families = {case.family for case in CASES.values()}
    groups: dict[str, list[str]] = {}
    for name, outcome in refused.items():
        groups.setdefault(outcome.removeprefix("refused: "), []).append(f"`{name}` ({CASES[name].what})")
    lines = [f"- {message}: {'; '.join(names)}" for message, names in groups.items()]
    return "\n".join(
        [f"{len(CASES)} cases of {len(families)} families, {len(refused)} of them refused:", "", *lines, ""]
    )


def _tabulate(head: Sequence[str], rows: Iterable[Sequence[str]]) -> list[str]:
    return [f"| {' | '.join(head)} |", "|---" * len(head) + "|", *(f"| {' | '.join(row)} |" for row in rows)]


def _describe(name: str, case: Case) -> str:
    """Return what becomes of a case: right, or refused with the message."""
    outcomes = [*run(case, STRATEGIES).values()]
    if any(outcome.kind == "different" for outcome in outcomes[name == WITHOUT_REFERENCE :]):
        raise ValueError(f"{name} gives wrong gradients silently")
    messages = [shorten(outcome.message) for outcome in outcomes if outcome.kind == "refused"]
    return f"refused: {messages[-1]}" if messages else "right"


#: It draws numbers that no two loops share, so that base cannot be compared with a plain loop.
WITHOUT_REFERENCE = "system_random"


def shorten(message: str) -> str:
    """Return the first sentence of a message up to its relative clause, with N for each number."""
    sentence = (
        message.partition(" (accepted:")[0].partition(". ")[0].partition(" (")[0].partition(", which ")[0]
    )
    return re.sub(r"\d+(\.\d+)?(e-\d+)?", "N", sentence).replace("|", r"\|")


def main() -> None:
    """Write the section of the page, or print all cases."""
    # PyTorch's compiler looks at the gradient of each state that it is called with.
    warnings.filterwarnings("ignore", message="The .grad attribute of a Tensor that is not a leaf")
    if sys.argv[1:] == ["--show"]:
        rows = [(f"`{name}`", case.family, case.what, _describe(name, case)) for name, case in CASES.items()]
        sys.stdout.write("\n".join(_tabulate(("case", "family", "what it does", "outcome"), rows)) + "\n")
        return
    before, rest = PAGE.read_text(encoding="utf-8").split(BEGIN)
    PAGE.write_text(f"{before}{BEGIN}{make_section()}{END}{rest.split(END, 1)[1]}", encoding="utf-8")


if __name__ == "__main__":
    main()
