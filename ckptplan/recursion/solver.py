"""The optimum under a byte budget, exact where the work allows, else the best found and a proven bound.

Exact: one table for all lengths and all budgets (``tables``), or the classical case (``single_tape``).
Beyond that two ways that give schedules, and a bound on what any schedule costs:

- segments of one length in remote memory, with an exact schedule inside and for the rest;
- chunks of several steps that are handled as one, so that the tables are smaller.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from math import gcd, inf

import numpy as np

from ckptplan.model.progress import Progress
from ckptplan.recursion import bounds
from ckptplan.recursion.ask import WORK, Ask, coarser, is_affordable, longest_table, tabled
from ckptplan.recursion.classical import classical, is_short
from ckptplan.recursion.problem import Candidate, Problem, Solved
from ckptplan.recursion.search import Tree, grown
from ckptplan.recursion.single_tape import is_classical
from ckptplan.recursion.tables import Tables
from ckptplan.recursion.tree import Choice, Decision, Part, Sizes, Where


def solve(
    problem: Problem, *, effort: str, front: bool = False, progress: Progress | None = None
) -> Solved | None:
    """Return schedules for the budget; None where no schedule fits it.

    With ``front``, schedules for every budget below it, too: ``exact`` is said of all of them then.
    """
    steps, tape = problem.steps, problem.tape_bytes
    unit = gcd(problem.state_bytes, tape)
    sizes = Sizes(problem.state_bytes // unit, tape // unit)
    most = steps * sizes.tape
    units = most if problem.free_bytes is None else min(most, problem.free_bytes // unit)
    if units < sizes.tape:
        return None
    ask = Ask(problem, units=units, unit=unit, sizes=sizes, effort=effort, front=front, progress=progress)
    if units == most:
        return _all_tapes(ask)
    if is_classical(units=units, sizes=sizes) and is_short(ask):
        return classical(ask)
    return _tables(ask)


def _all_tapes(ask: Ask) -> Solved:
    """Return the schedule that runs nothing again, and what does with less where that is asked for."""
    root, sizes = Part(Where.FREE, ask.problem.steps, ask.units), ask.sizes
    whole = Candidate(
        extra=0.0,
        local_bytes=ask.units * ask.unit,
        build=lambda: grown(root, lambda _: Decision(Choice.TAPE), sizes=sizes),
    )
    smaller = _tables(ask) if ask.front and root.steps > 1 else None
    if smaller is None:
        return Solved(candidates=[whole], least_extra=0.0, exact=not ask.front or root.steps == 1)
    return replace(smaller, candidates=[whole, *smaller.candidates], least_extra=0.0)


def _tables(ask: Ask) -> Solved | None:
    """Return what a table of the whole sequence gives, or one of a part of it."""
    coarse, relaxed = coarser(ask), coarser(ask, down=True)
    found = (_exact if is_affordable(coarse, coarse.units) else _beyond)(coarse, relaxed)
    if found.exact or not ask.front:
        return found
    return replace(found, candidates=[*found.candidates, *_smaller(ask)])


def _smaller(ask: Ask) -> Iterator[Candidate]:
    """Return schedules for small budgets, in units that lose nothing: those of coarse units are few there."""
    units = min(ask.units, WORK[ask.effort] // ask.problem.steps**2 - 1)
    if units >= 2 * ask.sizes.tape and is_affordable(ask, units):
        yield from _row(tabled(ask, steps=ask.problem.steps, units=units), ask.problem.steps, unit=ask.unit)
    if is_short(ask):
        yield from classical(ask).candidates


def _exact(ask: Ask, relaxed: Ask) -> Solved:
    problem = ask.problem
    tables = tabled(ask, steps=problem.steps, units=ask.units)
    rounding = _rounding(ask)
    return Solved(
        candidates=list(_row(tables, problem.steps, unit=ask.unit)),
        least_extra=_bound(relaxed),
        exact=problem.covered and not rounding,
        rounding=rounding,
    )


def _bound(ask: Ask) -> float:
    """Return what the optimum of the sequence, or of its parts, proves, in units that are rounded down."""
    problem, units = ask.problem, ask.units
    if is_affordable(ask, units):
        optimum = float(tabled(ask, steps=problem.steps, units=units).free[problem.steps, units])
        return bounds.of_optimum(problem, optimum)
    horizon = longest_table(ask)
    if horizon < 1:
        return bounds.unkept(problem)
    least = bounds.first_state_at_hand(tabled(ask, steps=horizon, units=units))
    return max(bounds.unkept(problem), bounds.of_blocks(least, steps=problem.steps) * bounds.share(problem))


def _row(
    tables: Tables, pieces: int, *, unit: int, chunk: int = 1, steps_in_all: int | None = None
) -> Iterator[Candidate]:
    """Return a schedule for each budget that allows a quicker one than the budgets below it."""
    row = tables.free[pieces]
    best = inf
    for units in np.flatnonzero(np.isfinite(row)):
        if row[units] < best:
            best = float(row[units])
            root = Part(Where.FREE, pieces, int(units))

            def build(root: Part = root) -> Tree:
                return grown(root, tables.decide, sizes=tables.sizes, chunk=chunk, steps=steps_in_all)

            yield Candidate(extra=best, local_bytes=int(units) * unit, build=build)


def _beyond(ask: Ask, relaxed: Ask) -> Solved:
    horizon, candidates = longest_table(ask), list[Candidate]()
    if horizon >= 1:
        tables = tabled(ask, steps=horizon, units=ask.units)
        candidates = [*_segments(ask.problem, tables, unit=ask.unit), *_chunks(ask, horizon)]
    return Solved(candidates=candidates, least_extra=_bound(relaxed), exact=False, rounding=_rounding(ask))


def _rounding(ask: Ask) -> str:
    """Tell what is lost where sizes are no whole numbers of units."""
    problem, unit = ask.problem, ask.unit
    state, tape = ask.sizes.state * unit - problem.state_bytes, ask.sizes.tape * unit - problem.tape_bytes
    if not state and not tape:
        return ""
    return (
        f"local memory is counted in units of {unit:,} bytes: {state:,} bytes are lost for each state held and "
        f"{tape:,} for each tape; the plan keeps the budget in bytes"
    )


def _segments(problem: Problem, tables: Tables, *, unit: int) -> Iterator[Candidate]:
    """Segments of the length that costs least a step, until what is left has a schedule of its own."""
    units, horizon = tables.units, tables.steps
    lengths = np.arange(1, horizon + 1)
    each = tables.write + tables.read + lengths * tables.recompute + tables.far[1:, units]
    length = int(np.argmin(each / lengths)) + 1
    count = -(-(problem.steps - horizon) // length)
    rest = problem.steps - count * length
    extra = count * float(each[length - 1]) + float(tables.free[max(rest, 0), units])
    if rest < 1 or not extra < inf:
        return
    root = Part(Where.FREE, problem.steps, units)

    def decide(part: Part) -> Decision:
        return Decision(Choice.SEGMENTS, length, count) if part == root else tables.decide(part)

    yield Candidate(
        extra=extra, local_bytes=units * unit, build=lambda: grown(root, decide, sizes=tables.sizes)
    )


def _chunks(ask: Ask, horizon: int) -> Iterator[Candidate]:
    """Handle so many steps as one that a table of ``horizon`` pieces holds them all."""
    problem = ask.problem
    chunk = -(-problem.steps // horizon)
    pieces = -(-problem.steps // chunk)
    tape = chunk * ask.sizes.tape
    if ask.units < 2 * tape:
        return
    tables = Tables(
        steps=pieces,
        units=ask.units,
        sizes=Sizes(ask.sizes.state, tape),
        recompute=problem.recompute * chunk,
        write=problem.write,
        read=problem.read,
    )
    yield from _row(tables, pieces, unit=ask.unit, chunk=chunk, steps_in_all=problem.steps)
