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
from matplotlib.backends.backend_agg import FigureCanvasAgg, RendererAgg
from matplotlib.lines import Line2D
from matplotlib.text import Annotation, Text
from scipy.ndimage import distance_transform_edt, minimum_filter, uniform_filter

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
            box = artist.get_window_extent(self._renderer).get_points()
            corners = np.clip((box - self._corner) * self._points, 0, self._shape)
            (x0, y0), (x1, y1) = corners.astype(int).tolist()
            self._taken[x0 : x1 + 1, y0 : y1 + 1] += 1

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
        self._taken += self._trace(annotation)

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

    def _trace(self, artist: Artist) -> _Squares:
        """Return an array of shape (width, height) with ones at the squares that a line or text covers."""
        size = self._renderer.width, self._renderer.height, self._renderer.dpi
        canvas: Any = RendererAgg(*size)  # type: ignore[no-untyped-call]
        artist.draw(canvas)
        # Rows of pixels count from the top.
        y, x = np.nonzero(np.asarray(canvas.buffer_rgba())[::-1, :, 3])
        places = ((np.column_stack((x, y)) - self._corner) * self._points).astype(int)
        squares = np.zeros(self._shape)
        squares[tuple(places[((places >= 0) & (places < self._shape)).all(axis=1)].T)] = 1
        return squares
