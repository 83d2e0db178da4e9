"""A plot is described once: the picture and the page have the same axes, marks and words."""

from __future__ import annotations

from matplotlib.figure import Figure

from ckptplan.report.marks import Marks, Plot, draw_plot, layer_plot
from ckptplan.report.scale import scale_bytes, scale_counts
from ckptplan.report.style import PAGE

ROWS = [{"x": 1.0, "y": 2048.0, "told": "a"}, {"x": 9.0, "y": 8192.0, "told": "b"}]
LINE = Marks(kind="line", rows=ROWS, label="a line", told={"told": "name"})


def test_a_picture_and_a_page_have_the_same_axes_and_marks() -> None:
    plot = Plot(x=scale_counts("steps", 0, 10, whole=True), y=scale_bytes("memory", 0, 10_000), marks=[LINE])
    axes = Figure().subplots()
    samples = draw_plot(axes, plot, PAGE)
    spec = layer_plot(plot, zooms=["x"])
    for name, ticks, title in (
        ("x", axes.get_xticks(), axes.get_xlabel()),
        ("y", axes.get_yticks(), axes.get_ylabel()),
    ):
        channel = spec["encoding"][name]
        assert channel["axis"]["values"] == list(ticks)
        assert channel["title"] == title
    [x, y] = samples["a line"].get_data()
    assert [(row["x"], row["y"]) for row in ROWS] == list(zip(x, y, strict=True))
    assert [{**row, "name": "a line"} for row in ROWS] == spec["layer"][0]["data"]["values"]
    assert [one for one in spec["layer"] if "params" in one] == spec["layer"][:1]


def test_rows_of_a_plot_have_names_from_the_top_down() -> None:
    bars = Marks(kind="bar", rows=[{"x": 3.0, "y": "second"}], words="x")
    plot = Plot(x=scale_counts("steps", 0, 10), y=["first", "second"], marks=[bars], title="two rows")
    axes = Figure().subplots()
    draw_plot(axes, plot, PAGE)
    [bar] = axes.patches
    assert round(bar.get_path().get_extents(bar.get_transform() - axes.transData).ymin + 0.5) == 1
    assert axes.get_title(loc="left") or axes.get_title() == "two rows"
    spec = layer_plot(plot)
    assert spec["title"] == "two rows"
    assert spec["encoding"]["y"]["scale"]["domain"] == ["first", "second"]
    assert [one["mark"]["type"] for one in spec["layer"]] == ["bar", "text"]


def test_whole_numbers_are_named_alone() -> None:
    assert list(scale_counts("steps", 0, 2, whole=True).ticks.values()) == ["0", "1", "2"]
    assert "0.5" in scale_counts("time", 0, 1).ticks.values()
