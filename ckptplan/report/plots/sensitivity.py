"""Draws the time of the best plan over each input: small multiples with the same axes."""

from __future__ import annotations

from math import ceil, log
from typing import Any

import numpy as np
from matplotlib import rcParams
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.lines import Line2D
from matplotlib.patches import Patch
from matplotlib.ticker import MaxNLocator

from ckptplan.report.fields import name_job
from ckptplan.report.picture import PAGE
from ckptplan.report.plots import style
from ckptplan.report.plots.figures import set_height
from ckptplan.report.plots.svg import add_tooltips
from ckptplan.report.sensitivity import format_values, sort_by_effect
from ckptplan.studies.sensitivity import FACTORS, Influence, Sensitivity
from ckptplan.units import format_percent, format_seconds

#: An input that changes the time by less than this share gets no panel of the picture, but is named.
TRIFLE = 0.0005
_LEAST, _MOST = FACTORS[0], FACTORS[-1]
#: The lines of new plans, of the kept plan, and of changes of the best strategy.
_AGAIN: dict[str, Any] = {"color": style.BLUE, "marker": "o"}
_KEPT: dict[str, Any] = {"color": style.ORANGE, "linestyle": (0, (4, 2))}
_CHANGE: dict[str, Any] = {"color": style.VERMILION, "linestyle": (0, (1, 1))}


def draw_sensitivity(study: Sensitivity, figure: Figure) -> None:
    """Draw a panel for each input that changes the time, the most influential first."""
    influences, trifles = _select_influences(study)
    width = style.find_width(figure)
    columns = 2 if width < PAGE.width else 3 if width == PAGE.width else 4
    rows = max(1, ceil(len(influences) / columns))
    set_height(figure, 1.2 + 1.45 * rows)
    grid = figure.subplots(rows, min(columns, max(1, len(influences))), sharex=True, sharey=True, squeeze=False)
    # Set the limits before drawing anything, so that matplotlib does not search for them after each line.
    first = grid.flat[0]
    first.set_xscale("log")
    first.set_xlim(_LEAST / 1.06, _MOST * 1.06)
    first.set_xticks([0.5, 1, 2], ["x 0.5", "now", "x 2"])
    first.set_xticks([], minor=True)
    changes = [change for influence in influences for change in _list_changes(influence)] + [-TRIFLE, TRIFLE]
    room = 0.08 * (max(changes) - min(changes))
    first.set_ylim(min(changes) - room, max(changes) + room)
    first.yaxis.set_major_locator(MaxNLocator(4))
    style.set_share_axis(first.yaxis)
    for ax, influence in zip(grid.flat, influences, strict=False):
        _draw_influence(influence, ax)
    for ax in grid.flat[len(influences) :]:
        ax.set_axis_off()
    for column in grid.T:
        # The lowest panel of each column names the factors.
        used = [ax for ax in column if ax.axison]
        used[-1].tick_params(labelbottom=True)
    best = f"{study.best.strategy}, {format_seconds(study.best.seconds)}"
    head = f"Time of the best plan over each input; now: {best}"
    style.set_title(figure, head, name_job(study.workload, study.profile))
    figure.supylabel("change of the time", size="medium")
    note = f"changes under {100 * TRIFLE:g} %: {', '.join(influence.name for influence in trifles)}"
    _add_legend(figure, influences, style.wrap_lines(figure, note) if trifles else "")


def _select_influences(study: Sensitivity) -> tuple[list[Influence], list[Influence]]:
    """Return the inputs that change the time or leave no plan, the largest effect first, and the other ones."""
    large: list[Influence] = []
    trifles: list[Influence] = []
    for influence in sort_by_effect(study):
        is_large = max(map(abs, _list_changes(influence)), default=0.0) >= TRIFLE
        has_gap = any(point.best is None for point in influence.points)
        (large if is_large or has_gap else trifles).append(influence)
    return large, trifles


def _list_changes(influence: Influence) -> list[float]:
    """Return the changes of time that are drawn, of new plans and of the kept plan."""
    replanned = [point.change for point in influence.points if point.change is not None]
    return replanned + [point.kept_change for point in influence.points if point.kept_fits]


def _add_legend(figure: Figure, influences: list[Influence], note: str) -> None:
    """Explain the lines below the panels, under a note."""
    changes = [change for influence in influences for change in influence.break_evens]
    entries: list[Any] = [
        Line2D([], [], label="planned again", markersize=4, **_AGAIN),
        Line2D([], [], label="plan of now kept", **_KEPT),
        Line2D([], [], label="another strategy is best", **_CHANGE),
    ]
    if any(None in (change.below, change.above) for change in changes):
        entries.append(Patch(label="nothing fits", **style.NOTHING))
    style.add_legend(figure, entries, title=note)


def _draw_influence(influence: Influence, ax: Axes) -> None:
    """Draw the time over one input, of new plans and of the kept plan, and where the best strategy changes."""
    now = (1.0, 0.0, 0.0)
    points = [
        (point.factor, point.change, point.kept_change if point.kept_fits else None)
        for point in influence.points
    ]
    factors, replanned, kept = (
        np.array(column, dtype=float) for column in zip(*sorted([now, *points]), strict=True)
    )
    ax.axhline(0, color="black", linewidth=0.6)
    ax.plot(factors, replanned, **_AGAIN, markersize=2 * rcParams["lines.linewidth"])
    ax.plot(factors, kept, **_KEPT)
    for is_below, factor, strategy in _list_break_evens(influence):
        if strategy is None:
            ax.axvspan(*((0, factor) if is_below else (factor, 10)), **style.NOTHING)
        else:
            ax.axvline(factor, **_CHANGE)
    planned = [
        (point.factor, point.change, point.best.strategy)
        for point in influence.points
        if point.best is not None and point.change is not None
    ]
    texts = [f"x {factor:g}: {strategy}, {format_percent(change)}" for factor, change, strategy in planned]
    add_tooltips(ax, [factor for factor, _, _ in planned], [change for _, change, _ in planned], texts)
    about = [format_values(influence.axis, influence.values), *_describe_change(influence)]
    ax.text(0, 1.02, "; ".join(about), transform=ax.transAxes, va="bottom", size="x-small")
    ax.set_title(influence.name, size="small", pad=4 + 1.1 * rcParams["font.size"])


def _list_break_evens(influence: Influence) -> list[tuple[bool, float, str | None]]:
    """Return changes of strategy: whether the factor is below 1, the factor, and the strategy beyond it."""
    return [
        (change.factor < 1, change.factor, change.below if change.factor < 1 else change.above)
        for change in influence.break_evens
        if _LEAST < change.factor < _MOST
    ]


def _describe_change(influence: Influence) -> list[str]:
    """Return ["x > 1.78: double"] for the strategy beyond the nearest change, [] if there is none."""
    named = [change for change in _list_break_evens(influence) if change[2] is not None]
    nearest = sorted(named, key=lambda change: abs(log(change[1])))[:1]
    return [f"x {'<' if is_below else '>'} {factor:.3g}: {strategy}" for is_below, factor, strategy in nearest]
