"""What is said of an action when it is done: its track, and how many of its steps had run before."""

from __future__ import annotations

from ckptplan.schedule.actions import Action, Advance, Load, Record, Save, Tier, Transfer
from ckptplan.schedule.timeline import COMPUTE, READ, WRITE


def track_of(action: Action) -> str:
    """Return the track of an action that is executed: compute, writes or reads."""
    match action:
        case Load(_, Tier.REMOTE) | Transfer(_, Tier.REMOTE, _):
            return READ
        case Save(_, Tier.REMOTE) | Transfer():
            return WRITE
    return COMPUTE


class Frontier:
    """Counts the steps of each action that had run before."""

    def __init__(self) -> None:
        self._known = 0

    def pass_over(self, action: Action) -> int:
        """Return how many steps of an action run again, and remember those that ran."""
        if not isinstance(action, Advance | Record):
            return 0
        known, self._known = self._known, max(self._known, action.stop)
        return max(0, min(known, action.stop) - action.start)
