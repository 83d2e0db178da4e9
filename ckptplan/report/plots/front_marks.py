"""Marks on the axes of a front: the budget, the best plan within it, and the plans of a page."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
from matplotlib import rcParams
from matplotlib.axes import Axes

from ckptplan.model.plan import Plan
from ckptplan.report.fields import describe_plan
from ckptplan.report.plots import style
from ckptplan.report.plots.figures import add_tooltips
from ckptplan.report.plots.labels import Labels
from ckptplan.studies.pareto import ParetoFront
from ckptplan.units import format_bytes, format_percent, format_seconds


def draw_budget(front: ParetoFront, ax: Axes) -> None:
    """Draw the budget as a line with its size, and shade what does not fit."""
    low, high = ax.get_xlim()
    free = front.budget_bytes - front.resident_bytes
    text, seen = f"budget: {format_bytes(front.budget_bytes)}", min(max(free, low), high)
    if free <= 0:
        text += ", less than every schedule needs"
    elif front.resident_bytes:
        text += f", {format_bytes(free)} of it left"
    if 0 < free != seen:
        text = f"\N{LEFTWARDS ARROW} {text}" if free < low else f"{text} \N{RIGHTWARDS ARROW}"
    share = float(np.log(seen / low) / np.log(high / low))
    side = "left" if share < 0.2 else "right" if share > 0.8 else "center"
    ax.axvline(seen, **style.LIMIT)
    ax.axvspan(seen, high, **style.BEYOND)
    above: dict[str, Any] = {"textcoords": "offset points", "annotation_clip": False}
    ax.annotate(text, (seen, 1), (0, 3), ("data", "axes fraction"), ha=side, va="bottom", **above)
    # The title stands above the label.
    ax.set_title(ax.get_title(loc="left"), pad=1.9 * rcParams["font.size"])
    if share < 0.85:
        ax.annotate("does not fit", (1, 1), (-3, -3), "axes fraction", ha="right", va="top", alpha=0.6, **above)


def mark_best(front: ParetoFront, ax: Axes, labels: Labels) -> None:
    """Mark the plan to run within the budget: the quickest, or the knee if that is the objective."""
    if front.lacks(front.budget_bytes) is not None:
        return
    plan = front.best
    x = max(1, plan.predicted.local_peak_bytes - front.resident_bytes)
    ax.plot(x, plan.predicted.overhead, "o", color="black", markersize=7, zorder=5)
    knee = "knee: " if plan.goal.objective == "balanced" else ""
    time = f"{format_percent(plan.predicted.overhead)}, {format_seconds(plan.predicted.seconds)}"
    labels.label_point(x, plan.predicted.overhead, f"{knee}{plan.strategy}\n{time}")


def add_plans(front: ParetoFront, ax: Axes, plans: Sequence[Plan]) -> None:
    """Add dots with tooltips that lead to plans of the page, numbered in their order."""
    if plans:
        memory = [max(1, plan.predicted.local_peak_bytes - front.resident_bytes) for plan in plans]
        texts = ["\n".join(f"{title}: {text}" for title, text in describe_plan(plan)) for plan in plans]
        links = [f"#plan-{place}" for place in range(len(plans))]
        add_tooltips(ax, memory, [plan.predicted.overhead for plan in plans], texts, links=links)
