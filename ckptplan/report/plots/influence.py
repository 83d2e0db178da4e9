"""Draws the panel of one input: the time over its values, and where another strategy is best."""

from __future__ import annotations

from math import log
from typing import Any

import numpy as np
from matplotlib import rcParams
from matplotlib.axes import Axes

from ckptplan.report.plots import style
from ckptplan.report.plots.figures import add_tooltips
from ckptplan.report.sensitivity import format_values
from ckptplan.studies.sensitivity import FACTORS, Influence
from ckptplan.units import format_percent

LEAST, MOST = FACTORS[0], FACTORS[-1]
AGAIN: dict[str, Any] = {"color": style.BLUE, "marker": "o"}
KEPT: dict[str, Any] = {"color": style.ORANGE, "linestyle": (0, (4, 2))}
CHANGE: dict[str, Any] = {"color": style.VERMILION, "linestyle": (0, (1, 1))}


def draw_influence(influence: Influence, ax: Axes) -> None:
    """Draw the time over one input, planned again and with the plan of now, and where the strategy changes."""
    now = (1.0, 0.0, 0.0)
    points = [
        (point.factor, point.change, point.kept_change if point.kept_fits else None)
        for point in influence.points
    ]
    factors, again, kept = (
        np.array(column, dtype=float) for column in zip(*sorted([now, *points]), strict=True)
    )
    ax.axhline(0, color="black", linewidth=0.6)
    ax.plot(factors, again, **AGAIN, markersize=2 * rcParams["lines.linewidth"])
    ax.plot(factors, kept, **KEPT)
    for is_below, factor, strategy in _list_break_evens(influence):
        if strategy is None:
            ax.axvspan(*((0, factor) if is_below else (factor, 10)), **style.NOTHING)
        else:
            ax.axvline(factor, **CHANGE)
    planned = [
        (point.factor, point.change, point.best.strategy)
        for point in influence.points
        if point.best is not None and point.change is not None
    ]
    texts = [f"x {factor:g}: {strategy}, {format_percent(change)}" for factor, change, strategy in planned]
    add_tooltips(ax, [factor for factor, _, _ in planned], [change for _, change, _ in planned], texts)
    about = [format_values(influence.axis, influence.values), *_describe_change(influence)]
    ax.text(0, 1.02, "; ".join(about), transform=ax.transAxes, va="bottom", size="x-small")
    ax.set_title(influence.name, size="small", pad=4 + 1.1 * rcParams["font.size"])


def _list_break_evens(influence: Influence) -> list[tuple[bool, float, str | None]]:
    """Return whether changes lie below the present value, their factors, and the strategies beyond them."""
    return [
        (one.factor < 1, one.factor, one.below if one.factor < 1 else one.above)
        for one in influence.break_evens
        if LEAST < one.factor < MOST
    ]


def _describe_change(influence: Influence) -> list[str]:
    """Return ["x > 1.78: double"] for the strategy beyond the nearest change, [] if there is none."""
    named = [change for change in _list_break_evens(influence) if change[2] is not None]
    nearest = sorted(named, key=lambda change: abs(log(change[1])))[:1]
    return [f"x {'<' if is_below else '>'} {factor:.3g}: {strategy}" for is_below, factor, strategy in nearest]
