"""Stores remote checkpoints in host memory or in files, by way of buffers in host memory.

In host memory a state stays in its buffer; a file takes its bytes from there. States of a CUDA device go to
pinned buffers and back in streams of their own, one a direction, ordered by events: a write waits for the
compute that made the state, a read for the write of its buffer, and compute for the read. At most one write and
one read are in progress, for which the host waits before it begins the next.

If a plan's transfers overlap compute, the next message is read as soon as it is announced, and one thread
writes files and one reads them. Each direction then has at most as many states on their way as its largest
message has: those that docs/equations.md counts. Otherwise compute waits for each transfer. States on the host
go to files as they are and are read into new memory, without a copy by the thread that computes; a copy within
host memory is compute's own work in any case.
"""

from __future__ import annotations

from collections import deque
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass
from functools import cache
from typing import Any, NamedTuple, TypeAlias

import torch

from ckptplan.storage.remote_folder import StateFiles
from ckptplan.torch.memory import number_device
from ckptplan.torch.stores import Store, check_unchanged
from ckptplan.torch.trees import Leaves, compact, read_versions


class LeafLayout(NamedTuple):
    """Where the elements of a leaf lie."""

    shape: torch.Size
    stride: tuple[int, ...]
    dtype: torch.dtype
    device: torch.device

    @classmethod
    def of(cls, leaf: torch.Tensor) -> LeafLayout:
        """Return the layout of a copy without gaps; the order of the axes stays, if there are none."""
        return cls(leaf.shape, torch.empty_like(leaf, device="meta").stride(), leaf.dtype, leaf.device)


Layouts: TypeAlias = tuple[LeafLayout, ...]


@dataclass
class _Buffer:
    """A state in host memory, and the last copy between it and its device, if that may be in progress."""

    layouts: Layouts
    leaves: Leaves
    copied: torch.cuda.Event | None = None

    @classmethod
    def allocate(cls, layouts: Layouts, *, pinned: bool) -> _Buffer:
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

    def take(self, layouts: Layouts) -> _Buffer:
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

    def give(self, buffer: _Buffer) -> None:
        """Take a buffer back."""
        self._free.append(buffer)


class _Copies:
    """Copies between states and buffers, at once."""

    def write(self, leaves: Leaves, buffer: _Buffer) -> None:
        """Copy a state to a buffer, which is free."""
        with torch.no_grad():
            for kept, leaf in zip(buffer.leaves, leaves, strict=True):
                kept.copy_(leaf)

    def read(self, buffer: _Buffer) -> Leaves:
        """Begin to copy a state to its devices when the buffer has been written."""
        pairs = zip(buffer.leaves, buffer.layouts, strict=True)
        return tuple(leaf.to(layout.device, copy=True) for leaf, layout in pairs)

    def arrive(self, leaves: Leaves) -> Leaves:
        """Make compute wait for a state, the latest one that was read."""
        return leaves

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

    def read(self, buffer: _Buffer) -> Leaves:
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

    def arrive(self, leaves: Leaves) -> Leaves:
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


def _make_copies(device: torch.device, *, overlaps: bool) -> _Copies:
    return _StreamCopies(device, overlaps=overlaps) if device.type == "cuda" else _Copies()


class HostStore(Store[_Buffer]):
    """Keeps checkpoints in host memory, each in a buffer of its own; those of a CUDA device are pinned."""

    def __init__(self, device: torch.device, *, ahead: bool) -> None:
        super().__init__()
        on_device = device.type == "cuda"
        self.ahead = ahead and on_device
        self._copies, self._pool = _make_copies(device, overlaps=ahead), _Pool(pinned=on_device)
        #: The state that was read ahead.
        self._fetched: tuple[int, Leaves] | None = None

    @property
    def buffers(self) -> int:
        """The number of buffers allocated so far."""
        return self._pool.count

    def expect(self, states: tuple[int, ...]) -> None:
        if self.ahead and self._fetched is None and states[0] in self._kept:
            self._fetched = states[0], self._copies.read(self._kept[states[0]][0])

    def _write(self, state: int, leaves: Leaves, together: int) -> _Buffer:
        buffer = self._pool.take(tuple(map(LeafLayout.of, leaves)))
        self._copies.write(leaves, buffer)
        return buffer

    def _read(self, state: int, kept: _Buffer) -> Leaves:
        fetched, self._fetched = self._fetched, None
        if fetched is not None and fetched[0] == state:
            return self._copies.arrive(fetched[1])
        return self._copies.arrive(self._copies.read(kept))

    def _release(self, state: int, kept: _Buffer) -> None:
        if self._fetched is not None and self._fetched[0] == state:
            # Announced, and not needed after all.
            self._fetched = None
        self._pool.give(kept)

    def close(self) -> None:
        super().close()
        self._copies.finish()
        self._pool = _Pool(pinned=False)


