"""Compares the optimum with an exhaustive search: python -m tests.recursion.against_search 400.

Problems are random. Costs of actions, the remote tier, and limits of remote memory are random, zero included.
"""

from __future__ import annotations

import sys
from math import inf
from random import Random

import pytest

from ckptplan.model.budget import Budget
from ckptplan.model.split import Where
from ckptplan.model.step_costs import StepCosts
from ckptplan.recursion.problem import Prices
from ckptplan.recursion.tables import Tables
from ckptplan.recursion.tree import Part, UnitSizes
from tests.recursion.exhaustive import Prices as SearchPrices
from tests.recursion.exhaustive import least_cost
from tests.support import ask


def random_case(seed: int, *, most: int) -> tuple[int, int, UnitSizes, SearchPrices]:
    """Steps, units, sizes and prices of a random problem; two in three have costs of actions."""
    random = Random(seed)  # noqa: S311 - no secret
    steps = most if seed % 4 == 0 else random.randint(1, most)
    state, tape = random.randint(1, 3), random.randint(1, 4)
    units = random.randint(tape, tape + 3 * state + random.randint(0, 4))
    forward, recompute = random.choice([1.0, 2.0]), random.choice([0.1, 0.5, 1.0, 2.5])
    write, read = random.choice([0.0, 0.3, 1.0, 2.0, 6.0]), random.choice([0.0, 0.2, 1.0, 3.0])
    a, k, s, back = (random.choice([0.0, 0.1, 0.4, 1.0, 2.5]) if seed % 3 else 0.0 for _ in range(4))
    prices = SearchPrices(units, state, tape, forward, recompute, write, read, a, k, s, back)
    return steps, units, UnitSizes(state, tape), prices


def charge(prices: SearchPrices) -> Prices:
    """The prices of a search as the recursions have them."""
    names = ("recompute", "write", "read", "advance", "chunk", "save", "load")
    return Prices(**{name: getattr(prices, name) for name in names})


def check_recursion(seed: int, *, most: int) -> bool:
    """Compare one random problem; return whether the recursion covers it, so that it is exact."""
    steps, units, sizes, prices = random_case(seed, most=most)
    expected = least_cost(steps, prices)
    paid = charge(prices)
    values = []
    for charged in (paid, paid.lowered(write=prices.write, read=prices.read)):
        tables = Tables(steps=steps, units=units, sizes=sizes, prices=charged)
        values.append(tables.value(Part(Where.UNSTORED, steps, units)) + steps * prices.forward)
    if paid.recursion_is_exact:
        assert values == [pytest.approx(expected, abs=1e-9)] * 2, seed
    assert values[1] - 1e-9 <= expected <= values[0] + 1e-9, seed
    return paid.recursion_is_exact


def check_plan(seed: int, *, most: int, workspace: int = 0) -> bool:
    """Compare the plan of a random problem; return whether it is proved to be the quickest.

    Half of the problems limit remote memory. The search is never above the plan's time, nor below its bound.
    Chunks of several steps need a ``workspace`` besides; single steps have all the memory, at a chunk each.
    """
    steps, units, sizes, prices = random_case(seed, most=most)
    room = None if seed % 2 else seed // 2 % 3
    prices = prices._replace(most_remote=inf if room is None else room)
    costs = StepCosts(
        steps=steps, state_bytes=sizes.state, tape_bytes=sizes.tape, remote_state_bytes=1,
        forward_seconds=prices.forward, backward_seconds=0.0, recompute_seconds=prices.recompute,
        write_seconds=prices.write, read_seconds=prices.read, advance_seconds=prices.advance,
        chunk_seconds=prices.chunk, save_seconds=prices.save, load_seconds=prices.load, chunk_bytes=workspace,
    )  # fmt: skip
    units += workspace // 2
    budget = Budget(local_bytes=units, remote_bytes=room)
    single = least_cost(steps, prices._replace(units=units, chunk=0.0)) + steps * prices.chunk
    # A sequence of one step has no longer chunk.
    several = least_cost(steps, prices._replace(units=units - workspace)) if steps > 1 else inf
    expected = min(single, several)
    answer = ask(costs=costs, budget=budget, strategies=("optimal",)).best()
    if answer is None:
        assert expected == inf, seed
        return True
    assert answer.least_seconds is not None
    assert answer.least_seconds - 1e-9 <= expected <= answer.key[0] + 1e-9, seed
    if room is None and charge(prices).recursion_is_exact:
        assert answer.key[0] == pytest.approx(expected, abs=1e-9), seed
    return answer.key[0] <= answer.least_seconds * (1 + 1e-9)


def main(problems: int) -> None:
    """Compare as many problems as are covered by the recursion, and count those that are proved."""
    covered = proved = seed = 0
    while covered < problems:
        covered += check_recursion(seed, most=5 if seed % 10 == 0 else 4)
        proved += check_plan(seed, most=4)
        seed += 1
    sys.stdout.write(
        f"{covered} of {seed} random problems are covered: the optimum equals the exhaustive search in each. "
        f"{seed} plans lie between their bound and the search, {proved} of them are proved.\n"
    )


if __name__ == "__main__":
    main(int(sys.argv[1]) if len(sys.argv) > 1 else 400)
