"""Prices a whole tree in seconds and bytes, part by part; equal parts are counted once.

If transfers overlap compute, compute waits for them (``cost/overlap.py``), and how long a part waits depends
on the transfers before it. Let four times be measured against the compute so far: ``v[0]`` is the wait of
compute, the write buffer is free at ``v[1]``, the read buffer at ``v[2]``, and the part's first state arrives
in remote memory at ``v[3]``. With w and r the times of a message each way,

    d of compute    v[1], v[2] and v[3] fall by d
    a write         v[0] = max(v[0], v[1]);  v[1] = v[3] = v[0] + w
    a read          v[0] = v[2] = max(v[0], v[2] + r, v[3] + r)
    a free          v[0] = max(v[0], v[3])

Each of these is linear if sums are products and the maximum is the sum (max-plus algebra). So a part is a
matrix of four rows, the product of the matrices of its items, and repeated segments are a power. Segments are
read in the reverse order of their writes: after the first read, all states have arrived.
"""

from __future__ import annotations

from functools import partial
from itertools import groupby
from math import inf
from typing import Any, NamedTuple, TypeAlias

import numpy as np
import numpy.typing as npt

from ckptplan.model.prediction import COUNTS, Totals
from ckptplan.model.split import Where
from ckptplan.model.step_costs import StepCosts
from ckptplan.recursion.tree import PlacedPart, Tree, unfold
from ckptplan.schedule.actions import Action, Advance, Backward, Free, Load, Record, Save, Tier, Transfer
from ckptplan.schedule.simulator import play


class Tally(NamedTuple):
    """Counts of one part, beyond the first run of its steps, as in ``Totals``.

    ``local_bytes`` is the peak of checkpoints, tapes and caches, and ``remote_states`` the peak in remote
    memory. Both include the part's own first state. A part that keeps the caches of its steps holds all of them
    at its peak, as no memory is released before its first step is reversed. If transfers overlap compute, two
    buffers raise the peak by ``buffer_bytes`` from the first message on, and a part with messages has the
    matrices of its ``waits``, with the caches of its steps and without them when it begins.
    """

    recomputed_steps: int = 0
    recomputed_without_cache: int = 0
    remote_writes: int = 0
    remote_reads: int = 0
    advances: int = 0
    chunks: int = 0
    local_saves: int = 0
    local_loads: int = 0
    local_bytes: int = 0
    remote_states: int = 0
    buffer_bytes: int = 0
    waits: tuple[npt.NDArray[np.float64], npt.NDArray[np.float64]] | None = None

    @property
    def messages(self) -> int:
        """Messages in both directions: each state is one of its own."""
        return self.remote_writes + self.remote_reads

    @property
    def offloaded_caches(self) -> int:
        """The steps whose caches move: none."""
        return 0


#: The actions and pieces of a part, each with the number of times that it occurs.
_Items: TypeAlias = list[tuple[Action | PlacedPart, int]]


def tally(tree: Tree, *, state_bytes: int, tape_bytes: int, cache_bytes: int = 0) -> Tally:
    """Return the counts of a whole schedule, in steps. Tests check that they equal the simulator's.

    Raises KeyError for a part without a decision.
    """
    return _TreeCounter(tree, (state_bytes, tape_bytes, cache_bytes)).count_all()


def _count_at(tree: Tree, costs: StepCosts) -> Tally:
    """Return the counts of a whole schedule, and its waits if transfers overlap compute."""
    sizes = costs.state_bytes, costs.tape_bytes, costs.cache_bytes
    return _TreeCounter(tree, sizes, costs if costs.overlaps_compute else None).count_all()


def set_tally(tree: Tree, counts: Tally, *, state_bytes: int, tape_bytes: int) -> None:
    """Store the counts that a closed form gives, so that ``tally`` makes no decisions of the tree."""
    counter = _TreeCounter(tree, (state_bytes, tape_bytes, 0))
    counter.tallies[counter.root] = counts


