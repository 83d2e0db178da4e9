"""Iterates over actions, and looks ahead for the remote checkpoints that are read next."""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator
from typing import NamedTuple

from ckptplan.schedule.actions import Action, Load, Tier, Transfer


class Message(NamedTuple):
    """States that move together, and the range of steps whose caches move with them."""

    states: tuple[int, ...]
    caches: tuple[int, int] | None = None


class Lookahead(Iterator[Action]):
    """Yields actions one by one, and queues the actions that were inspected ahead."""

    def __init__(self, actions: Iterator[Action]) -> None:
        self._actions = actions
        self._waiting: deque[Action] = deque()

    def __next__(self) -> Action:
        return self._waiting.popleft() if self._waiting else next(self._actions)

    def next_message(self) -> Message | None:
        """Return the next message from remote memory, None if no more states are read. Consumes no action."""
        for action in self._waiting:
            if message := _find_message(action):
                return message
        for action in self._actions:
            self._waiting.append(action)
            if message := _find_message(action):
                return message
        return None


def _find_message(action: Action) -> Message | None:
    match action:
        case Load(number, Tier.REMOTE):
            return Message((number,))
        case Transfer(numbers, Tier.REMOTE, _, caches):
            return Message(numbers, caches)
    return None
