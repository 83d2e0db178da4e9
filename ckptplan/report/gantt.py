"""A schedule as a picture in the manner of the paper's Figure 1, and as a chart: time across, steps down.

A run goes down to the right, a backward up to the right. Grey areas are tapes waiting to be consumed,
lines are checkpoints waiting to be loaded, and below is what each memory tier holds.

A timeline is collected with a bounded number of bars. Bars that are longer than an interval of the time axis
stay as they are. Shorter ones of the same kind become one bar for each interval, which spans the steps that
they touch. The curve of memory keeps the first, last, least and greatest value of each interval, so that no
peak is lost.
"""

from __future__ import annotations

from array import array
from collections import defaultdict
from collections.abc import Iterator
from dataclasses import dataclass, replace
from typing import Any, TypeAlias, TypeVar

import numpy as np
import numpy.typing as npt

from ckptplan.cost.case import Case
from ckptplan.errors import InputError
from ckptplan.model.plan import Plan
from ckptplan.planning.playback import simulate
from ckptplan.report import style
from ckptplan.report.blocks import Chart
from ckptplan.report.charts import Marks, Plot, Scale, layer_plot, mark_limit, scale_bytes, scale_counts
from ckptplan.report.fields import format_parameters, name_job
from ckptplan.report.picture import Picture
from ckptplan.report.style import PAGE, Size
from ckptplan.schedule.actions import Backward, Free, Load, Record, Save, Tier, Transfer
from ckptplan.schedule.timeline import BARS, Event, kind_of
from ckptplan.units import format_bytes, format_count, format_percent, format_seconds

_Floats = npt.NDArray[np.float64]
#: Kind, start, end, step at the start, step at the end.
Bar: TypeAlias = tuple[str, float, float, float, float]


@dataclass(frozen=True, kw_only=True)
class Detail:
    """How finely a timeline is drawn, and the most events that are read for it."""

    #: Up to this many bars, every bar is drawn by itself.
    bars: int = 1500
    #: Intervals of the time axis beyond that.
    intervals: int = 300
    events: int = 1_000_000


@dataclass(frozen=True, kw_only=True)
class Sketch:
    """A timeline to draw. Times are in seconds; steps as the picture has them, downwards."""

    bars: tuple[Bar, ...]
    #: Time, local bytes of one unit, remote bytes of all.
    memory: tuple[tuple[float, int, int], ...]
    seconds: float
    #: Actions of the schedule.
    actions: int
    #: Seconds of an interval in which short actions are drawn together, None if each is drawn by itself.
    interval_seconds: float | None


class TooLongToDraw(InputError):  # noqa: N818 - what is the case, not an error
    """A schedule has more actions than may be read for its picture."""

    def __init__(self, most: int) -> None:
        super().__init__(
            f"the schedule has more than {most:,} actions, too many for a picture",
            field="gantt",
            accepted="a plan of a shorter sequence",
        )
        self.most = most


def sketch_schedule(plan: Plan, *, detail: Detail) -> Sketch:
    """Play a plan's schedule and return its picture. Raises TooLongToDraw, and as ``simulate`` does."""
    collected = Collected(plan, most=detail.events)
    simulate(plan, sink=collected.add)
    return collected.finish(detail)


class Collected:
    """The events of a timeline (``add`` is a sink) in columns, which take a tenth of the memory of objects."""

    def __init__(self, plan: Plan, *, most: int) -> None:
        resident = Case(workload=plan.workload, profile=plan.profile).costs.resident_bytes
        self._most, self._actions = most, 0
        self._bars = array("d")
        self._moments = array("d", (0.0, resident, 0))

    def add(self, event: Event) -> None:
        """Take an event. Raises TooLongToDraw."""
        self._actions += not event.stall
        if self._actions > self._most:
            raise TooLongToDraw(self._most)
        # The simulator counts the tapes of a run when it ends; they come and go step by step.
        if isinstance(event.action, (Record, Backward)) and not event.stall:
            _, local, remote = self._moments[-3:]
            self._moments.extend((event.start, local, remote))
        self._moments.extend((event.held_at, event.local_bytes, event.remote_bytes))
        kind = kind_of(event)
        if kind in BARS and event.end > event.start:
            place = BARS.index(kind)
            for first, last in _spans(event):
                self._bars.extend((place, event.start, event.end, first, last))

    def finish(self, detail: Detail) -> Sketch:
        """Return what to draw."""
        bars = np.frombuffer(self._bars, dtype=np.float64).reshape(-1, 5) if self._bars else np.zeros((0, 5))
        moments = np.frombuffer(self._moments, dtype=np.float64).reshape(-1, 3)
        end = float(max(moments[:, 0].max(), bars[:, 2].max(initial=0.0)))
        interval = end / detail.intervals if len(bars) > detail.bars and end > 0 else None
        if interval is not None:
            bars = _merge_bars(bars, interval)
        if len(moments) > 8 * detail.intervals and end > 0:
            moments = moments[_extremes(moments, end / detail.intervals)]
        return Sketch(
            bars=tuple((BARS[int(kind)], a, b, first, last) for kind, a, b, first, last in bars.tolist()),
            memory=tuple((time, int(local), int(remote)) for time, local, remote in moments.tolist()),
            seconds=end,
            actions=self._actions,
            interval_seconds=interval,
        )


