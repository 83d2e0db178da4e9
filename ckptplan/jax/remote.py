"""Remote memory of a program: states in host memory or in files, moved by ordered callbacks.

A run begins with the forward pass and ends with its backward pass, which drops what is stored. What a forward
pass without a backward pass leaves is dropped when the process ends.
"""

from __future__ import annotations

import itertools
import os
from collections.abc import Sequence
from pathlib import Path
from typing import Any, TypeAlias

import jax
import numpy as np
import numpy.typing as npt
from jax.experimental import io_callback

from ckptplan.errors import InputError
from ckptplan.jax.leaves import Arrays, from_words, to_words
from ckptplan.storage.remote_folder import StateFiles, make_parent

Numbers: TypeAlias = npt.NDArray[Any]
_runs = itertools.count(1)


class RemoteStates:
    """Keeps states of runs by their number; each run has its own, in host memory or in files of a folder."""

    def __init__(self, folder: str | os.PathLike[str] | None = None) -> None:
        self._folder = None if folder is None else make_parent(folder)
        self._kept: dict[int, dict[int, list[Numbers]] | RemoteFiles] = {}

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

    def _open(self) -> Numbers:
        run = next(_runs)
        self._kept[run] = {} if self._folder is None else RemoteFiles(self._folder)
        return np.asarray(run, np.int32)

    def _write(self, run: Any, place: Any, *state: Any) -> tuple[()]:
        self._find(run)[int(place)] = [np.array(leaf) for leaf in state]
        return ()

    def _read(self, run: Any, place: Any) -> tuple[Numbers, ...]:
        return tuple(self._find(run)[int(place)])

    def _close(self, run: Any) -> None:
        kept = self._kept.pop(int(run), None)
        if isinstance(kept, RemoteFiles):
            kept.close()

    def _find(self, run: Any) -> dict[int, list[Numbers]] | RemoteFiles:
        if int(run) not in self._kept:
            raise InputError(
                f"run {int(run)} has ended: its states in remote memory are gone",
                field="plan",
                accepted="one backward pass for each forward pass, outside of jax.lax.scan",
            )
        return self._kept[int(run)]


class RemoteFiles(StateFiles):
    """Keeps the states of a run as files: a temporary folder, which goes when the run or the process ends."""

    def __init__(self, parent: Path) -> None:
        super().__init__(parent)
        self._kinds: list[tuple[tuple[int, ...], np.dtype[Any]]] = []

    def __setitem__(self, place: int, leaves: list[Numbers]) -> None:
        self._kinds = [(leaf.shape, leaf.dtype) for leaf in leaves]
        try:
            self.write(place, [_view_bytes(leaf) for leaf in leaves])
        except InputError:
            self.close()
            raise

    def __getitem__(self, place: int) -> list[Numbers]:
        leaves = [np.empty(shape, dtype) for shape, dtype in self._kinds]
        self.read(place, [_view_bytes(leaf) for leaf in leaves])
        return leaves


def _view_bytes(leaf: Numbers) -> memoryview:
    data: Any = leaf.reshape(-1).view(np.uint8)
    return memoryview(data)
