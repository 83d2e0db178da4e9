"""Defines the inputs of a plan as axes, and grids over them: how to read, scale and replace their values.

An axis varies a case, which is a workload on a profile; budgets are the memory sizes of the profile. Of the
ranges of a grid, ``256:65536:x2`` multiplies, ``0:1us:+100ns`` adds, ``5GB/s:80GB/s:n9`` gives 9 values evenly
spaced in the logarithm, and ``30,60,120`` is a list. A range includes both ends.
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
    """Read a count; which of them fit an input is for the model to say."""
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


#: Sizes in bytes per unit of the profile, which the network derives unless their own axes replace them.
_SIZES = (*DERIVED, "workspace_bytes")
#: The times of a transfer; a profile that does not give them has them by its bandwidth.
_TRANSFERS = ("transfer_write_seconds", "transfer_read_seconds")


@dataclass(frozen=True, kw_only=True)
class Axis:
    """One input of a plan.

    ``sets`` are the fields that it replaces, as 'profile.latency_seconds'. ``column`` is its name in results,
    which ends in the unit.
    """

    name: str
    column: str
    kind: AxisKind
    sets: tuple[str, ...]
    #: Whether values are shares of the time of a forward step.
    of_forward: bool = False

    def now(self, case: Case) -> tuple[Value, ...]:
        """Return the present values in a case, one for each field that it sets."""
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
            if owner == "network":
                change = getattr(case.workload, f"with_{fields[0]}")
                return Case(workload=change(values[0]), profile=case.profile)
            if owner == "profile":
                return case.with_profile(**changes)
            return case.with_sizes(**changes) if fields[0] in _SIZES else case.with_workload(**changes)
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
    """Return an axis, whose column is named after the first field that it sets unless it has another name."""
    return Axis(name=name, column=column or sets[0].partition(".")[2], kind=kind, sets=sets)


#: In the order in which they are applied to a case: derived inputs follow those they are derived from.
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
    """Return the axes by all their names, with '-': their own, the column's and the field's."""
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
    """Every combination of the values of some axes; the last axis runs fastest."""

    axes: tuple[Axis, ...]
    values: tuple[Sequence[Value], ...]

    def __len__(self) -> int:
        return math.prod(len(values) for values in self.values)

    def point(self, number: int) -> tuple[Value, ...]:
        """Return the values of the axes at one point."""
        point: list[Value] = []
        for values in reversed(self.values):
            number, place = divmod(number, len(values))
            point.append(values[place])
        return tuple(reversed(point))

    def put(self, case: Case, point: Sequence[Value]) -> Case:
        """Return the case with the inputs at one point. Raises InputError that names the axis."""
        try:
            for place in self._order:
                case = self.axes[place].put(case, point[place])
        except InputError as error:
            raise error.inside(prefix="over") from None
        return case

    @cached_property
    def _order(self) -> list[int]:
        """The places of the axes in the order in which they are applied to a case."""
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


def _check_free(axis: Axis, others: Sequence[Axis]) -> None:
    for other in others:
        shared = set(axis.sets) & set(other.sets)
        if shared:
            known = (
                "is given twice" if other is axis else f"sets {', '.join(sorted(shared))}, as {other.name} does"
            )
            raise InputError(known, field=axis.name, accepted="each input once")


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
    """Return the values of a range, ascending. Raises InputError, for too many of them before they are made."""
    *ends, steps = text.split(":")
    how, number = steps[:1], steps[1:]
    if len(ends) != 2 or how not in ("x", "+", "n"):
        raise refuse(text, "is not a range", accepted=_ACCEPTED)
    start, stop = (_read(axis, end) for end in ends)
    each = _read(axis, number) if how == "+" else _read_factor(number, whole=how == "n")
    adds = how == "+"
    if start is None or stop is None or each is None or start > stop or not each > (0 if adds else 1):
        raise refuse(text, "is not a range", accepted=_ACCEPTED)
    if adds and axis.kind.whole:
        # Not listed: the rows of a sweep may be refused for their number.
        first, step = int(start), int(each)
        return range(first, first + step * len(_count_places((stop - start) / each, text)), step)
    if adds:
        values = (start + each * i for i in _count_places((stop - start) / each, text))
    elif start <= 0 or stop / start > _MOST_SPAN:
        accepted = f"a START above zero, and a STOP up to {_MOST_SPAN:g} times as much"
        raise refuse(text, "has ends too far apart", accepted=accepted)
    else:
        ratio = stop / start
        last = each - 1 if how == "n" else math.log(ratio) / math.log(each)
        places = _count_places(last, text)
        values = (start * (ratio ** (i / last) if how == "n" else each**i) for i in places)
    tidy = (_tidy(value, stop) for value in values)
    # Rounding may make neighbours equal.
    return tuple(value for value, _ in groupby(map(round, tidy) if axis.kind.whole else tidy))


def _read_factor(number: str, *, whole: bool) -> float:
    """Return a factor, or a count if it must be whole; NaN for what is none."""
    try:
        factor = float(number)
    except ValueError:
        return math.nan
    return factor if math.isfinite(factor) and (factor.is_integer() or not whole) else math.nan


def _count_places(quotient: float, text: str) -> range:
    """Return the numbers of the values from one end to the other. Raises InputError if there are too many."""
    if quotient + _HAIR >= MOST_POINTS:
        raise refuse(text, f"has more than {MOST_POINTS:,} values", accepted=f"up to {MOST_POINTS:,} points")
    return range(int(quotient + _HAIR) + 1)


def _tidy(value: float, stop: float) -> float:
    """Return a value rounded to 12 digits, which removes errors of sums and powers; at the end, the end."""
    if isinstance(value, int):
        return value
    return stop if math.isclose(value, stop, rel_tol=1e-12) else float(f"{value:.12g}")
