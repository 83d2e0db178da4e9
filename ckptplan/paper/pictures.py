"""Pictures of the content of the paper's Figures 2 to 5, computed by the model.

Curves differ in colour, marker and dashes, so that they stay distinct in a grey print. Hollow markers are
settings that do not fit the memory.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from itertools import compress
from typing import Any

from ckptplan.paper.figures import Panel, PaperFigure, Series
from ckptplan.report import style
from ckptplan.report.charts import Marks, Plot, Scale, scale_counts
from ckptplan.report.picture import Picture
from ckptplan.report.style import PAGE, Look, Size
from ckptplan.units import format_bytes

#: Variants of one strategy in the same figure.
_VARIANTS = (
    Look(colour=style.PURPLE, marker="diamond"),
    Look(colour=style.SKY, marker=style.CROSS, dashes=(3, 1)),
    Look(colour=style.BLACK, marker="cross", dashes=(1, 1)),
    Look(colour=style.GREEN, marker="triangle-down", dashes=(5, 1, 1, 1)),
    Look(colour=style.ORANGE, marker=style.CIRCLE, dashes=(5, 1.5)),
    Look(colour=style.GREY, marker="triangle-left"),
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
#: How many panels of a figure stand in each row; one row by default.
_ROWS = {2: (1, 2), 4: (2, 2)}


def draw_figure(content: PaperFigure, size: Size = PAGE) -> Picture:
    """Return a picture."""
    looks = _choose_looks(content)
    plots = iter([_make_plot(panel, looks) for panel in content.panels])
    narrow, count = size.width < PAGE.width, len(content.panels)
    lengths = (1,) * count if narrow else _ROWS.get(content.number, (count,))
    rows = [[next(plots) for _ in range(length)] for length in lengths]
    over = {panel.budget_bytes for panel in content.panels if _has_hollow(panel)}
    title = [content.title, *(f"hollow: over {format_bytes(budget)}" for budget in over)]
    return Picture(title=title, rows=rows, heights=[1.4] * len(rows), size=size)


def _has_hollow(panel: Panel) -> bool:
    """Return whether points are marked that do not fit."""
    return any(not point.fits for one in panel.series if len(one.points) <= _FEW for point in one.points)


def _make_plot(panel: Panel, looks: Mapping[str, Look]) -> Plot:
    """Return the curves of a panel, between axes that end where all of them are seen, or at a limit."""
    places = [place for series in panel.series for place in _list_points(panel, series)]
    (least, most), (low, high) = (
        (min(ends), max(ends)) for ends in zip(*map(dict.values, places), strict=True)
    )
    (across, _), (up, _) = _AXES[panel.x], _AXES[panel.y]
    doubles, timed = panel.x in _DOUBLING, panel.y == "seconds"
    top = min(_TOP_MS if timed else _TOP_KIB, 1.05 * high)
    if not doubles:
        x = scale_counts(across, 0, 1.05 * most, whole=True)
        y = scale_counts(up, 0, top if timed else 1.2 * panel.budget_bytes / 1024)
    else:
        x = _scale_log(across, least / 1.15, 1.15 * most, [4.0**power for power in range(10)])
        steps = [factor * 10.0**power for power in range(4) for factor in (1, 1.5, 2, 3, 4, 5, 7)]
        y = _scale_log(up, low / 1.1, 1.1 * high, steps) if timed else scale_counts(up, 0.95 * low, top)
    return Plot(x=x, y=y, marks=list(_mark_panel(panel, looks)), title=panel.title)


def _scale_log(title: str, low: float, high: float, values: Sequence[float]) -> Scale:
    ticks = {value: f"{value:,.10g}" for value in values if low <= value <= high}
    return Scale(title=title, low=low, high=high, ticks=ticks, kind="log")


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
    for series in panel.series:
        look, rows = looks[series.label], _list_points(panel, series)
        form: dict[str, Any] = {"colour": look.colour, "marker": look.marker}
        yield Marks(kind="line", rows=rows, label=series.label, dashes=look.dashes, colour=look.colour)
        for fits, face in ((True, look.colour), (False, "white")):
            drawn = [
                point.fits is fits and row["y"] <= _TOP_KIB
                for row, point in zip(rows, series.points, strict=True)
            ]
            if len(rows) <= _FEW:
                some = list(compress(rows, drawn))
                yield Marks(kind="point", rows=some, face=face, size=3, **form)
    if panel.y == "local_peak_bytes":
        limit = [{"y": panel.budget_bytes / 1024}]
        yield Marks(
            kind="rule",
            rows=limit,
            colour=style.GREY,
            dashes=(2, 1),
            size=0.9,
            label=format_bytes(panel.budget_bytes),
        )


def _list_points(panel: Panel, series: Series) -> list[dict[str, float]]:
    """Return the points of a curve in the units of the axes."""
    x_scale, y_scale = _AXES[panel.x][1], _AXES[panel.y][1]
    return [
        {"x": float(row[panel.x]) / x_scale, "y": float(row[panel.y]) / y_scale}
        for row in (point.row for point in series.points)
    ]
