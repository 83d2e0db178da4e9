"""Stores remote checkpoints in host memory or in files, by way of buffers in host memory.

In host memory a state stays in its buffer; a file takes its bytes from there. States of a CUDA device go to
pinned buffers and back in streams of their own, one a direction, ordered by events: a write waits for the
compute that made the state, a read for the write of its buffer, and compute for the read. At most one write and
one read are in progress, for which the host waits before it begins the next.

If a plan's transfers overlap compute, the next message is read as soon as it is announced, and one thread
writes files and one reads them. Then each direction has as many buffers as its largest message has states,
allocated once: those that docs/equations.md counts. Otherwise compute waits for each transfer, and states on
the host go to files and come back without buffers. A copy within host memory is compute's own work in any case.
"""

from __future__ import annotations

from collections import deque
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass, replace
from functools import cache
from math import prod
from typing import Any, NamedTuple

import torch

from ckptplan.storage.remote_folder import StateFiles
from ckptplan.torch.memory import number_device
from ckptplan.torch.stores import Checkpoint, Store
from ckptplan.torch.trees import Leaves


class LeafLayout(NamedTuple):
    """Where the elements of a leaf lie."""

    shape: torch.Size
    stride: tuple[int, ...]
    dtype: torch.dtype
    device: torch.device

    @classmethod
    def of(cls, leaf: torch.Tensor) -> LeafLayout:
        """Return the layout of a copy without gaps; the order of the axes stays, if there are none."""
        stride, size = leaf.stride(), 1
        for step, length in sorted(zip(stride, leaf.shape, strict=True)):
            if length != 1 and step != size:
                # Elements that lie apart, or in one place.
                stride = tuple(prod(leaf.shape[axis + 1 :]) for axis in range(leaf.dim()))
                break
            size *= length
        return cls(leaf.shape, stride, leaf.dtype, leaf.device)


@dataclass
class _Buffer:
    """A state in host memory, and the last copy between it and its device, if that may be in progress."""

    layouts: list[LeafLayout]
    leaves: Leaves
    copied: torch.cuda.Event | None = None

    @classmethod
    def allocate(cls, layouts: list[LeafLayout], *, pinned: bool) -> _Buffer:
        """Return a new buffer in host memory, whatever torch.set_default_device says."""
        leaves = (
            torch.empty_strided(one.shape, one.stride, dtype=one.dtype, device="cpu", pin_memory=pinned)
            for one in layouts
        )
        return cls(layouts, tuple(leaves))

    def wait(self) -> list[memoryview]:
        """Wait for the copy, and return the bytes of the leaves."""
        if self.copied is not None:
            self.copied.synchronize()
        return [_view_bytes(leaf) for leaf in self.leaves]


def _view_bytes(leaf: torch.Tensor) -> memoryview:
    """Return the memory of a leaf without gaps."""
    flat = leaf.as_strided((leaf.numel(),), (1,), leaf.storage_offset())
    array: Any = flat.view(torch.uint8).numpy()
    return memoryview(array)


class _Pool:
    """Buffers that are used again."""

    def __init__(self, *, pinned: bool) -> None:
        self._pinned = pinned
        self._free: list[_Buffer] = []
        self.count = 0

    def take(self, layouts: list[LeafLayout]) -> _Buffer:
        """Return a buffer that is not in use."""
        same = next((one for one in self._free if one.layouts == layouts), None)
        if same is not None:
            self._free.remove(same)
            return same
        if self._free:
            self._free.pop()
            self.count -= 1
        self.count += 1
        return _Buffer.allocate(layouts, pinned=self._pinned)

    def has_room(self, most: int) -> bool:
        """Return whether a buffer can be taken with no more than ``most`` in all."""
        return bool(self._free) or self.count < most

    def give(self, buffer: _Buffer) -> None:
        """Take a buffer back."""
        self._free.append(buffer)


@dataclass(frozen=True)
class _Fetched:
    """A state on its way to the device."""

    state: int
    leaves: Leaves
    arrived: torch.cuda.Event | None


class _Copies:
    """Copies between states and buffers, at once."""

    def write(self, leaves: Leaves, buffer: _Buffer) -> None:
        """Copy a state to a buffer, which is free."""
        with torch.no_grad():
            for kept, leaf in zip(buffer.leaves, leaves, strict=True):
                kept.copy_(leaf)

    def read(self, state: int, buffer: _Buffer) -> _Fetched:
        """Copy a state to its devices when the buffer has been written."""
        pairs = zip(buffer.leaves, buffer.layouts, strict=True)
        return _Fetched(state, tuple(leaf.to(layout.device, copy=True) for leaf, layout in pairs), None)

    def arrive(self, fetched: _Fetched) -> Leaves:
        """Return a state for which compute waits."""
        return fetched.leaves

    def finish(self) -> None:
        """Wait for copies in progress, before their buffers are released."""


