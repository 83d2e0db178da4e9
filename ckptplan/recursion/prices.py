"""Bounds the cost of schedules by prices of steps.

Let a part earn p for each step that it reverses. The most that a part of any length earns beyond its cost, its
*profit*, is given by the dual of (R0) to (R3) of docs/optimality.md, in one sweep over units m. With profits
marked ' at the price p - r, since a run over the steps of a head costs r each, and 0 for the empty part,

    (D0) chunk(m) = p + max of  0;  chunk(m - M_a);  free(m - M_a)
    (D1) free(m)  = max of  0;  chunk(m) - k;  owned(m - M_s) - s;  far(m) - w
    (D2) owned(m) = max of  0;  chunk(m + M_s) - k;  free(m) - a + owned'(m) - l
    (D3) far(m)   = max of  0;  chunk(m) - k;  owned(m - M_s) - min(s, l);  free(m) - a + far'(m) - r_d

At prices of at most 0 all profits are 0. So t steps within m units cost at least p t - free(m), for each p. The
best of these bounds is concave in p, and takes no time that depends on t.
"""

from __future__ import annotations

from collections.abc import Iterator
from functools import lru_cache
from itertools import islice
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from ckptplan.recursion.problem import Prices
from ckptplan.recursion.tree import UnitSizes

_Floats = npt.NDArray[np.float64]

#: Prices tried between two multiples of r (those that differ by multiples of r belong together): as many as
#: make arrays of this size, but neither fewer nor more than two limits.
_ENTRIES, _FEWEST, _MOST = 2**20, 32, 512


class _Profits(NamedTuple):
    """Profits at one price or at several; arrays of shape (units + 1,) or (units + 1, prices)."""

    free: _Floats
    owned: _Floats
    far: _Floats


@lru_cache(maxsize=8)
def bound_by_prices(
    *, steps: int, units: int, sizes: UnitSizes, prices: Prices, first: int, most_levels: int
) -> _Floats:
    """Return what all steps cost at least within each number of units; shape (units + 1,).

    Arguments are those of ``Tables``, the first number of units whose bound matters, and the most multiples of
    r to try as prices.
    """
    least = np.full(units + 1, -np.inf)
    if not prices.recompute:
        return least
    for level, (earned, profits) in enumerate(islice(_climb(units, sizes, prices), most_levels)):
        bounds = (steps * earned - profits.free).max(axis=1)
        if level > 1 and (bounds[first:] <= least[first:]).all():
            break
        least = np.maximum(least, bounds)
    return least


def _climb(units: int, sizes: UnitSizes, prices: Prices) -> Iterator[tuple[_Floats, _Profits]]:
    """Yield what steps earn up to each multiple of r, from at most 0 on, and the profits at that."""
    count = min(max(_FEWEST, _ENTRIES // (units + 1)), _MOST)
    earned = -prices.recompute * np.arange(count) / count
    profits = _Profits(*np.zeros((3, units + 1, count)))
    while True:
        yield earned, profits
        earned = earned + prices.recompute
        profits = _price(earned, profits, sizes=sizes, prices=prices)


def _price(earned: _Floats, cheaper: _Profits, *, sizes: UnitSizes, prices: Prices) -> _Profits:
    """Return (D0) to (D3) where steps earn that, from those where they earn r less; infinite if unbounded."""
    (state, tape), (a, k, s, back) = sizes, prices.actions
    write, read, hold = prices.write, prices.read, prices.hold
    count = len(cheaper.free)
    # Rows before the first stand for less than no units.
    pad = max(state, tape)
    chunk, free, owned, far = np.full((4, pad + count + state, len(earned)), -np.inf)
    for begin in range(0, count, min(state, tape)):
        here = slice(begin, min(begin + min(state, tape), count))

        def lower(profits: _Floats, by: int, here: slice = here) -> _Floats:
            return profits[pad + here.start - by : pad + here.stop - by]

        nothing = np.where(np.arange(here.start, here.stop) >= tape, 0.0, -np.inf)[:, None]
        lower(chunk, 0)[:] = earned + np.maximum(nothing, np.maximum(lower(chunk, tape), lower(free, tape)))
        recorded = np.maximum(lower(chunk, 0) - k, 0.0)
        below = slice(max(0, here.start - state), max(0, here.stop - state))
        split = free[pad:][below] + (cheaper.owned[below] - a - back)
        owned[pad:][below] = np.maximum(recorded[len(recorded) - len(split) :], split)
        unread = np.maximum(recorded, lower(owned, state) - s)
        again = cheaper.far[here] - a - read
        gain = np.maximum(np.maximum(recorded, lower(owned, state) - hold), unread + again)
        # A state that is written and read ever again earns without end.
        lower(far, 0)[:] = np.where(again > write, np.inf, gain)
        lower(free, 0)[:] = np.maximum(unread, lower(far, 0) - write)
    last = slice(max(0, count - state), count)
    recorded = np.maximum(chunk[pad + count - 1] - k, 0.0)
    owned[pad:][last] = np.maximum(recorded, free[pad:][last] + (cheaper.owned[last] - a - back))
    return _Profits(*(one[pad : pad + count] for one in (free, owned, far)))
