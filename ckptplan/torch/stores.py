"""Stores checkpoints on the device (local), and in files (remote); defines the interface of stores.

Stores remote checkpoints in reusable host buffers, with copies that overlap compute on CUDA.

On CUDA, buffers are pinned, and writes and reads each have their own stream, ordered by events: a write waits
for the compute that made the state, a read waits for the write of its buffer, and compute waits for the read.
At most one write and one read are in progress, which are the buffers that docs/equations.md counts: the host
waits for the previous one. If a plan's transfers do not overlap compute, compute waits for each; if they do,
the next read begins as soon as it is known. On a CPU, the same buffers are filled synchronously.
"""

from __future__ import annotations

import os
from abc import ABC, abstractmethod
from collections import defaultdict
from dataclasses import dataclass
from functools import cache
from pathlib import Path

import torch

from ckptplan.errors import InputError
from ckptplan.storage.remote_folder import RemoteFolder, make_parent
from ckptplan.torch.ambient import RandomState
from ckptplan.torch.memory import number_device
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


#: The kind of a buffer: shapes, types and devices of a state's leaves.
Kind = tuple[tuple[torch.Size, torch.dtype, torch.device], ...]


@dataclass
class _Buffer:
    """A state in host memory, and the last copy from or to it."""

    kind: Kind
    leaves: Leaves
    copied: torch.cuda.Event | None = None


@dataclass(frozen=True)
class _Fetched:
    """A state on its way to the device."""

    state: int
    leaves: Leaves
    arrived: torch.cuda.Event


class HostStore(Store):
    """Keeps checkpoints as copies in host memory."""

    def __init__(self, device: torch.device, *, ahead: bool) -> None:
        super().__init__()
        self._lanes = _Lanes(device, overlaps=ahead) if device.type == "cuda" else None
        self.ahead = ahead and self._lanes is not None
        self._kept: dict[int, tuple[_Buffer, Checkpoint]] = {}
        self._free: defaultdict[Kind, list[_Buffer]] = defaultdict(list)
        self._fetched: _Fetched | None = None

    @property
    def buffers(self) -> int:
        """The number of buffers allocated so far."""
        return len(self._kept) + sum(len(free) for free in self._free.values())

    def expect(self, state: int) -> None:
        if self.ahead and self._fetched is None and state in self._kept:
            self._fetched = self._fetch(state)

    def _put(self, state: int, checkpoint: Checkpoint) -> None:
        buffer = self._buffer(checkpoint.leaves)
        if self._lanes is None:
            for kept, leaf in zip(buffer.leaves, checkpoint.leaves, strict=True):
                kept.copy_(leaf)
        else:
            buffer.copied = self._lanes.write(checkpoint.leaves, buffer.leaves, after=buffer.copied)
        self._kept[state] = buffer, checkpoint.with_leaves(())

    def _get(self, state: int) -> Checkpoint:
        buffer, checkpoint = self._kept[state]
        if self._lanes is None:
            return checkpoint.with_leaves(tuple(leaf.clone() for leaf in buffer.leaves))
        fetched, self._fetched = self._fetched, None
        if fetched is None or fetched.state != state:
            fetched = self._fetch(state)
        self._lanes.arrive(fetched)
        return checkpoint.with_leaves(fetched.leaves)

    def _fetch(self, state: int) -> _Fetched:
        buffer, _ = self._kept[state]
        assert self._lanes is not None  # noqa: S101 - asked for on an accelerator only
        devices = tuple(device for _, _, device in buffer.kind)
        leaves, buffer.copied = self._lanes.read(buffer.leaves, devices, after=buffer.copied)
        return _Fetched(state, leaves, buffer.copied)

    def _drop(self, state: int) -> None:
        buffer, _ = self._kept.pop(state)
        self._free[buffer.kind].append(buffer)

    def _buffer(self, leaves: Leaves) -> _Buffer:
        kind = tuple((leaf.shape, leaf.dtype, leaf.device) for leaf in leaves)
        if self._free[kind]:
            return self._free[kind].pop()
        pinned = self._lanes is not None
        # On the host, whatever torch.set_default_device says.
        made = tuple(
            torch.empty(leaf.shape, dtype=leaf.dtype, device="cpu", pin_memory=pinned) for leaf in leaves
        )
        return _Buffer(kind, made)

    def close(self) -> None:
        super().close()
        self._fetched = None
        if self._lanes is not None:
            self._lanes.finish()
        self._free.clear()


class _Lanes:
    """A stream for each direction between a CUDA device and the host."""

    def __init__(self, device: torch.device, *, overlaps: bool) -> None:
        # "cuda" means whatever device is the present one, now and later.
        self.device, self.overlaps = torch.device("cuda", number_device(device)), overlaps
        self.writes, self.reads = _streams(self.device)
        self._written: torch.cuda.Event | None = None
        self._read: torch.cuda.Event | None = None

    def write(self, leaves: Leaves, buffer: Leaves, *, after: torch.cuda.Event | None) -> torch.cuda.Event:
        """Copy a state to the host when compute has made it and the buffer is free."""
        compute = torch.cuda.current_stream(self.device)
        if self._written is not None:
            self._written.synchronize()
        self.writes.wait_stream(compute)
        if after is not None:
            self.writes.wait_event(after)
        with torch.cuda.stream(self.writes):
            for kept, leaf in zip(buffer, leaves, strict=True):
                kept.copy_(leaf, non_blocking=True)
                if leaf.is_cuda:
                    # The state may be released before the copy is done.
                    leaf.record_stream(self.writes)
        done: torch.cuda.Event = self.writes.record_event()
        if not self.overlaps:
            compute.wait_event(done)
        self._written = done
        return done

    def read(
        self, buffer: Leaves, devices: tuple[torch.device, ...], *, after: torch.cuda.Event | None
    ) -> tuple[Leaves, torch.cuda.Event]:
        """Copy a state to its devices when the buffer has been written."""
        if self._read is not None:
            self._read.synchronize()
        if after is not None:
            self.reads.wait_event(after)
            if any(device.type == "cpu" for device in devices):
                after.synchronize()
        with torch.cuda.stream(self.reads):
            leaves = tuple(
                leaf.to(device, non_blocking=True, copy=True)
                for leaf, device in zip(buffer, devices, strict=True)
            )
        done: torch.cuda.Event = self.reads.record_event()
        self._read = done
        return leaves, done

    def arrive(self, fetched: _Fetched) -> None:
        """Make compute wait for a state."""
        compute = torch.cuda.current_stream(self.device)
        compute.wait_event(fetched.arrived)
        for leaf in fetched.leaves:
            if leaf.is_cuda:
                leaf.record_stream(compute)

    def finish(self) -> None:
        """Wait for copies in progress, before their buffers are released."""
        self.writes.synchronize()
        self.reads.synchronize()


@cache
def _streams(device: torch.device) -> tuple[torch.cuda.Stream, torch.cuda.Stream]:
    """Return the streams of a device; they are shared by all runs, since free memory belongs to its stream."""
    return torch.cuda.Stream(device), torch.cuda.Stream(device)
