"""The optimum under a byte budget, exact where the work allows, else the best found and a proven bound.

Exact: one table for all lengths and all budgets (``tables``), or the classical case (``single_tape``).
Beyond that two ways that give schedules, and a bound on what any schedule costs:

- segments of one length in remote memory, with an exact schedule inside and for the rest;
- chunks of several steps that are handled as one, so that the tables are smaller.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import replace
from functools import lru_cache, partial
from math import gcd, inf, isqrt
from typing import NamedTuple

import numpy as np

from ckptplan.recursion import bounds, revolve
from ckptplan.recursion.disk_revolve import Segments, segments_tree
from ckptplan.recursion.problem import Candidate, Problem, Solved
from ckptplan.recursion.rounding import least_lossy_unit, rounded
from ckptplan.recursion.search import Tree, grown
from ckptplan.recursion.single_tape import SingleTape, is_classical
from ckptplan.recursion.tables import CELLS, Tables
from ckptplan.recursion.tree import Choice, Decision, Part, Sizes, Where

Progress = Callable[[int, int], None]

#: Sums of a table that may be formed: some tenths of a second, and a minute at most.
WORK = {"glance": 10**8, "quick": 6 * 10**8, "thorough": 3 * 10**10}
#: Steps of the shortest table that is worth its while, of a longer sequence.
_SOME_STEPS = 1_000
#: Share of the memory that may be lost to have a table of all steps.
_LITTLE = 0.05
#: Steps of the classical case: its work rises with T, and with T^2 but slowly.
_CLASSICAL = {"glance": 10_000, "quick": 30_000, "thorough": 200_000}
#: Closed forms, and steps of all classical tables together, where smaller memories are asked for, too.
_BINOMIALS = 2_000
_CLASSICAL_IN_ALL = {"glance": 30_000, "quick": 120_000, "thorough": 600_000}


class _Ask(NamedTuple):
    """A problem in whole units of memory, and how much may be done about it."""

    problem: Problem
    units: int
    unit: int
    sizes: Sizes
    effort: str
    front: bool
    progress: Progress | None


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
    ask = _Ask(problem, units=units, unit=unit, sizes=sizes, effort=effort, front=front, progress=progress)
    if units == most:
        return _all_tapes(ask)
    if is_classical(units=units, sizes=sizes) and (steps <= _CLASSICAL[effort] or problem.write == inf):
        return _classical(ask)
    return _tables(ask)


def _all_tapes(ask: _Ask) -> Solved:
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


def _tables(ask: _Ask) -> Solved | None:
    """Return what a table of the whole sequence gives, or one of a part of it."""
    coarse, relaxed = _coarser(ask), _coarser(ask, down=True)
    found = (_exact if _is_affordable(coarse, coarse.units) else _beyond)(coarse, relaxed)
    if found.exact or not ask.front:
        return found
    return replace(found, candidates=[*found.candidates, *_smaller(ask)])


def _smaller(ask: _Ask) -> Iterator[Candidate]:
    """Return schedules for small budgets, in units that lose nothing: those of coarse units are few there."""
    units = min(ask.units, WORK[ask.effort] // ask.problem.steps**2 - 1)
    if units >= 2 * ask.sizes.tape and _is_affordable(ask, units):
        yield from _row(_tabled(ask, steps=ask.problem.steps, units=units), ask.problem.steps, unit=ask.unit)
    counts = _slot_counts(ask, min(ask.problem.steps, _slots(ask)))
    if ask.problem.write == inf:
        yield from _binomials(ask, counts)
    elif ask.problem.steps <= _CLASSICAL[ask.effort]:
        yield from _single_tapes(ask, counts)


def _is_affordable(ask: _Ask, units: int) -> bool:
    steps = ask.problem.steps
    return _work(steps, units) <= WORK[ask.effort] and (steps + 1) * (units + 1) <= CELLS


def _work(steps: int, units: int) -> int:
    return steps * steps * (units + 1)


def _coarser(ask: _Ask, *, down: bool = False) -> _Ask:
    """Make units so large that a table of a thousand steps can be afforded, and round sizes up to them.

    Or of all steps, where that loses little. What fits in rounded units fits in bytes; rounded ``down``, what
    fits in bytes fits in units.
    """
    problem = ask.problem
    if ask.units <= _most_units(ask, _SOME_STEPS):
        return ask
    state, tape, total = problem.state_bytes, problem.tape_bytes, ask.units * ask.unit
    lost, unit = inf, 0
    for steps in (problem.steps, _SOME_STEPS):
        if lost > _LITTLE:
            most = _most_units(ask, steps)
            lost, unit = least_lossy_unit(
                state, tape, steps=problem.steps, total=total, most_units=most, down=down
            )
    return ask._replace(sizes=rounded(state, tape, unit=unit, down=down), units=total // unit, unit=unit)


def _most_units(ask: _Ask, steps: int) -> int:
    """Return the units of a table of so many steps, or of all, that can be afforded."""
    length = min(steps, ask.problem.steps)
    return max(1, min(WORK[ask.effort] // length**2, CELLS // (length + 1)) - 1)


#: A question asks for the same tables once for each objective.
_cached = lru_cache(maxsize=3)(Tables)
_cached_single = lru_cache(maxsize=64)(SingleTape)


def _tabled(ask: _Ask, *, steps: int, units: int) -> Tables:
    return _cached(
        steps=steps,
        units=units,
        sizes=ask.sizes,
        recompute=ask.problem.recompute,
        write=ask.problem.write,
        read=ask.problem.read,
        progress=ask.progress,
    )


def _share(problem: Problem) -> float:
    """Return what share of a schedule's extra cost remains at least when transfers cost their least."""
    pairs = ((problem.least_write, problem.write), (problem.least_read, problem.read))
    return min(least / full if full > 0 and full < inf else 1.0 for least, full in pairs)


