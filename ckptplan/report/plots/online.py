"""Draws what it costs not to know T: factors over the optimum that knows it."""

from __future__ import annotations

import numpy as np
from matplotlib.axes import Axes

from ckptplan.report.plots import style
from ckptplan.report.plots.figures import Drawing
from ckptplan.report.plots.labels import Labels
from ckptplan.report.plots.ticks import set_round_ticks
from ckptplan.studies.online import OnlineFactors
from ckptplan.units import format_count


def draw_online(factors: OnlineFactors, ax: Axes) -> None:
    """Draw runs over those of the optimum, and advances over those of Revolve, for each T."""
    steps = factors.steps
    curves = {"runs over the optimum": factors.over_optimum, "advances over Revolve": factors.over_revolve}
    colours = style.list_colours()
    lines = [
        ax.plot(steps, values, color=colours[place % len(colours)], linewidth=1.0)[0]
        for place, values in enumerate(curves.values())
    ]
    every = np.concatenate(list(curves.values()))
    room = 0.08 * max(0.05, float(np.ptp(every)))
    ax.set_xscale("log")
    ax.set_xlim(max(0.9, 0.9 * steps[0]), 1.1 * steps[-1])
    ax.set_ylim(min(1.0, float(every.min())) - room, float(every.max()) + room)
    set_round_ticks(ax.xaxis, [10.0**power for power in range(13)], lambda value: format_count(round(value)))
    ax.axhline(1.0, color="black", linewidth=0.8)
    ax.set_xlabel("T, time steps")
    ax.set_ylabel("factor (1: T is known)")
    style.set_title(ax, f"What it costs not to know T: {factors.slots} slots and a tape of a state's size")
    labels = Labels(ax)
    for line, name in zip(lines, curves, strict=True):
        labels.label_line(line, name)


DRAWINGS = {"online": Drawing(on_axes=draw_online, height=lambda *_: 3.0)}
