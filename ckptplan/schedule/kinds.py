"""What the bars of a timeline are called, the same in traces and pictures."""

from __future__ import annotations

from ckptplan.schedule.actions import Advance
from ckptplan.schedule.simulator import COMPUTE, Event

#: Kinds of bars in the order in which legends list them; the rest are moments.
BARS = ("forward", "recompute", "record", "backward", "write", "read", "wait")


def kind_of(event: Event) -> str:
    """Return one of BARS, or 'save', 'load' or 'free' for what takes no time.

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
