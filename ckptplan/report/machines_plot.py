"""Machines as a picture: the time on each, with the interval of an estimate, and the longest sequence."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

from ckptplan.report import style
from ckptplan.report.labels import Label, place_labels, set_title, settle
from ckptplan.report.machines import summarise
from ckptplan.report.style import PAGE, Size
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
_TICKS, _FEW_TICKS = 5, 4


def draw_machines(comparison: MachineComparison, size: Size = PAGE) -> Figure:
    """Return the picture, of the same data as the JSON document.

    Call it, and save the picture, within ``style.styled(size)``.
    """
    from matplotlib.figure import Figure

    machines, narrow = comparison.machines, size.width < PAGE.width
    height = 1.7 + 0.34 * len(machines)
    figure = Figure(figsize=size.inches(2 * height - 0.7 if narrow else height), layout="constrained")
    times, lengths = figure.subplots(2, 1) if narrow else figure.subplots(1, 2, width_ratios=(3, 2))
    set_title(figure, *_title(comparison))
    _draw_times(times, comparison, size)
    _draw_lengths(lengths, machines)
    names = [machine.profile.name for machine in machines]
    for axes in (times, lengths):
        axes.set_yticks(range(len(machines)), names if narrow or axes is times else [])
        axes.set_ylim(len(machines) - 0.4, -0.8)
        axes.tick_params(axis="y", length=0)
        axes.grid(axis="x", color=style.PALE, linewidth=0.6 * size.scale)
        axes.set_axisbelow(True)
    settle(figure)
    _label_times(times, comparison, size)
    _label_lengths(lengths, machines)
    return figure


def _title(comparison: MachineComparison) -> list[str]:
    workload = comparison.workload
    head = f"{workload.name}, T = {format_count(workload.steps)}"
    if comparison.batches > 1:
        head += f", {format_count(comparison.batches)} batches"
    return [head, *summarise(comparison)]


def _draw_times(axes: Axes, comparison: MachineComparison, size: Size) -> None:
    """Draw a point for each time, and a line from the least to the most of an estimate."""
    ends: list[float] = []
    for row, machine in enumerate(comparison.machines):
        seconds = machine.run_seconds
        if seconds is None:
            text = "does not fit" if machine.plan is None else "time not known"
            axes.annotate(
                text, (0.02, row), xycoords=("axes fraction", "data"), va="center", color=style.GREY,
            )  # fmt: skip
            continue
        low, high = _find_ends(machine, seconds)
        ends += [low, high]
        axes.hlines(row, low, high, color=style.SKY, linewidth=4 * size.scale, zorder=2)
        axes.plot(
            seconds, row, marker="o", markersize=6 * size.scale, color=style.BLUE, zorder=3,
            markerfacecolor="white" if machine.interval else style.BLUE,
        )  # fmt: skip
    if comparison.deadline is not None:
        axes.axvline(comparison.deadline, color=style.VERMILION, linewidth=size.scale, linestyle=(0, (4, 2)))
        ends.append(comparison.deadline)
    _time_axis(axes, ends, most=_TICKS if size.width >= PAGE.width else _FEW_TICKS)
    what = "a batch" if comparison.batches == 1 else "the run"
    estimates = "; hollow: estimated" if any(m.interval for m in comparison.machines) else ""
    axes.set_xlabel(f"time of {what}{estimates}")


def _find_ends(machine: Machine, seconds: float) -> tuple[float, float]:
    """Return the least and the most time of a run, which are equal if it was measured."""
    low, high = machine.interval or (seconds / machine.batches,) * 2
    return low * machine.batches, high * machine.batches


def _label_times(axes: Axes, comparison: MachineComparison, size: Size) -> None:
    """Write each time beside its point, and the deadline at its line."""
    known = [(row, one, one.run_seconds) for row, one in enumerate(comparison.machines) if one.run_seconds]
    labels = [
        Label(
            text=f"{'~' if machine.interval else ''}{format_duration(seconds)}",
            # Above the point, so that the line through it stays free.
            points=[(seconds, row - 0.12)],
        )
        for row, machine, seconds in known
    ]
    lines = [[(end, row) for end in _find_ends(machine, seconds)] for row, machine, seconds in known]
    if comparison.deadline is not None:
        span = [(comparison.deadline, row) for row in (-0.8, len(comparison.machines) - 0.4)]
        words = f"deadline {format_duration(comparison.deadline)}"
        labels.append(Label(text=words, points=span, colour=style.VERMILION))
    place_labels(
        axes, labels, curves=lines, marks=[(seconds, row, 7 * size.scale) for row, _, seconds in known]
    )


def _time_axis(axes: Axes, ends: list[float], *, most: int) -> None:
    from matplotlib.ticker import FuncFormatter, NullLocator

    axes.set_xscale("log")
    axes.xaxis.set_minor_locator(NullLocator())
    if not ends or min(ends) <= 0:
        axes.set_xticks([])
        return
    low, high = min(ends) / 2.5, max(ends) * 2.5
    axes.set_xlim(low, high)
    inside = [tick for tick in _ROUND if low <= tick <= high]
    axes.set_xticks(inside[:: max(1, -(-len(inside) // most))])
    axes.xaxis.set_major_formatter(FuncFormatter(lambda value, _: format_duration(value)))


def _draw_lengths(axes: Axes, machines: tuple[Machine, ...]) -> None:
    """Draw a bar for the longest sequence on each machine, with its number at its end."""
    from matplotlib.ticker import FuncFormatter, LogLocator, NullLocator

    most = max(1, *(machine.largest_steps for machine in machines))
    for row, machine in enumerate(machines):
        steps = machine.largest_steps
        axes.barh(row, max(steps, 1), height=0.5, color=style.GREEN if steps else style.PALE)
    axes.set_xscale("log")
    axes.set_xlim(1, 10 ** (1.35 * len(str(most))))
    axes.xaxis.set_minor_locator(NullLocator())
    axes.xaxis.set_major_locator(LogLocator(numticks=5))
    axes.xaxis.set_major_formatter(FuncFormatter(_round_count))
    axes.set_xlabel("largest T")


def _label_lengths(axes: Axes, machines: tuple[Machine, ...]) -> None:
    for row, machine in enumerate(machines):
        steps = machine.largest_steps
        axes.annotate(
            format_count(steps) if steps else "none", (max(steps, 1), row), xytext=(4, 0),
            textcoords="offset points", va="center",
        )  # fmt: skip


def _round_count(value: float, _: int) -> str:
    """Return a power of ten: '10,000', or with its exponent."""
    return f"{value:,.0f}" if value < 1e6 else f"$10^{{{round(math.log10(value))}}}$"
