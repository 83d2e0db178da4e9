"""Defines objectives, which rank costs by a key."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, TypeAlias

import numpy as np
import numpy.typing as npt

from ckptplan.cost.exact import Cost

#: Columns that are compared lexicographically; all rise with the cost.
Key: TypeAlias = tuple[npt.NDArray[Any], ...]
#: A function or a frozen dataclass, never a lambda: it is part of a cache key, so equal ones must be equal.
Objective: TypeAlias = Callable[[Cost], Key]


def least_time(cost: Cost) -> Key:
    """Rank by seconds, then local bytes, then remote bytes (docs/finding-optima.md)."""
    return cost.seconds, cost.local_peak_bytes, cost.remote_peak_bytes


def least_memory(cost: Cost) -> Key:
    """Rank by local bytes, then seconds, then remote bytes."""
    return cost.local_peak_bytes, cost.seconds, cost.remote_peak_bytes


def least_remote_memory(cost: Cost) -> Key:
    """Rank by remote bytes, then seconds, then local bytes."""
    return cost.remote_peak_bytes, cost.seconds, cost.local_peak_bytes


@dataclass(frozen=True)
class FirstOnly:
    """An objective reduced to its first column, for searches in which ties need not be broken."""

    objective: Objective

    def __call__(self, cost: Cost) -> Key:
        """Return the first column."""
        return self.objective(cost)[:1]


#: The decimals of the sum of the scaled axes that count. Where a front runs along its chord, all sums are equal
#: but for rounding: by 1e-15, or up to 1e-10 if the times of the ends differ by a millionth only.
_DIGITS = 9


@dataclass(frozen=True, kw_only=True)
class Knee:
    """The point of a front farthest below the chord between its ends.

    The chord runs from the fastest plan (``fast_seconds``, ``fast_bytes``) to the smallest one. If both axes
    are scaled so that its ends are (1, 0) and (0, 1), the distance below the chord falls as the sum of the two
    coordinates rises. So the knee is the plan with the least sum, and can be found without the front.
    """

    fast_seconds: float
    fast_bytes: int
    small_seconds: float
    small_bytes: int

    def __call__(self, cost: Cost) -> Key:
        """Rank by the sum of the scaled axes, to nine decimals, then as ``least_time`` does."""
        share = (cost.local_peak_bytes - self.small_bytes) / (self.fast_bytes - self.small_bytes)
        share = share + (cost.seconds - self.fast_seconds) / (self.small_seconds - self.fast_seconds)
        return np.round(share, _DIGITS), *least_time(cost)
