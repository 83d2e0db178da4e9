"""The schedule of the least local memory: the first state in remote memory, read for each step anew."""

from __future__ import annotations

import numpy as np

from ckptplan.cost.exact import Counts, price
from ckptplan.model.budget import Budget
from ckptplan.model.split import Choice, Where
from ckptplan.model.step_costs import StepCosts
from ckptplan.recursion.problem import Family
from ckptplan.recursion.schedule_tree import Tree, grow_tree
from ckptplan.recursion.tree import Decision, Part, UnitSizes

#: The longest sequence: a plan holds two decisions for each step.
_MOST_STEPS = 50_000
_ONE = np.array([1])


def find_reread(costs: StepCosts, budget: Budget) -> Family:
    """Return the schedule, which needs one tape and one remote state, if it fits.

    Nothing if transfers overlap compute, where their buffers take more than a local checkpoint does.
    """
    steps = costs.steps
    counts = Counts(
        recomputed_steps=np.array([steps * (steps - 1) // 2]),
        remote_writes=_ONE,
        remote_reads=np.array([steps - 1]),
        messages=np.array([steps]),
        advances=np.array([steps - 1]),
        chunks=np.array([steps]),
        local_saves=_ONE * 0,
        local_loads=_ONE * 0,
        largest_message=_ONE,
        tapes=_ONE,
        local_checkpoints=_ONE * 0,
        remote_checkpoints=_ONE,
    )
    cost = price(counts, costs)
    fits = cost.within(budget) & (not costs.overlaps_compute and 1 < steps <= _MOST_STEPS)
    return Family(
        cost=cost.take(fits), regular=np.zeros(int(fits[0]), np.bool_), build=lambda _: _make_tree(steps)
    )


def _make_tree(steps: int) -> Tree:
    return grow_tree(Part(Where.UNSTORED, steps, 1), _decide, sizes=UnitSizes(1, 1))


def _decide(part: Part) -> Decision:
    if part.steps == 1:
        return Decision(Choice.TAPE)
    if part.where is Where.UNSTORED:
        return Decision(Choice.OFFLOAD)
    return Decision(Choice.SPLIT, part.steps - 1)
