"""Solves the classical problem, one tape and some slots, for each number of slots of interest."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from functools import lru_cache, partial
from math import inf

import numpy as np

from ckptplan.model.split import Where
from ckptplan.recursion import bounds, revolve
from ckptplan.recursion.disk_revolve import make_segments_tree
from ckptplan.recursion.problem import Candidate, Problem, SolvedProblem
from ckptplan.recursion.schedule_tree import grow_tree
from ckptplan.recursion.single_tape import SingleTape
from ckptplan.recursion.table_problem import TableProblem
from ckptplan.recursion.tree import Part, UnitSizes

#: Longest sequence of the classical case; the work rises with T^2, with a small constant.
_CLASSICAL = {"glance": 10_000, "quick": 30_000, "thorough": 200_000}
#: Limits for a whole front of memories: on closed forms, and on the steps of all classical tables together.
_BINOMIALS = 2_000
_CLASSICAL_IN_ALL = {"glance": 30_000, "quick": 120_000, "thorough": 600_000}


#: A question needs the same tables once for each objective.
_cached = lru_cache(maxsize=64)(SingleTape)


def is_short(job: TableProblem) -> bool:
    """Return whether the sequence is short enough; without remote memory a closed form serves any length."""
    return job.problem.write == inf or job.problem.steps <= _CLASSICAL[job.effort]


def covers_actions(problem: Problem) -> bool:
    """Return whether this case is exact: with free saves, and local loads that cost no more than remote ones.

    Then all schedules with equally many pieces have equally many runs and loads, and only recomputation and
    transfers tell them apart. Otherwise a schedule with more of these and fewer saves can be better.
    """
    return not problem.actions.save and problem.actions.load <= problem.read


def solve_classical(job: TableProblem) -> SolvedProblem:
    """Return the single-tape optimum for the budget, or for each number of slots within it.

    If saves cost something, the schedules are good ones, and the bound is that of free saves.
    """
    problem, most = job.problem, count_slots(job)
    counts = _slot_counts(job, most)
    if problem.write == inf:
        return SolvedProblem(
            candidates=list(_binomial_candidates(job, counts)),
            least_extra=_binomial_extra(problem.steps, most, _with_free_saves(problem)) if most else inf,
            exact=covers_actions(problem) and (len(counts) > most or not job.front),
        )
    lowered = job._replace(problem=_with_free_saves(problem))
    optimum = float(_cached_single_tape(lowered, most).unstored[problem.steps])
    return SolvedProblem(
        candidates=list(_single_tape_candidates(job, counts)),
        least_extra=bounds.bound_by_optimum(problem, optimum),
        exact=covers_actions(problem) and problem.covered and (len(counts) > most or not job.front),
    )


def count_slots(job: TableProblem) -> int:
    """Return how many states fit in local memory besides one tape, at most one for each step."""
    return min(job.problem.steps, (job.units - job.sizes.tape) // job.sizes.state)


def _with_free_saves(problem: Problem) -> Problem:
    """Return a problem that costs no more and that this case covers."""
    if covers_actions(problem):
        return problem
    load = min(problem.actions.load, problem.read)
    return replace(problem, actions=problem.actions._replace(save=0.0, load=load))


def _binomial_extra(steps: int, slots: int, problem: Problem) -> float:
    """Return what binomial checkpointing adds to the first sweep; infinite beyond what can be counted."""
    recomputed = revolve.count_recomputed(steps, chunk=1, slots=slots)
    if recomputed >= revolve.MOST:
        return inf
    a, k, s, back = problem.actions
    saves = revolve.count_saves(steps, slots=slots)
    return recomputed * problem.recompute + (steps - 1) * (a + back) + steps * k + saves * s


def _slot_counts(job: TableProblem, most: int) -> list[int]:
    """Return the numbers of slots to solve for: the most and, for a front, smaller ones too."""
    if not job.front:
        return [most]
    few = _BINOMIALS if job.problem.write == inf else _CLASSICAL_IN_ALL[job.effort] // job.problem.steps
    if most < few:
        return list(range(most, -1, -1))
    spread = np.geomspace(1, most, max(few - 2, 1)).astype(int).tolist()
    return sorted({0, most, *spread}, reverse=True)


def _binomial_candidates(job: TableProblem, counts: list[int]) -> Iterator[Candidate]:
    """Yield binomial checkpointing in local memory alone, for any number of steps."""
    steps = job.problem.steps
    for slots in counts:
        recomputed = revolve.count_recomputed(steps, chunk=1, slots=slots)
        if recomputed < revolve.MOST and revolve.is_listable(steps, slots):
            yield Candidate(
                extra=_binomial_extra(steps, slots, job.problem),
                local_bytes=slots * job.problem.state_bytes + job.problem.tape_bytes,
                build=partial(make_segments_tree, slots, (), steps=steps),
            )


def _single_tape_candidates(job: TableProblem, counts: list[int]) -> Iterator[Candidate]:
    """Yield the classical optimum for each number of slots."""
    problem = job.problem
    for slots in counts:
        table = _cached_single_tape(job, slots)
        extra = float(table.unstored[problem.steps])
        if extra < inf:
            root = Part(Where.UNSTORED, problem.steps, table.units)
            yield Candidate(
                extra=extra,
                local_bytes=slots * problem.state_bytes + problem.tape_bytes,
                build=partial(grow_tree, root, table.decide, sizes=table.sizes),
            )


def _cached_single_tape(job: TableProblem, slots: int) -> SingleTape:
    # With a tape as large as a state, units count slots, and one unit is the tape's.
    return _cached(
        steps=job.problem.steps,
        units=slots + 1,
        sizes=UnitSizes(1, 1),
        recompute=job.problem.recompute,
        write=job.problem.write,
        read=job.problem.read,
        actions=job.problem.actions,
        progress=None if job.front else job.progress,
    )


def clear_caches() -> None:
    """Drop the tables of earlier questions, e.g. before a time measurement."""
    _cached.cache_clear()
