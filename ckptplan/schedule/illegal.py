"""Defines the error for a schedule that breaks a law."""

from __future__ import annotations

import dataclasses
from typing import Any

from ckptplan.errors import InputError, quote_value


class IllegalAction(InputError):  # noqa: N818 - the name is part of the interface
    """An action of a schedule breaks a law.

    Arguments:
        number: the number of the action, from 1.
        action: the action; None if the schedule ends too early.
        law: the law that it breaks.
        state: the state of the machine at that moment.
        source: the file that the schedule comes from.
        line: the line of the action in that file.
    """

    kind = "illegal"

    def __init__(
        self,
        number: int,
        action: object,
        law: str,
        state: str,
        *,
        source: str | None = None,
        line: int | None = None,
    ) -> None:
        self.number = number
        self.action = action
        self.law = law
        self.state = state
        self.line = line
        named = "the end" if action is None else _describe_action(action)
        place = f"action {number}" if line is None else f"line {line}"
        super().__init__(f"{named}: {law}; found {state}", field=place, source=source)

    def in_file(self, path: str) -> IllegalAction:
        """Return the same error for a file, in which action n is on line n + 1."""
        return IllegalAction(self.number, self.action, self.law, self.state, source=path, line=self.number + 1)

    def details(self) -> dict[str, Any]:
        """Return the place, the action, the law and the state of the machine."""
        return {
            "source": self.source,
            "line": self.line,
            "number": self.number,
            "action": None if self.action is None else _describe_action(self.action),
            "law": self.law,
            "state": self.state,
        }


def _describe_action(action: object) -> str:
    """Return an action as text, with the names of schedule files: 'save(state=10, tier=remote)'."""
    if not dataclasses.is_dataclass(action) or isinstance(action, type):
        return quote_value(action)
    fields = [(field.name, getattr(action, field.name)) for field in dataclasses.fields(action)]
    return f"{type(action).__name__.lower()}({', '.join(f'{name}={value}' for name, value in fields)})"


def exceeds_budget(needed: int, tier: str, budget: float) -> str:
    """Return the law that more bytes than the budget of a tier break."""
    return f"{needed:,} bytes are needed of a {tier} budget of {budget:,.0f}"


def describe_machine(
    position: int | None,
    adjoint: int,
    *,
    local: list[int],
    remote: list[int],
    tapes: list[tuple[int, int]],
) -> str:
    """Return the contents of a machine as text; long lists are shortened."""
    held: dict[str, list[Any]] = {"local": local, "remote": remote, "tapes": tapes}
    shown = ", ".join(f"{name} {_shorten(values)}" for name, values in held.items())
    working = "none" if position is None else position
    return f"working state {working}, next step to reverse {adjoint - 1}, {shown}"


def _shorten(values: list[Any]) -> str:
    return str(values) if len(values) <= 6 else f"{values[:3]}..{values[-1]} ({len(values)})"
