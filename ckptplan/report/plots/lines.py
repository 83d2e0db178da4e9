"""Draws a sweep: lines over one axis, or a heat map over two (``heatmap``)."""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt
from matplotlib import rcParams
from matplotlib.axes import Axes
from matplotlib.lines import Line2D
from matplotlib.patches import Patch

from ckptplan.report.plots import style
from ckptplan.report.plots.figures import MOST_TOOLTIPS, add_tooltips
from ckptplan.report.plots.labels import Labels
from ckptplan.report.plots.ticks import set_ticks
from ckptplan.report.sweep import (
    Plane,
    describe_point,
    find_limits,
    list_planes,
    list_varied,
    place_values,
    title_sweep,
)
from ckptplan.studies.sweep import SweepResult

#: An axis is logarithmic from this ratio of the largest value to the least.
_WIDE = 8
#: Points of a line that have markers.
_MOST_MARKERS = 40
#: The height of the bar that shows where nothing fits, one for each of several lines.
_BAR = 0.035


def draw_lines(result: SweepResult, ax: Axes) -> None:
    """Draw a line for each workload on each profile, the best strategies on it, and where nothing fits."""
    [(axis, values)], unsorted = list_varied(result.sweep), list_planes(result)
    x = np.array(place_values(values))
    order = np.argsort(x)
    x = x[order]
    planes = [Plane(name=plane.name, values=plane.values[order], best=plane.best[order]) for plane in unsorted]
    is_wide = bool(x[0] > 0 and x[-1] >= _WIDE * x[0])
    if is_wide:
        ax.set_xscale("log")
    edges = _find_edges(np.log(x) if is_wide else x)
    edges = np.exp(edges) if is_wide else edges
    ax.set_xlim(edges[0], edges[-1])
    set_ticks(ax.xaxis, x.tolist(), lambda place: axis.kind.show(values[order[place]]))
    ax.set_xlabel(axis.name)
    _set_values(result, ax, count=len(planes))
    nowhere = [plane.name for plane in planes if not plane.fits and plane.name]
    style.set_title(ax, *title_sweep(result.sweep), *(f"nothing fits: {name}" for name in nowhere))
    palette, lines = style.list_colours(), []
    marker: Any = (
        {"marker": "o", "markersize": 2 * rcParams["lines.linewidth"]} if len(x) <= _MOST_MARKERS else {}
    )
    for number, plane in enumerate(planes):
        lines += ax.plot(x, plane.values, color=palette[number % len(palette)], **marker)
        colour = str(lines[-1].get_color()) if len(planes) > 1 else style.GREY
        _hatch(ax, plane, edges, colour, row=number, of=len(planes))
        told = np.flatnonzero(plane.best >= 0)[:MOST_TOOLTIPS]
        texts = [describe_point(result, unsorted[number], [place]) for place in order[told].tolist()]
        add_tooltips(ax, x[told].tolist(), plane.values[told].tolist(), texts)
    if any((plane.best < 0).any() for plane in planes):
        style.add_legend(ax, [Patch(label="nothing fits", **style.NOTHING)])
    _write_labels(result, planes, lines, ax)


def _write_labels(result: SweepResult, planes: list[Plane], lines: list[Line2D], ax: Axes) -> None:
    """Write the best strategies beside the lines, and then the names of the lines."""
    labels = Labels(ax)
    labels.avoid(*ax.patches)
    most = int(72 * style.find_width(ax) / (11 * rcParams["font.size"]))
    for plane, line in zip(planes, lines, strict=True):
        look: Any = {"size": "small", "color": line.get_color() if len(planes) > 1 else "black"}
        for start in plane.list_changes(most):
            x, y = np.asarray(line.get_xydata())[start].tolist()
            labels.label_point(x, y, result.names[plane.best[start]], **look)
    for plane, line in zip(planes, lines, strict=True):
        if plane.name and plane.fits:
            labels.label_line(line, plane.name, fontweight="bold")


def _find_edges(x: npt.NDArray[np.float64]) -> npt.NDArray[np.float64]:
    """Return the middles between values, and as much room beyond the first and the last one."""
    between = (x[1:] + x[:-1]) / 2
    return np.concatenate(([2 * x[0] - between[0]], between, [2 * x[-1] - between[-1]]))


def _set_values(result: SweepResult, ax: Axes, *, count: int) -> None:
    """Set the axis of time over base, which is cut as that of maps, or of bytes; ``count`` is that of lines."""
    low, high, _ = find_limits(result)
    # Room for the bars where nothing fits.
    room = 1.08 + (_BAR * count if count > 1 else 0)
    if result.quantity != "overhead":
        ax.set_ylim(0, max(1.0, room * high))
        ax.set_ylabel("least local memory")
        style.set_bytes_axis(ax.yaxis)
        return
    ax.set_ylabel("time over plain backpropagation")
    ax.set_ylim(min(0.0, 1.1 * low), max(0.01, room * high))
    style.set_share_axis(ax.yaxis)


def _hatch(ax: Axes, plane: Plane, edges: npt.NDArray[np.float64], colour: str, *, row: int, of: int) -> None:
    """Hatch where nothing fits: the whole height for one line, a bar in its colour for each of several."""
    top, height = (1.0, 1.0) if of == 1 else (1 - row * _BAR, 0.8 * _BAR)
    ends = np.flatnonzero(np.diff(plane.best < 0, prepend=False, append=False))
    for start, stop in ends.reshape(-1, 2).tolist():
        span: Any = {**style.NOTHING, "edgecolor": colour, "ymin": top - height, "ymax": top}
        ax.axvspan(edges[start], edges[stop], **span)