class _TreeCounter:
    """Counts the actions of a part, from the counts of the parts that its decision leaves."""

    def __init__(self, tree: Tree, sizes: tuple[int, int, int], costs: StepCosts | None = None) -> None:
        self.state_bytes, tape_bytes, self.cache_bytes = sizes
        self.costs = costs
        self.tree, self.chunk, self.recorded_bytes = tree, tree.chunk, tape_bytes + self.cache_bytes
        #: Whether all caches are kept, in any part.
        self.keeps_all = not tree.sizes.cache
        #: Steps that the ragged first chunk lacks.
        self.missing = tree.root.steps * tree.chunk - tree.steps
        known: tuple[Any, dict[PlacedPart, Tally]] = tree.counted.get("parts", (None, {}))
        if known[0] != (sizes, costs):
            # Parts that move nothing have no waits.
            same = known[1].items() if known[0] and known[0][0] == sizes else ()
            unmoved = {piece: counted for piece, counted in same if not counted.messages}
            known = tree.counted["parts"] = (sizes, costs), unmoved
        self.tallies = known[1]
        #: The whole sequence. It begins at step 0 only if its first chunk is ragged.
        self.root = PlacedPart(tree.root, start=0 if self.missing else 1)

    def count_all(self) -> Tally:
        """Return the counts of the whole sequence."""
        tallies = self.tallies
        # A piece waits twice: until it is unfolded, and until the pieces in it are counted.
        waiting: list[tuple[PlacedPart, _Items, list[PlacedPart]]] = [(self.root, [], [])]
        while waiting:
            piece, items, after = waiting.pop()
            if piece in tallies:
                continue
            if items:
                counted = self.count(piece, items, [tallies[child] for child in after])
                if self.costs is not None and counted.messages:
                    timed = partial(self.time, piece, items, after, self.costs)
                    counted = counted._replace(waits=(timed(lacks=False), timed(lacks=True)))
                tallies[piece] = counted
                continue
            items = unfold(piece, self.tree.decisions[piece.part], self.tree.sizes)
            # Wherever a piece begins, its counts are the same, except at the ragged first chunk.
            after = [
                child if child.start < 2 else child._replace(start=1)
                for child, _ in items
                if isinstance(child, PlacedPart)
            ]
            waiting.append((piece, items, after))
            waiting += [(child, [], []) for child in after if child not in tallies]
        return tallies[self.root]

    def keeps_caches(self, piece: PlacedPart) -> bool:
        """Return whether a part keeps the caches of all its steps, each until its step is reversed."""
        return self.keeps_all or piece.part.cached

    def count_steps(self, steps: int, start: int) -> int:
        """Return the steps of ``steps`` chunks that begin at chunk ``start``."""
        return steps * self.chunk - (0 if start else self.missing)

    def count(self, piece: PlacedPart, items: _Items, after: list[Tally]) -> Tally:
        writes = reads = advances = chunks = saves = loads = without = 0
        keeps, buffers = self.keeps_caches(piece), 2 * self.state_bytes
        local, remote = local_peak, remote_peak = self._held_at_start(piece, keeps=keeps)
        # The peak with both buffers from the first message on.
        buffered_peak, inners = local_peak, iter(after)
        # If caches are kept, the part holds them from its start on, and a recorded step only adds its tape.
        added_bytes = self.recorded_bytes - keeps * self.cache_bytes
        # Steps that run again in this part, and within the parts in it (negative until all runs are added).
        ran, ran_within = -self.count_steps(piece.part.steps, piece.start), 0
        for item, times in items:
            match item:
                case PlacedPart(part=part, start=start):
                    # Added up by name for speed: fronts count tens of thousands of parts.
                    inner = next(inners)
                    again, its_without, its_writes, its_reads, *its_actions = inner[:8]
                    its_advances, its_chunks, its_saves, its_loads = its_actions
                    its_buffers = buffers if writes + reads else inner.buffer_bytes
                    ran += times * (again + self.count_steps(part.steps, start))
                    ran_within, without = ran_within + times * again, without + times * its_without
                    writes, reads = writes + times * its_writes, reads + times * its_reads
                    advances, chunks = advances + times * its_advances, chunks + times * its_chunks
                    saves, loads = saves + times * its_saves, loads + times * its_loads
                    # The part has its first state, and frees it.
                    own_local, own_remote = self._held_at_start(item, keeps=keeps)
                    its_peak = local - own_local + inner.local_bytes
                    buffered_peak = max(buffered_peak, its_peak + its_buffers)
                    its_remote_peak = remote - own_remote + inner.remote_states
                    local_peak, remote_peak = max(local_peak, its_peak), max(remote_peak, its_remote_peak)
                    local, remote = local - times * own_local, remote - times * own_remote
                case Advance(start, stop):
                    advances += times
                    ran += times * self.count_steps(stop - start, start)
                case Record(start, stop):
                    chunks += 1
                    recorded = self.count_steps(stop - start, start)
                    ran, local = ran + recorded, local + recorded * added_bytes
                case Backward(start, stop):
                    local -= self.count_steps(stop - start, start) * self.recorded_bytes
                case Save(tier=Tier.LOCAL):
                    saves, local = saves + 1, local + self.state_bytes
                case Save():
                    writes, remote = writes + times, remote + times
                case Load(tier=Tier.LOCAL):
                    loads += 1
                case Load():
                    reads += 1
                case Free(tier=Tier.LOCAL):
                    local -= self.state_bytes
                case Free():
                    remote -= 1
                case Transfer():
                    # From remote memory: no part moves a state there from local memory.
                    reads += 1
                    local, remote = local + self.state_bytes, remote - 1
            local_peak, remote_peak = max(local_peak, local), max(remote_peak, remote)
            buffered_peak = max(buffered_peak, local + buffers if writes + reads else local)
        without += (not keeps) * (ran - ran_within)
        return Tally(
            *(ran, without, writes, reads, advances, chunks, saves, loads),
            *(local_peak, remote_peak, buffered_peak - local_peak),
        )

    def _held_at_start(self, piece: PlacedPart, *, keeps: bool) -> tuple[int, int]:
        """Return the local bytes and the remote states that are held for a part when it begins.

        If caches are kept, the local bytes include the caches of its steps.
        """
        (where, steps, _, _), start, unsaved, *_ = piece
        local = self.state_bytes if where is Where.LOCAL and not unsaved else 0
        if keeps and self.cache_bytes:
            local += self.count_steps(steps, start) * self.cache_bytes
        return local, int(where is Where.REMOTE)

    def time(
        self, piece: PlacedPart, items: _Items, after: list[PlacedPart], costs: StepCosts, *, lacks: bool
    ) -> npt.NDArray[np.float64]:
        """Return the matrix of the waits of a part.

        If it ``lacks`` the caches of its steps when it begins, their first runs within it take f, else r.
        """
        keeps, run_seconds = (
            self.keeps_caches(piece),
            costs.forward_seconds if lacks else costs.recompute_seconds,
        )
        matrix, pieces = _AT_ONCE, enumerate(after)
        for times, group in groupby(items, key=lambda pair: pair[1]):
            before, matrix = matrix, _AT_ONCE.copy()
            for item, _ in group:
                seconds = 0.0
                match item:
                    case PlacedPart():
                        place, child = next(pieces)
                        # The first part has the last steps. The steps of the others have run before.
                        child_lacks = not keeps or (lacks and not place)
                        seconds = self._compute_seconds(child, costs, lacks=child_lacks)
                        if (waits := self.tallies[child].waits) is not None:
                            arrival = matrix[_ARRIVAL] - seconds
                            matrix, seconds = _follow(matrix, waits[child_lacks]), 0.0
                            matrix[_ARRIVAL] = arrival
                    case Advance(start, stop):
                        seconds = self.count_steps(stop - start, start) * run_seconds + costs.advance_seconds
                    case Record(start, stop):
                        a_step = run_seconds + costs.record_overhead_seconds
                        seconds = self.count_steps(stop - start, start) * a_step + costs.chunk_seconds
                    case Backward(start, stop):
                        seconds = self.count_steps(stop - start, start) * costs.backward_seconds
                    case Save(tier=Tier.LOCAL):
                        seconds = costs.save_seconds
                    case Load(tier=Tier.LOCAL):
                        seconds = costs.load_seconds
                    case Save():
                        matrix[_WAIT] = np.maximum(matrix[_WAIT], matrix[_WRITE])
                        write_seconds = costs.message_seconds + costs.write_seconds
                        matrix[_WRITE] = matrix[_ARRIVAL] = matrix[_WAIT] + write_seconds
                    case Load() | Transfer():
                        read_seconds = costs.message_seconds + costs.read_seconds
                        arrived = np.maximum(matrix[_READ], matrix[_ARRIVAL]) + read_seconds
                        matrix[_WAIT] = matrix[_READ] = np.maximum(matrix[_WAIT], arrived)
                    case Free(tier=Tier.REMOTE):
                        matrix[_WAIT] = np.maximum(matrix[_WAIT], matrix[_ARRIVAL])
                matrix[_WRITE:] -= seconds
            matrix = _follow(before, _repeat(matrix, times))
        return matrix

    def _compute_seconds(self, piece: PlacedPart, costs: StepCosts, *, lacks: bool) -> float:
        """Return the seconds of a part without its transfers."""
        a_step = costs.forward_seconds if lacks else costs.recompute_seconds
        a_step += costs.record_overhead_seconds + costs.backward_seconds
        seconds, counted = self.count_steps(piece.part.steps, piece.start) * a_step, self.tallies[piece]
        return float(seconds + costs.again_seconds(counted) + costs.action_seconds(counted))


