"""Stores checkpoints on the device (local), and in files (remote); defines the interface of stores."""

from __future__ import annotations

import os
from abc import ABC, abstractmethod
from dataclasses import dataclass
from pathlib import Path

import torch

from ckptplan.errors import InputError
from ckptplan.storage.remote_folder import RemoteFolder, make_parent
from ckptplan.torch.ambient import RandomState
from ckptplan.torch.trees import Leaves, Structure, byte_size, compact
from ckptplan.units import format_bytes


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
        #: Checkpoints read so far.
        self.reads = 0
        self._sizes: dict[int, int] = {}

    def put(self, state: int, checkpoint: Checkpoint) -> None:
        """Keep a checkpoint."""
        self._put(state, checkpoint)
        self._sizes[state] = byte_size(checkpoint.leaves)
        self.bytes += self._sizes[state]

    def get(self, state: int) -> Checkpoint:
        """Return a checkpoint on the device; it stays stored."""
        self.reads += 1
        return self._get(state)

    def drop(self, state: int) -> None:
        """Delete a checkpoint."""
        self._drop(state)
        self.bytes -= self._sizes.pop(state)

    def expect(self, state: int) -> None:  # noqa: B027 - a store that has nothing to do ahead does nothing
        """Announce that a checkpoint is read next, so that it may be fetched while compute runs."""

    @abstractmethod
    def _put(self, state: int, checkpoint: Checkpoint) -> None: ...

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

    def _put(self, state: int, checkpoint: Checkpoint) -> None:
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


class FileStore(Store):
    """Keeps checkpoints as files in a temporary folder, which is deleted when the run ends."""

    def __init__(self, folder: str | os.PathLike[str]) -> None:
        super().__init__()
        self._kept: dict[int, tuple[Checkpoint, tuple[torch.device, ...]]] = {}
        self._folder = RemoteFolder(make_parent(folder))

    def _put(self, state: int, checkpoint: Checkpoint) -> None:
        try:
            # PyTorch's own writer does not say what is wrong.
            with self._path(state).open("wb") as file:
                # Saving a view would write its whole storage.
                torch.save([compact(leaf.detach()).cpu() for leaf in checkpoint.leaves], file)
        except OSError as error:
            self._path(state).unlink(missing_ok=True)
            size = format_bytes(byte_size(checkpoint.leaves))
            raise self._folder.explain(error, f"cannot take a checkpoint of {size}") from None
        devices = tuple(leaf.device for leaf in checkpoint.leaves)
        self._kept[state] = checkpoint.with_leaves(()), devices

    def _get(self, state: int) -> Checkpoint:
        try:
            leaves = torch.load(self._path(state), weights_only=True)
        except OSError as error:
            raise self._folder.explain(error, f"has lost the checkpoint of state {state}") from None
        checkpoint, devices = self._kept[state]
        return checkpoint.with_leaves(
            tuple(leaf.to(device) for leaf, device in zip(leaves, devices, strict=True))
        )

    def _drop(self, state: int) -> None:
        self._path(state).unlink(missing_ok=True)
        del self._kept[state]

    def close(self) -> None:
        """Remove the folder."""
        super().close()
        self._folder.close()

    def _path(self, state: int) -> Path:
        return self._folder.path / f"{state}.pt"
