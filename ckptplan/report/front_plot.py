"""A front as a picture: local memory across, time over base's up, both in powers of ten.

Strategies that are best somewhere have their colours; the others are thin and grey. What stays with any
schedule, which would fill the axis of memory, is a band at its beginning, from which the axis counts.
The functions at the top say what is drawn, in the picture and on the page.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt

from ckptplan.cost.exact import overhead
from ckptplan.model.plan import Plan
from ckptplan.report import style, vega
from ckptplan.report.fields import format_parameters, name_budget, name_job
from ckptplan.report.scale import LINEAR, Scale, scale_bytes, scale_shares
from ckptplan.report.style import PAGE, Size
from ckptplan.report.vega import Chart, Spec
from ckptplan.studies.pareto import ParetoFront
from ckptplan.units import format_bytes, format_count, format_percent, format_seconds

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

    from ckptplan.model.plan import Plan


#: Overheads up to here are always in sight: three times base's time.
_WORTH = 2.0
#: The share of the axis of memory that the band takes.
_BAND = 0.07
#: Longer curves are thinned out evenly along the axis: more points cannot be told apart.
_POINTS = 600


def select_best(front: ParetoFront) -> tuple[str, ...]:
    """Return the strategies that are best within some amount of memory, in the order of the front's curves."""
    return tuple(name for name in front.by_strategy if len(front.places_of(name)))


def beside_resident(front: ParetoFront, one: ParetoFront | None = None) -> npt.NDArray[np.int64]:
    """Return the memory of the points of a front, or of one of its strategies, beside what stays."""
    peaks = (front if one is None else one).local_peak_bytes
    return np.maximum(1, peaks - front.resident_bytes)


def spread_places(memory: npt.NDArray[np.int64], most: int) -> npt.NDArray[np.int64]:
    """Return places of points, about evenly spaced on the axis, both ends included."""
    if len(memory) <= most:
        return np.arange(len(memory))
    logs = np.log(memory)
    # Between equal ends linspace may round to values above them, beyond the last point.
    wanted = np.clip(np.linspace(logs[0], logs[-1], most), logs[0], logs[-1])
    return np.unique(np.searchsorted(logs, wanted))


def scale_memory(front: ParetoFront, *, whole: bool = False) -> tuple[Scale, float]:
    """Return the axis of memory beside what stays, and where the band ends that stands for what stays.

    It ranges over what is worth a look, or over all points.
    """
    memory = beside_resident(front)
    seen = memory if whole else memory[front.overhead <= _find_top(front)]
    most = float(max(beside_resident(front, one)[-1] for one in front.by_strategy.values()))
    least, most = float(seen[0]), max(most, float(seen[-1]))
    room = max(1.3, (most / least) ** 0.03)
    low, high = least / room, most * room
    stays = bool(front.resident_bytes)
    title = "local memory, one unit" if front.profile.units > 1 else "local memory"
    scale = scale_bytes(title, low, high, log=True, sign="+" if stays else "")
    return dataclasses.replace(scale, low=low / (high / low) ** _BAND if stays else low), low


def scale_overhead(front: ParetoFront, *, whole: bool = False) -> Scale:
    """Return the axis of time over base's: of what is worth a look, or of all points."""
    bottom = float(front.overhead.min())
    top = _find_top(front)
    if whole:
        top = max(top, 1.3 * max(float(one.overhead[0]) for one in front.by_strategy.values()))
    low = -0.1 * LINEAR if bottom < 0.05 * top else bottom / 1.5
    title = f"time over base's {format_seconds(front.base_seconds)}"
    return scale_shares(title, low, max(2 * LINEAR, top), wide=True)


def _find_top(front: ParetoFront) -> float:
    """Return the overhead up to which a front is worth a look: that of the budget, and some above."""
    place = front.place_within(front.budget_bytes)
    budgeted = 0.0 if place is None else float(front.overhead[place])
    top = max(_WORTH, 3 * budgeted, 2 * float(front.overhead.min()))
    return min(top, max(1.3 * max(float(one.overhead.max()) for one in front.by_strategy.values()), 0.02))


def draw_front(front: ParetoFront, size: Size = PAGE, *, every: bool = False) -> Figure:
    """Return the picture, with the colours of ``every`` strategy if wanted.

    Call it, and save the picture, within ``style.styled(size)``. Raises Infeasible for an empty front.
    """
    if (reason := front.lacks(front.budget_bytes)) is not None and not len(front):
        raise reason
    title = ("Least time within each amount of local memory", name_job(front.workload, front.profile))
    figure = style.start_figure(size, 2.6 if size.width < PAGE.width else 3.9, *title)
    axes = figure.subplots()
    scale_overhead(front).set_y(axes)
    scale, band = scale_memory(front)
    scale.set_x(axes)
    if front.resident_bytes:
        axes.axvspan(scale.low, band, color=style.PALE, linewidth=0)
        axes.annotate(
            f"{format_bytes(front.resident_bytes)} stay", (np.sqrt(scale.low * band), 0.5),
            xycoords=axes.get_xaxis_transform(), rotation=90, ha="center", va="center",
        )  # fmt: skip
    coloured = tuple(front.by_strategy) if every else select_best(front)
    handles = [*_draw_curves(axes, front, coloured, size), *_draw_bound(axes, front)]
    handles += [_draw_budget(axes, front), *_mark_plans(axes, front, size)]
    return style.finish_figure(figure, handles, size)


