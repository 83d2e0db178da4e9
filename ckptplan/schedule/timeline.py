"""Defines the timeline of a run: its events, their tracks, and the names of their kinds.

The simulator and the PyTorch runtime emit events; traces, pictures and validations consume them.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from ckptplan.schedule.actions import Action, Advance, Load, Record, Save, Tier, Transfer

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


def track_of(action: Action) -> str:
    """Return the track of an action that is executed: compute, writes or reads."""
    match action:
        case Load(_, Tier.REMOTE) | Transfer(_, Tier.REMOTE, _):
            return READ
        case Save(_, Tier.REMOTE) | Transfer():
            return WRITE
    return COMPUTE


class Frontier:
    """Counts how many steps of each action have run before."""

    def __init__(self) -> None:
        self._frontier = 0

    def pass_over(self, action: Action) -> int:
        """Return how many steps of an action run again, and move the frontier to its last step."""
        if not isinstance(action, Advance | Record):
            return 0
        before, self._frontier = self._frontier, max(self._frontier, action.stop)
        return max(0, min(before, action.stop) - action.start)


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
