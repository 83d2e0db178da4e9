"""Pictures of the content of the paper's Figures 2 to 5, computed by the model.

Curves differ in colour, marker and dashes, so that they stay distinct in a grey print. Hollow markers are
settings that do not fit the memory.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from ckptplan.paper.figures import Panel, PaperFigure, Series
from ckptplan.report import style
from ckptplan.report.style import PAGE, Look, Size, set_legend, start_figure
from ckptplan.units import format_bytes

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure


#: Variants of one strategy in the same figure.
_VARIANTS = (
    Look(colour=style.PURPLE, marker="D"),
    Look(colour=style.SKY, marker="X", dashes=(0, (3, 1))),
    Look(colour=style.BLACK, marker="P", dashes=(0, (1, 1))),
    Look(colour=style.GREEN, marker="v", dashes=(0, (5, 1, 1, 1))),
    Look(colour=style.ORANGE, marker="h", dashes=(0, (5, 1.5))),
    Look(colour=style.GREY, marker="<"),
)
#: Label of an axis, and its unit in base units.
_AXES: Mapping[str, tuple[str, float]] = {
    "steps": ("time steps T", 1),
    "neurons_per_unit": ("neurons a tile", 1),
    "chunk_size": ("chunk_size (steps)", 1),
    "remote_chunk_size": ("remote_chunk_size (steps)", 1),
    "seconds": ("time a batch (ms)", 1e-3),
    "local_peak_bytes": ("peak local memory (KiB)", 1024),
}
#: Axes on a logarithmic scale: chunks double from point to point.
_DOUBLING = ("chunk_size", "remote_chunk_size")
#: Axes end here where curves rise further; the captions say so.
_TOP_MS, _TOP_KIB = 60, 900
#: Curves of more points than this mark only some of them.
_FEW = 20
#: Arrangement of panels by figure; one row by default.
_ROWS = {
    2: [["left", "left"], ["middle", "right"]],
    4: [["top left", "top right"], ["bottom left", "bottom right"]],
}


def draw_figure(content: PaperFigure, size: Size = PAGE) -> Figure:
    """Return a picture. Call it, and save the picture, within ``style.styled(size)``."""
    narrow = size.width < PAGE.width
    rows = _ROWS.get(content.number, [[panel.name for panel in content.panels]])
    if narrow:
        rows = [[panel.name] for panel in content.panels]
    height = 0.3 + (1.9 if narrow else 2.1) * len(rows)
    figure = start_figure(size, height, content.title)
    mosaic: Any = rows  # a list of lists, which its type does not take
    grid = figure.subplot_mosaic(mosaic)
    looks = _choose_looks(content)
    for panel in content.panels:
        _draw_panel(grid[panel.name], panel, looks, size)
    set_legend(figure, _make_handles(grid, content, size), size)
    return figure


def _choose_looks(content: PaperFigure) -> dict[str, Look]:
    """Return how curves are drawn: as settings of one strategy that a panel compares, or as strategies."""
    looks = {one.label: style.look_of(one.strategy) for panel in content.panels for one in panel.series}
    variants = dict.fromkeys(one.label for panel in content.panels for one in _select_variants(panel))
    return looks | dict(zip(variants, _VARIANTS, strict=False))


def _select_variants(panel: Panel) -> tuple[Series, ...]:
    """Return the curves of a panel that compares several settings of one strategy, else none."""
    own = tuple(series for series in panel.series if not series.is_baseline)
    return own if len({series.strategy for series in own}) == 1 else ()


def _draw_panel(axes: Axes, panel: Panel, looks: Mapping[str, Look], size: Size) -> None:
    axes.set_title(panel.title)
    for place, series in enumerate(panel.series):
        _draw_curve(axes, panel, series, looks[series.label], place=place, size=size)
    _scale_axes(axes, panel)
    if panel.advised is not None:
        axes.axvspan(*panel.advised, color=style.PALE, linewidth=0, zorder=0)
    if panel.y == "local_peak_bytes":
        _draw_budget(axes, panel)


def _list_points(panel: Panel, series: Series) -> list[tuple[float, float]]:
    """Return the points of a curve in the units of the axes."""
    x_scale, y_scale = _AXES[panel.x][1], _AXES[panel.y][1]
    return [
        (float(row[panel.x]) / x_scale, float(row[panel.y]) / y_scale)
        for row in (point.row for point in series.points)
    ]


def _draw_curve(axes: Axes, panel: Panel, series: Series, look: Look, *, place: int, size: Size) -> None:
    x, y = zip(*_list_points(panel, series), strict=True)
    marker: dict[str, Any] = {
        "color": look.colour,
        "marker": look.marker,
        "markersize": 4 * size.scale,
        "markeredgewidth": 0.9 * size.scale,
    }
    # All points of a short curve; of a long one some, at other places than those of other curves.
    marked = 1 if len(x) <= _FEW else (0.02 * place, 0.12)
    form = {"linewidth": 1.1 * size.scale, "linestyle": look.dashes, "label": series.label}
    axes.plot(x, y, **form, **marker, markevery=marked, zorder=3)
    hollow = [number for number, point in enumerate(series.points) if not point.fits]
    axes.plot(x, y, markevery=hollow, markerfacecolor="white", linestyle="", zorder=4, **marker)


def _scale_axes(axes: Axes, panel: Panel) -> None:
    from matplotlib.ticker import LogLocator, MaxNLocator, NullLocator

    axes.set(xlabel=_AXES[panel.x][0], ylabel=_AXES[panel.y][0])
    highest = 1.05 * max(y for series in panel.series for _, y in _list_points(panel, series))
    timed = panel.y == "seconds"
    if panel.x in _DOUBLING:
        axes.set_xscale("log")
        axes.xaxis.set_major_locator(LogLocator(base=4))
        if timed:
            axes.set_yscale("log")
            axes.yaxis.set_major_locator(LogLocator(subs=(1, 1.5, 2, 3, 4, 5, 7)))
        else:
            axes.set_ylim(top=min(_TOP_KIB, highest))
    else:
        axes.xaxis.set_major_locator(MaxNLocator(5, integer=True))
        axes.set_xlim(left=0)
        axes.set_ylim(0, min(_TOP_MS, highest) if timed else 1.2 * panel.budget_bytes / 1024)
    for axis in (axes.xaxis, axes.yaxis):
        axis.set_minor_locator(NullLocator())
        axis.set_major_formatter(_format_thousands)


def _format_thousands(value: float, _: object) -> str:
    return f"{value:,.10g}"


def _draw_budget(axes: Axes, panel: Panel) -> None:
    limit = panel.budget_bytes / 1024
    axes.axhline(limit, color=style.GREY, linewidth=0.9, linestyle=(0, (2, 1)), zorder=2)
    axes.annotate(
        format_bytes(panel.budget_bytes),
        (1, limit), xycoords=("axes fraction", "data"), xytext=(0, 2), textcoords="offset points",
        ha="right", va="bottom", color=style.GREY,
    )  # fmt: skip


def _make_handles(grid: Mapping[str, Axes], content: PaperFigure, size: Size) -> list[Any]:
    """Return the samples of the legend: each curve once, and a hollow marker if there are any."""
    from matplotlib.lines import Line2D

    labelled = [
        one
        for panel in content.panels
        for one in zip(*grid[panel.name].get_legend_handles_labels(), strict=True)
    ]
    handles = list({label: handle for handle, label in labelled}.values())
    if not all(point.fits for panel in content.panels for point in panel.points):
        label = f"hollow: over {format_bytes(content.panels[0].budget_bytes)}"
        look: dict[str, Any] = {"marker": "o", "markersize": 4 * size.scale, "markerfacecolor": "white"}
        handles.append(Line2D([], [], linestyle="none", color=style.GREY, label=label, **look))
    return handles
