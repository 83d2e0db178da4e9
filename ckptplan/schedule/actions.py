"""Defines the seven actions of schedules (docs/schedule-format.md); each may cover a whole chunk.

Steps are numbered from 0; step t maps state t to state t+1. A range includes ``start`` and excludes ``stop``.
"""

from __future__ import annotations

import enum
from collections.abc import Callable
from dataclasses import dataclass
from typing import TypeAlias


class Tier(enum.StrEnum):
    """Where a checkpoint is stored."""

    LOCAL = "local"
    REMOTE = "remote"


@dataclass(frozen=True, slots=True)
class Advance:
    """Run steps start..stop-1 from the working state, keeping no tape.

    Afterwards the last ``cached`` of these steps have their caches in local memory, and the others do not. None
    means that all steps have.
    """

    start: int
    stop: int
    cached: int | None = None


@dataclass(frozen=True, slots=True)
class Record:
    """Run steps start..stop-1 from the working state and keep their tapes."""

    start: int
    stop: int


@dataclass(frozen=True, slots=True)
class Backward:
    """Reverse steps stop-1 down to start, consuming their tapes. The working state is lost."""

    start: int
    stop: int


@dataclass(frozen=True, slots=True)
class Save:
    """Store a copy of the working state, which is ``state``, in a tier. Remote: one message."""

    state: int
    tier: Tier


@dataclass(frozen=True, slots=True)
class Load:
    """Make a stored state the working state; it stays stored. Remote: one message."""

    state: int
    tier: Tier


@dataclass(frozen=True, slots=True)
class Free:
    """Delete a stored state."""

    state: int
    tier: Tier


@dataclass(frozen=True, slots=True)
class Transfer:
    """Move stored states from one tier to the other in one message.

    ``caches`` is a range of steps whose caches move in the same message: a first and a last step, which is
    excluded; None if no caches move.
    """

    states: tuple[int, ...]
    source: Tier
    target: Tier
    caches: tuple[int, int] | None = None


Action: TypeAlias = Advance | Record | Backward | Save | Load | Free | Transfer


def renumber(action: Action, to: Callable[[int], int]) -> Action:
    """Return an action with states renumbered by ``to``, as for a part of a longer sequence."""
    if isinstance(action, Advance):
        return Advance(to(action.start), to(action.stop), action.cached)
    if isinstance(action, Record | Backward):
        return type(action)(to(action.start), to(action.stop))
    if isinstance(action, Transfer):
        caches = action.caches and (to(action.caches[0]), to(action.caches[1]))
        return Transfer(tuple(map(to, action.states)), action.source, action.target, caches)
    return type(action)(to(action.state), action.tier)
