"""Stores remote checkpoints in files or in host memory, as raw bytes that move while compute runs.

If a plan's transfers overlap compute, one thread writes and one reads. A state to be written is copied into a
buffer, so that steps may change it, and compute waits only while that buffer is in use; the next message is
read as soon as it is announced and its states are there. Each direction has as many buffers as its largest
message has states, allocated once: those that docs/equations.md counts. Otherwise states move at once, without
buffers. States of a CUDA device go through pinned buffers in either case.
"""

from __future__ import annotations

import os
from abc import ABC, abstractmethod
from collections import deque
from collections.abc import Callable, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass
from math import prod
from pathlib import Path
from typing import Any, NamedTuple

import torch

from ckptplan.storage.remote_folder import RemoteFolder, make_parent
from ckptplan.torch.stores import Checkpoint, Store
from ckptplan.torch.trees import Leaves, byte_size
from ckptplan.units import format_bytes


class LeafLayout(NamedTuple):
    """Where the elements of a leaf lie."""

    shape: torch.Size
    stride: tuple[int, ...]
    dtype: torch.dtype
    device: torch.device

    def allocate(self, *, pinned: bool = False) -> torch.Tensor:
        """Return a new tensor in host memory, whatever torch.set_default_device says."""
        return torch.empty_strided(self.shape, self.stride, dtype=self.dtype, device="cpu", pin_memory=pinned)


def _find_layout(leaf: torch.Tensor) -> LeafLayout:
    """Return the layout of a copy without gaps; the order of the axes stays, if there are none."""
    stride, size = leaf.stride(), 1
    for step, length in sorted(zip(stride, leaf.shape, strict=True)):
        if length != 1 and step != size:
            # Elements that lie apart, or in one place.
            stride = tuple(prod(leaf.shape[axis + 1 :]) for axis in range(leaf.dim()))
            break
        size *= length
    return LeafLayout(leaf.shape, stride, leaf.dtype, leaf.device)


class Slots(ABC):
    """Where the states go: numbered slots, which are used again."""

    @abstractmethod
    def write(self, slot: int, leaves: Sequence[torch.Tensor]) -> None:
        """Fill a slot with leaves in host memory that have no gaps."""

    @abstractmethod
    def read(self, slot: int, into: Sequence[torch.Tensor]) -> None:
        """Fill leaves of the same layouts with what a slot holds."""

    @abstractmethod
    def close(self) -> None:
        """Release all slots."""


class Files(Slots):
    """Slots are files in a temporary folder, which is deleted when the run ends.

    Files of earlier states are written over. What is written ``through`` reaches the device at once, and does
    not stay in the system's cache: where there is no room for it there, the rate of a run is that of the device
    from the first state on, and other programs keep their files in memory. Raises InputError.
    """

    def __init__(self, folder: str | os.PathLike[str], *, through: bool = False) -> None:
        self._folder, self._through = RemoteFolder(make_parent(folder)), through

    def write(self, slot: int, leaves: Sequence[torch.Tensor]) -> None:
        """Write a file. Raises InputError if the disk is full, or cannot be written."""
        try:
            file = os.open(self._path(slot), os.O_WRONLY | os.O_CREAT | getattr(os, "O_BINARY", 0), 0o600)
            try:
                for leaf in leaves:
                    _move(lambda part: os.write(file, part), _view_bytes(leaf))
                if self._through:
                    os.fsync(file)
                    _drop_cached(file)
            finally:
                os.close(file)
        except OSError as error:
            size = format_bytes(byte_size(leaves))
            raise self._folder.explain(error, f"cannot take a checkpoint of {size}") from None

    def read(self, slot: int, into: Sequence[torch.Tensor]) -> None:
        """Read a file. Raises InputError if it is gone, or too short."""
        try:
            with self._path(slot).open("rb", buffering=0) as file:
                for leaf in into:
                    _move(file.readinto, _view_bytes(leaf))
                if self._through:
                    _drop_cached(file.fileno())
        except OSError as error:
            raise self._folder.explain(error, f"has lost the checkpoint in {self._path(slot).name}") from None

    def close(self) -> None:
        """Remove the folder."""
        self._folder.close()

    def _path(self, slot: int) -> Path:
        return self._folder.path / f"{slot}.state"


