"""Builds a whole schedule as a tree of decisions that are made on demand."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass

from ckptplan.model.split import Choice, Where
from ckptplan.recursion.tree import Decision, Decisions, Part, UnitSizes, parts_after, tree_actions
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


def grow_tree(
    root: Part, decide: Decide, *, sizes: UnitSizes, chunk: int = 1, steps: int | None = None
) -> Tree:
    """Return the schedule of ``root``, with the decision of every part that occurs in it.

    Consecutive equal segments become one decision, so that a plan of a million steps stays small.
    """
    decisions: dict[Part, Decision] = {}
    waiting = [root]
    while waiting:
        part = waiting.pop()
        if part not in decisions:
            decisions[part] = _merge_segments(part, decide)
            waiting.extend(parts_after(part, decisions[part], sizes))
    return Tree(decisions=decisions, root=root, sizes=sizes, chunk=chunk, steps=steps or root.steps * chunk)


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
