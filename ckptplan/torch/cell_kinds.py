"""Kinds of cells of this package, which the runtime treats in a special way; users' cells are none of them."""

from __future__ import annotations

from abc import abstractmethod
from typing import Any


class ClosedCell:
    """A cell that reaches nothing but the state, the input and the parameters that are named for it.

    Graphs of its steps need no search for other parameters, and trials of it need not be kept.
    """


class SlotCell:
    """A cell that works on places of a module, and gives them back after each step."""

    @property
    @abstractmethod
    def places(self) -> frozenset[tuple[int, Any]]:
        """What may change between steps: the ids of dicts, with keys."""
