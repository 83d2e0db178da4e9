"""Bars side by side: strategies with time and memory, machines with times, and inputs with their effects."""

from __future__ import annotations

from collections.abc import Sequence

from ckptplan.model.plan import Plan
from ckptplan.report import style
from ckptplan.report.fields import format_parameters
from ckptplan.report.html.charts.look import CONFIG, INK, Chart, Spec, annotate, at, layer, nominal, tell
from ckptplan.report.machines_plot import find_ends, name_time, scale_times
from ckptplan.report.scale import Scale, scale_bytes, scale_shares
from ckptplan.report.sensitivity import sort_by_effect
from ckptplan.report.tornado_plot import COLOURS, LABELS, list_bars, name_input, scale_change
from ckptplan.studies.machines import MachineComparison
from ckptplan.studies.sensitivity import Sensitivity
from ckptplan.units import format_bytes, format_count, format_duration, format_percent, format_seconds


def chart_machines(comparison: MachineComparison) -> Chart:
    """Return the chart of the machines whose times are known, or of none."""
    rows: list[Spec] = []
    for machine in comparison.machines:
        if machine.plan is None or not machine.run_seconds:
            continue
        low, high = find_ends(machine)
        rows.append({
            "machine": machine.profile.name,
            "seconds": machine.run_seconds,
            "low": low,
            "high": high,
            "shown": name_time(machine),
            "between": f"{format_duration(low)} to {format_duration(high)}" if machine.interval else "measured",
            "strategy": machine.plan.strategy,
            "largest": format_count(machine.largest_steps),
        })  # fmt: skip
    titles = {"machine": "machine", "shown": "time", "between": "interval", "strategy": "strategy"}
    times = at("seconds", scale_times(comparison))
    estimated = {"test": "datum.between !== 'measured'", "value": "white"}
    hollow = {"condition": estimated, "value": style.BLUE}
    layers = [
        layer(
            "rule",
            rows,
            {"x": {**times, "field": "low"}, "x2": {"field": "high"}},
            strokeWidth=5,
            color=style.SKY,
        ),
        layer("point", rows, {"x": times, "fill": hollow}, size=90, stroke=style.BLUE, opacity=1),
        layer("text", rows, {"x": times, "text": {"field": "shown"}}, align="center", dy=-11, fill=INK),
    ]
    return Chart(
        name="machines",
        title="Time on each machine",
        caption="Lines are the intervals of estimated times, which begin with ~.",
        spec={
            "config": CONFIG,
            "width": "container",
            "height": 34 * max(1, len(rows)),
            "encoding": {
                "y": nominal("machine", sort=None),
                "tooltip": tell(**titles, largest="largest T"),
            },
            "layer": layers,
        },
    )


def chart_tornado(study: Sensitivity) -> Chart:
    """Return the chart of a sensitivity study."""
    rows: list[Spec] = [
        {
            "input": name_input(one),
            "factor": LABELS.get(bar.point.factor, ""),
            "times": f"x {bar.point.factor:g}",
            "change": bar.change,
            "shown": format_percent(bar.change),
            "time": format_seconds(bar.best.seconds),
            "strategy": bar.best.strategy,
            "kept": "does not fit" if bar.kept is None else format_percent(bar.kept),
        }
        for one in sort_by_effect(study)
        for bar in list_bars(one, study)
    ]
    order = list(dict.fromkeys(row["input"] for row in rows))
    colours = {"domain": list(LABELS.values()), "range": list(COLOURS.values())}
    halves = nominal("factor", scale=colours, legend={"symbolSize": 120})
    tooltip = tell(
        input="input",
        times="factor",
        shown="change of time",
        time="time",
        strategy="best strategy",
        kept="the plan of now",
    )
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
            "layer": [
                layer("bar", [row for row in rows if row["factor"]], {"color": halves}, opacity=0.9),
                layer("tick", [row for row in rows if not row["factor"]], {}, color=INK, thickness=2),
            ],
            "encoding": {
                "y": nominal("input", scale={"domain": order}),
                "x": {**at("change", scale_change(study)), "stack": None},
                "tooltip": tooltip,
            },
        },
    )


def chart_comparison(plans: Sequence[Plan]) -> Chart:
    """Return the chart of the plans that fit, in their order."""
    rows = [
        {
            "strategy": plan.strategy,
            "parameters": format_parameters(plan),
            "over": plan.predicted.overhead,
            "memory": plan.predicted.local_peak_bytes,
            "shown": format_percent(plan.predicted.overhead),
            "local": format_bytes(plan.predicted.local_peak_bytes),
            "time": format_seconds(plan.predicted.seconds),
        }
        for plan in plans
    ]
    budget = plans[0].goal.local_bytes
    most = max(plan.predicted.local_peak_bytes for plan in plans)
    slowest = max(0.01, *(plan.predicted.overhead for plan in plans))
    near = budget is not None and budget <= 4 * most
    top = max(most, budget) if budget is not None and near else most
    over = _chart_bars(
        rows, "over", scale_shares("time over base", 0, 1.1 * slowest), "shown", colour=style.BLUE
    )
    memory = _chart_bars(
        rows, "memory", scale_bytes("local memory", 0, 1.1 * top), "local", colour=style.ORANGE
    )
    words = "."
    if budget is not None and near:
        line = {"x": {"datum": budget}, "y": {"value": 0}, "y2": {"value": "height"}}
        memory["layer"].append(annotate("rule", line, color=INK, strokeDash=[6, 4]))
        words = f"; the dashed line is the budget, {format_bytes(budget)}."
    return Chart(
        name="comparison",
        title="Strategies",
        caption=f"The best plan of each strategy, the one to run first{words}",
        spec={"config": CONFIG, "spacing": 24, "vconcat": [over, memory]},
    )


def _chart_bars(rows: Sequence[Spec], field: str, scale: Scale, label: str, *, colour: str) -> Spec:
    titles = {"strategy": "strategy", "parameters": "parameters", "time": "time", "shown": "over base"}
    return {
        "width": "container",
        "height": {"step": 24},
        "encoding": {
            "y": nominal("strategy", sort=None),
            "x": at(field, scale),
            "tooltip": tell(**titles, local="local memory"),
        },
        "layer": [
            layer("bar", rows, {}, color=colour, opacity=0.9),
            layer("text", rows, {"text": {"field": label}}, align="left", dx=4, fill=INK, clip=False),
        ],
    }