def _view_bytes(leaf: torch.Tensor) -> memoryview:
    """Return the memory of a leaf without gaps."""
    flat = leaf.as_strided((leaf.numel(),), (1,), leaf.storage_offset())
    array: Any = flat.view(torch.uint8).numpy()
    return memoryview(array)


def _move(move: Callable[[memoryview], int], data: memoryview) -> None:
    """Move all bytes: one call of the system moves two gigabytes at most."""
    while data:
        done = move(data)
        if not done:
            raise OSError(None, "the file is too short")
        data = data[done:]


def _drop_cached(file: int) -> None:
    """Have the system forget the content of a file that the device has."""
    if hasattr(os, "posix_fadvise"):
        os.posix_fadvise(file, 0, 0, os.POSIX_FADV_DONTNEED)


class HostMemory(Slots):
    """Slots are tensors in host memory."""

    def __init__(self) -> None:
        self._slots: dict[int, tuple[list[LeafLayout], Leaves]] = {}

    def write(self, slot: int, leaves: Sequence[torch.Tensor]) -> None:
        """Copy a state to a slot."""
        layouts = [_find_layout(leaf) for leaf in leaves]
        if slot not in self._slots or self._slots[slot][0] != layouts:
            self._slots[slot] = layouts, tuple(layout.allocate() for layout in layouts)
        _copy(leaves, self._slots[slot][1])

    def read(self, slot: int, into: Sequence[torch.Tensor]) -> None:
        """Copy a state from a slot."""
        _copy(self._slots[slot][1], into)

    def close(self) -> None:
        """Release the tensors."""
        self._slots.clear()


def _copy(ones: Sequence[torch.Tensor], others: Sequence[torch.Tensor]) -> None:
    with torch.no_grad():
        for one, other in zip(ones, others, strict=True):
            other.copy_(one)


@dataclass
class _Staged:
    """A state on its way, in host memory."""

    layouts: list[LeafLayout]
    leaves: Leaves
    #: The last copies between it and CUDA devices.
    copied: tuple[torch.cuda.Event, ...] = ()

    def note_copy(self) -> None:
        """Note that copies between it and its devices have begun."""
        devices = {layout.device for layout in self.layouts if layout.device.type == "cuda"}
        self.copied = tuple(torch.cuda.current_stream(device).record_event() for device in devices)

    def wait(self) -> None:
        """Wait for these copies."""
        for event in self.copied:
            event.synchronize()


class _Buffers:
    """The buffers of one direction."""

    def __init__(self, *, pinned: bool) -> None:
        self._pinned = pinned
        self._free: list[_Staged] = []
        self.count = 0

    def take(self, layouts: list[LeafLayout], *, most: int) -> _Staged | None:
        """Return a buffer that is not in use, a new one only if there are fewer than ``most``."""
        return self.take_another(layouts) if self._free or self.count < most else None

    def take_another(self, layouts: list[LeafLayout]) -> _Staged:
        """Return a buffer that is not in use, however many there are."""
        same = next((one for one in self._free if one.layouts == layouts), None)
        if same is not None:
            self._free.remove(same)
            return same
        if self._free:
            self._free.pop()
            self.count -= 1
        self.count += 1
        return _Staged(layouts, tuple(layout.allocate(pinned=self._pinned) for layout in layouts))

    def give(self, buffer: _Staged) -> None:
        """Take a buffer back."""
        self._free.append(buffer)


@dataclass(frozen=True)
class _Slot:
    """A checkpoint without its leaves, which are in a slot once they are written."""

    slot: int
    checkpoint: Checkpoint
    layouts: list[LeafLayout]
    written: Future[None] | None


