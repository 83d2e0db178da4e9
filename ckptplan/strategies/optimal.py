"""Implements Optimal: the optimum over all legal schedules, for any sizes, two tiers and any reads.

The schedule of the least local memory has a form of its own: the first state is in remote memory, and read for
each step anew.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from math import inf
from typing import TypeVar

import numpy as np

from ckptplan.cost.arrays import SUM_ROUNDING, ceil_div
from ckptplan.cost.exact import Counts, price
from ckptplan.model.budget import Budget
from ckptplan.model.progress import Progress
from ckptplan.model.record import Parameters
from ckptplan.model.split import Choice, Where
from ckptplan.model.step_costs import StepCosts
from ckptplan.recursion.bounds import bound_by_tapes
from ckptplan.recursion.disk_revolve import find_segments
from ckptplan.recursion.periodic import find_periods
from ckptplan.recursion.pricing import MOST_PLAYED_IN_ALL, is_played, least_seconds_of, memory_variants
from ckptplan.recursion.problem import ActionCosts, Family, Problem, SolvedProblem
from ckptplan.recursion.schedule_tree import Tree, grow_tree
from ckptplan.recursion.solver import list_rungs, solve
from ckptplan.recursion.tree import Decision, Part, UnitSizes
from ckptplan.schedule.actions import Action
from ckptplan.strategies.adopted import read_setting
from ckptplan.strategies.protocol import Splits
from ckptplan.strategies.solved import (
    Choose,
    IsBeaten,
    Rung,
    Solution,
    Solved,
    best_solution,
    choose_candidate,
    choose_of_families,
    make_solution,
    prefer_quickest,
)

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


_T = TypeVar("_T")


class Optimal(Solved):
    """The optimum over all legal schedules, for any sizes, two tiers and any reads.

    The general problem of docs/optimality.md; exact if transfers are serial and carry one state each.
    """

    name = "optimal"
    rank = 20
    adopts_others = True

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
        room = _has_room(costs, budget.remote_bytes)
        solved = {remote: job.solve(remote=remote) for remote in (memory_variants(costs) if room else (False,))}
        whole = next(iter(solved.values()))
        built = [solution for solution in map(job.build, solved.values()) if solution is not None]
        fitting = [solution for solution in built if job.fits(solution)]
        # A bound for unlimited remote memory also holds for less. Transfers that overlap compute may cost
        # nothing.
        hidden = costs.overlaps_compute and room
        extra = _bound_by_memory(costs, budget) if hidden else whole.least_extra
        least_seconds = costs.sweep_seconds + extra
        if len(fitting) == len(built) == 1 and not hidden:
            # The recursion charges each message, or there is none, and no limit of remote memory.
            unlimited = budget.remote_bytes is None and not costs.message_seconds
            full = whole.exact and (not room or unlimited)
            best = replace(fitting[0], least_seconds=least_seconds)
            if full or (not front and best.totals.seconds <= least_seconds * (1 + SUM_ROUNDING)):
                return replace(best, proved=True)
        fitting += job.find_alternatives(
            built, exact=whole.exact, without_remote=False not in solved, room=room
        )
        found = best_solution(choose, fitting)
        return None if found is None else replace(found, least_seconds=least_seconds)

    def check(self, parameters: Parameters, *, steps: int, splits: Splits = None) -> None:
        self.check_names(parameters)
        if read_setting(parameters, splits or (), steps=steps) is None:
            super().check(parameters, steps=steps, splits=splits)

    def actions(self, parameters: Parameters, *, steps: int, splits: Splits = None) -> Iterator[Action]:
        setting = read_setting(parameters, splits or (), steps=steps)
        if setting is None:
            return super().actions(parameters, steps=steps, splits=splits)
        return setting.strategy.actions(setting.parameters, steps=steps)

    def list_rungs(
        self,
        *,
        costs: StepCosts,
        remote_bytes: int | None,
        effort: str = "quick",
        is_beaten: IsBeaten,
        progress: Progress | None = None,
    ) -> Iterator[Rung]:
        room = _has_room(costs, remote_bytes)
        unlimited = Budget(remote_bytes=remote_bytes)
        most_played = MOST_PLAYED_IN_ALL // costs.steps
        for remote in memory_variants(costs) if room else (False,):
            problem, charged = (
                _make_problem(costs, unlimited, remote=remote, messages=messages) for messages in (False, True)
            )
            for free, solved, bounds in list_rungs(problem, effort=effort, progress=progress):
                if remote and solved.exact and _ignores_messages(costs):
                    # The same schedules at their full cost: none of the others is faster.
                    paid = solve(replace(charged, free_bytes=free), effort=effort) or solved
                    solutions = _price_all(paid, costs=costs, is_beaten=is_beaten)
                elif remote and costs.overlaps_compute:
                    solutions, played = _play_some(solved, costs=costs, is_beaten=is_beaten, most=most_played)
                    most_played -= played
                else:
                    solutions = _price_all(solved, costs=costs, is_beaten=is_beaten)
                for one in solutions:
                    one.settle()
                proves = remote == room and not (costs.overlaps_compute and room)
                yield Rung(
                    solutions=solutions,
                    bounds=[
                        (costs.resident_bytes + top, costs.sweep_seconds + extra)
                        for top, extra in (bounds if proves else ())
                    ],
                )
        reread = find_reread(costs, unlimited)
        built = [make_solution(reread.build(place), costs=costs) for place in range(len(reread))]
        yield Rung(solutions=built, bounds=_list_bounds_by_memory(costs))

    def bound_seconds(self, costs: StepCosts, budget: Budget) -> float:
        return costs.sweep_seconds + _bound_by_memory(costs, budget)

    def has_schedule(self, *, costs: StepCosts, budget: Budget, effort: str = "quick") -> bool:
        if budget.local_bytes is not None and budget.local_bytes < self.least_local_bytes(costs):
            return False
        if any(map(len, _find_families(costs, budget))):
            return True
        if budget.remote_bytes is None or costs.steps == 1:
            # With unlimited remote memory, the closed forms fit if any schedule does.
            return False
        # Remote states that are read several times may need less remote memory; only solving shows it.
        solution = self.solve(costs=costs, budget=budget, choose=prefer_quickest(budget), effort=effort)
        return solution is not None


#: A lower effort, for each of several searches.
_LESS = {"quick": "glance", "thorough": "quick"}
#: For each schedule that is simulated, the number of those that are counted.
_COUNTED = 4
#: The most memories for which the bound by memory is listed.
_LEVELS = 2**20
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

    def solve(self, *, remote: bool, price: float = 0.0, messages: bool = False) -> SolvedProblem:
        """Return the recursion's solution; ``price`` is added to the cost of each write.

        With ``messages``, each state is charged for its message, however cheap it is.
        """
        problem = _make_problem(self.costs, self.budget, remote=remote, messages=messages)
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

    def find_alternatives(
        self, built: list[Solution], *, exact: bool, without_remote: bool, room: bool
    ) -> list[Solution]:
        """Return other legal schedules: closed forms, and schedules that need less remote memory.

        Arguments:
            built: what the recursion chose.
            exact: whether its tables hold the whole sequence.
            without_remote: whether schedules that move nothing are still to be solved.
            room: whether a state fits in remote memory.
        """
        families = list(_find_families(self.costs, self.budget, front=self.front))
        others = [choose_of_families(families, costs=self.costs, choose=self.choose)]
        if room and exact and _ignores_messages(self.costs):
            charged = self.build(self.solve(remote=True, messages=True))
            others += [charged] if charged is not None and self.fits(charged) else []
        greedy = next((solution for solution in built if not self.fits(solution)), None)
        limited = self.front and self.budget.remote_bytes is not None
        local = None
        if room and without_remote and (greedy is not None or not built or limited):
            # Schedules that move nothing, where a limit leaves out what the recursion chose.
            local = self.build(self.solve(remote=False))
            others.append(local)
        if greedy is not None and not self.costs.overlaps_compute:
            others += self._raise_prices(greedy, local)
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


def _find_families(costs: StepCosts, budget: Budget, *, front: bool = False) -> Iterator[Family]:
    """Yield schedules that are also legal, and quick to find."""
    yield find_segments(costs, budget)
    yield find_periods(costs, budget, front=front)
    yield find_reread(costs, budget)


def _price_all(solved: SolvedProblem, *, costs: StepCosts, is_beaten: IsBeaten) -> list[Solution]:
    """Return the candidates, whose cost is counted, as schedules; except those that are beaten."""
    notes = (solved.rounding,) if solved.rounding else ()
    solutions = list[Solution]()
    for candidate in solved.candidates:
        least = candidate.extra if candidate.least_extra is None else candidate.least_extra
        # Sums in another order may differ.
        least = (costs.sweep_seconds + least) * (1 - SUM_ROUNDING)
        if not is_beaten(costs.resident_bytes + candidate.local_bytes, least):
            solutions.append(make_solution(candidate.build(), costs=costs, notes=notes))
    return solutions


def _play_some(
    solved: SolvedProblem, *, costs: StepCosts, is_beaten: IsBeaten, most: int
) -> tuple[list[Solution], int]:
    """Return candidates whose transfers overlap compute as schedules, and how many of them were simulated.

    Those that are beaten even if all their transfers are hidden are left out. Of more than ``most``, that many
    are taken, spread evenly.
    """
    notes = (solved.rounding,) if solved.rounding else ()
    trees = list[Tree]()
    for candidate in _spread(solved.candidates, _COUNTED * most):
        tree = candidate.build()
        least = least_seconds_of(tree, costs=costs) * (1 - SUM_ROUNDING)
        if not is_beaten(costs.resident_bytes + candidate.local_bytes + 2 * costs.state_bytes, least):
            trees.append(tree)
    counted = [tree for tree in trees if not is_played(tree, costs=costs)]
    played = _spread([tree for tree in trees if is_played(tree, costs=costs)], most)
    return [make_solution(tree, costs=costs, notes=notes) for tree in [*counted, *played]], len(played)


def _spread(several: Sequence[_T], most: int) -> Sequence[_T]:
    """Return all, or ``most`` of them, spread evenly."""
    if len(several) <= most:
        return several
    return [several[place] for place in np.linspace(0, len(several) - 1, most).astype(int).tolist()]


def _list_bounds_by_memory(costs: StepCosts) -> Iterator[tuple[int, float]]:
    """Yield the bound by memory for each number of tapes, or every few ones of a long sequence."""
    tapes = np.arange(1, costs.steps + 1, -(-costs.steps // _LEVELS))
    # The budgets that hold so many tapes and not the next ones.
    tops = np.append(tapes[1:] * costs.tape_bytes - 1, costs.steps * costs.tape_bytes)
    extra = (costs.steps - tapes) * costs.recompute_seconds + ceil_div(costs.steps, tapes) * costs.chunk_seconds
    yield from zip((costs.resident_bytes + tops).tolist(), (costs.sweep_seconds + extra).tolist(), strict=True)


def _has_room(costs: StepCosts, remote_bytes: int | None) -> bool:
    """Return whether a state fits in remote memory."""
    return remote_bytes is None or remote_bytes >= costs.remote_state_bytes


#: The recursion ignores a message that costs less than this share of a state's transfer.
_CHEAP = 0.05


def _ignores_messages(costs: StepCosts) -> bool:
    """Return whether the recursion leaves messages out.

    Several states may share a message. If that saves little, the schedule pays for messages afterwards; the
    value of the recursion is then a close bound for all schedules.
    """
    cheap = costs.message_seconds <= _CHEAP * min(costs.write_seconds, costs.read_seconds)
    return cheap and costs.message_seconds > 0 and not costs.overlaps_compute


def _make_problem(costs: StepCosts, budget: Budget, *, remote: bool = True, messages: bool = False) -> Problem:
    message = 0.0 if _ignores_messages(costs) and not messages else costs.message_seconds
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
        least_write=inf if not remote else 0.0 if costs.overlaps_compute else costs.write_seconds,
        least_read=inf if not remote else 0.0 if costs.overlaps_compute else costs.read_seconds,
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


STRATEGIES = (Optimal(),)
