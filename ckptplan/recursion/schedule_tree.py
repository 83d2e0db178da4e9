"""Builds a whole schedule as a tree of decisions that are made on demand, and keeps it in a plan."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from ckptplan.errors import InputError
from ckptplan.model.record import Parameters
from ckptplan.model.split import Choice, Split, Where
from ckptplan.recursion.tree import Decision, Decisions, Part, UnitSizes, is_decision, parts_after, tree_actions
from ckptplan.schedule.actions import Action, Advance, Backward, Record, Transfer

Decide = Callable[[Part], Decision]


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
            self.decisions.settle()

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
    """The decisions made so far; others are made when they are asked for."""

    def __init__(self, decide: Decide) -> None:
        super().__init__()
        self._decide: Decide | None = decide

    def __missing__(self, part: Part) -> Decision:
        if self._decide is None:
            raise KeyError(part)
        decision = self[part] = _merge_segments(part, self._decide)
        return decision

    def settle(self) -> None:
        self._decide = None


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
    return tuple(
        Split(
            where=part.where,
            steps=part.steps,
            units=part.units,
            choice=tree.decisions[part].choice,
            length=tree.decisions[part].length,
            count=tree.decisions[part].repeats,
        )
        for part in tree.parts()
    )


def write_parameters(tree: Tree) -> Parameters:
    """Return the integers that ``read_tree`` needs besides the decisions."""
    return Parameters(
        chunk_size=tree.chunk,
        state_units=tree.sizes.state,
        tape_units=tree.sizes.tape,
        local_units=tree.root.units,
    )