#: The rows and columns of a matrix: the wait of compute, when either buffer is free, when the state arrives.
_WAIT, _WRITE, _READ, _ARRIVAL = range(4)
#: The matrix of a part that takes no time.
_AT_ONCE = np.where(np.eye(4, dtype=np.bool_), 0.0, -inf)


def _follow(first: npt.NDArray[np.float64], second: npt.NDArray[np.float64]) -> npt.NDArray[np.float64]:
    """Return the matrix of two parts one after the other."""
    product: npt.NDArray[np.float64] = (second[:, :, None] + first).max(axis=1)
    return product


def _repeat(matrix: npt.NDArray[np.float64], times: int) -> npt.NDArray[np.float64]:
    """Return the matrix of a part that occurs several times in a row."""
    repeated = matrix
    for digit in f"{times:b}"[1:]:
        repeated = _follow(repeated, repeated)
        if digit == "1":
            repeated = _follow(repeated, matrix)
    return repeated


def price_tree(tree: Tree, *, costs: StepCosts) -> Totals:
    """Return the cost of a tree: counted part by part, or simulated if caches move."""
    if tree.offloads:
        return play(tree.actions(), costs=costs)
    counted = _count_at(tree, costs)
    local_bytes, seconds = counted.local_bytes, costs.serial_seconds(counted)
    if counted.waits is not None:
        local_bytes += counted.buffer_bytes
        # Both buffers are free at the start, and no cache is there.
        seconds = costs.compute_seconds(counted) + counted.waits[True][_WAIT, :_ARRIVAL].max()
    charged = costs if counted.chunks == costs.steps else costs.with_chunk_workspace
    return Totals(
        seconds=float(seconds),
        local_peak_bytes=charged.resident_bytes + local_bytes,
        remote_peak_bytes=counted.remote_states * costs.remote_state_bytes,
        **{name: getattr(counted, name) for name in COUNTS},
    )


def count_compute_seconds(tree: Tree, *, costs: StepCosts) -> float:
    """Return the seconds of a tree without its transfers, a lower bound if they overlap compute."""
    return float(costs.compute_seconds(_count_at(tree, costs)))
