"""A front as a picture: local memory across, time over base's up, both in powers of ten.

Memory is what a schedule needs beside the resident bytes, which would otherwise fill the axis; the upper
axis has both together.
The range is the one worth a look, with round ticks on all four sides.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from math import log
from typing import TYPE_CHECKING, Any

import numpy as np

from ckptplan.cost.exact import overhead
from ckptplan.report import style
from ckptplan.report.fields import format_parameters, name_budget
from ckptplan.report.labels import Label, place_labels, set_legend, set_title, settle, wrap
from ckptplan.report.style import PAGE, Size, measure_text
from ckptplan.report.ticks import byte_powers, round_decimal, round_ticks, spaced
from ckptplan.studies.pareto import ParetoFront
from ckptplan.units import format_bytes, format_count, format_percent, format_seconds

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

    from ckptplan.model.plan import Plan

#: Overheads up to here are drawn to scale, those above in powers of ten.
_LINEAR = 0.01
#: Overheads up to here are always in sight: three times base's time.
_WORTH = 2.0
#: The roundest first.
_SHARES = tuple(
    factor * 10.0**power for factors in ((1,), (5,), (2,)) for power in range(-2, 9) for factor in factors
)


@dataclass(frozen=True, kw_only=True)
class _Window:
    """The range of memory beside what stays, in bytes, and of overheads, that is worth a look."""

    memory: tuple[float, float]
    overhead: tuple[float, float]


def _find_window(front: ParetoFront) -> _Window:
    """Return the range from the best plans of small budgets to that of base's speed."""
    added = np.asarray(front.overhead)
    memory = np.maximum(1, np.asarray(front.local_peak_bytes) - front.resident_bytes)
    place = front.place_within(front.budget_bytes)
    budgeted = 0.0 if place is None else float(added[place])
    # Some room above the best plan, and never only the plan itself.
    top = max(_WORTH, 3 * budgeted, 2 * float(added.min()))
    top = min(top, max(1.3 * max(float(one.overhead.max()) for one in front.by_strategy.values()), 0.02))
    seen = memory[added <= top]
    most = max(int(one.local_peak_bytes[-1]) for one in front.by_strategy.values()) - front.resident_bytes
    least, fastest = float(seen.min()), float(max(most, seen.max()))
    room = max(1.25, (fastest / least) ** 0.06)
    bottom = float(added.min())
    return _Window(
        memory=(least / room, fastest * room),
        overhead=(-0.1 * _LINEAR if bottom < 0.05 * top else bottom / 1.5, max(2 * _LINEAR, top)),
    )


def _scale(axes: Axes, window: _Window) -> None:
    """Set the scales and limits."""
    axes.set_xscale("log")
    axes.set_xlim(*window.memory)
    axes.set_yscale("symlog", linthresh=_LINEAR, linscale=0.5)
    axes.set_ylim(*window.overhead)


def _mark_axes(axes: Axes, front: ParetoFront, window: _Window, size: Size) -> None:
    """Set ticks and labels of all four sides, as many as the size has room for."""
    from matplotlib.ticker import NullLocator

    dot = axes.figure.dpi / 72 * size.points
    for axis in (axes.xaxis, axes.yaxis):
        axis.set_minor_locator(NullLocator())
    one = ", one unit" if front.profile.units > 1 else ""
    sizes = byte_powers(*window.memory, place=_across(axes), gap=6.5 * dot)
    axes.set_xticks(sizes, [format_bytes(value) for value in sizes])
    axes.set_xlabel(f"local memory for checkpoints and tapes{one}")
    low, high = window.overhead
    shares = spaced(
        [share for share in (0.0, *_SHARES) if max(0.0, low) <= share <= high], place=_up(axes), gap=1.5 * dot
    )
    axes.set_yticks(shares, [f"{100 * share:+,.0f} %" if share else "0" for share in shares])
    axes.set_ylabel(f"time over base's {format_seconds(front.base_seconds)}")
    _mark_all_memory(axes, front, window, size)
    _mark_seconds(axes, front, window, dot)


