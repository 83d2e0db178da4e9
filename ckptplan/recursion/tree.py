"""Defines schedules as trees of decisions, which are made on demand, kept in a plan, and turned into actions.

A part is ``(where, steps, units)``: ``steps`` steps to reverse with ``units`` units of free local memory. Its
first state is

- UNSTORED: the working state only, and not stored;
- LOCAL: also in a local slot, which the part frees when it no longer needs the state;
- REMOTE: also in remote memory, likewise.

A ``cached`` part keeps the caches of all its steps, each until its step is reversed; its units include these
caches. Other parts keep the caches of recorded steps only. Where a cache takes no unit, all caches are kept. In
a tree that offloads caches, those of other parts are in remote memory between two runs of their steps.

Equal parts have equal decisions, so a table of decisions by part is a whole schedule (docs/optimality.md
describes the grammar).
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from itertools import chain
from typing import Any, NamedTuple, TypeAlias

from ckptplan.errors import InputError
from ckptplan.model.record import Parameters
from ckptplan.model.split import Choice, Split, Where
from ckptplan.schedule.actions import (
    Action,
    Advance,
    Backward,
    Free,
    Load,
    Record,
    Save,
    Tier,
    Transfer,
    renumber,
)


class Part(NamedTuple):
    """``steps`` steps, to be reversed with ``units`` units of free local memory."""

    where: Where
    steps: int
    units: int
    cached: bool = False


class Decision(NamedTuple):
    """The first decision about a part; ``length`` and ``repeats`` are 0 if the choice has none."""

    choice: Choice
    length: int = 0
    repeats: int = 0


class UnitSizes(NamedTuple):
    """Sizes in whole units of local memory: of a state, of a step's tape with its cache, and of the cache."""

    state: int
    tape: int
    cache: int = 0


Decisions: TypeAlias = Mapping[Part, Decision]
Decide: TypeAlias = Callable[[Part], Decision]
_LOCAL, _REMOTE = Tier.LOCAL, Tier.REMOTE
#: The parameter of trees whose decisions also say which caches are kept.
CACHE_UNITS = "cache_units"
#: The steps whose caches move to remote memory in the first sweep, and come back; none if it is left out.
OFFLOADED_STEPS = "offloaded_steps"


class PlacedPart(NamedTuple):
    """A part that begins at step ``start``.

    ``unsaved`` says that the local slot of the part's first state is reserved but not yet filled, ``unread``
    that the first state is yet to be read from remote memory, and ``absent`` that the caches of its steps are
    yet to be read.
    """

    part: Part
    start: int = 0
    unsaved: bool = False
    unread: bool = False
    absent: bool = False


def reverse(
    piece: PlacedPart, decision: Decision, sizes: UnitSizes, *, offloads: bool = False
) -> Iterable[Action | PlacedPart]:
    """Return the actions and smaller parts, in order, by which a decision reverses a part."""
    items = _reverse(piece, decision, sizes)
    return _offload(items, piece, sizes) if offloads and not piece.part.cached else items


