"""Write docs/impure-cells.md anew: ``python -m tests.torch.impure``."""

from __future__ import annotations

import re
import warnings
from collections.abc import Iterator
from pathlib import Path

from tests.torch.impure import (
    between,
    functions,
    gradients,
    losses,
    modules,
    randomness,
    records,
    spiking,
    statistics,
    world,
)
from tests.torch.impure.cases import CASES, STEPS, Case
from tests.torch.impure.outcome import STRATEGIES, Outcome, run

PAGE = Path(__file__).parents[3] / "docs/impure-cells.md"
#: The families register their cases when they are imported, in this order.
FAMILIES = (modules, functions, spiking, gradients, randomness, statistics, losses, records, world, between)
#: Refusals that recur: a kind, what its message says of a place, and a pattern that finds the place.
KINDS = (
    ("memory", "changes in a step, and later steps read it", r"(?:^|: )([^:]+) changes? in a step\b"),
    ("iterator", "an iterator that steps read, which cannot be set back", r"takes values from (\S+),"),
    ("in place", "a parameter that a step changes, though steps run again", r"the parameter (\S+) in place"),
    ("outside", "computed outside, by this operation, with its own graph", r"computed outside \(by (\w+)\)"),
    ("other step", "holds a tensor with a graph of another step", r"\)\. (.+?)(?: and \d+ more)? holds?\b"),
    ("no_grad", "another result under `torch.no_grad()`, where steps run that run again later", r"no_grad"),
    ("record", "another gradient under a plan than in a plain loop", r"something else under a plan"),
    (
        "unfound",
        "another result when steps ran again, by something that cannot be found",
        r"returned another result when its (?:first )?steps? ran again",
    ),
    ("hook", "a hook of a module was added or removed between the passes", r"a hook of a module was"),
    ("mode", "`train()` or `eval()` was called between the passes", r"train\(\) or eval\(\) was called"),
    ("between", "changed between the forward and the backward pass", r"(?:^|: )([^:]+) changed between the"),
    ("random", "random numbers of a loss, which are not replayed when steps run again", r"draws random"),
)
_HEAD = f"""# Impure cells and losses, and what becomes of each

These cells and losses depend on more than their arguments, or seem to. Each runs for {STEPS} steps under \
five plans ({", ".join(STRATEGIES)}), and its gradients are compared with those of a plain loop that \
starts from the same seeds: *right* means equal to 1e-9 in fp64. All others are refused with an \
`InputError`: the last column has the kind of the refusal and the place that its message names, or how \
the message begins. *Else*: right under base, which runs each step once, and refused under the others. \
None is different without a word \
([what is checked](checks.md)).

| kind | the place, in words of the message |
|---|---|
{chr(10).join(f"| {kind} | {told} |" for kind, told, _ in KINDS)}

`python -m tests.torch.impure` writes this page; `tests/torch/test_impure.py` runs every case.
"""


def page() -> str:
    """Return the page."""
    return "\n".join([_HEAD, *_rows()]) + "\n"


def _rows() -> Iterator[str]:
    heads = ("case", "what it does", "outcome")
    for family in dict.fromkeys(one.family for one in CASES.values()):
        yield from ("", f"## {family[0].upper()}{family[1:]}", "")
        yield from (f"| {' | '.join(heads)} |", "|---" * len(heads) + "|")
        yield from (_row(name, one) for name, one in CASES.items() if one.family == family)


def _row(name: str, case: Case) -> str:
    return f"| `{name}` | {case.what} | {_merge([run(case, strategy) for strategy in STRATEGIES])} |"


def _merge(outcomes: list[Outcome]) -> str:
    """Return what became of a case: right, its refusal, or 'else' and its refusal where base is right."""
    if any(one.kind == "different" for one in outcomes):
        raise ValueError("a case is different without a word")
    right = [strategy for strategy, one in zip(STRATEGIES, outcomes, strict=True) if one.kind == "right"]
    if len(right) == len(STRATEGIES):
        return "right"
    if right not in ([], ["base"]):
        raise ValueError(f"a case is right under {right} alone")
    refusal = shorten(next(one.message for one in reversed(outcomes) if one.message))
    return f"else {refusal}" if right else refusal


def read_outcome(name: str, strategy: str) -> Outcome:
    """Return what the page says of a case under a strategy, with the refusal as the page has it."""
    row = next(line for line in PAGE.read_text().splitlines() if line.startswith(f"| `{name}` |"))
    told = row.removesuffix(" |").split(" | ")[2]
    if told == "right" or (told.startswith("else ") and strategy == "base"):
        return Outcome("right")
    return Outcome("refused", told.removeprefix("else "))


def shorten(message: str) -> str:
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
