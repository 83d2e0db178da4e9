"""Stores of checkpoints: on the device, and the base of those that keep tensors elsewhere."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterator, Sequence
from dataclasses import replace
from typing import Generic, TypeVar

import torch
from torch import Tensor

from ckptplan.errors import InputError
from ckptplan.torch.state.lifted import Checkpoint
from ckptplan.torch.state.nests import count_bytes, read_versions

_Stored = TypeVar("_Stored")


class Store:
    """Keeps checkpoints by the numbers of their states, on the device, as they are."""

    #: Whether it can fetch checkpoints ahead of time.
    fetches_ahead = False

    def __init__(self) -> None:
        self._checkpoints: dict[int, Checkpoint] = {}

    @property
    def bytes(self) -> int:
        """The bytes of the tensors that it keeps."""
        return sum(checkpoint.bytes for checkpoint in self)

    def __iter__(self) -> Iterator[Checkpoint]:
        return iter(self._checkpoints.values())

    def put(self, number: int, checkpoint: Checkpoint, *, message_size: int = 1) -> None:
        """Keep a checkpoint, which moves in a message of ``message_size`` checkpoints."""
        self._checkpoints[number] = checkpoint

    def get(self, number: int) -> Checkpoint:
        """Return a checkpoint on the device; it stays stored."""
        return self._checkpoints[number]

    def drop(self, number: int) -> None:
        """Delete a checkpoint."""
        del self._checkpoints[number]

    def expect(self, numbers: tuple[int, ...]) -> None:
        """Announce the checkpoints of the next message, so that they may be fetched while steps run."""

    def close(self) -> None:
        """Delete all checkpoints."""
        self._checkpoints.clear()


class TensorStore(Store, ABC, Generic[_Stored]):
    """Keeps the tensors of checkpoints elsewhere, and everything else of the checkpoints here.

    Subclasses say how tensors are written, read and released. A tensor that is in several places of a state
    moves once, and is one tensor again when it comes back.
    """

    def __init__(self) -> None:
        super().__init__()
        #: For each state: its stored tensors and their bytes, and for each leaf of its checkpoint the number of
        #: its stored tensor, or the tensor itself. The checkpoints have no tensors.
        self._stored: dict[int, tuple[_Stored, int]] = {}
        self._places: dict[int, list[int | Tensor]] = {}

    @property
    def bytes(self) -> int:
        return sum(size for _, size in self._stored.values())

    def put(self, number: int, checkpoint: Checkpoint, *, message_size: int = 1) -> None:
        # Sparse tensors stay here, since buffers cannot hold them.
        unique = {id(leaf): leaf for leaf in checkpoint.leaves if leaf.layout is torch.strided}
        order = {key: place for place, key in enumerate(unique)}
        self.keep(number, tuple(unique.values()), message_size=message_size)
        self._places[number] = [order.get(id(leaf), leaf) for leaf in checkpoint.leaves]
        self._checkpoints[number] = replace(checkpoint, leaves=[], versions=[])

    def get(self, number: int) -> Checkpoint:
        tensors, places = self.fetch(number), self._places[number]
        leaves = [place if isinstance(place, Tensor) else tensors[place] for place in places]
        return replace(self._checkpoints[number], leaves=leaves, versions=read_versions(leaves))

    def drop(self, number: int) -> None:
        # Tensors of caches are stored without a checkpoint.
        self._checkpoints.pop(number, None)
        self._places.pop(number, None)
        self._release(number, self._stored.pop(number)[0])

    def keep(self, number: int, tensors: Sequence[Tensor], *, message_size: int = 1) -> None:
        """Keep the tensors of a state."""
        stored = self._write(number, tensors, message_size)
        self._stored[number] = stored, count_bytes(tensors)

    def fetch(self, number: int) -> Sequence[Tensor]:
        """Return the tensors of a state on the device."""
        return self._read(number, self._stored[number][0])

    @abstractmethod
    def _write(self, number: int, tensors: Sequence[Tensor], message_size: int) -> _Stored: ...

    @abstractmethod
    def _read(self, number: int, stored: _Stored) -> Sequence[Tensor]: ...

    @abstractmethod
    def _release(self, number: int, stored: _Stored) -> None: ...

    def close(self) -> None:
        for number in tuple(self._stored):
            self.drop(number)


def check_unchanged(number: int, tensors: Sequence[Tensor], versions: Sequence[int]) -> None:
    """Raise InputError if tensors were changed since their versions were read."""
    if list(versions) != read_versions(tensors):
        raise InputError(
            f"state {number} was changed in place while it was written, so that steps cannot run again from it",
            field="cell" if number else "state",
            accepted="a cell that returns new tensors, and an initial state that stays as it is",
        )
