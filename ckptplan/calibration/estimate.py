"""Estimates times from rounds on a machine with other programs, each with an interval (docs/accuracy.md).

Each quantity is measured once in each round, in turn. Two effects disturb the measurements. Other programs only
lengthen single runs. And the pace of the whole machine changes, which affects all runs of a round alike. So

    measured seconds of a run = its true seconds x the pace of the round x a factor of 1 or more.

The true seconds are estimated as the lower quartile over the rounds, after division by the pace. The pace of a
round is estimated as the lower quartile, over its runs, of measured over true seconds. Both are right as long
as a quarter of the rounds, and a quarter of the runs in a round, are undisturbed. Means, medians and minima are
moved more by bursts, steps and drifts of the clock (tests/calibration/test_estimate.py).

The interval begins at the least value, and ends as far above the median as the least is below the quartile. The
true lower quartile is below the least of n rounds with probability 0.75^n, which is 6 % for ten rounds.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Self

import numpy as np
import numpy.typing as npt


@dataclass(frozen=True, kw_only=True)
class Estimate:
    """A number, and an interval that contains it."""

    low: float
    value: float
    high: float

    @classmethod
    def exactly(cls, value: float) -> Self:
        """Return an estimate without error: the interval is the value."""
        return cls(low=value, value=value, high=value)

    @classmethod
    def of(cls, values: Iterable[float]) -> Self:
        """Estimate a time from several rounds. Other programs can only lengthen it."""
        low, value, median = np.percentile(list(values), (0, 25, 50)).tolist()
        return cls(low=low, value=value, high=median + value - low)

    @classmethod
    def of_ratios(cls, values: Iterable[float]) -> Self:
        """Estimate a ratio of two times of the same round. Noise can raise or lower it."""
        low, value, high = np.percentile(list(values), (25, 50, 75)).tolist()
        return cls(low=low, value=value, high=high)

    def __add__(self, other: Estimate) -> Estimate:
        return Estimate(low=self.low + other.low, value=self.value + other.value, high=self.high + other.high)

    @property
    def spread(self) -> float:
        """Half of the interval, as a share of the value."""
        return (self.high - self.low) / 2 / self.value if self.value else 0.0

    @property
    def farthest(self) -> float:
        """The distance from the value to the farther end of the interval, as a share of the value."""
        return max(self.high - self.value, self.value - self.low) / self.value if self.value else 0.0

    @property
    def factors(self) -> tuple[float, float]:
        """The ends of the interval divided by the value; 1 if the value is 0."""
        return (self.low / self.value, self.high / self.value) if self.value else (1.0, 1.0)

    def scaled(self, factor: float) -> Self:
        """Return a multiple of the number, with its interval."""
        return type(self)(low=factor * self.low, value=factor * self.value, high=factor * self.high)

    def widened(self, low: float, high: float) -> Self:
        """Return the same value, with an interval that also contains ``low`` and ``high`` times the value."""
        return type(self)(
            low=min(self.low, low * self.value), value=self.value, high=max(self.high, high * self.value)
        )


#: The number of iterations that estimate paces and seconds from each other.
_ITERATIONS = 2


def estimate_rounds(seconds: Sequence[Sequence[float]]) -> list[Estimate]:
    """Estimate several times that were measured in turn. Each inner sequence is a round with all times."""
    measured: npt.NDArray[np.float64] = np.array(seconds, dtype=float)
    pace = np.ones(len(measured))
    for _ in range(_ITERATIONS):
        typical = np.percentile(measured / pace[:, None], 25, axis=0)
        is_positive = typical > 0
        if is_positive.any():
            pace = np.percentile(measured[:, is_positive] / typical[is_positive], 25, axis=1)
    level = Estimate.of(pace)
    return [
        Estimate(low=level.low * time.low, value=level.value * time.value, high=level.high * time.high)
        for time in (Estimate.of(column) for column in (measured / pace[:, None]).T)
    ]
