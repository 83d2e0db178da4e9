"""Prices a whole tree in seconds and bytes, by counting its parts or by simulation.

Actions and memory are counted with equal parts counted once.
"""

from __future__ import annotations

from typing import NamedTuple, TypeAlias

from ckptplan.model.prediction import COUNTS, Totals
from ckptplan.model.split import Where
from ckptplan.model.step_costs import StepCosts
from ckptplan.recursion.problem import MOST_SIMULATED
from ckptplan.recursion.tree import PlacedPart, Tree, unfold
from ckptplan.schedule.actions import Action, Advance, Backward, Free, Load, Record, Save, Tier, Transfer
from ckptplan.schedule.simulator import play


class Tally(NamedTuple):
    """Counts of one part, beyond the first run of its steps, as in ``Totals``.

    ``local_bytes`` is the peak of checkpoints, tapes and caches, and ``remote_states`` the peak in remote
    memory. Both include the part's own first state. A part that keeps the caches of its steps holds all of them
    at its peak, as no memory is released before its first step is reversed.
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
    counter = _TreeCounter(tree, state_bytes, tape_bytes, cache_bytes)
    tallies, root = counter.tallies, counter.root
    # A piece waits twice: until it is unfolded, and until the pieces in it are counted.
    waiting: list[tuple[PlacedPart, _Items, list[PlacedPart]]] = [(root, [], [])]
    while waiting:
        piece, items, after = waiting.pop()
        if piece in tallies:
            continue
        if items:
            tallies[piece] = counter.count(piece, items, [tallies[child] for child in after])
            continue
        items = unfold(piece, tree.decisions[piece.part], tree.sizes)
        # Wherever a piece begins, its counts are the same, except at the ragged first chunk.
        after = [
            child if child.start < 2 else child._replace(start=1)
            for child, _ in items
            if isinstance(child, PlacedPart)
        ]
        waiting.append((piece, items, after))
        waiting += [(child, [], []) for child in after if child not in tallies]
    return tallies[root]


def set_tally(tree: Tree, counts: Tally, *, state_bytes: int, tape_bytes: int) -> None:
    """Store the counts that a closed form gives, so that ``tally`` makes no decisions of the tree."""
    counter = _TreeCounter(tree, state_bytes, tape_bytes)
    counter.tallies[counter.root] = counts


class _TreeCounter:
    """Counts the actions of a part, from the counts of the parts that its decision leaves."""

    def __init__(self, tree: Tree, state_bytes: int, tape_bytes: int, cache_bytes: int = 0) -> None:
        self.chunk, self.state_bytes = tree.chunk, state_bytes
        self.tape_bytes, self.cache_bytes = tape_bytes, cache_bytes
        #: Whether all caches are kept, in any part.
        self.keeps_all = not tree.sizes.cache
        #: Steps that the ragged first chunk lacks.
        self.missing = tree.root.steps * tree.chunk - tree.steps
        self.tallies: dict[PlacedPart, Tally] = tree.counted.setdefault(
            (state_bytes, tape_bytes, cache_bytes), {}
        )
        #: The whole sequence. It begins at step 0 only if its first chunk is ragged.
        self.root = PlacedPart(tree.root, start=0 if self.missing else 1)

    def count(self, piece: PlacedPart, items: _Items, after: list[Tally]) -> Tally:
        writes = reads = advances = chunks = saves = loads = without = 0
        keeps = self.keeps_all or piece.part.cached
        local, remote = local_peak, remote_peak = self._held_at_start(piece, keeps=keeps)
        inners = iter(after)
        chunk, lacking = self.chunk, 0 if piece.start else self.missing
        # If caches are kept, the part holds them from its start on, and a recorded step only adds its tape.
        recorded_bytes = self.tape_bytes + self.cache_bytes
        added_bytes = recorded_bytes - keeps * self.cache_bytes
        # Steps that run again in this part, and within the parts in it (negative until all runs are added).
        ran, ran_within = lacking - piece.part.steps * chunk, 0
        for item, times in items:
            match item:
                case PlacedPart(part=part, start=start):
                    # Added up by name for speed: fronts count tens of thousands of parts.
                    inner = next(inners)
                    again, its_without, its_writes, its_reads = inner[:4]
                    its_advances, its_chunks, its_saves, its_loads = inner[4:-2]
                    ran += times * (again + part.steps * chunk - (0 if start else lacking))
                    ran_within, without = ran_within + times * again, without + times * its_without
                    writes, reads = writes + times * its_writes, reads + times * its_reads
                    advances, chunks = advances + times * its_advances, chunks + times * its_chunks
                    saves, loads = saves + times * its_saves, loads + times * its_loads
                    # The part has its first state, and frees it.
                    own_local, own_remote = self._held_at_start(item, keeps=keeps)
                    local_peak = max(local_peak, local - own_local + inner.local_bytes)
                    remote_peak = max(remote_peak, remote - own_remote + inner.remote_states)
                    local, remote = local - times * own_local, remote - times * own_remote
                case Advance(start, stop):
                    advances += times
                    ran += times * ((stop - start) * chunk - (0 if start else lacking))
                case Record(start, stop):
                    chunks += 1
                    recorded = (stop - start) * chunk - (0 if start else lacking)
                    ran += recorded
                    local += recorded * added_bytes
                case Backward(start, stop):
                    local -= ((stop - start) * chunk - (0 if start else lacking)) * recorded_bytes
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
        without += (not keeps) * (ran - ran_within)
        return Tally(ran, without, writes, reads, advances, chunks, saves, loads, local_peak, remote_peak)

    def _held_at_start(self, piece: PlacedPart, *, keeps: bool) -> tuple[int, int]:
        """Return the local bytes and the remote states that are held for a part when it begins.

        If caches are kept, the local bytes include the caches of its steps.
        """
        (where, steps, _, _), start, unsaved, *_ = piece
        local = self.state_bytes if where is Where.LOCAL and not unsaved else 0
        if keeps and self.cache_bytes:
            local += (steps * self.chunk - (0 if start else self.missing)) * self.cache_bytes
        return local, int(where is Where.REMOTE)


def memory_variants(costs: StepCosts) -> tuple[bool, ...]:
    """Return the variants to solve separately: with remote memory (True) and without (False).

    If transfers are serial, the variant with remote memory includes the other. If they overlap compute, they
    need buffers, and only a simulation gives the time of a schedule, which takes too long for a long one.
    """
    if not costs.overlaps_compute:
        return (True,)
    return (True, False) if costs.steps <= MOST_SIMULATED else (False,)


def price_tree(tree: Tree, *, costs: StepCosts) -> Totals:
    """Return the cost of a tree: counted part by part, or simulated if transfers overlap or move caches."""
    if needs_simulation(tree, costs=costs):
        return play(tree.actions(), costs=costs)
    return _price_counts(_tally_at(tree, costs), costs)


def needs_simulation(tree: Tree, *, costs: StepCosts) -> bool:
    """Return whether only a simulation gives the cost of a tree."""
    if tree.offloads:
        return True
    counted = _tally_at(tree, costs)
    return costs.overlaps_compute and counted.remote_writes + counted.remote_reads > 0


def least_seconds_of(tree: Tree, *, costs: StepCosts) -> float:
    """Return the seconds of a tree; a lower bound, without transfers, if transfers overlap compute."""
    counted = _tally_at(tree, costs)
    if costs.overlaps_compute:
        counted = counted._replace(remote_writes=0, remote_reads=0)
    return _price_counts(counted, costs).seconds


def _tally_at(tree: Tree, costs: StepCosts) -> Tally:
    sizes = {"state_bytes": costs.state_bytes, "tape_bytes": costs.tape_bytes, "cache_bytes": costs.cache_bytes}
    return tally(tree, **sizes)


def _price_counts(counted: Tally, costs: StepCosts) -> Totals:
    return Totals(
        seconds=float(costs.serial_seconds(counted)),
        local_peak_bytes=counted.local_bytes
        + (costs if counted.chunks == costs.steps else costs.with_chunk_workspace).resident_bytes,
        remote_peak_bytes=counted.remote_states * costs.remote_state_bytes,
        **{name: getattr(counted, name) for name in COUNTS},
    )
