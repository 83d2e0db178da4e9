"""How a statement of the paper is read: as the range of numbers that it admits."""

from __future__ import annotations

import math
from dataclasses import dataclass

#: How 'not significant', 'almost' and the like are read, where the paper gives no number: up to a tenth.
SLIGHT = 0.10
#: How 'unaffected' is read: up to one per cent.
UNAFFECTED = 0.01


@dataclass(frozen=True, kw_only=True)
class Reading:
    """The numbers that a statement of the paper admits: a range, each end included or not."""

    low: float = -math.inf
    high: float = math.inf
    low_included: bool = True
    high_included: bool = True

    def admits(self, value: float) -> bool:
        """Return whether a value is in the range, but for the rounding of floating point."""
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
    """Read 'from ... on'."""
    return Reading(low=value)


def between(low: float, high: float) -> Reading:
    """Read 'between ... and ...'."""
    return Reading(low=low, high=high)


def about(value: float, *, digit: float) -> Reading:
    """Read 'about ...': whatever is rounded to the value at its last printed ``digit``."""
    return Reading(low=value - digit / 2, high=value + digit / 2)


def largest_on_a_grid(steps: int) -> Reading:
    """Read a largest T: it fits and twice as much does not.

    The paper tries few lengths, of which it reports 400, 2,000 and 4,000.
    """
    return Reading(low=steps, high=2 * steps, high_included=False)


def _rounded(value: float) -> float:
    """Keep nine digits: 0.1 and the quotient 0.36 / 3.6 are the same number."""
    return float(f"{value:.9g}")