def _offload(
    items: Iterable[Action | PlacedPart], whole: PlacedPart, sizes: UnitSizes
) -> Iterator[Action | PlacedPart]:
    """Yield the items with transfers that keep the caches of unrecorded steps in remote memory.

    If the caches of a run do not fit in the memory of the part, the steps run, and their caches move, in
    several pieces.
    """
    absent, most = whole.absent, max(1, whole.part.units // sizes.cache)
    for item in items:
        match item:
            case Advance(start, stop):
                for first in range(start, stop, most):
                    last = min(stop, first + most)
                    if absent:
                        yield Transfer((), _REMOTE, _LOCAL, (first, last))
                    yield Advance(first, last)
                    yield Transfer((), _LOCAL, _REMOTE, (first, last))
            case Record(start, stop):
                if absent:
                    yield Transfer((), _REMOTE, _LOCAL, (start, stop))
                yield item
            case PlacedPart(part, start) if part.cached:
                if absent:
                    yield Transfer((), _REMOTE, _LOCAL, (start, start + part.steps))
                yield item
            case PlacedPart(start=start):
                # The first steps of a part come last, and have run before.
                yield item._replace(absent=absent or _has_run(item, whole))
            case _:
                yield item


def _has_run(piece: PlacedPart, whole: PlacedPart) -> bool:
    """Return whether the steps of a piece have run: all steps of a part have, but those of its last piece."""
    return piece.start + piece.part.steps < whole.start + whole.part.steps


def _reverse(piece: PlacedPart, decision: Decision, sizes: UnitSizes) -> Iterable[Action | PlacedPart]:
    choice, length, _ = decision
    if choice is Choice.KEEP:
        return [piece._replace(part=piece.part._replace(cached=True))]
    start = piece.start
    items, (where, steps, units, cached) = _begin(piece, choice, sizes)
    match choice:
        case Choice.TAPE:
            items += (Record(start, start + steps), Backward(start, start + steps))
        case Choice.RECORD:
            freed = sizes.state if where is Where.LOCAL else 0
            items += _record(max(length, 1), Part(Where.UNSTORED, steps, units + freed, cached), start, sizes)
        case Choice.CHECKPOINT:
            items.append(PlacedPart(Part(Where.LOCAL, steps, units - sizes.state, cached), start, unsaved=True))
        case Choice.OFFLOAD:
            items += (Save(start, _REMOTE), PlacedPart(Part(Where.REMOTE, steps, units, cached), start))
        case Choice.FETCH:
            held = PlacedPart(Part(Where.LOCAL, steps, units - sizes.state, cached), start)
            items += (Transfer((start,), _REMOTE, _LOCAL), Load(start, _LOCAL), held)
        case Choice.SEGMENTS:
            return chain(items, _reverse_segments(piece.part, decision, start, sizes))
        case _:
            items += _reverse_split(Part(where, steps, units, cached), decision, start, sizes)
    return items


def _begin(piece: PlacedPart, choice: Choice, sizes: UnitSizes) -> tuple[list[Action | PlacedPart], Part]:
    """Return the actions on the first state that precede a decision, and the part after them."""
    part, start, unsaved, unread, _ = piece
    items: list[Action | PlacedPart] = []
    if unread and choice is not Choice.FETCH:
        items.append(Load(start, _REMOTE))
    if unsaved and part.where is Where.LOCAL:
        if choice in (Choice.TAPE, Choice.RECORD):
            # The slot would be freed at once: no save is needed.
            return items, Part(Where.UNSTORED, part.steps, part.units + sizes.state, part.cached)
        items.append(Save(start, _LOCAL))
    if choice in _DROPPING and part.where is not Where.UNSTORED:
        items.append(Free(start, _LOCAL if part.where is Where.LOCAL else _REMOTE))
    return items, part


#: The choices that drop the first state of a part at once.
_DROPPING = (Choice.TAPE, Choice.RECORD, Choice.CHECKPOINT)


def _record(steps: int, part: Part, start: int, sizes: UnitSizes) -> list[Action | PlacedPart]:
    """Record the first steps of a part, reverse the other steps, and then reverse the first steps."""
    stop, left = start + steps, part.steps - steps
    units = part.units - steps * sizes.tape
    after = [PlacedPart(Part(Where.UNSTORED, left, units, part.cached), stop)] if left else []
    return [Record(start, stop), *after, Backward(start, stop)]


def _reverse_split(part: Part, decision: Decision, start: int, sizes: UnitSizes) -> list[Action | PlacedPart]:
    """Advance, record the last of these steps for SPLIT_RECORD, reverse the rest, then the first steps."""
    where, steps, units, cached = part
    choice, length, repeats = decision
    recorded = max(repeats, 1) if choice is Choice.SPLIT_RECORD else 0
    head = length - recorded
    middle, rest = start + head, steps - head
    # The caches of the first steps are held while the rest is reversed.
    left = units - head * sizes.cache if cached else units
    items: list[Action | PlacedPart] = [_advance(start, middle, cached, sizes)]
    if recorded:
        items += _record(recorded, Part(Where.UNSTORED, rest, left, cached), middle, sizes)
    elif choice is Choice.SPLIT and where is Where.LOCAL:
        items.append(PlacedPart(Part(Where.LOCAL, rest, left - sizes.state, cached), middle, unsaved=True))
    else:
        items.append(PlacedPart(Part(Where.UNSTORED, rest, left, cached), middle))
    if where is not Where.REMOTE:
        items.append(Load(start, _LOCAL))
    items.append(PlacedPart(Part(where, head, units, cached), start, unread=where is Where.REMOTE))
    return items


def _advance(start: int, stop: int, cached: bool, sizes: UnitSizes) -> Advance:
    return Advance(start, stop, None if cached or not sizes.cache else 0)


def _reverse_segments(
    part: Part, decision: Decision, start: int, sizes: UnitSizes
) -> Iterator[Action | PlacedPart]:
    _, steps, units, _ = part
    _, length, repeats = decision
    starts = range(start, start + repeats * length, length)
    for first in starts:
        yield Save(first, _REMOTE)
        yield _advance(first, first + length, False, sizes)
    yield PlacedPart(Part(Where.UNSTORED, steps - repeats * length, units), start + repeats * length)
    for first in reversed(starts):
        yield PlacedPart(Part(Where.REMOTE, length, units), first, unread=True)


def unfold(piece: PlacedPart, decision: Decision, sizes: UnitSizes) -> list[tuple[Action | PlacedPart, int]]:
    """Return the items of ``reverse`` with their counts; of SEGMENTS, the second stands for all later ones."""
    if decision.choice is not Choice.SEGMENTS or decision.repeats < 3:
        return [(item, 1) for item in _reverse(piece, decision, sizes)]
    later = decision.repeats - 1
    where, steps, units, _ = piece.part
    two = PlacedPart(Part(where, steps - (later - 1) * decision.length, units), piece.start)
    times = (1, 1, later, later, 1, later, 1)
    return list(zip(_reverse(two, decision._replace(repeats=2), sizes), times, strict=True))


def _is_possible(part: Part, decisions: Decisions) -> bool:
    """Return whether such a part allows its decision, whatever is decided after it."""
    decision = decisions.get(part)
    if decision is None:
        return False
    (where, steps, units, cached), (choice, length, repeats) = part, decision
    # A state that was just written is not fetched at once, and caches that were just kept serve several runs.
    after_offload = decisions.get(part._replace(where=Where.REMOTE), decision)
    after_keep = decisions.get(part._replace(cached=True), decision)
    return {
        Choice.TAPE: True,
        Choice.RECORD: length <= steps,
        Choice.FETCH: where is Where.REMOTE,
        Choice.ADVANCE: where is Where.LOCAL and 1 <= length < steps,
        Choice.CHECKPOINT: where is not Where.LOCAL,
        Choice.OFFLOAD: where is Where.UNSTORED and after_offload.choice is not Choice.FETCH,
        Choice.SPLIT: where is not Where.UNSTORED and 1 <= length < steps,
        Choice.SPLIT_RECORD: where is not Where.UNSTORED and max(repeats, 1) < length <= steps,
        Choice.SEGMENTS: where is Where.UNSTORED
        and not cached
        and length >= 1
        and 1 <= repeats * length < steps,
        Choice.KEEP: where is not Where.UNSTORED
        and not cached
        and after_keep.choice not in (Choice.TAPE, Choice.RECORD, Choice.KEEP),
    }[choice] and min(steps, units + 1) > 0


@dataclass(frozen=True, kw_only=True)
class Tree:
    """A schedule of ``steps`` steps in chunks of ``chunk``, the ragged one first; a chunk is a tree's step.

    If it ``offloads`` caches, those of parts that are not cached are in remote memory between two runs.
    """

    decisions: Decisions
    root: Part
    sizes: UnitSizes
    chunk: int
    steps: int
    offloads: bool = False
    #: The last counts of parts, shared with trees of other roots (``recursion/pricing.py``).
    counted: dict[Any, Any] = field(default_factory=dict, compare=False, repr=False)

    def parts(self) -> Iterator[Part]:
        """Yield each part that occurs in the schedule once; ``decisions`` may hold parts of other trees."""
        visited, waiting = set[Part](), [self.root]
        while waiting:
            part = waiting.pop()
            if part not in visited:
                visited.add(part)
                yield part
                after = unfold(PlacedPart(part), self.decisions[part], self.sizes)
                waiting.extend(item.part for item, _ in after if isinstance(item, PlacedPart))

    def drop_table(self) -> None:
        """Release the table behind the decisions, once all schedules that share them have been counted.

        A tree whose counts a closed form gave has neither decisions nor a table: it still makes decisions.
        """
        if isinstance(self.decisions, _Decided) and self.root in self.decisions:
            self.decisions.decide = None

    def __getstate__(self) -> dict[str, Any]:
        """Return the state for another process: the decisions, without the function that makes them."""
        decisions = {part: self.decisions[part] for part in self.parts()}
        return {**self.__dict__, "decisions": decisions, "counted": {}}

    def actions(self) -> Iterator[Action]:
        """Yield the actions of the schedule. Raises KeyError for a part without a decision."""
        waiting: list[Iterator[Action | PlacedPart]] = [iter([PlacedPart(self.root)])]
        while waiting:
            item = next(waiting[-1], None)
            if item is None:
                waiting.pop()
            elif isinstance(item, PlacedPart):
                decision = self.decisions[item.part]
                waiting.append(iter(reverse(item, decision, self.sizes, offloads=self.offloads)))
            else:
                yield item if self.chunk == 1 else renumber(item, self._first_step)

    def count_offloaded(self) -> int:
        """Return the number of steps whose caches leave in the first sweep; 0 if the tree offloads none."""
        piece: PlacedPart | None = PlacedPart(self.root)
        moved = 0
        while self.offloads and piece is not None and not piece.part.cached:
            whole, piece = piece, None
            for item in _reverse(whole, self.decisions[whole.part], self.sizes):
                if isinstance(item, Advance):
                    moved += self._first_step(item.stop) - self._first_step(item.start)
                elif isinstance(item, PlacedPart):
                    # The first piece has the last steps.
                    piece = item
                    break
        return moved

    def _first_step(self, piece: int) -> int:
        """Return the first step of a chunk."""
        return max(0, self.steps - (self.root.steps - piece) * self.chunk)


def grow_tree(
    root: Part, decide: Decide, *, sizes: UnitSizes, chunk: int = 1, steps: int | None = None
) -> Tree:
    """Return the schedule of ``root``, whose decisions are made when they are asked for.

    Consecutive equal segments become one decision, so that a plan of a million steps stays small. Trees that
    differ from it only in their root share its decisions and the counts of its parts.
    """
    steps = root.steps * chunk if steps is None else steps
    return Tree(decisions=_Decided(decide), root=root, sizes=sizes, chunk=chunk, steps=steps)


def record_one_by_one(tree: Tree) -> Tree:
    """Return a schedule of chunks of one step that records each step by itself; it holds the same tapes."""

    def decide(part: Part) -> Decision:
        decision = tree.decisions[part]
        choice, length, repeats = decision
        if choice is Choice.RECORD or (choice is Choice.TAPE and part.steps > 1):
            return Decision(Choice.RECORD, 1)
        if choice is Choice.SPLIT_RECORD and repeats > 1:
            return Decision(choice, length - repeats + 1, 1)
        return decision

    return replace(grow_tree(tree.root, decide, sizes=tree.sizes), offloads=tree.offloads)


class _Decided(dict[Part, Decision]):
    """The decisions made so far; a missing decision is made when it is asked for, unless ``decide`` is None."""

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
    if decision.choice is not Choice.OFFLOAD or part.cached:
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
        Part(split.where, split.steps, split.units, split.cached): Decision(
            split.choice, split.length, split.count
        )
        for split in splits
    }
    chunk = parameters["block_size"]
    root = Part(Where.UNSTORED, -(-steps // chunk), parameters["local_units"])
    sizes = UnitSizes(parameters["state_units"], parameters["tape_units"], parameters.get(CACHE_UNITS, 0))
    moved = parameters.get(OFFLOADED_STEPS, 0)
    tree = Tree(decisions=decisions, root=root, sizes=sizes, chunk=chunk, steps=steps, offloads=moved > 0)
    for part in tree.parts():
        if not _is_possible(part, decisions):
            raise InputError(
                f"hold no possible decision for {part.steps} steps whose first state is {part.where}, "
                f"with {part.units} units",
                field="splits",
                accepted="the decisions that ckptplan wrote; make a new plan",
            )
    if tree.count_offloaded() != moved:
        raise InputError(
            f"is not {tree.count_offloaded()}, the number of steps whose caches the decisions move",
            field=OFFLOADED_STEPS,
            value=moved,
            accepted="the decisions that ckptplan wrote; make a new plan",
        )
    return tree


def write_splits(tree: Tree) -> tuple[Split, ...]:
    """Return the decisions of a tree as data."""
    return tuple(Split(*part[:3], *tree.decisions[part], part.cached) for part in tree.parts())


def write_parameters(tree: Tree) -> Parameters:
    """Return the integers that ``read_tree`` needs besides the decisions."""
    cache, moved = tree.sizes.cache, tree.count_offloaded()
    return Parameters(
        block_size=tree.chunk,
        state_units=tree.sizes.state,
        tape_units=tree.sizes.tape,
        local_units=tree.root.units,
        **({CACHE_UNITS: cache} if cache else {}),
        **({OFFLOADED_STEPS: moved} if moved else {}),
    )
