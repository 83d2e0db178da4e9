"""Draws a schedule: which steps run when, and the bytes in each memory tier over time."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
import numpy.typing as npt
from matplotlib import rcParams
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from ckptplan.cost.case import Case
from ckptplan.model.plan import Plan
from ckptplan.report.fields import describe_resident, format_parameters, name_job
from ckptplan.report.plots import style
from ckptplan.report.plots.figures import set_height
from ckptplan.report.sketch import FINE, Sketch, sketch_schedule
from ckptplan.units import format_bytes, format_count, format_percent, format_seconds

#: Label and colour of each kind of action, in the order of the legend.
_KINDS: Mapping[str, tuple[str, str]] = {
    "forward": ("first run", style.GREEN),
    "recompute": ("run again", style.SKY),
    "record": ("run with tape", style.BLUE),
    "backward": ("backward", style.VERMILION),
    "write": ("write", style.PURPLE),
    "read": ("read", style.ORANGE),
    "wait": ("wait for a transfer", style.GREY),
}


def draw_schedule(
    plan: Plan, figure: Figure, *, sketch: Sketch | None = None, schedule: str | None = None
) -> None:
    """Draw the schedule of a plan, or a ``sketch`` that was collected from the file ``schedule``.

    Raises TooLongToDraw, and the errors of ``simulate``.
    """
    set_height(figure, 4.4)
    if sketch is None:
        sketch = sketch_schedule(plan, detail=FINE)
    tiers = 2 if sketch.memory[:, 2].any() else 1
    steps, *memories = figure.subplots(1 + tiers, 1, sharex=True, height_ratios=(3, *(1,) * tiers))
    _draw_steps(sketch, steps, steps=plan.steps)
    steps.set_ylim(1.01 * plan.steps, -0.01 * plan.steps)
    for tier, ax in enumerate(memories):
        _draw_memory(plan, sketch.memory[:, [0, 1 + tier]], ax, remote=tier == 1)
    style.format_axis(memories[-1].xaxis, format_seconds)
    memories[-1].set_xlabel("time")
    base = plan.predicted.seconds / (1 + plan.predicted.overhead)
    parameters = f" ({format_parameters(plan)})" if format_parameters(plan) else ""
    over = format_percent(sketch.seconds / base - 1)
    title = f"{schedule or plan.strategy + parameters}: {format_seconds(sketch.seconds)}, {over} over base"
    style.set_title(steps, name_job(plan.workload, plan.profile), title)
    style.add_legend(figure, steps.get_legend_handles_labels()[0])
    figure.align_ylabels()


def _draw_steps(sketch: Sketch, ax: Axes, *, steps: int) -> None:
    """Draw a line for each action: down for a run, up for a backward, level for a state that moves."""
    count = sum(map(len, sketch.bars.values()))
    # If there are many bars, draw them thin, so that they do not cover each other.
    wide = rcParams["lines.linewidth"] * max(0.8, min(1.4, 800 / max(1, count)))
    for kind, (label, colour) in _KINDS.items():
        if (bars := sketch.bars.get(kind)) is not None:
            first, last = bars[:, 2], bars[:, 3]
            if kind in ("write", "read"):
                # Draw a short transfer as a mark across its step, so that it is visible.
                across = np.where(bars[:, 1] - bars[:, 0] < 0.01 * sketch.seconds, 0.015 * steps, 0.0)
                first, last = first - across, last + across
            gap = np.full(len(bars), np.nan)
            x = np.column_stack((bars[:, :2], gap)).ravel()
            y = np.column_stack((first, last, gap)).ravel()
            ax.plot(x, y, color=colour, linewidth=wide, label=label, solid_capstyle="butt")
    ax.set_xlim(0, sketch.seconds or 1)
    ax.set_ylabel("time step")
    style.format_axis(ax.yaxis, lambda step: format_count(round(step)))


def _draw_memory(plan: Plan, held: npt.NDArray[np.float64], ax: Axes, *, remote: bool) -> None:
    """Draw a tier's bytes beyond those that every schedule needs, and its budget if it is near the peak."""
    resident, peak = float(held[0, 1]), float(held[:, 1].max()) - float(held[0, 1])
    budget = plan.goal.remote_bytes if remote else plan.goal.local_bytes or plan.profile.local_budget_bytes
    colour = style.PURPLE if remote else style.BLUE
    look: dict[str, Any] = {"color": colour, "alpha": 0.55, "linewidth": 0}
    ax.fill_between(held[:, 0], 0, held[:, 1] - resident, **look)
    top = max(1.0, peak)
    text = f"peak {format_bytes(peak + resident)}"
    if budget is not None and budget - resident <= 3 * top:
        top = max(top, budget - resident)
        ax.axhline(budget - resident, **style.LIMIT)
        text += f" of {format_bytes(budget)}"
        text += f", {format_bytes(budget - resident)} of it left (dashed)" if resident else " (dashed)"
    elif budget is not None:
        text += f" of {format_bytes(budget)}"
    whose = "" if plan.profile.units == 1 else " of all units" if remote else " of one unit"
    lines = [f"{'remote' if remote else 'local'} memory{whose}: {text}"]
    if resident and not remote:
        case = Case(workload=plan.workload, profile=plan.profile)
        lines.append(f"beside {describe_resident(case, budget or 0)}")
    style.set_title(ax, *lines, letter=0.52, weight="normal", size="small")
    ax.set_ylim(0, 1.15 * top)
    ax.set_ylabel("remote" if remote else "local")
    style.set_bytes_axis(ax.yaxis, most=3)
