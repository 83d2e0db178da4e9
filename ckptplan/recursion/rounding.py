"""Chooses units of memory that do not divide the sizes, so that rounding loses least.

With sizes rounded up, a schedule in units keeps the budget in bytes. With sizes rounded down, every schedule
in bytes is also one in units, so the optimum in units is a lower bound (docs/optimality.md).
"""

from __future__ import annotations

import numpy as np

from ckptplan.cost.arrays import Integers
from ckptplan.recursion.tree import UnitSizes

#: How many units are tried for each size, starting at the finest affordable one.
_LOOKED_AT = 500


def round_sizes(state: int, tape: int, *, unit: int, down: bool) -> UnitSizes:
    """Return sizes in units, rounded up, or rounded ``down``."""
    if down:
        return UnitSizes(state // unit, tape // unit)
    return UnitSizes(-(-state // unit), -(-tape // unit))


def choose_unit(
    state: int, tape: int, *, steps: int, total: int, most_units: int, down: bool
) -> tuple[float, int]:
    """Return the least loss, as a share of ``total`` bytes, and the unit in bytes that attains it.

    Whole fractions of either size are tried. Rounding a size loses the difference for each state or tape that
    can be held. Using more units than affordable counts as a loss, too: the table would cover only a part of
    the sequence.

    Arguments:
        state: bytes of a state.
        tape: bytes of a tape.
        steps: T.
        total: bytes of free local memory.
        most_units: the most units that a table can afford.
        down: whether sizes are rounded down.
    """
    finest = total // (most_units + 1) + 1
    parts = [_divide(size, finest=min(finest, size), down=down) for size in (state, tape)]
    units = np.unique(np.concatenate([*parts, [finest, min(state, tape)]]))
    # A size must not round down to zero.
    units = units[units <= (min(state, tape) if down else max(state, tape))]
    lost = (total % units) / total * (-1 if down else 1)
    lost = lost + np.maximum(0.0, total // units / most_units - 1)
    for size in (state, tape):
        lost = lost + (size % units if down else -size % units) * (min(steps, total / size) / total)
    best = int(np.argmin(lost))
    return float(lost[best]), int(units[best])


def _divide(size: int, *, finest: int, down: bool) -> Integers:
    """Return the finest whole fractions of a size that are at least ``finest``."""
    most = size // finest
    numbers = np.arange(max(1, most - _LOOKED_AT), most + 1, dtype=np.int64)
    parts: Integers = size // numbers if down else -(-size // numbers)
    return parts