class _StreamCopies(_Copies):
    """Copies between a CUDA device and pinned buffers, in a stream for each direction."""

    def __init__(self, device: torch.device, *, overlaps: bool) -> None:
        # "cuda" means whatever device is the present one, now and later.
        self.device, self.overlaps = torch.device("cuda", number_device(device)), overlaps
        self.writes, self.reads = _streams(self.device)
        self._written: torch.cuda.Event | None = None
        self._read: torch.cuda.Event | None = None

    def write(self, leaves: Leaves, buffer: _Buffer) -> None:
        """Copy a state when compute has made it and the buffer is free."""
        compute = torch.cuda.current_stream(self.device)
        if self._written is not None:
            self._written.synchronize()
        self.writes.wait_stream(compute)
        if buffer.copied is not None:
            self.writes.wait_event(buffer.copied)
        with torch.no_grad(), torch.cuda.stream(self.writes):
            for kept, leaf in zip(buffer.leaves, leaves, strict=True):
                kept.copy_(leaf, non_blocking=True)
                if leaf.is_cuda:
                    # The state may be released before the copy is done.
                    leaf.record_stream(self.writes)
        done: torch.cuda.Event = self.writes.record_event()
        if not self.overlaps:
            compute.wait_event(done)
        self._written = buffer.copied = done

    def read(self, state: int, buffer: _Buffer) -> _Fetched:
        """Begin to copy a state to its devices."""
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
        done: torch.cuda.Event = self.reads.record_event()
        self._read = buffer.copied = done
        return _Fetched(state, leaves, done)

    def arrive(self, fetched: _Fetched) -> Leaves:
        """Make compute wait for a state."""
        compute = torch.cuda.current_stream(self.device)
        if fetched.arrived is not None:
            compute.wait_event(fetched.arrived)
        for leaf in fetched.leaves:
            if leaf.is_cuda:
                leaf.record_stream(compute)
        return fetched.leaves

    def finish(self) -> None:
        self.writes.synchronize()
        self.reads.synchronize()


@cache
def _streams(device: torch.device) -> tuple[torch.cuda.Stream, torch.cuda.Stream]:
    """Return the streams of a device; they are shared by all runs, since free memory belongs to its stream."""
    return torch.cuda.Stream(device), torch.cuda.Stream(device)


def _make_copies(device: torch.device, *, overlaps: bool) -> _Copies:
    return _StreamCopies(device, overlaps=overlaps) if device.type == "cuda" else _Copies()


class HostStore(Store):
    """Keeps checkpoints in host memory, each in a buffer of its own; those of a CUDA device are pinned."""

    def __init__(self, device: torch.device, *, ahead: bool) -> None:
        super().__init__()
        on_device = device.type == "cuda"
        self.ahead = ahead and on_device
        self._copies, self._pool = _make_copies(device, overlaps=ahead), _Pool(pinned=on_device)
        self._kept: dict[int, tuple[_Buffer, Checkpoint]] = {}
        self._fetched: _Fetched | None = None

    @property
    def buffers(self) -> int:
        """The number of buffers allocated so far."""
        return self._pool.count

    def expect(self, states: tuple[int, ...]) -> None:
        if self.ahead and self._fetched is None and states[0] in self._kept:
            self._fetched = self._copies.read(states[0], self._kept[states[0]][0])

    def _put(self, state: int, checkpoint: Checkpoint, together: int) -> None:
        buffer = self._pool.take([LeafLayout.of(leaf) for leaf in checkpoint.leaves])
        self._copies.write(checkpoint.leaves, buffer)
        self._kept[state] = buffer, checkpoint.with_leaves(())

    def _get(self, state: int) -> Checkpoint:
        buffer, checkpoint = self._kept[state]
        fetched, self._fetched = self._fetched, None
        if fetched is None or fetched.state != state:
            fetched = self._copies.read(state, buffer)
        return checkpoint.with_leaves(self._copies.arrive(fetched))

    def _drop(self, state: int) -> None:
        if self._fetched is not None and self._fetched.state == state:
            # Announced, and not needed after all.
            self._fetched = None
        self._pool.give(self._kept.pop(state)[0])

    def close(self) -> None:
        super().close()
        self._fetched = None
        self._copies.finish()
        self._pool = _Pool(pinned=False)


@dataclass(frozen=True)
class _Filed:
    """A checkpoint without its leaves, which are in a file once they are written."""

    file: int
    checkpoint: Checkpoint
    layouts: list[LeafLayout]
    written: Future[None] | None = None


