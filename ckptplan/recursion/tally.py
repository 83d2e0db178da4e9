"""Counts the actions and the memory of a tree of decisions; equal parts are counted once."""

from __future__ import annotations

from typing import NamedTuple

from ckptplan.model.split import Choice, Where
from ckptplan.recursion.schedule_tree import Tree
from ckptplan.recursion.tree import Decision, Part, drop_idle_slot, parts_after


class Tally(NamedTuple):
    """Counts of one part, beyond the first run of its steps.

    ``local_bytes`` is the peak of checkpoints and tapes, and ``remote_states`` the peak in remote memory. Both
    include the part's own first state.
    """

    recomputed_steps: int = 0
    remote_writes: int = 0
    remote_reads: int = 0
    local_bytes: int = 0
    remote_states: int = 0


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
    known: dict[_Place, Tally] = {}
    waiting = [root]
    while waiting:
        place = waiting[-1]
        if place not in known:
            decision = tree.decisions[place.part]
            after = _places_after(place, decision, parts_after(place.part, decision, tree.sizes))
            unknown = [following for following in after if following not in known]
            if unknown:
                waiting.extend(unknown)
                continue
            executed = drop_idle_slot(place.part, decision, tree.sizes) if place.unsaved else place.part
            known[place] = counter.combine(
                executed, decision, [known[one] for one in after], ragged=place.ragged
            )
        waiting.pop()
    return known[root]


def _places_after(place: _Place, decision: Decision, after: tuple[Part, ...]) -> list[_Place]:
    """Return the places of the parts after a decision; segments give the first one and the others."""
    choice = decision.choice
    if choice in (Choice.CHECKPOINT, Choice.OFFLOAD):
        return [_Place(after[0], place.ragged, unsaved=choice is Choice.CHECKPOINT)]
    if choice in (Choice.SPLIT, Choice.SPLIT_RECORD):
        before = [_Place(one, ragged=False, unsaved=True) for one in after[:-1]]
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

    def combine(self, part: Part, decision: Decision, after: list[Tally], *, ragged: bool) -> Tally:
        choice, length, repeats = decision
        lacking = self.missing if ragged else 0
        local = self.state_bytes if part.where is Where.LOCAL else 0
        remote = 1 if part.where is Where.REMOTE else 0
        if choice is Choice.TAPE:
            tapes = part.steps * self.chunk - lacking
            return Tally(local_bytes=max(local, tapes * self.tape_bytes), remote_states=remote)
        if choice is Choice.CHECKPOINT:
            return after[0]._replace(remote_states=max(remote, after[0].remote_states))
        if choice is Choice.OFFLOAD:
            return after[0]._replace(remote_writes=after[0].remote_writes + 1)
        if choice is Choice.RECORD:
            rest = after[0] if after else Tally()
            held = (self.chunk - lacking) * self.tape_bytes
            return rest._replace(
                local_bytes=max(local, held + rest.local_bytes), remote_states=max(remote, rest.remote_states)
            )
        if choice is Choice.SEGMENTS:
            rest, first, other = after
            return Tally(
                recomputed_steps=rest.recomputed_steps + repeats * length * self.chunk - lacking
                + first.recomputed_steps + (repeats - 1) * other.recomputed_steps,
                remote_writes=rest.remote_writes + repeats
                + first.remote_writes + (repeats - 1) * other.remote_writes,
                remote_reads=rest.remote_reads + repeats
                + first.remote_reads + (repeats - 1) * other.remote_reads,
                local_bytes=max(rest.local_bytes, first.local_bytes, other.local_bytes if repeats > 1 else 0),
                remote_states=max(
                    repeats + rest.remote_states,
                    first.remote_states,
                    repeats - 1 + other.remote_states if repeats > 1 else 0,
                ),
            )  # fmt: skip
        steps, held = (length, 0) if choice is Choice.SPLIT else (length - 1, self.chunk * self.tape_bytes)
        first = after[-1]
        rest = after[0] if len(after) == 2 else Tally()
        return Tally(
            recomputed_steps=rest.recomputed_steps + steps * self.chunk - lacking + first.recomputed_steps,
            remote_writes=rest.remote_writes + first.remote_writes,
            remote_reads=rest.remote_reads + first.remote_reads + remote,
            local_bytes=max(local + held + rest.local_bytes, first.local_bytes),
            remote_states=max(remote + rest.remote_states, first.remote_states),
        )
