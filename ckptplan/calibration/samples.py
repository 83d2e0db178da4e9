"""Statistics of repeated measurements: median, spread, and straight lines through them."""

from __future__ import annotations

import statistics
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np


@dataclass(frozen=True, kw_only=True)
class Sample:
    """Several measurements of the same quantity."""

    values: tuple[float, ...]

    @property
    def median(self) -> float:
        """The median."""
        return statistics.median(self.values)

    @property
    def spread(self) -> float:
        """Half the range between the quartiles, as a share of the median."""
        low, high = np.percentile(self.values, (25, 75))
        return float(high - low) / 2 / self.median if self.median else 0.0


@dataclass(frozen=True, kw_only=True)
class Line:
    """A straight line through measurements: ``slope`` times the size, plus ``constant``."""

    slope: float
    constant: float
    #: R^2: the share of the variation that the line explains.
    fit: float

    @classmethod
    def through(cls, points: Sequence[tuple[float, float]]) -> Line:
        """Return the line with the least squares of relative errors through points (size, value)."""
        sizes, values = (np.array(column, dtype=float) for column in zip(*points, strict=True))
        weights = 1 / values
        columns = np.stack((sizes, np.ones_like(sizes)), axis=1)
        slope, constant = np.linalg.lstsq(columns * weights[:, None], values * weights, rcond=None)[0]
        missed = values - slope * sizes - constant
        variation = float(((values - values.mean()) ** 2).sum())
        fit = 1.0 if variation == 0 else 1 - float((missed**2).sum()) / variation
        return cls(slope=float(slope), constant=float(constant), fit=fit)


def relative_least_squares(rows: Sequence[Sequence[float]], values: Sequence[float]) -> list[float]:
    """Return the x >= 0 that minimises the sum of squares of relative errors of rows @ x from the values."""
    from scipy.optimize import nnls

    scale = np.array(values, dtype=float)
    solution, _ = nnls(np.array(rows, dtype=float) / scale[:, None], np.ones_like(scale))
    return [float(x) for x in solution]
