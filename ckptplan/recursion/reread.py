"""The schedule of the least local memory: the first state in remote memory, read for each step anew."""

from __future__ import annotations

from collections.abc import Iterator

from ckptplan.model.budget import Budget
from ckptplan.model.split import Choice, Where
from ckptplan.model.step_costs import StepCosts
from ckptplan.recursion.problem import Candidate
from ckptplan.recursion.schedule_tree import Tree, grow_tree
from ckptplan.recursion.tree import Decision, Part, UnitSizes

#: The longest sequence: a plan holds two decisions for each step.
_MOST_STEPS = 50_000


def reread_candidates(costs: StepCosts, budget: Budget) -> Iterator[Candidate]:
    """Yield the schedule, which needs one tape and one remote state, if it fits.

    Nothing if transfers overlap compute, where their buffers take more than a local checkpoint does.
    """
    steps = costs.steps
    local, remote = budget.local_bytes, budget.remote_bytes
    fits = (local is None or local >= costs.resident_bytes + costs.tape_bytes) and (
        remote is None or remote >= costs.remote_state_bytes
    )
    if costs.overlaps_compute or not fits or not 1 < steps <= _MOST_STEPS:
        return
    recomputed = steps * (steps - 1) // 2
    yield Candidate(
        extra=recomputed * costs.recompute_seconds
        + (costs.write_seconds + costs.message_seconds)
        + (steps - 1) * (costs.read_seconds + costs.message_seconds + costs.advance_seconds)
        + steps * costs.chunk_seconds,
        local_bytes=costs.tape_bytes,
        build=lambda: _make_tree(steps),
        remote_states=1,
    )


def _make_tree(steps: int) -> Tree:
    return grow_tree(Part(Where.UNSTORED, steps, 1), _decide, sizes=UnitSizes(1, 1))


def _decide(part: Part) -> Decision:
    if part.steps == 1:
        return Decision(Choice.TAPE)
    if part.where is Where.UNSTORED:
        return Decision(Choice.OFFLOAD)
    return Decision(Choice.SPLIT, part.steps - 1)
