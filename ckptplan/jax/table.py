"""Turns a schedule into a table of rows, so that one loop over the rows executes any schedule.

A row does, in this order: pull a remote state into a slot, load, advance, save, push a slot to remote memory,
record, reverse. What a row leaves out costs next to nothing. Slots and tapes are numbered here, so that the
program only indexes arrays.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field

import numpy as np
import numpy.typing as npt

from ckptplan.schedule.actions import Action, Advance, Backward, Free, Load, Record, Save, Tier, Transfer

#: The columns of a row, in the order of its work; -1 stands for no slot.
COLUMNS = (
    "pull_from",
    "pull_to",
    "load",
    "remote_load",
    "start",
    "stop",
    "save",
    "remote_save",
    "push_from",
    "push_to",
    "record_start",
    "record_stop",
    "reverse_start",
    "reverse_stop",
)
_PLACES = {name: place for place, name in enumerate(COLUMNS)}
#: The columns that name slots.
SLOT_COLUMNS = ("pull_from", "pull_to", "load", "remote_load", "save", "remote_save", "push_from", "push_to")
#: The stages of a row; an action whose stage is not after the last one begins a new row.
_PULL, _LOAD, _ADVANCE, _SAVE, _PUSH, _RECORD, _REVERSE = range(7)

Rows = npt.NDArray[np.int32]


@dataclass(frozen=True, kw_only=True)
class RowTable:
    """A schedule as two tables of rows: up to the first Backward, and from it."""

    steps: int
    forward: Rows
    backward: Rows
    #: The place of each step's tape.
    tape_of: Rows
    slots: int
    tapes: int
    remote_slots: int
    #: Whether a step runs twice before the first Backward.
    repeats: bool

    def uses(self, column: str) -> bool:
        """Return whether any row has a slot in a column."""
        place = _PLACES[column]
        return bool((self.forward[:, place] >= 0).any() or (self.backward[:, place] >= 0).any())


def make_table(actions: Iterable[Action], *, steps: int) -> RowTable:
    """Return the rows of a legal schedule."""
    writer = _Writer(steps=steps)
    for action in actions:
        writer.write(action)
    return writer.table()


@dataclass
class _Pool:
    """Numbers of slots: the last that became free is used first."""

    free: list[int] = field(default_factory=list)
    count: int = 0

    def take(self) -> int:
        if self.free:
            return self.free.pop()
        self.count += 1
        return self.count - 1


class _Writer:
    """Writes rows, action by action."""

    def __init__(self, *, steps: int) -> None:
        self.steps = steps
        self.forward: list[list[int]] = []
        self.backward: list[list[int]] = []
        self._rows = self.forward
        self._stage = _REVERSE
        self._live: dict[tuple[int, Tier], int] = {}
        self._pools = {Tier.LOCAL: _Pool(), Tier.REMOTE: _Pool()}
        self._tapes = _Pool()
        self.tape_of = np.zeros(steps, np.int32)
        self._frontier = 0
        self.repeats = False

    def write(self, action: Action) -> None:
        match action:
            case Load(state, tier):
                name = "load" if tier is Tier.LOCAL else "remote_load"
                self._put(_LOAD, **{name: self._live[state, tier]})
            case Advance(start, stop):
                self._run(start, stop)
                self._put(_ADVANCE, start=start, stop=stop)
            case Save(state, tier):
                slot = self._live[state, tier] = self._pools[tier].take()
                self._put(_SAVE, **{"save" if tier is Tier.LOCAL else "remote_save": slot})
            case Record(start, stop):
                self._run(start, stop)
                for step in range(start, stop):
                    self.tape_of[step] = self._tapes.take()
                self._put(_RECORD, record_start=start, record_stop=stop)
            case Backward(start, stop):
                if self._rows is self.forward:
                    self._rows, self._stage = self.backward, _REVERSE
                for step in range(start, stop):
                    self._tapes.free.append(int(self.tape_of[step]))
                self._put(_REVERSE, reverse_start=start, reverse_stop=stop)
            case Free(state, tier):
                self._pools[tier].free.append(self._live.pop((state, tier)))
            case Transfer(states, source, target):
                for state in states:
                    self._move(state, source, target)

    def _move(self, state: int, source: Tier, target: Tier) -> None:
        slot = self._live[state, target] = self._pools[target].take()
        given = self._live.pop((state, source))
        self._pools[source].free.append(given)
        if target is Tier.REMOTE:
            self._put(_PUSH, push_from=given, push_to=slot)
        else:
            self._put(_PULL, pull_from=given, pull_to=slot)

    def _run(self, start: int, stop: int) -> None:
        self.repeats |= self._rows is self.forward and start < self._frontier
        self._frontier = max(self._frontier, stop)

    def _put(self, stage: int, **values: int) -> None:
        if stage <= self._stage or not self._rows:
            self._rows.append([-1 if name in SLOT_COLUMNS else 0 for name in COLUMNS])
        self._stage = stage
        for name, value in values.items():
            self._rows[-1][_PLACES[name]] = value

    def table(self) -> RowTable:
        width = (0, len(COLUMNS))
        return RowTable(
            steps=self.steps,
            forward=np.array(self.forward, np.int32) if self.forward else np.zeros(width, np.int32),
            backward=np.array(self.backward, np.int32) if self.backward else np.zeros(width, np.int32),
            tape_of=self.tape_of,
            slots=self._pools[Tier.LOCAL].count,
            tapes=self._tapes.count,
            remote_slots=self._pools[Tier.REMOTE].count,
            repeats=self.repeats,
        )
