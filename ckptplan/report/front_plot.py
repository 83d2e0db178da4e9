"""A front as a picture: local memory across, time over base's up, both in powers of ten.

Memory is what a schedule needs beside the resident bytes, which would otherwise fill the axis; the upper
axis has both together.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np

from ckptplan.errors import Infeasible
from ckptplan.report import style
from ckptplan.report.plan_text import format_parameters
from ckptplan.studies.pareto import ParetoFront
from ckptplan.units import format_bytes, format_count, format_percent, format_seconds

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

#: Longer curves are thinned out evenly along the axis: more points cannot be told apart.
_POINTS = 600
#: Markers on a curve.
_MARKERS = 7
#: Overheads up to here are drawn to scale, those above in powers of ten.
_LINEAR = 0.01


def draw_front(front: ParetoFront) -> Figure:
    """Return the picture. Call it, and save the picture, within ``style.styled()``.

    Raises Infeasible for an empty front.
    """
    from matplotlib.figure import Figure

    if (reason := front.lacks(front.budget_bytes)) is not None and not len(front):
        raise reason
    figure = Figure(figsize=(7.2, 5.0), layout="constrained")
    axes = figure.subplots()
    _scales(axes, front)
    together = np.maximum(1, front.local_peak_bytes - front.resident_bytes), front.overhead
    axes.step(*_thinned(*together), where="post", color=style.PALE, linewidth=6, zorder=1, label="best of all")
    for place, (name, one) in enumerate(front.by_strategy.items()):
        _curve(axes, one, name, place=place)
    _budget(axes, front)
    _points(axes, front)
    axes.set_title(_title(front))
    figure.legend(loc="outside lower left", ncols=5, handlelength=3.2)
    return figure


def _curve(axes: Axes, front: ParetoFront, name: str, *, place: int) -> None:
    look = style.look_of(name)
    memory, added = _thinned(np.maximum(1, front.local_peak_bytes - front.resident_bytes), front.overhead)
    logs = np.log(memory)
    # Staggered between curves, so that curves that coincide all show.
    wanted = np.linspace(logs[0], logs[-1], _MARKERS) + place * (logs[-1] - logs[0]) / (9 * _MARKERS)
    marked = np.unique(np.clip(np.searchsorted(logs, wanted), 0, len(logs) - 1)).tolist()
    axes.plot(
        memory, added,
        drawstyle="steps-post", color=look.colour, linestyle=look.dashes, linewidth=1.1,
        marker=look.marker, markersize=5, markeredgewidth=0.9, markevery=marked,
        label=name, zorder=3,
    )  # fmt: skip


def _thinned(memory: Any, added: Any) -> tuple[Any, Any]:
    """Return at most _POINTS points, both ends included."""
    if len(memory) <= _POINTS:
        return memory, added
    logs = np.log(memory)
    chosen = np.unique(np.searchsorted(logs, np.linspace(logs[0], logs[-1], _POINTS)))
    return memory[chosen], added[chosen]


def _scales(axes: Axes, front: ParetoFront) -> None:
    from matplotlib.ticker import FuncFormatter, NullLocator

    resident = front.resident_bytes
    most = max(int(one.local_peak_bytes[-1]) for one in front.by_strategy.values()) - resident
    least = max(1, int(front.local_peak_bytes[0]) - resident)
    axes.set_xscale("log")
    ticks = [1024.0**power * tens for power in range(6) for tens in (1, 10, 100)]
    axes.set_xticks([tick for tick in ticks if least / 2 <= tick <= 2 * most])
    axes.set_xlim(least / 1.5, most * 1.5)
    axes.xaxis.set_minor_locator(NullLocator())
    axes.xaxis.set_major_formatter(FuncFormatter(lambda value, _: format_bytes(value)))
    axes.set_xlabel(
        "local memory for checkpoints and tapes" + (", one unit" if front.profile.units > 1 else "")
    )
    if resident:
        upper = axes.secondary_xaxis("top")
        upper.set_xticks(axes.get_xticks())
        upper.xaxis.set_minor_locator(NullLocator())
        upper.xaxis.set_major_formatter(FuncFormatter(lambda value, _: format_bytes(value + resident)))
        upper.set_xlabel(f"in all, with {format_bytes(resident)} that stay", fontsize=8.5)
    _overheads(axes, front)


def _overheads(axes: Axes, front: ParetoFront) -> None:
    from matplotlib.ticker import FuncFormatter, NullLocator

    most = max(float(one.overhead[0]) for one in front.by_strategy.values())
    axes.set_yscale("symlog", linthresh=_LINEAR, linscale=0.5)
    wanted = [0, 0.01, 0.02, 0.05, 0.1, 0.2, 0.5, 1, 2, 5, 10, 20, 50, 100]
    ticks = (
        [share for share in wanted if share <= 1.5 * most] if most < 1e3 else [0, 0.01, 0.1, 1, 10, 100, 1000]
    )
    axes.set_yticks(ticks)
    axes.yaxis.set_minor_locator(NullLocator())
    axes.set_ylim(-0.1 * _LINEAR, max(2 * _LINEAR, 1.3 * most))
    axes.yaxis.set_major_formatter(FuncFormatter(lambda share, _: f"{100 * share:+,.0f} %" if share else "0"))
    axes.set_ylabel(f"time over base's {format_seconds(front.base_seconds)}")
    right = axes.secondary_yaxis("right")
    right.set_yscale("symlog", linthresh=_LINEAR, linscale=0.5)
    right.set_yticks(ticks)
    right.yaxis.set_minor_locator(NullLocator())
    base = front.base_seconds
    right.yaxis.set_major_formatter(FuncFormatter(lambda share, _: format_seconds((1 + share) * base)))
    right.set_ylabel("time a batch", fontsize=8.5)


def _budget(axes: Axes, front: ParetoFront) -> None:
    low, high = axes.get_xlim()
    free = front.budget_bytes - front.resident_bytes
    text = f"budget {format_bytes(front.budget_bytes)}"
    if low < free < high:
        near = np.log(free) > 0.8 * np.log(high) + 0.2 * np.log(low)
        axes.axvline(free, color=style.BLACK, linewidth=0.9, linestyle=(0, (4, 2)), zorder=2)
        axes.annotate(
            text,
            (free, 1), xycoords=("data", "axes fraction"),
            xytext=(-3 if near else 3, -4), textcoords="offset points",
            ha="right" if near else "left", va="top", fontsize=8,
        )  # fmt: skip
        return
    # Far off, it is only named: a line would squeeze the curves into a corner.
    less = free <= low
    axes.annotate(
        f"← {text}" if less else f"{text} →",
        (0.01 if less else 0.99, 0.99), xycoords="axes fraction",
        ha="left" if less else "right", va="top", fontsize=8,
    )  # fmt: skip


def _points(axes: Axes, front: ParetoFront) -> None:
    """Mark and label the best plan within the budget and the knee."""
    try:
        best, knee = front.best, front.knee
    except Infeasible:
        return
    labels = {"best": best, "knee": knee} if best.parameters != knee.parameters else {"best and knee": best}
    for number, (label, plan) in enumerate(labels.items()):
        place = (
            max(1, plan.predicted.local_peak_bytes - front.resident_bytes),
            max(0.0, plan.predicted.overhead),
        )
        axes.plot(*place, marker="o", markersize=11, markerfacecolor="none", color=style.BLACK, zorder=5)
        text = f"{label}: {plan.strategy}  {format_parameters(plan)}\n"
        text += f"{format_seconds(plan.predicted.seconds)}, {format_percent(plan.predicted.overhead)}"
        # Away from the nearer side, so that no label runs over an axis.
        left, right = np.log(axes.get_xlim())
        aside, ha = (26, "left") if np.log(place[0]) < 0.55 * right + 0.45 * left else (-26, "right")
        axes.annotate(
            text, place, xytext=(aside, 34 + 26 * number), textcoords="offset points", fontsize=8, ha=ha,
            arrowprops={"arrowstyle": "-", "linewidth": 0.7, "shrinkB": 6},
            bbox={"boxstyle": "round,pad=0.25", "fc": "white", "ec": style.GREY, "linewidth": 0.5},
            zorder=6,
        )  # fmt: skip


def _title(front: ParetoFront) -> str:
    return (
        f"Least time within each amount of local memory: {front.workload.name} on {front.profile.name}, "
        f"T = {format_count(front.workload.steps)}"
    )
