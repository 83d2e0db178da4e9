"""Collects a timeline, for a picture and for the chart of a page, with a bounded number of bars.

Bars that are longer than an interval of the time axis stay as they are. Shorter ones of the same kind become
one bar for each interval, which spans the steps that they touch. The curve of memory keeps the first, last,
least and greatest value of each interval, so that no peak is lost.
"""

from __future__ import annotations

from array import array
from dataclasses import dataclass
from typing import Any, TypeAlias

import numpy as np
import numpy.typing as npt

from ckptplan.errors import InputError
from ckptplan.model.plan import Plan
from ckptplan.planning.playback import simulate
from ckptplan.schedule.actions import Backward, Free, Load, Record, Save, Transfer
from ckptplan.schedule.timeline import BARS, Event, kind_of

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


def sketch_schedule(plan: Plan, *, resident_bytes: int, detail: Detail) -> Sketch:
    """Play a plan's schedule and return its picture. Raises TooLongToDraw, and as ``simulate`` does."""
    collected = Collected(resident_bytes, most=detail.events)
    simulate(plan, sink=collected.add)
    return collected.finish(detail)


class Collected:
    """The events of a timeline (``add`` is a sink) in columns, which take a tenth of the memory of objects."""

    def __init__(self, resident_bytes: int, *, most: int) -> None:
        self._most, self._actions = most, 0
        self._bars = array("d")
        self._moments = array("d", (0.0, resident_bytes, 0))

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
