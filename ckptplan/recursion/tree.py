"""Defines schedules as trees of decisions, which are made on demand, kept in a plan, and turned into actions.

A part is ``(where, steps, units)``: ``steps`` steps to reverse with ``units`` units of free local memory. Its
first state is

- UNSTORED: the working state only, and not stored;
- LOCAL: also in a local slot, which the part frees when it no longer needs the state;
- REMOTE: also in remote memory, likewise.

Equal parts have equal decisions, so a table of decisions by part is a whole schedule (docs/optimality.md
describes the grammar).
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, NamedTuple, TypeAlias

from ckptplan.errors import InputError
from ckptplan.model.record import Parameters
from ckptplan.model.split import FORMS, Choice, Split, Where
from ckptplan.schedule.actions import Action, Advance, Backward, Free, Load, Record, Save, Tier, Transfer


class Part(NamedTuple):
    """``steps`` steps, to be reversed with ``units`` units of free local memory."""

    where: Where
    steps: int
    units: int


class Decision(NamedTuple):
    """The first decision about a part; ``length`` and ``repeats`` are 0 if the choice has none."""

    choice: Choice
    length: int = 0
    repeats: int = 0


class UnitSizes(NamedTuple):
    """The sizes of a state and of the tape of a step, in whole units of local memory."""

    state: int
    tape: int


Decisions: TypeAlias = Mapping[Part, Decision]
Decide: TypeAlias = Callable[[Part], Decision]
_LOCAL, _REMOTE = Tier.LOCAL, Tier.REMOTE


class Piece(NamedTuple):
    """A pending part, which begins at step ``start``, or a pending action.

    ``unsaved`` says that the local slot of the part's first state is reserved but not yet filled, ``unread``
    that the first state is yet to be read from remote memory.
    """

    part: Part | None
    start: int
    action: Action | None = None
    unsaved: bool = False
    unread: bool = False


def parts_after(part: Part, decision: Decision, sizes: UnitSizes) -> tuple[Part, ...]:
    """Return the parts that a decision leaves, in the order in which they are reversed.

    ``SEGMENTS`` leaves the rest and one segment, which stands for all.
    """
    where, steps, units = part
    choice, length, repeats = decision
    after: tuple[Part, ...] = ()
    if choice is Choice.CHECKPOINT:
        after = (Part(Where.LOCAL, steps, units - sizes.state),)
    elif choice is Choice.OFFLOAD:
        after = (Part(Where.REMOTE, steps, units),)
    elif choice is Choice.FETCH:
        after = (Part(Where.LOCAL, steps, units - sizes.state),)
    elif choice is Choice.RECORD and steps > max(length, 1):
        recorded = max(length, 1)
        freed = sizes.state if where is Where.LOCAL else 0
        after = (Part(Where.UNSTORED, steps - recorded, units + freed - recorded * sizes.tape),)
    elif choice is Choice.ADVANCE:
        after = (Part(Where.UNSTORED, steps - length, units), Part(where, length, units))
    elif choice is Choice.SEGMENTS:
        rest = steps - repeats * length
        after = (Part(Where.UNSTORED, rest, units), Part(Where.REMOTE, length, units))
    elif choice is Choice.SPLIT and where is Where.LOCAL:
        after = (Part(where, steps - length, units - sizes.state), Part(where, length, units))
    elif choice is Choice.SPLIT:
        after = (Part(Where.UNSTORED, steps - length, units), Part(where, length, units))
    elif choice is Choice.SPLIT_RECORD:
        recorded = max(repeats, 1)
        rest_part = Part(Where.UNSTORED, steps - length, units - recorded * sizes.tape)
        after = (*([rest_part] if steps > length else []), Part(where, length - recorded, units))
    return after


def drop_idle_slot(part: Part, decision: Decision, sizes: UnitSizes) -> Part:
    """Return the part to execute if the first state of a LOCAL part is not yet in its slot.

    A decision that starts by freeing the slot needs no save: the part is UNSTORED, with the slot's units.
    """
    if part.where is Where.LOCAL and decision.choice in (Choice.TAPE, Choice.RECORD):
        return Part(Where.UNSTORED, part.steps, part.units + sizes.state)
    return part


def is_decision(part: Part, decision: Decision) -> bool:
    """Return whether a decision is possible for a part, regardless of the decisions after it."""
    where, steps, units = part
    choice, length, repeats = decision
    if choice in FORMS:
        # A closed form is about the whole sequence, and not a part of a tree.
        return False
    return {
        Choice.TAPE: True,
        Choice.RECORD: length <= steps,
        Choice.FETCH: where is Where.REMOTE,
        Choice.ADVANCE: where is Where.LOCAL and 1 <= length < steps,
        Choice.CHECKPOINT: where is not Where.LOCAL,
        Choice.OFFLOAD: where is Where.UNSTORED,
        Choice.SPLIT: where is not Where.UNSTORED and 1 <= length < steps,
        Choice.SPLIT_RECORD: where is not Where.UNSTORED and max(repeats, 1) < length <= steps,
        Choice.SEGMENTS: where is Where.UNSTORED and length >= 1 and 1 <= repeats * length < steps,
    }[choice] and min(steps, units + 1) > 0


def tree_actions(decisions: Decisions, root: Part, *, sizes: UnitSizes) -> Iterator[Action]:
    """Yield the actions of the schedule that decisions describe.

    Raises KeyError for a part without a decision.
    """
    waiting: list[Piece] = [Piece(root, 0)]
    while waiting:
        part, start, action, unsaved, unread = waiting.pop()
        if action is not None:
            yield action
        elif part is not None:
            decision = decisions[part]
            if unread and decision.choice is not Choice.FETCH:
                yield Load(start, _REMOTE)
            if unsaved:
                part = drop_idle_slot(part, decision, sizes)
                if part.where is Where.LOCAL:
                    yield Save(start, _LOCAL)
            now, later = _STEPS[decision.choice](part, decision, start, parts_after(part, decision, sizes))
            yield from now
            waiting.extend(reversed(later))


_Steps: TypeAlias = tuple[Iterator[Action] | tuple[Action, ...], list[Piece]]


def _free_first_state(part: Part, start: int) -> tuple[Action, ...]:
    """Return the action that frees the first state, if it is stored."""
    if part.where is Where.UNSTORED:
        return ()
    return (Free(start, _LOCAL if part.where is Where.LOCAL else _REMOTE),)


def _execute_tape(part: Part, _: Decision, start: int, __: tuple[Part, ...]) -> _Steps:
    stop = start + part.steps
    return (*_free_first_state(part, start), Record(start, stop), Backward(start, stop)), []


def _execute_checkpoint(part: Part, _: Decision, start: int, after: tuple[Part, ...]) -> _Steps:
    return _free_first_state(part, start), [Piece(after[0], start, unsaved=True)]


def _execute_offload(_: Part, __: Decision, start: int, after: tuple[Part, ...]) -> _Steps:
    return (Save(start, _REMOTE),), [Piece(after[0], start)]


def _execute_fetch(_: Part, __: Decision, start: int, after: tuple[Part, ...]) -> _Steps:
    return (Transfer((start,), _REMOTE, _LOCAL), Load(start, _LOCAL)), [Piece(after[0], start)]


def _execute_record(part: Part, decision: Decision, start: int, after: tuple[Part, ...]) -> _Steps:
    stop = start + max(decision.length, 1)
    rest = [Piece(one, stop) for one in after]
    backward = Piece(None, 0, Backward(start, stop))
    return (*_free_first_state(part, start), Record(start, stop)), [*rest, backward]


def _execute_split(part: Part, decision: Decision, start: int, after: tuple[Part, ...]) -> _Steps:
    middle = start + decision.length
    rest = Piece(after[0], middle, unsaved=True)
    return (Advance(start, middle),), [rest, *_come_back(part, after[1], start)]


def _come_back(part: Part, head: Part, start: int) -> list[Piece]:
    """Return the pieces that load the first state of a part and reverse its first steps."""
    if part.where is Where.REMOTE:
        return [Piece(head, start, unread=True)]
    return [Piece(None, 0, Load(start, _LOCAL)), Piece(head, start)]


def _execute_split_record(part: Part, decision: Decision, start: int, after: tuple[Part, ...]) -> _Steps:
    stop = start + decision.length
    middle = stop - max(decision.repeats, 1)
    now = (Advance(start, middle), Record(middle, stop))
    rest = [Piece(one, stop) for one in after[:-1]]
    backward = Piece(None, 0, Backward(middle, stop))
    return now, [*rest, backward, *_come_back(part, after[-1], start)]


def _execute_segments(_: Part, decision: Decision, start: int, after: tuple[Part, ...]) -> _Steps:
    length, repeats = decision.length, decision.repeats
    starts = range(start, start + repeats * length, length)
    now = (action for first in starts for action in (Save(first, _REMOTE), Advance(first, first + length)))
    later = [Piece(after[0], start + repeats * length)]
    for first in reversed(starts):
        later.append(Piece(after[1], first, unread=True))
    return now, later


_STEPS: Mapping[Choice, Callable[[Part, Decision, int, tuple[Part, ...]], _Steps]] = {
    Choice.TAPE: _execute_tape,
    Choice.CHECKPOINT: _execute_checkpoint,
    Choice.OFFLOAD: _execute_offload,
    Choice.FETCH: _execute_fetch,
    Choice.RECORD: _execute_record,
    Choice.ADVANCE: _execute_split,
    Choice.SPLIT: _execute_split,
    Choice.SPLIT_RECORD: _execute_split_record,
    Choice.SEGMENTS: _execute_segments,
}


@dataclass(frozen=True, kw_only=True)
class Tree:
    """A schedule of ``steps`` steps in chunks of ``chunk``, the ragged one first; a chunk is a tree's step."""

    decisions: Decisions
    root: Part
    sizes: UnitSizes
    chunk: int
    steps: int
    #: Counts of parts by the sizes in bytes, shared with other trees of the same decisions (``tally``).
    counted: dict[Any, Any] = field(default_factory=dict, compare=False, repr=False)

    def parts(self) -> Iterator[Part]:
        """Yield each part that occurs in the schedule once; ``decisions`` may hold those of other trees."""
        met, waiting = set[Part](), [self.root]
        while waiting:
            part = waiting.pop()
            if part not in met:
                met.add(part)
                yield part
                waiting.extend(parts_after(part, self.decisions[part], self.sizes))

    def settle(self) -> None:
        """Let go of the table behind the decisions, once all schedules that share them have been counted."""
        if isinstance(self.decisions, _Decided):
            self.decisions.decide = None

    def __getstate__(self) -> dict[str, Any]:
        """Return what a copy in another process needs: the decisions themselves, not how they are made."""
        own = {part: self.decisions[part] for part in self.parts()}
        return {**self.__dict__, "decisions": own, "counted": {}}

    def actions(self) -> Iterator[Action]:
        """Yield the actions of the schedule."""
        within = tree_actions(self.decisions, self.root, sizes=self.sizes)
        return within if self.chunk == 1 else (self._stretch(action) for action in within)

    def _stretch(self, action: Action) -> Action:
        if isinstance(action, (Advance, Record, Backward)):
            return type(action)(self._first_step(action.start), self._first_step(action.stop))
        if isinstance(action, Transfer):
            return Transfer(tuple(map(self._first_step, action.states)), action.source, action.target)
        return type(action)(self._first_step(action.state), action.tier)

    def _first_step(self, piece: int) -> int:
        """Return the first step of a chunk."""
        return max(0, self.steps - (self.root.steps - piece) * self.chunk)


