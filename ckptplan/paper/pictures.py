"""Pictures of the content of the paper's Figures 2 to 5, computed by the model.

Curves differ in colour, marker and dashes, so that they stay distinct in a grey print. Hollow markers are
settings that do not fit the memory.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from ckptplan.paper.figures import Panel, PaperFigure, Series
from ckptplan.report import style
from ckptplan.report.labels import Label, place_labels, set_legend, set_title, settle
from ckptplan.report.style import PAGE, Look, Size
from ckptplan.units import format_bytes

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure


#: Variants of one strategy in the same panel.
_VARIANTS = (
    Look(colour=style.PURPLE, marker="D"),
    Look(colour=style.SKY, marker="X", dashes=(0, (3, 1))),
    Look(colour=style.BLACK, marker="P", dashes=(0, (1, 1))),
    Look(colour=style.GREEN, marker="v", dashes=(0, (5, 1, 1, 1))),
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
#: Names of more characters are in the legend: they would cross other curves.
_LONG = 16
#: Arrangement of panels by figure; one row by default.
_ROWS = {
    2: [["left", "left"], ["middle", "right"]],
    4: [["top left", "top right"], ["bottom left", "bottom right"]],
}


def draw_figure(content: PaperFigure, size: Size = PAGE) -> Figure:
    """Return a picture. Call it, and save the picture, within ``style.styled(size)``.

    Curves are named beside them; those with long names, or for whose names a panel has no room, in a legend.
    """
    labels = {series.label for panel in content.panels for series in panel.series}
    named = {label for label in labels if len(label) > _LONG}
    while True:
        # The layout leaves room for a legend only if it is there from the start; a larger one may leave less
        # room for the other names.
        figure, lacking = _draw(content, size, legend=named)
        if not lacking - named:
            return figure
        named |= lacking


def _draw(content: PaperFigure, size: Size, *, legend: set[str]) -> tuple[Figure, set[str]]:
    """Return the picture, and the names of the curves whose labels found no place in some panel."""
    from matplotlib.figure import Figure

    narrow = size.width < PAGE.width
    rows = _ROWS.get(content.number, [[panel.name for panel in content.panels]])
    if narrow:
        rows = [[panel.name] for panel in content.panels]
    height = 0.5 + (1.9 if narrow else 2.3) * len(rows)
    figure = Figure(figsize=size.inches(height), layout="constrained")
    set_title(figure, content.title)
    mosaic: Any = rows  # a list of lists, which its type does not take
    grid = figure.subplot_mosaic(mosaic)
    for panel in content.panels:
        _draw_panel(grid[panel.name], panel, size)
    set_legend(figure, _make_handles(grid, content, legend, size), handlelength=2.8)
    settle(figure)
    lacking = {
        name for panel in content.panels for name in _label(grid[panel.name], panel, size, legend=legend)
    }
    return figure, lacking


def _draw_panel(axes: Axes, panel: Panel, size: Size) -> None:
    axes.set_title(panel.title)
    for place, (series, look) in enumerate(_list_looks(panel)):
        _draw_curve(axes, panel, series, look, place=place, size=size)
    _scale_axes(axes, panel)
    if panel.advised is not None:
        axes.axvspan(*panel.advised, color=style.PALE, linewidth=0, zorder=0)
    if panel.y == "local_peak_bytes":
        _draw_budget(axes, panel)


def _list_looks(panel: Panel) -> list[tuple[Series, Look]]:
    """Return the curves of a panel and how each is drawn: variants of one strategy first."""
    variants = _select_variants(panel)
    others = [series for series in panel.series if series not in variants]
    return [
        *zip(variants, _VARIANTS, strict=False),
        *((series, style.look_of(series.strategy)) for series in others),
    ]


def _label(axes: Axes, panel: Panel, size: Size, *, legend: set[str]) -> list[str]:
    """Write the names of the curves beside them; return those for which there is no room."""
    shown = [(series, look) for series, look in _list_looks(panel) if series.label not in legend]
    labels = [
        Label(text=series.label, points=_list_points(panel, series), colour=look.colour)
        for series, look in shown
    ]
    others = [_list_points(panel, series) for series in panel.series if series.label in legend]
    marks = [
        (x, y, 6 * size.scale)
        for place, (series, _) in enumerate(_list_looks(panel))
        for number, (x, y) in enumerate(_list_points(panel, series))
        if number in _choose_marked(panel, series, place=place)
    ]
    return [label.text for label in place_labels(axes, labels, curves=others, marks=marks)]


def _select_variants(panel: Panel) -> tuple[Series, ...]:
    """Return the curves of a panel that compares several settings of one strategy, else none."""
    own = tuple(series for series in panel.series if not series.is_baseline)
    return own if len({series.strategy for series in own}) == 1 else ()


def _list_points(panel: Panel, series: Series) -> list[tuple[float, float]]:
    """Return the points of a curve in the units of the axes."""
    x_scale, y_scale = _AXES[panel.x][1], _AXES[panel.y][1]
    return [
        (_read_value(point, panel.x) / x_scale, _read_value(point, panel.y) / y_scale)
        for point in series.points
    ]


def _draw_curve(axes: Axes, panel: Panel, series: Series, look: Look, *, place: int, size: Size) -> None:
    points = _list_points(panel, series)
    fits = [point.fits for point in series.points]
    line: dict[str, Any] = {"color": look.colour, "linewidth": 1.1 * size.scale, "linestyle": look.dashes}
    marker: dict[str, Any] = {
        "marker": look.marker,
        "markersize": 4 * size.scale,
        "markeredgewidth": 0.9 * size.scale,
    }
    marked = _choose_marked(panel, series, place=place)
    axes.plot(*zip(*points, strict=True), **line, zorder=3)
    for kept, face in ((True, look.colour), (False, "white")):
        shown = [point for number, point in enumerate(points) if fits[number] is kept and number in marked]
        axes.plot(
            [x for x, _ in shown], [y for _, y in shown],
            color=look.colour, markerfacecolor=face, linestyle="none", zorder=4, **marker,
        )  # fmt: skip
    # Line and markers are drawn separately; the legend's sample has both.
    axes.plot([], [], label=series.label, **line, **marker)


def _choose_marked(panel: Panel, series: Series, *, place: int) -> frozenset[int]:
    """Return which points have a marker: all on a short curve, else some, staggered between curves."""
    count, longest = len(series.points), max(len(other.points) for other in panel.series)
    if longest <= _FEW:
        return frozenset(range(count))
    step = longest // 6
    return frozenset({*range((1 + place) * step // 5, count - step // 3, step), count - 1})


def _read_value(point: Any, name: str) -> float:
    return float(getattr(point, name, None) or point.parameters[name])


def _scale_axes(axes: Axes, panel: Panel) -> None:
    from matplotlib.ticker import FixedLocator, MaxNLocator, NullLocator

    axes.set_xlabel(_AXES[panel.x][0])
    axes.set_ylabel(_AXES[panel.y][0])
    values = [
        _read_value(point, panel.y) / _AXES[panel.y][1] for series in panel.series for point in series.points
    ]
    axes.xaxis.set_major_formatter(_format_thousands)
    axes.yaxis.set_major_formatter(_format_thousands)
    if panel.x in _DOUBLING:
        axes.set_xscale("log", base=2)
        ends = [_read_value(point, panel.x) for series in panel.series for point in series.points]
        axes.xaxis.set_major_locator(
            FixedLocator([4.0**power for power in range(1, 7) if 4**power <= max(ends)])
        )
        axes.xaxis.set_minor_locator(NullLocator())
        axes.xaxis.set_major_formatter(_format_thousands)
        if panel.y == "seconds":
            axes.set_yscale("log")
            axes.yaxis.set_major_locator(FixedLocator([30, 40, 50, 70, 100, 150, 200, 300, 400]))
            axes.yaxis.set_minor_locator(NullLocator())
            axes.yaxis.set_major_formatter(_format_thousands)
        else:
            axes.set_ylim(top=min(_TOP_KIB, 1.05 * max(values)))
    else:
        axes.xaxis.set_major_locator(MaxNLocator(5, integer=True))
        axes.set_xlim(left=0)
        if panel.y == "seconds":
            axes.set_ylim(0, min(_TOP_MS, 1.05 * max(values)))
        else:
            axes.set_ylim(0, 1.12 * panel.budget_bytes / 1024)


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


def _make_handles(grid: Mapping[str, Axes], content: PaperFigure, legend: set[str], size: Size) -> list[Any]:
    """Return the samples of the legend: curves without a label, and a hollow marker if there are any."""
    from matplotlib.lines import Line2D

    found = {
        str(line.get_label()): line
        for panel in content.panels
        for line in grid[panel.name].lines
        if line.get_label() in legend
    }
    handles: list[Any] = list(found.values())
    if not all(point.fits for panel in content.panels for series in panel.series for point in series.points):
        label = f"hollow: over {format_bytes(content.panels[0].budget_bytes)}"
        look: dict[str, Any] = {
            "marker": "o",
            "markersize": 4 * size.scale,
            "markerfacecolor": "white",
            "color": style.GREY,
        }
        handles.append(Line2D([], [], linestyle="none", label=label, **look))
    return handles
