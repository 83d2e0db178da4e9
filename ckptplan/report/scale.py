"""The axes of charts: what each counts, its range, and the round values that are named on it."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from math import ceil, floor, log2, log10
from typing import Literal

from ckptplan.units import format_bytes

#: Shares up to here are to scale on an axis that is 'symlog', those above are in powers of ten.
LINEAR = 0.01


@dataclass(frozen=True, kw_only=True)
class Scale:
    """An axis."""

    title: str
    low: float
    high: float
    #: Value -> name.
    ticks: Mapping[float, str]
    kind: Literal["linear", "log", "symlog"] = "linear"


def scale_shares(title: str, low: float, high: float, *, wide: bool = False) -> Scale:
    """Return an axis of shares. A wide one tells 1 % from 2 % as well as 100 % from 200 %."""
    values = _find_steps(low, high, most=7)
    if wide:
        factors = (1, 2, 5) if high < 10 else (1,)
        powers = range(round(log10(LINEAR)), ceil(log10(high)) + 1)
        values = [0.0, *(factor * 10.0**power for power in powers for factor in factors)]
    ticks = {value: f"{100 * value:+,.10g} %" if value else "0" for value in values if low <= value <= high}
    return Scale(title=title, low=low, high=high, ticks=ticks, kind="symlog" if wide else "linear")


def scale_bytes(title: str, low: float, high: float, *, log: bool = False, sign: str = "") -> Scale:
    """Return an axis of bytes with powers of two, or at equal steps of one."""
    values = [2.0**power for power in range(ceil(log2(low)), floor(log2(high)) + 1)] if log else []
    values = values[:: ceil(len(values) / 16) or 1]
    if len(values) < 2:
        values = _find_steps(low, high, most=4, binary=True)
    ticks = {value: f"{sign}{format_bytes(value)}" for value in values}
    return Scale(title=title, low=low, high=high, ticks=ticks, kind="log" if log else "linear")


def scale_counts(title: str, low: float, high: float, *, log: bool = False, whole: bool = False) -> Scale:
    """Return an axis of numbers, with powers of ten or at equal steps; ``whole`` names no other ones."""
    values = [10.0**power for power in range(ceil(log10(low)), ceil(log10(high)))] if log else []
    values = values if len(values) > 1 else _find_steps(low, high, most=12)
    ticks = {value: f"{value:,.10g}" for value in values if not whole or value.is_integer()}
    return Scale(title=title, low=low, high=high, ticks=ticks, kind="log" if log else "linear")


def _find_steps(low: float, high: float, *, most: int, binary: bool = False) -> list[float]:
    """Return values at equal steps of 1, 2 or 5 times a power of ten, or of a power of two."""
    least = (high - low) / most
    if binary:
        step = 2.0 ** max(0, ceil(log2(least)))
    else:
        power = 10.0 ** floor(log10(least))
        step = next(factor * power for factor in (1, 2, 5, 10) if factor * power >= least)
    return [step * number for number in range(ceil(low / step), floor(high / step) + 1)]
