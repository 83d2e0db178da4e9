"""Ticks of axes are round and in their range, whatever the range."""

from __future__ import annotations

import math
from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ckptplan.report.scale import scale_bytes, scale_shares

pytestmark = pytest.mark.hypothesis
ranges = st.tuples(st.floats(1, 1e15), st.floats(1.001, 1e9)).map(lambda pair: (pair[0], pair[0] * pair[1]))


@given(ends=ranges)
def test_sizes_are_multiples_of_powers_of_two(ends: tuple[float, float]) -> None:
    powers = math.floor(math.log2(ends[1])) - math.ceil(math.log2(ends[0])) + 1
    for log in (False, True):
        ticks = list(scale_bytes("", *ends, log=log).ticks)
        assert all(ends[0] <= tick <= ends[1] for tick in ticks)
        assert len(ticks) <= 16
        # Where a range has a single power of two, its ticks are at equal steps.
        geometric = log and powers > 1
        steps = {round(high / low if geometric else high - low, 9) for low, high in pairwise(ticks)}
        assert len(steps) <= 1
        assert all(step.hex().startswith("0x1.0000000000000p") for step in steps)


@given(high=st.floats(1e-4, 1e6), low=st.floats(-1, 0))
def test_shares_are_round_and_begin_at_nothing(high: float, low: float) -> None:
    for wide in (False, True):
        ticks = scale_shares("", low, high, wide=wide).ticks
        assert ticks[0] == "0"
        assert all(low <= tick <= high for tick in ticks)
        assert all(len(name.strip("+-0. %").replace(",", "").replace("0", "")) < 4 for name in ticks.values())
