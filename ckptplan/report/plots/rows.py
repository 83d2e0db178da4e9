"""Draws results with a row for each item: machines, strategies, and the largest values of strategies.

A row has a name, a dot on the axis that all rows share, and a text at its right end.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from matplotlib import rcParams
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from ckptplan.planning.playback import group_same_schedules
from ckptplan.report.fields import describe_plan, find_budget
from ckptplan.report.infeasible import format_reason
from ckptplan.report.largest import describe_limit, view_largest
from ckptplan.report.machines import name_time
from ckptplan.report.numbers import format_price
from ckptplan.report.plan import Results, list_plans
from ckptplan.report.plots import style
from ckptplan.report.plots.figures import set_height, take_axes
from ckptplan.report.plots.style import ROUND_SECONDS, set_ticks
from ckptplan.report.plots.svg import add_tooltips
from ckptplan.studies.largest import LargestValues, Reach
from ckptplan.studies.machines import Machine, MachineComparison
from ckptplan.units import format_bytes, format_count, format_duration, format_percent
from ckptplan.wording import escape_controls


@dataclass(frozen=True, kw_only=True)
class DotRow:
    """A row of a picture: its name, the value of its dot, and the text at its right end.

    Without a value, the text says why. An estimated value has the ``ends`` of its interval. The tooltip is
    ``tip``, by default the name and the text.
    """

    name: str
    text: str
    value: float | None
    ends: tuple[float, float] | None = None
    tip: str = ""


def _draw_rows(
    rows: Sequence[DotRow], ax: Axes, *, is_log: bool = True, limit: float | None = None, label: str = ""
) -> None:
    """Draw rows, the first one on top, with a line at a ``limit``. A linear axis begins at 0.

    Set the title before calling this function, and the ticks afterwards.
    """
    wide, gap = rcParams["lines.linewidth"], 0.8 * rcParams["font.size"]
    ax.set_xscale("log" if is_log else "linear")
    ax.margins(x=0.1)
    ax.set_yticks(range(len(rows)), [escape_controls(row.name) for row in rows])
    for place, row in enumerate(rows):
        if row.ends:
            ax.plot(row.ends, (place, place), color=style.SKY, linewidth=2.5 * wide, solid_capstyle="butt")
        if row.value is not None:
            face = "white" if row.ends else style.BLUE
            ax.plot(row.value, place, "o", color=style.BLUE, markerfacecolor=face, markersize=4 * wide)
        # The text stands to the right of the axes, or within them where there is no dot.
        end = (1 if row.value is not None else 0, place)
        form: Any = {"textcoords": "offset points", "va": "center_baseline", "annotation_clip": False}
        ax.annotate(row.text, end, (gap, 0), ("axes fraction", "data"), **form)
    if not is_log:
        ax.update_datalim([(0, 0)])
        ax.set_xlim(left=0)
    if limit is not None:
        style.draw_limit(ax, limit, label)
    ax.set_ylim(len(rows) - 0.5, -0.5)
    drawn = {place: row for place, row in enumerate(rows) if row.value is not None}
    tips = [row.tip or f"{row.name}: {row.text}" for row in drawn.values()]
    add_tooltips(ax, [row.value or 0.0 for row in drawn.values()], [*drawn], tips)


def draw_machines(comparison: MachineComparison, place: Any) -> None:
    """Draw a dot for the time on each machine, the interval of an estimated one behind it, and the deadline."""
    ax = take_axes(place, height=1.1 + 0.45 * len(comparison.machines))
    workload, deadline, batches = comparison.workload, comparison.deadline, comparison.batches
    rows = [
        DotRow(
            name=_name_machine(machine),
            text=name_time(machine),
            value=machine.run_seconds or None,
            ends=machine.run_ends if machine.interval else None,
        )
        for machine in comparison.machines
    ]
    axis_label = "time of a batch" if batches == 1 else f"time of {format_count(batches)} batches"
    estimated = "\nhollow: estimated, line: its interval" if any(row.ends for row in rows) else ""
    ax.set_xlabel(f"{axis_label}{estimated}")
    run = f", {format_count(batches)} batches" if batches > 1 else ""
    style.set_title(ax, f"{workload.name}, T = {format_count(workload.steps)} time steps{run}")
    _draw_rows(rows, ax, limit=deadline, label=f"deadline: {format_duration(deadline or 0)}")
    set_ticks(ax.xaxis, ROUND_SECONDS, format_duration)


def _name_machine(machine: Machine) -> str:
    """Return the name of a machine, its largest T and its price, each on a line."""
    longest = f"largest T {format_count(machine.largest_steps)}" if machine.largest_steps else "no T fits"
    price = [] if machine.run_price is None else [f"price {format_price(machine.run_price)}"]
    return "\n".join([machine.profile.name, longest, *price])


def draw_largest(values: LargestValues, place: Any) -> None:
    """Draw a dot for each strategy, with its value and the limit that the next value breaks."""
    ax, view = take_axes(place, height=1.0 + 0.24 * len(values)), view_largest(values)
    style.set_title(ax, f"{view.heading}: {view.title}")
    _draw_rows(
        [
            DotRow(name=name, text=_describe_reach(reach), value=reach.value or None)
            for name, reach in values.items()
        ],
        ax,
    )
    low, high = ax.get_xlim()
    rounds = [
        factor * 10.0**power for power in range(13) for factor in ((1, 2, 5) if high < 100 * low else (1,))
    ]
    set_ticks(ax.xaxis, rounds, lambda value: format_count(round(value)))


def _describe_reach(reach: Reach) -> str:
    """Return '4,346 (local memory)': the largest value and the limit of the next one; or why there is none."""
    limit = describe_limit(vars(reach))
    if reach.value:
        return f"{format_count(reach.value)} ({limit})"
    lack = reach.infeasible
    return format_reason(lack.binding, lack.need) if lack else limit


def draw_strategies(results: Results, figure: Figure) -> None:
    """Draw a row for each plan, the first one on top: time over base at the left, local memory at the right."""
    # Strategies with the same schedule would have the same dots.
    plans = [group[0] for group in group_same_schedules(list_plans(results))]
    set_height(figure, 0.8 + 0.22 * len(plans))
    times, sizes = figure.subplots(1, 2, sharey=True)
    times.set_xlabel("time over plain backpropagation")
    sizes.set_xlabel("peak of local memory")
    overheads, peaks, budget = [], [], find_budget(plans[0])
    for plan in plans:
        tip = "\n".join(f"{title}: {text}" for title, text in describe_plan(plan).items())
        overhead, peak = plan.predicted.overhead, plan.predicted.local_peak_bytes
        overheads.append(DotRow(name=plan.strategy, text=format_percent(overhead), value=overhead, tip=tip))
        peaks.append(DotRow(name=plan.strategy, text=format_bytes(peak), value=peak, tip=tip))
    _draw_rows(overheads, times, is_log=False)
    is_near = budget <= 4 * max(row.value or 0 for row in peaks)
    _draw_rows(
        peaks, sizes, is_log=False, limit=budget if is_near else None, label=f"budget: {format_bytes(budget)}"
    )
    style.set_bytes_axis(sizes.xaxis, most=3)
    style.set_share_axis(times.xaxis)
