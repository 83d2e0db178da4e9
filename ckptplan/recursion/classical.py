"""The classical problem, one tape and some slots: its optimum for each number of slots that is asked for."""

from __future__ import annotations

from collections.abc import Iterator
from functools import lru_cache, partial
from math import inf

import numpy as np

from ckptplan.model.split import Where
from ckptplan.recursion import bounds, revolve
from ckptplan.recursion.disk_revolve import Segments, make_segments_tree
from ckptplan.recursion.problem import Candidate, SolvedProblem
from ckptplan.recursion.schedule_tree import grow_tree
from ckptplan.recursion.single_tape import SingleTape
from ckptplan.recursion.table_problem import TableProblem
from ckptplan.recursion.tree import Part, UnitSizes

#: Steps of the classical case: its work rises with T, and with T^2 but slowly.
_CLASSICAL = {"glance": 10_000, "quick": 30_000, "thorough": 200_000}
#: Closed forms, and steps of all classical tables together, where smaller memories are asked for, too.
_BINOMIALS = 2_000
_CLASSICAL_IN_ALL = {"glance": 30_000, "quick": 120_000, "thorough": 600_000}


#: A question asks for the same tables once for each objective.
_cached = lru_cache(maxsize=64)(SingleTape)


def is_short(job: TableProblem) -> bool:
    """Return whether the classical problem can be solved: without remote memory there is a closed form."""
    return job.problem.write == inf or job.problem.steps <= _CLASSICAL[job.effort]


def solve_classical(job: TableProblem) -> SolvedProblem:
    """Return the optimum, with a single tape, for the budget or for each number of slots within it."""
    problem, most = job.problem, min(job.problem.steps, _most_states(job))
    counts = _slot_counts(job, most)
    if problem.write == inf:
        again = revolve.count_recomputed(problem.steps, chunk=1, slots=most)
        return SolvedProblem(
            candidates=list(_binomial_candidates(job, counts)),
            least_extra=again * problem.recompute if most else inf,
            exact=len(counts) > most or not job.front,
        )
    optimum = float(_cached_single_tape(job, most).unstored[problem.steps])
    return SolvedProblem(
        candidates=list(_single_tape_candidates(job, counts)),
        least_extra=bounds.bound_by_optimum(problem, optimum),
        exact=problem.covered and (len(counts) > most or not job.front),
    )


def _most_states(job: TableProblem) -> int:
    """Return the states that there is room for beside one tape."""
    return (job.units - job.sizes.tape) // job.sizes.state


def _slot_counts(job: TableProblem, most: int) -> list[int]:
    """Return the numbers of slots to look at: the most, and fewer where smaller memories are asked for."""
    if not job.front:
        return [most]
    few = _BINOMIALS if job.problem.write == inf else _CLASSICAL_IN_ALL[job.effort] // job.problem.steps
    if most < few:
        return list(range(most, -1, -1))
    spread = np.geomspace(1, most, max(few - 2, 1)).astype(int).tolist()
    return sorted({0, most, *spread}, reverse=True)


def _binomial_candidates(job: TableProblem, counts: list[int]) -> Iterator[Candidate]:
    """Return binomial checkpointing in local memory alone, for any number of steps."""
    steps = job.problem.steps
    for slots in counts:
        again = revolve.count_recomputed(steps, chunk=1, slots=slots)
        if again < revolve.MOST and revolve.is_listable(steps, slots):
            yield Candidate(
                extra=again * job.problem.recompute,
                local_bytes=slots * job.problem.state_bytes + job.problem.tape_bytes,
                build=partial(make_segments_tree, slots, Segments(0, 0, 0, steps, again), steps=steps),
            )


def _single_tape_candidates(job: TableProblem, counts: list[int]) -> Iterator[Candidate]:
    """Return the classical optimum for each number of slots."""
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
    # A tape as large as a state and one slot each: slots alone are counted.
    return _cached(
        steps=job.problem.steps,
        units=slots + 1,
        sizes=UnitSizes(1, 1),
        recompute=job.problem.recompute,
        write=job.problem.write,
        read=job.problem.read,
        progress=None if job.front else job.progress,
    )


def clear_caches() -> None:
    """Keep no table of earlier questions; for those who measure time."""
    _cached.cache_clear()