class Forest:
    """Schedules that make their decisions alike; equal parts are decided and counted once for all of them."""

    def __init__(self, decide: Decide, *, sizes: UnitSizes, chunk: int = 1, steps: int | None = None) -> None:
        self._sizes, self._chunk, self._steps = sizes, chunk, steps
        self._decisions = _Decided(decide)
        self._counted: dict[Any, Any] = {}

    def grow(self, root: Part) -> Tree:
        """Return the schedule of ``root``, whose decisions are made when they are asked for.

        Consecutive equal segments become one decision, so that a plan of a million steps stays small.
        """
        return Tree(
            decisions=self._decisions,
            root=root,
            sizes=self._sizes,
            chunk=self._chunk,
            steps=self._steps or root.steps * self._chunk,
            counted=self._counted,
        )


def grow_tree(
    root: Part, decide: Decide, *, sizes: UnitSizes, chunk: int = 1, steps: int | None = None
) -> Tree:
    """Return the schedule of ``root`` alone (``Forest.grow``)."""
    return Forest(decide, sizes=sizes, chunk=chunk, steps=steps).grow(root)


class _Decided(dict[Part, Decision]):
    """The decisions made so far; others are made when they are asked for, if ``decide`` is still there."""

    def __init__(self, decide: Decide) -> None:
        super().__init__()
        self.decide: Decide | None = decide

    def __missing__(self, part: Part) -> Decision:
        if self.decide is None:
            raise KeyError(part)
        decision = self[part] = _merge_segments(part, self.decide)
        return decision


