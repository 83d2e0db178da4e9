"""Draws a sweep: lines over one axis, or over two a heat map for each workload on each profile."""

from __future__ import annotations

from math import ceil

from matplotlib.axes import Axes
from matplotlib.figure import Figure

from ckptplan.errors import InputError
from ckptplan.report.picture import PAGE
from ckptplan.report.plots import figures, style
from ckptplan.report.plots.heatmap import draw_maps
from ckptplan.report.plots.lines import draw_lines
from ckptplan.report.sweep import check_drawn, list_varied, title_sweep
from ckptplan.studies.sweep import Sweep, SweepResult


def count_maps(sweep: Sweep) -> int:
    """Return the number of pairs of axes that a sweep needs: one for lines, one a job for maps."""
    return len(sweep.workloads) * len(sweep.profiles) if len(list_varied(sweep)) > 1 else 1


def arrange_maps(sweep: Sweep, width: float) -> tuple[int, int]:
    """Return the rows and columns of the maps in a figure of a width in inches."""
    count = count_maps(sweep)
    columns = min(count, 1 if width < PAGE.width else 2 if width == PAGE.width else 3)
    return ceil(count / columns), columns


def draw_sweep(result: SweepResult, ax: Axes) -> None:
    """Draw a sweep on one pair of axes, after planning missing rows. Raises InputError for several maps."""
    check_drawn(result.sweep)
    if count_maps(result.sweep) > 1:
        raise InputError(
            f"the sweep has {count_maps(result.sweep)} maps, one for each workload on each profile, and one "
            "pair of axes shows one map",
            field="ax",
            accepted="no ax, which makes a figure of all maps, or a sweep of one workload on one profile",
        )
    result.finish()
    if len(list_varied(result.sweep)) == 1:
        draw_lines(result, ax)
        return
    style.set_title(ax, *title_sweep(result.sweep))
    if entries := draw_maps(result, [ax]):
        style.add_legend(ax, entries)


def draw_panels(result: SweepResult, figure: Figure) -> None:
    """Draw a sweep in a figure: lines, or the maps of all workloads on all profiles."""
    count = count_maps(result.sweep)
    if count == 1:
        draw_sweep(result, figure.add_subplot(axes_class=figures.ShownAxes))
        return
    check_drawn(result.sweep)
    result.finish()
    shape = arrange_maps(result.sweep, style.find_width(figure))
    axes = [figure.add_subplot(*shape, place, axes_class=figures.ShownAxes) for place in range(1, count + 1)]
    title = style.wrap_lines(figure, *title_sweep(result.sweep))
    figure.suptitle(title, x=0.01, ha="left", size="medium", weight="bold")
    if entries := draw_maps(result, axes):
        figure.legend(handles=entries, loc="outside lower left", ncols=min(4, len(entries)))


DRAWING = figures.Drawing(
    on_axes=draw_sweep,
    in_figure=draw_panels,
    height=lambda result, size: 0.8 + 2.6 * arrange_maps(result.sweep, size.width)[0],
)
