"""Prices a whole tree in seconds and bytes, by counting its parts or by simulation.

Actions and memory are counted with equal parts counted once.
"""

from __future__ import annotations

from typing import NamedTuple

from ckptplan.model.prediction import COUNTS, Totals
from ckptplan.model.split import Choice, Where
from ckptplan.model.step_costs import StepCosts
from ckptplan.recursion.tree import Decision, Part, Tree, drop_idle_slot, parts_after
from ckptplan.schedule.simulator import play


class Tally(NamedTuple):
    """Counts of one part, beyond the first run of its steps, as in ``Totals``.

    ``local_bytes`` is the peak of checkpoints and tapes, and ``remote_states`` the peak in remote memory. Both
    include the part's own first state.
    """

    recomputed_steps: int = 0
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


#: The counts come first in a tally, the peaks last.
COUNTED = Tally._fields[:-2]


class _Place(NamedTuple):
    """A part, whether it starts with the ragged first chunk, and whether its local slot is still empty."""

    part: Part
    ragged: bool
    unsaved: bool = False


def tally(tree: Tree, *, state_bytes: int, tape_bytes: int) -> Tally:
    """Return the counts of a whole schedule, in steps. Tests check that they equal the simulator's.

    Raises KeyError for a part without a decision.
    """
    counter = _TreeCounter(tree, state_bytes, tape_bytes)
    root = _Place(tree.root, ragged=counter.missing > 0)
    known: dict[_Place, Tally] = tree.counted.setdefault((state_bytes, tape_bytes), {})
    # A place waits twice: until it is looked at, and until the places after it are known.
    waiting: list[tuple[_Place, list[_Place] | None]] = [(root, None)]
    while waiting:
        place, after = waiting.pop()
        if place in known:
            continue
        decision = tree.decisions[place.part]
        if after is None:
            after = _places_after(place, decision, parts_after(place.part, decision, tree.sizes))
            waiting.append((place, after))
            waiting.extend((following, None) for following in after if following not in known)
            continue
        executed = drop_idle_slot(place.part, decision, tree.sizes) if place.unsaved else place.part
        known[place] = counter.combine(
            executed, decision, [known[one] for one in after], ragged=place.ragged, unsaved=place.unsaved
        )
    return known[root]


def know_counts(tree: Tree, counts: Tally, *, state_bytes: int, tape_bytes: int) -> None:
    """Tell the counts of a whole schedule of single steps, so that ``tally`` need not go through its parts."""
    tree.counted.setdefault((state_bytes, tape_bytes), {})[_Place(tree.root, ragged=False)] = counts


def _places_after(place: _Place, decision: Decision, after: tuple[Part, ...]) -> list[_Place]:
    """Return the places of the parts after a decision; segments give the first one and the others."""
    choice = decision.choice
    if choice in (Choice.CHECKPOINT, Choice.FETCH, Choice.OFFLOAD):
        return [_Place(after[0], place.ragged, unsaved=choice is Choice.CHECKPOINT)]
    if choice in (Choice.SPLIT, Choice.SPLIT_RECORD, Choice.ADVANCE):
        # The rest's first state is not in a slot yet. (This matters only for LOCAL parts.)
        before = [_Place(one, ragged=False, unsaved=one.where is Where.LOCAL) for one in after[:-1]]
        return [*before, _Place(after[-1], place.ragged)]
    if choice is Choice.SEGMENTS:
        rest, segment = after
        return [_Place(rest, ragged=False), _Place(segment, place.ragged), _Place(segment, ragged=False)]
    return [_Place(one, ragged=False) for one in after]


