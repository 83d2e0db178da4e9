"""A front as a picture: local memory across, time over base's up, both in powers of ten.

Memory is what a schedule needs beside the resident bytes, which would otherwise fill the axis; the upper
axis has both together.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np

from ckptplan.cost.exact import overhead
from ckptplan.report import front_axes, style
from ckptplan.report.budget import name_budget
from ckptplan.report.labels import Label, place_labels, set_legend, set_title, settle
from ckptplan.report.plan_text import format_parameters
from ckptplan.report.sizes import PAGE, Size
from ckptplan.studies.pareto import ParetoFront
from ckptplan.units import format_count, format_percent, format_seconds

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

    from ckptplan.model.plan import Plan

#: Longer curves are thinned out evenly along the axis: more points cannot be told apart.
_POINTS = 600
#: Markers on a curve.
_MARKERS = 7


@dataclass(frozen=True, kw_only=True)
class Curve:
    """A front as it is drawn: memory beside the resident bytes, and the overhead that it leaves."""

    name: str
    memory: Any
    added: Any


def draw_front(front: ParetoFront, size: Size = PAGE) -> Figure:
    """Return the picture. Call it, and save the picture, within ``style.styled(size)``.

    Raises Infeasible for an empty front.
    """
    if (reason := front.lacks(front.budget_bytes)) is not None and not len(front):
        raise reason
    named: set[str] = set()
    while True:
        # The layout leaves room for a legend only if it is there from the start; a larger one may leave less
        # room for the other names.
        figure, lacking = _draw(front, size, legend=named)
        if not lacking - named:
            return figure
        named |= lacking


def _draw(front: ParetoFront, size: Size, *, legend: set[str]) -> tuple[Figure, set[str]]:
    """Return the picture, and the names of the curves whose labels found no place."""
    from matplotlib.figure import Figure

    figure = Figure(figsize=size.inches(3.3 if size.width < PAGE.width else 4.6), layout="constrained")
    axes = figure.subplots()
    set_title(figure, "Least time within each amount of local memory", _job(front))
    curves = [_curve(one, name) for name, one in front.by_strategy.items()]
    window = front_axes.find_window(front)
    best = _curve(front, "best of all")
    axes.step(
        best.memory, best.added, where="post", color=style.PALE, linewidth=6 * size.scale, zorder=1,
        solid_capstyle="butt",
    )  # fmt: skip
    _bound(axes, front)
    for place, curve in enumerate(curves):
        _draw_curve(axes, curve, place=place, size=size)
    set_legend(figure, [line for line in axes.lines if line.get_label() in legend], handlelength=3.2)
    front_axes.scale(axes, window)
    figure.draw_without_rendering()
    front_axes.mark(axes, front, window, size)
    settle(figure)
    named = [curve for curve in curves if curve.name not in legend]
    return figure, _label(axes, front, named, size)


def _job(front: ParetoFront) -> str:
    return f"{front.workload.name} on {front.profile.name}, T = {format_count(front.workload.steps)}"


def _curve(front: ParetoFront, name: str) -> Curve:
    memory = np.maximum(1, front.local_peak_bytes - front.resident_bytes)
    memory, added = _thinned(memory, front.overhead)
    return Curve(name=name, memory=memory, added=added)


def _bound(axes: Axes, front: ParetoFront) -> None:
    """Fill the band between the front and what no schedule within the same memory can be faster than."""
    if not len(front.bounds.seconds):
        return
    least = np.maximum(0.0, overhead(front.least_seconds, front.base_seconds))
    memory = np.maximum(1, front.local_peak_bytes - front.resident_bytes)
    axes.fill_between(
        memory, least, front.overhead, step="post", color=style.PALE, linewidth=0, zorder=0,
    )  # fmt: skip


def _thinned(memory: Any, added: Any) -> tuple[Any, Any]:
    """Return at most _POINTS points, both ends included."""
    if len(memory) <= _POINTS:
        return memory, added
    logs = np.log(memory)
    chosen = np.unique(np.searchsorted(logs, np.linspace(logs[0], logs[-1], _POINTS)))
    return memory[chosen], added[chosen]


def _draw_curve(axes: Axes, curve: Curve, *, place: int, size: Size) -> None:
    look = style.look_of(curve.name)
    logs = np.log(curve.memory)
    # Staggered between curves, so that curves that coincide all show.
    wanted = np.linspace(logs[0], logs[-1], _MARKERS) + place * (logs[-1] - logs[0]) / (9 * _MARKERS)
    marked = np.unique(np.clip(np.searchsorted(logs, wanted), 0, len(logs) - 1)).tolist()
    axes.plot(
        curve.memory, curve.added,
        drawstyle="steps-post", color=look.colour, linestyle=look.dashes, linewidth=1.0 * size.scale,
        marker=look.marker, markersize=4 * size.scale, markeredgewidth=0.8 * size.scale, markevery=marked,
        label=curve.name, zorder=3,
    )  # fmt: skip


def _staircase(curve: Curve) -> Any:
    """Return the corners of a curve as it is drawn."""
    memory, added = np.repeat(curve.memory, 2)[1:], np.repeat(curve.added, 2)[:-1]
    return np.column_stack([memory, added])


def _label(axes: Axes, front: ParetoFront, curves: list[Curve], size: Size) -> set[str]:
    """Write the names at their curves, and what is above the picture; return the names without a place."""
    high = axes.get_ylim()[1]
    outside = [curve for curve in curves if not (curve.added <= high).any()]
    if outside:
        words = ", ".join(f"{one.name} (from {format_percent(float(one.added.min()))})" for one in outside)
        front_axes.note(axes, f"above: {words}")
    budget, line = _budget(axes, front)
    points = _mark_points(axes, front, size)
    marks = [(*label.points[0], 10 * size.scale) for label in points]
    names = [
        Label(text=curve.name, points=_staircase(curve), colour=style.look_of(curve.name).colour)
        for curve in curves
        if curve not in outside
    ]
    best = [_staircase(_curve(front, "best of all")), *line]
    place_labels(axes, [*budget, *points], curves=[*best, *(label.points for label in names)], marks=marks)
    return {label.text for label in place_labels(axes, names, curves=best, marks=marks)}


def _budget(axes: Axes, front: ParetoFront) -> tuple[list[Label], list[Any]]:
    """Draw the budget as a line, if it is in sight, and return its label and its points."""
    low, high = axes.get_xlim()
    free = front.budget_bytes - front.resident_bytes
    text = name_budget(front.budget_bytes, resident=front.resident_bytes)
    if low < free < high:
        axes.axvline(free, color=style.BLACK, linewidth=0.9, linestyle=(0, (4, 2)), zorder=2)
        bottom, top = axes.get_ylim()
        line = [(free, bottom), (free, (bottom + top) / 2), (free, top)]
        return [Label(text=text, points=line[1:])], [line]
    # Far off, it is only named: a line would squeeze the curves into a corner.
    less = free <= low
    front_axes.note(axes, f"← {text}" if less else f"{text} →", right=not less)
    return [], []


def _mark_points(axes: Axes, front: ParetoFront, size: Size) -> list[Label]:
    """Mark the best plan within the budget and the knee, and return their labels."""
    if front.lacks(front.budget_bytes) is not None:
        return []
    best, knee = front.best, front.knee
    plans = {"best": best, "knee": knee} if best.parameters != knee.parameters else {"best and knee": best}
    low, high = axes.get_ylim()
    labels = []
    for name, plan in plans.items():
        memory = max(1, plan.predicted.local_peak_bytes - front.resident_bytes)
        added = max(0.0, plan.predicted.overhead)
        if not low <= added <= high:
            continue
        axes.plot(
            memory, added, marker="o", markersize=9 * size.scale, markerfacecolor="none", color=style.BLACK,
            markeredgewidth=size.scale, zorder=5, clip_on=False,
        )  # fmt: skip
        labels.append(Label(text=_describe(name, plan, size), points=[(memory, added)]))
    return labels


def _describe(name: str, plan: Plan, size: Size) -> str:
    """Return what a plan is; in a column there is no room for its parameters, which the table has."""
    seconds, added = format_seconds(plan.predicted.seconds), format_percent(plan.predicted.overhead)
    if size.width < PAGE.width:
        return f"{name}: {plan.strategy}\n{seconds}, {added}"
    return f"{name}: {plan.strategy}, {seconds}, {added}\n{format_parameters(plan)}".strip()