def _spans(event: Event) -> list[tuple[int, int]]:
    """Return where bars begin and end, in steps: downwards, for a backward upwards, for states level."""
    action: Any = event.action
    if isinstance(action, Transfer):
        return [(state, state) for state in action.states]
    if isinstance(action, (Save, Load, Free)):
        return [(action.state, action.state)]
    there = (action.start, action.stop)
    return [there[::-1] if isinstance(action, Backward) and not event.stall else there]


def _merge_bars(bars: _Floats, interval: float) -> _Floats:
    """Return bars of which those shorter than an interval are merged by interval and kind."""
    kind, start, end = bars[:, 0], bars[:, 1], bars[:, 2]
    short = end - start < interval
    if not short.any():
        return bars
    few = bars[short]
    cell = np.floor(start[short] / interval)
    order = np.lexsort((kind[short], cell))
    few, cell = few[order], cell[order]
    # Where another interval or kind begins.
    begins = np.flatnonzero(np.r_[True, (np.diff(cell) != 0) | (np.diff(few[:, 0]) != 0)])
    low = np.minimum.reduceat(np.minimum(few[:, 3], few[:, 4]), begins)
    high = np.maximum.reduceat(np.maximum(few[:, 3], few[:, 4]), begins)
    middle = (cell[begins] + 0.5) * interval
    merged = np.column_stack((few[begins, 0], middle, middle, low, np.maximum(high, low + 1)))
    return np.vstack((merged, bars[~short]))


def _extremes(moments: _Floats, interval: float) -> npt.NDArray[np.int64]:
    """Return the places of the first, last, least and greatest local bytes of each interval, ascending."""
    cell = np.floor(moments[:, 0] / interval)
    # Transfers count from when they are issued, which may be before what was seen.
    begins = np.flatnonzero(np.r_[True, np.diff(cell) != 0])
    ends = np.r_[begins[1:], len(moments)]
    found = [begins, ends - 1]
    for column in (1, 2):
        for choose in (np.argmin, np.argmax):
            found.append(
                np.array([a + choose(moments[a:b, column]) for a, b in zip(begins, ends, strict=True)])
            )
    return np.unique(np.concatenate(found))


#: Corners, as (seconds, step).
Shape: TypeAlias = list[tuple[float, float]]
_Shown = TypeVar("_Shown")

#: Upper limit on actions that are drawn.
MOST_ACTIONS = 200_000
#: Tapes and checkpoints that are drawn, of each kind.
_SHAPES = 5_000
#: Fewer lines are dotted.
_DOTTED = 100
#: How finely a picture is drawn.
_DETAIL = Detail(bars=10_000, intervals=1_000)
LEGEND = {"record": "record (keeps tapes)", "wait": "wait for a transfer"}
_TIERS = {
    Tier.LOCAL: ("local checkpoint", style.BLACK, ()),
    Tier.REMOTE: ("remote checkpoint", style.GREY, (1, 1)),
}


