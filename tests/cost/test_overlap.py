"""The equations of docs/equations.md for transfers that overlap compute, evaluated as they are printed."""

import math
import re
from pathlib import Path
from random import Random
from typing import Any

import pytest

from ckptplan.model.record import Parameters
from ckptplan.model.step_costs import StepCosts
from ckptplan.strategies.closed_form import ClosedForm
from ckptplan.strategies.registry import all_strategies
from tests.support import changed, one_cost, plain_costs

SECTION = (
    (Path(__file__).parents[2] / "docs/equations.md").read_text().partition("## Transfers that overlap")[2]
)
TOTALS = dict(re.findall(r"^\| (m [=>] 1) \| (.*) \|$", SECTION, re.M))
CLOSED = {
    name: strategy
    for name, strategy in all_strategies().items()
    if isinstance(strategy, ClosedForm) and strategy.moves_states
}


def printed_terms() -> dict[str, dict[str, str]]:
    """The terms of each strategy: {'remote': {'gap': 'c f + a', ...}, ...}."""
    rows = [
        [cell.strip() for cell in line.strip("|").split("|")] for line in SECTION.splitlines() if "|" in line
    ]
    head = next(row for row in rows if "remote" in row)
    terms = [row for row in rows if len(row) == len(head) and row[0].isalnum()]
    return {
        name: {row[0]: row[place] for row in terms}
        for place, names in enumerate(head)
        for name in names.split(", ")
        if name
    }


def evaluate(formula: str, names: dict[str, Any]) -> float:
    """A printed formula; a space between two factors multiplies."""
    value: float = eval(re.sub(r"(?<=[\w)]) (?=[\w(])", " * ", formula), {"__builtins__": {}}, names)  # noqa: S307
    return value


def symbols(costs: StepCosts, *, chunk: int, segment: int, local: int) -> dict[str, Any]:
    """The letters of the page, by what the page says of them; those of messages are not among them."""
    steps, e = costs.steps, costs.recompute_seconds + costs.record_overhead_seconds + costs.backward_seconds
    chunks = math.ceil(steps / chunk)
    actions = costs.save_seconds + costs.advance_seconds + costs.load_seconds + costs.chunk_seconds
    return {
        "max": max, "ceil": math.ceil, "T": steps, "c": chunk, "rc": segment, "q": local, "n": chunks,
        "f": costs.forward_seconds, "r": costs.recompute_seconds, "o": costs.record_overhead_seconds,
        "b": costs.backward_seconds, "a": costs.advance_seconds, "k": costs.chunk_seconds,
        "s": costs.save_seconds, "l": costs.load_seconds, "e": e,
        "z": e - costs.recompute_seconds + costs.forward_seconds,
        "F": max(0, chunks - 1 - local), "c1": steps - (chunks - 1) * chunk,
        "L0": steps - (math.ceil(steps / segment) - 1) * segment,
        "g": lambda length: 2 * length - min(chunk, length),
        "u": lambda length: (math.ceil(length / chunk) - 1) * actions + costs.chunk_seconds,
    }  # fmt: skip


def printed_seconds(name: str, costs: StepCosts, names: dict[str, Any]) -> float | None:
    """The time of one batch by the page; None without messages."""
    terms = printed_terms()[name]
    messages = int(evaluate(terms["m"], names))
    batched, first = name == "hierarchical", names["L0"] if name == "double" else names["c1"]
    alone = names["F"] == 1 if batched else messages == 1
    states = names["q"] if batched else 1
    first_states = names["F"] - (messages - 1) * states if batched else 1
    whole, short = (costs.message_seconds + size * costs.write_seconds for size in (states, first_states))
    names = {
        **names, "m": messages, "q1": first_states, "W": whole, "R": whole, "W1": short, "R1": short,
        "x": max(0, names["c1"] + (first_states - 2) * names["c"]),
        "y": first if alone else names["rc" if name == "double" else "c"],
    }  # fmt: skip
    names |= {term: evaluate(formula, names) for term, formula in terms.items() if term != "m"}
    return evaluate(TOTALS["m > 1" if messages > 1 else "m = 1"], names) if messages else None


def test_each_strategy_with_transfers_has_its_equation() -> None:
    assert set(printed_terms()) == {"remote", "hierarchical", "double", "double-growing"}
    # Parts of two lengths have no table; their schedules are played (tests/laws/test_settings.py).
    assert set(CLOSED) - set(printed_terms()) == {"disk-revolve", "periodic"}


@pytest.mark.parametrize("name", ["remote", "hierarchical", "double"])
def test_the_printed_equations_are_those_that_are_evaluated(name: str) -> None:
    random = Random(1)  # noqa: S311 - no secret
    times = [
        "forward", "backward", "recompute", "record_overhead", "advance", "chunk", "save", "load", "message",
    ]  # fmt: skip
    compared = 0
    for _ in range(200):
        steps = random.randint(2, 40)
        segment = random.randint(1, min(16, steps))
        setting = {"chunk_size": random.randint(1, segment), "remote_chunk_size": segment}
        setting["nb_local"] = random.randint(1, 5)
        # Longer transfers are not hidden, whatever they carry.
        one_way = random.choice([1, 10]) * random.uniform(0, 3)
        costs = changed(
            plain_costs(steps, **{f"{each}_seconds": random.uniform(0, 3) for each in times}),
            write_seconds=one_way, read_seconds=one_way, overlaps_compute=True,
        )  # fmt: skip
        names = symbols(costs, chunk=setting["chunk_size"], segment=segment, local=setting["nb_local"])
        printed, strategy = printed_seconds(name, costs, names), CLOSED[name]
        parameters = Parameters({key: setting[key] for key in strategy.parameter_names})
        if printed is not None:
            assert printed == pytest.approx(one_cost(strategy, costs, parameters).seconds[0], rel=1e-9)
            compared += 1
    assert compared > 50
