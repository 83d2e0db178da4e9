"""Reads and writes checkpoints and tapes in the buffers of a program, at the places of a table."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import numpy.typing as npt
from jax import lax

from ckptplan.jax.layout import Position
from ckptplan.jax.leaves import Arrays, zeros_of
from ckptplan.jax.table import RowTable


class BufferStore:
    """The buffers of a program as a functional store: each write returns the buffers that follow."""

    def __init__(self, table: RowTable) -> None:
        self._table = table
        self._tape_of = jnp.asarray(table.tape_of)
        self._states = _Leaves(table.layout.state, table.state_places)
        self._tapes = _Leaves(table.layout.tape, table.tape_places)

    def make(self) -> Arrays:
        """Return buffers of zeros."""
        sizes = zip(self._table.rooms, self._table.layout.buffers, strict=True)
        return tuple(zeros_of(leaf, room) for room, leaf in sizes)

    def load(self, buffers: Arrays, slot: Any) -> Arrays:
        """Return the checkpoint in a slot."""
        return self._states.read(buffers, slot)

    def save(self, buffers: Arrays, state: Arrays, slot: Any) -> Arrays:
        """Return the buffers with a state in a slot; a negative slot leaves them as they are."""
        return self._states.write(buffers, state, jnp.maximum(slot, 0), only_if=slot >= 0)

    def put(self, buffers: Arrays, state: Arrays, slot: Any) -> Arrays:
        """Return the buffers with a state in a slot."""
        return self._states.write(buffers, state, slot)

    def record(self, buffers: Arrays, tape: Arrays, t: Any) -> Arrays:
        """Return the buffers with the tape of step t."""
        return self._tapes.write(buffers, tape, self._tape_of[t])

    def tape(self, buffers: Arrays, t: Any) -> Arrays:
        """Return the tape of step t."""
        return self._tapes.read(buffers, self._tape_of[t])


class _Leaves:
    """Leaves at the places of a row, which is given by its number."""

    def __init__(self, positions: Sequence[Position], places: npt.NDArray[np.int32]) -> None:
        self._positions = positions
        numbers = np.arange(len(places), dtype=np.int32)[:, None]
        #: None if the number of a row is the place of each leaf.
        self._places = None if np.array_equal(places, numbers) else jnp.asarray(places)

    def read(self, buffers: Arrays, number: Any) -> Arrays:
        places = self._places_of(number)
        return tuple(
            _at(buffers[buffer], place) for (buffer, _), place in zip(self._positions, places, strict=True)
        )

    def write(
        self, buffers: Arrays, leaves: Sequence[jax.Array], number: Any, *, only_if: Any = None
    ) -> Arrays:
        changed = list(buffers)
        places = self._places_of(number)
        for (buffer, _), place, leaf in zip(self._positions, places, leaves, strict=True):
            if only_if is not None:
                # What is there is read after the writes before: of unordered ones, the compiler makes a copy.
                leaf = jnp.where(only_if, leaf, _at(changed[buffer], place))  # noqa: PLW2901
            changed[buffer] = lax.dynamic_update_index_in_dim(changed[buffer], leaf, place, 0)
        return tuple(changed)

    def _places_of(self, number: Any) -> list[Any]:
        if self._places is None:
            return [number] * len(self._positions)
        row = self._places[number]
        return [row[column] for _, column in self._positions]


def _at(buffer: jax.Array, place: Any) -> jax.Array:
    found: jax.Array = lax.dynamic_index_in_dim(buffer, place, keepdims=False)
    return found
