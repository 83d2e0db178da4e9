"""Implements Optimal: the optimum over all legal schedules, for any sizes, two tiers and any reads."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace
from math import inf

from ckptplan.model.budget import Budget
from ckptplan.model.progress import Progress
from ckptplan.model.step_costs import StepCosts
from ckptplan.recursion.action_costs import ActionCosts
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
    """The general problem of docs/optimality.md; exact if transfers are serial and carry one state each."""

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
        built = [solution for solution in map(job.build, solved.values()) if solution is not None]
        fitting = [solution for solution in built if job.fits(solution)]
        if not (whole.exact and len(solved) == 1 and fitting) or len(fitting) < len(built):
            fitting += job.find_alternatives(built, without_remote=False not in solved)
        best = best_solution(choose, fitting)
        if best is None:
            return None
        # A bound for unlimited remote memory also holds for less. Transfers that overlap compute may cost
        # nothing.
        extra = _bound_by_memory(costs, budget) if costs.overlaps_compute and room else whole.least_extra
        return replace(best, least_seconds=costs.sweep_seconds + extra)

    def has_schedule(self, *, costs: StepCosts, budget: Budget, effort: str = "quick") -> bool:
        if budget.local_bytes is not None and budget.local_bytes < self.least_local_bytes(costs):
            return False
        if is_any_within(_closed_forms(costs, budget), costs=costs, budget=budget):
            return True
        if budget.remote_bytes is None or costs.steps == 1:
            # With unlimited remote memory, the closed forms fit if any schedule does.
            return False
        # Remote states that are read several times may need less remote memory; only solving shows it.
        solution = self.solve(costs=costs, budget=budget, choose=prefer_quickest(budget), effort=effort)
        return solution is not None


#: A lower effort, for each of several searches.
_LESS = {"quick": "glance", "thorough": "quick"}
#: How many prices of a write are tried if remote memory is too small.
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
        """Return the recursion's solution; ``price`` is added to the cost of each write."""
        problem = _make_problem(self.costs, self.budget, remote=remote)
        effort, front = self.effort, self.front
        if price:
            problem, effort, front = replace(problem, write=problem.write + price), _LESS[effort], False
        solved = solve(problem, effort=effort, front=front, progress=self.progress)
        if solved is None:
            return SolvedProblem(
                candidates=[], least_extra=_bound_by_memory(self.costs, self.budget), exact=False
            )
        return solved

    def build(self, solved: SolvedProblem) -> Solution | None:
        """Return the best schedule, however much remote memory it needs."""
        notes = (solved.rounding,) if solved.rounding else ()
        return choose_candidate(solved.candidates, costs=self.costs, choose=self.choose, notes=notes)

    def fits(self, solution: Solution) -> bool:
        """Return whether the remote memory is large enough for a solution."""
        limit = self.budget.remote_bytes
        return limit is None or solution.totals.remote_peak_bytes <= limit

    def find_alternatives(self, built: list[Solution], *, without_remote: bool) -> list[Solution]:
        """Return other legal schedules: closed forms, and schedules that need less remote memory."""
        forms = [list(form) for form in _closed_forms(self.costs, self.budget)]
        others = [choose_among_groups(forms, costs=self.costs, choose=self.choose)]
        greedy = next((solution for solution in built if not self.fits(solution)), None)
        if greedy is not None:
            local = self.build(self.solve(remote=False)) if without_remote else None
            others += [local, *([] if self.costs.overlaps_compute else self._raise_prices(greedy, local))]
        note = ("remote memory is too small for the optimum that uses it",) if greedy is not None else ()
        return [replace(one, notes=(*one.notes, *note)) for one in others if one is not None]

    def _raise_prices(self, greedy: Solution, local: Solution | None) -> Iterator[Solution]:
        """Yield schedules for a price of a write that rises until they fit, and then bisects.

        A higher price leaves fewer states in remote memory at once. Each schedule that fits is legal; the
        best of them need not be optimal.
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
    """Yield groups of schedules that are also legal, and quick to find."""
    for remote in memory_variants(costs):
        yield segment_candidates(costs, budget, remote=remote)
        yield period_candidates(costs, budget, remote=remote)


#: The recursion ignores a message that costs less than this share of a state's transfer.
_CHEAP = 0.05


def _make_problem(costs: StepCosts, budget: Budget, *, remote: bool = True) -> Problem:
    # Several states may share a message. If that saves little, the recursion ignores messages and the
    # schedule pays for them afterwards; the value of the recursion is then a close bound for all schedules.
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
        actions=ActionCosts.of(costs),
    )


def _bound_by_memory(costs: StepCosts, budget: Budget) -> float:
    """Return the least seconds that any schedule adds, even if all its transfers are hidden."""
    if budget.local_bytes is None:
        return costs.chunk_seconds
    return bound_by_tapes(
        steps=costs.steps,
        units=max(0, budget.local_bytes - costs.resident_bytes),
        tape=costs.tape_bytes,
        recompute=costs.recompute_seconds,
        chunk=costs.chunk_seconds,
    )


STRATEGY = Optimal()