@dataclass(frozen=True)
class _Filed:
    """The leaves of a state in a file, once they are written."""

    file: int
    layouts: Layouts
    written: Future[None] | None = None


class FileStore(Store[_Filed]):
    """Keeps checkpoints in files, which are used again, ``ahead`` of need and beside compute if asked for.

    Raises InputError, also for a write that was begun earlier.
    """

    def __init__(self, files: StateFiles, device: torch.device, *, ahead: bool) -> None:
        super().__init__()
        self.ahead, self._files, self._on_device = ahead, files, device.type == "cuda"
        self._copies = _make_copies(device, overlaps=ahead)
        self._free: list[int] = []
        self._out, self._in = (_Pool(pinned=True) for _ in range(2))
        #: Writes and reads in progress, with what they are from and to.
        self._writing: deque[tuple[Future[None], _Buffer]] = deque()
        self._reading: dict[int, tuple[Future[None], _Buffer]] = {}
        self._writer = ThreadPoolExecutor(1, "ckptplan-write")
        self._reader = ThreadPoolExecutor(1, "ckptplan-read")

    def _write(self, state: int, leaves: Leaves, together: int) -> _Filed:
        layouts = tuple(map(LeafLayout.of, leaves))
        file = self._free.pop() if self._free else len(self._kept)
        while self._writing and (self._writing[0][0].done() or len(self._writing) >= together):
            job, buffer = self._writing.popleft()
            job.result()
            self._give_back(self._out, buffer)
        if self._on_device:
            buffer = self._out.take(layouts)
            self._copies.write(leaves, buffer)
        else:
            buffer = _Buffer(layouts, tuple(map(_close_gaps, leaves, layouts)))
        if not self.ahead:
            self._files.write(file, buffer.wait())
            self._give_back(self._out, buffer)
            return _Filed(file, layouts)
        job = self._writer.submit(self._fill, file, buffer, state, read_versions(buffer.leaves))
        self._writing.append((job, buffer))
        return _Filed(file, layouts, job)

    def _fill(self, file: int, buffer: _Buffer, state: int, versions: tuple[int, ...]) -> None:
        self._files.write(file, buffer.wait())
        check_unchanged(state, buffer.leaves, versions)

    def _take_empty(self, layouts: Layouts) -> _Buffer:
        """Return what a state is read into: on the host the state itself."""
        return self._in.take(layouts) if self._on_device else _Buffer.allocate(layouts, pinned=False)

    def _give_back(self, pool: _Pool, buffer: _Buffer) -> None:
        if self._on_device:
            pool.give(buffer)

    def expect(self, states: tuple[int, ...]) -> None:
        """Begin to read the states of a message that are there, no more at a time than it has."""
        for state in states if self.ahead else ():
            if state in self._kept and state not in self._reading and len(self._reading) < len(states):
                filed = self._kept[state][0]
                buffer = self._take_empty(filed.layouts)
                self._reading[state] = self._reader.submit(self._fetch, filed, buffer), buffer

    def _fetch(self, filed: _Filed, buffer: _Buffer) -> None:
        if filed.written is not None:
            filed.written.result()
        self._files.read(filed.file, buffer.wait())

    def _read(self, state: int, kept: _Filed) -> Leaves:
        if state in self._reading:
            job, buffer = self._reading.pop(state)
            job.result()
        else:
            buffer = self._take_empty(kept.layouts)
            self._fetch(kept, buffer)
        if not self._on_device:
            return buffer.leaves
        leaves = self._copies.arrive(self._copies.read(buffer))
        self._give_back(self._in, buffer)
        return leaves

    def _release(self, state: int, kept: _Filed) -> None:
        if state in self._reading:
            # Announced, and not needed after all: what is written there next must not meet the read.
            job, buffer = self._reading.pop(state)
            job.result()
            self._give_back(self._in, buffer)
        # What is written there next is written later: there is one writer.
        self._free.append(kept.file)

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
    """Return a leaf, or a copy in host memory without gaps whose values are as they read.

    A view of a larger storage, which would stay alive until it is written, is copied, too.
    """
    if leaf.stride() == layout.stride and not (leaf.is_conj() or leaf.is_neg()):
        return compact(leaf)
    copy = _Buffer.allocate((layout,), pinned=False)
    _Copies().write((leaf,), copy)
    return copy.leaves[0]
