"""Places ticks at given values, as many as fit."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
from matplotlib import rcParams
from matplotlib.axes import Axes
from matplotlib.axis import Axis

#: The most ticks that are tried. Those without room are dropped.
_MOST_TICKS = 500
#: Round times in seconds: powers of ten, and round numbers of minutes, hours and days.
ROUND_SECONDS = (
    *(10.0**power for power in range(-18, 1)),
    10.0, 60.0, 600.0, 3600.0, 36000.0, 345600.0,
    *(864000.0 * 10.0**power for power in range(8)),
)  # fmt: skip


def set_ticks(axis: Axis, values: Sequence[float], label: Callable[[int], str]) -> None:
    """Set ticks at values, or at every n-th value if the texts would overlap. ``label`` takes the index.

    Set the limits and the scale of the axis first.
    """
    box, across = axis.axes.get_window_extent(), axis is axis.axes.xaxis
    length, text = (
        (box.width if across else box.height),
        float(axis.label.get_fontsize()) * count_dots(axis.axes),
    )
    low, high = axis.get_transform().transform(np.array(axis.get_view_interval(), dtype=float))
    candidates = range(0, len(values), 1 + len(values) // _MOST_TICKS)
    chosen, labels = [values[place] for place in candidates], [label(place) for place in candidates]
    places = axis.get_transform().transform(np.array(chosen, dtype=float)) * length / abs(high - low)
    needed = np.array([(0.62 * len(name) + 0.8 if across else 1.3) * text for name in labels])
    step = 1
    while (np.abs(np.diff(places[::step])) < (needed[::step][1:] + needed[::step][:-1]) / 2).any():
        step += 1
    axis.set_ticks(chosen[::step], labels[::step])
    axis.set_ticks([], minor=True)


def set_round_ticks(axis: Axis, values: Sequence[float], show: Callable[[Any], str]) -> None:
    """Set ticks at the round values that lie within the limits of an axis."""
    low, high = sorted(axis.get_view_interval())
    within = [value for value in values if low <= value <= high]
    set_ticks(axis, within, lambda place: show(within[place]))


def measure_text(ax: Axes, text: str) -> float:
    """Estimate the width of a text as a share of the width of axes."""
    points = ax.get_window_extent().width / count_dots(ax)
    return float(0.6 * (len(text) + 2) * rcParams["font.size"] / points)


def count_dots(ax: Any) -> float:
    """Return the dots per point (1/72 inch) in the figure of axes."""
    return float(ax.get_figure(root=True).dpi) / 72
