"""A tornado diagram: the effect of each input on the best plan's time, the largest first."""

from __future__ import annotations

from ckptplan.report import style
from ckptplan.report.html.charts.look import CONFIG, INK, Chart, Spec
from ckptplan.report.sensitivity import find_change, format_values, sort_by_effect
from ckptplan.studies.sensitivity import Sensitivity
from ckptplan.units import format_percent, format_seconds

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
