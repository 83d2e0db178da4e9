"""Remote memory of a program: states in host memory or in files, moved by ordered callbacks.

A run begins with the forward pass and ends with its backward pass, which drops what is stored. What a forward
pass without a backward pass leaves is dropped when the process ends.
"""

from __future__ import annotations

import itertools
import os
from abc import ABC, abstractmethod
from collections.abc import Sequence
from pathlib import Path
from typing import Any, NoReturn, TypeAlias

import jax
import jax.numpy as jnp
import numpy as np
import numpy.typing as npt
from jax import lax
from jax.custom_batching import custom_vmap
from jax.experimental import io_callback

from ckptplan.errors import InputError
from ckptplan.jax.leaves import Arrays, from_words, to_words
from ckptplan.storage.remote_folder import RemoteFolder, make_parent
from ckptplan.units import format_bytes

Numbers: TypeAlias = npt.NDArray[Any]
_runs = itertools.count(1)


class RemoteStates(ABC):
    """Keeps states of runs by their number; each run has its own."""

    def open(self) -> Any:
        """Begin a run and return its number, inside a program."""
        return io_callback(self._open, jax.ShapeDtypeStruct((), np.int32), ordered=True)

    def write(self, run: Any, place: Any, state: Sequence[jax.Array]) -> None:
        """Store a state of a run, inside a program."""
        io_callback(self._write, (), run, place, *map(to_words, state), ordered=True)

    def read(self, run: Any, place: Any, like: Sequence[jax.Array]) -> Arrays:
        """Return a stored state of a run, inside a program."""
        shapes = jax.eval_shape(lambda *leaves: tuple(map(to_words, leaves)), *like)
        words = io_callback(self._read, shapes, run, place, ordered=True)
        return tuple(from_words(one, leaf) for one, leaf in zip(words, like, strict=True))

    def close(self, run: Any) -> None:
        """End a run, inside a program."""
        io_callback(self._close, None, run, ordered=True)

    @abstractmethod
    def _begin(self, run: int) -> None: ...

    @abstractmethod
    def _put(self, run: int, place: int, leaves: list[Numbers]) -> None: ...

    @abstractmethod
    def _get(self, run: int, place: int) -> list[Numbers]: ...

    @abstractmethod
    def _end(self, run: int) -> None: ...

    def _open(self) -> Numbers:
        run = next(_runs)
        self._begin(run)
        return np.asarray(run, np.int32)

    def _write(self, run: Any, place: Any, *state: Any) -> tuple[()]:
        self._put(int(run), int(place), [np.array(leaf) for leaf in state])
        return ()

    def _read(self, run: Any, place: Any) -> tuple[Numbers, ...]:
        return tuple(self._get(int(run), int(place)))

    def _close(self, run: Any) -> None:
        self._end(int(run))


def refuse_batches(leaves: Sequence[jax.Array]) -> None:
    """Raise InputError under ``jax.vmap``: each run of a batch would need a store of its own."""

    @custom_vmap
    def look(*_: Any) -> Any:
        return jnp.int32(0)

    def refuse(*_: Any) -> NoReturn:
        raise InputError(
            "keeps states in remote memory, which jax.vmap cannot batch",
            field="plan",
            accepted="a batch as an axis of the state, or a plan with local checkpoints only",
        )

    look.def_vmap(refuse)
    look(*map(lax.stop_gradient, leaves))


def _gone(run: int) -> InputError:
    return InputError(
        f"run {run} has ended: its states in remote memory are gone",
        field="plan",
        accepted="one backward pass for each forward pass",
    )


class HostRemote(RemoteStates):
    """Keeps states as arrays of numpy in host memory."""

    def __init__(self) -> None:
        self.kept: dict[int, dict[int, list[Numbers]]] = {}

    def _begin(self, run: int) -> None:
        self.kept[run] = {}

    def _put(self, run: int, place: int, leaves: list[Numbers]) -> None:
        if run not in self.kept:
            raise _gone(run)
        self.kept[run][place] = leaves

    def _get(self, run: int, place: int) -> list[Numbers]:
        if run not in self.kept:
            raise _gone(run)
        return self.kept[run][place]

    def _end(self, run: int) -> None:
        self.kept.pop(run, None)


class FileRemote(RemoteStates):
    """Keeps states as files: a temporary folder for each run, which goes when the run or the process ends."""

    def __init__(self, folder: str | os.PathLike[str]) -> None:
        self.folder = make_parent(folder)
        self._places: dict[int, RemoteFolder] = {}
        self._kinds: list[tuple[tuple[int, ...], np.dtype[Any]]] = []

    def _begin(self, run: int) -> None:
        self._places[run] = RemoteFolder(self.folder)

    def _put(self, run: int, place: int, leaves: list[Numbers]) -> None:
        self._kinds = [(leaf.shape, leaf.dtype) for leaf in leaves]
        folder = self._find(run)
        try:
            with self._path(folder, place).open("wb") as file:
                for leaf in leaves:
                    file.write(leaf.tobytes())
        except OSError as error:
            self._end(run)
            size = format_bytes(sum(leaf.nbytes for leaf in leaves))
            raise folder.explain(error, f"cannot take a state of {size}") from None

    def _get(self, run: int, place: int) -> list[Numbers]:
        folder = self._find(run)
        try:
            content = self._path(folder, place).read_bytes()
        except OSError as error:
            raise folder.explain(error, "lost a state") from None
        leaves, start = [], 0
        for shape, dtype in self._kinds:
            stop = start + int(np.prod(shape, dtype=np.int64)) * dtype.itemsize
            leaves.append(np.frombuffer(content[start:stop], dtype).reshape(shape))
            start = stop
        return leaves

    def _find(self, run: int) -> RemoteFolder:
        if run not in self._places:
            raise _gone(run)
        return self._places[run]

    @staticmethod
    def _path(folder: RemoteFolder, place: int) -> Path:
        return folder.path / f"{place}.state"

    def _end(self, run: int) -> None:
        folder = self._places.pop(run, None)
        if folder is not None:
            folder.close()
