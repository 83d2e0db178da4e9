"""Statements of the paper, read as ranges of numbers."""

from __future__ import annotations

import math
from dataclasses import dataclass

#: 'Not significant', 'almost' and similar words without a number are read as up to 10 %.
SLIGHT = 0.10
#: 'Unaffected' is read as up to 1 %.
UNAFFECTED = 0.01


@dataclass(frozen=True, kw_only=True)
class Reading:
    """The numbers that a statement of the paper admits: a range, each end included or not."""

    low: float = -math.inf
    high: float = math.inf
    low_included: bool = True
    high_included: bool = True

    def admits(self, value: float) -> bool:
        """Return whether a value is in the range, up to floating-point rounding."""
        value, low, high = (_rounded(number) for number in (value, self.low, self.high))
        above = value >= low if self.low_included else value > low
        below = value <= high if self.high_included else value < high
        return above and below


def exactly(value: float) -> Reading:
    """Read 'is ...'."""
    return Reading(low=value, high=value)


def more_than(value: float) -> Reading:
    """Read 'more than ...'."""
    return Reading(low=value, low_included=False)


def less_than(value: float) -> Reading:
    """Read 'less than ...'."""
    return Reading(high=value, high_included=False)


def at_most(value: float) -> Reading:
    """Read 'up to ...'."""
    return Reading(high=value)


def at_least(value: float) -> Reading:
    """Read 'at least ...'."""
    return Reading(low=value)


def between(low: float, high: float) -> Reading:
    """Read 'between ... and ...'."""
    return Reading(low=low, high=high)


def about(value: float, *, digit: float) -> Reading:
    """Read 'about ...': every number that rounds to the value at its last printed ``digit``."""
    return Reading(low=value - digit / 2, high=value + digit / 2)


def largest_on_a_grid(steps: int) -> Reading:
    """Read a largest T: it fits, and twice as many steps do not.

    The paper reports few lengths: 400, 2,000 and 4,000.
    """
    return Reading(low=steps, high=2 * steps, high_included=False)


def _rounded(value: float) -> float:
    """Return nine significant digits, by which 0.1 and the quotient 0.36 / 3.6 are equal."""
    return float(f"{value:.9g}")
