"""Draws the content of the paper's Figures 2 to 5, computed by the model.

Curves differ in colour, marker and dashes, so that they stay distinct in a grey print. Hollow markers show
settings that do not fit the memory.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from itertools import cycle
from typing import Any

from matplotlib import rcParams
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from ckptplan.paper.figures import Panel, PaperFigure
from ckptplan.report.picture import PAGE, Size
from ckptplan.report.plots import style
from ckptplan.report.plots.figures import make_figure, set_height
from ckptplan.report.plots.style import set_ticks
from ckptplan.units import format_bytes

#: The label of each axis, and its unit in SI base units or bytes.
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
#: The upper ends of axes if curves rise further. The captions mention this.
_TOP = {"seconds": 60.0, "local_peak_bytes": 900.0}
#: A curve of at most this many points has a marker at each point.
_FEW = 20
#: The arrangement of panels in figures with more than one row.
_LAYOUTS = {2: [[0, 0], [1, 2]], 4: [[0, 1], [2, 3]]}
#: Formats a tick.
_COUNT = "{:,.10g}".format
_MARKERS, _DASHES = "os^DvX<P", ((), (5, 1.5), (5, 1.5, 1, 1.5), (1, 1.2), (2.5, 1.2))


def draw_figure(content: PaperFigure, size: Size = PAGE) -> Figure:
    """Draw a figure in a size."""
    places = range(len(content.panels))
    layout = _LAYOUTS.get(content.number, [list(places)])
    if size.width < PAGE.width:
        layout = [[place] for place in places]
    return make_figure(lambda figure: _draw(content, figure, layout), size)


def _draw(content: PaperFigure, figure: Figure, layout: list[list[int]]) -> None:
    set_height(figure, 1.1 + 2.1 * len(layout))
    looks = _choose_looks(content)
    axes: Mapping[int, Axes] = figure.subplot_mosaic(layout)  # type: ignore[arg-type]
    for place, panel in enumerate(content.panels):
        _draw_panel(panel, axes[place], looks)
    entries = {
        name: entry for ax in axes.values() for entry, name in zip(*ax.get_legend_handles_labels(), strict=True)
    }
    budgets = dict.fromkeys(format_bytes(panel.budget_bytes) for panel in content.panels if _has_hollow(panel))
    style.set_title(figure, content.title, *(f"hollow: over {budget}" for budget in budgets))
    style.add_legend(figure, [*entries.values()])


def _choose_looks(content: PaperFigure) -> dict[str, dict[str, Any]]:
    """Choose colour, marker and dashes of each curve for all panels. Strategies keep their usual colours."""
    labels = {series.label: series.strategy for panel in content.panels for series in panel.series}
    counts = Counter(labels.values())
    usual = dict(zip(("base", *style.PAPER), ("black", *style.list_colours()), strict=False))
    fixed = {label: usual[name] for label, name in labels.items() if counts[name] == 1 and name in usual}
    # Yellow is too pale for thin lines.
    palette = [*(colour for colour in style.list_colours() if colour != style.YELLOW), style.GREY, "black"]
    remaining = cycle([colour for colour in palette if colour not in fixed.values()] or palette)
    return {
        label: {
            "color": fixed.get(label) or next(remaining),
            "marker": _MARKERS[place % len(_MARKERS)],
            "linestyle": (0, _DASHES[place % len(_DASHES)]) if place % len(_DASHES) else "-",
            "markersize": 2.5 * rcParams["lines.linewidth"],
            "label": label,
        }
        for place, label in enumerate(labels)
    }


def _has_hollow(panel: Panel) -> bool:
    """Return whether a panel has hollow markers: points that do not fit."""
    return any(
        not point.fits for series in panel.series if len(series.points) <= _FEW for point in series.points
    )


def _draw_panel(panel: Panel, ax: Axes, looks: Mapping[str, dict[str, Any]]) -> None:
    """Draw the curves of a panel, the budget, and the range that the paper advises."""
    (x_label, x_unit), (y_label, y_unit) = _AXES[panel.x], _AXES[panel.y]
    all_y: list[float] = []
    for series in panel.series:
        x, y = (
            [float(point.row[name]) / unit for point in series.points]
            for name, unit in ((panel.x, x_unit), (panel.y, y_unit))
        )
        look, all_y = looks[series.label], all_y + y
        is_short = len(x) <= _FEW
        ax.plot(x, y, **look if is_short else look | {"marker": ""}, zorder=2.5)
        hollow = [place for place, point in enumerate(series.points) if is_short and not point.fits]
        face = look | {"linestyle": "none", "markerfacecolor": "white", "label": None}
        ax.plot([x[place] for place in hollow], [y[place] for place in hollow], **face, zorder=3)
    ax.set(xlabel=x_label, ylabel=y_label)
    style.set_title(ax, panel.title, letter=0.6, weight="normal")
    _set_scales(panel, ax, all_y)
    if panel.y == "local_peak_bytes":
        ax.axhline(
            panel.budget_bytes / 1024, **style.LIMIT, label=f"budget: {format_bytes(panel.budget_bytes)}"
        )
    if panel.advised is not None:
        ax.axvspan(*panel.advised, facecolor=style.GREEN, alpha=0.15, linewidth=0, label="advised by the paper")


def _set_scales(panel: Panel, ax: Axes, y: list[float]) -> None:
    """Set the ends of the axes so that all curves are visible, up to the limits of ``_TOP``."""
    top = min(_TOP[panel.y], 1.05 * max(y))
    if panel.x not in _DOUBLING:
        ax.set_xlim(left=0)
        style.format_axis(ax.xaxis, _COUNT)
        ax.set_ylim(0, top if panel.y == "seconds" else 1.2 * panel.budget_bytes / 1024)
        return
    ax.set_xscale("log")
    set_ticks(ax.xaxis, [4.0**power for power in range(10)], _COUNT)
    if panel.y == "seconds":
        ax.set_yscale("log")
        ax.set_ylim(min(y) / 1.1, max(y) * 1.1)
        ticks = [step * 10.0**power for power in range(4) for step in (1, 1.5, 2, 3, 4, 5, 7)]
        set_ticks(ax.yaxis, ticks, _COUNT)
    else:
        ax.set_ylim(0.95 * min(y), top)
