"""A front of local memory and time: a curve for each strategy, and points whose schedules can be seen."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from ckptplan.model.plan import Plan
from ckptplan.report import style
from ckptplan.report.fields import format_parameters, name_budget
from ckptplan.report.front_plot import (
    beside_resident,
    scale_memory,
    scale_overhead,
    select_best,
    spread_places,
)
from ckptplan.report.html.charts.look import (
    CONFIG,
    INK,
    LINES,
    Chart,
    Spec,
    annotate,
    at,
    layer,
    nominal,
    strategy_scales,
    tell,
    themed,
    zoom,
)
from ckptplan.strategies.registry import all_parameters
from ckptplan.studies.pareto import ParetoFront
from ckptplan.units import format_bytes, format_count, format_percent, format_seconds

#: Points of a curve: more cannot be told apart, but all of their numbers are in CSV and JSON.
_POINTS = 150
_TOOLTIP = tell(
    strategy="strategy",
    parameters="parameters",
    local="local memory",
    remote="remote memory",
    time="time",
    over="over base",
)


def chart_front(
    front: ParetoFront, *, plans: Mapping[int, int], own: Plan | None = None, every: bool = False
) -> Chart:
    """Return the chart of a front, with the colours of ``every`` strategy if wanted.

    ``plans`` maps places of the front to plans of the page; ``own`` is a plan beside the front, the first one
    of the page.
    """
    coloured = tuple(front.by_strategy) if every else select_best(front)
    curves = {
        name: _list_points(front, one, spread_places(beside_resident(front, one), _POINTS).tolist(), name=name)
        for name, one in front.by_strategy.items()
    }
    points = _list_points(front, front, sorted(plans))
    for point, place in zip(points, sorted(plans), strict=True):
        point |= {"plan": plans[place], "colour": themed(style.look_of(point["strategy"]).colour)}
    if own is not None:
        points.append(_describe_own(front, own))
    shown = [point for name in coloured for point in curves[name]]
    others = [point for name in curves if name not in coloured for point in curves[name]]
    colours, dashes = strategy_scales(coloured)
    named = nominal("strategy", legend=LINES)
    form = {"interpolate": "step-after"}
    thin = layer("line", others, {"detail": nominal("strategy")}, color=style.GREY, strokeWidth=0.7, **form)
    look = {"color": {**named, "scale": colours}, "strokeDash": {**named, "scale": dashes}}
    lines = {**layer("line", shown, look, strokeWidth=2, **form), "params": [zoom("x", "y")]}
    hover = layer("point", [*shown, *others], {"tooltip": _TOOLTIP}, opacity=0, size=120, filled=True)
    memory, band = scale_memory(front, whole=True)
    layers = [lines, *([thin] if others else []), *_draw_resident(front, memory.low, band), hover]
    return Chart(
        name="front",
        title="Local memory and time",
        caption=_describe(front, len(plans))
        + (" Strategies that are best nowhere are thin and grey." if others else "")
        + ("" if own is None else " The diamond is the plan itself."),
        spec={
            "config": CONFIG,
            "width": "container",
            "height": 420,
            "params": [{"name": "chosen", "value": -1}],
            "layer": [*layers, *_draw_budget(front, band, memory.high), _draw_points(points)],
            "encoding": {"x": at("x", memory), "y": at("y", scale_overhead(front, whole=True))},
        },
        zooms=True,
    )


def _describe(front: ParetoFront, points: int) -> str:
    return (
        f"Each curve is the least time of a strategy within each amount of local memory, over base's "
        f"{format_seconds(front.base_seconds)}. Dots are {format_count(points)} of the "
        f"{format_count(len(front))} plans that no other plan beats: choose one to see its schedule."
    )


def _list_points(
    front: ParetoFront, one: ParetoFront, places: Sequence[int], *, name: str | None = None
) -> list[Spec]:
    memory = beside_resident(front, one)
    return [
        {
            "x": int(memory[place]),
            "y": max(0.0, float(one.overhead[place])),
            "strategy": name or one.strategies[place],
            "parameters": _format_parameters(one.parameters, place),
            "local": format_bytes(int(one.local_peak_bytes[place])),
            "remote": format_bytes(int(one.remote_peak_bytes[place])),
            "time": format_seconds(float(one.seconds[place])),
            "over": format_percent(float(one.overhead[place])),
        }
        for place in places
    ]


def _describe_own(front: ParetoFront, plan: Plan) -> Spec:
    predicted = plan.predicted
    return {
        "x": max(1, predicted.local_peak_bytes - front.resident_bytes),
        "y": max(0.0, predicted.overhead),
        "plan": 0,
        "own": True,
        "colour": INK,
        "strategy": plan.strategy,
        "parameters": format_parameters(plan),
        "local": format_bytes(predicted.local_peak_bytes),
        "remote": format_bytes(predicted.remote_peak_bytes),
        "time": format_seconds(predicted.seconds),
        "over": format_percent(predicted.overhead),
    }


def _format_parameters(columns: Mapping[str, Any], place: int) -> str:
    given = {name: int(columns[name][place]) for name in all_parameters() if name in columns}
    return ", ".join(
        f"{name} {value:,}" for name, value in given.items() if value and not name.endswith("_units")
    )


def _draw_points(points: list[Spec]) -> Spec:
    chosen = {"test": "datum.plan === chosen", "value": 190}
    encoding = {
        "fill": nominal("colour", scale=None),
        "shape": {"condition": {"test": "datum.own", "value": "diamond"}, "value": "circle"},
        "size": {"condition": chosen, "value": 60},
        "strokeWidth": {"condition": {**chosen, "value": 3}, "value": 0.8},
        "tooltip": _TOOLTIP,
    }
    return layer("point", points, encoding, stroke=INK, cursor="pointer", opacity=1)


def _draw_resident(front: ParetoFront, low: float, band: float) -> list[Spec]:
    """Return the band that stands for what stays with any schedule."""
    if not front.resident_bytes:
        return []
    area = {"x": {"datum": low}, "x2": {"datum": band}, "y": {"value": 0}, "y2": {"value": "height"}}
    text = {"x": {"datum": (low * band) ** 0.5}, "y": {"value": 210}}
    words = {"text": {"value": f"{format_bytes(front.resident_bytes)} stay"}}
    return [
        annotate("rect", area, fill=INK, fillOpacity=0.1),
        annotate("text", {**text, **words}, angle=270, fill=INK),
    ]


def _draw_budget(front: ParetoFront, low: float, high: float) -> list[Spec]:
    free = front.budget_bytes - front.resident_bytes
    # Far off, a line would squeeze the curves into a corner.
    if not low <= free <= high:
        return []
    place: Spec = {"x": {"datum": free}, "y": {"value": 0}}
    text = {"text": {"value": name_budget(front.budget_bytes, resident=front.resident_bytes)}}
    return [
        annotate("rule", {**place, "y2": {"value": "height"}}, color=INK, strokeDash=[6, 4]),
        annotate("text", {**place, **text}, align="left", baseline="top", dx=4, dy=4),
    ]
