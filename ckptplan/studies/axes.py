"""Defines the inputs of a plan as axes: their names, and how to read, scale and replace their values.

An axis varies a case, which is a workload on a profile; budgets are the memory sizes of the profile.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cache
from typing import Any, TypeAlias

from ckptplan.cost.case import Case
from ckptplan.errors import InputError, did_you_mean, quote_value
from ckptplan.model.workload import ACTION_TIMES, DERIVED
from ckptplan.units import (
    ACCEPTED_BYTES,
    ACCEPTED_HEADROOM,
    ACCEPTED_RATE,
    ACCEPTED_SECONDS,
    MAX_BYTES,
    MAX_STEPS,
    format_bytes,
    format_count,
    format_rate,
    format_seconds,
    format_share,
    parse_bytes,
    parse_headroom,
    parse_optional_bytes,
    parse_rate,
    parse_seconds,
)

#: A value of an axis in SI base units; None is 'unbounded'.
Value: TypeAlias = int | float | None
#: The largest value of any count.
_MAX_COUNT = 10**9


@dataclass(frozen=True, kw_only=True)
class AxisKind:
    """How to read and show the values of an axis. ``read`` raises InputError."""

    read: Callable[[object], Value]
    show: Callable[[Any], str]
    accepted: str
    whole: bool = False


def _make_count_reader(most: int) -> Callable[[object], int]:
    def read(value: object) -> int:
        accepted = f"a whole number from 1 to {most:,}"
        text = value.strip() if isinstance(value, str) else value
        if isinstance(text, str) and text.isascii() and text.isdecimal() and len(text) < 20:
            text = int(text)
        elif hasattr(text, "__index__") and not isinstance(text, bool):
            text = text.__index__()
        if not isinstance(text, int) or isinstance(text, bool) or not 1 <= text <= most:
            raise InputError(f"{quote_value(value)} is not accepted", value=value, accepted=accepted)
        return text

    return read


def _read_ratio(value: object) -> float:
    """Read a ratio, which, unlike a share, may exceed 1 without a per cent sign."""
    text = str(value).strip()
    number, scale = (text[:-1], 0.01) if text.endswith("%") else (text, 1.0)
    try:
        ratio = float(number) * scale
    except ValueError:
        ratio = float("nan")
    if not 0 < ratio < float("inf"):
        raise InputError(f"{quote_value(value)} is not a ratio", value=value, accepted=_RATIO)
    return ratio


_RATIO = "a number above zero, as 0.1, 1 or '30%'"
COUNT = AxisKind(
    read=_make_count_reader(_MAX_COUNT), show=format_count, accepted="whole numbers from 1", whole=True
)
STEPS = AxisKind(
    read=_make_count_reader(MAX_STEPS), show=format_count, accepted="whole numbers from 1", whole=True
)
BYTES = AxisKind(read=parse_bytes, show=format_bytes, accepted=ACCEPTED_BYTES, whole=True)
LIMIT = AxisKind(
    read=parse_optional_bytes,
    show=lambda value: "unbounded" if value is None else format_bytes(value),
    accepted=f"{ACCEPTED_BYTES}, or 'unbounded'",
    whole=True,
)
HEADROOM = AxisKind(read=parse_headroom, show=format_share, accepted=ACCEPTED_HEADROOM)
RATE = AxisKind(read=parse_rate, show=format_rate, accepted=ACCEPTED_RATE)
SECONDS = AxisKind(read=parse_seconds, show=format_seconds, accepted=ACCEPTED_SECONDS)
RATIO = AxisKind(read=_read_ratio, show=lambda value: f"{value:.4g}", accepted=_RATIO)


@dataclass(frozen=True, kw_only=True)
class Axis:
    """One input of a plan.

    ``sets`` are the fields that it replaces, and ``now`` returns their present values in a case. ``column`` is
    its name in results, which ends in the unit.
    """

    name: str
    column: str
    kind: AxisKind
    sets: tuple[str, ...]
    now: Callable[[Case], tuple[Value, ...]]
    replace: Callable[[Case, Sequence[Any]], Case]

    def __reduce__(self) -> tuple[Callable[[str], Axis], tuple[str]]:
        """Pickle by name, for other processes."""
        return find_axis, (self.name,)

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
                scaled.append(value if value == 0 else min(max(1, round(value * factor)), MAX_BYTES))
        return scaled

    def _put(self, case: Case, values: Sequence[Value]) -> Case:
        try:
            return self.replace(case, values)
        except InputError as error:
            raise InputError(
                error.message, field=self.name, value=error.value, accepted=error.accepted
            ) from None


def _make_axis(name: str, kind: AxisKind, *fields: str, column: str | None = None) -> Axis:
    """Return the axis that sets plain fields, such as 'profile.latency_seconds', to the same value."""
    owner = fields[0].partition(".")[0]
    names = [field.partition(".")[2] for field in fields]

    def now(case: Case) -> tuple[Value, ...]:
        holder = case.profile if owner == "profile" else case.timed
        return tuple(getattr(holder, field) for field in names)

    def replace(case: Case, values: Sequence[Any]) -> Case:
        changes = dict(zip(names, values, strict=True))
        return case.with_profile(**changes) if owner == "profile" else case.with_workload(**changes)

    return Axis(name=name, column=column or names[0], kind=kind, sets=tuple(fields), now=now, replace=replace)


def _make_size_axis(field: str) -> Axis:
    """Return the axis of a size in bytes per unit of the profile."""
    return Axis(
        name=field.replace("_", "-"),
        column=field,
        kind=BYTES,
        sets=(f"workload.{field}",),
        now=lambda case: (getattr(case.spread, field),),
        replace=lambda case, values: case.with_sizes(**{field: values[0]}),
    )


def _make_network_axis(field: str) -> Axis:
    """Return the axis of a number of the network, from which the sizes follow."""

    def replace(case: Case, values: Sequence[Any]) -> Case:
        change = getattr(case.workload, f"with_{field}")
        return Case(workload=change(values[0]), profile=case.profile)

    return Axis(
        name=field,
        column=field,
        kind=COUNT,
        # The sizes are derived again. (Their own axes can still replace them.)
        sets=(f"network.{field}",),
        now=lambda case: (getattr(case.workload.network, field, None),),
        replace=replace,
    )


_TRANSFERS = ("profile.transfer_write_seconds", "profile.transfer_read_seconds")


def _read_transfers(*fields: str) -> Callable[[Case], tuple[Value, ...]]:
    chosen = [_TRANSFERS.index(field) for field in fields]
    return lambda case: tuple(case.transfer_seconds[i] for i in chosen)


def _make_transfer_axis(name: str, *fields: str) -> Axis:
    plain = _make_axis(name, SECONDS, *fields, column=name.replace("-", "_"))
    return Axis(**{**vars(plain), "now": _read_transfers(*fields)})


#: In the order in which they are applied to a case: derived inputs follow those they are derived from.
_AXES = (
    _make_axis("profile-units", COUNT, "profile.units", column="profile_units"),
    _make_axis("workload-units", COUNT, "workload.units", column="workload_units"),
    _make_axis("T", STEPS, "workload.steps", column="steps"),
    _make_network_axis("batch"),
    _make_network_axis("neurons"),
    _make_axis("local-bytes", BYTES, "profile.local_bytes"),
    _make_axis("headroom", HEADROOM, "profile.headroom"),
    _make_axis("remote-bytes", LIMIT, "profile.remote_bytes"),
    *(_make_size_axis(field) for field in (*DERIVED, "workspace_bytes")),
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
    _make_transfer_axis("transfer-seconds", *_TRANSFERS),
    _make_transfer_axis("transfer-write-seconds", _TRANSFERS[0]),
    _make_transfer_axis("transfer-read-seconds", _TRANSFERS[1]),
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
        now=lambda case: (case.timed.recompute_seconds / case.timed.forward_seconds,),
        replace=lambda case, values: case.with_workload(
            recompute_seconds=values[0] * case.timed.forward_seconds
        ),
    ),
)


@cache
def all_axes() -> dict[str, Axis]:
    """Return the axes by name, in the order in which they are applied to a case."""
    return {axis.name: axis for axis in _AXES}


@cache
def _spellings() -> dict[str, Axis]:
    """Return the axes by all their names, with '-': their own, the column's and the field's."""
    fields = {axis.sets[0].partition(".")[2]: axis for axis in _AXES if len(axis.sets) == 1}
    fields["recompute_seconds"] = all_axes()["recompute-seconds"]
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
