"""Remote memory of a program: states in host memory or in files, moved by ordered callbacks.

A run begins with the forward pass and ends with its backward pass, which drops what is stored. What a forward
pass without a backward pass leaves is dropped when the process ends.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any, TypeAlias

import jax
import jax.numpy as jnp
import numpy as np
import numpy.typing as npt
from jax.experimental import io_callback

from ckptplan.errors import InputError
from ckptplan.jax.leaves import Arrays, from_words, to_words
from ckptplan.storage.memory import find_cached_room
from ckptplan.storage.place import Link, OffloadPlace, Rates, find_links, time_moves, time_now
from ckptplan.storage.remote_folder import StateFiles

Numbers: TypeAlias = npt.NDArray[Any]
_runs = itertools.count(1)


class RemoteStates:
    """Keeps states of runs by their number; each run has its own, in host memory or in files of a folder."""

    def __init__(self, place: OffloadPlace, *, through: bool = False) -> None:
        """Files are written ``through`` to their device if the system's cache has no room for them."""
        self._place, self._through = place, through
        self._kept: dict[int, _RemoteRun] = {}
        #: Why a callback failed, of which JAX raises a text alone.
        self.failure: InputError | None = None

    def open(self) -> Any:
        """Begin a run and return its number, inside a program."""
        return io_callback(self._open, jax.ShapeDtypeStruct((), np.int32), ordered=True)

    def write(self, run: Any, number: Any, state: Sequence[jax.Array]) -> None:
        """Store a state of a run, inside a program."""
        io_callback(self._write, (), run, number, *map(to_words, state), ordered=True)

    def read(self, run: Any, number: Any, like: Sequence[Any]) -> Arrays:
        """Return a stored state of a run, inside a program."""
        shapes = jax.eval_shape(lambda *leaves: tuple(map(to_words, leaves)), *like)
        words = io_callback(partial(self._read, shapes), shapes, run, number, ordered=True)
        return tuple(from_words(one, leaf) for one, leaf in zip(words, like, strict=True))

    def close(self, run: Any) -> None:
        """End a run, inside a program."""
        io_callback(self._close, None, run, ordered=True)

    def _open(self) -> Numbers:
        run, place = next(_runs), self._place
        files = None
        if place.folder is not None:
            with self._end_if_failed():
                files = StateFiles(place.folder, through=self._through, field=place.field)
        self._kept[run] = _RemoteRun(files=files)
        return np.asarray(run, np.int32)

    def _write(self, run: Any, number: Any, *state: Any) -> tuple[()]:
        kept = self._find(run)
        if kept.files is None:
            kept.states[int(number)] = [np.array(leaf) for leaf in state]
            return ()
        kept.states[int(number)] = []
        with self._end_if_failed(run):
            kept.files.write(int(number), list(map(_bytes_of, state)))
        return ()

    def _read(self, shapes: Sequence[Any], run: Any, number: Any) -> tuple[Numbers, ...]:
        kept = self._find(run, number)
        if kept.files is None:
            return tuple(kept.states[int(number)])
        state = tuple(np.empty(one.shape, one.dtype) for one in shapes)
        with self._end_if_failed(run):
            kept.files.read(int(number), list(map(_bytes_of, state)))
        return state

    @contextmanager
    def _end_if_failed(self, run: Any = None) -> Iterator[None]:
        """End a run whose files fail, and note why."""
        try:
            yield
        except InputError as error:
            self.failure = error
            if run is not None:
                self._close(run)
            raise

    def _close(self, run: Any) -> None:
        kept = self._kept.pop(int(run), None)
        if kept is not None and kept.files is not None:
            kept.files.close()

    def _find(self, run: Any, number: Any = None) -> _RemoteRun:
        """Return a run, with a state if one is asked for."""
        kept = self._kept.get(int(run))
        if kept is None or (number is not None and int(number) not in kept.states):
            raise InputError(
                f"the states of run {int(run)} in remote memory are gone",
                field="plan",
                accepted="one backward pass for each forward pass, outside of jax.lax.scan",
            )
        return kept


@dataclass(frozen=True, kw_only=True)
class _RemoteRun:
    """The states of a run by their numbers, in host memory, or in files."""

    files: StateFiles | None
    states: dict[int, list[Numbers]] = field(default_factory=dict)


def _bytes_of(leaf: Any) -> memoryview:
    return np.ascontiguousarray(leaf).reshape(-1).view(np.uint8).data


def find_ways(place: OffloadPlace | None, *, state_bytes: int, steps: int, limit: int) -> tuple[Link, ...]:
    """Return how the states of T ``steps`` can use a place, which is timed unless it was within a day.

    Callbacks do not run beside compute. Raises InputError if the place cannot be used.
    """
    room = find_cached_room(limit)
    return find_links(place, state_bytes=state_bytes, steps=steps, room=room, clock=_time_states, runtime="jax")


def time_place(folder: Path | None, *, state_bytes: int, states: int) -> Link:
    """Time a folder, or host memory, now, as programs use it for so many states at once. Raises InputError."""
    return time_now(folder, state_bytes=state_bytes, states=states, clock=_time_states, runtime="jax")


def _time_states(place: OffloadPlace, state_bytes: int, *, through: bool, most: int) -> Rates:
    """Return the seconds of writing a state to a place, and of reading it, in programs as a loop has them.

    Raises InputError if the place fails.
    """
    states = RemoteStates(place, through=through)
    like = jax.ShapeDtypeStruct((state_bytes,), jnp.uint8)

    def finish(moved: Any) -> None:
        jax.block_until_ready(moved)
        jax.effects_barrier()

    try:
        with jax.ensure_compile_time_eval():
            run, state = int(jax.jit(states.open)()), jnp.ones(like.shape, like.dtype)
            write = jax.jit(lambda number, state: states.write(run, number, [state]))
            read = jax.jit(lambda number: states.read(run, number, [like]))
            # Compiled before they are timed.
            finish(write(0, state))
            finish(read(0))
            return time_moves(
                lambda number: finish(write(number, state)),
                lambda number: finish(read(number)),
                state_bytes=state_bytes,
                most=most,
            )
    except jax.errors.JaxRuntimeError:
        if states.failure is None:
            raise
        raise states.failure from None
    finally:
        for one in list(states._kept):
            states._close(one)
