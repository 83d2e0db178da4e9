"""Reduces the timeline of a schedule to a bounded number of bars and of values of each memory tier.

Bars that are longer than an interval of the time axis stay as they are. Shorter bars of one kind become one bar
for each interval, which spans the steps that they touch. The curve of memory keeps the least and the greatest
value of each interval, so that no peak is lost.
"""

from __future__ import annotations

from array import array
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from ckptplan.cost.case import Case
from ckptplan.errors import InputError
from ckptplan.model.plan import Plan
from ckptplan.planning.playback import simulate
from ckptplan.schedule.actions import Backward, Free, Load, Record, Save, Transfer
from ckptplan.schedule.timeline import BARS, Event, kind_of

_Floats = npt.NDArray[np.float64]


@dataclass(frozen=True, kw_only=True)
class Detail:
    """How finely a timeline is drawn.

    Up to ``bars`` bars, each is drawn by itself. If there are more, short bars are merged within ``intervals``
    of the time axis. A schedule of more than ``actions`` actions is not drawn.
    """

    bars: int = 500
    intervals: int = 300
    actions: int = 1_000_000


#: The detail of a picture in its own file, which has ten times the dots of a page.
FINE = Detail(bars=10_000, intervals=1_000, actions=200_000)


@dataclass(frozen=True, kw_only=True)
class Sketch:
    """A timeline to draw.

    ``bars`` has an array of shape (n, 4) for each kind of action: start and end in seconds, and the steps at
    both. ``memory`` has shape (m, 3): seconds, local bytes of one unit, remote bytes of all units. ``interval``
    is the length in seconds within which short actions were merged, None if each is drawn by itself.
    """

    bars: Mapping[str, _Floats]
    memory: _Floats
    seconds: float
    actions: int
    interval: float | None


class TooLongToDraw(InputError):  # noqa: N818 - names the state of the schedule
    """A schedule has more actions than may be read for its picture."""

    def __init__(self, most: int) -> None:
        super().__init__(
            f"the schedule has more than {most:,} actions, too many for a picture",
            field="gantt",
            accepted="a plan of a shorter sequence",
        )
        self.most = most


def sketch_schedule(plan: Plan, *, detail: Detail) -> Sketch:
    """Play the schedule of a plan and return its timeline. Raises TooLongToDraw and errors of ``simulate``."""
    collector = TimelineCollector(plan, detail)
    simulate(plan, sink=collector.add)
    return collector.finish()


class TimelineCollector:
    """Collects the events of a timeline in columns, which take a tenth of the memory of objects."""

    def __init__(self, plan: Plan, detail: Detail = FINE) -> None:
        resident = Case(workload=plan.workload, profile=plan.profile).costs.resident_bytes
        self._detail, self._actions = detail, 0
        self._bars = array("d")
        self._moments = array("d", (0.0, resident, 0))

    def add(self, event: Event) -> None:
        """Take an event of the simulator. Raises TooLongToDraw."""
        self._actions += not event.stall
        if self._actions > self._detail.actions:
            raise TooLongToDraw(self._detail.actions)
        # The simulator counts the tapes of a run at its end, though they change step by step. Draw a slope.
        if isinstance(event.action, (Record, Backward)) and not event.stall:
            _, local, remote = self._moments[-3:]
            self._moments.extend((event.start, local, remote))
        self._moments.extend((event.held_at, event.local_bytes, event.remote_bytes))
        kind = kind_of(event)
        if kind in BARS and event.end > event.start:
            for first, last in _list_spans(event):
                self._bars.extend((BARS.index(kind), event.start, event.end, first, last))

    def finish(self) -> Sketch:
        """Return the timeline, reduced to the requested detail."""
        bars = np.frombuffer(self._bars, dtype=np.float64).reshape(-1, 5) if self._bars else np.zeros((0, 5))
        moments = np.frombuffer(self._moments, dtype=np.float64).reshape(-1, 3)
        end = float(max(moments[:, 0].max(), bars[:, 2].max(initial=0.0)))
        interval = end / self._detail.intervals if len(bars) > self._detail.bars and end > 0 else None
        if interval is not None:
            bars = _merge_bars(bars, interval)
        if len(moments) > 8 * self._detail.intervals and end > 0:
            moments = _find_extremes(moments, end / self._detail.intervals)
        kinds = {kind: bars[bars[:, 0] == place, 1:] for place, kind in enumerate(BARS)}
        return Sketch(
            bars={kind: rows for kind, rows in kinds.items() if len(rows)},
            memory=moments,
            seconds=end,
            actions=self._actions,
            interval=interval,
        )


def _list_spans(event: Event) -> list[tuple[int, int]]:
    """Return the first and last step of each bar of an event. They are reversed for a backward action."""
    action: Any = event.action
    if isinstance(action, Transfer):
        caches = [] if action.caches is None else [action.caches]
        return [*((state, state) for state in action.states), *caches]
    if isinstance(action, (Save, Load, Free)):
        return [(action.state, action.state)]
    span = (action.start, action.stop)
    return [span[::-1] if isinstance(action, Backward) and not event.stall else span]


def _merge_bars(bars: _Floats, interval: float) -> _Floats:
    """Merge the bars that are shorter than an interval, by interval and kind."""
    is_short = bars[:, 2] - bars[:, 1] < interval
    # The position of a merged bar. The kinds stand side by side within an interval.
    position = np.floor(bars[:, 1] / interval) * len(BARS) + bars[:, 0]
    order = np.flatnonzero(is_short)[np.argsort(position[is_short], kind="stable")]
    merged, position = bars[order], position[order]
    begins = np.flatnonzero(np.diff(position, prepend=-1))
    middle = (position[begins] + 0.5) / len(BARS) * interval
    low = np.minimum.reduceat(merged[:, 3:].min(axis=1), begins)
    high = np.maximum.reduceat(merged[:, 3:].max(axis=1), begins)
    columns = (merged[begins, 0], middle, middle, low, np.maximum(high, low + 1))
    return np.vstack((np.column_stack(columns), bars[~is_short]))


def _find_extremes(moments: _Floats, interval: float) -> _Floats:
    """Return the least bytes of each interval at its first moment, and the greatest ones at its last moment."""
    begins = np.flatnonzero(np.diff(np.floor(moments[:, 0] / interval), prepend=-1))
    extremes = [choose.reduceat(moments, begins) for choose in (np.minimum, np.maximum)]
    return np.stack(extremes, axis=1).reshape(-1, 3)
