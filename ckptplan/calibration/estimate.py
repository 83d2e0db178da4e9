"""Estimates times from rounds on a machine that others use, each with an interval (docs/accuracy.md).

Everything is measured once in each round, in turn. Two things disturb it. Other programs only ever lengthen a
run, now one and now another; and the pace of the whole machine changes, for everything in a round alike. So

    seconds of a thing in a round = its seconds x the pace of the round x a factor of 1 or more.

Both are lower quartiles: the seconds of a thing, of those of all rounds at equal pace; the pace of a round, of
the seconds of all things over their own. They are right as long as a quarter of the rounds are undisturbed, and
a quarter of the things in a round. Means, medians and minima are moved more by bursts, steps and drifts of the
clock (tests/calibration/test_estimate.py).

The interval is from the least to as far above the median as the least is below the quartile. The lower quartile
of what rounds are drawn from is below the least of n rounds with the probability 0.75^n: 6 % of ten rounds.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Self

import numpy as np
import numpy.typing as npt


@dataclass(frozen=True, kw_only=True)
class Estimate:
    """A number with an interval that has it."""

    low: float
    value: float
    high: float

    @classmethod
    def exactly(cls, value: float) -> Self:
        """Return a number that is known."""
        return cls(low=value, value=value, high=value)

    @classmethod
    def of(cls, values: Iterable[float]) -> Self:
        """Return the estimate of a time from several rounds, which other programs only lengthen."""
        low, value, median = np.percentile(list(values), (0, 25, 50)).tolist()
        return cls(low=low, value=value, high=median + value - low)

    @classmethod
    def of_ratios(cls, values: Iterable[float]) -> Self:
        """Return the estimate of a ratio of two times of the same round, which noise moves either way."""
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
        """How far the farther end of the interval is from the value, as a share of it."""
        return max(self.high - self.value, self.value - self.low) / self.value if self.value else 0.0

    @property
    def factors(self) -> tuple[float, float]:
        """The ends of the interval over the number; 1 if it is 0."""
        return (self.low / self.value, self.high / self.value) if self.value else (1.0, 1.0)

    def scaled(self, factor: float) -> Self:
        """Return a multiple of the number, with its interval."""
        return type(self)(low=factor * self.low, value=factor * self.value, high=factor * self.high)

    def widened(self, low: float, high: float) -> Self:
        """Return the same number with an interval that also has these factors of it."""
        return type(self)(
            low=min(self.low, low * self.value), value=self.value, high=max(self.high, high * self.value)
        )


#: How often paces and seconds are estimated in turn, each from the other.
_TURNS = 2


def estimate_rounds(seconds: Sequence[Sequence[float]]) -> list[Estimate]:
    """Return the estimate of each of several times that were measured in turn; each sequence is a round."""
    taken: npt.NDArray[np.float64] = np.array(seconds, dtype=float)
    pace = np.ones(len(taken))
    for _ in range(_TURNS):
        alike = np.percentile(taken / pace[:, None], 25, axis=0)
        seen = alike > 0
        if seen.any():
            pace = np.percentile(taken[:, seen] / alike[seen], 25, axis=1)
    level = Estimate.of(pace)
    return [
        Estimate(low=level.low * time.low, value=level.value * time.value, high=level.high * time.high)
        for time in (Estimate.of(column) for column in (taken / pace[:, None]).T)
    ]
