"""Write docs/impure-cells.md anew: ``python -m tests.torch.impure``."""

from __future__ import annotations

import re
import warnings
from collections.abc import Iterator
from pathlib import Path

from tests.torch.impure import functions, gradients, losses, modules, randomness, spiking, statistics
from tests.torch.impure.cases import CASES, STEPS, Case
from tests.torch.impure.outcome import STRATEGIES, Outcome, run

PAGE = Path(__file__).parents[3] / "docs/impure-cells.md"
#: The families register their cases when they are imported, in this order.
FAMILIES = (modules, functions, spiking, gradients, randomness, statistics, losses)
#: Refusals that recur: a kind, what its message says of a place, and a pattern that finds the place.
KINDS = (
    ("memory", "changes in a step, and later steps read it", r"(?:^|: )([^:]+) changes? in a step\b"),
    ("iterator", "an iterator that steps read, which cannot be set back", r"takes values from (\S+),"),
    ("in place", "a parameter that a step changes, though steps run again", r"the parameter (\S+) in place"),
    ("outside", "computed outside, by this operation, with its own graph", r"computed outside \(by (\w+)\)"),
    ("other step", "holds a tensor with a graph of another step", r"\)\. (.+?)(?: and \d+ more)? holds?\b"),
    ("`no_grad`", "another result under `torch.no_grad()`, where steps run that run again later", r"no_grad"),
    ("random", "random numbers of a loss, which are not replayed when steps run again", r"draws random"),
)
_HEAD = f"""# Impure cells and losses, and what becomes of each

A cell and a loss must depend on their arguments alone, because steps run again. These do not, or seem not to. \
Each runs for {STEPS} steps under five plans ({", ".join(STRATEGIES)}), and its gradients are compared with \
those of a plain loop that starts from the same seeds: *right* means equal to 1e-9 in fp64, *refused* means an \
`InputError`. Strategies are named where they differ. None is different without a word. \
[What is checked](checks.md) says how, and what cannot be found.

The last column has the kind of the refusal and the place that its message names, or the beginning of a \
message of no such kind:

| kind | the place, in words of the message |
|---|---|
{chr(10).join(f"| {kind} | {told} |" for kind, told, _ in KINDS)}

`python -m tests.torch.impure` writes this page; `tests/torch/test_impure.py` runs every case.
"""


def page() -> str:
    """Return the page."""
    return "\n".join([_HEAD, *_rows()]) + "\n"


def _rows() -> Iterator[str]:
    heads = ("case", "what it does", "outcome", "refusal")
    for family in dict.fromkeys(one.family for one in CASES.values()):
        yield from ("", f"## {family[0].upper()}{family[1:]}", "")
        yield from (f"| {' | '.join(heads)} |", "|---" * len(heads) + "|")
        yield from (_row(name, one) for name, one in CASES.items() if one.family == family)


def _row(name: str, case: Case) -> str:
    outcomes = [run(case, strategy) for strategy in STRATEGIES]
    message = next((one.message for one in reversed(outcomes) if one.message), "")
    return f"| `{name}` | {case.what} | {_merge(outcomes)} | {_shorten(message)} |"


def _merge(outcomes: list[Outcome]) -> str:
    """Return what became of a case: a word, or the strategies behind each word if they differ."""
    of: dict[str, list[str]] = {}
    for strategy, one in zip(STRATEGIES, outcomes, strict=True):
        of.setdefault(one.kind, []).append(strategy)
    return next(iter(of)) if len(of) == 1 else "; ".join(f"{kind}: {', '.join(of[kind])}" for kind in of)


def read_outcome(name: str, strategy: str) -> str:
    """Return what the page says of a case under a strategy."""
    row = next(line for line in PAGE.read_text().splitlines() if line.startswith(f"| `{name}` |"))
    told = row.split(" | ")[2]
    groups = [group.partition(": ") for group in told.split("; ")]
    return next(kind for kind, _, names in groups if not names or strategy in names.split(", "))


def _shorten(message: str) -> str:
    """Return the kind of a message and its place, or its beginning, up to a colon after the field."""
    text = message.partition(" (accepted:")[0]
    for kind, _, pattern in KINDS:
        if found := re.search(pattern, text):
            return " ".join([kind, *(f"`{place}`" for place in found.groups())])
    field, _, rest = text.partition(": ")
    return f"{field}: {rest.partition(': ')[0]}".replace("|", r"\|") if rest else text


def main() -> None:
    """Write the page."""
    # PyTorch's compiler looks at the gradient of each state that it is called with.
    warnings.filterwarnings("ignore", message="The .grad attribute of a Tensor that is not a leaf")
    PAGE.write_text(page(), encoding="utf-8")


if __name__ == "__main__":
    main()
