"""Turns a schedule into a table of rows, so that one loop over the rows executes any schedule.

A row has these actions, in this order: pull a remote state into a slot, load, advance, save, push a slot to
remote memory, record, reverse. Actions that a row omits cost hardly any time. Slots and tapes get their places
in the buffers here, so that the program only indexes arrays.

Separate buffers, one for each leaf, need no table of places. They have room for the most checkpoints and the
most tapes of a schedule, though few schedules hold both at the same time. With shared buffers, one for all
leaves of a shape and type, a tape can use the place of a freed checkpoint.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field, replace
from functools import lru_cache

import jax
import numpy as np
import numpy.typing as npt

from ckptplan.jax.jaxprs import ById
from ckptplan.jax.leaves import Arrays, byte_size
from ckptplan.model.plan import Plan
from ckptplan.planning.playback import schedule_of
from ckptplan.schedule.actions import Action, Advance, Backward, Free, Load, Record, Save, Tier, Transfer

#: The columns of a row, in the order of its actions. -1 stands for no slot, and for no steps.
COLUMNS = (
    "pull_from",
    "pull_to",
    "load",
    "remote_load",
    "advance_start",
    "advance_stop",
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
#: The stages of a row. An action begins a new row unless its stage is after the stage of the previous action.
_PULL, _LOAD, _ADVANCE, _SAVE, _PUSH, _RECORD, _REVERSE = range(7)

Numbers = npt.NDArray[np.int32]


@dataclass(frozen=True, kw_only=True)
class Layout:
    """The buffers of a program, and the index of the buffer for each leaf of a state and of a tape."""

    #: The type of leaf in each buffer.
    buffers: Arrays
    state: tuple[int, ...]
    tape: tuple[int, ...]

    @classmethod
    def separate(cls, state: Arrays, tape: Arrays) -> Layout:
        """Return the layout with a buffer for each leaf."""
        numbers = tuple(range(len(state) + len(tape)))
        return cls(buffers=(*state, *tape), state=numbers[: len(state)], tape=numbers[len(state) :])

    @classmethod
    def shared(cls, state: Arrays, tape: Arrays) -> Layout:
        """Return the layout with a buffer for each shape and type."""
        kinds = tuple(dict.fromkeys((*state, *tape)))
        of_state, of_tape = (tuple(map(kinds.index, leaves)) for leaves in (state, tape))
        return cls(buffers=kinds, state=of_state, tape=of_tape)


@dataclass
class Pool:
    """The places in a buffer. The place that was freed last is reused first."""

    free: list[int] = field(default_factory=list)
    count: int = 0

    def take(self) -> int:
        """Return a free place."""
        if self.free:
            return self.free.pop()
        self.count += 1
        return self.count - 1

    def give(self, place: int) -> None:
        """Take a place back."""
        self.free.append(place)


class PlaceRows:
    """Rows of places, one place from each pool. Equal rows have the same number."""

    def __init__(self, pools: Sequence[Pool]) -> None:
        self._pools = pools
        self._numbers: dict[tuple[int, ...], int] = {}
        self._rows: list[tuple[int, ...]] = []

    def take(self) -> int:
        """Return the number of a row of free places."""
        row = tuple(pool.take() for pool in self._pools)
        number = self._numbers.setdefault(row, len(self._rows))
        if number == len(self._rows):
            self._rows.append(row)
        return number

    def give(self, number: int) -> None:
        """Take the places of a row back."""
        for pool, place in zip(reversed(self._pools), reversed(self._rows[number]), strict=True):
            pool.give(place)

    def table(self) -> Numbers:
        """Return the rows by their numbers."""
        return np.array(self._rows, np.int32).reshape(len(self._rows), len(self._pools))


@dataclass(frozen=True, kw_only=True)
class RowTable:
    """A schedule as two tables of rows: before the first Backward, and from it on."""

    steps: int
    forward: Numbers
    backward: Numbers
    layout: Layout
    #: The number of leaves that each buffer has room for.
    rooms: tuple[int, ...]
    #: The places of the leaves of each slot, and of each tape; and the number of the tape of each step.
    state_places: Numbers
    tape_places: Numbers
    tape_of: Numbers
    remote_slots: int
    #: The most bytes of checkpoints and tapes that are held at one time.
    held_bytes: int

    @property
    def buffer_bytes(self) -> int:
        """The bytes of all buffers."""
        sizes = zip(self.rooms, self.layout.buffers, strict=True)
        return sum(room * byte_size([leaf]) for room, leaf in sizes)


@lru_cache(maxsize=4)
def tabulate(plan: ById, state: Arrays, tape: Arrays) -> RowTable:
    """Return the table of rows of a plan or a schedule, from a cache if possible."""
    schedule = schedule_of(plan.value) if isinstance(plan.value, Plan) else plan.value
    return make_table(schedule, steps=plan.value.steps, state=state, tape=tape)


def make_table(schedule: Iterable[Action], *, steps: int, state: Arrays, tape: Arrays) -> RowTable:
    """Return the rows of a legal schedule for states and tapes with these leaves.

    Buffers are separate, or shared if that saves memory.
    """
    # In separate buffers, all leaves have equal places. So write the table for a single leaf with all bytes.
    whole = [(jax.ShapeDtypeStruct((byte_size(leaves),), np.uint8),) for leaves in (state, tape)]
    table = _write(schedule, steps=steps, layout=Layout.separate(*whole))
    if table.buffer_bytes > table.held_bytes:
        shared = _write(schedule, steps=steps, layout=Layout.shared(state, tape))
        if shared.buffer_bytes < table.buffer_bytes:
            return shared
    slots, tapes = table.rooms
    rooms = (slots,) * len(state) + (tapes,) * len(tape)
    return replace(table, layout=Layout.separate(state, tape), rooms=rooms)


def _write(actions: Iterable[Action], *, steps: int, layout: Layout) -> RowTable:
    writer = _Writer(steps=steps, layout=layout)
    for action in actions:
        writer.write(action)
    return writer.table()


class _Writer:
    """Writes the rows of a schedule, action by action."""

    def __init__(self, *, steps: int, layout: Layout) -> None:
        self.steps = steps
        self._layout = layout
        self.forward: list[list[int]] = []
        self.backward: list[list[int]] = []
        self._rows = self.forward
        self._stage = _REVERSE
        self._live: dict[tuple[int, Tier], int] = {}
        self._pools = [Pool() for _ in layout.buffers]
        self._remote = Pool()
        self._slots = {
            Tier.LOCAL: PlaceRows([self._pools[buffer] for buffer in layout.state]),
            Tier.REMOTE: PlaceRows([self._remote]),
        }
        self._tapes = PlaceRows([self._pools[buffer] for buffer in layout.tape])
        self._tape_of = np.zeros(steps, np.int32)
        self._state_bytes, self._tape_bytes = (
            byte_size([layout.buffers[buffer] for buffer in leaves]) for leaves in (layout.state, layout.tape)
        )
        self._held = self._most = 0

    def write(self, action: Action) -> None:
        match action:
            case Load(state, tier):
                name = "load" if tier is Tier.LOCAL else "remote_load"
                self._put(_LOAD, **{name: self._live[state, tier]})
            case Advance(start, stop):
                self._put(_ADVANCE, advance_start=start, advance_stop=stop)
            case Save(state, tier):
                slot = self._live[state, tier] = self._take(tier)
                self._put(_SAVE, **{"save" if tier is Tier.LOCAL else "remote_save": slot})
            case Record(start, stop):
                for step in range(start, stop):
                    self._tape_of[step] = self._tapes.take()
                self._hold((stop - start) * self._tape_bytes)
                self._put(_RECORD, record_start=start, record_stop=stop)
            case Backward(start, stop):
                if self._rows is self.forward:
                    self._rows, self._stage = self.backward, _REVERSE
                for step in range(start, stop):
                    self._tapes.give(self._tape_of[step])
                self._hold((start - stop) * self._tape_bytes)
                self._put(_REVERSE, reverse_start=start, reverse_stop=stop)
            case Free(state, tier):
                self._give(tier, self._live.pop((state, tier)))
            case Transfer(states, source, target):
                for state in states:
                    self._move(state, source, target)

    def _take(self, tier: Tier) -> int:
        if tier is Tier.LOCAL:
            self._hold(self._state_bytes)
        return self._slots[tier].take()

    def _give(self, tier: Tier, slot: int) -> None:
        if tier is Tier.LOCAL:
            self._hold(-self._state_bytes)
        self._slots[tier].give(slot)

    def _hold(self, size: int) -> None:
        self._held += size
        self._most = max(self._most, self._held)

    def _move(self, state: int, source: Tier, target: Tier) -> None:
        slot = self._live[state, target] = self._take(target)
        given = self._live.pop((state, source))
        self._give(source, given)
        if target is Tier.REMOTE:
            self._put(_PUSH, push_from=given, push_to=slot)
        else:
            self._put(_PULL, pull_from=given, pull_to=slot)

    def _put(self, stage: int, **values: int) -> None:
        if stage <= self._stage or not self._rows:
            self._rows.append([-1] * len(COLUMNS))
        self._stage = stage
        for name, value in values.items():
            self._rows[-1][_PLACES[name]] = value

    def table(self) -> RowTable:
        return RowTable(
            steps=self.steps,
            forward=np.array(self.forward, np.int32).reshape(-1, len(COLUMNS)),
            backward=np.array(self.backward, np.int32).reshape(-1, len(COLUMNS)),
            layout=self._layout,
            rooms=tuple(pool.count for pool in self._pools),
            state_places=self._slots[Tier.LOCAL].table(),
            tape_places=self._tapes.table(),
            tape_of=self._tape_of,
            remote_slots=self._remote.count,
            held_bytes=self._most,
        )