def _across(axes: Axes) -> Any:
    low, high = axes.get_xlim()
    return lambda value: axes.bbox.width * log(value / low) / log(high / low)


def _up(axes: Axes) -> Any:
    return lambda value: float(axes.transData.transform((axes.get_xlim()[0], value))[1])


def _mark_all_memory(axes: Axes, front: ParetoFront, window: _Window, size: Size) -> None:
    """Set the upper axis: memory in all."""
    from matplotlib.ticker import NullLocator

    dot = axes.figure.dpi / 72 * size.points

    resident = front.resident_bytes
    if not resident:
        return
    across = _across(axes)
    low, high = (resident + end for end in window.memory)
    ticks = _roundest(
        round_ticks(low, high, place=lambda value: across(max(value, low) - resident), gap=6.5 * dot),
        is_round=lambda value: value % 2 ** (int(log(value, 2)) - 4) == 0,
    )
    # Where checkpoints are a trifle beside what stays, all ticks would read the same.
    named = {format_bytes(tick): tick for tick in reversed(ticks)}
    if len(named) < 2:
        words = f"{axes.get_xlabel()}, beside {format_bytes(resident)} that stay"
        figure: Any = axes.get_figure(root=True)
        axes.set_xlabel(wrap(figure, words, width=axes.bbox.width, points=size.points))
        return
    upper = axes.secondary_xaxis("top")
    upper.set_xticks([tick - resident for tick in named.values()], list(named))
    upper.xaxis.set_minor_locator(NullLocator())
    upper.set_xlabel(f"in all, with {format_bytes(resident)} that stay")


def _mark_seconds(axes: Axes, front: ParetoFront, window: _Window, dot: float) -> None:
    """Set the right axis: time."""
    from matplotlib.ticker import NullLocator

    base, up = front.base_seconds, _up(axes)
    low, high = (base * (1 + max(0.0, end)) for end in window.overhead)
    ticks = _roundest(
        round_ticks(low, high, place=lambda value: up(value / base - 1), gap=2 * dot, roundest=round_decimal),
        is_round=lambda value: float(f"{value:.2e}") == value,
    )
    named = {format_seconds(tick): tick for tick in reversed(ticks)}
    right = axes.secondary_yaxis("right")
    right.set_yscale("symlog", linthresh=_LINEAR, linscale=0.5)
    right.set_yticks([tick / base - 1 for tick in named.values()], list(named))
    right.yaxis.set_minor_locator(NullLocator())
    right.set_ylabel("time a batch")


def _roundest(ticks: list[float], *, is_round: Callable[[float], bool]) -> list[float]:
    """Return the round ones of some ticks, or all if fewer than three are."""
    chosen = [tick for tick in ticks if is_round(tick)]
    return chosen if len(chosen) > 2 else ticks


def _note(axes: Axes, text: str, *, right: bool = True) -> None:
    """Write into an upper corner, below what is there."""
    above = sum(1 + other.get_text().count("\n") for other in axes.texts if other.get_gid() == f"note {right}")
    axes.annotate(
        text, (1 if right else 0, 1), xycoords="axes fraction",
        xytext=(-4 if right else 4, -4 - 1.3 * above * float(measure_text())), textcoords="offset points",
        ha="right" if right else "left", va="top", parse_math=False, gid=f"note {right}", zorder=7,
    ).set_in_layout(False)  # fmt: skip


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
    window = _find_window(front)
    best = _curve(front, "best of all")
    axes.step(
        best.memory, best.added, where="post", color=style.PALE, linewidth=6 * size.scale, zorder=1,
        solid_capstyle="butt",
    )  # fmt: skip
    _bound(axes, front)
    for place, curve in enumerate(curves):
        _draw_curve(axes, curve, place=place, size=size)
    set_legend(figure, [line for line in axes.lines if line.get_label() in legend], handlelength=3.2)
    _scale(axes, window)
    figure.draw_without_rendering()
    _mark_axes(axes, front, window, size)
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
        _note(axes, f"above: {words}")
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
    _note(axes, f"← {text}" if less else f"{text} →", right=not less)
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
