"""Remote checkpoints in host memory: buffers used again and again, copies beside compute on an accelerator.

On CUDA buffers are pinned, writes and reads have a stream of their own each, and events order them: a write
waits for the compute that made the state, a read for the write of its buffer, compute for the read. Where a
plan's transfers run beside compute the next read is begun as soon as it is known (one at a time, the buffer
that docs/equations.md counts). On a CPU the same buffers are filled at once.
"""

from __future__ import annotations

from collections import defaultdict
from dataclasses import dataclass

import torch

from ckptplan.torch.ambient import RandomState
from ckptplan.torch.stores import Checkpoint, Store
from ckptplan.torch.trees import Leaves

#: What tells buffers apart: shapes and types of a state's leaves.
Kind = tuple[tuple[torch.Size, torch.dtype], ...]


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
    """Copies in host memory."""

    def __init__(self, device: torch.device, *, ahead: bool) -> None:
        super().__init__()
        self.device = device
        self._lanes = _Lanes(device) if device.type == "cuda" else None
        self.ahead = ahead and self._lanes is not None
        self._kept: dict[int, tuple[_Buffer, RandomState]] = {}
        self._free: defaultdict[Kind, list[_Buffer]] = defaultdict(list)
        self._fetched: _Fetched | None = None
        #: Buffers made so far.
        self.made = 0

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
        self._kept[state] = buffer, checkpoint.random

    def _get(self, state: int) -> Checkpoint:
        buffer, random = self._kept[state]
        if self._lanes is None:
            return Checkpoint(tuple(leaf.clone() for leaf in buffer.leaves), random)
        fetched, self._fetched = self._fetched, None
        if fetched is None or fetched.state != state:
            fetched = self._fetch(state)
        self._lanes.arrive(fetched)
        return Checkpoint(fetched.leaves, random)

    def _fetch(self, state: int) -> _Fetched:
        buffer, _ = self._kept[state]
        assert self._lanes is not None  # noqa: S101 - asked for on an accelerator only
        leaves, buffer.copied = self._lanes.read(buffer.leaves, after=buffer.copied)
        return _Fetched(state, leaves, buffer.copied)

    def _drop(self, state: int) -> None:
        buffer, _ = self._kept.pop(state)
        self._free[buffer.kind].append(buffer)

    def _buffer(self, leaves: Leaves) -> _Buffer:
        kind = tuple((leaf.shape, leaf.dtype) for leaf in leaves)
        if self._free[kind]:
            return self._free[kind].pop()
        self.made += 1
        pinned = self._lanes is not None
        made = tuple(torch.empty(leaf.shape, dtype=leaf.dtype, pin_memory=pinned) for leaf in leaves)
        return _Buffer(kind, made)

    def close(self) -> None:
        super().close()
        self._fetched = None
        if self._lanes is not None:
            self._lanes.finish()
        self._free.clear()


class _Lanes:
    """A stream for each direction between a CUDA device and the host."""

    def __init__(self, device: torch.device) -> None:
        self.device = device
        self.writes = torch.cuda.Stream(device)
        self.reads = torch.cuda.Stream(device)

    def write(self, leaves: Leaves, buffer: Leaves, *, after: torch.cuda.Event | None) -> torch.cuda.Event:
        """Copy a state to the host when compute has made it and the buffer is free."""
        self.writes.wait_stream(torch.cuda.current_stream(self.device))
        if after is not None:
            self.writes.wait_event(after)
        with torch.cuda.stream(self.writes):
            for kept, leaf in zip(buffer, leaves, strict=True):
                kept.copy_(leaf, non_blocking=True)
                # The state may be let go before the copy is done.
                leaf.record_stream(self.writes)
        done: torch.cuda.Event = self.writes.record_event()
        return done

    def read(self, buffer: Leaves, *, after: torch.cuda.Event | None) -> tuple[Leaves, torch.cuda.Event]:
        """Copy a state to the device when the buffer has been written."""
        if after is not None:
            self.reads.wait_event(after)
        with torch.cuda.stream(self.reads):
            leaves = tuple(leaf.to(self.device, non_blocking=True) for leaf in buffer)
        return leaves, self.reads.record_event()

    def arrive(self, fetched: _Fetched) -> None:
        """Let compute wait for a state."""
        compute = torch.cuda.current_stream(self.device)
        compute.wait_event(fetched.arrived)
        for leaf in fetched.leaves:
            leaf.record_stream(compute)

    def finish(self) -> None:
        """Wait for what is under way: its buffers go."""
        self.writes.synchronize()
        self.reads.synchronize()
