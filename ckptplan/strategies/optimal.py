"""The optimum over all legal schedules: tapes and states of any size, two tiers, any number of reads."""

from __future__ import annotations

from dataclasses import replace
from math import inf

from ckptplan.model.budget import Budget
from ckptplan.model.step_costs import StepCosts
from ckptplan.recursion.bounds import unkept_tapes
from ckptplan.recursion.problem import Problem, Solved
from ckptplan.recursion.solver import solve
from ckptplan.strategies.solved import (
    Choose,
    Progress,
    Solution,
    SolvedStrategy,
    better,
    chosen,
    ways,
)


class Optimal(SolvedStrategy):
    """Section 'The general problem' of docs/optimality.md; exact where transfers are serial, one state each."""

    name = "optimal"
    rank = 20

    def solve(
        self,
        *,
        costs: StepCosts,
        budget: Budget,
        choose: Choose,
        effort: str = "quick",
        progress: Progress | None = None,
    ) -> Solution | None:
        problem = _problem(costs, budget)
        solved = solve(problem, effort=effort, progress=progress)
        found = None if solved is None or True not in ways(costs) else _chosen(solved, costs, choose)
        if costs.overlaps_compute or found is None or not _within(found, budget):
            # The recursion knows no limit of remote memory, and no schedule that does without the buffers of
            # transfers beside compute: what uses no remote memory is another candidate then.
            alone = solve(_problem(costs, budget, remote=False), effort=effort, progress=progress)
            local = None if alone is None else _chosen(alone, costs, choose)
            found = better(choose, [one for one in (found, local) if one is not None and _within(one, budget)])
        if found is None:
            return None
        return replace(found, least_seconds=costs.base_seconds + _least_extra(costs, budget, solved))


def _within(solution: Solution, budget: Budget) -> bool:
    return budget.remote_bytes is None or solution.trace.remote_peak_bytes <= budget.remote_bytes


def _chosen(solved: Solved, costs: StepCosts, choose: Choose) -> Solution | None:
    notes = (solved.rounding,) if solved.rounding else ()
    return chosen(solved.candidates, costs=costs, choose=choose, notes=notes)


def _least_extra(costs: StepCosts, budget: Budget, solved: Solved | None) -> float:
    """Return what every schedule adds, those not looked at included: remote memory is unlimited here."""
    if costs.overlaps_compute or solved is None:
        return _unkept(costs, budget)
    return solved.least_extra


#: A message that costs less than this share of a state's transfer is left out of the recursion.
_CHEAP = 0.05


def _problem(costs: StepCosts, budget: Budget, *, remote: bool = True) -> Problem:
    # Several states may share a message. Where that saves little, the recursion leaves it out and the
    # schedule pays for it afterwards: its value is then a bound for all schedules, and a close one.
    dear = costs.message_seconds > _CHEAP * min(costs.write_seconds, costs.read_seconds)
    message = costs.message_seconds if dear or costs.overlaps_compute else 0.0
    buffers = 2 * costs.state_bytes if costs.overlaps_compute and remote else 0
    free = None if budget.local_bytes is None else budget.local_bytes - costs.resident_bytes - buffers
    return Problem(
        steps=costs.steps,
        free_bytes=None if free is None else max(0, free),
        state_bytes=costs.state_bytes,
        tape_bytes=costs.tape_bytes,
        recompute=costs.recompute_seconds,
        write=costs.write_seconds + message if remote else inf,
        read=costs.read_seconds + message if remote else inf,
        least_write=0.0 if costs.overlaps_compute else costs.write_seconds if remote else inf,
        least_read=0.0 if costs.overlaps_compute else costs.read_seconds if remote else inf,
    )


def _unkept(costs: StepCosts, budget: Budget) -> float:
    """Return what any schedule adds, however its transfers are hidden."""
    if budget.local_bytes is None:
        return 0.0
    return unkept_tapes(
        steps=costs.steps,
        units=max(0, budget.local_bytes - costs.resident_bytes),
        tape=costs.tape_bytes,
        recompute=costs.recompute_seconds,
    )


STRATEGY = Optimal()
