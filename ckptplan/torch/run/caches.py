"""The caches of the steps of a ``ChunkCell``: its saved outputs, in blocks of steps.

A plan decides which caches stay (docs/cache.md). A step whose cache is kept is replayed from it; any other step
runs in full again. Sums over blocks of different lengths round differently. So a step must run in full in the
same block each time. ``find_cuts`` returns the steps at which the runs of a schedule are cut.
"""

from __future__ import annotations

from array import array
from bisect import bisect_left, bisect_right, insort
from collections.abc import Callable, Iterable, Iterator, Sequence
from functools import partial
from typing import Any, TypeAlias

import torch
from torch import Tensor

from ckptplan.schedule.actions import Action, Advance, Backward, Record, Tier, Transfer
from ckptplan.schedule.step_set import StepSet
from ckptplan.torch.chunk_cell import SavedOutputs
from ckptplan.torch.store.store import TensorStore


def find_cuts(actions: Iterable[Action]) -> Sequence[int]:
    """Return the steps at which the runs of a schedule are cut, in ascending order.

    These are the ends of each run with a step that runs in full, and of the cached ranges within it.
    """
    cuts: set[int] = set()
    for run, cached in _list_runs(actions):
        if cached.count(run.start, run.stop) < run.stop - run.start:
            cuts |= {run.start, run.stop, *_list_ends(cached, run.start, run.stop)}
        if (keep := find_kept(run)) < run.stop:
            cuts.add(keep)
    return array("q", sorted(cuts))


def runs_in_full_again(actions: Iterable[Action]) -> bool:
    """Return whether a schedule runs a step again whose cache is not in local memory."""
    frontier = 0
    for run, cached in _list_runs(actions):
        again = min(run.stop, frontier)
        if run.start < again and cached.count(run.start, again) < again - run.start:
            return True
        frontier = max(frontier, run.stop)
    return False


def _list_runs(actions: Iterable[Action]) -> Iterator[tuple[Advance | Record, StepSet]]:
    """Yield each run of steps, and the steps whose caches are in local memory before the run."""
    cached = StepSet()
    for action in actions:
        if isinstance(action, Backward):
            cached.remove(action.start, action.stop)
        elif isinstance(action, Transfer) and action.caches is not None:
            (cached.remove if action.target is Tier.REMOTE else cached.add)(*action.caches)
        elif isinstance(action, Advance | Record):
            yield action, cached
            keep = find_kept(action)
            if action.start < keep:
                cached.remove(action.start, keep)
            if keep < action.stop:
                cached.add(keep, action.stop)


def _list_ends(cached: StepSet, start: int, stop: int) -> Iterator[int]:
    return (end for part in cached for end in part if start < end < stop)


def find_kept(action: Advance | Record) -> int:
    """Return the first step whose cache stays after a run; all later ones of the run have theirs, too."""
    cached = getattr(action, "cached", None)
    return action.start if cached is None else action.stop - cached


#: The first step of a block, the step after its last one, and the caches of the block.
Block: TypeAlias = tuple[int, int, SavedOutputs]


class CacheLog:
    """The caches that are kept, in blocks of consecutive steps, with gaps where caches were dropped."""

    def __init__(self) -> None:
        self._starts: list[int] = []
        self._blocks: list[tuple[int, SavedOutputs]] = []
        self._pages = _Pages()
        #: The number of steps whose caches are kept, and the bytes of these caches.
        self.steps = self.bytes = 0

    def add(self, start: int, stop: int, saved: SavedOutputs) -> SavedOutputs:
        """Copy the caches of steps that have none here, and return the copies."""
        copies = saved.moved(partial(self._pages.keep, kept_bytes=self.bytes))
        self._insert(bisect_left(self._starts, start), start, stop, copies)
        return copies

    def _insert(self, place: int, start: int, stop: int, saved: SavedOutputs) -> None:
        self._starts.insert(place, start)
        self._blocks.insert(place, (stop, saved))
        self.steps += stop - start
        self.bytes += saved.bytes

    def _pop(self, place: int) -> tuple[int, int, SavedOutputs]:
        start, (stop, saved) = self._starts.pop(place), self._blocks.pop(place)
        self.steps -= stop - start
        self.bytes -= saved.bytes
        return start, stop, saved

    def find(self, step: int) -> tuple[bool, int | None]:
        """Return whether the cache of a step is kept, and where the block or the gap of the step ends.

        None stands for a gap without an end.
        """
        place = bisect_right(self._starts, step)
        if place and step < self._blocks[place - 1][0]:
            return True, self._blocks[place - 1][0]
        return False, self._starts[place] if place < len(self._starts) else None

    def cut(self, start: int, stop: int) -> SavedOutputs:
        """Return the caches of steps of one block."""
        place = bisect_right(self._starts, start) - 1
        first, (last, saved) = self._starts[place], self._blocks[place]
        return saved if (start, stop) == (first, last) else saved.part(start - first, stop - first)

    def take(self, start: int, stop: int) -> list[Block]:
        """Remove and return the caches of steps ``start`` to ``stop``."""
        taken = list[Block]()
        while start < stop:
            _, end = self.find(start)
            last = stop if end is None else min(stop, end)
            taken.append((start, last, self.cut(start, last)))
            start = last
        if taken:
            self.drop(taken[0][0], stop)
        return taken

    def put(self, blocks: Iterable[Block]) -> None:
        """Put back blocks that were taken."""
        for start, stop, saved in blocks:
            self._insert(bisect_left(self._starts, start), start, stop, saved)

    def drop(self, start: int, stop: int) -> None:
        """Drop the caches of steps ``start`` to ``stop``."""
        place = max(0, bisect_right(self._starts, start) - 1)
        while place < len(self._starts) and self._starts[place] < stop:
            first, last, saved = self._pop(place)
            for low, high in ((first, min(last, start)), (max(first, stop), last)):
                if low < high:
                    self._insert(place, low, high, saved.part(low - first, high - first))
                    place += 1

    def forget(self, step: int) -> None:
        """Drop the blocks that begin at ``step`` or later."""
        while self._starts and self._starts[-1] >= step:
            self._pop(-1)


