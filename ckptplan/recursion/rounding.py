"""Units of memory that are no divisors of the sizes: which of them lose least.

Rounded up, a schedule in units keeps the budget in bytes. Rounded down, every schedule in bytes is one in
units, so that the optimum in units is a bound (docs/optimality.md).
"""

from __future__ import annotations

import numpy as np

from ckptplan.cost.arrays import Integers
from ckptplan.recursion.tree import UnitSizes

#: Units that are looked at for each size, next to the finest that can be afforded.
_LOOKED_AT = 500


def round_sizes(state: int, tape: int, *, unit: int, down: bool) -> UnitSizes:
    """Return sizes in units."""
    if down:
        return UnitSizes(state // unit, tape // unit)
    return UnitSizes(-(-state // unit), -(-tape // unit))


def choose_unit(
    state: int, tape: int, *, steps: int, total: int, most_units: int, down: bool
) -> tuple[float, int]:
    """Return what is lost, as a share of ``total`` bytes, and with which unit.

    Parts of either size are looked at. A size loses what its rounding changes for as many as can be held.
    More units than can be afforded lose their excess: a part of the sequence only would be seen.
    """
    finest = total // (most_units + 1) + 1
    parts = [_divide(size, finest=min(finest, size), down=down) for size in (state, tape)]
    units = np.unique(np.concatenate([*parts, [finest, min(state, tape)]]))
    # Rounded down, no size must come to nothing.
    units = units[units <= (min(state, tape) if down else max(state, tape))]
    lost = (total % units) / total * (-1 if down else 1)
    lost = lost + np.maximum(0.0, total // units / most_units - 1)
    for size in (state, tape):
        lost = lost + (size % units if down else -size % units) * (min(steps, total / size) / total)
    best = int(np.argmin(lost))
    return float(lost[best]), int(units[best])


def _divide(size: int, *, finest: int, down: bool) -> Integers:
    """Return what a size is divided into by whole numbers, of which the last few are the finest."""
    most = size // finest
    numbers = np.arange(max(1, most - _LOOKED_AT), most + 1, dtype=np.int64)
    parts: Integers = size // numbers if down else -(-size // numbers)
    return parts