def _classical(ask: _Ask) -> Solved:
    problem, most = ask.problem, min(ask.problem.steps, _slots(ask))
    counts = _slot_counts(ask, most)
    if problem.write == inf:
        again = revolve.again(problem.steps, chunk=1, slots=most)
        return Solved(
            candidates=list(_binomials(ask, counts)),
            least_extra=again * problem.recompute if most else inf,
            exact=len(counts) > most or not ask.front,
        )
    optimum = float(_single_tape(ask, most).free[problem.steps])
    return Solved(
        candidates=list(_single_tapes(ask, counts)),
        least_extra=_least(problem, optimum),
        exact=problem.covered and (len(counts) > most or not ask.front),
    )


def _slots(ask: _Ask) -> int:
    """Return the states that there is room for beside one tape."""
    return (ask.units - ask.sizes.tape) // ask.sizes.state


def _slot_counts(ask: _Ask, most: int) -> list[int]:
    """Return the numbers of slots to look at: the most, and fewer where smaller memories are asked for."""
    if not ask.front:
        return [most]
    few = _BINOMIALS if ask.problem.write == inf else _CLASSICAL_IN_ALL[ask.effort] // ask.problem.steps
    if most < few:
        return list(range(most, -1, -1))
    spread = np.geomspace(1, most, max(few - 2, 1)).astype(int).tolist()
    return sorted({0, most, *spread}, reverse=True)


def _binomials(ask: _Ask, counts: list[int]) -> Iterator[Candidate]:
    """Return binomial checkpointing in local memory alone, for any number of steps."""
    steps = ask.problem.steps
    for slots in counts:
        again = revolve.again(steps, chunk=1, slots=slots)
        if again < revolve.MOST and revolve.is_told(steps, slots):
            yield Candidate(
                extra=again * ask.problem.recompute,
                local_bytes=slots * ask.problem.state_bytes + ask.problem.tape_bytes,
                build=partial(segments_tree, slots, Segments(0, 0, 0, steps, again), steps=steps),
            )


def _single_tapes(ask: _Ask, counts: list[int]) -> Iterator[Candidate]:
    """Return the classical optimum for each number of slots."""
    problem = ask.problem
    for slots in counts:
        table = _single_tape(ask, slots)
        extra = float(table.free[problem.steps])
        if extra < inf:
            root = Part(Where.FREE, problem.steps, table.units)
            yield Candidate(
                extra=extra,
                local_bytes=slots * problem.state_bytes + problem.tape_bytes,
                build=partial(grown, root, table.decide, sizes=table.sizes),
            )


def _single_tape(ask: _Ask, slots: int) -> SingleTape:
    # A tape as large as a state and one slot each: slots alone are counted.
    return _cached_single(
        steps=ask.problem.steps,
        units=slots + 1,
        sizes=Sizes(1, 1),
        recompute=ask.problem.recompute,
        write=ask.problem.write,
        read=ask.problem.read,
        progress=None if ask.front else ask.progress,
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


def _exact(ask: _Ask, relaxed: _Ask) -> Solved:
    problem = ask.problem
    tables = _tabled(ask, steps=problem.steps, units=ask.units)
    rounding = _rounding(ask)
    return Solved(
        candidates=list(_row(tables, problem.steps, unit=ask.unit)),
        least_extra=_bound(relaxed),
        exact=problem.covered and not rounding,
        rounding=rounding,
    )


def _bound(ask: _Ask) -> float:
    """Return what the optimum of the sequence, or of its parts, proves, in units that are rounded down."""
    problem, units = ask.problem, ask.units
    if _is_affordable(ask, units):
        optimum = float(_tabled(ask, steps=problem.steps, units=units).free[problem.steps, units])
        return _least(problem, optimum)
    horizon = _horizon(ask)
    if horizon < 1:
        return _unkept(problem)
    least = bounds.first_state_at_hand(_tabled(ask, steps=horizon, units=units))
    return max(_unkept(problem), bounds.of_blocks(least, steps=problem.steps) * _share(problem))


def _horizon(ask: _Ask) -> int:
    """Return the steps of the longest table that can be afforded, which are not all."""
    width = ask.units + 1
    return min(ask.problem.steps - 1, isqrt(WORK[ask.effort] // 2 // width), CELLS // width - 1)


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


def _beyond(ask: _Ask, relaxed: _Ask) -> Solved:
    horizon, candidates = _horizon(ask), list[Candidate]()
    if horizon >= 1:
        tables = _tabled(ask, steps=horizon, units=ask.units)
        candidates = [*_segments(ask.problem, tables, unit=ask.unit), *_chunks(ask, horizon)]
    return Solved(candidates=candidates, least_extra=_bound(relaxed), exact=False, rounding=_rounding(ask))


def _rounding(ask: _Ask) -> str:
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


def _chunks(ask: _Ask, horizon: int) -> Iterator[Candidate]:
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
