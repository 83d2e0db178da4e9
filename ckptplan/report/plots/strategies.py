"""Draws strategies side by side: the time of the best plan of each, and the local memory that it takes."""

from __future__ import annotations

from collections.abc import Sequence

from matplotlib.axes import Axes
from matplotlib.figure import Figure

from ckptplan.model.plan import Plan
from ckptplan.report.fields import describe_plan
from ckptplan.report.picture import PAGE, Size
from ckptplan.report.plots import style
from ckptplan.report.plots.figures import add_tooltips, make_figure
from ckptplan.units import format_bytes, format_percent


def make_strategies(plans: Sequence[Plan], size: Size = PAGE) -> Figure:
    """Return the picture of the best plans of several strategies."""
    return make_figure(lambda figure: _draw_strategies(plans, figure), size, height=0.8 + 0.22 * len(plans))


def _draw_strategies(plans: Sequence[Plan], figure: Figure) -> None:
    """Draw a row for each plan, the first one on top: time over base at the left, local memory at the right."""
    times, sizes = figure.subplots(1, 2, sharey=True)
    tips = ["\n".join(f"{title}: {text}" for title, text in describe_plan(plan)) for plan in plans]
    overheads = [plan.predicted.overhead for plan in plans]
    peaks = [float(plan.predicted.local_peak_bytes) for plan in plans]
    _draw_dots(times, overheads, [format_percent(one) for one in overheads], tips)
    _draw_dots(sizes, peaks, [format_bytes(one) for one in peaks], tips)
    budget = plans[0].goal.local_bytes
    if budget is not None and budget <= 4 * max(peaks):
        sizes.axvline(budget, **style.LIMIT)
        sizes.annotate(
            f"budget: {format_bytes(budget)}", (budget, 1), (0, 3), ("data", "axes fraction"), "offset points",
            ha="center", annotation_clip=False,
        )  # fmt: skip
        sizes.set_xlim(0, 1.4 * max(budget, *peaks))
    style.set_bytes_axis(sizes.xaxis, most=3)
    style.set_share_axis(times.xaxis)
    times.set_xlabel("time over plain backpropagation")
    sizes.set_xlabel("peak of local memory")
    times.set_yticks(range(len(plans)), [plan.strategy for plan in plans])
    times.set_ylim(len(plans) - 0.5, -0.5)


def _draw_dots(ax: Axes, values: Sequence[float], texts: Sequence[str], tips: Sequence[str]) -> None:
    """Draw a dot with its text in each row, at the end of a thin line from zero."""
    rows = range(len(values))
    ax.hlines(rows, 0, values, color=style.GREY, linewidth=0.8)
    ax.plot(values, rows, "o", color="black", markersize=4)
    for row, value, text in zip(rows, values, texts, strict=True):
        ax.annotate(text, (value, row), xytext=(6, 0), textcoords="offset points", va="center", clip_on=True)
    ax.set_xlim(0, 1.4 * max(0.01, *values))
    ax.grid(visible=False, axis="y")
    add_tooltips(ax, values, rows, tips)
