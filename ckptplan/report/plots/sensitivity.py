"""Draws the time of the best plan over each input: small multiples with the same axes."""

from __future__ import annotations

from math import ceil
from typing import Any

from matplotlib.figure import Figure
from matplotlib.lines import Line2D
from matplotlib.patches import Patch
from matplotlib.ticker import MaxNLocator

from ckptplan.report.fields import name_job
from ckptplan.report.picture import PAGE, Size
from ckptplan.report.plots import style
from ckptplan.report.plots.influence import (
    AGAIN,
    CHANGE,
    KEPT,
    LEAST,
    MOST,
    draw_influence,
)
from ckptplan.report.sensitivity import TRIFLE, list_changes, select_influences
from ckptplan.studies.sensitivity import Influence, Sensitivity
from ckptplan.units import format_seconds


def draw_sensitivity(study: Sensitivity, figure: Figure) -> None:
    """Draw a panel for each input that changes the time, the most influential first."""
    influences, trifles = select_influences(study)
    columns = _count_columns(style.find_width(figure))
    rows = max(1, ceil(len(influences) / columns))
    grid = figure.subplots(rows, min(columns, max(1, len(influences))), sharex=True, sharey=True, squeeze=False)
    for ax, influence in zip(grid.flat, influences, strict=False):
        draw_influence(influence, ax)
    for ax in grid.flat[len(influences) :]:
        ax.set_axis_off()
    first = grid.flat[0]
    first.set_xscale("log")
    first.set_xlim(LEAST / 1.06, MOST * 1.06)
    first.set_xticks([0.5, 1, 2], ["x 0.5", "now", "x 2"])
    first.set_xticks([], minor=True)
    for column in grid.T:
        # The lowest panel of each column names the factors.
        used = [ax for ax in column if ax.axison]
        used[-1].tick_params(labelbottom=True)
    changes = [change for influence in influences for change in list_changes(influence)] + [-TRIFLE, TRIFLE]
    room = 0.08 * (max(changes) - min(changes))
    first.set_ylim(min(changes) - room, max(changes) + room)
    first.yaxis.set_major_locator(MaxNLocator(4))
    style.set_share_axis(first.yaxis)
    best = f"{study.best.strategy}, {format_seconds(study.best.seconds)}"
    head = f"Time of the best plan over each input; now: {best}"
    title = style.wrap_lines(figure, head, name_job(study.workload, study.profile))
    figure.suptitle(title, x=0.01, ha="left", size="medium", weight="bold")
    figure.supylabel("change of the time", size="medium")
    few = f"changes under {100 * TRIFLE:g} %: {', '.join(one.name for one in trifles)}"
    _add_legend(figure, influences, style.wrap_lines(figure, few) if trifles else "")


def count_rows(study: Sensitivity, size: Size) -> int:
    """Return the number of rows of panels."""
    return max(1, ceil(len(select_influences(study)[0]) / _count_columns(size.width)))


def _count_columns(width: float) -> int:
    return 2 if width < PAGE.width else 3 if width == PAGE.width else 4


def _add_legend(figure: Figure, influences: list[Influence], note: str) -> None:
    """Explain the lines below the panels, under a note."""
    changes = [change for influence in influences for change in influence.break_evens]
    entries: list[Any] = [
        Line2D([], [], label="planned again", markersize=4, **AGAIN),
        Line2D([], [], label="plan of now kept", **KEPT),
        Line2D([], [], label="another strategy is best", **CHANGE),
    ]
    if any(None in (change.below, change.above) for change in changes):
        entries.append(Patch(label="nothing fits", **style.NOTHING))
    columns = 2 if style.find_width(figure) < PAGE.width else 4
    figure.legend(handles=entries, loc="outside lower left", ncols=columns, title=note, alignment="left")
