"""The pictures of the paper's figures: their curves, budgets and points that do not fit."""

from pathlib import Path

import numpy as np
import pytest

from ckptplan.paper.figures import FIGURES
from ckptplan.paper.pictures import draw_figure
from ckptplan.paper.setting import load_paper_setting
from ckptplan.report.picture import SIZES
from ckptplan.report.plots.figures import save_figure

PAPER = load_paper_setting()


@pytest.mark.parametrize("number", FIGURES)
@pytest.mark.parametrize("size", ["column", "page"])
def test_each_panel_has_its_curves_and_the_legend_names_them(number: int, size: str) -> None:
    content = FIGURES[number](PAPER)
    figure = draw_figure(content, SIZES[size])
    [legend] = figure.legends
    names = [text.get_text() for text in legend.get_texts()]
    assert len(set(names)) == len(names)
    for panel, ax in zip(content.panels, figure.axes, strict=True):
        assert ax.get_title(loc="left").replace("\n", " ") == panel.title
        curves = {str(line.get_label()): line for line in ax.lines}
        for series in panel.series:
            assert len(np.asarray(curves[series.label].get_xdata())) == len(series.points)
            assert series.label in names
        assert ("budget: 624 KiB" in curves) == (panel.y == "local_peak_bytes")
        assert len(ax.patches) == (panel.advised is not None)


@pytest.mark.parametrize("number", [4, 5])
def test_points_that_do_not_fit_are_hollow(number: int) -> None:
    content = FIGURES[number](PAPER)
    figure = draw_figure(content)
    assert "hollow: over 624 KiB" in figure.get_suptitle()
    for panel, ax in zip(content.panels, figure.axes, strict=True):
        hollow = [line for line in ax.lines if line.get_markerfacecolor() == "white"]
        expected = len([point for point in panel.points if not point.fits])
        assert sum(len(np.asarray(line.get_xdata())) for line in hollow) == expected


def test_a_png_is_small_and_the_same_twice(tmp_path: Path) -> None:
    paths = [tmp_path / name for name in ("one.png", "two.png")]
    for path in paths:
        save_figure(draw_figure(FIGURES[5](PAPER)), str(path))
    contents = [path.read_bytes() for path in paths]
    assert contents[0].startswith(b"\x89PNG")
    assert len(contents[0]) < 250_000
    assert contents[0] == contents[1]
