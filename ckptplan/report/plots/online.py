"""Draws the cost of not knowing T: factors over the optimum that knows T."""

from __future__ import annotations

from typing import Any

import numpy as np

from ckptplan.report.plots import style
from ckptplan.report.plots.figures import take_axes
from ckptplan.report.plots.labels import Labels
from ckptplan.report.plots.style import set_ticks
from ckptplan.studies.online import OnlineFactors
from ckptplan.units import format_count


def draw_online(factors: OnlineFactors, place: Any) -> None:
    """Draw two factors over T: runs compared with the optimum, and advances compared with Revolve."""
    ax, steps = take_axes(place, height=3.0), factors.steps
    curves = {"runs over the optimum": factors.over_optimum, "advances over Revolve": factors.over_revolve}
    colours = style.list_colours()
    lines = [
        ax.plot(steps, values, color=colours[place % len(colours)], linewidth=1.0)[0]
        for place, values in enumerate(curves.values())
    ]
    all_factors = np.concatenate(list(curves.values()))
    room = 0.08 * max(0.05, float(np.ptp(all_factors)))
    ax.set_xscale("log")
    ax.set_xlim(max(0.9, 0.9 * steps[0]), 1.1 * steps[-1])
    ax.set_ylim(min(1.0, float(all_factors.min())) - room, float(all_factors.max()) + room)
    set_ticks(ax.xaxis, [10.0**power for power in range(13)], lambda value: format_count(round(value)))
    ax.axhline(1.0, color="black", linewidth=0.8)
    ax.set_xlabel("T, time steps")
    ax.set_ylabel("factor (1: T is known)")
    style.set_title(ax, f"What it costs not to know T: {factors.slots} slots and a tape of a state's size")
    labels = Labels(ax)
    for line, name in zip(lines, curves, strict=True):
        labels.label_line(line, name)
