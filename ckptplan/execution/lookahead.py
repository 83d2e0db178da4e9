"""Iterates over actions, and looks ahead for the remote checkpoint that is read next."""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator

from ckptplan.schedule.actions import Action, Load, Tier, Transfer


class Lookahead(Iterator[Action]):
    """Yields actions one by one; actions that were inspected ahead are queued."""

    def __init__(self, actions: Iterator[Action]) -> None:
        self._actions = actions
        self._waiting: deque[Action] = deque()

    def __next__(self) -> Action:
        return self._waiting.popleft() if self._waiting else next(self._actions)

    def next_read(self) -> int | None:
        """Return the state that is read next from remote memory, None if none is."""
        for action in self._waiting:
            if (state := _state_read_by(action)) is not None:
                return state
        for action in self._actions:
            self._waiting.append(action)
            if (state := _state_read_by(action)) is not None:
                return state
        return None


def _state_read_by(action: Action) -> int | None:
    match action:
        case Load(number, Tier.REMOTE):
            return number
        case Transfer((number, *_), Tier.REMOTE, _):
            return number
    return None
