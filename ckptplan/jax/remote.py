"""Remote memory of a program: arrays in the host memory of the device, or files.

What a program needs to reach it, the *run*, passes through its loops and from the forward to the backward pass
as a tuple of arrays. Those in host memory hold the states themselves. A run with files is a number: ordered
callbacks move its states. It ends with its backward pass, which drops them, and what a forward pass without a
backward pass leaves is dropped when the process ends.
"""

from __future__ import annotations

import itertools
import time
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import cache, partial
from pathlib import Path
from typing import Any, TypeAlias

import jax
import jax.numpy as jnp
import numpy as np
import numpy.typing as npt
from jax.experimental import io_callback

from ckptplan.errors import InputError
from ckptplan.jax.leaves import Arrays, from_words, hold, make_room, put, release, run_if, take, to_words
from ckptplan.storage.memory import find_cached_room
from ckptplan.storage.place import (
    Link,
    OffloadPlace,
    Rates,
    count_moves,
    find_links,
    time_moves,
    time_now,
)
from ckptplan.storage.remote_folder import StateFiles

Numbers: TypeAlias = npt.NDArray[Any]
_runs = itertools.count(1)


class RemoteStates(ABC):
    """Keeps states by their number, inside a program."""

    @abstractmethod
    def open(self, state: Sequence[Any], room: int) -> Arrays:
        """Begin a run with room for so many states with these leaves."""

    @abstractmethod
    def write(self, run: Arrays, number: Any, state: Sequence[jax.Array]) -> Arrays:
        """Return the run with a state stored."""

    @abstractmethod
    def read(self, run: Arrays, number: Any, like: Sequence[Any]) -> Arrays:
        """Return a stored state, whose leaves are like these."""

    def close(self, run: Arrays) -> None:  # noqa: B027 - arrays go by themselves
        """End a run."""


class HostStates(RemoteStates):
    """Keeps states in arrays in host memory, between which and the device JAX copies them."""

    def open(self, state: Sequence[Any], room: int) -> Arrays:
        return tuple(_move(leaf, jax.memory.Space.Host) for leaf in make_room(state, room))

    def write(self, run: Arrays, number: Any, state: Sequence[jax.Array]) -> Arrays:
        return put(run, [_move(hold(leaf), jax.memory.Space.Host) for leaf in state], number)

    def read(self, run: Arrays, number: Any, like: Sequence[Any]) -> Arrays:
        return release([_move(leaf, jax.memory.Space.Device) for leaf in take(run, number)], like)


def _move(leaf: jax.Array, space: Any) -> jax.Array:
    found: jax.Array = jax.device_put(leaf, space)
    return found


class FileStates(RemoteStates):
    """Keeps states of runs in files of a folder; each run has its own."""

    def __init__(self, place: OffloadPlace, *, through: bool = False) -> None:
        """Files are written ``through`` to their device if the system's cache has no room for them."""
        self._place, self._through = place, through
        self._kept: dict[int, _FileRun] = {}
        #: Why a callback failed, of which JAX raises a text alone.
        self.failure: InputError | None = None

    def open(self, state: Sequence[Any], room: int) -> Arrays:
        return (io_callback(self._open, jax.ShapeDtypeStruct((), np.int32), ordered=True),)

    def write(self, run: Arrays, number: Any, state: Sequence[jax.Array]) -> Arrays:
        io_callback(self._write, (), *run, number, *map(to_words, state), ordered=True)
        return run

    def read(self, run: Arrays, number: Any, like: Sequence[Any]) -> Arrays:
        shapes = jax.eval_shape(lambda *leaves: tuple(map(to_words, leaves)), *like)
        words = io_callback(partial(self._read, shapes), shapes, *run, number, ordered=True)
        return tuple(from_words(one, leaf) for one, leaf in zip(words, like, strict=True))

    def close(self, run: Arrays) -> None:
        io_callback(self._close, None, *run, ordered=True)

    def _open(self) -> Numbers:
        run, place = next(_runs), self._place
        assert place.folder is not None  # noqa: S101 - host memory has no files
        with self._end_if_failed():
            self._kept[run] = _FileRun(StateFiles(place.folder, through=self._through, field=place.field))
        return np.asarray(run, np.int32)

    def _write(self, run: Any, number: Any, *state: Any) -> tuple[()]:
        kept = self._find(run)
        kept.numbers.add(int(number))
        with self._end_if_failed(run):
            kept.files.write(int(number), list(map(_bytes_of, state)))
        return ()

    def _read(self, shapes: Sequence[Any], run: Any, number: Any) -> tuple[Numbers, ...]:
        kept = self._find(run, number)
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
        if kept is not None:
            kept.files.close()

    def close_all(self) -> None:
        """End all runs, outside of any program."""
        for run in list(self._kept):
            self._close(run)

    def _find(self, run: Any, number: Any = None) -> _FileRun:
        """Return a run, with a state if one is asked for."""
        kept = self._kept.get(int(run))
        if kept is None or (number is not None and int(number) not in kept.numbers):
            raise InputError(
                f"the states of run {int(run)} in remote memory are gone",
                field="plan",
                accepted="one backward pass for each forward pass, outside of jax.lax.scan",
            )
        return kept


@dataclass(frozen=True)
class _FileRun:
    """The files of a run, and the numbers of the states in them."""

    files: StateFiles
    numbers: set[int] = field(default_factory=set)


def _bytes_of(leaf: Any) -> memoryview:
    return np.ascontiguousarray(leaf).reshape(-1).view(np.uint8).data


