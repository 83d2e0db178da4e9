"""Turns a schedule into a table of rows, so that one loop over the rows executes any schedule.

A row has these actions, in this order: move a state from one slot to another, load, advance, save, record,
reverse. Actions that a row omits cost hardly any time. Slots and tapes are numbered here, so that the program
only indexes arrays.

Checkpoints and tapes share one buffer for each type of leaf.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from ckptplan.jax.leaves import Arrays, at, bytes_of, make_room, put_at, release
from ckptplan.model.plan import Plan
from ckptplan.planning.playback import schedule_of
from ckptplan.schedule.actions import Advance, Backward, Free, Load, Record, Save, Tier, Transfer
from ckptplan.schedule.schedule import Schedule

#: The columns of a row, in the order of its actions. Slots of local memory are numbered from 0 upwards, slots
#: of remote memory from ``REMOTE`` downwards. -1 stands for no slot, and for no steps.
COLUMNS = (
    "move_from",
    "move_to",
    "load",
    "advance_start",
    "advance_stop",
    "save",
    "record_start",
    "record_stop",
    "reverse_start",
    "reverse_stop",
)
REMOTE = -2
_PLACES = {name: place for place, name in enumerate(COLUMNS)}
#: The actions that run steps forwards.
_RUNS = ("advance", "record")
#: The stages of a row. An action begins a new row unless its stage is after the stage of the previous action.
_MOVE, _LOAD, _ADVANCE, _SAVE, _RECORD, _REVERSE = range(6)

Numbers = npt.NDArray[np.int32]


@dataclass(frozen=True)
class Places:
    """The places of the leaves of states, or of tapes, in buffers."""

    leaves: Arrays
    #: For each leaf its buffer, its place there with number 0, and the distance to its place with number 1.
    places: tuple[tuple[int, int, int], ...]

    def read(self, buffers: Arrays, number: Any) -> Arrays:
        """Return the state or the tape with a number."""
        held = [at(buffers[buffer], first + number * distance) for buffer, first, distance in self.places]
        return release(held, self.leaves)

    def write(self, buffers: Arrays, leaves: Arrays, number: Any) -> Arrays:
        """Return the buffers with a state or a tape written at a number."""
        changed = list(buffers)
        for leaf, (buffer, first, distance) in zip(leaves, self.places, strict=True):
            changed[buffer] = put_at(changed[buffer], leaf, first + number * distance)
        return tuple(changed)


class Layout:
    """The buffers of checkpoints and tapes. Leaves of the same shape and type share a buffer.

    Checkpoints grow from the front of a buffer and tapes from its back, so that a tape can use the place of a
    freed checkpoint.
    """

    def __init__(self, state: Arrays, tape: Arrays, held: npt.NDArray[np.int64]) -> None:
        """Take the leaves of a state and a tape. Rows of ``held`` are slots and tapes that are held at once."""
        self.kinds = tuple(dict.fromkeys((*state, *tape)))
        #: The number of leaves that each buffer has room for.
        self.rooms = [int((held @ (state.count(kind), tape.count(kind))).max()) for kind in self.kinds]
        self.states, self.tapes = self._place(state, is_tape=False), self._place(tape, is_tape=True)

    def _place(self, leaves: Arrays, *, is_tape: bool) -> Places:
        """Return the places of leaves from the front of the buffers, or of a tape from their back."""
        places = []
        for index, leaf in enumerate(leaves):
            buffer, place, distance = self.kinds.index(leaf), leaves[:index].count(leaf), leaves.count(leaf)
            last = self.rooms[buffer] - 1
            places.append((buffer, last - place, -distance) if is_tape else (buffer, place, distance))
        return Places(leaves, tuple(places))

    @property
    def byte_size(self) -> int:
        """The bytes of all buffers."""
        return sum(room * bytes_of(kind) for room, kind in zip(self.rooms, self.kinds, strict=True))

    def open(self, *, as_words: bool) -> Arrays:
        """Return empty buffers (``make_room``)."""
        rooms = zip(self.rooms, self.kinds, strict=True)
        return tuple(buffer for room, kind in rooms for buffer in make_room((kind,), room, as_words=as_words))


@dataclass(frozen=True, kw_only=True)
class RowTable:
    """A schedule as two tables of rows: before the first Backward, and from it on."""

    steps: int
    forward: Numbers
    backward: Numbers
    layout: Layout
    #: The number of the tape of each step.
    tape_of: Numbers
    remote_slots: int

    @property
    def recomputed_steps(self) -> int:
        """The number of runs of steps beyond the first run of each step."""
        rows = np.concatenate([self.forward, self.backward])
        runs = (rows[:, _PLACES[f"{action}_stop"]] - rows[:, _PLACES[f"{action}_start"]] for action in _RUNS)
        return int(sum(lengths.sum() for lengths in runs)) - self.steps


class _Pool:
    """Gives out numbers, the lowest free one first. All numbers in use are below ``end``."""

    def __init__(self) -> None:
        self.end = self.most = 0
        self._free: set[int] = set()

    def take(self) -> int:
        """Return a free number."""
        number = min(self._free, default=self.end)
        self._free.discard(number)
        self.end = max(self.end, number + 1)
        self.most = max(self.most, self.end)
        return number

    def give(self, number: int) -> None:
        """Take a number back."""
        self._free.add(number)
        while self.end - 1 in self._free:
            self.end -= 1
            self._free.remove(self.end)


def tabulate(plan: Plan | Schedule, state: Arrays, tape: Arrays) -> RowTable:
    """Return the rows of a plan or a schedule for states and tapes with these leaves."""
    schedule, steps = schedule_of(plan) if isinstance(plan, Plan) else plan, plan.steps
    pools, tapes = {Tier.LOCAL: _Pool(), Tier.REMOTE: _Pool()}, _Pool()
    #: The slot of each saved state, by its number and its tier.
    live: dict[tuple[int, Tier], int] = {}
    tape_of = np.zeros(steps, np.int32)
    held: set[tuple[int, int]] = set()
    parts: list[list[list[int]]] = [[], []]
    part, last_stage = 0, _REVERSE

    def put(stage: int, **values: int) -> None:
        """Put an action into the last row, or into a new one."""
        nonlocal last_stage
        if stage <= last_stage or not parts[part]:
            parts[part].append([-1] * len(COLUMNS))
        last_stage = stage
        for name, value in values.items():
            parts[part][-1][_PLACES[name]] = value

    def save(state: int, tier: Tier) -> int:
        """Return the slot in which a state is saved from now on."""
        slot = live[state, tier] = _number(pools[tier].take(), tier)
        return slot

    def free(state: int, tier: Tier) -> int:
        """Free the slot of a state, and return it."""
        slot = live.pop((state, tier))
        pools[tier].give(_number(slot, tier))
        return slot

    for action in schedule:
        match action:
            case Load(number, tier):
                put(_LOAD, load=live[number, tier])
            case Advance(start, stop):
                put(_ADVANCE, advance_start=start, advance_stop=stop)
            case Save(number, tier):
                put(_SAVE, save=save(number, tier))
            case Record(start, stop):
                tape_of[start:stop] = [tapes.take() for _ in range(start, stop)]
                put(_RECORD, record_start=start, record_stop=stop)
            case Backward(start, stop):
                part = 1
                for step in reversed(range(start, stop)):
                    tapes.give(int(tape_of[step]))
                put(_REVERSE, reverse_start=start, reverse_stop=stop)
            case Free(number, tier):
                free(number, tier)
            case Transfer(states, source, target):
                for number in states:
                    slot = save(number, target)
                    put(_MOVE, move_from=free(number, source), move_to=slot)
        held.add((pools[Tier.LOCAL].end, tapes.end))
    forward, backward = (np.array(rows, np.int32).reshape(-1, len(COLUMNS)) for rows in parts)
    return RowTable(
        steps=steps,
        forward=forward,
        backward=backward,
        layout=Layout(state, tape, np.array([*held], np.int64)),
        tape_of=tape_of,
        remote_slots=pools[Tier.REMOTE].most,
    )


def _number(slot: int, tier: Tier) -> int:
    """Return the number of a slot among all slots, given its number in its tier, or the reverse."""
    return slot if tier is Tier.LOCAL else REMOTE - slot
