"""Stores remote checkpoints in files, by way of buffers in host memory.

If a plan's transfers overlap compute, one thread writes files and one reads them, a message as soon as it is
announced. Each direction then transfers at most as many states at a time as its largest message has, which
docs/equations.md counts. Otherwise compute waits for each transfer. States on the host go to files as they are
and are read into new memory, without a copy by the thread that computes.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass

import torch
from torch import Tensor

from ckptplan.storage.remote_folder import StateFiles
from ckptplan.torch.state.nests import compact, read_versions
from ckptplan.torch.store.host import Buffer, BufferPool, Copies, Layouts, LeafLayout, make_copies
from ckptplan.torch.store.store import TensorStore, check_unchanged


@dataclass(frozen=True)
class _FileEntry:
    """The file of a state, the layouts of its leaves, and the write of the file if it may be in progress."""

    file: int
    layouts: Layouts
    written: Future[None] | None = None


class FileStore(TensorStore[_FileEntry]):
    """Keeps checkpoints in files that are reused. With ``ahead``, transfers run early and overlap compute.

    Raises InputError, also for a write that was begun earlier.
    """

    def __init__(self, files: StateFiles, device: torch.device, *, ahead: bool) -> None:
        super().__init__()
        self.fetches_ahead, self._files, self._on_device = ahead, files, device.type == "cuda"
        self._copies = make_copies(device, overlaps=ahead)
        self._free: list[int] = []
        self._out, self._in = (BufferPool(pinned=True) for _ in range(2))
        #: Writes and reads in progress, with their buffers.
        self._writing: deque[tuple[Future[None], Buffer]] = deque()
        self._reading: dict[int, tuple[Future[None], Buffer]] = {}
        self._writer = ThreadPoolExecutor(1, "ckptplan-write")
        self._reader = ThreadPoolExecutor(1, "ckptplan-read")

    def _write(self, state: int, leaves: Sequence[Tensor], message_size: int) -> _FileEntry:
        layouts = tuple(map(LeafLayout.of, leaves))
        file = self._free.pop() if self._free else len(self._stored)
        while self._writing and (self._writing[0][0].done() or len(self._writing) >= message_size):
            job, buffer = self._writing.popleft()
            job.result()
            self._give_back(self._out, buffer)
        if self._on_device:
            buffer = self._out.take(layouts)
            self._copies.write(leaves, buffer)
        else:
            buffer = Buffer(layouts, tuple(map(_close_gaps, leaves, layouts)))
        if not self.fetches_ahead:
            self._files.write(file, buffer.wait())
            self._give_back(self._out, buffer)
            return _FileEntry(file, layouts)
        job = self._writer.submit(self._fill, file, buffer, state, read_versions(buffer.leaves))
        self._writing.append((job, buffer))
        return _FileEntry(file, layouts, job)

    def _fill(self, file: int, buffer: Buffer, state: int, versions: Sequence[int]) -> None:
        self._files.write(file, buffer.wait())
        check_unchanged(state, buffer.leaves, versions)

    def _take_empty(self, layouts: Layouts) -> Buffer:
        """Return a buffer for reading a state. On the host, its leaves become the state itself."""
        return self._in.take(layouts) if self._on_device else Buffer.allocate(layouts, pinned=False)

    def _give_back(self, pool: BufferPool, buffer: Buffer) -> None:
        if self._on_device:
            pool.give(buffer)

    def expect(self, states: tuple[int, ...]) -> None:
        """Begin to read the stored states of a message, and at most as many at a time as the message has."""
        for state in states if self.fetches_ahead else ():
            if state in self._stored and state not in self._reading and len(self._reading) < len(states):
                entry = self._stored[state][0]
                buffer = self._take_empty(entry.layouts)
                self._reading[state] = self._reader.submit(self._fetch, entry, buffer), buffer

    def _fetch(self, entry: _FileEntry, buffer: Buffer) -> None:
        if entry.written is not None:
            entry.written.result()
        self._files.read(entry.file, buffer.wait())

    def _read(self, state: int, entry: _FileEntry) -> Sequence[Tensor]:
        if state in self._reading:
            job, buffer = self._reading.pop(state)
            job.result()
        else:
            buffer = self._take_empty(entry.layouts)
            self._fetch(entry, buffer)
        if not self._on_device:
            return buffer.leaves
        leaves = self._copies.arrive(self._copies.read(buffer))
        self._give_back(self._in, buffer)
        return leaves

    def _release(self, state: int, entry: _FileEntry) -> None:
        if state in self._reading:
            # Announced, but not needed. The read must end before another state is written to the file.
            job, buffer = self._reading.pop(state)
            job.result()
            self._give_back(self._in, buffer)
        # Another state can use the file at once, since the only writer thread writes in order.
        self._free.append(entry.file)

    def close(self) -> None:
        """Delete all checkpoints, and end the threads."""
        self._writer.shutdown(cancel_futures=True)
        self._reader.shutdown(cancel_futures=True)
        self._writing.clear()
        self._reading.clear()
        super().close()
        self._copies.finish()
        self._out, self._in = (BufferPool(pinned=False) for _ in range(2))
        self._files.close()


def _close_gaps(leaf: Tensor, layout: LeafLayout) -> Tensor:
    """Return a leaf, or a copy of its values in host memory without gaps, conjugation or negation.

    A view of a larger storage, which would stay alive until it is written, is copied, too.
    """
    if leaf.stride() == layout.stride and not (leaf.is_conj() or leaf.is_neg()):
        return compact(leaf)
    copy = Buffer.allocate((layout,), pinned=False)
    Copies().write((leaf,), copy)
    return copy.leaves[0]