def _draw_curves(axes: Axes, front: ParetoFront, coloured: tuple[str, ...], size: Size) -> list[Any]:
    """Draw the curves; return samples of those in colour, and one of the others."""
    samples: list[Any] = []
    others: list[Any] = []
    for number, (name, one) in enumerate(front.by_strategy.items()):
        memory = beside_resident(front, one)
        places = spread_places(memory, _POINTS)
        look = style.look_of(name)
        form: dict[str, Any] = {"color": style.GREY, "linewidth": 0.4 * size.scale, "zorder": 1}
        if name in coloured:
            least = float(one.overhead.min())
            above = f" (from {format_percent(least)})" if least > axes.get_ylim()[1] else ""
            form = {
                "color": look.colour, "linestyle": look.dashes, "linewidth": size.scale, "zorder": 3,
                "marker": look.marker, "markersize": 4 * size.scale, "markeredgewidth": 0.8 * size.scale,
                # Staggered between curves, so that curves that coincide all show.
                "markevery": (0.02 * number, 0.18), "label": f"{name}{above}",
            }  # fmt: skip
        (line,) = axes.plot(memory[places], one.overhead[places], drawstyle="steps-post", **form)
        (samples if name in coloured else others).append(line)
    if others:
        others[0].set_label("other strategies")
    return [*samples, *others[:1]]


def _draw_bound(axes: Axes, front: ParetoFront) -> list[Any]:
    """Fill the band between the front and what no schedule within the same memory can be faster than."""
    if not len(front.bounds.seconds):
        return []
    least = np.maximum(0.0, overhead(front.least_seconds, front.base_seconds))
    return [
        axes.fill_between(
            beside_resident(front), least, front.overhead, step="post", color=style.PALE, linewidth=0,
            label="not proved optimal", zorder=0,
        )
    ]  # fmt: skip


def _draw_budget(axes: Axes, front: ParetoFront) -> Any:
    """Draw the budget as a line, which is only named if it is far off: the curves keep the axis."""
    free = front.budget_bytes - front.resident_bytes
    low, high = axes.get_xlim()
    away = "" if low < free < high else ", out of sight"
    text = f"{name_budget(front.budget_bytes, resident=front.resident_bytes)}{away}"
    return axes.axvline(free, color=style.BLACK, linewidth=0.9, linestyle=(0, (4, 2)), label=text, zorder=2)


def _mark_plans(axes: Axes, front: ParetoFront, size: Size) -> list[Any]:
    """Mark the best plan within the budget and the knee."""
    if front.lacks(front.budget_bytes) is not None:
        return []
    best, knee = front.best, front.knee
    plans = {"best": best, "knee": knee} if best.parameters != knee.parameters else {"best and knee": best}
    low, high = axes.get_ylim()
    marks = []
    for (name, plan), marker in zip(plans.items(), "os", strict=False):
        memory = max(1, plan.predicted.local_peak_bytes - front.resident_bytes)
        if low <= plan.predicted.overhead <= high:
            marks += axes.plot(
                memory, max(0.0, plan.predicted.overhead), marker=marker, markersize=9 * size.scale,
                markerfacecolor="none", color=style.BLACK, markeredgewidth=size.scale, zorder=5,
                clip_on=False, linestyle="", label=_describe(name, plan, size),
            )  # fmt: skip
    return marks


def _describe(name: str, plan: Plan, size: Size) -> str:
    """Return what a plan is; in a column there is no room for its parameters, which the table has."""
    seconds, added = format_seconds(plan.predicted.seconds), format_percent(plan.predicted.overhead)
    parameters = format_parameters(plan) if size.width >= PAGE.width else ""
    return f"{name}: {plan.strategy}, {seconds}, {added}{', ' if parameters else ''}{parameters}"


#: Points of a curve: more cannot be told apart, but all of their numbers are in CSV and JSON.
_FEW = 150
_TOOLTIP = vega.tell(**vega.PLAN)
_COSTS = ("seconds", "overhead", "local_peak_bytes", "remote_peak_bytes")


