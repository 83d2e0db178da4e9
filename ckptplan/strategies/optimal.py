"""The optimum over all legal schedules: tapes and states of any size, two tiers, any number of reads."""

from __future__ import annotations

from dataclasses import replace
from math import inf

import numpy as np

from ckptplan.cost.exact import Cost
from ckptplan.model.budget import Budget
from ckptplan.model.step_costs import StepCosts
from ckptplan.recursion.bounds import unkept_tapes
from ckptplan.recursion.solver import Candidate, Problem, solve
from ckptplan.strategies.solved import (
    Choose,
    Progress,
    Solution,
    SolvedStrategy,
    solution_of,
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
        found = self._solved(costs, budget, choose, effort=effort, progress=progress)
        kept = found is not None and self._within(found, budget)
        if kept and not costs.overlaps_compute:
            return found
        # The recursion knows no limit of remote memory, and no schedule that does without the buffers of
        # transfers beside compute: what uses no remote memory is another candidate then.
        local = self._solved(costs, budget, choose, effort=effort, progress=progress, remote=False)
        candidates = [one for one in (found if kept else None, local) if one is not None]
        place = choose(_together(candidates)) if candidates else None
        if place is None:
            return None
        best = candidates[place]
        proved = found.least_seconds if found is not None else best.least_seconds
        if costs.overlaps_compute:
            proved = costs.base_seconds + _unkept(costs, budget)
        notes = () if kept else ("remote memory is too small for the optimum that uses it",)
        return replace(best, least_seconds=min(proved or 0.0, best.trace.seconds), notes=(*best.notes, *notes))

    def _within(self, solution: Solution, budget: Budget) -> bool:
        return budget.remote_bytes is None or solution.trace.remote_peak_bytes <= budget.remote_bytes

    def _solved(
        self,
        costs: StepCosts,
        budget: Budget,
        choose: Choose,
        *,
        effort: str,
        progress: Progress | None,
        remote: bool = True,
    ) -> Solution | None:
        solved = solve(_problem(costs, budget, remote=remote), effort=effort, progress=progress)
        if solved is None or not solved.candidates:
            return None
        place = choose(_costs(solved.candidates, costs))
        if place is None:
            return None
        tree = solved.candidates[place].build()
        return solution_of(
            tree,
            costs=costs,
            least_seconds=costs.base_seconds + solved.least_extra,
            notes=(solved.rounding,) if solved.rounding else (),
        )


#: A message that costs less than this share of a state's transfer is left out of the recursion.
_CHEAP = 0.05


def _problem(costs: StepCosts, budget: Budget, *, remote: bool) -> Problem:
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


def _together(solutions: list[Solution]) -> Cost:
    """Return the costs of several schedules side by side."""
    return Cost(
        seconds=np.concatenate([one.cost.seconds for one in solutions]),
        local_peak_bytes=np.concatenate([one.cost.local_peak_bytes for one in solutions]),
        remote_peak_bytes=np.concatenate([one.cost.remote_peak_bytes for one in solutions]),
    )


def _costs(candidates: list[Candidate], costs: StepCosts) -> Cost:
    """Return what the candidates cost, as far as it is known before they are built."""
    extra = np.array([candidate.extra for candidate in candidates])
    local = np.array([candidate.local_bytes for candidate in candidates], dtype=np.int64)
    return Cost(
        seconds=costs.base_seconds + extra,
        local_peak_bytes=local + costs.resident_bytes,
        remote_peak_bytes=np.zeros_like(local),
    )


STRATEGY = Optimal()
