"""Bars side by side: strategies with time and memory, machines with times, and inputs with their effects."""

from __future__ import annotations

from collections.abc import Sequence

from ckptplan.model.plan import Plan
from ckptplan.report import style
from ckptplan.report.fields import format_parameters
from ckptplan.report.html.charts.look import CONFIG, INK, Chart, Spec, annotate
from ckptplan.report.sensitivity import find_change, format_values, sort_by_effect
from ckptplan.studies.machines import MachineComparison
from ckptplan.studies.sensitivity import Sensitivity
from ckptplan.units import format_bytes, format_count, format_duration, format_percent, format_seconds


def chart_machines(comparison: MachineComparison) -> Chart:
    """Return the chart of the machines whose times are known, or of none."""
    rows: list[Spec] = []
    for machine in comparison.machines:
        seconds = machine.run_seconds
        if machine.plan is None or not seconds:
            continue
        low, high = (end * machine.batches for end in machine.interval or (seconds / machine.batches,) * 2)
        rows.append({
            "machine": machine.profile.name,
            "seconds": seconds,
            "low": low,
            "high": high,
            "shown": ("~" if machine.interval else "") + format_duration(seconds),
            "between": f"{format_duration(low)} to {format_duration(high)}" if machine.interval else "measured",
            "strategy": machine.plan.strategy,
            "largest": format_count(machine.largest_steps),
        })  # fmt: skip
    tooltip = [
        {"field": field, "title": title}
        for field, title in {
            "machine": "machine",
            "shown": "time",
            "between": "interval",
            "strategy": "strategy",
            "largest": "largest T",
        }.items()
    ]
    return Chart(
        name="machines",
        title="Time on each machine",
        caption="Lines are the intervals of estimated times, which begin with ~.",
        spec={
            "config": CONFIG,
            "width": "container",
            "height": 34 * max(1, len(rows)),
            "data": {"values": rows},
            "encoding": {
                "y": {"field": "machine", "type": "nominal", "title": None, "sort": None},
                "tooltip": tooltip,
            },
            "layer": [
                {
                    "mark": {"type": "rule", "strokeWidth": 5, "color": style.SKY},
                    "encoding": {"x": _seconds("low"), "x2": {"field": "high"}},
                },
                {
                    "mark": {"type": "point", "filled": True, "size": 90, "color": style.BLUE, "opacity": 1},
                    "encoding": {"x": _seconds("seconds")},
                },
                {
                    "mark": {"type": "text", "align": "center", "dy": -11, "fill": INK},
                    "encoding": {"x": _seconds("seconds"), "text": {"field": "shown"}},
                },
            ],
        },
    )


def _seconds(field: str) -> Spec:
    axis = {"title": "seconds", "format": "~g", "tickCount": 6}
    return {"field": field, "type": "quantitative", "scale": {"type": "log"}, "axis": axis}


#: Factors drawn as bars; the others are marks within them.
_LABELS = {0.5: "half the input", 2.0: "twice the input"}
#: Apart in hue and in brightness.
_COLOURS = [style.ORANGE, style.BLUE]


def chart_tornado(study: Sensitivity) -> Chart:
    """Return the chart of a sensitivity study."""
    influences = sort_by_effect(study)
    rows: list[Spec] = []
    for one in influences:
        label = f"{one.name}: {format_values(one.axis, one.values)}"
        for point in one.points:
            if point.best is None:
                continue
            change = find_change(point.best.seconds, study.best)
            rows.append({
                "input": label,
                "factor": _LABELS.get(point.factor, ""),
                "times": f"x {point.factor:g}",
                "change": 100 * change,
                "shown": format_percent(change),
                "time": format_seconds(point.best.seconds),
                "strategy": point.best.strategy,
                "kept": format_percent(find_change(point.kept_seconds, study.best))
                if point.kept_fits
                else "does not fit",
            })  # fmt: skip
    order = list(dict.fromkeys(row["input"] for row in rows))
    tooltip = [
        {"field": field, "title": title}
        for field, title in {
            "input": "input",
            "times": "factor",
            "shown": "change of time",
            "time": "time",
            "strategy": "best strategy",
            "kept": "the plan of now",
        }.items()
    ]
    bars: Spec = {
        "data": {"values": [row for row in rows if row["factor"]]},
        "mark": {"type": "bar", "opacity": 0.9},
        "encoding": {
            "color": {
                "field": "factor",
                "type": "nominal",
                "title": None,
                "scale": {"domain": list(_LABELS.values()), "range": _COLOURS},
                "legend": {"symbolSize": 120},
            },
        },
    }
    ticks: Spec = {
        "data": {"values": [row for row in rows if not row["factor"]]},
        "mark": {"type": "tick", "color": INK, "thickness": 2},
    }
    return Chart(
        name="tornado",
        title="What each input does to the time of the best plan",
        caption=(
            f"Each input is halved and doubled by itself, and the job is planned again; now it takes "
            f"{format_seconds(study.best.seconds)} with {study.best.strategy}. Lines within the bars are "
            "0.8 and 1.25 times the input."
        ),
        spec={
            "config": CONFIG,
            "width": "container",
            "height": 30 * max(1, len(order)),
            "layer": [bars, ticks],
            "encoding": {
                "y": {"field": "input", "type": "nominal", "title": None, "scale": {"domain": order}},
                "x": {"field": "change", "type": "quantitative", "title": "change of time (%)", "stack": None},
                "tooltip": tooltip,
            },
        },
    )


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