class RemoteCaches:
    """Blocks of caches whose tensors are in a store of remote checkpoints, by their first steps."""

    def __init__(self) -> None:
        self._starts: list[int] = []
        self._blocks: dict[int, tuple[int, SavedOutputs]] = {}

    def number(self, start: int, stop: int) -> list[int]:
        """Return the numbers of the blocks of some steps in a store: negative ones, unlike those of states."""
        return [-1 - first for first in self._find(start, stop)]

    def _find(self, start: int, stop: int) -> list[int]:
        place = max(0, bisect_right(self._starts, start) - 1)
        starts = self._starts[place : bisect_left(self._starts, stop)]
        return [first for first in starts if start < self._blocks[first][0]]

    def keep(self, block: Block, store: TensorStore[Any], *, message_size: int = 1) -> None:
        """Move a block to the store, in a message of ``message_size`` blocks and states."""
        (start, stop, saved), tensors = block, list[Tensor]()

        def take(tensor: Tensor) -> Tensor:
            tensors.append(tensor)
            return tensor.new_empty(0)

        insort(self._starts, start)
        self._blocks[start] = stop, _carry(saved, take)
        store.keep(-1 - start, tensors, message_size=message_size)

    def fetch(self, start: int, stop: int, store: TensorStore[Any]) -> Iterator[Block]:
        """Yield the caches of steps ``start`` to ``stop``. Other steps of their blocks go back to the store."""
        for first in self._find(start, stop):
            last, saved = self._blocks.pop(first)
            del self._starts[bisect_left(self._starts, first)]
            tensors = iter(store.fetch(-1 - first))
            saved = _carry(saved, lambda _, tensors=tensors: next(tensors))  # type: ignore[misc]
            store.drop(-1 - first)
            for low, high in ((first, start), (stop, last)):
                if low < high:
                    self.keep((low, high, saved.part(low - first, high - first)), store)
            low, high = max(first, start), min(last, stop)
            yield low, high, saved if (low, high) == (first, last) else saved.part(low - first, high - first)


def _carry(saved: Any, move: Callable[[Tensor], Tensor]) -> Any:
    """Return saved outputs with each tensor replaced, including tensors shared with earlier steps."""
    return getattr(saved, "carried", saved.moved)(move)


#: The bytes of the smallest and of the largest page, and the ratio of the bytes kept already to a new page.
_SMALLEST, _LARGEST, _SHARE = 2**12, 2**18, 8
_ALIGNMENT = 16


class _Pages:
    """Copies tensors into pages of bytes. A page lives as long as any tensor in it.

    Small tensors that stay would fragment the heap: an allocator cannot merge the memory freed around a small
    block. Each further chunk of states would then take new memory from the system (2 MiB for every 64 steps of
    a small network).
    """

    def __init__(self) -> None:
        self._page: Tensor | None = None
        self._used = 0

    def keep(self, tensor: Tensor, kept_bytes: int) -> Tensor:
        """Return a copy of a tensor in a page; ``kept_bytes`` is the number of bytes kept already."""
        if tensor.layout is not torch.strided or tensor.is_quantized or tensor.is_meta:
            return tensor.clone()
        size = tensor.nbytes
        if self._page is None or self._used + size > len(self._page):
            page_bytes = min(max(kept_bytes // _SHARE, _SMALLEST), _LARGEST)
            self._page = torch.empty(max(size, page_bytes), dtype=torch.uint8, device=tensor.device)
            self._used = 0
        place = self._page[self._used : self._used + size]
        self._used += -(-size // _ALIGNMENT) * _ALIGNMENT
        return place.view(tensor.dtype).view(tensor.shape).copy_(tensor)
