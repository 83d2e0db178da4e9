"""A schedule over time: which steps run when, and what each memory tier holds."""

from __future__ import annotations

from ckptplan.model.plan import Plan
from ckptplan.report import style
from ckptplan.report.gantt import LEGEND, time_unit
from ckptplan.report.html.charts.look import (
    CONFIG,
    INK,
    Chart,
    Spec,
    annotate,
    at,
    label_ticks,
    layer,
    nominal,
    themed,
    zoom,
)
from ckptplan.report.scale import Scale
from ckptplan.report.sketch import Sketch
from ckptplan.schedule.timeline import BARS
from ckptplan.units import format_bytes, format_count, format_seconds


def chart_schedule(plan: Plan, sketch: Sketch) -> Chart:
    """Return the chart of a plan's timeline."""
    scale, unit = time_unit(sketch.seconds)
    parts = [_chart_steps(plan, sketch, scale), _chart_memory(plan, sketch, scale, tier="local")]
    if any(remote for _, _, remote in sketch.memory):
        parts.append(_chart_memory(plan, sketch, scale, tier="remote"))
    for part in parts[:-1]:
        part["encoding"]["x"]["axis"] = {"labels": False, "ticks": False, "title": None}
    parts[-1]["encoding"]["x"]["axis"] = {"title": f"time ({unit})", "tickCount": 12}
    return Chart(
        name="schedule",
        title="Schedule and memory",
        caption=_describe(sketch),
        spec={"config": CONFIG, "spacing": 10, "vconcat": parts, "data": {"name": "none", "values": []}},
        zooms=True,
    )


def _describe(sketch: Sketch) -> str:
    text = (
        f"{format_count(sketch.actions)} actions in {format_seconds(sketch.seconds)}: a run goes down to the "
        "right, a backward up to the right. Below is what each memory holds at each time."
    )
    if sketch.interval_seconds is not None:
        text += (
            f" Actions shorter than {format_seconds(sketch.interval_seconds)} are drawn together: one bar for "
            "each kind and interval, over the steps that they touch."
        )
    return text


def _chart_steps(plan: Plan, sketch: Sketch, scale: float) -> Spec:
    kinds = [kind for kind in BARS if any(bar[0] == kind for bar in sketch.bars)]
    colours = [themed(style.EVENT_COLOURS[kind]) for kind in kinds]
    domain = {"domain": [0, sketch.seconds / scale or 1], "nice": False}
    steps = {"domain": [0, plan.steps], "reverse": True, "nice": False, "zero": False}
    titles = {"k": "action", "x": "from", "x2": "to", "y": "step", "y2": "to step"}
    encoding = {
        "x": {**at("x"), "scale": domain},
        "x2": {"field": "x2"},
        "y": {**at("y"), "scale": steps, "title": "time step"},
        "y2": {"field": "y2"},
        "color": nominal("k", scale={"domain": [LEGEND.get(kind, kind) for kind in kinds], "range": colours}),
        "tooltip": [
            {"field": field, "title": title, **({"format": ".5~g"} if "x" in field else {})}
            for field, title in titles.items()
        ],
    }
    bars = [_describe_bar(*bar, scale=scale) for bar in sketch.bars]
    shown = layer("rule", bars, encoding, strokeWidth=2.5)
    return {**shown, "height": 320, "width": "container", "params": [zoom("x")]}


def _describe_bar(kind: str, start: float, end: float, first: float, last: float, *, scale: float) -> Spec:
    x, x2 = _shorten(start / scale), _shorten(end / scale)
    return {"k": LEGEND.get(kind, kind), "x": x, "x2": x2, "y": int(first), "y2": int(last)}


def _shorten(time: float) -> float:
    """Return a time with seven digits, finer than any screen, which halves the file."""
    return float(f"{time:.7g}")


def _chart_memory(plan: Plan, sketch: Sketch, scale: float, *, tier: str) -> Spec:
    column = 1 if tier == "local" else 2
    held = [moment[column] for moment in sketch.memory]
    least, most = held[0], max(held)
    budget = plan.goal.local_bytes if tier == "local" else plan.goal.remote_bytes
    # Far above the curve, a line would only flatten it.
    near = budget is not None and budget - least <= 3 * (most - least)
    top = max(most, budget) if budget is not None and near else most
    colour = style.BLUE if tier == "local" else style.PURPLE
    ticks = {least: format_bytes(least), most: format_bytes(most)}
    axis = Scale(title=tier, low=least, high=least + 1.25 * max(1, top - least), ticks=ticks)
    rows = [
        {"x": _shorten(moment[0] / scale), "b": moment[column], "t": format_bytes(moment[column])}
        for moment in sketch.memory
    ]
    encoding = {"y": {**at("b", axis), "axis": label_ticks(axis)}, "y2": {"datum": least}}
    curve = layer("area", rows, encoding, color=colour, opacity=0.35, line={"color": colour})
    # Its axis follows that of the steps above.
    follows = {"domain": {"param": "zoom", "encoding": "x"}, "nice": False, "zero": False}
    return {
        "height": 90,
        "width": "container",
        "layer": [curve, *(_draw_budget(budget) if budget is not None and near else [])],
        "encoding": {
            "x": {**at("x"), "scale": follows},
            "tooltip": [{"field": "t", "title": f"{tier} memory"}],
        },
    }


def _draw_budget(budget: int) -> list[Spec]:
    place: Spec = {"y": {"datum": budget}}
    text = {"text": {"value": f"budget {format_bytes(budget)}"}}
    line = {**place, "x": {"value": 0}, "x2": {"value": "width"}}
    form = {"align": "right", "baseline": "bottom", "dy": -2, "fill": INK}
    return [
        annotate("rule", line, color=style.VERMILION, strokeDash=[6, 4]),
        annotate("text", {**place, "x": {"value": "width"}, **text}, **form),
    ]
