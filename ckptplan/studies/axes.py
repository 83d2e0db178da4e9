"""Defines the inputs of a plan as axes, and grids over them: how to read, scale and replace their values.

An axis varies one input of a case, which is a workload on a profile. Memory budgets are inputs of the profile.
A grid gives each axis its values: ``256:65536:x2`` multiplies by 2, ``0:1us:+100ns`` adds, ``5GB/s:80GB/s:n9``
gives 9 values evenly spaced in the logarithm, and ``30,60,120`` is a list. A range includes both ends.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import cache, cached_property
from itertools import groupby
from operator import index
from typing import Any, TypeAlias

from ckptplan import units
from ckptplan.cost.case import Case
from ckptplan.errors import InputError, did_you_mean, refuse
from ckptplan.model.workload import ACTION_TIMES, DERIVED

#: A value of an axis in SI base units; None is 'unbounded'.
Value: TypeAlias = int | float | None


@dataclass(frozen=True, kw_only=True)
class AxisKind:
    """How to read and show the values of an axis. ``read`` raises InputError."""

    read: Callable[[object], Value]
    show: Callable[[Any], str]
    whole: bool = False


def _read_count(value: object) -> int:
    """Read a count. The model of a workload or profile may refuse it later."""
    try:
        count = int(value) if isinstance(value, str) else index(value)  # type: ignore[arg-type]
    except (TypeError, ValueError):
        count = 0
    if isinstance(value, bool) or not 1 <= count <= units.MAX_STEPS:
        raise refuse(value, "is not accepted", accepted=f"whole numbers from 1 to {units.MAX_STEPS:,}")
    return count


def _read_ratio(value: object) -> float:
    """Read a ratio, which, unlike a share, may exceed 1 without a per cent sign."""
    text = str(value).strip()
    number, scale = (text[:-1], 0.01) if text.endswith("%") else (text, 1.0)
    try:
        ratio = float(number) * scale
    except ValueError:
        ratio = float("nan")
    if not 0 < ratio < float("inf"):
        raise refuse(value, "is not a ratio", accepted="a number above zero, as 0.1, 1 or '30%'")
    return ratio


def _show_limit(value: int | None) -> str:
    return "unbounded" if value is None else units.format_bytes(value)


COUNT = AxisKind(read=_read_count, show=units.format_count, whole=True)
BYTES = AxisKind(read=units.parse_bytes, show=units.format_bytes, whole=True)
LIMIT = AxisKind(read=units.parse_optional_bytes, show=_show_limit, whole=True)
SHARE = AxisKind(read=units.parse_fraction, show=units.format_share)
HEADROOM = AxisKind(read=units.parse_headroom, show=units.format_share)
RATE = AxisKind(read=units.parse_rate, show=units.format_rate)
SECONDS = AxisKind(read=units.parse_seconds, show=units.format_seconds)
RATIO = AxisKind(read=_read_ratio, show="{:.4g}".format)


#: Sizes in bytes per unit of the profile. They are derived from the network unless their own axes replace them.
_SIZES = (*DERIVED, "workspace_bytes")
#: The times of a transfer. If a profile does not give them, they follow from its bandwidth.
_TRANSFERS = ("transfer_write_seconds", "transfer_read_seconds")


@dataclass(frozen=True, kw_only=True)
class Axis:
    """One input of a plan.

    ``sets`` are the fields that the axis replaces, as 'profile.latency_seconds'. ``column`` is the name of the
    axis in results, which ends in the unit.
    """

    name: str
    column: str
    kind: AxisKind
    sets: tuple[str, ...]
    #: Whether values are shares of the time of a forward step.
    of_forward: bool = False

    def now(self, case: Case) -> tuple[Value, ...]:
        """Return the current values of the input in a case, one for each field in ``sets``."""
        values = (_read_field(case, *field.split(".")) for field in self.sets)
        return tuple(
            value / case.timed.forward_seconds if self.of_forward and value else value for value in values
        )

    def put(self, case: Case, value: Value) -> Case:
        """Return the case with this input set to a value. Raises InputError that names the axis."""
        return self._put(case, [value] * len(self.sets))

    def scale(self, case: Case, factor: float) -> Case:
        """Return the case with this input multiplied by a factor. Raises InputError."""
        return self._put(case, self.scale_values(case, factor))

    def scale_values(self, case: Case, factor: float) -> list[Value]:
        """Return the values that ``scale`` sets: None stays None, whole numbers are rounded to at least 1."""
        scaled: list[Value] = []
        for value in self.now(case):
            if value is None or not self.kind.whole:
                scaled.append(None if value is None else value * factor)
            else:
                scaled.append(value if value == 0 else min(max(1, round(value * factor)), units.MAX_BYTES))
        return scaled

    def _put(self, case: Case, values: Sequence[Any]) -> Case:
        owner = self.sets[0].partition(".")[0]
        fields = [field.partition(".")[2] for field in self.sets]
        if self.of_forward:
            values = [value * case.timed.forward_seconds for value in values]
        changes = dict(zip(fields, values, strict=True))
        try:
            if owner == "workload":
                return case.with_workload(**changes)
            if owner == "network":
                change = getattr(case.workload, f"with_{fields[0]}")
                return Case(workload=change(values[0]), profile=case.profile)
            return Case(workload=case.workload, profile=case.profile.replace_numbers(**changes))
        except InputError as error:
            raise error.inside(field=self.name) from None


def _read_field(case: Case, owner: str, field: str) -> Any:
    if owner == "network":
        return getattr(case.workload.network, field, None)
    if field in _TRANSFERS:
        return case.transfer_seconds[_TRANSFERS.index(field)]
    if owner == "profile":
        return getattr(case.profile, field)
    return getattr(case.spread if field in _SIZES else case.timed, field)


def _make_axis(name: str, kind: AxisKind, *sets: str, column: str | None = None) -> Axis:
    """Return an axis. Its column is called ``column``, or else like the first field that the axis sets."""
    return Axis(name=name, column=column or sets[0].partition(".")[2], kind=kind, sets=sets)


#: In the order in which the axes are applied to a case: derived inputs come after the inputs they depend on.
_AXES = (
    _make_axis("profile-units", COUNT, "profile.units", column="profile_units"),
    _make_axis("workload-units", COUNT, "workload.units", column="workload_units"),
    _make_axis("T", COUNT, "workload.steps"),
    # The sizes are derived again. (Their own axes can still replace them.)
    _make_axis("batch", COUNT, "network.batch"),
    _make_axis("neurons", COUNT, "network.neurons"),
    _make_axis("activity", SHARE, "network.activity"),
    _make_axis("local-bytes", BYTES, "profile.local_bytes"),
    _make_axis("headroom", HEADROOM, "profile.headroom"),
    _make_axis("remote-bytes", LIMIT, "profile.remote_bytes"),
    *(_make_axis(field.replace("_", "-"), BYTES, f"workload.{field}") for field in _SIZES),
    _make_axis(
        "bandwidth",
        RATE,
        "profile.write_bytes_per_second",
        "profile.read_bytes_per_second",
        column="bandwidth_bytes_per_second",
    ),
    _make_axis("write-bytes-per-second", RATE, "profile.write_bytes_per_second"),
    _make_axis("read-bytes-per-second", RATE, "profile.read_bytes_per_second"),
    _make_axis("latency", SECONDS, "profile.latency_seconds"),
    _make_axis("synchronisation", SECONDS, "profile.synchronisation_seconds"),
    _make_axis(
        "transfer-seconds", SECONDS, *(f"profile.{field}" for field in _TRANSFERS), column="transfer_seconds"
    ),
    *(_make_axis(field.replace("_", "-"), SECONDS, f"profile.{field}") for field in _TRANSFERS),
    _make_axis("forward-seconds", SECONDS, "workload.forward_seconds"),
    _make_axis("backward-seconds", SECONDS, "workload.backward_seconds"),
    _make_axis("recompute-seconds", SECONDS, "workload.recompute_seconds"),
    _make_axis("record-seconds", SECONDS, "workload.record_overhead_seconds"),
    *(_make_axis(field.replace("_", "-"), SECONDS, f"workload.{field}") for field in ACTION_TIMES),
    Axis(
        name="recompute-ratio",
        column="recompute_ratio",
        kind=RATIO,
        sets=("workload.recompute_seconds",),
        of_forward=True,
    ),
)


@cache
def all_axes() -> dict[str, Axis]:
    """Return the axes by name, in the order in which they are applied to a case."""
    return {axis.name: axis for axis in _AXES}


@cache
def _spellings() -> dict[str, Axis]:
    """Return the axes by every accepted name: of the axis, its column and its field, spelled with '-'."""
    alone = [axis for axis in _AXES if len(axis.sets) == 1 and not axis.of_forward]
    fields = {axis.sets[0].partition(".")[2]: axis for axis in alone}
    del fields["units"]  # ambiguous: of the profile or of the workload
    named = {spelled: axis for axis in _AXES for spelled in (axis.column, axis.name)}
    return {name.replace("_", "-"): axis for name, axis in {**fields, **named}.items()}


def find_axis(name: str) -> Axis:
    """Return the axis called ``name``; '-' and '_' are equivalent. Raises InputError."""
    axis = _spellings().get(name.strip().replace("_", "-"))
    if axis is None:
        raise InputError(
            f"is not an input that can be varied.{did_you_mean(name.strip(), _spellings())}",
            field=name[:60] or "axis",
            value=name,
            accepted=", ".join(all_axes()),
        )
    return axis


#: Upper limit on the values of an axis, and on the rows of a file.
MOST_POINTS = 10_000_000
_ACCEPTED = (
    "START:STOP:xFACTOR, START:STOP:+STEP or START:STOP:nCOUNT, with START up to STOP, a factor above 1, a "
    "step above 0 and a count from 2; or values with commas between"
)
#: Largest ratio of the ends of a range, so that powers of a factor do not overflow.
_MOST_SPAN = 1e300
#: Allowance for rounding in a quotient of two ends of a range.
_HAIR = 1e-9


@dataclass(frozen=True, kw_only=True)
class Grid:
    """Every combination of the values of several axes. The last axis varies fastest."""

    axes: tuple[Axis, ...]
    values: tuple[Sequence[Value], ...]

    def __len__(self) -> int:
        return math.prod(len(values) for values in self.values)

    def point(self, number: int) -> tuple[Value, ...]:
        """Return the values of the axes at point ``number``."""
        point: list[Value] = []
        for values in reversed(self.values):
            number, place = divmod(number, len(values))
            point.append(values[place])
        return tuple(reversed(point))

    def put(self, case: Case, point: Sequence[Value]) -> Case:
        """Return the case with its inputs set to a point's values. Raises InputError that names the axis."""
        try:
            for place in self._order:
                case = self.axes[place].put(case, point[place])
        except InputError as error:
            raise error.inside(prefix="over") from None
        return case

    @cached_property
    def _order(self) -> list[int]:
        """The indices of the axes, in the order in which the axes are applied to a case."""
        ranks = list(all_axes())
        return sorted(range(len(self.axes)), key=lambda place: ranks.index(self.axes[place].name))

    def describe(self, point: Sequence[Value]) -> str:
        """Return a point as text: 'T = 4,096, batch = 60'."""
        shown = (f"{axis.name} = {axis.kind.show(value)}" for axis, value in zip(self.axes, point, strict=True))
        return ", ".join(shown)