def _name_runtime() -> str:
    """Name what moves states: rates of one device are not those of another."""
    return f"jax on {jax.default_backend()}"


def find_ways(place: OffloadPlace | None, *, state_bytes: int, steps: int, limit: int) -> tuple[Link, ...]:
    """Return how the states of T ``steps`` can use a place, which is timed unless it was within a day.

    Callbacks do not run beside compute. Raises InputError if the place cannot be used.
    """
    room = find_cached_room(limit)
    return find_links(
        place, state_bytes=state_bytes, steps=steps, room=room, clock=_time_states, runtime=_name_runtime()
    )


def time_place(folder: Path | None, *, state_bytes: int, states: int) -> Link:
    """Time a folder, or host memory, now, as programs use it for so many states at once. Raises InputError."""
    return time_now(folder, state_bytes=state_bytes, states=states, clock=_time_states, runtime=_name_runtime())


def make_remote(place: OffloadPlace | None, *, through: bool) -> RemoteStates:
    """Return the remote memory of a loop: a place, or host memory if it is None. Raises InputError."""
    if place is not None and place.folder is not None:
        return FileStates(place, through=through)
    rehearse_host("remote_dir" if place is None else place.field, jax.default_backend())
    return HostStates()


@cache
def rehearse_host(field: str, backend: str) -> None:
    """Move numbers to host memory and back in loops within loops. Raises InputError if they change."""
    states, count = HostStates(), 3
    sent = np.random.default_rng(0).random((count, 16), np.float32)

    def move(given: jax.Array) -> jax.Array:
        def send(number: Any, run: Arrays) -> Arrays:
            sent: Arrays = run_if(number >= 0, lambda run: states.write(run, number, [given[number]]), run)
            return sent

        def fetch(number: Any, found: Arrays) -> Arrays:
            back = run_if(number >= 0, lambda old: states.read(run, number, old), (given[0],))
            return put(found, back, number)

        run = jax.lax.fori_loop(0, count, send, states.open([given[0]], count))
        (found,) = jax.lax.fori_loop(0, count, fetch, (jnp.zeros_like(given),))
        return jnp.asarray(found)

    try:
        with jax.ensure_compile_time_eval():
            why = "numbers came back changed" * bool((np.asarray(jax.jit(move)(sent)) != sent).any())
    except (jax.errors.JaxRuntimeError, ValueError, NotImplementedError) as error:
        why = str(error).splitlines()[0]
    if why:
        raise InputError(
            f"host memory cannot be used inside programs on {backend}: {why}",
            field=field,
            accepted="a folder",
        )


def _time_states(place: OffloadPlace, state_bytes: int, *, through: bool, most: int) -> Rates:
    """Return the seconds of writing a state to a place, and of reading it, in programs as a loop has them.

    Raises InputError if the place fails.
    """
    time_them = _time_host if place.folder is None else partial(_time_files, place, through=through)
    with jax.ensure_compile_time_eval():
        return time_them(jax.ShapeDtypeStruct((state_bytes,), jnp.uint8), most)


def _time_host(like: jax.ShapeDtypeStruct, most: int) -> Rates:
    """Time a program that moves several states, as a call of one takes longer than a small state."""
    rehearse_host("offload", jax.default_backend())
    states, count = HostStates(), count_moves(like.size, most)

    def send(state: jax.Array) -> Arrays:
        def write(number: Any, carry: tuple[Arrays, jax.Array]) -> tuple[Arrays, jax.Array]:
            # XLA would move a state that stays the same once, before the loop, and fail for a GPU.
            run, state = carry
            return states.write(run, number, [state]), state ^ 1

        run, _ = jax.lax.fori_loop(0, count, write, (states.open([like], count), state))
        return tuple(run)

    def fetch(run: Arrays) -> jax.Array:
        def add(number: Any, total: jax.Array) -> jax.Array:
            return total ^ states.read(run, number, [like])[0]

        return jnp.asarray(jax.lax.fori_loop(0, count, add, jnp.zeros(like.shape, like.dtype)))

    state = jnp.ones(like.shape, like.dtype)
    run, write = _time_twice(jax.jit(send), state)
    _, read = _time_twice(jax.jit(fetch), run)
    return Rates(write / count, read / count)


def _time_twice(program: Callable[[Any], Any], given: Any) -> tuple[Any, float]:
    """Return what a program returns, and the seconds of its second run, since it is compiled for the first."""
    jax.block_until_ready(program(given))
    began = time.perf_counter()
    found = jax.block_until_ready(program(given))
    return found, max(time.perf_counter() - began, 1e-9)


def _time_files(place: OffloadPlace, like: jax.ShapeDtypeStruct, most: int, *, through: bool) -> Rates:
    states = FileStates(place, through=through)

    def finish(moved: Any) -> None:
        jax.block_until_ready(moved)
        jax.effects_barrier()

    try:
        run, state = jax.jit(lambda: states.open([like], most))(), jnp.ones(like.shape, like.dtype)
        write = jax.jit(lambda number, state: states.write(run, number, [state]))
        read = jax.jit(lambda number: states.read(run, number, [like]))
        # Compiled before they are timed.
        finish(write(0, state))
        finish(read(0))
        return time_moves(
            lambda number: finish(write(number, state)),
            lambda number: finish(read(number)),
            count=count_moves(like.size, most),
        )
    except jax.errors.JaxRuntimeError:
        if states.failure is None:
            raise
        raise states.failure from None
    finally:
        states.close_all()