class Gantt(Collected):
    """Collects a timeline (``add`` is a sink) and draws it."""

    def __init__(self, plan: Plan, *, schedule: str | None = None) -> None:
        super().__init__(plan, most=MOST_ACTIONS)
        self.plan = plan
        #: The file that was played instead of the plan's own schedule.
        self.schedule = schedule
        self._tapes: list[Shape] = []
        #: Recorded and not yet reversed: (start, stop) -> when recorded.
        self._open_tapes: dict[tuple[int, int], tuple[float, float]] = {}
        #: Since when, until when, and which state.
        self._checkpoints: dict[Tier, list[tuple[float, float, int]]] = defaultdict(list)
        #: (state, tier) -> since when it is stored.
        self._stored: dict[tuple[int, Tier], float] = {}

    def add(self, event: Event) -> None:
        """Take an event. Raises TooLongToDraw."""
        super().add(event)
        if not event.stall:
            self._follow_tapes(event)
            self._follow_checkpoints(event)

    def _follow_tapes(self, event: Event) -> None:
        action = event.action
        if isinstance(action, Record):
            self._open_tapes[action.start, action.stop] = (event.start, event.end)
        elif isinstance(action, Backward):
            each = (event.end - event.start) / (action.stop - action.start)
            for first, last in [span for span in self._open_tapes if span[1] > action.start]:
                start, end = self._open_tapes.pop((first, last))
                low = max(first, action.start)
                slope = (end - start) / (last - first)
                self._tapes.append([
                    (start + slope * (low - first), low),
                    (end, last),
                    (event.start + each * (action.stop - last), last),
                    (event.start + each * (action.stop - low), low),
                ])  # fmt: skip
                if first < low:
                    self._open_tapes[first, low] = (start, start + slope * (low - first))

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
        self._checkpoints[tier].append((since, max(now, since), state))

    def draw(self, size: Size = PAGE) -> Picture:
        """Return the picture."""
        sketch = self.finish(_DETAIL)
        steps, *memory = _make_plots(self.plan, sketch)
        scale, _ = time_unit(sketch.seconds)
        marks = [self._mark_tapes(scale), *self._mark_checkpoints(scale), *steps.marks]
        rows = [[replace(steps, marks=marks)], *([plot] for plot in memory)]
        heights = (1.8 if size.width < PAGE.width else 2.5, *(0.6 for _ in memory))
        return Picture(title=self._title(sketch), rows=rows, heights=heights, size=size)

    def _mark_tapes(self, scale: float) -> Marks:
        """Return which tapes wait to be consumed, each between its first and its last step."""
        rows = [
            {"shape": place, "y": shape[edge][1], "x": shape[edge][0] / scale, "x2": shape[3 - edge][0] / scale}
            for place, shape in enumerate(_thin(self._tapes))
            for edge in (0, 1)
        ]
        return Marks(kind="area", rows=rows, colour=style.PALE, label="tapes held")

    def _mark_checkpoints(self, scale: float) -> Iterator[Marks]:
        """Yield a line for each checkpoint while it is stored."""
        for tier, (label, colour, dashes) in _TIERS.items():
            shown = _thin(self._checkpoints[tier])
            rows = [{"x": start / scale, "x2": end / scale, "y": state} for start, end, state in shown]
            width = max(0.2, min(0.8, 40 / max(1, len(rows))))
            # Many dots would make a pattern of their own.
            some = dashes if len(rows) < _DOTTED else ()
            yield Marks(kind="span", rows=rows, colour=colour, dashes=some, size=width, label=label)

    def _title(self, sketch: Sketch) -> list[str]:
        plan = self.plan
        parameters = format_parameters(plan)
        base = plan.predicted.seconds / (1 + plan.predicted.overhead)
        played = self.schedule or f"{plan.strategy}{f' ({parameters})' if parameters else ''}"
        time, added = format_seconds(sketch.seconds), format_percent(sketch.seconds / base - 1)
        return [
            f"{played}: {time}, {added} over base",
            name_job(plan.workload, plan.profile),
        ]


