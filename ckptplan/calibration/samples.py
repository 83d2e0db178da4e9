"""Repeated measurements: their middle, their spread, and straight lines through them."""

from __future__ import annotations

import statistics
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np


@dataclass(frozen=True, kw_only=True)
class Sample:
    """The same quantity, measured several times."""

    values: tuple[float, ...]

    @property
    def median(self) -> float:
        """The middle."""
        return statistics.median(self.values)

    @property
    def spread(self) -> float:
        """Half the range between the quartiles, as a share of the median: what a run differs by."""
        low, high = np.percentile(self.values, (25, 75))
        return float(high - low) / 2 / self.median if self.median else 0.0

    @property
    def noise(self) -> float:
        """Half the whole range, as a share of the median."""
        return (max(self.values) - min(self.values)) / 2 / self.median if self.median else 0.0


@dataclass(frozen=True, kw_only=True)
class Line:
    """A straight line through measurements: so much each, and so much once."""

    slope: float
    constant: float
    #: R^2: the share of the variation that the line explains.
    fit: float

    @classmethod
    def through(cls, points: Sequence[tuple[float, float]]) -> Line:
        """Return the line of least relative squares through (size, value): small ones count as much."""
        sizes, values = (np.array(column, dtype=float) for column in zip(*points, strict=True))
        weights = 1 / values
        columns = np.stack((sizes, np.ones_like(sizes)), axis=1)
        slope, constant = np.linalg.lstsq(columns * weights[:, None], values * weights, rcond=None)[0]
        missed = values - slope * sizes - constant
        variation = float(((values - values.mean()) ** 2).sum())
        fit = 1.0 if variation == 0 else 1 - float((missed**2).sum()) / variation
        return cls(slope=float(slope), constant=float(constant), fit=fit)


def relative_least_squares(rows: Sequence[Sequence[float]], values: Sequence[float]) -> list[float]:
    """Return the x, none below zero, for which rows @ x come closest to the values, by their shares."""
    from scipy.optimize import nnls

    scale = np.array(values, dtype=float)
    found, _ = nnls(np.array(rows, dtype=float) / scale[:, None], np.ones_like(scale))
    return [float(one) for one in found]
