"""Finds the last whole number for which a test holds, by bisection."""

from __future__ import annotations

from collections.abc import Callable
from math import isqrt

import numpy as np

Test = Callable[[int], bool]


def choose_middle(low: int, high: int) -> int:
    """Return a number strictly between two non-adjacent ones; the geometric mean if the range is wide."""
    return max(low + 1, isqrt(low * high)) if high > 4 * max(1, low) else (low + high) // 2


def find_last(holds: Test, low: int, high: int) -> int:
    """Return the last number from ``low`` to ``high`` for which a test holds, ``low - 1`` if it never does.

    The test must hold for all numbers up to some number, and for none beyond.
    """
    good, bad = low - 1, high + 1
    while bad - good > 1:
        middle = choose_middle(good, bad)
        if holds(middle):
            good = middle
        else:
            bad = middle
    return good


def find_last_of_many(holds: Test, low: int, high: int, *, spread: int, beyond: int) -> int:
    """Return a number for which a test holds though not for the next one, ``low - 1`` if none is found.

    The test need not be monotone. So ``spread`` numbers over the range are tried first, in descending order,
    until one passes. Bisection finds the edge above it, and ``beyond`` numbers after the edge are tried one by
    one.
    """
    if high < low:
        return low - 1
    places = sorted({low, high, *np.geomspace(low, high, spread).astype(np.int64).tolist()}, reverse=True)
    bad = high + 1
    for place in places:
        if holds(place):
            break
        bad = place
    else:
        return low - 1
    good = find_last(holds, place, bad - 1)
    for further in range(good + 1, min(high, good + beyond) + 1):
        if holds(further):
            good = further
    return good
