"""Units that do not divide the sizes: up they keep the budget, down they bound, and little is lost."""

from math import inf

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ckptplan.recursion.problem import Prices, Problem
from ckptplan.recursion.solver import solve
from ckptplan.recursion.table_problem import choose_unit
from ckptplan.recursion.tables import Tables
from ckptplan.recursion.tree import UnitSizes


def round_sizes(state: int, tape: int, *, unit: int, down: bool) -> UnitSizes:
    if down:
        return UnitSizes(state // unit, tape // unit)
    job = Problem(
        steps=1, free_bytes=None, state_bytes=state, tape_bytes=tape, prices=Prices(recompute=1.0),
        least_write=inf, least_read=inf, unit_bytes=unit,
    )  # fmt: skip
    return job.sizes


def optimum(steps: int, units: int, sizes: UnitSizes, price: float) -> float:
    prices = Prices(recompute=1.0, write=price, read=price)
    tables = Tables(steps=steps, units=units, sizes=sizes, prices=prices)
    return float(tables.unstored[steps, units])


@given(
    steps=st.integers(1, 14), state=st.integers(1, 40), tape=st.integers(1, 40), more=st.integers(0, 200),
    unit=st.integers(1, 40), price=st.sampled_from([0.1, 1.0, 5.0, inf]),
)  # fmt: skip
def test_rounded_sizes_enclose_the_optimum_in_bytes(
    steps: int, state: int, tape: int, more: int, unit: int, price: float
) -> None:
    """What fits in bytes fits in units rounded down; what fits in units rounded up fits in bytes."""
    unit, total = min(unit, state, tape), tape + more
    exact = optimum(steps, total, UnitSizes(state, tape), price)
    below, above = (round_sizes(state, tape, unit=unit, down=down) for down in (True, False))
    assert optimum(steps, total // unit, below, price) <= exact + 1e-9
    assert exact <= optimum(steps, total // unit, above, price) + 1e-9


@pytest.mark.parametrize(("state", "tape"), [(100_000, 100_002), (513_516, 714_629), (960, 6_730)])
@pytest.mark.parametrize("down", [False, True])
def test_sizes_that_are_nearly_equal_lose_next_to_nothing(state: int, tape: int, down: bool) -> None:
    """A part of either size is looked at: whole states as units made a tape 0.002 % larger two of them."""
    for units in (30, 600):
        most, total = 60 * units, units * max(state, tape)
        lost, unit = choose_unit(state, tape, steps=1000, total=total, most_units=most, down=down)
        assert total // unit <= most
        assert lost < 0.02
        assert min(round_sizes(state, tape, unit=unit, down=down)[:2]) >= 1


def test_states_that_are_next_to_nothing_may_be_rounded_to_much_more() -> None:
    """A thousand of them take little even so, where units of their size would be beyond any table."""
    total = 30 * 9_999_991
    lost, unit = choose_unit(7, 9_999_991, steps=1000, total=total, most_units=6000, down=False)
    assert total // unit <= 6000
    assert lost < 0.3


@pytest.mark.parametrize(
    ("state", "tape", "budget", "gap"),
    [(9_973, 31_337, 200_000, 0.01), (31_337, 9_973, 200_000, 0.01), (100_000, 100_002, 3_000_030, 0.01)],
)
def test_a_rounded_plan_is_nearly_proved(state: int, tape: int, budget: int, gap: float) -> None:
    """T = 4,096, transfers of 10 steps: the bound was as far as 25 % below the plan."""
    found = solve(
        Problem(
            steps=4096, free_bytes=budget, state_bytes=state, tape_bytes=tape,
            prices=Prices(recompute=1.0, write=10.0, read=10.0), least_write=10.0, least_read=10.0,
        )
    )  # fmt: skip
    assert found is not None
    best = 3 * 4096 + min(candidate.extra for candidate in found.candidates)
    assert best * (1 - gap) <= 3 * 4096 + found.least_extra <= best
