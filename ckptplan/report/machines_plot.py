"""Machines as a picture: the time on each, with the interval of an estimate, and the longest sequence."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

from ckptplan.report import style
from ckptplan.report.machines import summarise
from ckptplan.studies.machines import Machine, MachineComparison
from ckptplan.units import format_count, format_duration

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure


#: Times that are round in their units, and how many of them an axis has at most.
_ROUND = (
    *(10.0**power for power in range(-18, 1)),
    10.0, 60.0, 600.0, 3600.0, 36000.0, 345600.0,
    *(864000.0 * 10.0**power for power in range(8)),
)  # fmt: skip
_TICKS = 5


def draw_machines(comparison: MachineComparison) -> Figure:
    """Return the picture, of the same data as the JSON document. Call it within ``style.styled()``."""
    from matplotlib.figure import Figure

    machines = comparison.machines
    figure = Figure(figsize=(7.2, 1.9 + 0.36 * len(machines)), layout="constrained")
    times, lengths = figure.subplots(1, 2, sharey=True, width_ratios=(3, 2))
    _draw_times(times, comparison)
    _draw_lengths(lengths, machines)
    times.set_yticks(range(len(machines)), [machine.profile.name for machine in machines])
    times.set_ylim(len(machines) - 0.4, -0.6)
    for axes in (times, lengths):
        axes.tick_params(axis="y", length=0)
        axes.grid(axis="x", color=style.PALE, linewidth=0.6)
        axes.set_axisbelow(True)
    figure.suptitle(_title(comparison), x=0.01, ha="left", fontsize=10)
    return figure


def _title(comparison: MachineComparison) -> str:
    workload = comparison.workload
    head = f"{workload.name}, T = {format_count(workload.steps)}"
    if comparison.batches > 1:
        head += f", {format_count(comparison.batches)} batches"
    return "\n".join([head, *summarise(comparison)])


def _draw_times(axes: Axes, comparison: MachineComparison) -> None:
    """Draw a point for each time, and a line from the least to the most of an estimate."""
    ends: list[float] = []
    for row, machine in enumerate(comparison.machines):
        seconds = machine.run_seconds
        if seconds is None:
            text = "does not fit" if machine.plan is None else "time not known"
            axes.annotate(
                text, (0.02, row), xycoords=("axes fraction", "data"),
                va="center", fontsize=8, color=style.GREY,
            )  # fmt: skip
            continue
        low, high = (end * machine.batches for end in machine.interval or (seconds / machine.batches,) * 2)
        ends += [low, high]
        estimated = machine.interval is not None
        axes.hlines(row, low, high, color=style.SKY, linewidth=4, zorder=2)
        axes.plot(
            seconds, row, marker="o", markersize=6, color=style.BLUE, zorder=3,
            markerfacecolor="white" if estimated else style.BLUE,
        )  # fmt: skip
        axes.annotate(
            f"{'~' if estimated else ''}{format_duration(seconds)}", (seconds, row), xytext=(0, 6),
            textcoords="offset points", ha="center", va="bottom", fontsize=8,
        )  # fmt: skip
    if comparison.deadline is not None:
        axes.axvline(comparison.deadline, color=style.VERMILION, linewidth=1, linestyle=(0, (4, 2)))
        ends.append(comparison.deadline)
    _time_axis(axes, ends)
    what = "a batch" if comparison.batches == 1 else "the run"
    estimates = "; hollow: estimated, with its interval" if any(m.interval for m in comparison.machines) else ""
    axes.set_xlabel(f"time of {what}{estimates}", fontsize=8)


def _time_axis(axes: Axes, ends: list[float]) -> None:
    from matplotlib.ticker import FuncFormatter, NullLocator

    axes.set_xscale("log")
    axes.xaxis.set_minor_locator(NullLocator())
    if not ends or min(ends) <= 0:
        axes.set_xticks([])
        return
    low, high = min(ends) / 2.5, max(ends) * 2.5
    axes.set_xlim(low, high)
    inside = [tick for tick in _ROUND if low <= tick <= high]
    axes.set_xticks(inside[:: max(1, -(-len(inside) // _TICKS))])
    axes.xaxis.set_major_formatter(FuncFormatter(lambda value, _: format_duration(value)))
    axes.tick_params(axis="x", labelsize=8)


def _draw_lengths(axes: Axes, machines: tuple[Machine, ...]) -> None:
    """Draw a bar for the longest sequence on each machine, with its number at its end."""
    from matplotlib.ticker import FuncFormatter, LogLocator, NullLocator

    most = max(1, *(machine.largest_steps for machine in machines))
    for row, machine in enumerate(machines):
        steps = machine.largest_steps
        axes.barh(row, max(steps, 1), height=0.5, color=style.GREEN if steps else style.PALE)
        axes.annotate(
            format_count(steps) if steps else "none", (max(steps, 1), row), xytext=(4, 0),
            textcoords="offset points", va="center", fontsize=8,
        )  # fmt: skip
    axes.set_xscale("log")
    axes.set_xlim(1, 10 ** (1.35 * len(str(most))))
    axes.xaxis.set_minor_locator(NullLocator())
    axes.xaxis.set_major_locator(LogLocator(numticks=5))
    axes.xaxis.set_major_formatter(FuncFormatter(_round_count))
    axes.tick_params(axis="x", labelsize=8)
    axes.set_xlabel("largest T", fontsize=8)


def _round_count(value: float, _: int) -> str:
    """Return a power of ten: '10,000', or with its exponent."""
    return f"{value:,.0f}" if value < 1e6 else f"$10^{{{round(math.log10(value))}}}$"
