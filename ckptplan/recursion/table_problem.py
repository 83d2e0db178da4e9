"""States a problem in units of memory, and decides how large its table may be.

Units that do not divide the sizes are chosen so that rounding loses least. With sizes rounded up, a schedule in
units keeps the budget in bytes. With sizes rounded down, every schedule in bytes is also one in units, so the
optimum in units is a lower bound (docs/optimality.md).
"""

from __future__ import annotations

from bisect import bisect_left
from collections import OrderedDict
from math import inf
from threading import Lock
from typing import Any, NamedTuple

import numpy as np

from ckptplan.cost.arrays import Integers
from ckptplan.model.progress import Progress
from ckptplan.recursion.problem import Problem
from ckptplan.recursion.promising import find_promising_splits
from ckptplan.recursion.tables import CELLS, Tables
from ckptplan.recursion.tree import UnitSizes

#: How many units are tried for each size, starting at the finest affordable one.
_LOOKED_AT = 500


def round_sizes(state: int, tape: int, *, unit: int, down: bool) -> UnitSizes:
    """Return sizes in units, rounded up, or rounded ``down``."""
    if down:
        return UnitSizes(state // unit, tape // unit)
    return UnitSizes(-(-state // unit), -(-tape // unit))


def choose_unit(
    state: int, tape: int, *, steps: int, total: int, most_units: int, down: bool
) -> tuple[float, int]:
    """Return the least loss, as a share of ``total`` bytes, and the unit in bytes that attains it.

    Whole fractions of either size are tried. Rounding a size loses the difference for each state or tape that
    can be held. Using more units than affordable counts as a loss, too: the table would cover only a part of
    the sequence.

    Arguments:
        state: bytes of a state.
        tape: bytes of a tape.
        steps: T.
        total: bytes of free local memory.
        most_units: the most units that a table can afford.
        down: whether sizes are rounded down.
    """
    finest = total // (most_units + 1) + 1
    parts = [_divide(size, finest=min(finest, size), down=down) for size in (state, tape)]
    units = np.unique(np.concatenate([*parts, [finest, min(state, tape)]]))
    # A size must not round down to zero.
    units = units[units <= (min(state, tape) if down else max(state, tape))]
    lost = (total % units) / total * (-1 if down else 1)
    lost = lost + np.maximum(0.0, total // units / most_units - 1)
    for size in (state, tape):
        lost = lost + (size % units if down else -size % units) * (min(steps, total / size) / total)
    best = int(np.argmin(lost))
    return float(lost[best]), int(units[best])


def _divide(size: int, *, finest: int, down: bool) -> Integers:
    """Return the finest whole fractions of a size that are at least ``finest``."""
    most = size // finest
    numbers = np.arange(max(1, most - _LOOKED_AT), most + 1, dtype=np.int64)
    parts: Integers = size // numbers if down else -(-size // numbers)
    return parts


#: The most sums that a table may take: from tenths of a second to a minute.
WORK = {"glance": 10**8, "quick": 6 * 10**8, "thorough": 3 * 10**10}
#: The shortest useful table of a longer sequence, in steps.
_SOME_STEPS = 1_000
#: The share of memory that may be lost in order to tabulate all steps.
_LITTLE = 0.05


class TableProblem(NamedTuple):
    """A problem in whole units of memory, with the effort allowed for it."""

    problem: Problem
    units: int
    unit: int
    sizes: UnitSizes
    effort: str
    front: bool
    #: Whether only the quickest schedule within all units is wanted.
    alone: bool
    progress: Progress | None


def is_affordable(job: TableProblem, units: int) -> bool:
    """Return whether a table of all steps is affordable."""
    steps = job.problem.steps
    return steps**2 * (units + 1) <= WORK[job.effort] and (steps + 1) * (units + 1) <= CELLS


def coarsen(job: TableProblem, *, down: bool = False) -> TableProblem:
    """Return the problem in units large enough that a table of a thousand steps is affordable.

    If that loses little, units are made large enough for a table of all steps. With sizes rounded up, what
    fits in units fits in bytes; with sizes rounded ``down``, what fits in bytes fits in units.
    """
    problem = job.problem
    if job.units <= _most_units(job, _SOME_STEPS):
        return job
    state, tape, total = problem.state_bytes, problem.tape_bytes, job.units * job.unit
    lost, unit = inf, 0
    for steps in (problem.steps, _SOME_STEPS):
        if lost > _LITTLE:
            most = _most_units(job, steps)
            lost, unit = choose_unit(state, tape, steps=problem.steps, total=total, most_units=most, down=down)
    return job._replace(sizes=round_sizes(state, tape, unit=unit, down=down), units=total // unit, unit=unit)


def _most_units(job: TableProblem, steps: int) -> int:
    """Return the most units that a table of ``steps`` steps, or of all if fewer, can have."""
    length = min(steps, job.problem.steps)
    return max(1, min(WORK[job.effort] // length**2, CELLS // (length + 1)) - 1)


def longest_table(job: TableProblem, *, tape: int = 0) -> int:
    """Return the length of the longest affordable table that is shorter than the sequence.

    With the units of a ``tape``, it has no more units than all tapes of that length take (``useful_units``).
    """

    def is_too_long(steps: int) -> bool:
        width = (min(job.units, steps * tape) if tape else job.units) + 1
        return steps**2 * width > WORK[job.effort] // 2 or (steps + 1) * width > CELLS

    return bisect_left(range(1, job.problem.steps), True, key=is_too_long)


def useful_units(job: TableProblem, *, steps: int) -> int:
    """Return how many units of memory parts of up to some steps can use: those of all their tapes."""
    return min(job.units, steps * job.sizes.tape)


def most_tabulated_units(problem: Problem, *, sizes: UnitSizes, effort: str) -> int:
    """Return the most units with which a table of all steps is affordable; 0 if none can record a step."""
    steps = problem.steps
    most = min(steps * sizes.tape, WORK[effort] // steps**2 - 1, CELLS // (steps + 1) - 1)
    return most if most >= sizes.tape else 0


#: Finding the promising splits takes less time than it saves with more steps for each unit than this, and if
#: a level of prices takes the place of so many sums of a unit.
_LONG, _SUMS_FOR_A_LEVEL, _MOST_LEVELS = 8, 140_000, 64
#: A question needs the same tables once for each objective, and a front for each budget.
_KEPT = 4
#: The widest table of each problem, the one last used at the end.
_tables: OrderedDict[Any, Tables] = OrderedDict()
_lock = Lock()


def cached_tables(job: TableProblem, *, steps: int, units: int) -> Tables:
    """Return the table of ``steps`` steps and ``units`` units; recent tables are kept, and narrowed.

    If all steps are wanted within all units alone, other values can be too large.
    """
    costs: dict[str, Any] = {"steps": steps, "sizes": job.sizes, **job.problem.prices}
    whole = tuple(costs.values())
    alone = (*whole, units)
    is_alone = job.alone and steps == job.problem.steps and units == job.units and steps > _LONG * units
    with _lock:
        for key in (whole, alone) if is_alone else (whole,):
            known = _tables.get(key)
            if known is not None and known.units >= units:
                _tables.move_to_end(key)
                return known.narrow(units)
        # After another budget at these costs, more are likely, and one table serves them all.
        is_alone &= all(key[:-1] != whole for key in _tables)
    costs |= {"units": units, "progress": job.progress}
    tables = _fill_promising(**costs) if is_alone else None
    key = whole if tables is None else alone
    tables = tables or Tables(**costs)
    with _lock:
        _tables[key] = tables
        _tables.move_to_end(key)
        while len(_tables) > _KEPT:
            _tables.popitem(last=False)
    return tables


def _fill_promising(*, progress: Progress | None, **costs: Any) -> Tables | None:
    """Return a table made from promising splits if its last value is the optimum, else None."""
    state, tape = costs["sizes"]
    levels = costs["steps"] ** 2 * min(state, tape) // _SUMS_FOR_A_LEVEL
    promising = find_promising_splits(**costs, most_levels=min(levels, _MOST_LEVELS))
    if promising is None:
        return None
    tables = Tables(**costs, promising=promising, progress=progress)
    return tables if tables.unstored[-1, -1] <= promising.most else None


def clear_caches() -> None:
    """Drop the tables of earlier questions, e.g. before a time measurement."""
    with _lock:
        _tables.clear()
