"""Defines the problem that the recursions solve, bounds on its schedules, and the candidates of a solution."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import partial
from math import inf
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

from ckptplan.cost.exact import Cost
from ckptplan.model.step_costs import StepCosts
from ckptplan.recursion.tree import Tree


class ActionCosts(NamedTuple):
    """Seconds of each run of steps, recorded chunk, local save and local load."""

    advance: float = 0.0
    chunk: float = 0.0
    save: float = 0.0
    load: float = 0.0

    @classmethod
    def of(cls, costs: StepCosts) -> ActionCosts:
        """Return the costs of actions that a job has."""
        return cls(
            advance=costs.advance_seconds,
            chunk=costs.chunk_seconds,
            save=costs.save_seconds,
            load=costs.load_seconds,
        )

    def covered(self, *, write: float, read: float) -> bool:
        """Return whether local saves and loads are cheap enough for the recursions.

        Otherwise a detour by way of remote memory can replace one: a state is written and fetched back instead
        of saved, or written and read instead of loaded (docs/optimality.md).
        """
        return (
            self.save <= write + self.load and self.load <= write + read and min(self.save, self.load) <= read
        )

    def hold(self, *, write: float, read: float) -> float:
        """Return the cost of a local copy of a state that is due to be read: fetched, or read and saved."""
        return min(self.save, self.load) if self.covered(write=write, read=read) else self.save

    def lowered(self, *, write: float, read: float) -> ActionCosts:
        """Return costs that are no higher and that the recursions cover, for a lower bound."""
        if self.covered(write=write, read=read):
            return self
        return self._replace(save=min(self.save, write), load=min(self.load, read))


#: Actions that cost nothing, as in the paper.
FREE = ActionCosts()


@dataclass(frozen=True, kw_only=True)
class Problem:
    """A sequence to reverse: sizes in bytes, costs in seconds; ``write`` and ``read`` include a message.

    ``least_write`` and ``least_read`` are the minimum costs of a state, where several states may share a
    message or transfers may overlap compute. ``free_bytes`` None is unbounded local memory.
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
    actions: ActionCosts = FREE

    @property
    def covered(self) -> bool:
        """Whether the recursion covers every legal schedule at its full cost."""
        at_full_cost = (self.write, self.read) == (self.least_write, self.least_read)
        return at_full_cost and self.actions.covered(write=self.write, read=self.read)

    @property
    def prices(self) -> dict[str, Any]:
        """The costs that the values of parts depend on (``tables.PartValues``)."""
        return {
            "recompute": self.recompute,
            "write": self.write,
            "read": self.read,
            "actions": self.actions,
        }

    def bound_by_memory(self) -> float:
        """Return ``bound_by_tapes`` from the memory in bytes, however coarse the units of a table are."""
        if self.free_bytes is None:
            return self.actions.chunk
        return bound_by_tapes(
            steps=self.steps,
            units=self.free_bytes,
            tape=self.tape_bytes,
            recompute=self.recompute,
            chunk=self.actions.chunk,
        )

    def lowered(self) -> Problem:
        """Return a problem that the recursion covers and that costs no more, for a lower bound."""
        write, read = self.least_write, self.least_read
        actions = self.actions.lowered(write=write, read=read)
        return replace(self, write=write, read=read, actions=actions)


def bound_by_tapes(*, steps: int, units: int, tape: int, recompute: float, chunk: float = 0.0) -> float:
    """Return the least cost of recomputation and of chunks, with costs ``recompute`` and ``chunk`` of each.

    Every step whose tape is not held at the end of the first sweep runs again: (T - floor(m / M_a)) r. A chunk
    has no more steps than there is room for tapes: ceil(T / floor(m / M_a)) k. Infinite without room for one.
    """
    tapes = units // tape
    return max(0, steps - tapes) * recompute + -(-steps // tapes) * chunk if tapes else inf


@dataclass(frozen=True, kw_only=True)
class Candidate:
    """A schedule that ``build`` constructs, with the seconds it adds to the first sweep and its local bytes.

    ``local_bytes`` is an upper bound. Where ``extra`` is one, too, ``least_extra`` is the lower bound.
    """

    extra: float
    local_bytes: int
    build: Callable[[], Tree]
    least_extra: float | None = None


def list_improving(
    row: npt.NDArray[np.float64], tree: Tree, *, unit: int, least: npt.NDArray[np.float64] | None = None
) -> list[Candidate]:
    """Return a schedule for each number of units that allows a faster one than all fewer.

    Arguments:
        row: the seconds that each number of units adds; shape (units + 1,).
        tree: the schedule within all units; the others differ in their root alone.
        unit: the bytes of a unit.
        least: lower bounds of the seconds, likewise, if these are upper bounds.
    """
    before = np.concatenate([[inf], np.minimum.accumulate(row)[:-1]])
    return [
        Candidate(
            extra=float(row[units]),
            local_bytes=units * unit,
            build=partial(replace, tree, root=tree.root._replace(units=units)),
            least_extra=None if least is None else float(least[units]),
        )
        for units in np.flatnonzero(row < before).tolist()
    ]


@dataclass(frozen=True, kw_only=True)
class Family:
    """Schedules of one form within a budget; ``build`` constructs the one at a place.

    ``cost`` is that of their execution, up to rounding. ``regular`` ones loop with fixed strides; shape (n,).
    """

    cost: Cost
    regular: npt.NDArray[np.bool_]
    build: Callable[[int], Tree]

    def __len__(self) -> int:
        return len(self.regular)


def as_family(candidates: Sequence[Candidate], costs: StepCosts) -> Family:
    """Return candidates, none of which is known to be regular, as a family."""
    local_bytes = np.array([candidate.local_bytes for candidate in candidates], dtype=np.int64)
    cost = Cost(
        seconds=costs.sweep_seconds + np.array([candidate.extra for candidate in candidates]),
        local_peak_bytes=local_bytes + costs.resident_bytes,
        remote_peak_bytes=np.zeros_like(local_bytes),
    )
    regular = np.zeros(len(candidates), dtype=np.bool_)
    return Family(cost=cost, regular=regular, build=lambda place: candidates[place].build())


@dataclass(frozen=True, kw_only=True)
class SolvedProblem:
    """Schedules to choose from, and the least seconds that any schedule within the budget adds."""

    candidates: list[Candidate]
    least_extra: float
    exact: bool
    #: What is lost by rounding bytes up to units, as text.
    notes: tuple[str, ...] = ()
