"""Measures a drawn figure: where its texts are, and what they touch."""

from __future__ import annotations

from itertools import combinations

import numpy as np
from matplotlib.axes import Axes
from matplotlib.axis import Axis
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.figure import Figure
from matplotlib.lines import Line2D
from matplotlib.text import Text
from matplotlib.transforms import Bbox

#: Pixels by which boxes of texts may overlap sideways.
_SLACK = 1.0


def list_texts(figure: Figure) -> dict[Text, Bbox]:
    """Return every text that is seen, with its box in pixels."""
    FigureCanvasAgg(figure)
    figure.draw_without_rendering()
    unseen = {label for ax in figure.axes for axis in (ax.xaxis, ax.yaxis) for label in _list_unseen(axis)}
    return {
        text: Text.get_window_extent(text)
        for text in figure.findobj(Text)
        if text.get_visible() and text.get_text().strip() and text not in unseen
        # Of axes that are switched off.
        if text.axes is None or text.axes.axison
    }


def _list_unseen(axis: Axis) -> list[Text]:
    """Return the labels of ticks beyond the ends of an axis."""
    low, high = sorted(axis.get_view_interval())
    room = 1e-9 * (high - low)
    beyond = [tick for tick in axis.get_major_ticks() if not low - room <= tick.get_loc() <= high + room]
    return [label for tick in beyond for label in (tick.label1, tick.label2)]


def list_words(figure: Figure) -> list[str]:
    """Return every text that is seen."""
    return [text.get_text() for text in list_texts(figure)]


def assert_legible(figure: Figure) -> None:
    """No text is cut off or covers another one, and no label within axes touches a line."""
    boxes = list_texts(figure)
    width, height = figure.get_size_inches() * figure.dpi
    for text, box in boxes.items():
        assert box.x0 > -1, text
        assert box.y0 > -1, text
        assert box.x1 < width + 1, text
        assert box.y1 < height + 1, text
    for (one, box), (other, its) in combinations(boxes.items(), 2):
        wide = min(box.x1, its.x1) - max(box.x0, its.x0)
        high = min(box.y1, its.y1) - max(box.y0, its.y0)
        # Boxes have room for letters that go below the line.
        covers = wide > _SLACK and high > 0.2 * min(box.height, its.height)
        assert not covers, (one.get_text(), other.get_text())


def find_crossings(ax: Axes, text: str) -> list[str]:
    """Return the colours of the lines that pass through a text of some axes."""
    [label] = [one for one in ax.texts if one.get_text() == text]
    box = Text.get_window_extent(label).shrunk(0.96, 0.96)
    lines = ((line, line.get_transform().transform_path(line.get_path())) for line in ax.lines)
    return [str(line.get_color()) for line, path in lines if path.intersects_bbox(box, filled=False)]


def read_points(line: Line2D) -> list[list[float]]:
    """Return the points of a line."""
    return np.asarray(line.get_xydata(), dtype=float).tolist()  # type: ignore[no-any-return]
