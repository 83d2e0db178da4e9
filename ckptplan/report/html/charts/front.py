"""A front of local memory and time: a curve for each strategy, and points whose schedules can be seen."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from ckptplan.model.plan import Plan
from ckptplan.report import style
from ckptplan.report.fields import format_parameters, name_budget
from ckptplan.report.html.charts.look import (
    CONFIG,
    INK,
    LINES,
    Chart,
    Spec,
    annotate,
    labelled_axis,
    round_steps,
    strategy_scales,
    themed,
    zoom,
)
from ckptplan.strategies.registry import all_parameters
from ckptplan.studies.pareto import ParetoFront
from ckptplan.units import format_bytes, format_count, format_percent, format_seconds

#: Points of a curve: more cannot be told apart, but all of their numbers are in CSV and JSON.
_POINTS = 150
#: Overheads up to here are drawn to scale, those above in powers of ten.
_LINEAR = 0.01
_TOOLTIP = [
    {"field": "strategy", "title": "strategy"},
    {"field": "parameters", "title": "parameters"},
    {"field": "local", "title": "local memory"},
    {"field": "remote", "title": "remote memory"},
    {"field": "time", "title": "time"},
    {"field": "over", "title": "over base"},
]


def chart_front(front: ParetoFront, *, plans: Mapping[int, int], own: Plan | None = None) -> Chart:
    """Return the chart of a front. ``plans`` maps places of the front to plans of the page.

    ``own`` is a plan beside the front, the first one of the page.
    """
    names = list(front.by_strategy)
    colours, dashes = strategy_scales(names)
    curves = [
        point
        for name, one in front.by_strategy.items()
        for point in _list_points(one, _choose_places(one), name=name, resident=front.resident_bytes)
    ]
    points = _list_points(front, sorted(plans), name=None, resident=front.resident_bytes)
    for point, place in zip(points, sorted(plans), strict=True):
        point["plan"] = plans[place]
        point["colour"] = themed(style.look_of(point["strategy"]).colour)
    if own is not None:
        points.append(_describe_own(own, resident=front.resident_bytes))
    colour: Spec = {"field": "strategy", "type": "nominal", "title": None, "scale": colours, "legend": LINES}
    line: Spec = {
        "data": {"values": curves},
        "params": [zoom("x", "y")],
        "mark": {"type": "line", "interpolate": "step-after", "strokeWidth": 2, "clip": True},
        "encoding": {
            "color": colour,
            "strokeDash": {**colour, "scale": dashes},
        },
    }
    hover: Spec = {
        "data": {"values": curves},
        "mark": {"type": "point", "opacity": 0, "size": 120, "filled": True, "clip": True},
        "encoding": {"tooltip": _TOOLTIP},
    }
    return Chart(
        name="front",
        title="Local memory and time",
        caption=_describe(front, len(plans)) + ("" if own is None else " The diamond is the plan itself."),
        spec={
            "config": CONFIG,
            "width": "container",
            "height": 420,
            "params": [{"name": "chosen", "value": -1}],
            "layer": [line, hover, *_draw_budget(front), _draw_points(points)],
            "encoding": {"x": _memory_axis(front), "y": _overhead_axis(front)},
        },
        zooms=True,
    )


def _describe(front: ParetoFront, points: int) -> str:
    return (
        f"Each curve is the least time of a strategy within each amount of local memory, over base's "
        f"{format_seconds(front.base_seconds)}. Dots are {format_count(points)} of the "
        f"{format_count(len(front))} plans that no other plan beats: choose one to see its schedule."
    )


def _choose_places(front: ParetoFront) -> list[int]:
    memory = np.log(np.maximum(1, front.local_peak_bytes - front.resident_bytes))
    if len(memory) <= _POINTS:
        return list(range(len(memory)))
    wanted = np.clip(np.linspace(memory[0], memory[-1], _POINTS), memory[0], memory[-1])
    return [int(place) for place in np.unique(np.searchsorted(memory, wanted))]


def _list_points(front: ParetoFront, places: Sequence[int], *, name: str | None, resident: int) -> list[Spec]:
    columns = front.parameters
    return [
        {
            "x": max(1, int(front.local_peak_bytes[place]) - resident),
            "y": max(0.0, float(front.overhead[place])),
            "strategy": name or front.strategies[place],
            "parameters": _format_parameters(columns, place),
            "local": format_bytes(int(front.local_peak_bytes[place])),
            "remote": format_bytes(int(front.remote_peak_bytes[place])),
            "time": format_seconds(float(front.seconds[place])),
            "over": format_percent(float(front.overhead[place])),
        }
        for place in places
    ]


def _describe_own(plan: Plan, *, resident: int) -> Spec:
    names = ("strategy", "parameters", "local", "remote", "time", "over")
    predicted = plan.predicted
    shown = (
        plan.strategy,
        format_parameters(plan),
        format_bytes(predicted.local_peak_bytes),
        format_bytes(predicted.remote_peak_bytes),
        format_seconds(predicted.seconds),
        format_percent(predicted.overhead),
    )
    return {
        "x": max(1, predicted.local_peak_bytes - resident),
        "y": max(0.0, predicted.overhead),
        "plan": 0,
        "own": True,
        "colour": INK,
        **dict(zip(names, shown, strict=True)),
    }


def _format_parameters(columns: Mapping[str, Any], place: int) -> str:
    given = {name: int(columns[name][place]) for name in all_parameters() if name in columns}
    return ", ".join(
        f"{name} {value:,}" for name, value in given.items() if value and not name.endswith("_units")
    )


def _memory_axis(front: ParetoFront) -> Spec:
    resident = front.resident_bytes
    least = max(1, int(front.local_peak_bytes[0]) - resident)
    most = max(1, *(int(one.local_peak_bytes[-1]) - resident for one in front.by_strategy.values()))
    title = "local memory for checkpoints and tapes" + (", one unit" if front.profile.units > 1 else "")
    if resident:
        title += f"; besides it {format_bytes(resident)} stay"
    ticks = {value: format_bytes(value) for value in round_steps(least / 2, most * 2, binary=True)}
    return {
        "field": "x",
        "type": "quantitative",
        "title": title,
        "scale": {"type": "log", "domain": [least / 1.3, most * 1.3], "nice": False},
        "axis": labelled_axis(ticks, labelOverlap="greedy", labelSeparation=12),
    }


def _overhead_axis(front: ParetoFront) -> Spec:
    most = max(0.0, *(float(one.overhead[0]) for one in front.by_strategy.values()))
    steps = [0.0, *(value for value in round_steps(_LINEAR, max(0.02, most), binary=False) if value >= _LINEAR)]
    return {
        "field": "y",
        "type": "quantitative",
        "title": f"time over base's {format_seconds(front.base_seconds)}",
        "scale": {
            "type": "symlog",
            "constant": _LINEAR,
            "domain": [0, max(2 * _LINEAR, 1.3 * most)],
            "nice": False,
        },
        "axis": labelled_axis(
            {share: f"{100 * share:+,.10g} %" if share else "0" for share in steps}, labelOverlap="greedy"
        ),
    }


def _draw_points(points: list[Spec]) -> Spec:
    chosen = {"test": "datum.plan === chosen", "value": 190}
    return {
        "data": {"values": points},
        "mark": {"type": "point", "stroke": INK, "cursor": "pointer", "clip": True, "opacity": 1},
        "encoding": {
            "fill": {"field": "colour", "type": "nominal", "scale": None},
            "shape": {"condition": {"test": "datum.own", "value": "diamond"}, "value": "circle"},
            "size": {"condition": chosen, "value": 60},
            "strokeWidth": {"condition": {**chosen, "value": 3}, "value": 0.8},
            "tooltip": _TOOLTIP,
        },
    }


def _draw_budget(front: ParetoFront) -> list[Spec]:
    resident = front.resident_bytes
    free = front.budget_bytes - resident
    most = max(int(one.local_peak_bytes[-1]) for one in front.by_strategy.values()) - resident
    # Far off, a line would squeeze the curves into a corner.
    if not int(front.local_peak_bytes[0]) - resident <= free <= most:
        return []
    at: Spec = {"x": {"datum": free}, "y": {"value": 0}}
    text = {"text": {"value": name_budget(front.budget_bytes, resident=resident)}}
    return [
        annotate({"type": "rule", "color": INK, "strokeDash": [6, 4]}, {**at, "y2": {"value": "height"}}),
        annotate({"type": "text", "align": "left", "baseline": "top", "dx": 4, "dy": 4}, {**at, **text}),
    ]
