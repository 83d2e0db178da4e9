"""Draws a sweep: lines over one axis, or over two a heat map for each workload on each profile."""

from __future__ import annotations

from math import ceil
from typing import Any

import numpy as np
import numpy.typing as npt
from matplotlib import rcParams
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.lines import Line2D
from matplotlib.patches import Patch

from ckptplan.errors import InputError
from ckptplan.report import sweep
from ckptplan.report.picture import PAGE
from ckptplan.report.plots import figures, style
from ckptplan.report.plots.heatmap import draw_maps
from ckptplan.report.plots.labels import Labels
from ckptplan.report.plots.style import set_ticks
from ckptplan.report.plots.svg import MOST_TOOLTIPS, add_tooltips
from ckptplan.studies.sweep import SweepResult

#: An axis is logarithmic if the largest value is at least this many times the least.
_WIDE = 8
#: The most points of a line with markers.
_MOST_MARKERS = 40
#: The height of the bar that shows where nothing fits, as a share of the axes. Each of several lines has a bar.
_BAR = 0.035


def draw_sweep(result: SweepResult, place: Any) -> None:
    """Draw lines over one axis, or a map over two for each workload on each profile, after planning all rows.

    Raises InputError for a sweep that no picture shows, and for several maps on one pair of axes.
    """
    sweep.check_drawn(result.sweep)
    is_line = len(sweep.list_varied(result.sweep)) == 1
    count = 1 if is_line else len(result.sweep.workloads) * len(result.sweep.profiles)
    if count > 1 and isinstance(place, Axes):
        raise InputError(
            f"the sweep has {count} maps, one for each workload on each profile, and one pair of axes shows "
            "one map",
            field="ax",
            accepted="no ax, which makes a figure of all maps, or a sweep of one workload on one profile",
        )
    result.finish()
    if count > 1:
        _draw_panels(result, place, count)
        return
    ax = figures.take_axes(place, height=3.4)
    if is_line:
        _draw_lines(result, ax)
        return
    style.set_title(ax, *sweep.title_sweep(result.sweep))
    if entries := draw_maps(result, [ax]):
        style.add_legend(place, entries)


def _draw_panels(result: SweepResult, figure: Figure, count: int) -> None:
    """Draw the maps of all workloads on all profiles in a figure."""
    width = style.find_width(figure)
    columns = min(count, 1 if width < PAGE.width else 2 if width == PAGE.width else 3)
    rows = ceil(count / columns)
    figures.set_height(figure, 0.8 + 2.6 * rows)
    axes = [figure.add_subplot(rows, columns, 1 + n, axes_class=figures.ShownAxes) for n in range(count)]
    title = style.wrap_lines(figure, *sweep.title_sweep(result.sweep))
    figure.suptitle(title, x=0.01, ha="left", size="medium", weight="bold")
    if entries := draw_maps(result, axes):
        style.add_legend(figure, entries)


def _draw_lines(result: SweepResult, ax: Axes) -> None:
    """Draw a line for each workload on each profile, the best strategies on it, and where nothing fits."""
    [(axis, values)], unsorted = sweep.list_varied(result.sweep), sweep.list_planes(result)
    x = np.array(sweep.place_values(values))
    order = np.argsort(x)
    x = x[order]
    planes = [
        sweep.Plane(name=plane.name, values=plane.values[order], best=plane.best[order]) for plane in unsorted
    ]
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
    style.set_title(ax, *sweep.title_sweep(result.sweep), *(f"nothing fits: {name}" for name in nowhere))
    palette, lines = style.list_colours(), []
    marker: Any = (
        {"marker": "o", "markersize": 2 * rcParams["lines.linewidth"]} if len(x) <= _MOST_MARKERS else {}
    )
    for number, plane in enumerate(planes):
        lines += ax.plot(x, plane.values, color=palette[number % len(palette)], **marker)
        colour = str(lines[-1].get_color()) if len(planes) > 1 else style.GREY
        _hatch(ax, plane, edges, colour, row=number, of=len(planes))
        shown = np.flatnonzero(plane.best >= 0)[:MOST_TOOLTIPS]
        texts = [sweep.describe_point(result, unsorted[number], [place]) for place in order[shown].tolist()]
        add_tooltips(ax, x[shown].tolist(), plane.values[shown].tolist(), texts)
    if any((plane.best < 0).any() for plane in planes):
        style.add_legend(ax, [Patch(label="nothing fits", **style.NOTHING)])
    _write_labels(result, planes, lines, ax)


def _write_labels(result: SweepResult, planes: list[sweep.Plane], lines: list[Line2D], ax: Axes) -> None:
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
    """Return the midpoints between values, and edges just as far beyond the first and the last value."""
    between = (x[1:] + x[:-1]) / 2
    return np.concatenate(([2 * x[0] - between[0]], between, [2 * x[-1] - between[-1]]))


def _set_values(result: SweepResult, ax: Axes, *, count: int) -> None:
    """Set the axis of time over base (cut off as for maps) or of bytes. ``count`` is the number of lines."""
    low, high, _ = sweep.find_limits(result)
    # Leave room for the bars that show where nothing fits.
    room = 1.08 + (_BAR * count if count > 1 else 0)
    if result.quantity != "overhead":
        ax.set_ylim(0, max(1.0, room * high))
        ax.set_ylabel("least local memory")
        style.set_bytes_axis(ax.yaxis)
        return
    ax.set_ylabel("time over plain backpropagation")
    ax.set_ylim(min(0.0, 1.1 * low), max(0.01, room * high))
    style.set_share_axis(ax.yaxis)


def _hatch(
    ax: Axes, plane: sweep.Plane, edges: npt.NDArray[np.float64], colour: str, *, row: int, of: int
) -> None:
    """Hatch where nothing fits: over the whole height for one line, or in a coloured bar for each line."""
    top, height = (1.0, 1.0) if of == 1 else (1 - row * _BAR, 0.8 * _BAR)
    ends = np.flatnonzero(np.diff(plane.best < 0, prepend=False, append=False))
    for start, stop in ends.reshape(-1, 2).tolist():
        span: Any = {**style.NOTHING, "edgecolor": colour, "ymin": top - height, "ymax": top}
        ax.axvspan(edges[start], edges[stop], **span)
