"""Computes lower bounds on what any schedule adds to the first sweep (when each holds: docs/optimality.md)."""

from __future__ import annotations

from math import inf

import numpy as np

from ckptplan.recursion.problem import Problem
from ckptplan.recursion.tables import Tables, Values


def bound_by_tapes(*, steps: int, units: int, tape: int, recompute: float, chunk: float = 0.0) -> float:
    """Return the least cost of recomputation and of chunks, with costs ``recompute`` and ``chunk`` of each.

    Every step whose tape is not held at the end of the first sweep runs again: (T - floor(m / M_a)) r. A chunk
    has no more steps than there is room for tapes: ceil(T / floor(m / M_a)) k. Infinite without room for one.
    """
    tapes = units // tape
    return max(0, steps - tapes) * recompute + -(-steps // tapes) * chunk if tapes else inf


def bound_by_memory(problem: Problem) -> float:
    """Return the same bound from the memory in bytes, however coarse the units of a table are."""
    if problem.free_bytes is None:
        return problem.actions.chunk
    return bound_by_tapes(
        steps=problem.steps,
        units=problem.free_bytes,
        tape=problem.tape_bytes,
        recompute=problem.recompute,
        chunk=problem.actions.chunk,
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

    The result has shape (T + 1,). No schedule of a longer sequence does less within t consecutive steps: what
    it does there, without its loads of earlier states, is a schedule of this problem. A run or a recorded chunk
    of several such blocks is charged to the block in which it starts, so runs and chunks that start at a
    block's first state are free.
    """
    steps, units = tables.steps, tables.units
    # block(t) = min of  chunk(t, m);  y r + block(y) + free(t - y, m),  1 <= y < t
    rests = tables.unstored[::-1, units].copy()
    least = tables.chunk[:, units].copy()
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
