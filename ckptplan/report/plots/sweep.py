"""Draws a sweep: lines over one axis, or over two a heat map for each workload on each profile."""

from __future__ import annotations

from math import ceil

import numpy as np
import numpy.typing as npt
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from ckptplan.errors import InputError
from ckptplan.report import sweep
from ckptplan.report.picture import PAGE
from ckptplan.report.plots import figures, style
from ckptplan.report.plots.heatmap import draw_maps, label_values
from ckptplan.report.plots.svg import MOST_TOOLTIPS, add_tooltips
from ckptplan.report.plots.ticks import set_ticks
from ckptplan.studies.sweep import Sweep, SweepResult
from ckptplan.wording import escape_controls

#: An axis is logarithmic if the largest value is at least this many times the least.
_WIDE = 8


def count_maps(planned: Sweep) -> int:
    """Return the number of pairs of axes that a sweep needs: one for lines, or one per job for maps."""
    return len(planned.workloads) * len(planned.profiles) if len(sweep.list_varied(planned)) > 1 else 1


def arrange_maps(planned: Sweep, width: float) -> tuple[int, int]:
    """Return the number of rows and columns of maps in a figure of a width in inches."""
    count = count_maps(planned)
    columns = min(count, 1 if width < PAGE.width else 2 if width == PAGE.width else 3)
    return ceil(count / columns), columns


def draw_sweep(result: SweepResult, ax: Axes) -> None:
    """Draw a sweep on one pair of axes, after planning missing rows. Raises InputError for several maps."""
    sweep.check_drawn(result.sweep)
    if count_maps(result.sweep) > 1:
        raise InputError(
            f"the sweep has {count_maps(result.sweep)} maps, one for each workload on each profile, and one "
            "pair of axes shows one map",
            field="ax",
            accepted="no ax, which makes a figure of all maps, or a sweep of one workload on one profile",
        )
    result.finish()
    if len(sweep.list_varied(result.sweep)) == 1:
        _draw_lines(result, ax)
        return
    style.set_title(ax, *sweep.title_sweep(result.sweep))
    draw_maps(result, [ax])
    style.add_legend(ax)


def draw_panels(result: SweepResult, figure: Figure) -> None:
    """Draw a sweep in a figure: lines, or the maps of all workloads on all profiles."""
    count = count_maps(result.sweep)
    if count == 1:
        draw_sweep(result, figure.add_subplot(axes_class=figures.ShownAxes))
        return
    sweep.check_drawn(result.sweep)
    result.finish()
    shape = arrange_maps(result.sweep, style.find_width(figure))
    axes = [figure.add_subplot(*shape, place, axes_class=figures.ShownAxes) for place in range(1, count + 1)]
    title = style.wrap_lines(figure, *sweep.title_sweep(result.sweep))
    figure.suptitle(title, x=0.01, ha="left", size="medium", weight="bold")
    draw_maps(result, axes)
    entries = style.collect_entries(*axes)
    figure.legend(entries.values(), entries.keys(), loc="outside lower left", ncols=4)


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
    low, high, _ = sweep.find_limits(result)
    ax.set_ylim(min(0.0, 1.1 * low), max(0.01 if result.quantity == "overhead" else 1.0, 1.08 * high))
    label_values(result, ax.yaxis)
    style.set_title(ax, *sweep.title_sweep(result.sweep))
    for plane, whole in zip(planes, unsorted, strict=True):
        fits = plane.best >= 0
        label = escape_controls(plane.name if fits.any() else f"{plane.name}: nothing fits")
        ax.plot(x, plane.values, label=label if plane.name else None)
        shown = np.flatnonzero(fits)[:MOST_TOOLTIPS]
        texts = [sweep.describe_point(result, whole, [place]) for place in order[shown].tolist()]
        add_tooltips(ax, x[shown].tolist(), plane.values[shown].tolist(), texts)
    _mark_changes(result, planes, ax)
    nowhere = np.all([plane.best < 0 for plane in planes], axis=0)
    ends = np.flatnonzero(np.diff(nowhere, prepend=False, append=False))
    for start, stop in ends.reshape(-1, 2).tolist():
        ax.axvspan(edges[start], edges[stop], label="nothing fits", **style.NOTHING)
    style.add_legend(ax)


def _mark_changes(result: SweepResult, planes: list[sweep.Plane], ax: Axes) -> None:
    """Mark where another strategy becomes the best one."""
    for line, plane in zip(list(ax.lines), planes, strict=True):
        starts = np.flatnonzero(np.diff(plane.best, prepend=-1))
        for strategy in np.unique(plane.best[plane.best >= 0]).tolist():
            look = {"color": line.get_color(), "label": result.names[strategy], **style.find_mark(strategy)}
            ax.plot(*line.get_data(), markevery=starts[plane.best[starts] == strategy].tolist(), **look)


def _find_edges(x: npt.NDArray[np.float64]) -> npt.NDArray[np.float64]:
    """Return the midpoints between values, and edges just as far beyond the first and the last value."""
    between = (x[1:] + x[:-1]) / 2
    return np.concatenate(([2 * x[0] - between[0]], between, [2 * x[-1] - between[-1]]))


DRAWINGS = {
    "sweep": figures.Drawing(
        on_axes=draw_sweep,
        in_figure=draw_panels,
        height=lambda result, size: 0.8 + 2.6 * arrange_maps(result.sweep, size.width)[0],
    )
}