def _thin(shapes: list[_Shown]) -> list[_Shown]:
    """Return some of many shapes, evenly: closer than dots, they look the same whether or not each is drawn."""
    return shapes[:: -(-len(shapes) // _SHAPES) or 1]


def _make_plots(plan: Plan, sketch: Sketch) -> list[Plot]:
    """Return which steps run when, and what each memory holds meanwhile; only the lowest names the time."""
    scale, unit = time_unit(sketch.seconds)
    time = scale_counts(f"time ({unit})", 0, sketch.seconds / scale or 1)
    steps = scale_counts("time step", 0, plan.steps, whole=True)
    downwards = replace(steps, low=steps.high, high=steps.low)
    tiers = 2 if any(remote for _, _, remote in sketch.memory) else 1
    plots = [Plot(x=time, y=downwards, marks=_mark_bars(sketch))]
    plots += [_make_memory_plot(plan, sketch, time, column=column) for column in range(1, 1 + tiers)]
    return [*(replace(one, x=replace(time, title="")) for one in plots[:-1]), plots[-1]]


def _make_memory_plot(plan: Plan, sketch: Sketch, time: Scale, *, column: int) -> Plot:
    """Return what a tier holds over time, from what is resident on, and its budget if that is in sight."""
    scale, _ = time_unit(sketch.seconds)
    held = [moment[column] for moment in sketch.memory]
    colour, tier = (style.BLUE, "local") if column == 1 else (style.PURPLE, "remote")
    words = f"beside {format_bytes(held[0])}" if held[0] else "memory"
    title = f"{tier} {words}, peak {format_bytes(max(held))}"
    budget = plan.goal.local_bytes if column == 1 else plan.goal.remote_bytes
    least, top = held[0], max(held)
    # Far above the curve, a line would only flatten it.
    if budget is None or budget - least > 3 * (top - least):
        budget = None
    span = max(1, top - least, (budget or least) - least)
    ticks = {least + size: name for size, name in scale_bytes("", 0, span).ticks.items()}
    rows = [
        {"x": _shorten(moment[0] / scale), "y": bytes_, "y2": least, "t": format_bytes(bytes_)}
        for moment, bytes_ in zip(sketch.memory, held, strict=True)
    ]
    line = [{"x": row["x"], "y": row["y"]} for row in rows]
    marks = [
        Marks(kind="area", rows=rows, colour=colour, opacity=0.3, told={"t": f"{tier} memory"}),
        Marks(kind="line", rows=line, colour=colour, size=max(0.2, min(0.9, 900 / len(rows)))),
        mark_limit("y", budget, f"{tier} budget {format_bytes(budget or 0)}"),
    ]
    held_there = Scale(title="", low=least, high=least + 1.6 * span, ticks=ticks)
    return Plot(x=time, y=held_there, marks=marks, title=title)


def _mark_bars(sketch: Sketch) -> list[Marks]:
    """Return lines of each kind of action: down for a run, up for a backward, level for a state that moves."""
    scale, _ = time_unit(sketch.seconds)
    rows = defaultdict[str, list[dict[str, Any]]](list)
    for kind, start, end, first, last in sketch.bars:
        time = {"x": _shorten(start / scale), "x2": _shorten(end / scale)}
        rows[kind].append({"name": LEGEND.get(kind, kind), **time, "y": int(first), "y2": int(last)})
    # Many bars are thin, so that they do not cover each other.
    width = max(0.9, min(2.0, 500 / max(1, len(sketch.bars))))
    told = {"name": "action", "x": "from", "x2": "to", "y": "step", "y2": "to step"}
    return [
        Marks(
            kind="span", rows=rows[kind], colour=style.EVENT_COLOURS[kind], label=LEGEND.get(kind, kind),
            size=width, told=told,
        )
        for kind in BARS if rows[kind]
    ]  # fmt: skip


def time_unit(seconds: float) -> tuple[float, str]:
    """Return the unit of an axis of time, in seconds, and its name."""
    for scale, unit in ((1.0, "s"), (1e-3, "ms")):
        if seconds >= scale:
            return scale, unit
    return 1e-6, "us"


def chart_schedule(plan: Plan, sketch: Sketch) -> Chart:
    """Return the chart of a plan's timeline."""
    steps, *memory = _make_plots(plan, sketch)
    parts = [{"height": 320, "width": "container", **layer_plot(steps, zooms=["x"])}]
    parts += [{"height": 90, "width": "container", **layer_plot(plot)} for plot in memory]
    for part, plot in zip(parts, (steps, *memory), strict=True):
        # The axes of memory follow that of the steps.
        x = part["encoding"]["x"]
        x["axis"] = {"tickCount": 12} if plot.x.title else x["axis"]
        x["scale"] |= {} if plot is steps else {"domain": {"param": "zoom", "encoding": "x"}}
    spec = {"spacing": 10, "vconcat": parts, "data": {"name": "none", "values": []}}
    return Chart("schedule", "Schedule and memory", _describe_chart(sketch), spec, zooms=True)


def _describe_chart(sketch: Sketch) -> str:
    text = (
        f"{format_count(sketch.actions)} actions in {format_seconds(sketch.seconds)}: a run goes down to the "
        "right, a backward up to the right. Below is what each memory holds at each time."
    )
    if sketch.interval_seconds is not None:
        text += (
            f" Actions shorter than {format_seconds(sketch.interval_seconds)} are drawn together: one bar for "
            "each kind and interval, over the steps that they touch."
        )
    return text


def _shorten(time: float) -> float:
    """Return a time with seven digits, finer than any screen, which halves the file."""
    return float(f"{time:.7g}")
