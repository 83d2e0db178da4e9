"""Writes the decisions of a tree into a plan, and reads and checks them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from ckptplan.errors import InputError
from ckptplan.model.record import Parameters
from ckptplan.model.split import Choice, Split, Where
from ckptplan.recursion.schedule_tree import Tree
from ckptplan.recursion.tree import Decision, Part, UnitSizes, is_decision, parts_after


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
