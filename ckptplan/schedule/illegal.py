"""The error for a schedule that breaks a law."""

from __future__ import annotations

from typing import Any

from ckptplan.errors import InputError


class IllegalAction(InputError):  # noqa: N818 - the name is part of the interface
    """An action of a schedule breaks a law: which action, which law, and the state it found."""

    kind = "illegal"

    def __init__(self, number: int, action: object, law: str, state: str) -> None:
        self.number = number
        self.action = action
        self.law = law
        self.state = state
        named = "the end" if action is None else f"{action!r}"
        super().__init__(f"{named}: {law}; found {state}", field=f"action {number}")

    def details(self) -> dict[str, Any]:
        """Return the action, the law and the state found."""
        return {
            "number": self.number,
            "action": None if self.action is None else repr(self.action),
            "law": self.law,
            "state": self.state,
        }