class StagedStore(Store):
    """Moves checkpoints to a place and back, ``ahead`` of need and beside compute if asked for.

    Raises InputError, also for a write that was begun earlier.
    """

    def __init__(self, place: Slots, device: torch.device, *, ahead: bool) -> None:
        super().__init__()
        self.ahead, self._place, self._pinned = ahead, place, device.type == "cuda"
        self._kept: dict[int, _Slot] = {}
        self._free: list[int] = []
        self._out, self._in = (_Buffers(pinned=self._pinned) for _ in range(2))
        #: Writes and reads in progress, with their buffers.
        self._writing: deque[tuple[Future[None], _Staged]] = deque()
        self._reading: dict[int, tuple[Future[None], _Staged]] = {}
        self._writer = ThreadPoolExecutor(1, "ckptplan-write")
        self._reader = ThreadPoolExecutor(1, "ckptplan-read")

    @property
    def buffers(self) -> int:
        """The number of buffers, of both directions."""
        return self._out.count + self._in.count

    def _put(self, state: int, checkpoint: Checkpoint, together: int) -> None:
        layouts = [_find_layout(leaf) for leaf in checkpoint.leaves]
        slot = self._free.pop() if self._free else len(self._kept)
        written: Future[None] | None = None
        if self.ahead or self._pinned:
            buffer = self._take_free(layouts, together)
            with torch.no_grad():
                for kept, leaf in zip(buffer.leaves, checkpoint.leaves, strict=True):
                    kept.copy_(leaf, non_blocking=True)
            buffer.note_copy()
            written = self._writer.submit(self._write, slot, buffer)
            self._writing.append((written, buffer))
            if not self.ahead:
                written.result()
        else:
            self._place.write(slot, [_close_gaps(*one) for one in zip(checkpoint.leaves, layouts, strict=True)])
        self._kept[state] = _Slot(slot, checkpoint.with_leaves(()), layouts, written)

    def _take_free(self, layouts: list[LeafLayout], together: int) -> _Staged:
        """Return a buffer to write from; if all are in use, that of the oldest write when it is done."""
        while True:
            while self._writing and self._writing[0][0].done():
                self._end_write()
            buffer = self._out.take(layouts, most=together)
            if buffer is not None:
                return buffer
            self._end_write()

    def _end_write(self) -> None:
        job, buffer = self._writing.popleft()
        job.result()
        self._out.give(buffer)

    def _write(self, slot: int, buffer: _Staged) -> None:
        buffer.wait()
        self._place.write(slot, buffer.leaves)

    def expect(self, states: tuple[int, ...]) -> None:
        """Begin to read the states of a message that are there, as far as there are buffers."""
        if not self.ahead:
            return
        for state in states:
            if state in self._kept and state not in self._reading:
                kept = self._kept[state]
                buffer = self._in.take(kept.layouts, most=len(states))
                if buffer is None:
                    return
                self._reading[state] = self._reader.submit(self._read, kept, buffer), buffer

    def _read(self, kept: _Slot, buffer: _Staged) -> None:
        if kept.written is not None:
            kept.written.result()
        buffer.wait()
        self._place.read(kept.slot, buffer.leaves)

    def _get(self, state: int) -> Checkpoint:
        kept = self._kept[state]
        if state in self._reading:
            job, buffer = self._reading.pop(state)
            job.result()
        elif self._pinned:
            buffer = self._in.take_another(kept.layouts)
            self._read(kept, buffer)
        else:
            buffer = _Staged(kept.layouts, tuple(layout.allocate() for layout in kept.layouts))
            self._read(kept, buffer)
            return kept.checkpoint.with_leaves(buffer.leaves)
        leaves = tuple(
            leaf.to(layout.device, non_blocking=True, copy=True)
            for leaf, layout in zip(buffer.leaves, kept.layouts, strict=True)
        )
        buffer.note_copy()
        self._in.give(buffer)
        return kept.checkpoint.with_leaves(leaves)

    def _drop(self, state: int) -> None:
        if state in self._reading:
            # Announced, and not needed after all: what is written there next must not meet the read.
            job, buffer = self._reading.pop(state)
            job.result()
            self._in.give(buffer)
        # What is written there next is written later: there is one writer.
        self._free.append(self._kept.pop(state).slot)

    def close(self) -> None:
        """Delete all checkpoints, and end the threads."""
        self._writer.shutdown(cancel_futures=True)
        self._reader.shutdown(cancel_futures=True)
        super().close()
        self._writing.clear()
        self._reading.clear()
        self._out, self._in = (_Buffers(pinned=self._pinned) for _ in range(2))
        self._place.close()


def _close_gaps(leaf: torch.Tensor, layout: LeafLayout) -> torch.Tensor:
    """Return a leaf, or a copy in host memory without gaps whose values are as they read."""
    if leaf.stride() == layout.stride and not (leaf.is_conj() or leaf.is_neg()):
        return leaf
    kept = layout.allocate()
    _copy([leaf], [kept])
    return kept
