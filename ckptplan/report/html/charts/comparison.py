"""Strategies side by side: the time and the local memory of the best plan of each."""

from __future__ import annotations

from collections.abc import Sequence

from ckptplan.model.plan import Plan
from ckptplan.report import style
from ckptplan.report.fields import format_parameters
from ckptplan.report.html.charts.look import CONFIG, INK, Chart, Spec, annotate
from ckptplan.units import format_bytes, format_percent, format_seconds


def chart_comparison(plans: Sequence[Plan]) -> Chart:
    """Return the chart of the plans that fit, in their order."""
    most = max(plan.predicted.local_peak_bytes for plan in plans)
    scale, unit = next((2**power, name) for power, name in _UNITS if most >= 2**power or not power)
    rows = [
        {
            "strategy": plan.strategy,
            "parameters": format_parameters(plan),
            "over": 100 * plan.predicted.overhead,
            "memory": plan.predicted.local_peak_bytes / scale,
            "shown": format_percent(plan.predicted.overhead),
            "local": format_bytes(plan.predicted.local_peak_bytes),
            "time": format_seconds(plan.predicted.seconds),
        }
        for plan in plans
    ]
    budget = plans[0].goal.local_bytes
    near = budget is not None and budget <= 4 * most
    over = _chart_bars("over", "time over base (%)", "shown", colour=style.BLUE)
    memory = _chart_bars("memory", f"local memory ({unit})", "local", colour=style.ORANGE)
    if budget is not None and near:
        line = {"x": {"datum": budget / scale}, "y": {"value": 0}, "y2": {"value": "height"}}
        memory["layer"].append(annotate({"type": "rule", "color": INK, "strokeDash": [6, 4]}, line))
    return Chart(
        name="comparison",
        title="Strategies",
        caption="The best plan of each strategy, the one to run first"
        + (f"; the dashed line is the budget, {format_bytes(budget)}." if budget is not None and near else "."),
        spec={"config": CONFIG, "data": {"values": rows}, "spacing": 24, "vconcat": [over, memory]},
    )


_UNITS = ((40, "TiB"), (30, "GiB"), (20, "MiB"), (10, "KiB"), (0, "B"))


def _chart_bars(field: str, title: str, label: str, *, colour: str) -> Spec:
    tooltip = [
        {"field": name, "title": text}
        for name, text in {
            "strategy": "strategy",
            "parameters": "parameters",
            "time": "time",
            "shown": "over base",
            "local": "local memory",
        }.items()
    ]
    return {
        "width": "container",
        "height": {"step": 24},
        "encoding": {
            "y": {"field": "strategy", "type": "nominal", "title": None, "sort": None},
            "x": {"field": field, "type": "quantitative", "title": title, "axis": {"tickCount": 8}},
            "tooltip": tooltip,
        },
        "layer": [
            {"mark": {"type": "bar", "color": colour, "opacity": 0.9}},
            {
                "mark": {"type": "text", "align": "left", "dx": 4, "fill": INK},
                "encoding": {"text": {"field": label}},
            },
        ],
    }
