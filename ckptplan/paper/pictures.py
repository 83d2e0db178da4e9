"""Pictures of the content of the paper's Figures 2 to 5, computed by the model.

Curves differ in colour, marker and dashes, so that they stay distinct in a grey print. Hollow markers are
settings that do not fit the memory.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from ckptplan.paper.figures.content import Panel, PaperFigure, Series
from ckptplan.report import style
from ckptplan.report.style import Look
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
#: Five labels of this many characters fit in one row.
_SHORT = 12
#: Arrangement of panels by figure; one row by default.
_ROWS = {
    2: [["left", "left"], ["middle", "right"]],
    4: [["top left", "top right"], ["bottom left", "bottom right"]],
}


def draw_figure(content: PaperFigure) -> Figure:
    """Return a picture. Call it, and save the picture, within ``style.styled()``."""
    from matplotlib.figure import Figure

    rows = _ROWS.get(content.number, [[panel.name for panel in content.panels]])
    figure = Figure(figsize=(7.2, 0.85 + 2.35 * len(rows)), layout="constrained")
    figure.suptitle(content.title, x=0.01, ha="left", fontsize=10, fontweight="bold")
    mosaic: Any = rows  # a list of lists, which its type does not take
    grid = figure.subplot_mosaic(mosaic)
    for panel in content.panels:
        _draw_panel(grid[panel.name], panel)
    _add_legends(figure, grid, content)
    return figure


def _draw_panel(axes: Axes, panel: Panel) -> None:
    axes.set_title(panel.title, fontsize=9)
    for number, series in enumerate(_select_variants(panel)):
        _draw_curve(axes, panel, series, _VARIANTS[number], place=number)
    for number, series in enumerate(panel.series):
        if series not in _select_variants(panel):
            _draw_curve(axes, panel, series, style.look_of(series.strategy), place=number)
    _scale_axes(axes, panel)
    if panel.advised is not None:
        axes.axvspan(*panel.advised, color=style.PALE, linewidth=0, zorder=0)
    if panel.y == "local_peak_bytes":
        _draw_budget(axes, panel)


def _select_variants(panel: Panel) -> tuple[Series, ...]:
    """Return the curves of a panel that compares several settings of one strategy, else none."""
    own = tuple(series for series in panel.series if not series.is_baseline)
    return own if len({series.strategy for series in own}) == 1 else ()


def _draw_curve(axes: Axes, panel: Panel, series: Series, look: Look, *, place: int) -> None:
    x_scale, y_scale = _AXES[panel.x][1], _AXES[panel.y][1]
    points = [
        (_read_value(point, panel.x) / x_scale, _read_value(point, panel.y) / y_scale)
        for point in series.points
    ]
    fits = [point.fits for point in series.points]
    line: dict[str, Any] = {"color": look.colour, "linewidth": 1.2, "linestyle": look.dashes, "zorder": 3}
    marker: dict[str, Any] = {"marker": look.marker, "markersize": 4.2, "markeredgewidth": 0.9}
    longest = max(len(other.points) for other in panel.series)
    marked = _choose_marked(len(points), longest=longest, place=place)
    axes.plot(*zip(*points, strict=True), **line)
    for kept, face in ((True, look.colour), (False, "white")):
        shown = [point for number, point in enumerate(points) if fits[number] is kept and number in marked]
        axes.plot(
            [x for x, _ in shown], [y for _, y in shown],
            color=look.colour, markerfacecolor=face, linestyle="none", zorder=4, **marker,
        )  # fmt: skip
    # Line and markers are drawn separately; the legend's sample has both.
    axes.plot([], [], label=series.label, **line, **marker)


def _choose_marked(count: int, *, longest: int, place: int) -> frozenset[int]:
    """Return which points have a marker: all on a short curve, else some, staggered between curves."""
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
        ha="right", va="bottom", color=style.GREY, fontsize=8,
    )  # fmt: skip


def _add_legends(figure: Figure, grid: Mapping[str, Axes], content: PaperFigure) -> None:
    """Add one legend below all panels if they share their curves, else one in each panel of times."""
    labels = [[series.label for series in panel.series] for panel in content.panels]
    if all(names == labels[0] for names in labels):
        handles = _make_handles(grid[content.panels[0].name], content.panels[0])
        # Long labels take two rows: five in one would not fit the width.
        columns = 5 if max(map(len, labels[0])) <= _SHORT else 3
        figure.legend(handles=handles, loc="outside lower left", ncols=columns, handlelength=2.8)
        return
    for panel in content.panels:
        if panel.y == "seconds":
            axes = grid[panel.name]
            axes.set_ylim(top=2.4 * axes.get_ylim()[1])
            axes.legend(handles=_make_handles(axes, panel), loc="upper right", handlelength=2.8, fontsize=8)


def _make_handles(axes: Axes, panel: Panel) -> list[Any]:
    """Return the samples of a legend, with one for hollow markers if the panel has any."""
    from matplotlib.lines import Line2D

    handles: list[Any] = list(axes.get_legend_handles_labels()[0])
    if not all(point.fits for series in panel.series for point in series.points):
        label = f"hollow: over {format_bytes(panel.budget_bytes)}"
        look: dict[str, Any] = {
            "marker": "o",
            "markersize": 4.2,
            "markerfacecolor": "white",
            "color": style.GREY,
        }
        handles.append(Line2D([], [], linestyle="none", label=label, **look))
    return handles
