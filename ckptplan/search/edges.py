"""Where something stops being true of whole numbers: by bisection, with as few questions as that takes."""

from __future__ import annotations

from collections.abc import Callable
from math import isqrt

import numpy as np

Test = Callable[[int], bool]


def choose_middle(low: int, high: int) -> int:
    """Return a number between two that are not next to each other, for wide ranges the geometric mean."""
    return max(low + 1, isqrt(low * high)) if high > 4 * max(1, low) else (low + high) // 2


def find_last(holds: Test, low: int, high: int) -> int:
    """Return the last number from ``low`` to ``high`` that a test holds for, ``low - 1`` where it never does.

    The test holds for all numbers up to some number, and for none beyond.
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
    """Return a number that a test holds for, and not for the next; ``low - 1`` where none is found.

    The test may hold beyond numbers it does not hold for. So the last of ``spread`` numbers over the range
    that it holds for is looked for first, from above; and beyond the edge that bisection finds there, some
    numbers are tried one by one.
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