def make_grid(over: Mapping[str, object] | Iterable[str]) -> Grid:
    """Return the grid for texts such as 'name=values', or for a mapping of names to values.

    Values are text in the grammar of this module, or iterables of numbers and of text with units. Raises
    InputError for unknown or repeated axes, and for wrong values.
    """
    pairs = list(over.items()) if isinstance(over, Mapping) else [_split_text(text) for text in over]
    axes: list[Axis] = []
    values: list[Sequence[Value]] = []
    for name, given in pairs:
        try:
            axis = find_axis(name)
            _check_free(axis, axes)
            values.append(read_values(axis, given))
        except InputError as error:
            raise error.inside(prefix="over") from None
        axes.append(axis)
    return Grid(axes=tuple(axes), values=tuple(values))


def _split_text(text: str) -> tuple[str, str]:
    name, equals, values = text.partition("=")
    if not equals:
        raise refuse(text, "has no values", field="over", accepted="as T=256:65536:x2")
    return name, values


def _check_free(axis: Axis, axes: Sequence[Axis]) -> None:
    for other in axes:
        shared = set(axis.sets) & set(other.sets)
        if shared:
            problem = (
                "is given twice" if other is axis else f"sets {', '.join(sorted(shared))}, as {other.name} does"
            )
            raise InputError(problem, field=axis.name, accepted="each input once")


