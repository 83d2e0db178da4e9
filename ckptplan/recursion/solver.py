"""Finds the optimum under a byte budget: exact if affordable, else good schedules and a proven bound.

The exact optimum comes from one table for all lengths and budgets (``tables``), or from the classical case
(``single_tape``). Where these are too much work, there are two kinds of schedules, and a bound on the cost of
any schedule:

- segments of one length in remote memory, with an exact schedule inside them and for the rest;
- chunks of several steps treated as one step, so that the tables are smaller.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from math import gcd, inf

import numpy as np

from ckptplan.model.progress import Progress
from ckptplan.model.split import Choice, Where
from ckptplan.recursion import bounds
from ckptplan.recursion.classical import count_slots, covers_actions, is_short, solve_classical
from ckptplan.recursion.problem import Candidate, Problem, SolvedProblem
from ckptplan.recursion.schedule_tree import Tree, grow_tree
from ckptplan.recursion.single_tape import is_classical
from ckptplan.recursion.table_problem import (
    WORK,
    TableProblem,
    cached_tables,
    coarsen,
    is_affordable,
    longest_table,
)
from ckptplan.recursion.tables import Tables
from ckptplan.recursion.tree import Decision, Part, UnitSizes


def solve(
    problem: Problem, *, effort: str, front: bool = False, progress: Progress | None = None
) -> SolvedProblem | None:
    """Return schedules for the budget, None if no schedule fits.

    With ``front``, return schedules for every smaller budget, too; ``exact`` then refers to all of them.
    """
    steps, tape = problem.steps, problem.tape_bytes
    unit = gcd(problem.state_bytes, tape)
    sizes = UnitSizes(problem.state_bytes // unit, tape // unit)
    most = steps * sizes.tape
    units = most if problem.free_bytes is None else min(most, problem.free_bytes // unit)
    if units < sizes.tape:
        return None
    job = TableProblem(
        problem, units=units, unit=unit, sizes=sizes, effort=effort, front=front, progress=progress
    )
    if units == most:
        return _solve_with_all_tapes(job)
    if is_classical(units=units, sizes=sizes) and is_short(job):
        return solve_classical(job) if covers_actions(problem) else _solve_classical_with_actions(job)
    return _solve_by_tables(job)


def _solve_classical_with_actions(job: TableProblem) -> SolvedProblem:
    """Return the solution of the classical case where saves cost something: from a table, if one is affordable.

    With a single tape, units count slots: a state is one unit, and a tape is one more than all slots, so that
    two do not fit.
    """
    slots = count_slots(job)
    counted = job._replace(units=2 * slots + 1, sizes=UnitSizes(1, slots + 1))
    if not is_affordable(counted, counted.units):
        return solve_classical(job)
    problem = job.problem
    tables = cached_tables(counted, steps=problem.steps, units=counted.units)
    candidates = [
        replace(
            candidate,
            local_bytes=(candidate.local_bytes - slots - 1) * problem.state_bytes + problem.tape_bytes,
        )
        for candidate in _table_candidates(tables, problem.steps, unit=1)
    ]
    return SolvedProblem(
        candidates=candidates,
        least_extra=_prove_bound(counted._replace(problem=problem.lowered())),
        exact=problem.covered,
    )


def _solve_with_all_tapes(job: TableProblem) -> SolvedProblem:
    """Return the schedule that recomputes nothing and, for a front, schedules that need less memory."""
    root, sizes = Part(Where.UNSTORED, job.problem.steps, job.units), job.sizes
    whole = Candidate(
        extra=job.problem.actions.chunk,
        local_bytes=job.units * job.unit,
        build=lambda: grow_tree(root, lambda _: Decision(Choice.TAPE), sizes=sizes),
    )
    smaller = _solve_by_tables(job) if job.front and root.steps > 1 else None
    if smaller is None:
        return SolvedProblem(
            candidates=[whole], least_extra=whole.extra, exact=not job.front or root.steps == 1
        )
    return replace(smaller, candidates=[whole, *smaller.candidates], least_extra=whole.extra)


def _solve_by_tables(job: TableProblem) -> SolvedProblem | None:
    """Return the solution from a table of the whole sequence, or of a part of it."""
    coarse, relaxed = coarsen(job), coarsen(job._replace(problem=job.problem.lowered()), down=True)
    solver = _solve_exactly if is_affordable(coarse, coarse.units) else _solve_in_parts
    solved = solver(coarse, relaxed)
    if solved.exact or not job.front:
        return solved
    return replace(solved, candidates=[*solved.candidates, *_small_budget_candidates(job)])


def _small_budget_candidates(job: TableProblem) -> Iterator[Candidate]:
    """Yield schedules for small budgets, in exact units: coarse units give only few of them."""
    units = min(job.units, WORK[job.effort] // job.problem.steps**2 - 1)
    if units >= 2 * job.sizes.tape and is_affordable(job, units):
        yield from _table_candidates(
            cached_tables(job, steps=job.problem.steps, units=units), job.problem.steps, unit=job.unit
        )
    if is_short(job):
        yield from solve_classical(job).candidates


def _solve_exactly(job: TableProblem, relaxed: TableProblem) -> SolvedProblem:
    problem = job.problem
    tables = cached_tables(job, steps=problem.steps, units=job.units)
    rounding = _describe_rounding(job)
    return SolvedProblem(
        candidates=list(_table_candidates(tables, problem.steps, unit=job.unit)),
        least_extra=_prove_bound(relaxed),
        exact=problem.covered and not rounding,
        rounding=rounding,
    )


def _prove_bound(job: TableProblem) -> float:
    """Return the bound from the optimum of the sequence, or of its parts, in units that are rounded down."""
    problem, units = job.problem, job.units
    if is_affordable(job, units):
        optimum = float(cached_tables(job, steps=problem.steps, units=units).unstored[problem.steps, units])
        return bounds.bound_by_optimum(problem, optimum)
    horizon = longest_table(job)
    if horizon < 1:
        return bounds.bound_by_memory(problem)
    least = bounds.solve_blocks(cached_tables(job, steps=horizon, units=units))
    return max(
        bounds.bound_by_memory(problem),
        bounds.bound_by_blocks(least, steps=problem.steps) * bounds.least_cost_share(problem),
    )


def _table_candidates(
    tables: Tables, pieces: int, *, unit: int, chunk: int = 1, steps_in_all: int | None = None
) -> Iterator[Candidate]:
    """Yield a schedule for each budget that allows a faster one than all smaller budgets."""
    row = tables.unstored[pieces]
    best = inf
    for units in np.flatnonzero(np.isfinite(row)):
        if row[units] < best:
            best = float(row[units])
            root = Part(Where.UNSTORED, pieces, int(units))

            def build(root: Part = root) -> Tree:
                return grow_tree(root, tables.decide, sizes=tables.sizes, chunk=chunk, steps=steps_in_all)

            yield Candidate(extra=best, local_bytes=int(units) * unit, build=build)


def _solve_in_parts(job: TableProblem, relaxed: TableProblem) -> SolvedProblem:
    horizon, candidates = longest_table(job), list[Candidate]()
    if horizon >= 1:
        tables = cached_tables(job, steps=horizon, units=job.units)
        candidates = [
            *_segment_candidates(job.problem, tables, unit=job.unit),
            *_chunk_candidates(job, horizon),
        ]
    return SolvedProblem(
        candidates=candidates, least_extra=_prove_bound(relaxed), exact=False, rounding=_describe_rounding(job)
    )


def _describe_rounding(job: TableProblem) -> str:
    """Return what is lost if sizes are not multiples of the unit, as text; '' if they are."""
    problem, unit = job.problem, job.unit
    state, tape = job.sizes.state * unit - problem.state_bytes, job.sizes.tape * unit - problem.tape_bytes
    if not state and not tape:
        return ""
    return (
        f"local memory is counted in units of {unit:,} bytes: {state:,} bytes are lost for each state held and "
        f"{tape:,} for each tape; the plan keeps the budget in bytes"
    )


def _segment_candidates(problem: Problem, tables: Tables, *, unit: int) -> Iterator[Candidate]:
    """Yield segments of the length with the least cost per step, with an exact schedule for the rest."""
    units, horizon = tables.units, tables.steps
    lengths = np.arange(1, horizon + 1)
    each = tables.write + tables.read + tables.actions.advance + lengths * tables.recompute
    each = each + tables.remote[1:, units]
    length = int(np.argmin(each / lengths)) + 1
    count = -(-(problem.steps - horizon) // length)
    rest = problem.steps - count * length
    extra = count * float(each[length - 1]) + float(tables.unstored[max(rest, 0), units])
    if rest < 1 or not extra < inf:
        return
    root = Part(Where.UNSTORED, problem.steps, units)

    def decide(part: Part) -> Decision:
        return Decision(Choice.SEGMENTS, length, count) if part == root else tables.decide(part)

    yield Candidate(
        extra=extra, local_bytes=units * unit, build=lambda: grow_tree(root, decide, sizes=tables.sizes)
    )


def _chunk_candidates(job: TableProblem, horizon: int) -> Iterator[Candidate]:
    """Yield schedules that treat several steps as one, so that a table of ``horizon`` pieces holds them all."""
    problem = job.problem
    chunk = -(-problem.steps // horizon)
    pieces = -(-problem.steps // chunk)
    tape = chunk * job.sizes.tape
    if job.units < 2 * tape:
        return
    tables = Tables(
        steps=pieces,
        units=job.units,
        sizes=UnitSizes(job.sizes.state, tape),
        recompute=problem.recompute * chunk,
        write=problem.write,
        read=problem.read,
        actions=problem.actions,
    )
    yield from _table_candidates(tables, pieces, unit=job.unit, chunk=chunk, steps_in_all=problem.steps)
