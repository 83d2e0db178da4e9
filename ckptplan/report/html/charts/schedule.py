"""A schedule over time: which steps run when, and what each memory tier holds."""

from __future__ import annotations

from ckptplan.model.plan import Plan
from ckptplan.report import style
from ckptplan.report.html.charts.look import CONFIG, INK, Chart, Spec, annotate, labelled_axis, themed, zoom
from ckptplan.report.html.sketch import Sketch
from ckptplan.schedule.timeline import BARS
from ckptplan.units import format_bytes, format_count, format_seconds

_LABELS = {"record": "record (keeps tapes)", "wait": "wait for a transfer"}


def chart_schedule(plan: Plan, sketch: Sketch) -> Chart:
    """Return the chart of a plan's timeline."""
    scale, unit = _time_unit(sketch.seconds)
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


def _time_axis(sketch: Sketch, scale: float) -> Spec:
    return {
        "field": "x",
        "type": "quantitative",
        "scale": {"domain": [0, sketch.seconds / scale or 1], "nice": False},
    }


def _chart_steps(plan: Plan, sketch: Sketch, scale: float) -> Spec:
    kinds = [kind for kind in BARS if any(bar[0] == kind for bar in sketch.bars)]
    labels = [_LABELS.get(kind, kind) for kind in kinds]
    return {
        "height": 320,
        "width": "container",
        "data": {"values": [_draw_bar(*bar, scale=scale) for bar in sketch.bars]},
        "params": [zoom("x")],
        "mark": {"type": "rule", "strokeWidth": 2.5, "clip": True},
        "encoding": {
            "x": _time_axis(sketch, scale),
            "x2": {"field": "x2"},
            "y": {
                "field": "y",
                "type": "quantitative",
                "scale": {"domain": [0, plan.steps], "reverse": True, "nice": False, "zero": False},
                "title": "time step",
            },
            "y2": {"field": "y2"},
            "color": {
                "field": "k",
                "type": "nominal",
                "title": None,
                "scale": {"domain": labels, "range": [themed(style.EVENT_COLOURS[kind]) for kind in kinds]},
            },
            "tooltip": [
                {"field": "k", "title": "action"},
                {"field": "x", "title": "from", "format": ".5~g"},
                {"field": "x2", "title": "to", "format": ".5~g"},
                {"field": "y", "title": "step"},
                {"field": "y2", "title": "to step"},
            ],
        },
    }


def _draw_bar(kind: str, start: float, end: float, first: float, last: float, *, scale: float) -> Spec:
    # Seven digits are finer than any screen, and halve the file.
    return {
        "k": _LABELS.get(kind, kind),
        "x": float(f"{start / scale:.7g}"),
        "x2": float(f"{end / scale:.7g}"),
        "y": int(first),
        "y2": int(last),
    }


def _chart_memory(plan: Plan, sketch: Sketch, scale: float, *, tier: str) -> Spec:
    column = 1 if tier == "local" else 2
    held = [moment[column] for moment in sketch.memory]
    least, most = held[0], max(held)
    budget = plan.goal.local_bytes if tier == "local" else plan.goal.remote_bytes
    # Far above the curve, a line would only flatten it.
    near = budget is not None and budget - least <= 3 * (most - least)
    top = max(most, budget) if budget is not None and near else most
    colour = style.BLUE if tier == "local" else style.PURPLE
    axis: Spec = {
        "field": "b",
        "type": "quantitative",
        "title": tier,
        "scale": {"domain": [least, least + 1.25 * max(1, top - least)], "nice": False, "zero": False},
        "axis": labelled_axis({least: format_bytes(least), most: format_bytes(most)}),
    }
    curve: Spec = {
        "mark": {"type": "area", "color": colour, "opacity": 0.35, "clip": True, "line": {"color": colour}},
        "encoding": {"y": axis, "y2": {"datum": least}},
    }
    layers = [curve, *(_draw_budget(budget) if budget is not None and near else [])]
    return {
        "height": 90,
        "width": "container",
        "data": {
            "values": [
                {"x": float(f"{moment[0] / scale:.7g}"), "b": moment[column], "t": format_bytes(moment[column])}
                for moment in sketch.memory
            ]
        },
        "layer": layers,
        # Its axis follows that of the steps above.
        "encoding": {
            "x": {
                "field": "x",
                "type": "quantitative",
                "scale": {"domain": {"param": "zoom", "encoding": "x"}, "nice": False, "zero": False},
            },
            "tooltip": [{"field": "t", "title": f"{tier} memory"}],
        },
    }


def _draw_budget(budget: int) -> list[Spec]:
    at: Spec = {"y": {"datum": budget}}
    text = {"text": {"value": f"budget {format_bytes(budget)}"}}
    return [
        annotate(
            {"type": "rule", "color": style.VERMILION, "strokeDash": [6, 4]},
            {**at, "x": {"value": 0}, "x2": {"value": "width"}},
        ),
        annotate(
            {"type": "text", "align": "right", "baseline": "bottom", "dy": -2, "fill": INK},
            {**at, "x": {"value": "width"}, **text},
        ),
    ]


def _time_unit(seconds: float) -> tuple[float, str]:
    for scale, unit in ((1.0, "s"), (1e-3, "ms")):
        if seconds >= scale:
            return scale, unit
    return 1e-6, "us"
