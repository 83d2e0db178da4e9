"""Integer arithmetic that works alike on single numbers and on numpy arrays."""

from __future__ import annotations

from typing import Any, TypeAlias

import numpy as np
import numpy.typing as npt

Integers: TypeAlias = npt.NDArray[np.int64]
#: A scalar or an array of any shape; functions work element by element.
Quantity: TypeAlias = "int | float | npt.NDArray[Any]"


def ceil_div(numerator: Any, denominator: Any) -> Any:
    """Return the quotient rounded up, exactly, for integers and arrays of integers."""
    return -(-numerator // denominator)


def at_least(value: Any, floor: int) -> Any:
    """Return the larger of a value and a floor; a plain int stays a plain int."""
    return max(value, floor) if isinstance(value, int) else np.maximum(value, floor)
