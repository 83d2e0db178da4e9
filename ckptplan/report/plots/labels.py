"""Places labels in axes where they touch no line and no other label.

The axes are divided into squares of one point (1/72 inch). A label fits if no line passes through the squares
that it covers. The sum over a rectangle of squares is computed from a table of cumulative sums.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt
from matplotlib.artist import Artist
from matplotlib.axes import Axes
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.lines import Line2D
from matplotlib.text import Annotation, Text
from matplotlib.transforms import Bbox
from scipy.ndimage import maximum_filter

from ckptplan.report.plots.style import find_figure, lay_out
from ckptplan.wording import escape_controls

_Squares = npt.NDArray[np.float64]
#: Points (1/72 inch) that stay free around a label, and around a labelled point.
_MARGIN, _AROUND = 2, 6


class Labels:
    """The lines and labels of axes. Limits and scales of the axes must be final."""

    def __init__(self, ax: Axes) -> None:
        figure = find_figure(ax)
        lay_out(ax)
        self._ax, self._renderer = ax, FigureCanvasAgg(figure).get_renderer()  # type: ignore[no-untyped-call]
        self._points = 72 / figure.dpi
        box = ax.get_window_extent(self._renderer)
        self._corner = np.array([box.x0, box.y0])
        self._shape = max(1, round(box.width * self._points)), max(1, round(box.height * self._points))
        self._taken = sum((self._trace(line) for line in ax.lines), np.zeros(self._shape))
        self.avoid(*ax.texts, *filter(None, [ax.get_legend()]))

    def avoid(self, *artists: Artist) -> None:
        """Keep labels off the bounding boxes of texts or areas."""
        for artist in artists:
            self._cover(artist.get_window_extent(self._renderer))

    def label_line(self, line: Line2D, text: str, **style: Any) -> None:
        """Write a text beside a line, as near to it as it fits, in the colour of the line."""
        annotation = self._write(text, {"color": str(line.get_color()), **style})
        squares = self._trace(line)
        # Prefer squares that no other line passes, so that it is clear which line the label names.
        exclusive = squares * (self._taken <= 1)
        self._move_text(annotation, exclusive if exclusive.any() else squares)

    def label_point(self, x: float, y: float, text: str, **style: Any) -> None:
        """Write a text as near to a point as it fits, and draw a thin line from the text to the point."""
        target = np.zeros(self._shape)
        place = ((self._ax.transData.transform((x, y)) - self._corner) * self._points).astype(int)
        target[tuple(np.clip(place, 0, np.array(self._shape) - 1))] = 1
        across, upwards = np.ogrid[: self._shape[0], : self._shape[1]]
        self._taken += np.hypot(across - place[0], upwards - place[1]) <= _AROUND
        pointer = {"arrowstyle": "-", "linewidth": 0.8, "shrinkA": 0, "shrinkB": 4}
        annotation = self._write(text, style, xy=(x, y), arrowprops=pointer)
        self._move_text(annotation, target)
        squares = np.linspace(place, np.array(annotation.xyann) * self._shape, max(self._shape)).astype(int)
        self._taken[tuple(np.clip(squares, 0, np.array(self._shape) - 1).T)] += 1

    def _write(self, text: str, style: dict[str, Any], **pointer: Any) -> Annotation:
        form: dict[str, Any] = {"xy": (0.5, 0.5), "ha": "center", "va": "center", "annotation_clip": False}
        form |= {"xytext": (0.5, 0.5), "textcoords": "axes fraction", "zorder": 6, **pointer, **style}
        annotation = self._ax.annotate(escape_controls(text), **form)
        annotation.set_in_layout(False)
        return annotation

    def _move_text(self, annotation: Annotation, target: _Squares) -> None:
        """Move a text to the free place nearest to the target, and among equal ones nearest to its middle."""
        box = Text.get_window_extent(annotation, self._renderer)
        width, height = (int(side * self._points) + 2 * _MARGIN for side in (box.width, box.height))
        width, height = min(width, self._shape[0] - 1), min(height, self._shape[1] - 1)
        used = _sum_rectangles(_accumulate(self._taken), width, height)
        # Prefer the middle of a line, since its ends lie on the frame or among other lines.
        middle = np.argwhere(target > 0).mean(axis=0) if target.any() else np.array(self._shape) / 2
        across, upwards = np.ogrid[: used.shape[0], : used.shape[1]]
        off_middle = np.hypot(across + width / 2 - middle[0], upwards + height / 2 - middle[1])
        # If the label fits nowhere, choose the places where it covers the fewest lines.
        penalty = np.where(used == used.min(), 0.02 * off_middle, np.inf)
        x, y = _find_nearest(_accumulate(target), width, height, penalty)
        self._taken[x : x + width, y : y + height] += 1
        annotation.xyann = ((x + width / 2) / self._shape[0], (y + height / 2) / self._shape[1])

    def _cover(self, box: Bbox) -> None:
        """Mark the squares of a text as taken."""
        corners = (np.array(box.get_points()) - self._corner) * self._points
        (x0, y0), (x1, y1) = np.clip(corners, 0, self._shape).astype(int).tolist()
        self._taken[x0 : x1 + 1, y0 : y1 + 1] += 1

    def _trace(self, line: Line2D) -> _Squares:
        """Return an array of shape (width, height) with ones at the squares that a line covers."""
        squares = np.zeros(self._shape)
        with np.errstate(invalid="ignore"):
            corners = line.get_transform().transform_path(line.get_path()).vertices
            corners = (np.asarray(corners) - self._corner) * self._points
        corners = np.clip(corners[np.isfinite(corners).all(axis=1)], -1e4, 1e4)
        if len(corners) < 2:
            return squares
        parts = np.abs(np.diff(corners, axis=0)).max(axis=1).astype(int) + 1
        start = np.repeat(np.arange(len(parts)), parts)
        share = (np.arange(parts.sum()) - np.repeat(np.cumsum(parts) - parts, parts)) / parts[start]
        x, y = (corners[start] + share[:, None] * np.diff(corners, axis=0)[start]).astype(int).T
        inside = (x >= 0) & (y >= 0) & (x < self._shape[0]) & (y < self._shape[1])
        squares[x[inside], y[inside]] = 1
        covered: _Squares = maximum_filter(squares, size=max(1, round(line.get_linewidth())))
        return covered


def _accumulate(squares: _Squares) -> _Squares:
    """Return the sum of the squares below and to the left of each corner."""
    table = np.zeros((squares.shape[0] + 1, squares.shape[1] + 1))
    table[1:, 1:] = squares.cumsum(axis=0).cumsum(axis=1)
    return table


def _sum_rectangles(table: _Squares, width: int, height: int, *, margin: int = 0) -> _Squares:
    """Return the sum over each rectangle of a size and its margin, by the lower left corner of the rectangle.

    ``table`` comes from ``_accumulate``. Margins are cut off at the ends of the table.
    """
    right, top = (count - 1 for count in table.shape)
    x, y = np.arange(right + 1 - width), np.arange(top + 1 - height)
    columns = table[np.minimum(right, x + width + margin)] - table[np.maximum(0, x - margin)]
    sums: _Squares = columns[:, np.minimum(top, y + height + margin)] - columns[:, np.maximum(0, y - margin)]
    return sums


def _find_nearest(target: _Squares, width: int, height: int, penalty: _Squares) -> tuple[int, int]:
    """Return the lower left corner of the rectangle with the least distance to a target plus its penalty.

    ``target`` comes from ``_accumulate``. Distances are in points; the least one is ``_MARGIN``.
    """
    nearest, least = int(penalty.argmin()), np.inf
    for distance in range(_MARGIN, max(target.shape) if target[-1, -1] else 0):
        if distance >= least:
            break
        # All squares within the distance lie in the rectangle with a margin.
        is_near = _sum_rectangles(target, width, height, margin=distance) > 0
        cost = np.where(is_near, distance + penalty, np.inf)
        if cost.min() < least:
            nearest, least = int(cost.argmin()), float(cost.min())
    x, y = divmod(nearest, penalty.shape[1])
    return x, y