class FileStore(Store):
    """Keeps checkpoints in files, which are used again, ``ahead`` of need and beside compute if asked for.

    Raises InputError, also for a write that was begun earlier.
    """

    def __init__(self, files: StateFiles, device: torch.device, *, ahead: bool) -> None:
        super().__init__()
        self.ahead, self._files, self._on_device = ahead, files, device.type == "cuda"
        self._copies = _make_copies(device, overlaps=ahead)
        self._kept: dict[int, _Filed] = {}
        self._free: list[int] = []
        self._out, self._in = (_Pool(pinned=self._on_device) for _ in range(2))
        #: Writes and reads in progress, with their buffers.
        self._writing: deque[tuple[Future[None], _Buffer]] = deque()
        self._reading: dict[int, tuple[Future[None], _Buffer]] = {}
        self._writer = ThreadPoolExecutor(1, "ckptplan-write")
        self._reader = ThreadPoolExecutor(1, "ckptplan-read")

    @property
    def buffers(self) -> int:
        """The number of buffers, of both directions."""
        return self._out.count + self._in.count

    def _put(self, state: int, checkpoint: Checkpoint, together: int) -> None:
        layouts = [LeafLayout.of(leaf) for leaf in checkpoint.leaves]
        filed = _Filed(self._free.pop() if self._free else len(self._kept), checkpoint.with_leaves(()), layouts)
        if not self.ahead and not self._on_device:
            closed = tuple(_close_gaps(*one) for one in zip(checkpoint.leaves, layouts, strict=True))
            self._write(filed, _Buffer(layouts, closed))
        else:
            buffer = self._take_free(layouts, together)
            self._copies.write(checkpoint.leaves, buffer)
            job = self._writer.submit(self._write, filed, buffer)
            self._writing.append((job, buffer))
            if not self.ahead:
                job.result()
            filed = replace(filed, written=job)
        self._kept[state] = filed

    def _take_free(self, layouts: list[LeafLayout], together: int) -> _Buffer:
        """Return a buffer to write from; if all are in use, that of the oldest write when it is done."""
        while True:
            while self._writing and self._writing[0][0].done():
                self._end_write()
            if self._out.has_room(together):
                return self._out.take(layouts)
            self._end_write()

    def _end_write(self) -> None:
        job, buffer = self._writing.popleft()
        job.result()
        self._out.give(buffer)

    def _write(self, filed: _Filed, buffer: _Buffer) -> None:
        self._files.write(filed.file, buffer.wait())

    def expect(self, states: tuple[int, ...]) -> None:
        """Begin to read the states of a message that are there, as far as there are buffers."""
        if not self.ahead:
            return
        for state in states:
            if state in self._kept and state not in self._reading:
                if not self._in.has_room(len(states)):
                    return
                filed = self._kept[state]
                buffer = self._in.take(filed.layouts)
                self._reading[state] = self._reader.submit(self._read, filed, buffer), buffer

    def _read(self, filed: _Filed, buffer: _Buffer) -> None:
        if filed.written is not None:
            filed.written.result()
        self._files.read(filed.file, buffer.wait())

    def _get(self, state: int) -> Checkpoint:
        filed = self._kept[state]
        if state in self._reading:
            job, buffer = self._reading.pop(state)
            job.result()
        elif self._on_device:
            buffer = self._in.take(filed.layouts)
            self._read(filed, buffer)
        else:
            buffer = _Buffer.allocate(filed.layouts, pinned=False)
            self._read(filed, buffer)
            return filed.checkpoint.with_leaves(buffer.leaves)
        leaves = self._copies.arrive(self._copies.read(state, buffer))
        self._in.give(buffer)
        return filed.checkpoint.with_leaves(leaves)

    def _drop(self, state: int) -> None:
        if state in self._reading:
            # Announced, and not needed after all: what is written there next must not meet the read.
            job, buffer = self._reading.pop(state)
            job.result()
            self._in.give(buffer)
        # What is written there next is written later: there is one writer.
        self._free.append(self._kept.pop(state).file)

    def close(self) -> None:
        """Delete all checkpoints, and end the threads."""
        self._writer.shutdown(cancel_futures=True)
        self._reader.shutdown(cancel_futures=True)
        self._writing.clear()
        self._reading.clear()
        super().close()
        self._copies.finish()
        self._out, self._in = (_Pool(pinned=False) for _ in range(2))
        self._files.close()


def _close_gaps(leaf: torch.Tensor, layout: LeafLayout) -> torch.Tensor:
    """Return a leaf, or a copy in host memory without gaps whose values are as they read."""
    if leaf.stride() == layout.stride and not (leaf.is_conj() or leaf.is_neg()):
        return leaf
    copy = _Buffer.allocate([layout], pinned=False)
    _Copies().write((leaf,), copy)
    return copy.leaves[0]
