"""Iterates over actions, and looks ahead for the remote checkpoints that are read next."""

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

    def next_message(self) -> tuple[int, ...]:
        """Return the states that are read next from remote memory together, () if none are."""
        for action in self._waiting:
            if states := _list_read(action):
                return states
        for action in self._actions:
            self._waiting.append(action)
            if states := _list_read(action):
                return states
        return ()


def _list_read(action: Action) -> tuple[int, ...]:
    match action:
        case Load(number, Tier.REMOTE):
            return (number,)
        case Transfer(numbers, Tier.REMOTE, _):
            return numbers
    return ()
