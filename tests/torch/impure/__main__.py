"""Write docs/impure-cells.md: ``python -m tests.torch.impure``."""

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
from tests.torch.impure.outcome import STRATEGIES, run

PAGE = Path(__file__).parents[3] / "docs/impure-cells.md"
#: The families register their cases when they are imported, in this order.
FAMILIES = (modules, functions, spiking, gradients, randomness, statistics, losses, records, world, between)
_HEAD = f"""# Impure cells and losses, and what becomes of each

These cells and losses depend on more than their arguments. Each runs for {STEPS} steps under five plans \
({", ".join(STRATEGIES)}). Its gradients are compared with those of a plain loop that starts from the same \
seeds: *right* means equal to 1e-9 in fp64 under every plan. *Refused* means that `base`, which runs each \
step once, is right, and that the other plans raise an `InputError`, whose message follows. No case gives \
wrong gradients silently ([what steps may keep](runtime.md#what-steps-may-keep)).

`python -m tests.torch.impure` writes this page; `tests/torch/test_impure.py` runs every case.
"""


def make_page() -> str:
    """Return the page."""
    return "\n".join([_HEAD, *_list_lines()]) + "\n"


def _list_lines() -> Iterator[str]:
    heads = ("case", "what it does", "outcome")
    for family in dict.fromkeys(case.family for case in CASES.values()):
        yield from ("", f"## {family[0].upper()}{family[1:]}", "")
        yield from (f"| {' | '.join(heads)} |", "|---" * len(heads) + "|")
        yield from (_make_row(name, case) for name, case in CASES.items() if case.family == family)


def _make_row(name: str, case: Case) -> str:
    return f"| `{name}` | {case.what} | {_describe(name, case)} |"


def _describe(name: str, case: Case) -> str:
    """Return what becomes of a case: right, or refused with the message."""
    outcomes = [run(case, strategy) for strategy in STRATEGIES]
    if any(outcome.kind == "different" for outcome in outcomes[name == WITHOUT_REFERENCE :]):
        raise ValueError(f"{name} gives wrong gradients silently")
    messages = [shorten(outcome.message) for outcome in outcomes if outcome.kind == "refused"]
    return f"refused: {messages[-1]}" if messages else "right"


#: It draws numbers that no two loops share, so that base cannot be compared with a plain loop.
WITHOUT_REFERENCE = "system_random"


def shorten(message: str) -> str:
    """Return the first sentence of a message, with N for each number."""
    sentence = message.partition(" (accepted:")[0].partition(". ")[0].partition(" (")[0]
    return re.sub(r"\d+(\.\d+)?(e-\d+)?", "N", sentence).replace("|", r"\|")


def main() -> None:
    """Write the page."""
    # PyTorch's compiler looks at the gradient of each state that it is called with.
    warnings.filterwarnings("ignore", message="The .grad attribute of a Tensor that is not a leaf")
    PAGE.write_text(make_page(), encoding="utf-8")


if __name__ == "__main__":
    main()
