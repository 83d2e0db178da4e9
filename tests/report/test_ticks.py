"""Ticks are round and keep their distance, whatever the range."""

from __future__ import annotations

from itertools import pairwise
from math import log

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ckptplan.report.ticks import byte_powers, byte_steps, round_decimal, round_ticks

pytestmark = pytest.mark.hypothesis
ranges = st.tuples(st.floats(1, 1e15), st.floats(1.001, 1e9)).map(lambda pair: (pair[0], pair[0] * pair[1]))


@given(ends=ranges, gap=st.floats(0.05, 2))
def test_ticks_lie_in_the_range_apart_from_each_other(ends: tuple[float, float], gap: float) -> None:
    for ticks in (
        round_ticks(*ends, place=log, gap=gap),
        round_ticks(*ends, place=log, gap=gap, roundest=round_decimal),
        byte_powers(*ends, place=log, gap=gap),
    ):
        assert ticks
        assert all(ends[0] <= tick <= ends[1] for tick in ticks)
        assert all(log(b) - log(a) >= gap * (1 - 1e-9) for a, b in pairwise(ticks))


@given(high=st.floats(0, 1e15), most=st.integers(2, 20))
def test_steps_of_bytes_begin_at_zero_and_are_powers_of_two(high: float, most: int) -> None:
    ticks = byte_steps(high, most=most)
    assert ticks[0] == 0
    assert len(ticks) <= most + 1
    if len(ticks) > 1:
        assert ticks[1].hex().startswith("0x1.0000000000000p")
        assert ticks == [ticks[1] * i for i in range(len(ticks))]


@pytest.mark.parametrize(
    ("ends", "value"),
    [((29, 45), 40), ((0.0212, 0.0289), 0.025), ((7.2, 7.9), 7.5), ((-1, 3), 0), ((99, 1020), 1000)],
)
def test_the_roundest_decimal_is_taken(ends: tuple[float, float], value: float) -> None:
    assert round_decimal(*ends) == pytest.approx(value)
