"""Bounds the cost of schedules by prices of steps, and finds the splits of all schedules near the optimum.

Let a part earn p for each step that it reverses. The most that a part of any length earns beyond its cost, its
*profit*, is given by the dual of (R0) to (R3) of docs/optimality.md, in one sweep over units m. With profits
marked ' at the price p - r, since a run over the steps of a head costs r each, and 0 for the empty part,

    (D0) chunk(m) = p + max of  0;  chunk(m - M_a);  free(m - M_a)
    (D1) free(m)  = max of  0;  chunk(m) - k;  owned(m - M_s) - s;  far(m) - w
    (D2) owned(m) = max of  0;  chunk(m + M_s) - k;  free(m) - a + owned'(m) - l
    (D3) far(m)   = max of  0;  chunk(m) - k;  owned(m - M_s) - min(s, l);  free(m) - a + far'(m) - r_d

At prices of at most 0 all profits are 0. So t steps within m units cost at least p t - free(m), for each p. The
best of these bounds is concave in p, and takes no time that depends on t.

The *loss* of a part is its cost beyond p t - profit, never negative. In a schedule, the price of a part is that
of the whole, less r for each split that has the part in its head. A part loses at least as much as the parts
within it, so no part loses more than the schedule costs beyond the bound for the whole. The lines of all prices
show which lengths lose more than the slack.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import lru_cache
from itertools import islice
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from ckptplan.cost.arrays import Integers
from ckptplan.recursion.problem import Prices
from ckptplan.recursion.tree import UnitSizes

_Floats = npt.NDArray[np.float64]

#: The number of prices between two multiples of r (prices that differ by multiples of r belong together) makes
#: arrays of this size, but stays between the two limits.
_ENTRIES, _FEWEST, _MOST = 2**20, 32, 512
#: Splits of schedules up to this share above the bound are kept. The optimum is within it nearly always.
SLACK = 1 / 32


@dataclass(frozen=True, kw_only=True)
class PromisingSplits:
    """The splits of all schedules that cost at most ``most``."""

    most: float
    #: For each number t of steps: the fewest units, the first y, and the y behind the last one.
    ranges: Sequence[tuple[int, int, int]]


class _Profits(NamedTuple):
    """Profits at one price or at several; arrays of shape (units + 1,) or (units + 1, prices)."""

    free: _Floats
    owned: _Floats
    far: _Floats


class _Lengths(NamedTuple):
    """The shortest and the longest parts that may occur; arrays of shape (units + 1, 1)."""

    least: Integers
    most: Integers


def find_promising_splits(
    *, steps: int, units: int, sizes: UnitSizes, prices: Prices, most_levels: int = 64
) -> PromisingSplits | None:
    """Return the splits to examine for the optimum of all steps and units, None if prices do not help.

    Arguments are those of ``Tables``, and the most multiples of r to try as prices.
    """
    if not prices.recompute:
        return None
    levels, bounds = list[_Profits](), list[_Floats]()
    for earned, profits in _climb(units, sizes, prices):
        levels.append(profits)
        bounds.append(steps * earned - profits.free[-1])
        if len(levels) > 2 and bounds[-1].max() <= bounds[-2].max():
            break
        if len(levels) > most_levels:
            return None
    level, place = np.unravel_index(np.argmax(bounds), np.shape(bounds))
    bound = float(bounds[level][place])
    slack = SLACK * bound
    chain = [_Profits(*(column[:, place] for column in profits)) for profits in levels]
    free, owned, far = (
        [_find_lengths(np.stack(column), at, prices.recompute, slack, steps) for at in range(int(level) + 1)]
        for column in zip(*chain, strict=True)
    )
    ranges = np.stack(
        [np.full(steps + 1, units), np.full(steps + 1, steps), np.zeros(steps + 1, dtype=np.int64)]
    )
    for heads in (owned, far):
        for at in range(len(free)):
            _widen(ranges, whole=heads[at], rest=free[at], head=heads[max(at - 1, 0)])
    return PromisingSplits(most=bound + slack, ranges=list(zip(*ranges.tolist(), strict=True)))


@lru_cache(maxsize=8)
def bound_by_prices(
    *, steps: int, units: int, sizes: UnitSizes, prices: Prices, first: int, most_levels: int
) -> _Floats:
    """Return a lower bound on the cost of all steps within each number of units; shape (units + 1,).

    Arguments are those of ``find_promising_splits``, and the first number of units whose bound matters.
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
    """Yield the prices between two multiples of r, from -r to 0 on upwards, and the profits at them."""
    count = min(max(_FEWEST, _ENTRIES // (units + 1)), _MOST)
    earned = -prices.recompute * np.arange(count) / count
    profits = _Profits(*np.zeros((3, units + 1, count)))
    while True:
        yield earned, profits
        earned = earned + prices.recompute
        profits = _price(earned, profits, sizes=sizes, prices=prices)


def _price(earned: _Floats, cheaper: _Profits, *, sizes: UnitSizes, prices: Prices) -> _Profits:
    """Return (D0) to (D3) at prices ``earned``, from those at prices lower by r; infinite if unbounded."""
    (state, tape, _), (a, k, s, back) = sizes, prices.actions
    write, read, fetch_price = prices.write, prices.read, prices.fetch_price
    count = len(cheaper.free)
    # Rows before the first stand for less than no units.
    pad = max(state, tape)
    chunk, free, owned, far = np.full((4, pad + count + state, len(earned)), -np.inf)
    for begin in range(0, count, min(state, tape)):
        here = slice(begin, min(begin + min(state, tape), count))

        def lower(profits: _Floats, by: int, here: slice = here) -> _Floats:
            return profits[pad + here.start - by : pad + here.stop - by]

        single = np.where(np.arange(here.start, here.stop) >= tape, 0.0, -np.inf)[:, None]
        lower(chunk, 0)[:] = earned + np.maximum(single, np.maximum(lower(chunk, tape), lower(free, tape)))
        recorded = np.maximum(lower(chunk, 0) - k, 0.0)
        below = slice(max(0, here.start - state), max(0, here.stop - state))
        split = free[pad:][below] + (cheaper.owned[below] - a - back)
        owned[pad:][below] = np.maximum(recorded[len(recorded) - len(split) :], split)
        unread = np.maximum(recorded, lower(owned, state) - s)
        reread = cheaper.far[here] - a - read
        gain = np.maximum(np.maximum(recorded, lower(owned, state) - fetch_price), unread + reread)
        # If rereading a state earns more than its write costs, the profit is unbounded.
        lower(far, 0)[:] = np.where(reread > write, np.inf, gain)
        lower(free, 0)[:] = np.maximum(unread, lower(far, 0) - write)
    last = slice(max(0, count - state), count)
    recorded = np.maximum(chunk[pad + count - 1] - k, 0.0)
    owned[pad:][last] = np.maximum(recorded, free[pad:][last] + (cheaper.owned[last] - a - back))
    return _Profits(*(column[pad : pad + count] for column in (free, owned, far)))


def _find_lengths(profits: _Floats, at: int, recompute: float, slack: float, steps: int) -> _Lengths:
    """Return the lengths that lose at most ``slack`` at a level, by the lines of all levels.

    Profits have the shape (levels, units + 1); each level's price is ``recompute`` more than the one before.
    """
    lower, current, higher = profits[:at], profits[at], profits[at + 1 :]
    distances = recompute * np.arange(1, len(profits))[:, None]
    with np.errstate(invalid="ignore"):
        least = np.max((current - lower[::-1] - slack) / distances[:at], axis=0, initial=0)
        most = np.min((slack + higher - current) / distances[: len(higher)], axis=0, initial=steps)
    is_bounded = np.isfinite(current)
    # One step more than the lines say, for rounding.
    least = np.where(is_bounded, np.maximum(np.floor(least), 1), 1)
    most = np.where(is_bounded, np.minimum(np.ceil(most), steps), steps)
    return _Lengths(*(column.astype(np.int64)[:, None] for column in (least, most)))


def _widen(ranges: Integers, *, whole: _Lengths, rest: _Lengths, head: _Lengths) -> None:
    """Widen ranges to the splits of parts of ``whole`` lengths into rests and heads of the given lengths."""
    steps = np.arange(ranges.shape[1])
    first, last = np.maximum(head.least, steps - rest.most), np.minimum(head.most, steps - rest.least)
    possible = (whole.least <= steps) & (steps <= whole.most) & (first <= last)
    units = np.where(possible.any(axis=0), possible.argmax(axis=0), len(possible))
    first = np.where(possible, first, len(steps)).min(axis=0)
    stop = np.where(possible, last + 1, 0).max(axis=0)
    ranges[:2] = np.minimum(ranges[:2], (units, first))
    ranges[2] = np.maximum(ranges[2], stop)
