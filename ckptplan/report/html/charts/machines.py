"""Machines side by side: the time of the best plan on each, with the interval of an estimate."""

from __future__ import annotations

from ckptplan.report import style
from ckptplan.report.html.charts.look import CONFIG, INK, Chart, Spec
from ckptplan.studies.machines import MachineComparison
from ckptplan.units import format_count, format_duration


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
