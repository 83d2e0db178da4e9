"""The optimum under a byte budget, exact where the work allows, else the best found and a proven bound.

Exact: one table for all lengths and all budgets (``tables``), or the classical case (``single_tape``).
Beyond that two ways that give schedules, and a bound on what any schedule costs:

- segments of one length in remote memory, with an exact schedule inside and for the rest;
- chunks of several steps that are handled as one, so that the tables are smaller.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from functools import lru_cache
from math import gcd, inf, isqrt

import numpy as np

from ckptplan.recursion import bounds, revolve
from ckptplan.recursion.disk_revolve import Segments, segments_tree
from ckptplan.recursion.problem import Candidate, Problem, Solved
from ckptplan.recursion.search import Tree, grown
from ckptplan.recursion.single_tape import SingleTape, is_classical
from ckptplan.recursion.tables import CELLS, Tables
from ckptplan.recursion.tree import Choice, Decision, Part, Sizes, Where

Progress = Callable[[int, int], None]

#: Sums of a table that may be formed: some tenths of a second, and a minute at most.
WORK = {"glance": 10**8, "quick": 6 * 10**8, "thorough": 3 * 10**10}
#: Steps of the classical case: its work rises with T, and with T^2 but slowly.
_CLASSICAL = {"glance": 10_000, "quick": 30_000, "thorough": 1_000_000}


def solve(problem: Problem, *, effort: str, progress: Progress | None = None) -> Solved | None:
    """Return schedules for every budget up to the problem's; None where no schedule fits it."""
    steps, tape = problem.steps, problem.tape_bytes
    unit = gcd(problem.state_bytes, tape)
    sizes = Sizes(problem.state_bytes // unit, tape // unit)
    most = steps * sizes.tape
    units = most if problem.free_bytes is None else min(most, problem.free_bytes // unit)
    if units < sizes.tape:
        return None
    if units == most:
        root = Part(Where.FREE, steps, units)
        whole = Candidate(
            extra=0.0,
            local_bytes=units * unit,
            build=lambda: grown(root, lambda _: Decision(Choice.TAPE), sizes=sizes),
        )
        return Solved(candidates=[whole], least_extra=0.0, exact=True)
    if is_classical(units=units, sizes=sizes) and (steps <= _CLASSICAL[effort] or problem.write == inf):
        return _classical(problem, units=units, unit=unit, sizes=sizes)
    sizes, units, unit = _coarser(problem, sizes=sizes, units=units, unit=unit, effort=effort)
    if units < sizes.tape:
        return None
    if _work(steps, units) <= WORK[effort] and (steps + 1) * (units + 1) <= CELLS:
        return _exact(problem, units=units, unit=unit, sizes=sizes, progress=progress)
    return _beyond(problem, units=units, unit=unit, sizes=sizes, effort=effort, progress=progress)


def _work(steps: int, units: int) -> int:
    return steps * steps * (units + 1)


def _coarser(problem: Problem, *, sizes: Sizes, units: int, unit: int, effort: str) -> tuple[Sizes, int, int]:
    """Make units so large that a table of a thousand steps can be afforded, and round sizes up to them.

    What fits in rounded units fits in bytes.
    """
    length = min(problem.steps, 1000)
    affordable = min(WORK[effort] // length**2, CELLS // (length + 1) - 1)
    if units <= affordable:
        return sizes, units, unit
    smaller = min(problem.state_bytes, problem.tape_bytes)
    total = units * unit
    pieces = max(1, affordable * smaller // total)
    coarse = -(-smaller // pieces)
    rounded = Sizes(-(-problem.state_bytes // coarse), -(-problem.tape_bytes // coarse))
    return rounded, total // coarse, coarse


#: A question asks for the same tables once for each objective.
_cached = lru_cache(maxsize=2)(Tables)


def _tabled(problem: Problem, *, steps: int, units: int, sizes: Sizes, progress: Progress | None) -> Tables:
    return _cached(
        steps=steps,
        units=units,
        sizes=sizes,
        recompute=problem.recompute,
        write=problem.write,
        read=problem.read,
        progress=progress,
    )


def _share(problem: Problem) -> float:
    """Return what share of a schedule's extra cost remains at least when transfers cost their least."""
    pairs = ((problem.least_write, problem.write), (problem.least_read, problem.read))
    return min(least / full if full > 0 and full < inf else 1.0 for least, full in pairs)


def _binomial(problem: Problem) -> Solved:
    """Return the classical optimum that moves nothing: binomial checkpointing, for any number of steps."""
    steps, free = problem.steps, problem.free_bytes or 0
    slots = min(steps, (free - problem.tape_bytes) // problem.state_bytes)
    again = revolve.again(steps, chunk=1, slots=slots)
    extra = again * problem.recompute if slots else inf
    if again >= revolve.MOST or not revolve.is_told(steps, slots):
        return Solved(candidates=[], least_extra=extra, exact=True)
    found = Candidate(
        extra=extra,
        local_bytes=slots * problem.state_bytes + problem.tape_bytes,
        build=lambda: segments_tree(slots, Segments(0, 0, 0, steps, again), steps=steps),
    )
    return Solved(candidates=[found], least_extra=found.extra, exact=True)


def _classical(problem: Problem, *, units: int, unit: int, sizes: Sizes) -> Solved:
    if problem.write == inf:
        return _binomial(problem)
    table = SingleTape(
        steps=problem.steps,
        units=units,
        sizes=sizes,
        recompute=problem.recompute,
        write=problem.write,
        read=problem.read,
    )
    root = Part(Where.FREE, problem.steps, units)
    extra = float(table.free[problem.steps])
    found = Candidate(
        extra=extra, local_bytes=units * unit, build=lambda: grown(root, table.decide, sizes=sizes)
    )
    return Solved(
        candidates=[found] if extra < inf else [],
        least_extra=_least(problem, extra),
        exact=problem.covered,
    )


def _least(problem: Problem, optimum: float) -> float:
    """Return the bound that an optimum of the covered problem gives for the problem itself."""
    if problem.covered:
        return optimum
    return max(_unkept(problem), optimum * _share(problem))


def _unkept(problem: Problem) -> float:
    """Return a bound in bytes, of all the memory there is, however coarse the units of a table."""
    if problem.free_bytes is None:
        return 0.0
    return bounds.unkept_tapes(
        steps=problem.steps,
        units=problem.free_bytes,
        tape=problem.tape_bytes,
        recompute=problem.recompute,
    )


def _exact(problem: Problem, *, units: int, unit: int, sizes: Sizes, progress: Progress | None) -> Solved:
    tables = _tabled(problem, steps=problem.steps, units=units, sizes=sizes, progress=progress)
    rounding = _rounding(problem, sizes=sizes, unit=unit)
    optimum = float(tables.free[problem.steps, units])
    least = _unkept(problem) if rounding else _least(problem, optimum)
    return Solved(
        candidates=list(_row(tables, problem.steps, unit=unit, chunk=1, steps_in_all=problem.steps)),
        least_extra=least,
        exact=problem.covered and not rounding,
        rounding=rounding,
    )


def _row(tables: Tables, pieces: int, *, unit: int, chunk: int, steps_in_all: int) -> Iterator[Candidate]:
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


def _beyond(
    problem: Problem, *, units: int, unit: int, sizes: Sizes, effort: str, progress: Progress | None
) -> Solved:
    steps = problem.steps
    horizon = min(steps - 1, isqrt(WORK[effort] // 2 // (units + 1)), CELLS // (units + 1) - 1)
    if horizon < 1:
        return Solved(candidates=[], least_extra=_unkept(problem), exact=False)
    tables = _tabled(problem, steps=horizon, units=units, sizes=sizes, progress=progress)
    candidates = [*_segments(problem, tables, unit=unit), *_chunks(problem, units, unit, sizes, horizon)]
    rounding = _rounding(problem, sizes=sizes, unit=unit)
    least = _unkept(problem)
    if not rounding:
        blocks = bounds.of_blocks(bounds.first_state_at_hand(tables), steps=steps)
        least = max(least, blocks * _share(problem))
    return Solved(candidates=candidates, least_extra=least, exact=False, rounding=rounding)


def _rounding(problem: Problem, *, sizes: Sizes, unit: int) -> str:
    """Tell what is lost where sizes are no whole numbers of units."""
    state, tape = sizes.state * unit - problem.state_bytes, sizes.tape * unit - problem.tape_bytes
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


def _chunks(problem: Problem, units: int, unit: int, sizes: Sizes, horizon: int) -> Iterator[Candidate]:
    """Handle so many steps as one that a table of ``horizon`` pieces holds them all."""
    chunk = -(-problem.steps // horizon)
    pieces = -(-problem.steps // chunk)
    tape = chunk * sizes.tape
    if units < 2 * tape:
        return
    tables = Tables(
        steps=pieces,
        units=units,
        sizes=Sizes(sizes.state, tape),
        recompute=problem.recompute * chunk,
        write=problem.write,
        read=problem.read,
    )
    yield from _row(tables, pieces, unit=unit, chunk=chunk, steps_in_all=problem.steps)
