"""Defines the timeline of a run: its events, their tracks, and the names of their kinds.

The simulator and the PyTorch runtime emit events; traces, pictures and validations consume them.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from ckptplan.schedule.actions import Action, Advance

#: The tracks that actions run on.
COMPUTE, WRITE, READ = "compute", "write", "read"


@dataclass(frozen=True, slots=True)
class Event:
    """One bar of a timeline, in seconds from the start.

    ``local_bytes`` (per unit, resident bytes included) and ``remote_bytes`` (total) are those held at
    ``held_at``. That is the end of the event, except for a transfer that overlaps compute: its bytes count
    from the moment it is issued. ``recomputed_steps`` of the action's steps had run before. When compute
    waits for a transfer, the wait is an event with the waiting action and ``stall`` set.
    """

    start: float
    end: float
    track: str
    action: Action
    held_at: float
    local_bytes: int
    remote_bytes: int
    recomputed_steps: int = 0
    stall: bool = False


#: Receives each event as soon as it is known.
Sink = Callable[[Event], None]

#: Kinds of bars, in the order of legends; events of other kinds take no time.
BARS = ("forward", "recompute", "record", "backward", "write", "read", "wait")


def kind_of(event: Event) -> str:
    """Return one of BARS, or 'save', 'load' or 'free' for events that take no time.

    A run whose steps are partly new counts as forward.
    """
    action = event.action
    if event.stall:
        return "wait"
    if event.track != COMPUTE:
        return event.track
    if isinstance(action, Advance):
        return "recompute" if event.recomputed_steps == action.stop - action.start else "forward"
    return type(action).__name__.lower()
