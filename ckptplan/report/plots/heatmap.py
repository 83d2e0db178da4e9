"""Draws the maps of a sweep over two axes: a cell for each point, named regions of the best strategies."""

from __future__ import annotations

from math import ceil
from string import ascii_lowercase
from typing import Any

import matplotlib as mpl
import numpy as np
import numpy.typing as npt
from matplotlib.axes import Axes
from matplotlib.cm import ScalarMappable
from matplotlib.collections import LineCollection
from matplotlib.colors import LinearSegmentedColormap, Normalize
from matplotlib.lines import Line2D
from matplotlib.patches import Patch, Rectangle
from matplotlib.textpath import TextPath
from scipy.ndimage import distance_transform_edt, label, minimum_filter

from ckptplan.report.plots import style
from ckptplan.report.plots.style import count_dots, set_ticks
from ckptplan.report.plots.svg import MOST_TOOLTIPS, add_tooltips
from ckptplan.report.sweep import Plane, describe_point, find_limits, list_planes, list_varied
from ckptplan.studies.sweep import SweepResult

#: Above the first number of cells, a map is a bitmap in vector formats. Above the second, it has no borders.
_FINE, _BORDERS = 2_500, 40_000
#: The most regions of a strategy that are named. The largest ones are named.
_MOST_REGIONS = 12


def draw_maps(result: SweepResult, axes: list[Axes]) -> list[Any]:
    """Draw a map on each pair of axes with one colour bar, and return the entries of a legend."""
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
    if result.quantity == "overhead":
        bar.set_label("time over plain backpropagation")
        style.set_share_axis(bar.ax.yaxis)
    else:
        bar.set_label("least local memory")
        style.set_bytes_axis(bar.ax.yaxis)
    style.lay_out(axes[0])
    letters: dict[str, str] = {}
    for plane, ax in zip(planes, axes, strict=True):
        _name_regions(plane, ax, result.names, letters)
        if plane.best.size <= MOST_TOOLTIPS:
            cells = np.argwhere(np.isfinite(plane.best))
            texts = [describe_point(result, plane, cell) for cell in cells.tolist()]
            add_tooltips(ax, cells[:, 1].tolist(), cells[:, 0].tolist(), texts)
    entries: list[Any] = []
    if any((plane.best < 0).any() for plane in planes):
        entries.append(Patch(label="nothing fits", **style.NOTHING))
    form: Any = {"linestyle": "none", "color": "black", "markeredgewidth": 0}
    form["markersize"] = 0.7 * mpl.rcParams["font.size"]
    for name, letter in letters.items():
        entries.append(Line2D([], [], marker=TextPath((-3, -2), letter), label=name, **form))
    return entries


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
        ax.add_patch(Rectangle((0, 0), 1, 1, transform=ax.transAxes, zorder=0, **style.NOTHING))
    sides = np.arange(width + 1) - 0.5, np.arange(height + 1) - 0.5
    look: Any = {"norm": shades.norm, "cmap": shades.cmap, "rasterized": plane.best.size > _FINE}
    ax.pcolormesh(*sides, np.ma.masked_invalid(plane.values), edgecolors="face", linewidth=0.1, **look)
    ax.grid(visible=False)
    if plane.best.size <= _BORDERS:
        right = [((x + 0.5, y - 0.5), (x + 0.5, y + 0.5)) for y, x in np.argwhere(np.diff(plane.best, axis=1))]
        above = [((x - 0.5, y + 0.5), (x + 0.5, y + 0.5)) for y, x in np.argwhere(np.diff(plane.best, axis=0))]
        ax.add_collection(LineCollection([*right, *above], colors="black", linewidths=0.8))


def _name_regions(plane: Plane, ax: Axes, names: tuple[str, ...], letters: dict[str, str]) -> None:
    """Write the name of the best strategy into each region with room, and a letter if no region has room."""
    box, dots = ax.get_window_extent(), count_dots(ax)
    size = 0.9 * mpl.rcParams["font.size"]
    cell = np.array([box.height, box.width]) / dots / plane.best.shape
    for place in np.unique(plane.best[plane.best >= 0]).tolist():
        name, regions = names[place], label(plane.best == place)[0]
        counts = np.bincount(regions.ravel())[1:]
        largest = [regions == 1 + number for number in np.argsort(-counts)[:_MOST_REGIONS].tolist()]
        text = np.array([1.3 * size, (0.6 * len(name) + 0.4) * size])
        centres = [centre for region in largest if (centre := _find_room(region, text / cell)) is not None]
        if not centres:
            name = letters.setdefault(name, ascii_lowercase[len(letters) % 26])
            centres = [_find_room(largest[0], np.ones(2))]
        for y, x in centres:
            # Not quite black, since pages in dark mode invert black text while the cells stay light.
            ax.text(x, y, name, size=size, color="#101010", ha="center", va="center", clip_on=True)


def _find_room(region: npt.NDArray[np.bool_], text: npt.NDArray[np.float64]) -> Any:
    """Return the centre of the rectangle (of a size in cells) deepest inside a region; None if none fits."""
    sides = tuple(max(1, ceil(side)) for side in text)
    inside = minimum_filter(region, size=sides, mode="constant", cval=False)
    if not inside.any():
        return None
    depth = np.where(inside, distance_transform_edt(np.pad(region, 1))[1:-1, 1:-1], 0)
    deepest = np.argwhere(depth == depth.max())
    middle = deepest[np.argmin(((deepest - deepest.mean(axis=0)) ** 2).sum(axis=1))]
    # For an even number of cells, the filter's centre is half a cell behind the middle.
    return middle - np.array([0 if side % 2 else 0.5 for side in sides])
