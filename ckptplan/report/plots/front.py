"""Draws a front: time over base against the local memory for checkpoints and tapes.

Marks show the budget, the best plan within it, and plans of a page.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
from matplotlib import rcParams
from matplotlib.axes import Axes
from matplotlib.lines import Line2D

from ckptplan.cost.case import Case
from ckptplan.cost.exact import overhead
from ckptplan.model.plan import Plan
from ckptplan.report.fields import describe_plan, describe_resident, name_job
from ckptplan.report.plots import style
from ckptplan.report.plots.figures import take_axes
from ckptplan.report.plots.labels import Labels
from ckptplan.report.plots.svg import add_tooltips
from ckptplan.search.trace_solved import spread_places
from ckptplan.studies.pareto import ParetoFront
from ckptplan.units import format_bytes, format_percent, format_seconds

#: The most points of a curve. More points would not be visible.
_MOST_POINTS = 400
#: A band with a smaller share of the axis is not visible.
_VISIBLE = 0.02


def draw_front(front: ParetoFront, place: Any, *, every: bool = False, plans: Sequence[Plan] = ()) -> None:
    """Draw the front of all strategies over the front of each, the budget, and the best plan within it.

    With ``every``, all strategies have a colour and a label, otherwise only the paper's. ``plans`` are drawn as
    dots that link to their schedules on a page. Raises Infeasible for an empty front.
    """
    if not len(front) and (reason := front.lacks(front.budget_bytes)) is not None:
        raise reason
    ax = take_axes(place)
    _set_axes(front, ax)
    coloured = list(front.by_strategy) if every else [name for name in style.PAPER if name in front.by_strategy]
    palette, wide = style.list_colours(), float(rcParams["lines.linewidth"])
    order = [*style.PAPER, *(name for name in coloured if name not in style.PAPER)]
    # Later curves are thinner, so that coinciding curves are all visible.
    looks = {
        name: {
            "color": palette[place % len(palette)],
            "linewidth": wide * max(0.7, 2 - 0.4 * place),
            "zorder": 3,
        }
        for place, name in enumerate(order)
    }
    grey = {"color": style.GREY, "linewidth": 0.5 * wide}
    lines = {
        name: _draw_curve(front.by_strategy[name], ax, looks.get(name, grey))
        for name in sorted(front.by_strategy, key=lambda name: [*order, name].index(name))
    }
    # The front of all strategies lies below the coloured curves, which show whose plan is the best.
    best = _draw_curve(front, ax, {"color": "black", "linewidth": 2.8 * wide, "zorder": 2.5})
    _shade_unproved(front, ax)
    _draw_budget(front, ax)
    labels = Labels(ax)
    _mark_best(front, ax, labels)
    labels.label_line(best, "best of all", fontweight="bold")
    for name in coloured:
        labels.label_line(lines[name], name)
    if len(plans) > 1:
        _add_plans(front, ax, plans)


def _set_axes(front: ParetoFront, ax: Axes) -> None:
    """Set the scales: memory without the bytes of every schedule; time to +100 %, or above the best plan."""
    memory, place = front.schedule_bytes, front.place_within(front.budget_bytes)
    slowest = max(float(curve.overhead.max()) for curve in front.by_strategy.values())
    best = float(front.overhead.min() if place is None else front.overhead[place])
    top = max(0.02, min(1.1 * slowest, max(1.0, 1.3 * best)))
    least = float(memory[np.flatnonzero(front.overhead <= top)[0]])
    most = max(float(curve.schedule_bytes.max()) for curve in front.by_strategy.values())
    free = min(max(front.budget_bytes - front.resident_bytes, least / 16), 16 * most)
    room = 0.06 * np.log(max(least, most, free) / min(least, free)) + 0.1
    ax.set_xscale("log", base=2)
    ax.set_yscale("linear")
    ax.set_xlim(min(least, free) / np.exp(room), max(most, free) * np.exp(room))
    ax.set_ylim(min(0.0, float(front.overhead.min())), top)
    style.set_bytes_axis(ax.xaxis)
    style.set_share_axis(ax.yaxis)
    unit = " of one unit" if front.profile.units > 1 else ""
    lines = [f"local memory{unit} for checkpoints and tapes"]
    if front.resident_bytes:
        case = Case(workload=front.workload, profile=front.profile)
        lines.append(f"beside {describe_resident(case, front.budget_bytes)}")
    ax.set_xlabel(style.wrap_lines(ax, *lines, letter=0.6))
    ax.set_ylabel("time over plain backpropagation")
    style.set_title(ax, name_job(front.workload, front.profile))


def _draw_curve(front: ParetoFront, ax: Axes, look: dict[str, Any]) -> Line2D:
    """Draw the least time of a strategy within each amount of memory."""
    memory = front.schedule_bytes
    places = spread_places(memory, _MOST_POINTS)
    [line] = ax.plot(memory[places], front.overhead[places], drawstyle="steps-post", **look)
    return line


def _shade_unproved(front: ParetoFront, ax: Axes) -> None:
    """Hatch the band in which a schedule may exist that is quicker than the front."""
    unproved = front.seconds > front.least_seconds * (1 + front.told_apart)
    if not len(front.bounds.seconds) or not unproved.any():
        return
    low, high = ax.get_ylim()
    places = spread_places(front.schedule_bytes, _MOST_POINTS)
    least = np.maximum(0.0, overhead(front.least_seconds, front.base_seconds))
    memory = front.schedule_bytes[places]
    ax.fill_between(memory, least[places], front.overhead[places], step="post", **style.NOTHING)
    band = np.clip(front.overhead, low, high) - np.clip(least, low, high)
    if band.max() > _VISIBLE * (high - low):
        ax.set_xlabel(f"{ax.get_xlabel()}\nhatched: a quicker schedule is not ruled out")


def _draw_budget(front: ParetoFront, ax: Axes) -> None:
    """Draw the budget as a line with its size, and shade the memory beyond it."""
    low, high = ax.get_xlim()
    free = front.budget_bytes - front.resident_bytes
    text, x = f"budget: {format_bytes(front.budget_bytes)}", min(max(free, low), high)
    if free <= 0:
        text += ", less than every schedule needs"
    elif front.resident_bytes:
        text += f", {format_bytes(free)} of it left"
    if 0 < free != x:
        text = f"\N{LEFTWARDS ARROW} {text}" if free < low else f"{text} \N{RIGHTWARDS ARROW}"
    share = float(np.log(x / low) / np.log(high / low))
    side = "left" if share < 0.2 else "right" if share > 0.8 else "center"
    style.draw_limit(ax, x, text, side)
    if share < 0.85:
        form: Any = {"textcoords": "offset points", "ha": "right", "va": "top", "alpha": 0.6}
        ax.annotate("does not fit", (1, 1), (-3, -3), "axes fraction", **form)


def _mark_best(front: ParetoFront, ax: Axes, labels: Labels) -> None:
    """Mark the plan to run within the budget: the quickest plan, or the knee if that is the objective."""
    if front.lacks(front.budget_bytes) is not None:
        return
    plan = front.best
    x = max(1, plan.predicted.local_peak_bytes - front.resident_bytes)
    ax.plot(x, plan.predicted.overhead, "o", color="black", markersize=7, zorder=5)
    knee = "knee: " if plan.goal.objective == "balanced" else ""
    time = f"{format_percent(plan.predicted.overhead)}, {format_seconds(plan.predicted.seconds)}"
    labels.label_point(x, plan.predicted.overhead, f"{knee}{plan.strategy}\n{time}")


def _add_plans(front: ParetoFront, ax: Axes, plans: Sequence[Plan]) -> None:
    """Add dots with tooltips that link to the plans of the page, numbered in their order."""
    memory = [max(1, plan.predicted.local_peak_bytes - front.resident_bytes) for plan in plans]
    texts = ["\n".join(f"{title}: {text}" for title, text in describe_plan(plan).items()) for plan in plans]
    links = [f"#plan-{place}" for place in range(len(plans))]
    add_tooltips(ax, memory, [plan.predicted.overhead for plan in plans], texts, links=links)
