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
from operator import itemgetter
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
_get_start = itemgetter(0)


def _split(block: Block, start: int, stop: int) -> tuple[Block, list[Block]]:
    """Return the part of a block from step ``start`` to ``stop``, and the parts before and after it."""
    first, last, saved = block
    if start <= first and last <= stop:
        return block, []

    def cut(low: int, high: int) -> Block:
        return low, high, saved.part(low - first, high - first)

    outside = [cut(low, high) for low, high in ((first, start), (stop, last)) if low < high]
    return cut(max(first, start), min(last, stop)), outside


class CacheLog:
    """The caches that are kept, in blocks of consecutive steps, with gaps where caches were dropped."""

    def __init__(self) -> None:
        self._blocks: list[Block] = []
        self._pages = _Pages()
        #: The number of steps whose caches are kept, and the bytes of these caches.
        self.steps = self.bytes = 0

    def add(self, start: int, stop: int, saved: SavedOutputs) -> SavedOutputs:
        """Copy the caches of steps that have none here, and return the copies."""
        copies = saved.moved(partial(self._pages.keep, kept_bytes=self.bytes))
        self.put([(start, stop, copies)])
        return copies

    def put(self, blocks: Iterable[Block]) -> None:
        """Insert blocks of steps whose caches are not here."""
        for block in blocks:
            insort(self._blocks, block, key=_get_start)
            self._count(block, 1)

    def _pop(self, places: slice) -> list[Block]:
        blocks = self._blocks[places]
        del self._blocks[places]
        for block in blocks:
            self._count(block, -1)
        return blocks

    def _count(self, block: Block, sign: int) -> None:
        self.steps += sign * (block[1] - block[0])
        self.bytes += sign * block[2].bytes

    def _find_places(self, start: int, stop: int) -> slice:
        """Return the places of the blocks that have some of the steps ``start`` to ``stop``."""
        first = bisect_right(self._blocks, start, key=_get_start)
        first -= first > 0 and start < self._blocks[first - 1][1]
        return slice(first, bisect_left(self._blocks, stop, key=_get_start))

    def find(self, step: int) -> tuple[bool, int | None]:
        """Return whether the cache of a step is kept, and where the block or the gap of the step ends.

        None stands for a gap without an end.
        """
        place = bisect_right(self._blocks, step, key=_get_start)
        if place and step < self._blocks[place - 1][1]:
            return True, self._blocks[place - 1][1]
        return False, self._blocks[place][0] if place < len(self._blocks) else None

    def cut(self, start: int, stop: int) -> SavedOutputs:
        """Return the caches of steps of one block."""
        (block,) = self._blocks[self._find_places(start, stop)]
        return _split(block, start, stop)[0][2]

    def take(self, start: int, stop: int) -> list[Block]:
        """Remove and return the caches of steps ``start`` to ``stop``."""
        parts = [_split(block, start, stop) for block in self._pop(self._find_places(start, stop))]
        for _, outside in parts:
            self.put(outside)
        return [inside for inside, _ in parts]

    def forget(self, step: int) -> None:
        """Drop the blocks that begin at ``step`` or later."""
        self._pop(slice(bisect_left(self._blocks, step, key=_get_start), None))


class RemoteCaches(CacheLog):
    """Blocks of caches whose tensors are in a store of remote checkpoints."""

    def number(self, start: int, stop: int) -> list[int]:
        """Return the numbers of the blocks of some steps in a store: negative ones, unlike those of states."""
        return [-1 - first for first, _, _ in self._blocks[self._find_places(start, stop)]]

    def keep(self, block: Block, store: TensorStore[Any], *, message_size: int = 1) -> None:
        """Move a block to the store, in a message of ``message_size`` blocks and states."""
        (start, stop, saved), tensors = block, list[Tensor]()

        def take(tensor: Tensor) -> Tensor:
            tensors.append(tensor)
            return tensor.new_empty(0)

        self.put([(start, stop, _carry(saved, take))])
        store.keep(-1 - start, tensors, message_size=message_size)

    def fetch(self, start: int, stop: int, store: TensorStore[Any]) -> Iterator[Block]:
        """Yield the caches of steps ``start`` to ``stop``. Other steps of their blocks go back to the store."""
        for first, last, saved in self._pop(self._find_places(start, stop)):
            tensors = iter(store.fetch(-1 - first))
            fetched = _carry(saved, lambda _, tensors=tensors: next(tensors))  # type: ignore[misc]
            store.drop(-1 - first)
            inside, outside = _split((first, last, fetched), start, stop)
            for block in outside:
                self.keep(block, store)
            yield inside


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
