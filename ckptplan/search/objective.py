"""What 'best' means: costs in the order in which they decide."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, TypeAlias

import numpy.typing as npt

from ckptplan.cost.exact import Cost

#: Columns compared one after the other, the first that differs decides; all rise with the cost.
Key: TypeAlias = tuple[npt.NDArray[Any], ...]
#: A frozen value, never a lambda: searches are remembered by it, so that equal objectives must be equal.
Objective: TypeAlias = Callable[[Cost], Key]


def least_time(cost: Cost) -> Key:
    """Seconds, then local bytes, then remote bytes (docs/search.md)."""
    return cost.seconds, cost.local_peak_bytes, cost.remote_peak_bytes


def least_memory(cost: Cost) -> Key:
    """Local bytes, then seconds, then remote bytes."""
    return cost.local_peak_bytes, cost.seconds, cost.remote_peak_bytes


def least_remote_memory(cost: Cost) -> Key:
    """Remote bytes, then seconds, then local bytes."""
    return cost.remote_peak_bytes, cost.seconds, cost.local_peak_bytes


@dataclass(frozen=True)
class FirstOnly:
    """The first cost of an objective alone, where what decides between equal ones need not be found out."""

    objective: Objective

    def __call__(self, cost: Cost) -> Key:
        """Return the first column."""
        return self.objective(cost)[:1]


@dataclass(frozen=True, kw_only=True)
class Knee:
    """The point of a front farthest below the chord between its ends.

    The chord runs from the fastest plan (``fast_seconds``, ``fast_bytes``) to the smallest one. With
    both axes scaled so that the ends are (1, 0) and (0, 1), the distance below the chord falls with
    the sum of the two coordinates, so that the knee is the plan with the least sum. No front is needed.
    """

    fast_seconds: float
    fast_bytes: int
    small_seconds: float
    small_bytes: int

    def __call__(self, cost: Cost) -> Key:
        """Return the sum of the scaled axes, then as ``least_time``."""
        share = (cost.local_peak_bytes - self.small_bytes) / (self.fast_bytes - self.small_bytes)
        share = share + (cost.seconds - self.fast_seconds) / (self.small_seconds - self.fast_seconds)
        return share, *least_time(cost)
