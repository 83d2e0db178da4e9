"""Implements Optimal: the optimum over all legal schedules, for any sizes, two tiers and any reads.

The schedule of the least local memory has a form of its own: the first state is in remote memory, and is read
again for each step.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace
from itertools import chain
from math import inf

import numpy as np

from ckptplan.cost.arrays import SUM_ROUNDING
from ckptplan.cost.exact import Cost, Counts, price
from ckptplan.model.budget import Budget
from ckptplan.model.goal import CacheName
from ckptplan.model.record import Parameters
from ckptplan.model.split import Choice, Where
from ckptplan.model.step_costs import StepCosts
from ckptplan.recursion.pricing import count_compute_seconds
from ckptplan.recursion.problem import (
    MOST_SIMULATED,
    Family,
    Prices,
    Problem,
    SolvedProblem,
    as_family,
    choose_within,
)
from ckptplan.recursion.tree import (
    CACHE_UNITS,
    OFFLOADED_STEPS,
    Decision,
    Part,
    UnitSizes,
    grow_tree,
    record_one_by_one,
)
from ckptplan.strategies.answer import Answer
from ckptplan.strategies.protocol import Splits
from ckptplan.strategies.solved import BudgetRange, IsBeaten, Solved, Task

#: The longest sequence: a plan holds two decisions for each step.
_MOST_STEPS = 50_000
_ONE = np.array([1])


def find_reread(costs: StepCosts, budget: Budget) -> Family:
    """Return the schedule of the least local memory, one tape and one remote state, if it fits.

    The family is empty if transfers overlap compute: their buffers take more than a local checkpoint does.
    """
    steps = costs.steps
    # One cache is held at a time, with the tape.
    recorded = costs.model_copy(update={"tape_bytes": costs.recorded_bytes, "cache_bytes": 0})
    sizes = UnitSizes(1, 1, min(costs.cache_bytes, 1))
    again = np.array([steps * (steps - 1) // 2])
    counts = Counts(
        recomputed_steps=again,
        recomputed_without_cache=again if costs.cache_bytes else 0 * again,
        remote_writes=_ONE,
        remote_reads=np.array([steps - 1]),
        messages=np.array([steps]),
        advances=np.array([steps - 1]),
        chunks=np.array([steps]),
        largest_message=_ONE,
        tapes=_ONE,
        remote_checkpoints=_ONE,
    )
    cost = price(counts, recorded)
    fits = cost.within(budget) & (not costs.overlaps_compute and 1 < steps <= _MOST_STEPS)
    return Family(
        cost=cost.take(fits),
        build=lambda _: grow_tree(Part(Where.UNSTORED, steps, 1), _decide, sizes=sizes),
    )


def _decide(part: Part) -> Decision:
    if part.steps == 1:
        return Decision(Choice.TAPE)
    if part.where is Where.UNSTORED:
        return Decision(Choice.OFFLOAD)
    return Decision(Choice.SPLIT, part.steps - 1)


#: The effort of each search, by the effort of the task, if a task makes several searches.
_LOWER_EFFORT = {"quick": "glance", "thorough": "quick"}
#: The most amounts of memory for which the bound by memory is listed.
_LEVELS = 2**20
#: How many prices of a write are tried if remote memory is too small.
_MOST_PRICES = 8


class Optimal(Solved):
    """The optimum over all legal schedules, for any sizes, two tiers and any reads.

    The general problem of docs/optimality.md; exact if transfers are serial and carry one state each.
    """

    name = "optimal"
    rank = 20
    beside_closed_forms = True
    records_one_by_one = True
    knows_caches = True
    cache_names = (CACHE_UNITS, OFFLOADED_STEPS)
    cache_choices = ("all", "segment", "none", "offloaded")

    def name_cache(self, parameters: Parameters, *, splits: Splits = None) -> CacheName:
        if OFFLOADED_STEPS in parameters:
            return "offloaded"
        if CACHE_UNITS not in parameters:
            return "all"
        cached_lengths = [split.steps for split in splits or () if split.choice is Choice.KEEP]
        if not cached_lengths:
            return "none"
        # The first decision is about the whole sequence.
        return "all" if splits and max(cached_lengths) == splits[0].steps else "segment"

    def find(self, task: Task) -> list[Family]:
        return [find_reread(task.costs, task.budget)]

    def solve(self, task: Task) -> Answer | None:
        """Return the better of two schedules: of chunks of any length, and of single steps.

        Schedules that record each step by itself need no workspace for chunks (``task.single``), but pay
        for one chunk a step. They are searched only if their lower bound is below the first schedule's time.
        """
        general, single = self._optimise(task), None
        if task.single is None:
            return general
        costs, budget = task.single, task.budget
        general = None if general is None else general.without_chunk_workspace(costs)
        single_bound = self._bound_single_steps(costs, budget)
        # A bound on time decides only if the task puts time first.
        by_time = not task.front
        if single_bound < (general.totals(costs).seconds if by_time and general is not None else inf):
            single = self._solve_one_by_one(task, costs)
        answers = [answer for answer in (general, single) if answer is not None]
        best = replace(task, costs=costs).best_of(answers)
        if best is None:
            return None
        least = self.bound_seconds(costs, budget)
        if general is not None and general.least_seconds is not None:
            least = general.least_seconds
        if single is not None and single.least_seconds is not None:
            single_bound = max(single_bound, single.least_seconds)
        settled = single_bound == inf or (by_time and best.totals(costs).seconds <= single_bound)
        proved = general is not None and general.proved and (settled if single is None else single.proved)
        return replace(best, least_seconds=min(least, single_bound), proved=proved)

    def _optimise(self, task: Task) -> Answer | None:
        """Return the best schedule at the costs of the task, with chunks of any length."""
        costs, budget = task.costs, task.budget
        has_remote = _fits_remotely(costs, budget)
        solved = _solve_variants(task)
        first = next(iter(solved.values()))
        built = [answer for problem in solved.values() if (answer := self._build(task, problem)) is not None]
        fitting = [answer for answer in built if _fits(task, answer) and task.allows(answer)]
        # A bound for unlimited remote memory also holds for less. Transfers that overlap compute may cost
        # nothing.
        may_hide_transfers = costs.overlaps_compute and has_remote
        extra = _bound_by_memory(costs, budget) if may_hide_transfers else first.least_extra
        least_seconds = costs.sweep_seconds + extra
        if len(fitting) == len(built) == 1 and not may_hide_transfers:
            # Optimal if nothing can move, or if remote memory is unlimited and messages cost nothing.
            unlimited = budget.remote_bytes is None and not costs.message_seconds
            is_optimal = first.exact and (not has_remote or unlimited)
            (best,) = fitting
            is_quickest = best.totals(costs).seconds <= least_seconds * (1 + SUM_ROUNDING)
            if is_optimal or (not task.front and is_quickest):
                return replace(best, least_seconds=least_seconds, proved=True)
        # These come first: of schedules that cost the same, the front lists the first.
        fitting = [*(answer for answer in self._charge_messages(task, first) if _fits(task, answer)), *fitting]
        fitting += self._find_alternatives(task, built, without_remote=False not in solved)
        fitting += self._offload_caches(task)
        chosen = task.best_of([answer for answer in fitting if task.allows(answer)])
        return None if chosen is None else replace(chosen, least_seconds=least_seconds)

    def _bound_single_steps(self, costs: StepCosts, budget: Budget) -> float:
        """Return a lower bound on the seconds of schedules that record each step by itself.

        They may hold as many tapes as the budget has room for, each recorded as a chunk.
        """
        without_chunks, chunk_seconds = _without_chunk_costs(costs)
        return self.bound_seconds(without_chunks, budget) + chunk_seconds

    def _solve_one_by_one(self, task: Task, costs: StepCosts) -> Answer | None:
        """Return the best schedule that records each step by itself; its bound is for such schedules."""
        without_chunks, chunk_seconds = _without_chunk_costs(costs)

        def choose(cost: Cost) -> int | None:
            return task.choose(replace(cost, seconds=cost.seconds + chunk_seconds))

        quickest = self._optimise(replace(task, costs=without_chunks, choose=choose))
        answer = None if quickest is None else self._record_single_steps(quickest, costs)
        if quickest is None or answer is None:
            return None
        least = None if quickest.least_seconds is None else quickest.least_seconds + chunk_seconds
        return replace(answer, least_seconds=least, proved=quickest.proved)

    def _record_single_steps(self, answer: Answer, costs: StepCosts) -> Answer | None:
        """Return the answer with each step recorded by itself; None if its decisions are about chunks."""
        if answer.schedule is None or answer.schedule.chunk > 1:
            return None
        return self.answer_with(record_one_by_one(answer.schedule), costs=costs, notes=answer.notes)

    def _build(self, task: Task, solved: SolvedProblem) -> Answer | None:
        """Return the best schedule of a solution, even if it exceeds the remote memory."""
        return self.build_best([as_family(solved.candidates, task.costs)], task, notes=solved.notes)

    def _charge_messages(self, task: Task, solved: SolvedProblem) -> Iterator[Answer]:
        """Yield the best schedule where each message is charged, if a solution leaves messages out."""
        if _fits_remotely(task.costs, task.budget) and solved.exact and _ignores_messages(task.costs):
            charged = self._build(task, _solve(task, remote=True, messages=True))
            if charged is not None:
                yield charged

    def _offload_caches(self, task: Task) -> Iterator[Answer]:
        """Yield the best schedule whose caches move to remote memory, if that takes less than a full run.

        It is the schedule of the recursion in which a step without its cache runs again in
        f' = r + 2 T_r (docs/optimality.md). Messages of caches are charged afterwards.
        """
        if _may_offload(task.costs, task.budget):
            answer = self._build(task, _solve(task, remote=True, offloads=True))
            if answer is not None and _fits(task, answer):
                yield answer

    def _find_alternatives(self, task: Task, built: list[Answer], *, without_remote: bool) -> Iterator[Answer]:
        """Yield other legal schedules: one of the least memory, and schedules that need less remote memory.

        Arguments:
            task: the schedule to find.
            built: the schedules that the recursion chose.
            without_remote: whether schedules that move nothing are still to be solved.
        """
        oversized = next((answer for answer in built if not _fits(task, answer)), None)
        note = ("remote memory is too small for the optimum that uses it",) if oversized is not None else ()
        for answer in self._find_other_schedules(task, built, oversized, without_remote=without_remote):
            if answer is not None:
                yield replace(answer, notes=(*answer.notes, *note))

    def _find_other_schedules(
        self, task: Task, built: list[Answer], oversized: Answer | None, *, without_remote: bool
    ) -> Iterator[Answer | None]:
        """Yield the schedules of ``_find_alternatives`` or None; ``oversized`` exceeds the remote memory."""
        yield super().solve(task)
        has_remote = _fits_remotely(task.costs, task.budget)
        limited = task.front and task.budget.remote_bytes is not None
        local = None
        if has_remote and without_remote and (oversized is not None or not built or limited):
            # Schedules that move nothing, if a limit excludes the schedules that the recursion chose.
            local = self._build(task, _solve(task, remote=False))
            yield local
        if oversized is not None:
            yield from self._raise_prices(task, oversized, local)

    def _raise_prices(self, task: Task, oversized: Answer, local: Answer | None) -> Iterator[Answer]:
        """Yield schedules for several prices of a write, which rise until a schedule fits; then bisect.

        A higher price leaves fewer states in remote memory at once. Each schedule that fits is legal; the
        best of them need not be optimal.
        """
        costs = task.costs
        remote_slots = (task.budget.remote_bytes or 0) // costs.remote_state_bytes
        saved = costs.base_seconds
        if local is not None:
            saved = local.totals(costs).seconds - oversized.totals(costs).seconds
        low, high, surcharge = 0.0, inf, saved / remote_slots
        for _ in range(_MOST_PRICES):
            candidates = _solve(task, remote=True, write_surcharge=surcharge).candidates
            if not surcharge or not candidates:
                return
            quickest = min(candidates, key=lambda candidate: candidate.extra)
            answer = self.answer_with(quickest.build(), costs=costs)
            if _fits(task, answer):
                yield answer
                high = surcharge
                if answer.totals(costs).remote_peak_bytes > costs.remote_state_bytes * (remote_slots - 1):
                    return
            else:
                low = surcharge
            surcharge = 4 * surcharge if high == inf else (low + high) / 2

    def list_ranges(
        self, task: Task, *, is_beaten: IsBeaten, budgets: Sequence[int] | None = None
    ) -> Iterator[BudgetRange]:
        """Yield the schedules of chunks of any length, and then those that record each step by itself."""
        yield from map(_drop_tables, self._list_ranges(task, is_beaten=is_beaten, budgets=budgets))
        costs = task.single
        single_bound = inf if costs is None else self._bound_single_steps(costs, task.budget)
        if costs is None or single_bound == inf:
            return
        without_chunks, chunk_seconds = _without_chunk_costs(costs)
        for budget_range in self._list_ranges(
            replace(task, costs=without_chunks),
            is_beaten=lambda local_bytes, seconds: is_beaten(local_bytes, seconds + chunk_seconds),
            budgets=budgets,
        ):
            split_answers = (self._record_single_steps(answer, costs) for answer in budget_range.answers)
            yield _drop_tables(
                BudgetRange(
                    answers=[answer for answer in split_answers if answer is not None],
                    bounds=[
                        (local_bytes, seconds + chunk_seconds) for local_bytes, seconds in budget_range.bounds
                    ],
                    single_bound=single_bound,
                )
            )

    def _list_ranges(
        self, task: Task, *, is_beaten: IsBeaten, budgets: Sequence[int] | None
    ) -> Iterator[BudgetRange]:
        """Yield the schedules of each variant of the problem, range by range of budgets.

        The variants are those of ``_memory_variants``, and one whose caches move to remote memory if that
        gains time. The last schedule is that of ``find_reread``.
        """
        from ckptplan.recursion.solver import list_ranges, solve

        costs = task.costs
        has_remote = _fits_remotely(costs, task.budget)
        open_budgets = budgets
        if budgets is not None:
            open_budgets = [limit for limit in budgets if self._is_open(limit, task, is_beaten=is_beaten)]
        variants = [(remote, False) for remote in _memory_variants(costs, has_remote=has_remote)]
        if _may_offload(costs, task.budget):
            variants.append((True, True))
        for remote, offloads in variants:
            problem = _make_problem(costs, task.budget, remote=remote, effort=task.effort)
            problem = _offload(problem) if offloads else problem
            charged = _make_problem(costs, task.budget, remote=remote, messages=True, effort=task.effort)
            # ``charged`` is solved for its schedules, so its bound need not hold for cheaper messages.
            charged = replace(charged, least_write=charged.prices.write, least_read=charged.prices.read)
            buffers = 2 * costs.state_bytes if costs.overlaps_compute and remote else 0
            used = costs.resident_bytes + buffers
            free_bytes = None if open_budgets is None else [local_bytes - used for local_bytes in open_budgets]
            for free, budget_range, bounds in list_ranges(replace(problem, progress=task.progress), free_bytes):
                solved = budget_range
                if remote and solved.exact and _ignores_messages(costs):
                    # Solve with messages charged: these are the fastest schedules of one message a state.
                    solved = solve(replace(charged, free_bytes=free)) or solved
                if free_bytes is not None:
                    solved = replace(solved, candidates=choose_within(solved.candidates, free_bytes))
                answers = self._price_all(solved, costs, buffers=buffers, is_beaten=is_beaten)
                proves_bounds = (
                    remote == has_remote and not offloads and not (costs.overlaps_compute and has_remote)
                )
                yield BudgetRange(
                    answers=answers,
                    bounds=[
                        (costs.resident_bytes + top, costs.sweep_seconds + extra)
                        for top, extra in (bounds if proves_bounds else ())
                    ],
                )
        reread = find_reread(costs, task.budget)
        built = [self.answer_with(reread.build(place), costs=costs) for place in range(len(reread))]
        yield BudgetRange(answers=built, bounds=_list_bounds_by_memory(costs, budgets))

    def _is_open(self, local_bytes: int, task: Task, *, is_beaten: IsBeaten) -> bool:
        """Return whether a schedule within a budget may beat the known ones by more than the resolution."""
        least = self.bound_seconds(task.costs, Budget(local_bytes=local_bytes))
        return not is_beaten(local_bytes, least / (1 - task.resolution) * (1 + SUM_ROUNDING))

    def _price_all(
        self, solved: SolvedProblem, costs: StepCosts, *, buffers: int, is_beaten: IsBeaten
    ) -> list[Answer]:
        """Return an answer, with its counted cost, for each candidate that is not beaten.

        ``buffers`` are the bytes of the buffers of transfers that overlap compute. Such transfers may take no
        time.
        """
        answers = list[Answer]()
        for candidate in solved.candidates:
            extra = candidate.extra if candidate.least_extra is None else candidate.least_extra
            tree = candidate.build()
            least = count_compute_seconds(tree, costs=costs) if buffers else costs.sweep_seconds + extra
            # Sums in another order may differ by rounding.
            least *= 1 - SUM_ROUNDING
            if not is_beaten(costs.resident_bytes + candidate.local_bytes + buffers, least):
                answers.append(self.answer_with(tree, costs=costs, notes=solved.notes))
        return answers

    def bound_seconds(self, costs: StepCosts, budget: Budget) -> float:
        return costs.sweep_seconds + _bound_by_memory(costs, budget)

    def has_schedule(self, task: Task) -> bool:
        costs, budget = task.costs, task.budget
        if budget.local_bytes is not None and budget.local_bytes < self.least_local_bytes(costs):
            return False
        if super().has_schedule(task):
            return True
        problem = _make_problem(costs, budget, remote=False, effort=task.effort)
        if (
            problem.cache_bytes
            and problem.is_affordable
            and problem.units >= problem.sizes.state + problem.sizes.tape
        ):
            # With a local checkpoint, a table holds a schedule that records one step at a time.
            return True
        # Remote states that are read several times may need less remote memory; only solving shows it.
        solved = _solve_variants(task)
        built = [answer for problem in solved.values() if (answer := self._build(task, problem)) is not None]
        charged = self._charge_messages(task, next(iter(solved.values())))
        alternatives = self._find_alternatives(task, built, without_remote=False not in solved)
        return any(task.best_of([answer]) is not None for answer in chain(built, charged, alternatives))


def _drop_tables(budget_range: BudgetRange) -> BudgetRange:
    """Release the tables behind the schedules of a range, before the tables of the next range are filled."""
    for answer in budget_range.answers:
        if answer.schedule is not None:
            answer.schedule.drop_table()
    return budget_range


def _without_chunk_costs(costs: StepCosts) -> tuple[StepCosts, float]:
    """Return costs at which chunks cost nothing, and the seconds of one chunk for each step.

    A schedule found at these costs takes these seconds more if it records each step by itself.
    """
    without_chunks = costs.model_copy(update={"chunk_bytes": 0, "chunk_seconds": 0.0})
    return without_chunks, costs.steps * costs.chunk_seconds


def _solve_variants(task: Task) -> dict[bool, SolvedProblem]:
    """Return the solutions with remote memory (True) and without it (False), or one if they are the same."""
    variants = _memory_variants(task.costs, has_remote=_fits_remotely(task.costs, task.budget))
    return {remote: _solve(task, remote=remote) for remote in variants}


def _memory_variants(costs: StepCosts, *, has_remote: bool) -> tuple[bool, ...]:
    """Return the variants to solve: with remote memory, without it, or both if transfers need buffers."""
    if not has_remote or (costs.overlaps_compute and costs.steps > MOST_SIMULATED):
        # Both tables of a long sequence would take too much memory.
        return (False,)
    return (True, False) if costs.overlaps_compute else (True,)


def _solve(
    task: Task, *, remote: bool, write_surcharge: float = 0.0, messages: bool = False, offloads: bool = False
) -> SolvedProblem:
    """Return the recursion's solution; ``write_surcharge`` is added to the cost of each write.

    With ``messages``, each state is charged for its message, however cheap it is. With ``offloads``, caches
    that are not kept in local memory are in remote memory.
    """
    problem = _make_problem(task.costs, task.budget, remote=remote, messages=messages, effort=task.effort)
    problem = replace(problem, front=task.front, alone=task.alone, progress=task.progress)
    if offloads:
        problem = _offload(problem)
    if write_surcharge:
        dearer = replace(problem.prices, write=problem.prices.write + write_surcharge)
        problem = replace(problem, prices=dearer, effort=_LOWER_EFFORT[task.effort], front=False, alone=True)
    # Imported here for a fast start: every command imports every strategy, but few commands solve one.
    from ckptplan.recursion.solver import solve

    solved = solve(problem)
    if solved is None:
        return SolvedProblem(candidates=[], least_extra=_bound_by_memory(task.costs, task.budget), exact=False)
    return solved


def _fits(task: Task, answer: Answer) -> bool:
    """Return whether the remote memory is large enough for an answer."""
    limit = task.budget.remote_bytes
    return limit is None or answer.totals(task.costs).remote_peak_bytes <= limit


def _list_bounds_by_memory(costs: StepCosts, budgets: Sequence[int] | None) -> Iterator[tuple[int, float]]:
    """Yield local bytes and the bound in seconds: for ``budgets``, or up to ``_LEVELS`` numbers of tapes."""
    if budgets is None:
        tapes = np.arange(1, costs.steps + 1, -(-costs.steps // _LEVELS))
        # The largest budget that holds each number of tapes.
        tops = np.append(tapes[1:] * costs.recorded_bytes - 1, costs.steps * costs.recorded_bytes)
    else:
        tops = np.array(budgets) - costs.resident_bytes
        tops = tops[tops >= costs.recorded_bytes]
    extra = _make_problem(costs, Budget(), remote=False).list_bounds_by_memory(tops)
    yield from zip((costs.resident_bytes + tops).tolist(), (costs.sweep_seconds + extra).tolist(), strict=True)


def _fits_remotely(costs: StepCosts, budget: Budget) -> bool:
    """Return whether a state fits in remote memory."""
    return budget.remote_bytes is None or budget.remote_bytes >= costs.remote_state_bytes


#: The recursion ignores a message that costs less than this share of a state's transfer.
_CHEAP = 0.05


def _ignores_messages(costs: StepCosts) -> bool:
    """Return whether the recursion leaves messages out.

    Several states may share a message. Cheap messages are left out, and added to the cost of the schedule that
    the recursion finds. The value of the recursion is then a close bound for all schedules.
    """
    cheap = costs.message_seconds <= _CHEAP * min(costs.write_seconds, costs.read_seconds)
    return cheap and costs.message_seconds > 0 and not costs.overlaps_compute


def _make_problem(
    costs: StepCosts, budget: Budget, *, remote: bool, messages: bool = False, effort: str = "quick"
) -> Problem:
    # Without caches, the value that leaves messages out is also a bound for all schedules.
    ignored = _ignores_messages(costs) and not messages and not costs.cache_bytes
    message = 0.0 if ignored else costs.message_seconds
    buffers = 2 * costs.state_bytes if costs.overlaps_compute and remote else 0
    free = None if budget.local_bytes is None else budget.local_bytes - costs.resident_bytes - buffers
    return Problem(
        steps=costs.steps,
        free_bytes=None if free is None else max(0, free),
        state_bytes=costs.state_bytes,
        tape_bytes=costs.recorded_bytes,
        cache_bytes=costs.cache_bytes,
        prices=Prices.of(costs, remote=remote, message=message),
        least_write=inf if not remote else 0.0 if costs.overlaps_compute else costs.write_seconds,
        least_read=inf if not remote else 0.0 if costs.overlaps_compute else costs.read_seconds,
        effort=effort,
    )


def _may_offload(costs: StepCosts, budget: Budget) -> bool:
    """Return whether a step runs again sooner if its cache comes back from remote memory."""
    moving = costs.cache_write_seconds + costs.cache_read_seconds
    gains = costs.recompute_seconds + moving < costs.forward_seconds
    return bool(costs.cache_bytes) and gains and not costs.overlaps_compute and _fits_remotely(costs, budget)


def _offload(problem: Problem) -> Problem:
    """Return the problem of schedules in which caches that are not kept are in remote memory."""
    prices = problem.prices
    recompute = min(prices.recompute, prices.replay + prices.offload)
    return replace(problem, prices=replace(prices, recompute=recompute), offloads=True)


def _bound_by_memory(costs: StepCosts, budget: Budget) -> float:
    """Return a lower bound on the seconds that any schedule adds, even with all its transfers hidden."""
    return _make_problem(costs, budget, remote=False).bound_by_memory()


STRATEGIES = (Optimal(),)
