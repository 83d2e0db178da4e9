"""Turns a schedule into a table of rows, so that one loop over the rows executes any schedule.

A row has these actions, in this order: move a state from one slot to another, load, advance, save, record,
reverse. Actions that a row omits cost hardly any time. Slots and tapes are numbered here, so that the program
only indexes arrays.

Each leaf has a separate buffer for checkpoints and another one for tapes. Each buffer is as large as the
schedule ever needs, though few schedules fill both at the same time. A shared buffer serves all leaves of one
shape and type. Checkpoints grow from its front and tapes from its back, so that a tape can use the place of a
freed checkpoint.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import lru_cache

import numpy as np
import numpy.typing as npt

from ckptplan.jax.jaxprs import ById
from ckptplan.jax.leaves import Arrays, bytes_of
from ckptplan.model.plan import Plan
from ckptplan.planning.playback import schedule_of
from ckptplan.schedule.actions import Advance, Backward, Free, Load, Record, Save, Tier, Transfer

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


@dataclass(frozen=True, kw_only=True)
class Layout:
    """The buffers of a program, and the index of the buffer for each leaf of a state and of a tape."""

    #: The type of leaf in each buffer, and the number of leaves that it has room for.
    buffers: Arrays
    rooms: tuple[int, ...]
    state: tuple[int, ...]
    tape: tuple[int, ...]

    @classmethod
    def of(cls, state: Arrays, tape: Arrays, *, held: npt.NDArray[np.int64], is_shared: bool) -> Layout:
        """Return the layout with a buffer for each shape and type if it ``is_shared``, else for each leaf.

        The rows of ``held`` are numbers of slots and of tapes that are held at the same time.
        """
        leaves = *state, *tape
        buffers = tuple(dict.fromkeys(leaves)) if is_shared else leaves
        numbers = tuple(map(buffers.index, leaves)) if is_shared else tuple(range(len(leaves)))
        of_state, of_tape = numbers[: len(state)], numbers[len(state) :]
        counts = ((of_state.count(buffer), of_tape.count(buffer)) for buffer in range(len(buffers)))
        rooms = tuple(int((held @ count).max()) for count in counts)
        return cls(buffers=buffers, rooms=rooms, state=of_state, tape=of_tape)

    @property
    def is_shared(self) -> bool:
        """Whether a buffer holds several leaves of a state or of a tape."""
        return len(self.buffers) < len(self.state) + len(self.tape)

    @property
    def byte_size(self) -> int:
        """The bytes of all buffers."""
        return sum(room * bytes_of(leaf) for room, leaf in zip(self.rooms, self.buffers, strict=True))


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


@lru_cache(maxsize=4)
def tabulate(plan: ById, state: Arrays, tape: Arrays) -> RowTable:
    """Return the rows of a plan or a schedule for states and tapes with these leaves, from a cache if possible.

    Buffers are separate, or shared if that saves memory.
    """
    schedule = schedule_of(plan.value) if isinstance(plan.value, Plan) else plan.value
    steps = plan.value.steps
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
    counts = np.array([*held], np.int64)
    layouts = (Layout.of(state, tape, held=counts, is_shared=is_shared) for is_shared in (False, True))
    return RowTable(
        steps=steps,
        forward=forward,
        backward=backward,
        layout=min(layouts, key=lambda layout: layout.byte_size),
        tape_of=tape_of,
        remote_slots=pools[Tier.REMOTE].most,
    )


def _number(slot: int, tier: Tier) -> int:
    """Return the number of a slot among all slots, given its number in its tier, or the reverse."""
    return slot if tier is Tier.LOCAL else REMOTE - slot
