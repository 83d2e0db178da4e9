"""Measures a drawn figure: where its texts are, and what they touch."""

from __future__ import annotations

from itertools import combinations
from typing import Any

from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.figure import Figure
from matplotlib.text import Text
from matplotlib.transforms import Bbox


def texts_of(figure: Figure) -> list[Text]:
    """Return every text that is seen, after drawing the figure."""
    FigureCanvasAgg(figure).draw()  # type: ignore[no-untyped-call]
    found = [text for text in figure.findobj(Text) if text.get_visible() and text.get_text().strip()]
    hidden = {id(label) for axes in figure.axes for label in _unused(axes)}
    return [text for text in found if id(text) not in hidden]


def _unused(axes: Any) -> list[Text]:
    """Return labels of ticks that lie beyond their axis, which matplotlib keeps and does not draw."""
    unused = []
    for axis, limits in ((axes.xaxis, axes.get_xlim()), (axes.yaxis, axes.get_ylim())):
        low, high = sorted(limits)
        margin = 1e-9 * max(abs(low), abs(high))
        seen = {tick for tick in axis.get_majorticklocs() if low - margin <= tick <= high + margin}
        for tick in (*axis.get_major_ticks(), *axis.get_minor_ticks()):
            if tick.get_loc() not in seen:
                unused += [tick.label1, tick.label2]
    return unused


def boxes_of(figure: Figure) -> dict[str, Bbox]:
    """Return the box of each text, numbered, in dots."""
    return {f"{i} {text.get_text()!r}": text.get_window_extent() for i, text in enumerate(texts_of(figure))}


def outside(figure: Figure) -> list[str]:
    """Return the texts that reach out of the figure."""
    frame = figure.bbox.padded(0.5)
    return [
        name
        for name, box in boxes_of(figure).items()
        if box.x0 < frame.x0 or box.y0 < frame.y0 or box.x1 > frame.x1 or box.y1 > frame.y1
    ]


def overlapping(figure: Figure) -> list[tuple[str, str]]:
    """Return pairs of texts of which one covers a part of the other."""
    return [
        (one, other)
        for (one, mine), (other, others) in combinations(boxes_of(figure).items(), 2)
        if min(mine.x1, others.x1) - max(mine.x0, others.x0) > 0.5
        and min(mine.y1, others.y1) - max(mine.y0, others.y0) > 0.5
    ]


def over_an_axis(figure: Figure) -> list[str]:
    """Return the texts within the frame of a plot that reach over its border."""
    crossing = []
    for axes in figure.axes:
        frame = axes.get_window_extent()
        for text in axes.texts:
            box = text.get_window_extent()
            touches = box.overlaps(frame)
            within = box.x0 >= frame.x0 and box.x1 <= frame.x1 and box.y0 >= frame.y0 and box.y1 <= frame.y1
            if text.get_text() and touches and not within:
                crossing.append(text.get_text())
    return crossing


def assert_legible(figure: Figure, *, points: float) -> None:
    """No text is cut off, covers another or an axis, or is smaller than others."""
    assert not outside(figure)
    assert not overlapping(figure)
    assert not over_an_axis(figure)
    assert {text.get_fontsize() for text in texts_of(figure)} == {points}
