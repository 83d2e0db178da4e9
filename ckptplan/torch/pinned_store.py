"""Stores remote checkpoints of a CUDA device in reusable pinned buffers, with copies that overlap compute.

Writes and reads each have their own stream, ordered by events: a write waits for the compute that made the
state, a read waits for the write of its buffer, and compute waits for the read. At most one write and one read
are in progress, which are the buffers that docs/equations.md counts: the host waits for the previous one. If a
plan's transfers do not overlap compute, compute waits for each; if they do, the next read begins as soon as it
is known.
"""

from __future__ import annotations

from collections import defaultdict
from dataclasses import dataclass
from functools import cache

import torch

from ckptplan.torch.memory import number_device
from ckptplan.torch.stores import Checkpoint, Store
from ckptplan.torch.trees import Leaves

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


class PinnedStore(Store):
    """Keeps checkpoints of a CUDA device as copies in pinned host memory."""

    def __init__(self, device: torch.device, *, ahead: bool) -> None:
        super().__init__()
        self._lanes = _Lanes(device, overlaps=ahead)
        self.ahead = ahead
        self._kept: dict[int, tuple[_Buffer, Checkpoint]] = {}
        self._free: defaultdict[Kind, list[_Buffer]] = defaultdict(list)
        self._fetched: _Fetched | None = None

    @property
    def buffers(self) -> int:
        """The number of buffers allocated so far."""
        return len(self._kept) + sum(len(free) for free in self._free.values())

    def expect(self, states: tuple[int, ...]) -> None:
        if self.ahead and self._fetched is None and states[0] in self._kept:
            self._fetched = self._fetch(states[0])

    def _put(self, state: int, checkpoint: Checkpoint, together: int) -> None:
        buffer = self._buffer(checkpoint.leaves)
        buffer.copied = self._lanes.write(checkpoint.leaves, buffer.leaves, after=buffer.copied)
        self._kept[state] = buffer, checkpoint.with_leaves(())

    def _get(self, state: int) -> Checkpoint:
        checkpoint = self._kept[state][1]
        fetched, self._fetched = self._fetched, None
        if fetched is None or fetched.state != state:
            fetched = self._fetch(state)
        self._lanes.arrive(fetched)
        return checkpoint.with_leaves(fetched.leaves)

    def _fetch(self, state: int) -> _Fetched:
        buffer, _ = self._kept[state]
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
        # On the host, whatever torch.set_default_device says.
        made = tuple(
            torch.empty(leaf.shape, dtype=leaf.dtype, device="cpu", pin_memory=True) for leaf in leaves
        )
        return _Buffer(kind, made)

    def close(self) -> None:
        super().close()
        self._fetched = None
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
