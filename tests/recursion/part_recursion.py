"""The least cost of schedules that keep the caches of whole parts, by memoised recursion over parts of steps.

A part keeps the caches of all its steps from one of its sweeps on, each until its step is reversed, or of
recorded steps alone. Knows nothing of tables, blocks or columns; for sequences of few steps.
"""

from __future__ import annotations

from functools import cache
from math import inf
from typing import Literal, TypeAlias

from tests.recursion.exhaustive import Prices

Where: TypeAlias = Literal["free", "owned", "far"]


def least_part_cost(steps: int, prices: Prices) -> float:
    """Return the least cost of runs and transfers, infinite where nothing fits."""
    size, tape, cache_size = prices.state, prices.tape, prices.cache
    hold = min(prices.save, prices.load)

    @cache
    def chunk(t: int, room: int, is_cached: bool) -> float:
        """At least one more step is recorded at once."""
        room -= tape if is_cached else tape + cache_size
        if room < 0:
            return inf
        return min(chunk(t - 1, room, is_cached), part("free", t - 1, room, is_cached)) if t > 1 else 0.0

    @cache
    def part(where: Where, t: int, room: int, is_cached: bool) -> float:
        """The room of a cached part is what is left besides the caches of its steps."""
        if t == 0:
            return 0.0
        if room < 0:
            return inf
        costs = [prices.chunk + chunk(t, room + (size if where == "owned" else 0), is_cached)]
        if where == "free":
            costs.append(prices.save + part("owned", t, room - size, is_cached))
            costs.append(prices.write + part("far", t, room, is_cached))
        if where == "far":
            costs.append(hold + part("owned", t, room - size, is_cached))
        if where != "free":
            back = prices.load if where == "owned" else prices.read
            again = prices.recompute if is_cached else prices.forward
            for y in range(1, t):
                released = (t - y) * cache_size if is_cached else 0
                rest, head = part("free", t - y, room, is_cached), part(where, y, room + released, is_cached)
                costs.append(prices.advance + y * again + rest + back + head)
        if not is_cached:
            costs.append(part(where, t, room - t * cache_size, True))
        return min(costs)

    return steps * prices.forward + part("free", steps, prices.units, False)
