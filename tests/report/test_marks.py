"""Plots are described once: pages and pictures have the same axes and marks."""

from __future__ import annotations

from ckptplan.report.marks import Marks, Plot, layer_plot
from ckptplan.report.picture import Picture
from ckptplan.report.scale import scale_bytes, scale_counts

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
