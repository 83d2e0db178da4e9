"""Parses ranges of inputs, and combines them into grids (docs/sweep.md).

``256:65536:x2`` multiplies, ``0:1us:+100ns`` adds, ``5GB/s:80GB/s:n9`` gives 9 values evenly spaced in the
logarithm, and ``30,60,120`` is a list. A range includes both ends.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import groupby
from typing import Any

from ckptplan.errors import InputError, quote_value
from ckptplan.studies.axes import Axis, Value, all_axes, find_axis

#: Upper limit on grid points.
MOST_POINTS = 10_000_000
ACCEPTED = "START:STOP:xFACTOR, START:STOP:+STEP, START:STOP:nCOUNT, or values with commas between"
#: Largest ratio of the ends of a range, so that powers of a factor do not overflow.
_MOST_SPAN = 1e300
#: Allowance for rounding in a quotient of two ends of a range.
_HAIR = 1e-9


@dataclass(frozen=True, kw_only=True)
class Grid:
    """Every combination of the values of some axes; the last axis runs fastest."""

    axes: tuple[Axis, ...]
    values: tuple[tuple[Value, ...], ...]

    def __len__(self) -> int:
        return math.prod(len(values) for values in self.values)

    def point(self, index: int) -> tuple[Value, ...]:
        """Return the values of the axes at one point."""
        point: list[Value] = []
        for values in reversed(self.values):
            index, place = divmod(index, len(values))
            point.append(values[place])
        return tuple(reversed(point))

    def describe(self, point: Sequence[Value]) -> str:
        """Return a point as text: 'T = 4,096, batch = 60'."""
        return ", ".join(
            f"{axis.name} = {axis.kind.show(value)}" for axis, value in zip(self.axes, point, strict=True)
        )


def make_grid(over: Mapping[str, object] | Iterable[str]) -> Grid:
    """Return the grid for texts such as 'name=values', or for a mapping of names to values.

    Values are text in the grammar of this module, or iterables of numbers and of text with units. Raises
    InputError for unknown or repeated axes, for wrong values, and for more than 10 million points.
    """
    pairs = list(over.items()) if isinstance(over, Mapping) else [_split_text(text) for text in over]
    axes: list[Axis] = []
    values: list[Sequence[Value]] = []
    for name, given in pairs:
        axis = find_axis(name)
        _check_free(axis, axes)
        axes.append(axis)
        values.append(read_values(axis, given))
    _check_size(axes, values)
    return Grid(axes=tuple(axes), values=tuple(tuple(some) for some in values))


def _split_text(text: str) -> tuple[str, str]:
    name, equals, values = text.partition("=")
    if not equals:
        raise InputError(
            f"{quote_value(text)} has no values", field="over", value=text, accepted="as T=256:65536:x2"
        )
    return name, values


def _check_free(axis: Axis, others: Sequence[Axis]) -> None:
    for other in others:
        shared = set(axis.sets) & set(other.sets)
        if shared:
            known = (
                "is given twice" if other is axis else f"sets {', '.join(sorted(shared))}, as {other.name} does"
            )
            raise InputError(known, field=axis.name, accepted="each input once")


def _check_size(axes: Sequence[Axis], values: Sequence[Sequence[Value]]) -> None:
    points = math.prod(len(some) for some in values)
    if points > MOST_POINTS:
        product = " x ".join(f"{len(some):,} {axis.name}" for axis, some in zip(axes, values, strict=True))
        raise InputError(
            f"{product} = {points:,} points are too many",
            field="over",
            value=points,
            accepted=f"up to {MOST_POINTS:,}",
        )


def read_values(axis: Axis, given: object) -> Sequence[Value]:
    """Return the values of one axis. Raises InputError."""
    try:
        if isinstance(given, str):
            return _read_range(axis, given) if ":" in given else _read_list(axis, given.split(","))
        return _read_list(axis, given if isinstance(given, Iterable) else [given])
    except InputError as error:
        raise InputError(error.message, field=axis.name, value=error.value, accepted=error.accepted) from None


def _read_list(axis: Axis, given: Iterable[object]) -> list[Value]:
    values = [_read(axis, one) for one in given]
    if not values:
        raise InputError("has no values", accepted=ACCEPTED)
    if len(set(values)) < len(values):
        twice = next(value for value, number in Counter(values).items() if number > 1)
        raise InputError(f"{axis.kind.show(twice)} is given twice", value=twice, accepted="each value once")
    return values


def _read(axis: Axis, given: object) -> Value:
    if isinstance(given, str) and not given.strip():
        raise InputError("has an empty value", value=given, accepted=axis.kind.accepted)
    plain = given.item() if hasattr(given, "item") else given
    return axis.kind.read(plain.strip() if isinstance(plain, str) else plain)


def _read_range(axis: Axis, text: str) -> Sequence[Value]:
    parts = text.split(":")
    if len(parts) != 3 or parts[2][:1] not in ("x", "+", "n"):
        raise InputError(f"{quote_value(text)} is not a range", value=text, accepted=ACCEPTED)
    ends = (_read(axis, parts[0]), _read(axis, parts[1]))
    start, stop = (_require_bound(end, text) for end in ends)
    if start > stop:
        raise InputError(f"{quote_value(text)} starts above its end", value=text, accepted="START up to STOP")
    how, number = parts[2][0], parts[2][1:]
    if how == "+":
        each = _require_bound(_read(axis, number), text)
        found = _list_sums(start, stop, each, text)
        if isinstance(start, int) and isinstance(stop, int) and isinstance(each, int):
            # Nothing to round, and a grid with too many points is refused before its values are made.
            return range(start, stop + 1, each)
    else:
        found = (_list_multiples if how == "x" else _list_spaced)(start, stop, number, text)
    return _drop_repeats(map(round, found) if axis.kind.whole else found)


def _require_bound(value: Value, text: str) -> int | float:
    if value is None:
        raise InputError(f"{quote_value(text)} has no bound", value=text, accepted="a list for 'unbounded'")
    return value


def _list_multiples(start: float, stop: float, factor: str, text: str) -> Iterator[float]:
    times = _read_float(factor, text, "a factor above 1, as x2 or x1.5")
    if times <= 1:
        raise InputError(
            f"{quote_value(text)} never arrives", value=text, accepted="a factor above 1, as x2 or x1.5"
        )
    steps = _count_steps(math.log(_compute_span(start, stop, text)) / math.log(times), text)
    return (_tidy(start * times**i, stop) for i in range(steps + 1))


def _list_sums(start: float, stop: float, each: float, text: str) -> Iterator[float]:
    if each <= 0:
        raise InputError(f"{quote_value(text)} never arrives", value=text, accepted="a step above zero")
    steps = _count_steps((stop - start) / each, text)
    return (_tidy(start + each * i, stop) for i in range(steps + 1))


def _list_spaced(start: float, stop: float, count: str, text: str) -> Iterator[float]:
    number = int(count) if count.isascii() and count.isdecimal() and len(count) < 20 else 0
    if number < 2:
        raise InputError(f"{quote_value(text)} has no count", value=text, accepted="a count from 2, as n9")
    ratio = _compute_span(start, stop, text)
    _count_steps(number - 1, text)
    return (_tidy(start * ratio ** (i / (number - 1)), stop) for i in range(number))


def _read_float(number: str, text: str, accepted: str) -> float:
    try:
        value = float(number)
    except ValueError:
        value = math.nan
    if not math.isfinite(value):
        raise InputError(f"{quote_value(text)} is not a range", value=text, accepted=accepted)
    return value


def _compute_span(start: float, stop: float, text: str) -> float:
    """Return the ratio of the ends of a range. Raises InputError if it is undefined or too large."""
    if start <= 0:
        raise InputError(
            f"{quote_value(text)} starts at zero, which no factor leaves",
            value=text,
            accepted="a START above zero",
        )
    if stop / start > _MOST_SPAN:
        raise InputError(
            f"{quote_value(text)} has ends too far apart",
            value=text,
            accepted=f"a STOP up to {_MOST_SPAN:g} times the START",
        )
    return stop / start


def _count_steps(quotient: float, text: str) -> int:
    """Return the number of steps from one end to the other. Raises InputError if there are too many."""
    if quotient + _HAIR >= MOST_POINTS:
        raise InputError(
            f"{quote_value(text)} has more than {MOST_POINTS:,} values",
            value=text,
            accepted=f"up to {MOST_POINTS:,} points",
        )
    return int(quotient + _HAIR)


def _tidy(value: float, stop: float) -> float:
    """Return a value rounded to 12 digits, which removes errors of sums and powers; at the end, the end."""
    if isinstance(value, int):
        return value
    return stop if math.isclose(value, stop, rel_tol=1e-12) else float(f"{value:.12g}")


def _drop_repeats(values: Iterable[Value]) -> tuple[Value, ...]:
    """Return ascending values without those that rounding made equal; of ten million, only one copy is made."""
    return tuple(value for value, _ in groupby(values))


def order_axes(axes: Sequence[Axis]) -> list[int]:
    """Return the indices of axes in the order in which they are applied to a case."""
    ranks: dict[str, Any] = {name: rank for rank, name in enumerate(all_axes())}
    return sorted(range(len(axes)), key=lambda i: ranks[axes[i].name])
