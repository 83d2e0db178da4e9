"""Stores remote checkpoints in host memory, by way of buffers in which they stay.

States of a CUDA device go to pinned buffers and back in streams of their own, one a direction, ordered by
events: a write waits for the compute that made the state, a read for the write of its buffer, and compute for
the read. At most one write and one read are in progress, for which the host waits before it begins the next.
If a plan's transfers overlap compute, the next message is read as soon as it is announced; otherwise compute
waits for each transfer. A copy within host memory is compute's own work in any case.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cache
from typing import Any, NamedTuple, TypeAlias

import torch
from torch import Tensor

from ckptplan.torch.device.memory import number_device
from ckptplan.torch.store.store import TensorStore


class LeafLayout(NamedTuple):
    """The shape, the strides, the data type and the device of a leaf."""

    shape: torch.Size
    stride: tuple[int, ...]
    dtype: torch.dtype
    device: torch.device

    @classmethod
    def of(cls, leaf: Tensor) -> LeafLayout:
        """Return the layout of a copy without gaps. A leaf without gaps keeps the order of its axes."""
        return cls(leaf.shape, torch.empty_like(leaf, device="meta").stride(), leaf.dtype, leaf.device)


Layouts: TypeAlias = tuple[LeafLayout, ...]


@dataclass
class Buffer:
    """A state in host memory, and the last copy between it and its device, if that may be in progress."""

    layouts: Layouts
    leaves: Sequence[Tensor]
    copied: torch.cuda.Event | None = None

    @classmethod
    def allocate(cls, layouts: Layouts, *, pinned: bool) -> Buffer:
        """Return a new buffer in host memory, whatever torch.set_default_device says."""
        leaves = (
            torch.empty_strided(
                layout.shape, layout.stride, dtype=layout.dtype, device="cpu", pin_memory=pinned
            )
            for layout in layouts
        )
        return cls(layouts, tuple(leaves))

    def wait(self) -> list[memoryview]:
        """Wait for the copy, and return the bytes of the leaves."""
        if self.copied is not None:
            self.copied.synchronize()
        return [_view_bytes(leaf) for leaf in self.leaves]


def _view_bytes(leaf: Tensor) -> memoryview:
    """Return the memory of a leaf without gaps."""
    flat = leaf.as_strided((leaf.numel(),), (1,), leaf.storage_offset())
    array: Any = flat.view(torch.uint8).numpy()
    return memoryview(array)


class BufferPool:
    """Buffers that are used again."""

    def __init__(self, *, pinned: bool) -> None:
        self._pinned = pinned
        self._free: list[Buffer] = []
        self.count = 0

    def take(self, layouts: Layouts) -> Buffer:
        """Return a buffer that is not in use."""
        fitting = next((buffer for buffer in self._free if buffer.layouts == layouts), None)
        if fitting is not None:
            self._free.remove(fitting)
            return fitting
        if self._free:
            self._free.pop()
            self.count -= 1
        self.count += 1
        return Buffer.allocate(layouts, pinned=self._pinned)

    def give(self, buffer: Buffer) -> None:
        """Take a buffer back."""
        self._free.append(buffer)


class Copies:
    """Copies between states and buffers, at once."""

    def write(self, leaves: Sequence[Tensor], buffer: Buffer) -> None:
        """Copy a state to a free buffer."""
        with torch.no_grad():
            for target, leaf in zip(buffer.leaves, leaves, strict=True):
                target.copy_(leaf)

    def read(self, buffer: Buffer) -> Sequence[Tensor]:
        """Begin to copy a state to its devices when the buffer has been written."""
        pairs = zip(buffer.leaves, buffer.layouts, strict=True)
        return tuple(leaf.to(layout.device, copy=True) for leaf, layout in pairs)

    def arrive(self, leaves: Sequence[Tensor]) -> Sequence[Tensor]:
        """Make compute wait for the state that was read last."""
        return leaves

    def finish(self) -> None:
        """Wait for copies in progress, before their buffers are released."""


class _StreamCopies(Copies):
    """Copies between a CUDA device and pinned buffers, in a stream for each direction."""

    def __init__(self, device: torch.device, *, overlaps: bool) -> None:
        # "cuda" without a number means the current device, which may change.
        self.device, self.overlaps = torch.device("cuda", number_device(device)), overlaps
        self.writes, self.reads = _streams(self.device)
        self._written: torch.cuda.Event | None = None
        self._read: torch.cuda.Event | None = None

    def write(self, leaves: Sequence[Tensor], buffer: Buffer) -> None:
        """Copy a state when compute has made it and the buffer is free."""
        compute = torch.cuda.current_stream(self.device)
        if self._written is not None:
            self._written.synchronize()
        self.writes.wait_stream(compute)
        if buffer.copied is not None:
            self.writes.wait_event(buffer.copied)
        with torch.no_grad(), torch.cuda.stream(self.writes):
            for target, leaf in zip(buffer.leaves, leaves, strict=True):
                target.copy_(leaf, non_blocking=True)
                if leaf.is_cuda:
                    # The state may be released before the copy is done.
                    leaf.record_stream(self.writes)
        done: torch.cuda.Event = self.writes.record_event()
        if not self.overlaps:
            compute.wait_event(done)
        self._written = buffer.copied = done

    def read(self, buffer: Buffer) -> Sequence[Tensor]:
        if self._read is not None:
            self._read.synchronize()
        if buffer.copied is not None:
            self.reads.wait_event(buffer.copied)
            if any(layout.device.type == "cpu" for layout in buffer.layouts):
                buffer.copied.synchronize()
        with torch.cuda.stream(self.reads):
            leaves = tuple(
                leaf.to(layout.device, non_blocking=True, copy=True)
                for leaf, layout in zip(buffer.leaves, buffer.layouts, strict=True)
            )
        self._read = buffer.copied = self.reads.record_event()
        return leaves

    def arrive(self, leaves: Sequence[Tensor]) -> Sequence[Tensor]:
        compute = torch.cuda.current_stream(self.device)
        if self._read is not None:
            compute.wait_event(self._read)
        for leaf in leaves:
            if leaf.is_cuda:
                leaf.record_stream(compute)
        return leaves

    def finish(self) -> None:
        self.writes.synchronize()
        self.reads.synchronize()


@cache
def _streams(device: torch.device) -> tuple[torch.cuda.Stream, torch.cuda.Stream]:
    """Return the streams of a device; they are shared by all runs, since free memory belongs to its stream."""
    return torch.cuda.Stream(device), torch.cuda.Stream(device)


def make_copies(device: torch.device, *, overlaps: bool) -> Copies:
    """Return the object that copies states of a device to buffers and back."""
    return _StreamCopies(device, overlaps=overlaps) if device.type == "cuda" else Copies()


class HostStore(TensorStore[Buffer]):
    """Keeps checkpoints in host memory, each in a buffer of its own; those of a CUDA device are pinned."""

    def __init__(self, device: torch.device, *, ahead: bool) -> None:
        super().__init__()
        on_device = device.type == "cuda"
        self.fetches_ahead = ahead and on_device
        self._copies, self._pool = make_copies(device, overlaps=ahead), BufferPool(pinned=on_device)
        #: The state that was read ahead.
        self._fetched: tuple[int, Sequence[Tensor]] | None = None

    @property
    def buffers(self) -> int:
        """The number of buffers allocated so far."""
        return self._pool.count

    def expect(self, states: tuple[int, ...]) -> None:
        if self.fetches_ahead and self._fetched is None and states[0] in self._stored:
            self._fetched = states[0], self._copies.read(self._stored[states[0]][0])

    def _write(self, state: int, leaves: Sequence[Tensor], message_size: int) -> Buffer:
        buffer = self._pool.take(tuple(map(LeafLayout.of, leaves)))
        self._copies.write(leaves, buffer)
        return buffer

    def _read(self, state: int, buffer: Buffer) -> Sequence[Tensor]:
        fetched, self._fetched = self._fetched, None
        if fetched is not None and fetched[0] == state:
            return self._copies.arrive(fetched[1])
        return self._copies.arrive(self._copies.read(buffer))

    def _release(self, state: int, buffer: Buffer) -> None:
        if self._fetched is not None and self._fetched[0] == state:
            # Announced, but not needed.
            self._fetched = None
        self._pool.give(buffer)

    def close(self) -> None:
        super().close()
        self._copies.finish()
        self._pool = BufferPool(pinned=False)
