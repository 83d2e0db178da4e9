"""Machines as a picture: the time on each, with the interval of an estimate, and the longest sequence.

The functions at the top say what is drawn, in the picture and on the page.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from ckptplan.report import style, vega
from ckptplan.report.machines import summarise
from ckptplan.report.scale import Scale
from ckptplan.report.style import PAGE, Size
from ckptplan.report.vega import Chart, Spec
from ckptplan.studies.machines import Machine, MachineComparison
from ckptplan.units import format_count, format_duration

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure


#: Times that are round in their units.
_ROUND = (
    *(10.0**power for power in range(-18, 1)),
    10.0, 60.0, 600.0, 3600.0, 36000.0, 345600.0,
    *(864000.0 * 10.0**power for power in range(8)),
)  # fmt: skip


def find_ends(machine: Machine) -> tuple[float, float]:
    """Return the least and the most time of a run, which are equal if it was measured."""
    seconds = machine.run_seconds or 0.0
    low, high = machine.interval or (seconds / machine.batches,) * 2
    return low * machine.batches, high * machine.batches


def name_time(machine: Machine) -> str:
    """Return the time of a run, or why there is none."""
    if machine.run_seconds is None:
        return "does not fit" if machine.plan is None else "time not known"
    return f"{'~' if machine.interval else ''}{format_duration(machine.run_seconds)}"


def scale_times(comparison: MachineComparison) -> Scale:
    """Return the axis of times."""
    known = [machine for machine in comparison.machines if machine.run_seconds]
    ends = [end for machine in known for end in find_ends(machine)]
    ends += [] if comparison.deadline is None else [comparison.deadline]
    what = "a batch" if comparison.batches == 1 else "the run"
    estimates = "; hollow: estimated" if any(machine.interval for machine in known) else ""
    low, high = min(ends, default=1.0) / 2, max(ends, default=1.0) * 2
    ticks = {tick: format_duration(tick) for tick in _ROUND if low <= tick <= high}
    return Scale(title=f"time of {what}{estimates}", low=low, high=high, ticks=ticks, kind="log")


def draw_machines(comparison: MachineComparison, size: Size = PAGE) -> Figure:
    """Return the picture, of the same data as the JSON document.

    Call it, and save the picture, within ``style.styled(size)``.
    """
    machines, narrow = comparison.machines, size.width < PAGE.width
    height = 1.5 + 0.3 * len(machines)
    workload = comparison.workload
    run = f", {format_count(comparison.batches)} batches" if comparison.batches > 1 else ""
    head = f"{workload.name}, T = {format_count(workload.steps)}{run}"
    figure = style.start_figure(size, 2 * height - 0.7 if narrow else height, head, *summarise(comparison))
    times, lengths = figure.subplots(2, 1) if narrow else figure.subplots(1, 2, width_ratios=(3, 2))
    _draw_times(times, comparison, size)
    _draw_lengths(lengths, machines)
    names = [machine.profile.name for machine in machines]
    _list_rows(times, names, [name_time(machine) for machine in machines], size)
    steps = [machine.largest_steps for machine in machines]
    _list_rows(
        lengths, names if narrow else [""] * len(names), [format_count(n) if n else "none" for n in steps], size
    )
    return style.finish_figure(figure, times.get_legend_handles_labels()[0], size)


def _list_rows(axes: Axes, names: Sequence[str], values: Sequence[str], size: Size) -> None:
    """Name the rows, write the value of each at their ends, and draw a grid."""
    style.name_rows(axes, names, values)
    axes.set_ylim(len(names) - 0.4, -0.6)
    axes.grid(axis="x", color=style.PALE, linewidth=0.6 * size.scale)
    axes.set_axisbelow(True)


def _draw_times(axes: Axes, comparison: MachineComparison, size: Size) -> None:
    """Draw a point for each time, and a line from the least to the most of an estimate."""
    scale_times(comparison).set_x(axes)
    for row, machine in enumerate(comparison.machines):
        if not machine.run_seconds:
            continue
        axes.hlines(row, *find_ends(machine), color=style.SKY, linewidth=4 * size.scale, zorder=2)
        axes.plot(
            machine.run_seconds, row, marker="o", markersize=6 * size.scale, color=style.BLUE, zorder=3,
            markerfacecolor="white" if machine.interval else style.BLUE,
        )  # fmt: skip
    if comparison.deadline is not None:
        axes.axvline(
            comparison.deadline, color=style.VERMILION, linewidth=size.scale, linestyle=(0, (4, 2)),
            label=f"deadline {format_duration(comparison.deadline)}",
        )  # fmt: skip


def _draw_lengths(axes: Axes, machines: Sequence[Machine]) -> None:
    """Draw a bar for the longest sequence on each machine."""
    from matplotlib.ticker import EngFormatter, LogLocator, NullLocator

    for row, machine in enumerate(machines):
        axes.barh(row, max(machine.largest_steps, 1), height=0.5, color=style.GREEN)
    axes.set_xscale("log")
    axes.set_xlim(1, 2 * max(5, *(machine.largest_steps for machine in machines)))
    axes.xaxis.set_major_locator(LogLocator(numticks=5))
    axes.xaxis.set_minor_locator(NullLocator())
    axes.xaxis.set_major_formatter(EngFormatter(sep=""))
    axes.set_xlabel("largest T")


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
    times = vega.at("seconds", scale_times(comparison))
    estimated = {"test": "datum.between !== 'measured'", "value": "white"}
    hollow = {"condition": estimated, "value": style.BLUE}
    layers = [
        vega.layer(
            "rule",
            rows,
            {"x": {**times, "field": "low"}, "x2": {"field": "high"}},
            strokeWidth=5,
            color=style.SKY,
        ),
        vega.layer("point", rows, {"x": times, "fill": hollow}, size=90, stroke=style.BLUE, opacity=1),
        vega.layer(
            "text", rows, {"x": times, "text": {"field": "shown"}}, align="center", dy=-11, fill=vega.INK
        ),
    ]
    return Chart.of(
        "machines",
        "Time on each machine",
        "Lines are the intervals of estimated times, which begin with ~.",
        height=34 * max(1, len(rows)),
        encoding={"y": vega.nominal("machine", sort=None), "tooltip": vega.tell(**titles, largest="largest T")},
        layer=layers,
    )
