"""Draws the maps of a sweep over two axes: a cell for each point, and the regions of the best strategies."""

from __future__ import annotations

from typing import Any

import matplotlib as mpl
import numpy as np
from matplotlib.axes import Axes
from matplotlib.axis import Axis
from matplotlib.cm import ScalarMappable
from matplotlib.collections import LineCollection
from matplotlib.colors import LinearSegmentedColormap, Normalize
from scipy.ndimage import distance_transform_edt, label

from ckptplan.report.plots import style
from ckptplan.report.plots.svg import MOST_TOOLTIPS, add_tooltips
from ckptplan.report.plots.ticks import set_ticks
from ckptplan.report.sweep import Plane, describe_point, find_limits, list_planes, list_varied
from ckptplan.studies.sweep import SweepResult

#: Above the first number of cells, a map is a bitmap in vector formats. Above the second, it has no borders.
_FINE, _BORDERS = 2_500, 40_000
#: The most regions of a strategy that have its mark. Regions below a twentieth of the largest have none.
_MOST_REGIONS = 12


def draw_maps(result: SweepResult, axes: list[Axes]) -> None:
    """Draw a map on each pair of axes, with one colour bar."""
    planes, (rows, columns) = list_planes(result), list_varied(result.sweep)
    shades = _choose_shades(result)
    for plane, ax in zip(planes, axes, strict=True):
        _draw_cells(plane, ax, shades)
        if plane.name:
            style.set_title(ax, plane.name)
        for (input_axis, values), axis in ((rows, ax.yaxis), (columns, ax.xaxis)):
            labels = [input_axis.kind.show(value) for value in values]
            set_ticks(axis, range(len(values)), labels.__getitem__)
            axis.set_label_text(input_axis.name)
    figure: Any = axes[0].get_figure(root=False)
    rows_of_maps = len({round(ax.get_position().y0, 2) for ax in axes})
    bar = figure.colorbar(
        shades, ax=axes, aspect=20 * rows_of_maps, extend="max" if find_limits(result)[2] else "neither"
    )
    label_values(result, bar.ax.yaxis)
    for plane, ax in zip(planes, axes, strict=True):
        _mark_regions(result, plane, ax)
        if plane.best.size <= MOST_TOOLTIPS:
            cells = np.argwhere(np.isfinite(plane.best))
            texts = [describe_point(result, plane, cell) for cell in cells.tolist()]
            add_tooltips(ax, cells[:, 1].tolist(), cells[:, 0].tolist(), texts)


def label_values(result: SweepResult, axis: Axis) -> None:
    """Label an axis of time over base or of bytes. Set its limits first."""
    if result.quantity == "overhead":
        axis.set_label_text("time over\nplain backpropagation")
        style.set_share_axis(axis)
    else:
        axis.set_label_text("least local memory")
        style.set_bytes_axis(axis)


def _choose_shades(result: SweepResult) -> ScalarMappable:
    """Return the colour map of values: darker for larger ones, and light enough for black text."""
    low, high, _ = find_limits(result)
    high = max(high, low + (0.001 if result.quantity == "overhead" else 1.0))
    colours = LinearSegmentedColormap.from_list("", mpl.colormaps["Blues"](np.linspace(0.02, 0.65)))
    return ScalarMappable(Normalize(low, high), colours)


def _draw_cells(plane: Plane, ax: Axes, shades: ScalarMappable) -> None:
    """Draw the cells in the colours of their values, hatches where nothing fits, and borders of regions."""
    height, width = plane.values.shape
    if (plane.best < 0).any():
        ax.axvspan(-0.5, width - 0.5, label="nothing fits", zorder=0, **style.NOTHING)
    sides = np.arange(width + 1) - 0.5, np.arange(height + 1) - 0.5
    look: Any = {"norm": shades.norm, "cmap": shades.cmap, "rasterized": plane.best.size > _FINE}
    ax.pcolormesh(*sides, np.ma.masked_invalid(plane.values), edgecolors="face", linewidth=0.1, **look)
    ax.grid(visible=False)
    if plane.best.size <= _BORDERS:
        right = [((x + 0.5, y - 0.5), (x + 0.5, y + 0.5)) for y, x in np.argwhere(np.diff(plane.best, axis=1))]
        above = [((x - 0.5, y + 0.5), (x + 0.5, y + 0.5)) for y, x in np.argwhere(np.diff(plane.best, axis=0))]
        ax.add_collection(LineCollection([*right, *above], colors="black", linewidths=0.8))


def _mark_regions(result: SweepResult, plane: Plane, ax: Axes) -> None:
    """Mark the largest regions of each best strategy, at the place deepest inside of each region."""
    for strategy in np.unique(plane.best[plane.best >= 0]).tolist():
        regions, _ = label(plane.best == strategy)
        counts = np.bincount(regions.ravel())[1:]
        largest = [place for place in np.argsort(-counts)[:_MOST_REGIONS] if counts[place] * 20 >= counts.max()]
        depths = [distance_transform_edt(np.pad(regions == 1 + place, 1))[1:-1, 1:-1] for place in largest]
        y, x = zip(*(np.unravel_index(depth.argmax(), depth.shape) for depth in depths), strict=True)
        # Not quite black, since pages in dark mode invert black while the cells stay light.
        ax.plot(x, y, color="#101010", label=result.names[strategy], **style.find_mark(strategy))
