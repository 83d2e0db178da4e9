"""Defines schedules as trees of decisions, and turns them into actions.

A part is ``(where, steps, units)``: ``steps`` steps to reverse with ``units`` units of free local memory. Its
first state is

- UNSTORED: the working state only, and not stored;
- LOCAL: also in a local slot, which the part frees when it no longer needs the state;
- REMOTE: also in remote memory, likewise.

Equal parts have equal decisions, so a table of decisions by part is a whole schedule (docs/optimality.md
describes the grammar).
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from typing import NamedTuple, TypeAlias

from ckptplan.model.split import FORMS, Choice, Where
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
