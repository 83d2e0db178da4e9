"""Pictures of what the model gives for the content of the paper's Figures 2 to 5.

A curve is told by colour, by marker and by dashes, so that a grey print shows all there is. Hollow
markers are settings that do not fit the memory.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from ckptplan.replication.figures import Panel, PaperFigure, Series
from ckptplan.report import style
from ckptplan.report.style import Look
from ckptplan.units import format_bytes

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure


#: Settings of one strategy beside each other.
_SETTINGS = (
    Look(colour=style.PURPLE, marker="D"),
    Look(colour=style.SKY, marker="X", dashes=(0, (3, 1))),
    Look(colour=style.BLACK, marker="P", dashes=(0, (1, 1))),
    Look(colour=style.GREEN, marker="v", dashes=(0, (5, 1, 1, 1))),
)
#: What an axis shows: its label and how many base units one of its own is.
_AXES: Mapping[str, tuple[str, float]] = {
    "steps": ("time steps T", 1),
    "neurons_per_unit": ("neurons a tile", 1),
    "chunk_size": ("chunk_size (steps)", 1),
    "remote_chunk_size": ("remote_chunk_size (steps)", 1),
    "seconds": ("time a batch (ms)", 1e-3),
    "local_peak_bytes": ("peak local memory (KiB)", 1024),
}
#: Chunks double: each doubling has the same width.
_DOUBLING = ("chunk_size", "remote_chunk_size")
#: Where curves climb out of the picture, it ends: the captions say so.
_TOP_MS, _TOP_KIB = 60, 900
#: Curves of more points than this have a marker only now and then.
_FEW = 20
#: Five names of so many letters fit side by side.
_SHORT = 12
#: Panels in rows, where they are not all in one.
_ROWS = {
    2: [["left", "left"], ["middle", "right"]],
    4: [["top left", "top right"], ["bottom left", "bottom right"]],
}


def paper_figure(content: PaperFigure) -> Figure:
    """Return a picture; to be made and saved in ``style.styled()``."""
    from matplotlib.figure import Figure

    rows = _ROWS.get(content.number, [[panel.name for panel in content.panels]])
    figure = Figure(figsize=(7.2, 0.85 + 2.35 * len(rows)), layout="constrained")
    figure.suptitle(content.title, x=0.01, ha="left", fontsize=10, fontweight="bold")
    mosaic: Any = rows  # a list of lists, which its type does not take
    grid = figure.subplot_mosaic(mosaic)
    for panel in content.panels:
        _draw(grid[panel.name], panel)
    _legends(figure, grid, content)
    return figure


def _draw(axes: Axes, panel: Panel) -> None:
    axes.set_title(panel.title, fontsize=9)
    for number, series in enumerate(_settings(panel)):
        _curve(axes, panel, series, _SETTINGS[number], place=number)
    for number, series in enumerate(panel.series):
        if series not in _settings(panel):
            _curve(axes, panel, series, style.look_of(series.strategy), place=number)
    _scale(axes, panel)
    if panel.advised is not None:
        axes.axvspan(*panel.advised, color=style.PALE, linewidth=0, zorder=0)
    if panel.y == "local_peak_bytes":
        _budget(axes, panel)


def _settings(panel: Panel) -> tuple[Series, ...]:
    """Return the curves that are several settings of one strategy."""
    own = tuple(series for series in panel.series if not series.is_baseline)
    return own if len({series.strategy for series in own}) == 1 else ()


def _curve(axes: Axes, panel: Panel, series: Series, look: Look, *, place: int) -> None:
    x_scale, y_scale = _AXES[panel.x][1], _AXES[panel.y][1]
    points = [(_value(point, panel.x) / x_scale, _value(point, panel.y) / y_scale) for point in series.points]
    fits = [point.fits for point in series.points]
    line: dict[str, Any] = {"color": look.colour, "linewidth": 1.2, "linestyle": look.dashes, "zorder": 3}
    marker: dict[str, Any] = {"marker": look.marker, "markersize": 4.2, "markeredgewidth": 0.9}
    marked = _marked(len(points), longest=max(len(one.points) for one in panel.series), place=place)
    axes.plot(*zip(*points, strict=True), **line)
    for kept, face in ((True, look.colour), (False, "white")):
        shown = [point for number, point in enumerate(points) if fits[number] is kept and number in marked]
        axes.plot(
            [x for x, _ in shown], [y for _, y in shown],
            color=look.colour, markerfacecolor=face, linestyle="none", zorder=4, **marker,
        )  # fmt: skip
    # The legend's sample has line and marker, which are drawn apart.
    axes.plot([], [], label=series.label, **line, **marker)


def _marked(count: int, *, longest: int, place: int) -> frozenset[int]:
    """Return which points of a curve have a marker: all of a few, else some, at other places on each curve."""
    if longest <= _FEW:
        return frozenset(range(count))
    step = longest // 6
    return frozenset({*range((1 + place) * step // 5, count - step // 3, step), count - 1})


def _value(point: Any, name: str) -> float:
    return float(getattr(point, name, None) or point.parameters[name])


def _scale(axes: Axes, panel: Panel) -> None:
    from matplotlib.ticker import FixedLocator, MaxNLocator, NullLocator

    axes.set_xlabel(_AXES[panel.x][0])
    axes.set_ylabel(_AXES[panel.y][0])
    values = [_value(point, panel.y) / _AXES[panel.y][1] for series in panel.series for point in series.points]
    axes.xaxis.set_major_formatter(_thousands)
    axes.yaxis.set_major_formatter(_thousands)
    if panel.x in _DOUBLING:
        axes.set_xscale("log", base=2)
        ends = [_value(point, panel.x) for series in panel.series for point in series.points]
        axes.xaxis.set_major_locator(
            FixedLocator([4.0**power for power in range(1, 7) if 4**power <= max(ends)])
        )
        axes.xaxis.set_minor_locator(NullLocator())
        axes.xaxis.set_major_formatter(_thousands)
        if panel.y == "seconds":
            axes.set_yscale("log")
            axes.yaxis.set_major_locator(FixedLocator([30, 40, 50, 70, 100, 150, 200, 300, 400]))
            axes.yaxis.set_minor_locator(NullLocator())
            axes.yaxis.set_major_formatter(_thousands)
        else:
            axes.set_ylim(top=min(_TOP_KIB, 1.05 * max(values)))
    else:
        axes.xaxis.set_major_locator(MaxNLocator(5, integer=True))
        axes.set_xlim(left=0)
        if panel.y == "seconds":
            axes.set_ylim(0, min(_TOP_MS, 1.05 * max(values)))
        else:
            axes.set_ylim(0, 1.12 * panel.budget_bytes / 1024)


def _thousands(value: float, _: object) -> str:
    return f"{value:,.10g}"


def _budget(axes: Axes, panel: Panel) -> None:
    limit = panel.budget_bytes / 1024
    axes.axhline(limit, color=style.GREY, linewidth=0.9, linestyle=(0, (2, 1)), zorder=2)
    axes.annotate(
        format_bytes(panel.budget_bytes),
        (1, limit), xycoords=("axes fraction", "data"), xytext=(0, 2), textcoords="offset points",
        ha="right", va="bottom", color=style.GREY, fontsize=8,
    )  # fmt: skip


def _legends(figure: Figure, grid: Mapping[str, Axes], content: PaperFigure) -> None:
    """Name the curves once: below all panels, or above the falling curves of each row."""
    labels = [[series.label for series in panel.series] for panel in content.panels]
    if all(names == labels[0] for names in labels):
        handles = _handles(grid[content.panels[0].name], content.panels[0])
        # Long names in two lines: five of them would run out of the picture.
        columns = 5 if max(map(len, labels[0])) <= _SHORT else 3
        figure.legend(handles=handles, loc="outside lower left", ncols=columns, handlelength=2.8)
        return
    for panel in content.panels:
        if panel.y == "seconds":
            axes = grid[panel.name]
            axes.set_ylim(top=2.4 * axes.get_ylim()[1])
            axes.legend(handles=_handles(axes, panel), loc="upper right", handlelength=2.8, fontsize=8)


def _handles(axes: Axes, panel: Panel) -> list[Any]:
    """Return the samples of a legend, with that of hollow markers where there are any."""
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
