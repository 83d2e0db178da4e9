"""Draws machines side by side: the time of each on a logarithmic axis, the quickest on top."""

from __future__ import annotations

from typing import Any

from matplotlib import rcParams
from matplotlib.axes import Axes

from ckptplan.report.machines import format_price, name_time
from ckptplan.report.plots import style
from ckptplan.report.plots.figures import Drawing, add_tooltips
from ckptplan.report.plots.ticks import ROUND_SECONDS, measure_text, set_round_ticks
from ckptplan.studies.machines import Machine, MachineComparison
from ckptplan.units import format_count, format_duration
from ckptplan.wording import escape_controls


def draw_machines(comparison: MachineComparison, ax: Axes) -> None:
    """Draw a dot for the time on each machine, the interval of an estimated one behind it, and the deadline."""
    machines, deadline, batches = comparison.machines, comparison.deadline, comparison.batches
    workload, timed = comparison.workload, [machine for machine in machines if machine.run_seconds]
    ax.set_xscale("log")
    ax.set_ylim(len(machines) - 0.5, -0.5)
    ax.set_yticks(range(len(machines)), [_name(machine) for machine in machines])
    ax.grid(visible=False, axis="y")
    what = "time of a batch" if batches == 1 else f"time of {format_count(batches)} batches"
    ax.set_xlabel(
        what + ("\nhollow: estimated, line: its interval" if any(one.interval for one in timed) else "")
    )
    run = f", {format_count(batches)} batches" if batches > 1 else ""
    style.set_title(ax, f"{workload.name}, T = {format_count(workload.steps)}{run}")
    style.lay_out(ax)
    ends = [end for machine in timed for end in machine.run_ends] + ([deadline] if deadline else [])
    low, high = min(ends, default=1.0), max(ends, default=1.0)
    # Texts stand beside the dots.
    share = min(0.35, measure_text(ax, "0" * 9))
    left = share if deadline else 0.05
    room = max(4.0, high / low) ** (1 / (1 - left - share))
    ax.set_xlim(low / room**left, high * room**share)
    set_round_ticks(ax.xaxis, ROUND_SECONDS, format_duration)
    for row, machine in enumerate(machines):
        _draw_machine(machine, ax, row, deadline)
    if deadline:
        _draw_deadline(deadline, ax)
    rows = [row for row, machine in enumerate(machines) if machine.run_seconds]
    texts = ["\n".join([_name(machines[row]), f"time {name_time(machines[row])}"]) for row in rows]
    add_tooltips(ax, [machines[row].run_seconds or 0.0 for row in rows], rows, texts)


def _name(machine: Machine) -> str:
    """Return the name of a machine, its largest T and its price, a line each."""
    longest = f"largest T {format_count(machine.largest_steps)}" if machine.largest_steps else "no T fits"
    price = [] if machine.run_price is None else [f"price {format_price(machine.run_price)}"]
    return "\n".join([escape_controls(machine.profile.name), longest, *price])


def _draw_machine(machine: Machine, ax: Axes, row: int, deadline: float | None) -> None:
    """Draw the time of a machine in its row, or say why there is none."""
    wide, gap = rcParams["lines.linewidth"], 0.8 * rcParams["font.size"]
    beside: dict[str, Any] = {"textcoords": "offset points", "va": "center_baseline", "annotation_clip": False}
    if not machine.run_seconds:
        ax.annotate(name_time(machine), (0, row), (gap, 0), xycoords=("axes fraction", "data"), **beside)
        return
    least, most = machine.run_ends
    if machine.interval:
        ax.plot((least, most), (row, row), color=style.SKY, linewidth=2.5 * wide, solid_capstyle="butt")
    face = "white" if machine.interval else style.BLUE
    ax.plot(machine.run_seconds, row, "o", color=style.BLUE, markerfacecolor=face, markersize=4 * wide)
    low, high = ax.get_xlim()
    width = (high / low) ** (measure_text(ax, name_time(machine)) + 0.02)
    # A text does not cross the deadline if it has room on the other side.
    is_left = deadline is not None and most < deadline < most * width
    place: Any = {"xytext": (-gap if is_left else gap, 0), "ha": "right" if is_left else "left"}
    ax.annotate(name_time(machine), (least if is_left else most, row), **place, **beside)


def _draw_deadline(deadline: float, ax: Axes) -> None:
    """Draw the deadline with its label above the axes, and shade what is later."""
    ax.axvline(deadline, **style.LIMIT)
    ax.axvspan(deadline, ax.get_xlim()[1], **style.BEYOND)
    above: Any = {
        "xycoords": ("data", "axes fraction"),
        "textcoords": "offset points",
        "annotation_clip": False,
    }
    ax.annotate(
        f"deadline: {format_duration(deadline)}", (deadline, 1), (0, 3), ha="center", va="bottom", **above
    )
    ax.set_title(ax.get_title(loc="left"), pad=2.2 * rcParams["font.size"])


DRAWING = Drawing(on_axes=draw_machines, height=lambda comparison, _: 1.1 + 0.45 * len(comparison.machines))