def read_values(axis: Axis, given: object) -> Sequence[Value]:
    """Return the values of one axis. Raises InputError."""
    try:
        if isinstance(given, str):
            return _read_range(axis, given) if ":" in given else _read_list(axis, given.split(","))
        return _read_list(axis, given if isinstance(given, Iterable) else [given])
    except InputError as error:
        raise error.inside(prefix=axis.name) from None


def _read_list(axis: Axis, given: Iterable[object]) -> list[Value]:
    values = [_read(axis, value) for value in given]
    if not values:
        raise InputError("has no values", accepted=_ACCEPTED)
    if len(set(values)) < len(values):
        twice = next(value for value, number in Counter(values).items() if number > 1)
        raise InputError(f"{axis.kind.show(twice)} is given twice", value=twice, accepted="each value once")
    return values


def _read(axis: Axis, given: object) -> Value:
    plain = given.item() if hasattr(given, "item") else given
    return axis.kind.read(plain.strip() if isinstance(plain, str) else plain)


def _read_range(axis: Axis, text: str) -> Sequence[Value]:
    """Return the values of a range, ascending. Raises InputError; too many are refused before they are made."""
    *ends, steps = text.split(":")
    kind, number = steps[:1], steps[1:]
    if len(ends) != 2 or kind not in ("x", "+", "n"):
        raise refuse(text, "is not a range", accepted=_ACCEPTED)
    start, stop = (_read(axis, end) for end in ends)
    increment = _read(axis, number) if kind == "+" else _read_factor(number, whole=kind == "n")
    adds = kind == "+"
    if start is None or stop is None or increment is None or start > stop or not increment > (0 if adds else 1):
        raise refuse(text, "is not a range", accepted=_ACCEPTED)
    if adds and axis.kind.whole:
        # A range object needs no memory for its values; a sweep may still refuse that many rows.
        first, step = int(start), int(increment)
        return range(first, first + step * len(_count_places((stop - start) / increment, text)), step)
    if adds:
        values = (start + increment * i for i in _count_places((stop - start) / increment, text))
    elif start <= 0 or stop / start > _MOST_SPAN:
        accepted = f"a START above zero, and a STOP up to {_MOST_SPAN:g} times as much"
        raise refuse(text, "has ends too far apart", accepted=accepted)
    else:
        ratio = stop / start
        last = increment - 1 if kind == "n" else math.log(ratio) / math.log(increment)
        places = _count_places(last, text)
        values = (start * (ratio ** (i / last) if kind == "n" else increment**i) for i in places)
    tidy = (_tidy(value, stop) for value in values)
    # Rounding may make neighbours equal.
    return tuple(value for value, _ in groupby(map(round, tidy) if axis.kind.whole else tidy))


def _read_factor(number: str, *, whole: bool) -> float:
    """Return the factor of a range, which must be whole if it is a count; NaN if the text is no such number."""
    try:
        factor = float(number)
    except ValueError:
        return math.nan
    return factor if math.isfinite(factor) and (factor.is_integer() or not whole) else math.nan


def _count_places(quotient: float, text: str) -> range:
    """Return the indices of the values of a range. Raises InputError if there are too many."""
    if quotient + _HAIR >= MOST_POINTS:
        raise refuse(text, f"has more than {MOST_POINTS:,} values", accepted=f"up to {MOST_POINTS:,} points")
    return range(int(quotient + _HAIR) + 1)


def _tidy(value: float, stop: float) -> float:
    """Round a value to 12 digits, to remove errors of sums and powers. A value next to ``stop`` becomes it."""
    if isinstance(value, int):
        return value
    return stop if math.isclose(value, stop, rel_tol=1e-12) else float(f"{value:.12g}")
