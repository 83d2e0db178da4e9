"""Plots are described once: pages and pictures have the same axes and marks.

Ticks of axes are round and in their range, whatever the range.
"""

from __future__ import annotations

import math
from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ckptplan.report.charts import Marks, Plot, layer_plot, scale_bytes, scale_counts, scale_shares
from ckptplan.report.picture import Picture

ranges = st.tuples(st.floats(1, 1e15), st.floats(1.001, 1e9)).map(lambda pair: (pair[0], pair[0] * pair[1]))
ROWS = [{"x": 1.0, "y": 2048.0, "told": "a"}, {"x": 9.0, "y": 8192.0, "told": "b"}]
LINE = Marks(kind="line", rows=ROWS, label="a line", told={"told": "name"})


def test_a_picture_and_a_page_have_the_same_axes_and_marks() -> None:
    plot = Plot(x=scale_counts("steps", 0, 10, whole=True), y=scale_bytes("memory", 0, 10_000), marks=[LINE])
    [drawn] = Picture(title=(), rows=[[plot]], heights=[1]).make_spec(400, 1)["vconcat"]
    spec = layer_plot(plot, zooms=["x"])
    assert spec["encoding"] == drawn["encoding"]
    for name in ("x", "y"):
        scale = getattr(plot, name)
        channel = spec["encoding"][name]
        assert channel["axis"]["values"] == list(scale.ticks)
        assert channel["title"] == scale.title
    # A page has points besides that nobody sees, for the pointer.
    seen = [one for one in spec["layer"] if one["mark"].get("opacity") != 0]
    assert [one["data"] for one in seen] == [one["data"] for one in drawn["layer"]]
    assert spec["layer"][0]["data"]["values"] == [{**row, "name": "a line"} for row in ROWS]
    assert [one for one in spec["layer"] if "params" in one] == spec["layer"][:1]


def test_rows_of_a_plot_have_names_from_the_top_down() -> None:
    bars = Marks(kind="bar", rows=[{"x": 3.0, "y": "second"}], words="x")
    plot = Plot(x=scale_counts("steps", 0, 10), y=["first", "second"], marks=[bars], title="two rows")
    spec = layer_plot(plot)
    assert spec["title"] == "two rows"
    assert spec["encoding"]["y"]["scale"]["domain"] == ["first", "second"]
    assert [one["mark"]["type"] for one in spec["layer"]] == ["bar", "text"]


def test_whole_numbers_are_named_alone() -> None:
    assert list(scale_counts("steps", 0, 2, whole=True).ticks.values()) == ["0", "1", "2"]
    assert "0.5" in scale_counts("time", 0, 1).ticks.values()


@pytest.mark.hypothesis
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


@pytest.mark.hypothesis
@given(high=st.floats(1e-4, 1e6), low=st.floats(-1, 0))
def test_shares_are_round_and_begin_at_nothing(high: float, low: float) -> None:
    for wide in (False, True):
        ticks = scale_shares("", low, high, wide=wide).ticks
        assert ticks[0] == "0"
        assert all(low <= tick <= high for tick in ticks)
        assert all(len(name.strip("+-0. %").replace(",", "").replace("0", "")) < 4 for name in ticks.values())
