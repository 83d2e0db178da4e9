"""Computes lower bounds on what any schedule adds to the first sweep (proofs: docs/optimality.md)."""

from __future__ import annotations

from math import inf

import numpy as np

from ckptplan.recursion.problem import Problem
from ckptplan.recursion.tables import Tables, Values


def bound_by_tapes(*, steps: int, units: int, tape: int, recompute: float) -> float:
    """Return the least cost of recomputation, in units of ``recompute``.

    Every step whose tape is not held at the end of the first sweep runs again: (T - floor(m / M_a)) r.
    """
    return max(0, steps - units // tape) * recompute


def bound_by_memory(problem: Problem) -> float:
    """Return the same bound from the memory in bytes, however coarse the units of a table are."""
    if problem.free_bytes is None:
        return 0.0
    return bound_by_tapes(
        steps=problem.steps,
        units=problem.free_bytes,
        tape=problem.tape_bytes,
        recompute=problem.recompute,
    )


def bound_by_optimum(problem: Problem, optimum: float) -> float:
    """Return the bound for a problem that follows from the optimum of the problem that the recursion covers."""
    return optimum if problem.covered else max(bound_by_memory(problem), optimum * least_cost_share(problem))


def least_cost_share(problem: Problem) -> float:
    """Return the least share of a schedule's extra cost that remains when transfers cost their minimum."""
    pairs = ((problem.least_write, problem.write), (problem.least_read, problem.read))
    return min(least / full if full > 0 and full < inf else 1.0 for least, full in pairs)


def solve_blocks(tables: Tables) -> Values:
    """Return the least cost of t steps, t = 0..T, whose first state can be loaded at any time for free.

    The result has shape (T + 1,). No schedule of a longer sequence does less within t consecutive steps:
    what it does there, without its loads of earlier states, is a schedule of this problem.
    """
    steps, units = tables.steps, tables.units
    state, tape = tables.sizes
    taped = np.full(steps + 1, np.inf)  # free(t - 1, m - M_a): the tape of the first step is held
    if tape <= units:
        taped[1:] = tables.unstored[:-1, units - tape]
    # block(t) = min of  0 if t M_a <= m;  owned(t, m - M_s);  free(t - 1, m - M_a);
    #                    y r + block(y) + min(free(t - y, m), free(t - y - 1, m - M_a)),  1 <= y < t
    rests = np.minimum(tables.unstored[:, units], taped)[::-1].copy()
    held = tables.local[:, units - state] if state <= units else np.full(steps + 1, np.inf)
    least = np.minimum(held, taped)
    least[0] = 0
    least[1 : units // tape + 1] = 0
    heads = np.full(steps + 1, np.inf)
    for t in range(1, steps + 1):
        if t > 1 and least[t] > 0:
            least[t] = min(least[t], float(np.min(rests[steps - t + 1 : steps] + heads[1:t])))
        heads[t] = least[t] + t * tables.recompute
    result: Values = least
    return result


def bound_by_blocks(least: Values, *, steps: int) -> float:
    """Return the largest sum of bounds over blocks of equal length and the remainder of the sequence.

    The bound is max over t of floor(T / t) block(t) + block(T mod t).
    """
    longest = len(least) - 1
    if steps <= longest:
        return float(least[steps])
    lengths = np.arange(1, longest + 1)
    return float(np.max((steps // lengths) * least[1:] + least[steps % lengths]))
