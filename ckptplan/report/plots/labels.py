"""Places labels in axes where they touch no line and no other label.

The axes are divided into squares of one point (1/72 inch). A label fits where no line passes through the
squares that it covers; sums over rectangles are differences of one table of cumulative sums.
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
from scipy.ndimage import distance_transform_edt, minimum_filter

from ckptplan.report.plots.style import find_figure
from ckptplan.wording import escape_controls

_Squares = npt.NDArray[np.float64]
#: Points that stay free around a label, and around a point that has one.
_MARGIN, _AROUND = 2, 6


class Labels:
    """The lines and labels of axes, whose limits and scales do not change any more."""

    def __init__(self, ax: Axes) -> None:
        figure = find_figure(ax)
        # The layout decides how large the axes are.
        figure.draw_without_rendering()
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
        shown = self._write(text, {"color": str(line.get_color()), **style})
        own = self._trace(line)
        # Where other lines pass through the same squares, nobody sees which of them is meant.
        alone = own * (self._taken <= 1)
        self._settle(shown, alone if alone.any() else own)

    def label_point(self, x: float, y: float, text: str, **style: Any) -> None:
        """Write a text as near to a point as it fits, and draw a thin line from there to the point."""
        target = np.zeros(self._shape)
        place = ((self._ax.transData.transform((x, y)) - self._corner) * self._points).astype(int)
        target[tuple(np.clip(place, 0, np.array(self._shape) - 1))] = 1
        self._taken += distance_transform_edt(target == 0) <= _AROUND
        pointer = {"arrowstyle": "-", "linewidth": 0.8, "shrinkA": 0, "shrinkB": 4}
        shown = self._write(text, style, xy=(x, y), arrowprops=pointer)
        self._settle(shown, target)
        squares = np.linspace(place, np.array(shown.xyann) * self._shape, max(self._shape)).astype(int)
        self._taken[tuple(np.clip(squares, 0, np.array(self._shape) - 1).T)] += 1

    def _write(self, text: str, style: dict[str, Any], **pointer: Any) -> Annotation:
        form: dict[str, Any] = {"xy": (0.5, 0.5), "ha": "center", "va": "center", "annotation_clip": False}
        form |= {"xytext": (0.5, 0.5), "textcoords": "axes fraction", "zorder": 6, **pointer, **style}
        shown = self._ax.annotate(escape_controls(text), **form)
        shown.set_in_layout(False)
        return shown

    def _settle(self, shown: Annotation, target: _Squares) -> None:
        """Move a text to the free place nearest to the target, and nearest to its middle among these."""
        box = Text.get_window_extent(shown, self._renderer)
        width, height = (int(side * self._points) + 2 * _MARGIN for side in (box.width, box.height))
        width, height = min(width, self._shape[0] - 1), min(height, self._shape[1] - 1)
        used = _sum_rectangles(self._taken, width, height)
        # Of a label that fits nowhere, as little as possible is crossed.
        corners = np.argwhere(used == used.min())
        centres = corners + np.array([width / 2, height / 2])
        near = minimum_filter(distance_transform_edt(target == 0), size=(width, height))
        distance = near[tuple((corners + np.array([width // 2, height // 2])).T)]
        # The ends of a line lie on the frame, or among other lines.
        middle = np.argwhere(target > 0).mean(axis=0) if target.any() else np.array(self._shape) / 2
        distance = np.maximum(distance, _MARGIN) + 0.02 * np.hypot(*(centres - middle).T)
        chosen = int(distance.argmin())
        x, y = corners[chosen].tolist()
        self._taken[x : x + width, y : y + height] += 1
        shown.xyann = tuple((centres[chosen] / np.array(self._shape)).tolist())

    def _cover(self, box: Bbox) -> None:
        """Mark the squares of a text as taken."""
        corners = (np.array(box.get_points()) - self._corner) * self._points
        (x0, y0), (x1, y1) = np.clip(corners, 0, self._shape).astype(int).tolist()
        self._taken[x0 : x1 + 1, y0 : y1 + 1] += 1

    def _trace(self, line: Line2D) -> _Squares:
        """Return which squares a line passes through, shape (width, height)."""
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
        return squares


def _sum_rectangles(squares: _Squares, width: int, height: int) -> _Squares:
    """Return the sum of each rectangle of a size, by its lower left corner."""
    table = np.zeros((squares.shape[0] + 1, squares.shape[1] + 1))
    table[1:, 1:] = squares.cumsum(axis=0).cumsum(axis=1)
    right, left = table[width:], table[:-width]
    sums: _Squares = right[:, height:] - left[:, height:] - right[:, :-height] + left[:, :-height]
    return sums
