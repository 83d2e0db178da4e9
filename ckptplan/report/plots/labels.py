"""Places labels in axes where they touch no line and no other label.

The axes are divided into squares of one point (1/72 inch). A label fits if no line passes through the squares
that it covers.
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
from scipy.ndimage import distance_transform_edt, maximum_filter, minimum_filter, uniform_filter

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
        box, shape = Text.get_window_extent(annotation, self._renderer), np.array(self._shape)
        sides = np.array([box.width, box.height]) * self._points + 2 * _MARGIN
        size = np.minimum(sides.astype(int), shape - 1)
        # Which share of the label would be covered by lines, labels and the outside of the axes at each square.
        covered = uniform_filter(self._taken, size.tolist(), mode="constant", cval=1.0)
        # If the label fits nowhere, choose the places where it covers the fewest lines.
        is_free = covered < covered.min() + 0.5 / size.prod()
        places = np.argwhere(target > 0)
        distance = minimum_filter(distance_transform_edt(target == 0), size.tolist()) if len(places) else 0.0
        # Prefer the middle of a line, since its ends lie on the frame or among other lines.
        middle = places.mean(axis=0) if len(places) else shape / 2
        across, upwards = np.ogrid[: shape[0], : shape[1]]
        penalty = 0.02 * np.hypot(across - middle[0], upwards - middle[1])
        nearest = np.where(is_free, distance + penalty, np.inf).argmin()
        centre = np.array(np.unravel_index(nearest, self._shape))
        low = np.maximum(0, centre - size // 2)
        self._taken[low[0] : low[0] + size[0], low[1] : low[1] + size[1]] += 1
        annotation.xyann = tuple((centre / shape).tolist())

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
