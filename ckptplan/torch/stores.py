"""Keeps checkpoints: defines the interface of stores, and the store on the device (local)."""

from __future__ import annotations

from abc import ABC, abstractmethod
from dataclasses import dataclass, replace
from typing import Generic, TypeVar

from ckptplan.errors import InputError
from ckptplan.torch.ambient import RandomState
from ckptplan.torch.trees import Leaves, Structure, byte_size, compact, read_versions

_K = TypeVar("_K")


@dataclass(frozen=True)
class Checkpoint:
    """A state with the states of the random generators; a run from a checkpoint needs both."""

    leaves: Leaves
    #: How the leaves nest, and the values between them that are not tensors.
    structure: Structure
    random: RandomState


class Store(ABC, Generic[_K]):
    """Keeps checkpoints by the number of their state; what it keeps of the leaves is its own affair."""

    #: Whether it can fetch ahead of time.
    ahead = False

    def __init__(self) -> None:
        self.bytes = 0
        #: Of each state what is kept of its leaves, the rest of the checkpoint, and the bytes of the leaves.
        self._kept: dict[int, tuple[_K, Checkpoint, int]] = {}

    def put(self, state: int, checkpoint: Checkpoint, *, together: int = 1) -> None:
        """Keep a checkpoint, one of so many that move in one message."""
        size = byte_size(checkpoint.leaves)
        kept = self._write(state, checkpoint.leaves, together)
        self._kept[state] = kept, replace(checkpoint, leaves=()), size
        self.bytes += size

    def get(self, state: int) -> Checkpoint:
        """Return a checkpoint on the device; it stays stored."""
        kept, checkpoint, _ = self._kept[state]
        return replace(checkpoint, leaves=self._read(state, kept))

    def drop(self, state: int) -> None:
        """Delete a checkpoint."""
        kept, _, size = self._kept.pop(state)
        self._release(state, kept)
        self.bytes -= size

    def expect(self, states: tuple[int, ...]) -> None:
        """Announce the checkpoints of the next message, so that they may be fetched while compute runs."""

    @abstractmethod
    def _write(self, state: int, leaves: Leaves, together: int) -> _K: ...

    @abstractmethod
    def _read(self, state: int, kept: _K) -> Leaves: ...

    def _release(self, state: int, kept: _K) -> None:
        """Let go of a state that is dropped."""

    def close(self) -> None:
        """Delete all checkpoints."""
        for state in tuple(self._kept):
            self.drop(state)


class LocalStore(Store[tuple[Leaves, tuple[int, ...]]]):
    """Keeps tensors without copying; a change in place after they were stored is detected."""

    def _write(self, state: int, leaves: Leaves, together: int) -> tuple[Leaves, tuple[int, ...]]:
        leaves = tuple(compact(leaf) for leaf in leaves)
        return leaves, read_versions(leaves)

    def _read(self, state: int, kept: tuple[Leaves, tuple[int, ...]]) -> Leaves:
        leaves, versions = kept
        check_unchanged(state, leaves, versions)
        return leaves


def check_unchanged(state: int, leaves: Leaves, versions: tuple[int, ...]) -> None:
    """Raise InputError if a state that was not copied was changed since its versions were read."""
    if versions != read_versions(leaves):
        raise InputError(
            f"state {state} was changed in place after it was stored, so that steps cannot be run again "
            "from it",
            field="cell" if state else "state",
            accepted="a cell that returns new tensors, and an initial state that is left alone",
        )
