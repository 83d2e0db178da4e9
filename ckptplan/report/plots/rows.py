"""Draws results with a row for each item: machines, strategies, and the largest values of strategies.

A row has a name at the left, a dot on the axis that all rows share, and a text at the right.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from matplotlib import rcParams
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from ckptplan.model.plan import Plan
from ckptplan.report.fields import describe_plan, find_budget
from ckptplan.report.infeasible import name_limit
from ckptplan.report.largest import explain_lack, view_largest
from ckptplan.report.machines import name_time
from ckptplan.report.numbers import format_price
from ckptplan.report.plots import style
from ckptplan.report.plots.figures import Drawing
from ckptplan.report.plots.svg import add_tooltips
from ckptplan.report.plots.ticks import ROUND_SECONDS, set_round_ticks
from ckptplan.studies.largest import LargestValues, Reach
from ckptplan.studies.machines import Machine, MachineComparison
from ckptplan.units import format_bytes, format_count, format_duration, format_percent
from ckptplan.wording import escape_controls


@dataclass(frozen=True, kw_only=True)
class DotRow:
    """A row of a picture: its name, its text, and the value of its dot.

    Without a value, the text says why. An estimated value has the ``ends`` of its interval. The tooltip is
    ``tip``, by default the name and the text.
    """

    name: str
    text: str
    value: float | None
    ends: tuple[float, float] | None = None
    tip: str = ""


def _draw_rows(rows: Sequence[DotRow], ax: Axes, *, is_log: bool = True, limit: float | None = None) -> None:
    """Draw rows, the first one on top, with a dashed line at a ``limit``. A linear axis begins at 0.

    Set the title and the names of the axes before calling this function, and the ticks afterwards.
    """
    drawn = {place: row for place, row in enumerate(rows) if row.value is not None}
    ax.set_ylim(len(rows) - 0.5, -0.5)
    ax.set_yticks(range(len(rows)), [escape_controls(row.name) for row in rows])
    beside = ax.secondary_yaxis("right")
    beside.set_yticks(range(len(rows)), [row.text for row in rows])
    beside.tick_params(length=0)
    if is_log:
        ax.set_xscale("log")
    wide = rcParams["lines.linewidth"]
    for place, row in drawn.items():
        if row.ends is not None:
            ax.plot(row.ends, (place, place), color=style.SKY, linewidth=2.5 * wide, solid_capstyle="butt")
        face = style.BLUE if row.ends is None else "white"
        ax.plot(row.value or 0.0, place, "o", color=style.BLUE, markerfacecolor=face, markersize=4 * wide)
    if limit is not None:
        ax.axvline(limit, **style.LIMIT)
    low, high = ax.get_xlim()
    # The overheads of plans without recomputation are all 0, and their axis would go below.
    ax.set_xlim(low if is_log else 0.0, max(high, 0.01))
    if limit is not None:
        ax.axvspan(limit, ax.get_xlim()[1], **style.BEYOND)
    tips = [row.tip or f"{row.name}: {row.text}" for row in drawn.values()]
    add_tooltips(ax, [row.value or 0.0 for row in drawn.values()], [*drawn], tips)
    # The texts narrow the axes, whose width decides how many ticks fit.
    figure = ax.get_figure(root=True)
    if figure is not None and (engine := figure.get_layout_engine()) is not None:
        engine.execute(figure)


def draw_machines(comparison: MachineComparison, ax: Axes) -> None:
    """Draw a dot for the time on each machine, the interval of an estimated one behind it, and the deadline."""
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
    explained = ["time of a batch" if batches == 1 else f"time of {format_count(batches)} batches"]
    explained += ["hollow: estimated, line: its interval"] if any(row.ends for row in rows) else []
    explained += [] if deadline is None else [f"dashed: the deadline, {format_duration(deadline)}"]
    ax.set_xlabel("\n".join(explained))
    run = f", {format_count(batches)} batches" if batches > 1 else ""
    style.set_title(ax, f"{workload.name}, T = {format_count(workload.steps)} time steps{run}")
    _draw_rows(rows, ax, limit=deadline)
    set_round_ticks(ax.xaxis, ROUND_SECONDS, format_duration)


def _name_machine(machine: Machine) -> str:
    """Return the name of a machine, its largest T and its price, each on a line."""
    longest = f"largest T {format_count(machine.largest_steps)}" if machine.largest_steps else "no T fits"
    price = [] if machine.run_price is None else [f"price {format_price(machine.run_price)}"]
    return "\n".join([machine.profile.name, longest, *price])


def draw_largest(values: LargestValues, ax: Axes) -> None:
    """Draw a dot for each strategy, with its value and the limit that the next value breaks."""
    view = view_largest(values)
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
    set_round_ticks(ax.xaxis, rounds, lambda value: format_count(round(value)))


def _describe_reach(reach: Reach) -> str:
    """Return '4,346 (local memory)': the largest value and the limit of the next one; or why there is none."""
    if not reach.value:
        return explain_lack(reach)
    return f"{format_count(reach.value)}{f' ({name_limit(reach.bound_by)})' if reach.bound_by else ''}"


def draw_strategies(plans: Sequence[Plan], figure: Figure) -> None:
    """Draw a row for each plan, the first one on top: time over base at the left, local memory at the right."""
    times, sizes = figure.subplots(1, 2, sharey=True)
    overheads, peaks, budget = [], [], find_budget(plans[0])
    for plan in plans:
        tip = "\n".join(f"{title}: {text}" for title, text in describe_plan(plan))
        overhead, peak = plan.predicted.overhead, plan.predicted.local_peak_bytes
        overheads.append(DotRow(name=plan.strategy, text=format_percent(overhead), value=overhead, tip=tip))
        peaks.append(DotRow(name=plan.strategy, text=format_bytes(peak), value=peak, tip=tip))
    times.set_xlabel("time over plain backpropagation")
    is_near = budget <= 4 * max(row.value or 0 for row in peaks)
    dashed = f"\ndashed: the budget, {format_bytes(budget)}" if is_near else ""
    sizes.set_xlabel(f"peak of local memory{dashed}")
    _draw_rows(overheads, times, is_log=False)
    _draw_rows(peaks, sizes, is_log=False, limit=budget if is_near else None)
    style.set_bytes_axis(sizes.xaxis, most=3)
    style.set_share_axis(times.xaxis)


DRAWINGS = {
    "machines": Drawing(
        on_axes=draw_machines, height=lambda comparison, _: 1.1 + 0.45 * len(comparison.machines)
    ),
    "largest": Drawing(on_axes=draw_largest, height=lambda values, _: 1.0 + 0.24 * len(values)),
    "strategies": Drawing(in_figure=draw_strategies, height=lambda plans, _: 0.8 + 0.22 * len(plans)),
}
