"""Draws a sweep: lines over one axis, or over two a heat map for each workload on each profile."""

from __future__ import annotations

from math import ceil
from string import ascii_lowercase
from typing import Any

import numpy as np
import numpy.typing as npt
from matplotlib import colormaps, rcParams
from matplotlib.axes import Axes
from matplotlib.axis import Axis
from matplotlib.cm import ScalarMappable
from matplotlib.collections import LineCollection
from matplotlib.colors import LinearSegmentedColormap, Normalize
from matplotlib.figure import Figure
from matplotlib.lines import Line2D
from matplotlib.patches import Patch, Rectangle
from matplotlib.textpath import TextPath
from scipy.ndimage import distance_transform_edt, label, minimum_filter

from ckptplan.errors import InputError
from ckptplan.report import sweep
from ckptplan.report.picture import PAGE
from ckptplan.report.plots import figures, style
from ckptplan.report.plots.labels import Labels
from ckptplan.report.plots.style import count_dots, set_ticks
from ckptplan.report.plots.svg import MOST_TOOLTIPS, add_tooltips
from ckptplan.studies.sweep import SweepResult

#: An axis is logarithmic if the largest value is at least this many times the least.
_WIDE = 8
#: The most points of a line with markers.
_MOST_MARKERS = 40
#: Above the first number of cells, a map is a bitmap in vector formats. Above the second, it has no borders.
_FINE, _BORDERS = 2_500, 40_000
#: The most regions of a strategy that are named. The largest ones are named.
_MOST_REGIONS = 12
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
            f"the sweep has {count} maps, a map for each workload on each profile, but a pair of axes shows a "
            "single map",
            field="ax",
            accepted="no ax, which makes a figure of all maps, or a sweep of one workload on one profile",
        )
    result.finish()
    if is_line:
        _draw_lines(result, figures.take_axes(place, height=3.4))
        return
    style.set_title(place, *sweep.title_sweep(result.sweep))
    if entries := _draw_maps(result, [place] if isinstance(place, Axes) else _add_panels(place, count)):
        style.add_legend(place, entries)


def _add_panels(figure: Figure, count: int) -> list[Axes]:
    """Return axes in a figure for a number of maps."""
    width = style.find_width(figure)
    columns = min(count, 1 if width < PAGE.width else 2 if width == PAGE.width else 3)
    rows = ceil(count / columns)
    figures.set_height(figure, 0.8 + 2.6 * rows)
    return [figure.add_subplot(rows, columns, 1 + n, axes_class=figures.ShownAxes) for n in range(count)]


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
    texts_of_values = {place: axis.kind.show(values[n]) for place, n in zip(x.tolist(), order, strict=True)}
    set_ticks(ax.xaxis, [*texts_of_values], texts_of_values.__getitem__)
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
    # Times are shares, and memory is at least a byte.
    ax.set_ylim(min(0.0, 1.1 * low), max(0.01 if result.quantity == "overhead" else 1.0, room * high))
    _label_values(result, ax.yaxis)


def _label_values(result: SweepResult, axis: Axis) -> None:
    """Label the axis of the values: time over base, or bytes."""
    if result.quantity == "overhead":
        axis.set_label_text("time over plain backpropagation")
        style.set_share_axis(axis)
    else:
        axis.set_label_text("least local memory")
        style.set_bytes_axis(axis)


def _hatch(
    ax: Axes, plane: sweep.Plane, edges: npt.NDArray[np.float64], colour: str, *, row: int, of: int
) -> None:
    """Hatch where nothing fits: over the whole height for one line, or in a coloured bar for each line."""
    top, height = (1.0, 1.0) if of == 1 else (1 - row * _BAR, 0.8 * _BAR)
    ends = np.flatnonzero(np.diff(plane.best < 0, prepend=False, append=False))
    for start, stop in ends.reshape(-1, 2).tolist():
        span: Any = {**style.NOTHING, "edgecolor": colour, "ymin": top - height, "ymax": top}
        ax.axvspan(edges[start], edges[stop], **span)


def _draw_maps(result: SweepResult, axes: list[Axes]) -> list[Any]:
    """Draw a map on each pair of axes with one colour bar, and return the entries of a legend."""
    planes, (rows, columns) = sweep.list_planes(result), sweep.list_varied(result.sweep)
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
        shades, ax=axes, aspect=20 * rows_of_maps, extend="max" if sweep.find_limits(result)[2] else "neither"
    )
    _label_values(result, bar.ax.yaxis)
    style.lay_out(axes[0])
    letters: dict[str, str] = {}
    for plane, ax in zip(planes, axes, strict=True):
        _name_regions(plane, ax, result.names, letters)
        if plane.best.size <= MOST_TOOLTIPS:
            cells = np.argwhere(np.isfinite(plane.best))
            texts = [sweep.describe_point(result, plane, cell) for cell in cells.tolist()]
            add_tooltips(ax, cells[:, 1].tolist(), cells[:, 0].tolist(), texts)
    entries: list[Any] = []
    if any((plane.best < 0).any() for plane in planes):
        entries.append(Patch(label="nothing fits", **style.NOTHING))
    form: Any = {"linestyle": "none", "color": "black", "markeredgewidth": 0}
    form["markersize"] = 0.7 * rcParams["font.size"]
    for name, letter in letters.items():
        entries.append(Line2D([], [], marker=TextPath((-3, -2), letter), label=name, **form))
    return entries


def _choose_shades(result: SweepResult) -> ScalarMappable:
    """Return the colour map of values: darker for larger ones, and light enough for black text."""
    low, high, _ = sweep.find_limits(result)
    high = max(high, low + (0.001 if result.quantity == "overhead" else 1.0))
    colours = LinearSegmentedColormap.from_list("", colormaps["Blues"](np.linspace(0.02, 0.65)))
    return ScalarMappable(Normalize(low, high), colours)


def _draw_cells(plane: sweep.Plane, ax: Axes, shades: ScalarMappable) -> None:
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


def _name_regions(plane: sweep.Plane, ax: Axes, names: tuple[str, ...], letters: dict[str, str]) -> None:
    """Write the name of the best strategy into each region with room, and a letter if no region has room."""
    box, dots = ax.get_window_extent(), count_dots(ax)
    size = 0.9 * rcParams["font.size"]
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
