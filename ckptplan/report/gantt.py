"""A schedule as a picture in the manner of the paper's Figure 1: time across, steps down.

A run goes down to the right, a backward up to the right. Grey areas are tapes waiting to be consumed,
lines are checkpoints waiting to be loaded, and below is what each memory tier holds.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

from ckptplan.errors import InputError
from ckptplan.model.plan import Plan
from ckptplan.report import style
from ckptplan.report.fields import format_parameters
from ckptplan.report.labels import set_legend, set_title
from ckptplan.report.style import PAGE, Size
from ckptplan.report.ticks import byte_steps
from ckptplan.schedule.actions import Backward, Free, Load, Record, Save, Tier, Transfer
from ckptplan.schedule.timeline import BARS, Event, kind_of
from ckptplan.units import format_bytes, format_count, format_percent, format_seconds

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

#: Upper limit on actions that are drawn.
MOST_ACTIONS = 200_000
#: From this number on, bars are dots in files of lines and curves, which would be huge otherwise.
_MANY = 10_000
#: Lines of checkpoints that are drawn.
_LINES = 5_000
#: Dots that a curve over time may tell apart.
_DOTS = 2_000
#: Up to this many steps, each step is drawn as a cell.
_CELLS = 100
#: What tells kinds apart that have nearly the same grey in print; of more bars, hatches would make a blur.
_HATCHES, _HATCHED = {"record": "////", "backward": "...."}, 2_000

_LEGEND = {"record": "record (keeps tapes)", "wait": "wait for a transfer"}
_TIERS = {
    Tier.LOCAL: ("local checkpoint", style.BLACK, "-"),
    Tier.REMOTE: ("remote checkpoint", style.GREY, ":"),
}

Point = tuple[float, float]


class Gantt:
    """Collects a timeline (``add`` is a sink) and draws it."""

    def __init__(self, plan: Plan, *, resident_bytes: int, schedule: str | None = None) -> None:
        self.plan = plan
        #: The file that was played instead of the plan's own schedule.
        self.schedule = schedule
        self._actions = 0
        self._end = 0.0
        #: Bars by kind: (start, end, first step, step behind the last).
        self._bars: dict[str, list[tuple[float, float, int, int]]] = defaultdict(list)
        #: Recorded and not yet reversed: (start, stop) -> when recorded.
        self._tapes: dict[tuple[int, int], tuple[float, float]] = {}
        self._held_tapes: list[list[Point]] = []
        #: (state, tier) -> since when it is stored.
        self._stored: dict[tuple[int, Tier], float] = {}
        self._checkpoints: dict[Tier, list[tuple[Point, Point]]] = defaultdict(list)
        #: (time, local bytes, remote bytes), between which memory changes evenly.
        self._memory: list[tuple[float, int, int]] = [(0.0, resident_bytes, 0)]

    def add(self, event: Event) -> None:
        """Take an event. Raises InputError if there are too many to draw."""
        self._actions += not event.stall
        if self._actions > MOST_ACTIONS:
            raise InputError(
                f"the schedule has more than {MOST_ACTIONS:,} actions, too many for a picture",
                field="gantt",
                accepted="a plan of a shorter sequence",
            )
        self._end = max(self._end, event.end)
        _, local, remote = self._memory[-1]
        # The simulator counts the tapes of a run when it ends; they come and go step by step.
        gradual = isinstance(event.action, (Record, Backward)) and not event.stall
        self._memory.append((event.start if gradual else event.held_at, local, remote))
        self._memory.append((event.held_at, event.local_bytes, event.remote_bytes))
        kind = kind_of(event)
        if kind in BARS:
            self._bars[kind] += [(event.start, event.end, a, b) for a, b in _rows(event)]
        if not event.stall:
            self._follow_tapes(event)
            self._follow_checkpoints(event)

    def _follow_tapes(self, event: Event) -> None:
        action = event.action
        if isinstance(action, Record):
            self._tapes[action.start, action.stop] = (event.start, event.end)
        elif isinstance(action, Backward):
            each = (event.end - event.start) / (action.stop - action.start)
            for first, last in [span for span in self._tapes if span[1] > action.start]:
                start, end = self._tapes.pop((first, last))
                low = max(first, action.start)
                slope = (end - start) / (last - first)
                self._held_tapes.append(
                    [
                        (start + slope * (low - first), low),
                        (end, last),
                        (event.start + each * (action.stop - last), last),
                        (event.start + each * (action.stop - low), low),
                    ]
                )
                if first < low:
                    self._tapes[first, low] = (start, start + slope * (low - first))

    def _follow_checkpoints(self, event: Event) -> None:
        action = event.action
        if isinstance(action, Save):
            self._stored[action.state, action.tier] = event.end
        elif isinstance(action, Free):
            self._forget(action.state, action.tier, event.end)
        elif isinstance(action, Transfer):
            for state in action.states:
                self._forget(state, action.source, event.start)
                self._stored[state, action.target] = event.end

    def _forget(self, state: int, tier: Tier, now: float) -> None:
        since = self._stored.pop((state, tier))
        self._checkpoints[tier].append(((since, state), (max(now, since), state)))

    def draw(self, size: Size = PAGE) -> Figure:
        """Return the picture. Call it, and save the picture, within ``style.styled(size)``."""
        from matplotlib.figure import Figure

        tiers = 2 if any(remote for _, _, remote in self._memory) else 1
        narrow = size.width < PAGE.width
        figure = Figure(figsize=size.inches((3.2 if narrow else 4.1) + 0.8 * tiers), layout="constrained")
        axes = figure.subplots(1 + tiers, 1, sharex=True, height_ratios=[4, *[1] * tiers])
        scale, unit = _time_unit(self._end)
        set_title(figure, *self._title())
        handles = self._draw_steps(axes[0], scale)
        set_legend(figure, handles)
        self._draw_memory(axes[1], scale, column=1)
        if tiers == 2:
            self._draw_memory(axes[2], scale, column=2)
        axes[0].set_xlim(0, self._end / scale)
        axes[-1].xaxis.set_major_formatter(lambda value, _: f"{value:,.10g}")
        axes[-1].set_xlabel(f"time ({unit})")
        figure.align_ylabels(axes)
        return figure

    def _draw_steps(self, axes: Axes, scale: float) -> list[Any]:
        from matplotlib.collections import LineCollection, PolyCollection
        from matplotlib.ticker import MaxNLocator

        steps = self.plan.steps
        cells = steps <= _CELLS
        axes.set_ylim(steps, 0)
        axes.set_ylabel("time step")
        axes.yaxis.set_major_locator(MaxNLocator(integer=True))
        axes.yaxis.set_major_formatter(lambda value, _: format_count(int(value)))
        handles: list[Any] = []
        drawn: list[Any] = []
        for kind in BARS:
            bars = self._bars[kind]
            if not bars:
                continue
            shapes = [
                [(x / scale, y) for x, y in shape] for bar in bars for shape in _shapes(kind, bar, cells=cells)
            ]
            drawn += _make_bars(kind, shapes, edge=0.4 if cells else 0.9)
            handles.append(drawn[-1])
        if self._held_tapes:
            areas = [[(x / scale, y) for x, y in area] for area in self._held_tapes]
            handles.append(PolyCollection(areas, facecolor=style.PALE, label="tapes held", zorder=1))
        for tier, (label, colour, dashes) in _TIERS.items():
            if self._checkpoints[tier]:
                # Closer than dots, they make an area whether or not each is drawn.
                every = -(-len(self._checkpoints[tier]) // _LINES)
                lines = [[(x / scale, y) for x, y in line] for line in self._checkpoints[tier][::every]]
                width = max(0.2, min(0.8, 40 / len(lines)))
                handles.append(
                    # Snapped to dots, lines closer than those would vanish or merge at random.
                    LineCollection(
                        lines,
                        color=colour,
                        linestyle=dashes,
                        linewidth=width,
                        label=label,
                        zorder=2,
                        snap=False,
                    )
                )
        for handle in dict.fromkeys([*drawn, *handles]):
            handle.set_rasterized(self._actions > _MANY)
            axes.add_collection(handle)
        return handles

    def _title(self) -> list[str]:
        plan = self.plan
        parameters = format_parameters(plan)
        base = plan.predicted.seconds / (1 + plan.predicted.overhead)
        played = self.schedule or f"{plan.strategy}{f' ({parameters})' if parameters else ''}"
        return [
            f"{played}: {format_seconds(self._end)}, {format_percent(self._end / base - 1)} over base",
            f"{plan.workload.name} on {plan.profile.name}, T = {format_count(plan.steps)}",
        ]

    def _draw_memory(self, axes: Axes, scale: float, *, column: int) -> None:
        held = [moment[column] for moment in self._memory]
        # It starts with what is resident.
        least, most = held[0], max(held)
        times, curve = _envelope([moment[0] / scale for moment in self._memory], held)
        colour = style.BLUE if column == 1 else style.PURPLE
        axes.fill_between(times, curve, least, color=colour, alpha=0.25, linewidth=0)
        axes.plot(times, curve, color=colour, linewidth=max(0.2, min(0.9, 900 / len(times))))
        budget = self.plan.goal.local_bytes if column == 1 else None
        top = most
        # Far above the curve, a line would only flatten it.
        if budget is not None and budget - least <= 3 * (most - least):
            top = max(top, budget)
            axes.axhline(budget, color=style.VERMILION, linewidth=0.9, linestyle="--")
            axes.annotate(
                f"budget {format_bytes(budget)}",
                (1, budget), xycoords=("axes fraction", "data"), xytext=(-1, 1), textcoords="offset points",
                ha="right", va="bottom", color=style.ink_of(style.VERMILION),
            )  # fmt: skip
        axes.set_ylim(least, least + 2.2 * max(1, top - least))
        # From what stays on, which is named; steps of a power of two.
        sizes = byte_steps(max(1, top - least), most=2)
        axes.set_yticks([least + size for size in sizes], [format_bytes(size) for size in sizes])
        words = (
            "local" + (f" beside {format_bytes(least)}" if least else "") if column == 1 else "remote memory"
        )
        axes.set_title(f"{words}, peak {format_bytes(most)}")


def _envelope(times: list[float], held: list[Any]) -> tuple[Any, Any]:
    """Return a curve with at most some points for each dot of the picture: the least and the most there."""
    if len(times) <= 8 * _DOTS:
        return times, held
    moments, sizes = np.asarray(times), np.asarray(held)
    starts = np.unique(np.searchsorted(moments, np.linspace(moments[0], moments[-1], _DOTS, endpoint=False)))
    low, high = np.minimum.reduceat(sizes, starts), np.maximum.reduceat(sizes, starts)
    return np.repeat(moments[starts], 2), np.column_stack([low, high]).ravel()


def _rows(event: Event) -> list[tuple[int, int]]:
    """Return the steps that a bar covers; for a transfer or a wait, the row of each state."""
    action = event.action
    if isinstance(action, Transfer):
        return [(state, state + 1) for state in action.states]
    if isinstance(action, (Save, Load, Free)):
        return [(action.state, action.state + 1)]
    return [(action.start, action.stop)]


def _shapes(kind: str, bar: tuple[float, float, int, int], *, cells: bool) -> list[Sequence[Point]]:
    """Return a bar as polygons: a cell for each step, or the outline of the staircase they make."""
    start, end, first, last = bar
    if kind in ("write", "read", "wait") or last - first == 1:
        return [[(start, first), (end, first), (end, last), (start, last)]]
    each = (end - start) / (last - first)
    if cells:
        return [
            shape
            for step in range(first, last)
            for shape in _shapes(kind, (*_when(kind, bar, step, each), step, step + 1), cells=True)
        ]
    if kind == "backward":
        first, last = last, first
    down = 1 if last > first else -1
    there = [(start, first), (start + each, first), (end, last - down)]
    back = [(end, last), (end - each, last), (start, first + down)]
    return [there + back]


def _when(kind: str, bar: tuple[float, float, int, int], step: int, each: float) -> tuple[float, float]:
    start, _, first, last = bar
    before = last - 1 - step if kind == "backward" else step - first
    return start + before * each, start + (before + 1) * each


def _make_bars(kind: str, shapes: Sequence[Sequence[Point]], *, edge: float) -> list[Any]:
    """Return the bars of a kind as collections, of which the last is for the legend."""
    from matplotlib.collections import PolyCollection

    colour, label = style.EVENT_COLOURS[kind], _LEGEND.get(kind, kind)
    # A line of its own colour keeps a bar thinner than a dot in sight.
    plain = PolyCollection(shapes, facecolor=colour, edgecolor=colour, linewidth=edge, label=label, zorder=3)
    if kind not in _HATCHES or len(shapes) > _HATCHED:
        return [plain]
    # Hatches have the colour of edges, so the bars are drawn once more without a line.
    hatched = PolyCollection(
        shapes,
        facecolor=colour,
        edgecolor=(1, 1, 1, 0.8),
        linewidth=0,
        hatch=_HATCHES[kind],
        label=label,
        zorder=3,
    )
    return [plain, hatched]


def _time_unit(seconds: float) -> tuple[float, str]:
    for scale, unit in ((1.0, "s"), (1e-3, "ms")):
        if seconds >= scale:
            return scale, unit
    return 1e-6, "us"
