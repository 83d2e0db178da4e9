"""Which buffers hold the leaves of checkpoints and of tapes, and who gets which place in them.

Separate buffers, one for each leaf, are the quickest, and take the most checkpoints and the most tapes that a
schedule ever holds. Few schedules hold both at one time. With shared buffers, one for all leaves of a shape and
type, a place that a checkpoint leaves can hold a part of a tape.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

import jax
import numpy as np
import numpy.typing as npt

#: A buffer, and the column of a row of places that says where in the buffer a leaf is.
Position = tuple[int, int]
Leaves = tuple[jax.ShapeDtypeStruct, ...]


@dataclass(frozen=True, kw_only=True)
class Layout:
    """The buffers of a program, and the positions of leaves of states and tapes in them."""

    #: The leaf that each buffer has room for a number of, and the pool that its places come from.
    buffers: Leaves
    pools: tuple[int, ...]
    state: tuple[Position, ...]
    tape: tuple[Position, ...]
    #: The pool of each column.
    state_columns: tuple[int, ...]
    tape_columns: tuple[int, ...]

    @property
    def pool_count(self) -> int:
        """The number of pools of places."""
        return 1 + max((*self.state_columns, *self.tape_columns), default=-1)

    @classmethod
    def separate(cls, state: Leaves, tape: Leaves) -> Layout:
        """Return a buffer for each leaf: places in one column for states, and in one for tapes."""
        return cls(
            buffers=(*state, *tape),
            pools=(0,) * len(state) + (1,) * len(tape),
            state=tuple((place, 0) for place in range(len(state))),
            tape=tuple((len(state) + place, 0) for place in range(len(tape))),
            state_columns=(0,),
            tape_columns=(1,),
        )

    @classmethod
    def shared(cls, state: Leaves, tape: Leaves) -> Layout:
        """Return a buffer for each shape and type: a column for each leaf."""
        kinds = list(dict.fromkeys((*state, *tape)))
        of_state, of_tape = (tuple(map(kinds.index, leaves)) for leaves in (state, tape))
        return cls(
            buffers=tuple(kinds),
            pools=tuple(range(len(kinds))),
            state=tuple((kind, column) for column, kind in enumerate(of_state)),
            tape=tuple((kind, column) for column, kind in enumerate(of_tape)),
            state_columns=of_state,
            tape_columns=of_tape,
        )


@dataclass
class Pool:
    """Numbers of places: the last that became free is used first."""

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
    """Rows of places, one place for each column; equal rows have one number."""

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

    def table(self) -> npt.NDArray[np.int32]:
        """Return the rows by their numbers."""
        return np.array(self._rows, np.int32).reshape(len(self._rows), len(self._pools))
