"""A problem in units of memory, and how large a table of it may be."""

from __future__ import annotations

from functools import lru_cache
from math import inf, isqrt
from typing import NamedTuple

from ckptplan.model.progress import Progress
from ckptplan.recursion.problem import Problem
from ckptplan.recursion.rounding import choose_unit, round_sizes
from ckptplan.recursion.tables import CELLS, Tables
from ckptplan.recursion.tree import UnitSizes

#: Sums of a table that may be formed: some tenths of a second, and a minute at most.
WORK = {"glance": 10**8, "quick": 6 * 10**8, "thorough": 3 * 10**10}
#: Steps of the shortest table that is worth its while, of a longer sequence.
_SOME_STEPS = 1_000
#: Share of the memory that may be lost to have a table of all steps.
_LITTLE = 0.05


class TableProblem(NamedTuple):
    """A problem in whole units of memory, and how much may be done about it."""

    problem: Problem
    units: int
    unit: int
    sizes: UnitSizes
    effort: str
    front: bool
    progress: Progress | None


def is_affordable(job: TableProblem, units: int) -> bool:
    """Return whether a table of all steps can be afforded."""
    steps = job.problem.steps
    return steps**2 * (units + 1) <= WORK[job.effort] and (steps + 1) * (units + 1) <= CELLS


def coarsen(job: TableProblem, *, down: bool = False) -> TableProblem:
    """Make units so large that a table of a thousand steps can be afforded, and round sizes up to them.

    Or of all steps, where that loses little. What fits in rounded units fits in bytes; rounded ``down``, what
    fits in bytes fits in units.
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
    """Return the units of a table of so many steps, or of all, that can be afforded."""
    length = min(steps, job.problem.steps)
    return max(1, min(WORK[job.effort] // length**2, CELLS // (length + 1)) - 1)


def longest_table(job: TableProblem) -> int:
    """Return the steps of the longest table that can be afforded, which are not all."""
    width = job.units + 1
    return min(job.problem.steps - 1, isqrt(WORK[job.effort] // 2 // width), CELLS // width - 1)


#: A question asks for the same tables once for each objective.
_cached = lru_cache(maxsize=3)(Tables)


def cached_tables(job: TableProblem, *, steps: int, units: int) -> Tables:
    """Return the table of so many steps and units."""
    return _cached(
        steps=steps,
        units=units,
        sizes=job.sizes,
        recompute=job.problem.recompute,
        write=job.problem.write,
        read=job.problem.read,
        progress=job.progress,
    )


def clear_caches() -> None:
    """Keep no table of earlier questions; for those who measure time."""
    _cached.cache_clear()
