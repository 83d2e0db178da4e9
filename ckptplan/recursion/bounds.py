"""Lower bounds on what any schedule adds to the first sweep (docs/optimality.md has the proofs)."""

from __future__ import annotations

from math import inf

import numpy as np

from ckptplan.recursion.problem import Problem
from ckptplan.recursion.tables import Tables, Values


def bound_by_tapes(*, steps: int, units: int, tape: int, recompute: float) -> float:
    """Every step is run again whose tape is not held when the first sweep ends."""
    return max(0, steps - units // tape) * recompute


def bound_by_memory(problem: Problem) -> float:
    """Return that bound in bytes, of all the memory there is, however coarse the units of a table."""
    if problem.free_bytes is None:
        return 0.0
    return bound_by_tapes(
        steps=problem.steps,
        units=problem.free_bytes,
        tape=problem.tape_bytes,
        recompute=problem.recompute,
    )


def bound_by_optimum(problem: Problem, optimum: float) -> float:
    """Return the bound that an optimum of the covered problem gives for the problem itself."""
    return optimum if problem.covered else max(bound_by_memory(problem), optimum * least_cost_share(problem))


def least_cost_share(problem: Problem) -> float:
    """Return what share of a schedule's extra cost remains at least when transfers cost their least."""
    pairs = ((problem.least_write, problem.write), (problem.least_read, problem.read))
    return min(least / full if full > 0 and full < inf else 1.0 for least, full in pairs)


def solve_blocks(tables: Tables) -> Values:
    """Return the least cost of t steps, t = 0..T, whose first state can be loaded at any time for nothing.

    No schedule of a longer sequence does less within t steps in a row: what it does there, with its loads
    of states from before them left out, is a schedule of this problem.
    """
    steps, units = tables.steps, tables.units
    state, tape = tables.sizes
    taped = np.full(steps + 1, np.inf)  # the rest of t - 1 steps beside the tape of the first
    if tape <= units:
        taped[1:] = tables.unstored[:-1, units - tape]
    rests = np.minimum(tables.unstored[:, units], taped)[::-1].copy()
    held = tables.local[:, units - state] if state <= units else np.full(steps + 1, np.inf)
    least = np.minimum(held, taped)
    least[0] = 0
    least[1 : units // tape + 1] = 0
    again = np.full(steps + 1, np.inf)
    for t in range(1, steps + 1):
        if t > 1 and least[t] > 0:
            least[t] = min(least[t], float(np.min(rests[steps - t + 1 : steps] + again[1:t])))
        again[t] = least[t] + t * tables.recompute
    result: Values = least
    return result


def bound_by_blocks(least: Values, *, steps: int) -> float:
    """Return the best sum of bounds over blocks of equal length and what is left of the sequence."""
    longest = len(least) - 1
    if steps <= longest:
        return float(least[steps])
    lengths = np.arange(1, longest + 1)
    return float(np.max((steps // lengths) * least[1:] + least[steps % lengths]))
