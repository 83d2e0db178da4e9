"""Keeps checkpoints: defines the interface of stores, and the store on the device (local)."""

from __future__ import annotations

from abc import ABC, abstractmethod
from dataclasses import dataclass

from ckptplan.errors import InputError
from ckptplan.torch.ambient import RandomState
from ckptplan.torch.trees import Leaves, Structure, byte_size, compact


@dataclass(frozen=True)
class Checkpoint:
    """A state with the states of the random generators; a run from a checkpoint needs both."""

    leaves: Leaves
    #: How the leaves nest, and the values between them that are not tensors.
    structure: Structure
    random: RandomState

    def with_leaves(self, leaves: Leaves) -> Checkpoint:
        """Return the same checkpoint with other tensors."""
        return Checkpoint(leaves, self.structure, self.random)


class Store(ABC):
    """Keeps checkpoints by the number of their state."""

    #: Whether it can fetch ahead of time.
    ahead = False

    def __init__(self) -> None:
        self.bytes = 0
        self._sizes: dict[int, int] = {}

    def put(self, state: int, checkpoint: Checkpoint, *, together: int = 1) -> None:
        """Keep a checkpoint, one of so many that move in one message."""
        self._put(state, checkpoint, together)
        self._sizes[state] = byte_size(checkpoint.leaves)
        self.bytes += self._sizes[state]

    def get(self, state: int) -> Checkpoint:
        """Return a checkpoint on the device; it stays stored."""
        return self._get(state)

    def drop(self, state: int) -> None:
        """Delete a checkpoint."""
        self._drop(state)
        self.bytes -= self._sizes.pop(state)

    def expect(self, states: tuple[int, ...]) -> None:  # noqa: B027 - most stores have nothing to do ahead
        """Announce the checkpoints of the next message, so that they may be fetched while compute runs."""

    @abstractmethod
    def _put(self, state: int, checkpoint: Checkpoint, together: int) -> None: ...

    @abstractmethod
    def _get(self, state: int) -> Checkpoint: ...

    @abstractmethod
    def _drop(self, state: int) -> None: ...

    def close(self) -> None:
        """Delete all checkpoints."""
        for state in tuple(self._sizes):
            self.drop(state)


class LocalStore(Store):
    """Keeps tensors without copying; a change in place after they were stored is detected."""

    def __init__(self) -> None:
        super().__init__()
        self._kept: dict[int, tuple[Checkpoint, tuple[int, ...]]] = {}

    def _put(self, state: int, checkpoint: Checkpoint, together: int) -> None:
        leaves = tuple(compact(leaf) for leaf in checkpoint.leaves)
        self._kept[state] = checkpoint.with_leaves(leaves), tuple(leaf._version for leaf in leaves)

    def _get(self, state: int) -> Checkpoint:
        checkpoint, versions = self._kept[state]
        if versions != tuple(leaf._version for leaf in checkpoint.leaves):
            raise InputError(
                f"state {state} was changed in place after it was stored, so that steps cannot be run again "
                "from it",
                field="cell" if state else "state",
                accepted="a cell that returns new tensors, and an initial state that is left alone",
            )
        return checkpoint

    def _drop(self, state: int) -> None:
        del self._kept[state]
