"""What is to be solved, and what an answer is made of."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from ckptplan.recursion.schedule_tree import Tree


@dataclass(frozen=True, kw_only=True)
class Problem:
    """UnitSizes in bytes, costs in seconds; a message is part of ``write`` and ``read``.

    ``least_write`` and ``least_read`` are what a state costs at least where several may share a message, or
    where transfers may run beside compute. ``free_bytes`` of None is unbounded local memory.
    """

    steps: int
    free_bytes: int | None
    state_bytes: int
    tape_bytes: int
    recompute: float
    write: float
    read: float
    least_write: float
    least_read: float

    @property
    def covered(self) -> bool:
        """Whether the recursion covers every legal schedule at its full cost."""
        return (self.write, self.read) == (self.least_write, self.least_read)


@dataclass(frozen=True, kw_only=True)
class Candidate:
    """A schedule that is there to be built: what it adds to the first sweep, and its local bytes at most.

    ``remote_states`` are in remote memory at the worst moment, as far as is known; ``regular`` ones loop with
    fixed strides.
    """

    extra: float
    local_bytes: int
    build: Callable[[], Tree]
    remote_states: int = 0
    regular: bool = False


@dataclass(frozen=True, kw_only=True)
class SolvedProblem:
    """Schedules to choose from, and what any schedule within the budget adds at least."""

    candidates: list[Candidate]
    least_extra: float
    exact: bool
    #: What rounding bytes up to units loses, in words; '' where it loses nothing.
    rounding: str = ""
