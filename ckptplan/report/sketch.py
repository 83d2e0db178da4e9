"""Collects the timeline of a schedule as arrays, for its picture."""

from __future__ import annotations

from array import array
from functools import cached_property
from typing import Any

import numpy as np
import numpy.typing as npt

from ckptplan.cost.case import Case
from ckptplan.errors import InputError
from ckptplan.model.plan import Plan
from ckptplan.planning.playback import simulate
from ckptplan.schedule.actions import Backward, Free, Load, Record, Save, Transfer
from ckptplan.schedule.timeline import BARS, Event, kind_of

#: The most actions of a schedule that is drawn.
MOST_ACTIONS = 200_000


class TooLongToDraw(InputError):  # noqa: N818 - names the state of the schedule
    """A schedule has more actions than may be read for its picture."""

    def __init__(self, most: int) -> None:
        super().__init__(
            f"the schedule has more than {most:,} actions, too many for a picture",
            field="gantt",
            accepted="a plan of a shorter sequence",
        )
        self.most = most


def sketch_schedule(plan: Plan, *, most: int = MOST_ACTIONS) -> Sketch:
    """Play the schedule of a plan and return its timeline. Raises TooLongToDraw and errors of ``simulate``."""
    sketch = Sketch(plan, most)
    simulate(plan, sink=sketch.add)
    return sketch


class Sketch:
    """A timeline to draw: ``add`` collects events in columns, which take a tenth of the memory of objects.

    Arguments:
        plan: the plan whose schedule is played, or the plan whose costs another schedule has.
        most: the most actions.
    """

    def __init__(self, plan: Plan, most: int = MOST_ACTIONS) -> None:
        resident = Case(workload=plan.workload, profile=plan.profile).costs.resident_bytes
        self.actions, self._most = 0, most
        self._bars = array("d")
        self._moments = array("d", (0.0, resident, 0))

    def add(self, event: Event) -> None:
        """Take an event of the simulator. Raises TooLongToDraw."""
        self.actions += not event.stall
        if self.actions > self._most:
            raise TooLongToDraw(self._most)
        # The simulator counts the tapes of a run at its end, though they change step by step. Draw a slope.
        if isinstance(event.action, (Record, Backward)) and not event.stall:
            _, local, remote = self._moments[-3:]
            self._moments.extend((event.start, local, remote))
        self._moments.extend((event.held_at, event.local_bytes, event.remote_bytes))
        kind = kind_of(event)
        if kind in BARS and event.end > event.start:
            for first, last in _list_spans(event):
                self._bars.extend((BARS.index(kind), event.start, event.end, first, last))

    @cached_property
    def bars(self) -> dict[str, npt.NDArray[np.float64]]:
        """An array of shape (n, 4) for each kind of action: start and end in seconds, and the steps at both."""
        bars = np.array(self._bars).reshape(-1, 5)
        kinds = {kind: bars[bars[:, 0] == place, 1:] for place, kind in enumerate(BARS)}
        return {kind: rows for kind, rows in kinds.items() if len(rows)}

    @cached_property
    def memory(self) -> npt.NDArray[np.float64]:
        """An array of shape (m, 3): seconds, local bytes of one unit, remote bytes of all units."""
        return np.array(self._moments).reshape(-1, 3)

    @cached_property
    def seconds(self) -> float:
        """The time at which the last action ends."""
        ends = [float(rows[:, 1].max()) for rows in self.bars.values()]
        return max([float(self.memory[:, 0].max()), *ends])


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