def chart_front(
    front: ParetoFront, *, plans: Mapping[int, int], own: Plan | None = None, every: bool = False
) -> Chart:
    """Return the chart of a front, with the colours of ``every`` strategy if wanted.

    ``plans`` maps places of the front to plans of the page; ``own`` is a plan beside the front, the first one
    of the page.
    """
    coloured = tuple(front.by_strategy) if every else select_best(front)
    curves = {
        name: _list_points(front, one, spread_places(beside_resident(front, one), _FEW).tolist(), name=name)
        for name, one in front.by_strategy.items()
    }
    points = _list_points(front, front, sorted(plans))
    for point, place in zip(points, sorted(plans), strict=True):
        point |= {"plan": plans[place], "colour": vega.themed(style.look_of(point["strategy"]).colour)}
    if own is not None:
        points.append(_describe_own(front, own))
    shown = [point for name in coloured for point in curves[name]]
    others = [point for name in curves if name not in coloured for point in curves[name]]
    colours, dashes = vega.strategy_scales(coloured)
    named = vega.nominal("strategy", legend=vega.LINES)
    form = {"interpolate": "step-after"}
    thin = vega.layer(
        "line", others, {"detail": vega.nominal("strategy")}, color=style.GREY, strokeWidth=0.7, **form
    )
    look = {"color": {**named, "scale": colours}, "strokeDash": {**named, "scale": dashes}}
    lines = {**vega.layer("line", shown, look, strokeWidth=2, **form), "params": [vega.zoom("x", "y")]}
    hover = vega.layer("point", [*shown, *others], {"tooltip": _TOOLTIP}, opacity=0, size=120, filled=True)
    memory, band = scale_memory(front, whole=True)
    layers = [lines, *([thin] if others else []), *_layer_resident(front, memory.low, band), hover]
    return Chart.of(
        "front",
        "Local memory and time",
        _describe_chart(front, len(plans))
        + (" Strategies that are best nowhere are thin and grey." if others else "")
        + ("" if own is None else " The diamond is the plan itself."),
        zooms=True,
        height=420,
        params=[{"name": "chosen", "value": -1}],
        layer=[*layers, *_layer_budget(front, band, memory.high), _layer_points(points)],
        encoding={"x": vega.at("x", memory), "y": vega.at("y", scale_overhead(front, whole=True))},
    )


def _describe_chart(front: ParetoFront, points: int) -> str:
    return (
        f"Each curve is the least time of a strategy within each amount of local memory, over base's "
        f"{format_seconds(front.base_seconds)}. Dots are {format_count(points)} of the "
        f"{format_count(len(front))} plans that no other plan beats: choose one to see its schedule."
    )


def _list_points(
    front: ParetoFront, one: ParetoFront, places: Sequence[int], *, name: str | None = None
) -> list[Spec]:
    memory, parameters = beside_resident(front, one), one.parameters
    return [
        {
            "x": int(memory[place]),
            "y": max(0.0, float(one.overhead[place])),
            **vega.label_row({
                **{key: int(values[place]) or None for key, values in parameters.items()},
                "strategy": name or one.strategies[place],
                **{key: getattr(one, key)[place].item() for key in _COSTS},
            }),
        }
        for place in places
    ]  # fmt: skip


def _describe_own(front: ParetoFront, plan: Plan) -> Spec:
    predicted = plan.predicted
    return {
        "x": max(1, predicted.local_peak_bytes - front.resident_bytes),
        "y": max(0.0, predicted.overhead),
        "plan": 0,
        "own": True,
        "colour": vega.INK,
        **vega.label_plan(plan),
    }


def _layer_points(points: list[Spec]) -> Spec:
    chosen = {"test": "datum.plan === chosen", "value": 190}
    encoding = {
        "fill": vega.nominal("colour", scale=None),
        "shape": {"condition": {"test": "datum.own", "value": "diamond"}, "value": "circle"},
        "size": {"condition": chosen, "value": 60},
        "strokeWidth": {"condition": {**chosen, "value": 3}, "value": 0.8},
        "tooltip": _TOOLTIP,
    }
    return vega.layer("point", points, encoding, stroke=vega.INK, cursor="pointer", opacity=1)


def _layer_resident(front: ParetoFront, low: float, band: float) -> list[Spec]:
    """Return the band that stands for what stays with any schedule."""
    if not front.resident_bytes:
        return []
    area = {"x": {"datum": low}, "x2": {"datum": band}, "y": {"value": 0}, "y2": {"value": "height"}}
    text = {"x": {"datum": (low * band) ** 0.5}, "y": {"value": 210}}
    words = {"text": {"value": f"{format_bytes(front.resident_bytes)} stay"}}
    return [
        vega.annotate("rect", area, fill=vega.INK, fillOpacity=0.1),
        vega.annotate("text", {**text, **words}, angle=270, fill=vega.INK),
    ]


def _layer_budget(front: ParetoFront, low: float, high: float) -> list[Spec]:
    free = front.budget_bytes - front.resident_bytes
    # Far off, a line would squeeze the curves into a corner.
    if not low <= free <= high:
        return []
    place: Spec = {"x": {"datum": free}, "y": {"value": 0}}
    text = {"text": {"value": name_budget(front.budget_bytes, resident=front.resident_bytes)}}
    return [
        vega.annotate("rule", {**place, "y2": {"value": "height"}}, color=vega.INK, strokeDash=[6, 4]),
        vega.annotate("text", {**place, **text}, align="left", baseline="top", dx=4, dy=4),
    ]
