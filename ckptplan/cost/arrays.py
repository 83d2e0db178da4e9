"""Arithmetic that works alike on single numbers and on numpy arrays, and how far its sums can be trusted."""

from __future__ import annotations

from math import ceil, log
from typing import Any, TypeAlias

import numpy as np
import numpy.typing as npt

Integers: TypeAlias = npt.NDArray[np.int64]
#: A scalar or an array of any shape; functions work element by element.
Quantity: TypeAlias = "int | float | npt.NDArray[Any]"
#: Share by which sums of the same few terms may differ if they are formed in another order: some thousand times
#: the spacing of floats, 2.2e-16.
SUM_ROUNDING = 1e-12
#: Share by which a time may differ if it is counted in two ways (action by action, and by a closed form): both
#: are sums of up to millions of terms.
COUNT_ROUNDING = 1e-9


def ceil_div(numerator: Any, denominator: Any) -> Any:
    """Return the quotient rounded up, exactly, for integers and arrays of integers."""
    return -(-numerator // denominator)


def at_least(value: Any, floor: int) -> Any:
    """Return the larger of a value and a floor; a plain int stays a plain int."""
    return max(value, floor) if isinstance(value, int) else np.maximum(value, floor)


def spread_out(most: int, *, dense: int, ratio: float) -> Integers:
    """Return all numbers from 1 to ``dense``, then each about ``ratio`` times the one before, and ``most``.

    Apart from ``most`` itself, a larger ``most`` only adds numbers.
    """
    count = max(0, ceil(log(most / dense) / log(ratio))) if most > dense else 0
    wide = (dense * ratio ** np.arange(1, count + 1)).astype(np.int64)
    numbers: Integers = np.unique(np.concatenate([np.arange(1, min(dense, most) + 1), wide[wide < most]]))
    return np.append(numbers, most) if most > dense else numbers
