"""Draws the largest value that each strategy allows."""

from __future__ import annotations

from typing import Any

from matplotlib import rcParams
from matplotlib.axes import Axes

from ckptplan.report.infeasible import LIMITS, format_reason
from ckptplan.report.largest import COUNTED
from ckptplan.report.plots import style
from ckptplan.report.plots.figures import Drawing, add_tooltips
from ckptplan.report.plots.ticks import measure_text, set_round_ticks
from ckptplan.studies.largest import LargestValues, Reach
from ckptplan.units import format_count, format_percent


def draw_largest(values: LargestValues, ax: Axes) -> None:
    """Draw a dot for each strategy, with its value and the limit that the next value breaks."""
    quantity, case, reaches = values.quantity, values.case, list(values.values())
    ax.set_xscale("log")
    ax.set_ylim(len(reaches) - 0.5, -0.5)
    ax.set_yticks(range(len(reaches)), [reach.strategy for reach in reaches])
    ax.grid(visible=False, axis="y")
    ax.set_xlabel(COUNTED[quantity])
    steps = "" if quantity == "T" else f", T = {format_count(case.workload.steps)}"
    job = f"{case.workload.name} on {case.profile.name}{steps}"
    limits = {reach.plan.goal.max_overhead for reach in reaches if reach.plan is not None} - {None}
    within = "".join(f", at most {format_percent(limit or 0)} over base" for limit in limits)
    style.set_title(ax, f"Largest {quantity} of {job}{within}, and what limits it")
    style.lay_out(ax)
    found = [reach.value for reach in reaches if reach.value]
    least, most = min(found, default=1) / 1.5, max(found, default=2)
    # Texts stand to the right of the dots.
    share = min(0.7, measure_text(ax, max(map(_describe, reaches), key=len)))
    ax.set_xlim(least, least * (most / least) ** (1 / (1 - share)))
    is_short = ax.get_xlim()[1] < 100 * least
    rounds = [factor * 10.0**power for power in range(13) for factor in ((1, 2, 5) if is_short else (1,))]
    set_round_ticks(ax.xaxis, rounds, lambda value: format_count(round(value)))
    for row, reach in enumerate(reaches):
        _draw_reach(reach, ax, row)
    rows = [row for row, reach in enumerate(reaches) if reach.value]
    texts = [f"{reaches[row].strategy}: {_describe(reaches[row])}" for row in rows]
    add_tooltips(ax, [reaches[row].value for row in rows], rows, texts)


def _draw_reach(reach: Reach, ax: Axes, row: int) -> None:
    """Draw the largest value of a strategy in its row, or write why nothing fits."""
    form: dict[str, Any] = {"textcoords": "offset points", "va": "center_baseline", "annotation_clip": False}
    form["xytext"] = (0.8 * rcParams["font.size"], 0)
    if not reach.value:
        lack = reach.infeasible
        reason = format_reason(lack.binding, lack.need) if lack else "interrupted"
        ax.annotate(reason, (0, row), xycoords=("axes fraction", "data"), **form)
        return
    ax.plot((ax.get_xlim()[0], reach.value), (row, row), color=style.GREY, linewidth=0.6, zorder=1)
    ax.plot(reach.value, row, "o", color=style.BLUE, markersize=4 * rcParams["lines.linewidth"])
    ax.annotate(_describe(reach), (reach.value, row), **form)


def _describe(reach: Reach) -> str:
    """Return '4,346 (local memory)': the largest value, and the limit that the next one breaks."""
    return f"{format_count(reach.value)}{f' ({LIMITS[reach.bound_by].name})' if reach.bound_by else ''}"


DRAWING = Drawing(on_axes=draw_largest, height=lambda values, _: 1.0 + 0.24 * len(values))
