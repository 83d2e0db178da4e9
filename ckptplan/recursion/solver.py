"""Finds the optimum under a byte budget: exact if affordable, else good schedules and a proven bound.

The exact optimum comes from one table for all lengths and budgets (``tables``), or from the classical case
(``classical``). Where these are too much work, prices bound the cost of any schedule (``prices``). There are
two kinds of schedules then:

- segments of one length in remote memory, with an exact schedule inside them and for the rest;
- chunks of several steps treated as one step, so that the tables are smaller.

These tables are filled for a range of budgets (``find_range``), and every budget of the range reads its
schedules and its bound from them. So the schedules of all budgets together are a list, and so are the bounds
(``list_ranges``).
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace
from functools import partial
from math import inf

import numpy as np

from ckptplan.model.split import Choice, Where
from ckptplan.recursion.classical import (
    count_slots,
    covers_actions,
    is_classical,
    is_short,
    solve_classical,
)
from ckptplan.recursion.problem import (
    MOST_SIMULATED,
    WORK,
    Candidate,
    Problem,
    SolvedProblem,
    list_improving,
    most_units,
)
from ckptplan.recursion.table_problem import (
    cached_tables,
    coarsen,
    cut_into_blocks,
    find_range,
    list_price_bounds,
    longest_table,
    prove_bound,
)
from ckptplan.recursion.tables import Tables
from ckptplan.recursion.tree import Decision, Part, Tree, grow_tree

#: A sequence is cut into at least this many pieces of several steps; with fewer, closed forms do as well.
_MANY = 200
#: The effort for each of many budgets whose tables are in blocks of several steps.
_SPARING = {"glance": "glance", "quick": "glance", "thorough": "quick"}


def solve(problem: Problem) -> SolvedProblem | None:
    """Return schedules for the budget, None if no schedule fits.

    With ``front``, return schedules for every smaller budget, too; ``exact`` then refers to all of them.
    """
    if problem.units < problem.sizes.tape:
        return None
    if problem.units == problem.all_tapes:
        return _solve_with_all_tapes(problem)
    if problem.cache_bytes:
        return _solve_with_caches(problem)
    if is_classical(units=problem.units, sizes=problem.sizes) and is_short(problem):
        return solve_classical(problem) if covers_actions(problem) else _solve_classical_with_actions(problem)
    return _solve_by_tables(problem)


def list_ranges(
    problem: Problem, budgets: Sequence[int] | None = None
) -> Iterator[tuple[int, SolvedProblem, list[tuple[int, float]]]]:
    """Yield the ranges of all budgets, ascending: free bytes, the solution within them, and bounds.

    With ``budgets`` of free bytes, ranges that none of them needs are left out.

    The schedule that ``solve`` returns for a budget is in the solution of the first range with no fewer free
    bytes. A bound is free bytes and the least seconds that any schedule within them adds. The bound of
    ``solve`` for a budget is the first bound with no fewer free bytes, or ``Problem.bound_by_memory`` if this
    is larger.
    """
    problem = replace(problem, free_bytes=None)
    most, tape = problem.all_tapes, problem.sizes.tape
    first = tape
    while first <= most:
        single = min(2 * tape, most) - 1
        one_tape = first <= single and is_classical(units=single, sizes=problem.sizes) and is_short(problem)
        one_tape &= not problem.cache_bytes
        last = single if one_tape else min(find_range(problem, first), most - 1) if first < most else most
        budget_range = problem.within(last)
        end = inf if last == most else (last + 1) * problem.unit
        if problem.cache_bytes and not budget_range.is_affordable:
            budget_range = replace(budget_range, effort=_SPARING[problem.effort])
        is_wanted = budgets is None or any(first * problem.unit <= free < end for free in budgets)
        solved = solve(replace(budget_range, front=one_tape)) if is_wanted else None
        if solved is not None:
            yield last * problem.unit, solved, _list_bounds(budget_range, solved)
        first = last + 1


def _list_bounds(problem: Problem, solved: SolvedProblem) -> list[tuple[int, float]]:
    """Return the bounds of the budgets of a range, whose schedules ``solved`` lists."""
    # A budget that does not hold another unit is no better.
    end = (problem.units + 1) * problem.unit - 1
    if solved.exact and solved.candidates:
        points = sorted((candidate.local_bytes, candidate.extra) for candidate in solved.candidates)
        # With less memory than a schedule needs, no schedule is faster than the one before it.
        tops = [size - 1 for size, _ in points[1:]]
        return list(zip([*tops, end], [extra for _, extra in points], strict=True))
    unit, least = list_price_bounds(problem)
    ends = np.minimum(np.arange(1, len(least) + 1) * unit - 1, end)
    return [*zip(ends.tolist(), least.tolist(), strict=True), (end, solved.least_extra)]


def _solve_classical_with_actions(problem: Problem) -> SolvedProblem:
    """Return the solution of the classical case where saves cost time: from a table, if one is affordable.

    With a single tape, units count slots: a state is one unit, and a tape is one more than all slots, so that
    two do not fit.
    """
    slots = count_slots(problem)
    in_slots = replace(problem, free_bytes=2 * slots + 1, state_bytes=1, tape_bytes=slots + 1, unit_bytes=1)
    if not in_slots.is_affordable:
        return solve_classical(problem)
    tables = cached_tables(in_slots, steps=problem.steps, units=in_slots.units)
    candidates = [
        replace(
            candidate,
            local_bytes=(candidate.local_bytes - slots - 1) * problem.state_bytes + problem.tape_bytes,
        )
        for candidate in _table_candidates(tables, problem.steps, unit=1)
    ]
    return SolvedProblem(
        candidates=candidates,
        least_extra=_least_extra(candidates) if problem.recursion_is_exact else prove_bound(problem),
        exact=problem.recursion_is_exact,
    )


def _solve_with_all_tapes(problem: Problem) -> SolvedProblem:
    """Return the schedule that recomputes nothing and, for a front, schedules that need less memory."""
    root, sizes = Part(Where.UNSTORED, problem.steps, problem.units), problem.sizes
    all_tapes = Candidate(
        extra=problem.prices.chunk,
        local_bytes=problem.units * problem.unit,
        build=lambda: grow_tree(root, lambda _: Decision(Choice.TAPE), sizes=sizes),
    )
    by_tables = _solve_with_caches if problem.cache_bytes else _solve_by_tables
    smaller = by_tables(problem) if problem.front and root.steps > 1 else None
    if smaller is None:
        return SolvedProblem(
            candidates=[all_tapes], least_extra=all_tapes.extra, exact=not problem.front or root.steps == 1
        )
    return replace(smaller, candidates=[all_tapes, *smaller.candidates], least_extra=all_tapes.extra)


def _solve_by_tables(problem: Problem) -> SolvedProblem:
    """Return the solution from a table of the whole sequence, or of a part of it."""
    budget_range = problem
    if not problem.is_affordable:
        budget_range = problem.within(find_range(problem, problem.units), alone=False)
    coarse, free = coarsen(budget_range), problem.units * problem.unit
    is_whole = coarse.is_affordable
    if is_whole:
        tables = cached_tables(coarse, steps=problem.steps, units=coarse.units)
        candidates = _table_candidates(tables, problem.steps, unit=coarse.unit)
    else:
        candidates = [*_segment_candidates(coarse), *_chunk_candidates(coarse)]
    candidates = [candidate for candidate in candidates if candidate.local_bytes <= free]
    notes = _describe_rounding(coarse)
    exact = is_whole and problem.recursion_is_exact and not notes
    if problem.front and not exact:
        candidates += _small_budget_candidates(problem)
    return SolvedProblem(
        candidates=candidates,
        least_extra=_least_extra(candidates) if exact else prove_bound(problem),
        exact=exact,
        notes=notes,
    )


#: If blocks lose more than this share of memory, segments are tried, too.
_COARSE = 0.02
#: Schedules with one tape at a time are considered for memories of less than this many tapes.
_FEW_TAPES = 4


def _solve_with_caches(problem: Problem) -> SolvedProblem:
    """Return schedules that keep the caches of whole parts, from tables of steps or of blocks of several steps.

    They are the best of all schedules of this form if all steps and bytes are counted exactly. No schedule of
    any form is proved to be the best.
    """
    free, notes = problem.units * problem.unit, list[str]()
    if problem.is_affordable:
        tables = cached_tables(problem, steps=problem.steps, units=problem.units)
        candidates = _table_candidates(tables, problem.steps, unit=problem.unit)
    else:
        candidates = _list_without_keeping(problem)
        lost, length, blocks = cut_into_blocks(problem, horizon=problem.steps)
        if blocks.is_affordable:
            tables = cached_tables(blocks, steps=blocks.steps, units=blocks.units)
            candidates += _table_candidates(
                tables, blocks.steps, unit=blocks.unit, chunk=length, steps_in_all=problem.steps
            )
            notes += _describe_rounding(blocks)
        if lost > _COARSE and problem.prices.write < inf:
            # The caches that fit, twice: for the last steps and for a segment.
            horizon = min(problem.steps, 2 * problem.units // problem.sizes.cache)
            _, length, blocks = cut_into_blocks(problem, horizon=max(horizon, 1_000))
            candidates += _segment_candidates(blocks, chunk=length, steps_in_all=problem.steps)
            notes += _describe_rounding(blocks)
        if problem.front:
            candidates += _small_budget_candidates(problem)
    candidates = [candidate for candidate in candidates if candidate.local_bytes <= free]
    if problem.offloads:
        candidates = [
            replace(candidate, build=partial(_offload, candidate))
            for candidate in candidates
            if _count_moves(problem, candidate) <= MOST_SIMULATED
        ]
    return SolvedProblem(
        candidates=candidates,
        least_extra=prove_bound(problem),
        exact=False,
        notes=tuple(dict.fromkeys(notes)),
    )


def _count_moves(problem: Problem, candidate: Candidate) -> float:
    """Return about how many runs and messages a schedule has, if each message is as large as its memory."""
    recompute = problem.prices.recompute
    runs = problem.steps + (candidate.extra / recompute if recompute else 0.0)
    return 3 * runs * problem.cache_bytes / candidate.local_bytes


def _offload(candidate: Candidate) -> Tree:
    return replace(candidate.build(), offloads=True)


def _list_without_keeping(problem: Problem) -> list[Candidate]:
    """Return schedules that hold one tape and its cache at a time, for memories of few tapes.

    Blocks of several steps, or rounded units, would lose much of so little memory.
    """
    plain, (state, tape, _) = replace(problem, cache_bytes=0), problem.sizes
    if problem.offloads or state > tape or problem.units >= _FEW_TAPES * tape or not is_short(plain):
        return []

    def build(candidate: Candidate) -> Tree:
        tree = candidate.build()
        # In a tree whose caches take a unit, decisions say which caches are kept.
        return replace(tree, sizes=tree.sizes._replace(cache=1))

    return [
        replace(candidate, build=partial(build, candidate)) for candidate in solve_classical(plain).candidates
    ]


def _least_extra(candidates: list[Candidate]) -> float:
    return min((candidate.extra for candidate in candidates), default=inf)


def _small_budget_candidates(problem: Problem) -> Iterator[Candidate]:
    """Yield schedules for small budgets, in exact units: coarse units give only few of them."""
    units = min(problem.units, WORK[problem.effort] // problem.steps**2 - 1)
    tapes = 1 if problem.cache_bytes else 2
    if tapes * problem.sizes.tape <= units <= most_units(problem.steps, effort=problem.effort):
        yield from _table_candidates(
            cached_tables(problem, steps=problem.steps, units=units), problem.steps, unit=problem.unit
        )
    if is_short(problem) and not problem.cache_bytes:
        yield from solve_classical(problem).candidates


def _table_candidates(
    tables: Tables, pieces: int, *, unit: int, chunk: int = 1, steps_in_all: int | None = None
) -> list[Candidate]:
    """Return a schedule for each budget that allows a faster schedule than all smaller budgets."""
    is_ragged = (steps_in_all or pieces) < pieces * chunk
    root = Part(Where.UNSTORED, pieces, tables.units)
    tree = grow_tree(root, tables.decide, sizes=tables.sizes, chunk=chunk, steps=steps_in_all)
    # A ragged first chunk costs less than a whole one, and more than none.
    least = tables.unstored[pieces - 1] if is_ragged else None
    return list_improving(tables.unstored[pieces], tree, unit=unit, least=least)


def _describe_rounding(problem: Problem) -> tuple[str, ...]:
    """Return a text that says how many bytes rounding sizes up to units loses; nothing if it loses none."""
    unit = problem.unit
    state = problem.sizes.state * unit - problem.state_bytes
    tape = problem.sizes.tape * unit - problem.tape_bytes
    if not state and not tape:
        return ()
    text = (
        f"local memory is counted in units of {unit:,} bytes: {state:,} bytes are lost for each state held and "
        f"{tape:,} for each tape; the plan keeps the budget in bytes"
    )
    return (text,)


def _segment_candidates(
    problem: Problem, *, chunk: int = 1, steps_in_all: int | None = None
) -> list[Candidate]:
    """Return segments of the length with the least cost per step, with an exact schedule for the rest.

    There is a schedule for each number of units that allows a faster one than all smaller numbers. Steps of the
    problem may be chunks of several steps.
    """
    # The longest part that is affordable, with the units that it can use.
    tape = problem.sizes.tape
    horizon = longest_table(problem, tape=tape)
    if not horizon:
        return []
    tables = cached_tables(problem, steps=horizon, units=min(problem.units, horizon * tape))
    lengths = np.arange(1, horizon + 1)[:, None]
    prices = problem.prices
    segment_cost = prices.write + prices.read + prices.advance + lengths * prices.recompute
    segment_cost = segment_cost + tables.remote[1:]
    best = np.argmin(segment_cost / lengths, axis=0)
    length, columns = best + 1, np.arange(tables.units + 1)
    count = -(-(problem.steps - horizon) // length)
    rest = problem.steps - count * length
    extra = count * segment_cost[best, columns] + tables.unstored[np.maximum(rest, 0), columns]

    def decide(part: Part) -> Decision:
        if part.steps < problem.steps:
            return tables.decide(part)
        return Decision(Choice.SEGMENTS, int(length[part.units]), int(count[part.units]))

    root = Part(Where.UNSTORED, problem.steps, tables.units)
    tree = grow_tree(root, decide, sizes=tables.sizes, chunk=chunk, steps=steps_in_all)
    # A ragged first chunk costs less than a whole one.
    is_ragged = (steps_in_all or problem.steps) < problem.steps * chunk
    least = np.zeros_like(extra) if is_ragged else None
    return list_improving(np.where(rest < 1, inf, extra), tree, unit=problem.unit, least=least)


def _chunk_candidates(problem: Problem) -> list[Candidate]:
    """Return schedules that treat several steps as one, so that one table holds them all."""
    horizon = longest_table(problem)
    if horizon < min(_MANY, problem.steps - 1):
        return []
    chunk = -(-problem.steps // horizon)
    pieces = -(-problem.steps // chunk)
    tape = chunk * problem.sizes.tape
    if problem.units < 2 * tape:
        return []
    dearer = replace(problem.prices, recompute=problem.prices.recompute * chunk)
    chunked = replace(
        problem,
        prices=dearer,
        state_bytes=problem.sizes.state * problem.unit,
        tape_bytes=tape * problem.unit,
        unit_bytes=problem.unit,
        progress=None,
    )
    tables = cached_tables(chunked, steps=pieces, units=problem.units)
    return _table_candidates(tables, pieces, unit=problem.unit, chunk=chunk, steps_in_all=problem.steps)