def _merge_segments(part: Part, decide: Decide) -> Decision:
    """Return the decision for a part; SEGMENTS if the same OFFLOAD and SPLIT repeat."""
    decision = decide(part)
    if decision.choice is not Choice.OFFLOAD:
        return decision
    first = decide(Part(Where.REMOTE, part.steps, part.units))
    if first.choice is not Choice.SPLIT:
        return decision
    length, count, rest = first.length, 1, part.steps - first.length
    while (
        rest > length
        and decide(Part(Where.UNSTORED, rest, part.units)).choice is Choice.OFFLOAD
        and decide(Part(Where.REMOTE, rest, part.units)) == first
    ):
        count, rest = count + 1, rest - length
    return Decision(Choice.SEGMENTS, length, count)


def read_tree(parameters: Parameters, splits: Sequence[Split], *, steps: int) -> Tree:
    """Return the tree of a plan's decisions. Raises InputError if a decision is missing or impossible."""
    decisions = {
        Part(split.where, split.steps, split.units): Decision(split.choice, split.length, split.count)
        for split in splits
    }
    chunk = parameters["chunk_size"]
    root = Part(Where.UNSTORED, -(-steps // chunk), parameters["local_units"])
    sizes = UnitSizes(parameters["state_units"], parameters["tape_units"])
    _check(decisions, root, sizes)
    return Tree(decisions=decisions, root=root, sizes=sizes, chunk=chunk, steps=steps)


def _check(decisions: Mapping[Part, Decision], root: Part, sizes: UnitSizes) -> None:
    """Raise InputError unless every part that occurs has a possible decision."""
    waiting, met = [root], {root}
    while waiting:
        part = waiting.pop()
        decision = decisions.get(part)
        after = () if decision is None else parts_after(part, decision, sizes)
        if (
            decision is None
            or not is_decision(part, decision)
            or (decision.choice is Choice.OFFLOAD and _is_fetched(after[0], decisions))
        ):
            raise InputError(
                f"hold no possible decision for {part.steps} steps whose first state is {part.where}, "
                f"with {part.units} units",
                field="splits",
                accepted="the decisions that ckptplan wrote; make a new plan",
            )
        for following in after:
            if following not in met:
                met.add(following)
                waiting.append(following)


def _is_fetched(part: Part, decisions: Mapping[Part, Decision]) -> bool:
    """Return whether a state that was just written would be read back at once, which no part asks for."""
    return part in decisions and decisions[part].choice is Choice.FETCH


def write_splits(tree: Tree) -> tuple[Split, ...]:
    """Return the decisions of a tree as data."""
    made = ((part, tree.decisions[part]) for part in tree.parts())
    return tuple(
        Split(
            where=part.where,
            steps=part.steps,
            units=part.units,
            choice=decision.choice,
            length=decision.length,
            count=decision.repeats,
        )
        for part, decision in made
    )


def write_parameters(tree: Tree) -> Parameters:
    """Return the integers that ``read_tree`` needs besides the decisions."""
    return Parameters(
        chunk_size=tree.chunk,
        state_units=tree.sizes.state,
        tape_units=tree.sizes.tape,
        local_units=tree.root.units,
    )
