"""Pictures of the content of the paper's Figures 2 to 5, computed by the model.

Curves differ in colour, marker and dashes, so that they stay distinct in a grey print. Hollow markers are
settings that do not fit the memory.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from itertools import compress
from typing import TYPE_CHECKING, Any

from ckptplan.paper.figures import Panel, PaperFigure, Series
from ckptplan.report import style
from ckptplan.report.marks import Marks, draw_marks
from ckptplan.report.style import PAGE, Look, Size, finish_figure, start_figure
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
#: Curves of at most so many points mark all of them.
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
    samples: dict[str, Any] = {}
    for panel in content.panels:
        axes = grid[panel.name]
        axes.set_title(panel.title)
        samples |= draw_marks(axes, list(_mark_panel(panel, looks)), size)
        _scale_axes(axes, panel)
    return finish_figure(figure, list(samples.values()), size)


def _choose_looks(content: PaperFigure) -> dict[str, Look]:
    """Return how curves are drawn: as settings of one strategy that a panel compares, or as strategies."""
    looks = {one.label: style.look_of(one.strategy) for panel in content.panels for one in panel.series}
    variants = dict.fromkeys(one.label for panel in content.panels for one in _select_variants(panel))
    return looks | dict(zip(variants, _VARIANTS, strict=False))


def _select_variants(panel: Panel) -> tuple[Series, ...]:
    """Return the curves of a panel that compares several settings of one strategy, else none."""
    own = tuple(series for series in panel.series if not series.is_baseline)
    return own if len({series.strategy for series in own}) == 1 else ()


def _mark_panel(panel: Panel, looks: Mapping[str, Look]) -> Iterator[Marks]:
    """Yield what a panel shows: the advised range, the budget, curves, and the points of short ones."""
    if panel.advised is not None:
        low, high = panel.advised
        yield Marks(kind="band", rows=[{"x": low, "x2": high}], colour=style.PALE)
    budget = format_bytes(panel.budget_bytes)
    for series in panel.series:
        look, rows = looks[series.label], _list_points(panel, series)
        form: dict[str, Any] = {"colour": look.colour, "marker": look.marker}
        yield Marks(kind="line", rows=rows, label=series.label, dashes=look.dashes, size=1.1, **form)
        for fits, face, label in ((True, look.colour, ""), (False, "white", f"hollow: over {budget}")):
            drawn = [
                point.fits is fits and row["y"] <= _TOP_KIB
                for row, point in zip(rows, series.points, strict=True)
            ]
            if len(rows) <= _FEW:
                some = list(compress(rows, drawn))
                yield Marks(kind="point", rows=some, face=face, label=label, size=4, **form)
    if panel.y == "local_peak_bytes":
        limit = [{"y": panel.budget_bytes / 1024}]
        yield Marks(kind="rule", rows=limit, colour=style.GREY, dashes=(0, (2, 1)), size=0.9, label=budget)


def _list_points(panel: Panel, series: Series) -> list[dict[str, float]]:
    """Return the points of a curve in the units of the axes."""
    x_scale, y_scale = _AXES[panel.x][1], _AXES[panel.y][1]
    return [
        {"x": float(row[panel.x]) / x_scale, "y": float(row[panel.y]) / y_scale}
        for row in (point.row for point in series.points)
    ]


def _scale_axes(axes: Axes, panel: Panel) -> None:
    from matplotlib.ticker import LogLocator, MaxNLocator, NullLocator

    axes.set(xlabel=_AXES[panel.x][0], ylabel=_AXES[panel.y][0])
    highest = 1.05 * max(row["y"] for series in panel.series for row in _list_points(panel, series))
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
        axis.set_major_formatter("{x:,.10g}")
