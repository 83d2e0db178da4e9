"""The optimum over all legal schedules: tapes and states of any size, two tiers, any number of reads."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace
from math import inf

from ckptplan.model.budget import Budget
from ckptplan.model.progress import Progress
from ckptplan.model.step_costs import StepCosts
from ckptplan.recursion.bounds import bound_by_tapes
from ckptplan.recursion.disk_revolve import segment_candidates
from ckptplan.recursion.periodic import period_candidates
from ckptplan.recursion.pricing import memory_variants
from ckptplan.recursion.problem import Candidate, Problem, SolvedProblem
from ckptplan.recursion.solver import solve
from ckptplan.strategies.solved import (
    Choose,
    Solution,
    Solved,
    best_solution,
    choose_among_groups,
    choose_candidate,
    is_any_within,
    make_solution,
    prefer_quickest,
)


class Optimal(Solved):
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
        front: bool = False,
        progress: Progress | None = None,
    ) -> Solution | None:
        job = _OptimalSearch(
            costs=costs, budget=budget, choose=choose, effort=effort, front=front, progress=progress
        )
        room = budget.remote_bytes is None or budget.remote_bytes >= costs.remote_state_bytes
        solved = {remote: job.solve(remote=remote) for remote in (memory_variants(costs) if room else (False,))}
        whole = next(iter(solved.values()))
        found = [one for one in map(job.build, solved.values()) if one is not None]
        kept = [one for one in found if job.fits(one)]
        if not (whole.exact and len(solved) == 1 and kept) or len(kept) < len(found):
            kept += job.find_alternatives(found, without_remote=False not in solved)
        best = best_solution(choose, kept)
        if best is None:
            return None
        # What no schedule takes with remote memory without end, none takes with less of it. Transfers
        # beside compute may cost nothing.
        extra = _bound_by_memory(costs, budget) if costs.overlaps_compute and room else whole.least_extra
        return replace(best, least_seconds=costs.base_seconds + extra)

    def has_schedule(self, *, costs: StepCosts, budget: Budget, effort: str = "quick") -> bool:
        if budget.local_bytes is not None and budget.local_bytes < self.least_local_bytes(costs):
            return False
        if is_any_within(_closed_forms(costs, budget), costs=costs, budget=budget):
            return True
        if budget.remote_bytes is None or costs.steps == 1:
            # Without a limit of remote memory they fit wherever anything does.
            return False
        # Remote states that are read several times may do with less of it, which only solving tells.
        found = self.solve(costs=costs, budget=budget, choose=prefer_quickest(budget), effort=effort)
        return found is not None


#: Less work, for searches of which there are several.
_LESS = {"quick": "glance", "thorough": "quick"}
#: Prices of a write that are tried where remote memory is too small.
_PRICES = 8


@dataclass(frozen=True, kw_only=True)
class _OptimalSearch:
    costs: StepCosts
    budget: Budget
    choose: Choose
    effort: str
    front: bool
    progress: Progress | None

    def solve(self, *, remote: bool, price: float = 0.0) -> SolvedProblem:
        """Return the recursion's answer, with remote memory or without, with a price on top of each write."""
        problem = _make_problem(self.costs, self.budget, remote=remote)
        effort, front = self.effort, self.front
        if price:
            problem, effort, front = replace(problem, write=problem.write + price), _LESS[effort], False
        found = solve(problem, effort=effort, front=front, progress=self.progress)
        if found is None:
            return SolvedProblem(
                candidates=[], least_extra=_bound_by_memory(self.costs, self.budget), exact=False
            )
        return found

    def build(self, solved: SolvedProblem) -> Solution | None:
        """Return the schedule that is liked best, whatever its remote memory."""
        notes = (solved.rounding,) if solved.rounding else ()
        return choose_candidate(solved.candidates, costs=self.costs, choose=self.choose, notes=notes)

    def fits(self, solution: Solution) -> bool:
        """Return whether the remote memory suffices."""
        limit = self.budget.remote_bytes
        return limit is None or solution.totals.remote_peak_bytes <= limit

    def find_alternatives(self, found: list[Solution], *, without_remote: bool) -> list[Solution]:
        """Return what else is legal: closed forms, and what uses less remote memory than the best found."""
        forms = [list(form) for form in _closed_forms(self.costs, self.budget)]
        others = [choose_among_groups(forms, costs=self.costs, choose=self.choose)]
        greedy = next((one for one in found if not self.fits(one)), None)
        if greedy is not None:
            local = self.build(self.solve(remote=False)) if without_remote else None
            others += [local, *([] if self.costs.overlaps_compute else self._raise_prices(greedy, local))]
        note = ("remote memory is too small for the optimum that uses it",) if greedy is not None else ()
        return [replace(one, notes=(*one.notes, *note)) for one in others if one is not None]

    def _raise_prices(self, greedy: Solution, local: Solution | None) -> Iterator[Solution]:
        """Raise the price of a write until few states are remote at once, then lower it while they are.

        Each price gives a legal schedule; the best of them need not be the best there is.
        """
        room = (self.budget.remote_bytes or 0) // self.costs.remote_state_bytes
        saved = local.totals.seconds - greedy.totals.seconds if local is not None else self.costs.base_seconds
        low, high, price = 0.0, inf, saved / room
        for _ in range(_PRICES):
            candidates = self.solve(remote=True, price=price).candidates
            if not price or not candidates:
                return
            quickest = min(candidates, key=lambda candidate: candidate.extra)
            solution = make_solution(quickest.build(), costs=self.costs)
            if self.fits(solution):
                yield solution
                high = price
                if solution.totals.remote_peak_bytes > self.costs.remote_state_bytes * (room - 1):
                    return
            else:
                low = price
            price = 4 * price if high == inf else (low + high) / 2


def _closed_forms(costs: StepCosts, budget: Budget) -> Iterator[Iterator[Candidate]]:
    """Return the schedules that are legal, too, and soon found."""
    for remote in memory_variants(costs):
        yield segment_candidates(costs, budget, remote=remote)
        yield period_candidates(costs, budget, remote=remote)


#: A message that costs less than this share of a state's transfer is left out of the recursion.
_CHEAP = 0.05


def _make_problem(costs: StepCosts, budget: Budget, *, remote: bool = True) -> Problem:
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


def _bound_by_memory(costs: StepCosts, budget: Budget) -> float:
    """Return what any schedule adds, however its transfers are hidden."""
    if budget.local_bytes is None:
        return 0.0
    return bound_by_tapes(
        steps=costs.steps,
        units=max(0, budget.local_bytes - costs.resident_bytes),
        tape=costs.tape_bytes,
        recompute=costs.recompute_seconds,
    )


STRATEGY = Optimal()