class _TreeCounter:
    def __init__(self, tree: Tree, state_bytes: int, tape_bytes: int) -> None:
        self.chunk, self.state_bytes, self.tape_bytes = tree.chunk, state_bytes, tape_bytes
        #: Steps that the ragged first chunk lacks.
        self.missing = tree.root.steps * tree.chunk - tree.steps

    def combine(
        self, part: Part, decision: Decision, after: list[Tally], *, ragged: bool, unsaved: bool
    ) -> Tally:
        choice = decision.choice
        lacking = self.missing if ragged else 0
        local = self.state_bytes if part.where is Where.LOCAL else 0
        remote = 1 if part.where is Where.REMOTE else 0
        if choice in (Choice.TAPE, Choice.RECORD):
            steps = part.steps if choice is Choice.TAPE else max(decision.length, 1)
            return self._record(steps, after, local=local, remote=remote, lacking=lacking)
        if choice in (Choice.CHECKPOINT, Choice.FETCH):
            loads = after[0].local_loads + (1 if choice is Choice.FETCH else 0)
            return after[0]._replace(local_loads=loads, remote_states=max(remote, after[0].remote_states))
        if choice is Choice.OFFLOAD:
            return after[0]._replace(remote_writes=after[0].remote_writes + 1)
        if choice is Choice.SEGMENTS:
            return self._count_segments(decision, after, lacking=lacking)
        # Only a part that is split keeps its first state, so only its slot has to be filled.
        saved = 1 if unsaved and local else 0
        return self._split(decision, after, local=local, remote=remote, lacking=lacking, saved=saved)

    def _record(self, steps: int, after: list[Tally], *, local: int, remote: int, lacking: int) -> Tally:
        held = (steps * self.chunk - lacking) * self.tape_bytes
        if not after:
            return Tally(chunks=1, local_bytes=max(local, held), remote_states=remote)
        rest = after[0]
        return rest._replace(
            chunks=rest.chunks + 1,
            local_bytes=max(local, held + rest.local_bytes),
            remote_states=max(remote, rest.remote_states),
        )

    def _split(
        self,
        decision: Decision,
        after: list[Tally],
        *,
        local: int,
        remote: int,
        lacking: int,
        saved: int,
    ) -> Tally:
        recorded = max(decision.repeats, 1) if decision.choice is Choice.SPLIT_RECORD else 0
        first = after[-1]
        rest = after[0] if len(after) == 2 else Tally()
        again = (decision.length - recorded) * self.chunk - lacking
        held = local + recorded * self.chunk * self.tape_bytes
        return Tally(
            recomputed_steps=rest.recomputed_steps + again + first.recomputed_steps,
            remote_writes=rest.remote_writes + first.remote_writes,
            remote_reads=rest.remote_reads + remote + first.remote_reads,
            advances=rest.advances + 1 + first.advances,
            chunks=rest.chunks + (1 if recorded else 0) + first.chunks,
            local_saves=rest.local_saves + first.local_saves + saved,
            local_loads=rest.local_loads + 1 - remote + first.local_loads,
            local_bytes=max(held + rest.local_bytes, first.local_bytes),
            remote_states=max(remote + rest.remote_states, first.remote_states),
        )

    def _count_segments(self, decision: Decision, after: list[Tally], *, lacking: int) -> Tally:
        length, repeats = decision.length, decision.repeats
        rest, first, other = after
        own = Tally(
            recomputed_steps=repeats * length * self.chunk - lacking,
            remote_writes=repeats,
            remote_reads=repeats,
            advances=repeats,
        )
        return _add_counts((own, 1), (rest, 1), (first, 1), (other, repeats - 1))._replace(
            local_bytes=max(rest.local_bytes, first.local_bytes, other.local_bytes if repeats > 1 else 0),
            remote_states=max(
                repeats + rest.remote_states,
                first.remote_states,
                repeats - 1 + other.remote_states if repeats > 1 else 0,
            ),
        )


def _add_counts(*parts: tuple[Tally, int]) -> Tally:
    """Return the sum of counts, each taken a number of times; peaks do not add up and are left at 0."""
    return Tally(*(sum(times * counts[place] for counts, times in parts) for place in range(len(COUNTED))))


#: The longest schedule whose time may be found by simulation, and the steps of all those of a front together.
MOST_PLAYED = 200_000
MOST_PLAYED_IN_ALL = 200_000


def memory_variants(costs: StepCosts) -> tuple[bool, ...]:
    """Return the variants to solve separately: with remote memory (True) and without (False).

    If transfers are serial, the variant with remote memory includes the other. If they overlap compute, they
    need buffers, and only a simulation gives the time of a schedule, which takes too long for a long one.
    """
    if not costs.overlaps_compute:
        return (True,)
    return (True, False) if costs.steps <= MOST_PLAYED else (False,)


def price_tree(tree: Tree, *, costs: StepCosts) -> Totals:
    """Return the cost of a tree: counted part by part, or simulated if its transfers overlap compute."""
    if is_played(tree, costs=costs):
        return play(tree.actions(), costs=costs)
    return _price_counts(tally(tree, state_bytes=costs.state_bytes, tape_bytes=costs.tape_bytes), costs)


def is_played(tree: Tree, *, costs: StepCosts) -> bool:
    """Return whether only a simulation gives the cost of a tree."""
    counted = tally(tree, state_bytes=costs.state_bytes, tape_bytes=costs.tape_bytes)
    return costs.overlaps_compute and counted.remote_writes + counted.remote_reads > 0


def least_seconds_of(tree: Tree, *, costs: StepCosts) -> float:
    """Return what a tree takes if its transfers are serial, and at least if they overlap compute."""
    counted = tally(tree, state_bytes=costs.state_bytes, tape_bytes=costs.tape_bytes)
    if costs.overlaps_compute:
        counted = counted._replace(remote_writes=0, remote_reads=0)
    return _price_counts(counted, costs).seconds


def _price_counts(counted: Tally, costs: StepCosts) -> Totals:
    return Totals(
        seconds=float(costs.serial_seconds(counted)),
        local_peak_bytes=counted.local_bytes + costs.resident_bytes,
        remote_peak_bytes=counted.remote_states * costs.remote_state_bytes,
        **{name: getattr(counted, name) for name in COUNTS},
    )
