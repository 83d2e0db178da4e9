"""Implements ``sweep``: the best plan at every point of a grid, as flat rows (docs/sweep.md).

Of the ranges of inputs, ``256:65536:x2`` multiplies, ``0:1us:+100ns`` adds, ``5GB/s:80GB/s:n9`` gives 9 values
evenly spaced in the logarithm, and ``30,60,120`` is a list. A range includes both ends.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import groupby, product
from typing import Any

from ckptplan.cost.case import Case
from ckptplan.errors import InputError, quote_value
from ckptplan.model.checked import digest
from ckptplan.model.goal import Goal
from ckptplan.model.plan import Provenance
from ckptplan.model.profile import HardwareProfile
from ckptplan.model.workload import Workload
from ckptplan.planning.request import Request, check_kind, make_goal, make_provenance, replace_memory
from ckptplan.search.question import Question
from ckptplan.storage.tables import Columns, Row, Type
from ckptplan.studies.axes import Axis, Value, all_axes, find_axis
from ckptplan.studies.rows import plan_columns, plan_row
from ckptplan.studies.workers import count_cores, map_in_order
from ckptplan.version import __version__
from ckptplan.wording import Phrase

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


#: How many values of each axis, and corners of the grid, are checked before a sweep begins.
_MOST_CHECKED, _MOST_CORNERS = 1000, 4096


@dataclass(frozen=True, kw_only=True)
class Sweep:
    """A grid, and everything else that determines its rows.

    Rows are ordered by workload, then by profile, then by the grid. ``goal`` has no budgets: these are the
    memory sizes of the profiles, less their headroom.
    """

    workloads: tuple[Workload, ...]
    profiles: tuple[HardwareProfile, ...]
    grid: Grid
    goal: Goal
    provenance: Provenance

    def __len__(self) -> int:
        return len(self.workloads) * len(self.profiles) * len(self.grid)

    @property
    def identity(self) -> str:
        """A short hash of everything that determines the rows, including the version of the program."""
        numbers = {
            "version": __version__,
            "columns": list(self.columns),
            "axes": {
                axis.column: list(values) for axis, values in zip(self.grid.axes, self.grid.values, strict=True)
            },
            "order": [axis.column for axis in self.grid.axes],
            "goal": self.goal.model_dump(mode="json"),
            # The hash of a workload omits its network, which an axis may vary.
            "workloads": [
                [workload.name, workload.hash, workload.network and workload.network.model_dump(mode="json")]
                for workload in self.workloads
            ],
            "profiles": [[profile.name, profile.hash] for profile in self.profiles],
        }
        estimated = [
            timed.hash
            for workload in self.workloads
            for profile in self.profiles
            if (timed := Case(workload=workload, profile=profile).timed) is not workload
        ]
        if estimated:
            # Neither hash has what times are estimated from.
            numbers["estimated"] = estimated
        return digest(numbers).removeprefix("sha256:")[:12]

    @property
    def columns(self) -> Columns:
        """The columns of every row, and their types."""
        axes: dict[str, Type] = {
            axis.column: "whole" if axis.kind.whole else "number" for axis in self.grid.axes
        }
        steps: dict[str, Type] = {} if "steps" in axes else {"steps": "whole"}
        return {"sweep": "text", **axes, "workload": "text", "profile": "text", **steps, **plan_columns()}

    def place(self, index: int) -> tuple[Workload, HardwareProfile, tuple[Value, ...]]:
        """Return the workload, the profile and the values of the axes of a row."""
        job, point = divmod(index, len(self.grid))
        workload, profile = divmod(job, len(self.profiles))
        return self.workloads[workload], self.profiles[profile], self.grid.point(point)

    def head(self, index: int, *, identity: str) -> Row:
        """Return the first columns of a row, which do not depend on its plan."""
        workload, profile, point = self.place(index)
        axes = dict(zip((axis.column for axis in self.grid.axes), point, strict=True))
        return {"sweep": identity, **axes, "workload": workload.name, "profile": profile.name}

    def case(self, index: int) -> Case:
        """Return the case of a row. Raises InputError that names the point."""
        workload, profile, point = self.place(index)
        return self._case(Case(workload=workload, profile=profile), point)

    def _case(self, case: Case, point: Sequence[Value]) -> Case:
        for i in order_axes(self.grid.axes):
            try:
                case = self.grid.axes[i].put(case, point[i])
            except InputError as error:
                raise self._at(error, case, point) from None
        return case

    def _at(self, error: InputError, case: Case, point: Sequence[Value]) -> InputError:
        where = f"{case.workload.name} on {case.profile.name}, {self.grid.describe(point)}"
        return InputError(
            Phrase(error.message, f" (at {where})"),
            field=error.field,
            value=error.value,
            accepted=error.accepted,
        )

    def question(self, index: int) -> Question:
        """Return the question of a row. Raises InputError that names the point."""
        case = self.case(index)
        request = Request(
            case=case,
            goal=self.goal,
            provenance=self.provenance,
            # A row must not hold the best plan so far.
            keeps_best=False,
        )
        try:
            return request.for_case(case).question()
        except InputError as error:
            raise self._at(error, case, self.place(index)[2]) from None

    def row(self, index: int, *, identity: str) -> Row:
        """Return one row: the best plan of the point, or why nothing fits."""
        question = self.question(index)
        head = {**self.head(index, identity=identity), "steps": question.costs.steps}
        return {**dict.fromkeys(self.columns), **head, **plan_row(question)}

    def check(self) -> None:
        """Raise InputError if a value, or the combination at a corner of the grid, is not accepted."""
        base = len(self.grid)
        for job in range(len(self.workloads) * len(self.profiles)):
            workload, profile, point = self.place(job * base)
            for i, values in enumerate(self.grid.values):
                for value in values[:_MOST_CHECKED]:
                    self._case(Case(workload=workload, profile=profile), _replace_value(point, i, value))
            for index in self._corners():
                self.question(job * base + index)

    def _corners(self) -> Iterator[int]:
        """Yield the indices of the grid points where every axis is at its minimum or maximum."""
        ends = [_find_ends(values) for values in self.grid.values]
        for number, places in enumerate(product(*ends)):
            if number >= _MOST_CORNERS:
                return
            index = 0
            for place, values in zip(places, self.grid.values, strict=True):
                index = index * len(values) + place
            yield index


def _replace_value(point: tuple[Value, ...], place: int, value: Value) -> tuple[Value, ...]:
    return (*point[:place], value, *point[place + 1 :])


def _find_ends(values: Sequence[Value]) -> list[int]:
    known = [i for i, value in enumerate(values) if value is not None]
    by_size = sorted(known, key=lambda i: values[i] or 0)
    return sorted({by_size[0], by_size[-1]}) if by_size else [0]


def make_sweep(
    over: Mapping[str, object] | Iterable[str],
    *,
    workloads: Workload | Iterable[Workload],
    profiles: HardwareProfile | Iterable[HardwareProfile],
    strategies: Iterable[str] | None = None,
    objective: str = "time",
    model: str = "exact",
    max_overhead: float | str | None = None,
    local_bytes: int | str | None = None,
    headroom: float | str | None = None,
    remote_bytes: int | str | None = None,
    effort: str = "quick",
    command: str = "ckptplan.sweep",
) -> Sweep:
    """Return a sweep that is checked but not begun.

    Arguments:
        over: the inputs to vary, as for ``sweep``.
        workloads: one or more workloads.
        profiles: one or more hardware profiles.
        strategies: names or groups; None means 'closed'.
        objective: 'time', 'memory' or 'balanced'.
        model: 'exact', or 'paper' for the printed equations.
        max_overhead: limit on the time over base's.
        local_bytes: replaces the profiles' local memory of one unit.
        headroom: share of local memory to leave free, as 0.1 or '10%'; replaces the profiles'. A budget that
            ``local_bytes`` names has none unless it is given here.
        remote_bytes: replaces the profiles' remote memory in total.
        effort: 'quick' or 'thorough', as in ``optimize``.
        command: recorded in the provenance.

    Raises InputError.
    """
    budgets: Mapping[str, Any] = {
        "local_bytes": local_bytes,
        "headroom": headroom,
        "remote_bytes": remote_bytes,
    }
    grid = make_grid(over)
    _check_budgets(grid, budgets)
    goal = make_goal(
        unless_named="closed",
        strategies=strategies,
        objective=objective,
        model=model,
        max_overhead=max_overhead,
        effort=effort,
    )
    sweep = Sweep(
        workloads=_check_several(workloads, Workload),
        profiles=tuple(
            replace_memory(profile, **budgets) for profile in _check_several(profiles, HardwareProfile)
        ),
        grid=grid,
        goal=goal,
        provenance=make_provenance(command),
    )
    if len(sweep) > MOST_POINTS:
        raise InputError(
            f"{len(sweep.workloads)} workloads x {len(sweep.profiles)} profiles x {len(grid):,} points are "
            f"{len(sweep):,} rows, which is too many",
            field="over",
            value=len(sweep),
            accepted=f"up to {MOST_POINTS:,}",
        )
    sweep.check()
    return sweep


def _check_several(given: Any, kind: type[Any]) -> tuple[Any, ...]:
    """Return one or more workloads or profiles as a tuple; their names must differ. Raises InputError."""
    several = (given,) if isinstance(given, kind) else tuple(given)
    field = "workloads" if kind is Workload else "profiles"
    if not several:
        raise InputError("has none", field=field, accepted="one or more")
    for i, one in enumerate(several):
        check_kind(one, kind, name=field, load="load_workload" if kind is Workload else "load_profile")
        if one.name in [other.name for other in several[:i]]:
            raise InputError(f"{one.name!r} is given twice", field=field, value=one.name, accepted="names once")
    return several


def _check_budgets(grid: Grid, budgets: Mapping[str, Any]) -> None:
    for axis in grid.axes:
        for name, value in budgets.items():
            if value is not None and f"profile.{name}" in axis.sets:
                raise InputError(
                    "is both varied by the grid and set to one value",
                    field=name,
                    value=value,
                    accepted=f"either the axis {axis.name} or the budget",
                )


def iterate_rows(sweep: Sweep, *, start: int = 0, jobs: int | None = 1) -> Iterator[list[Row]]:
    """Yield lists of rows in grid order, from number ``start``; ``jobs`` None uses all cores."""
    return map_in_order(
        _rows,
        (sweep, sweep.identity),
        start=start,
        stop=len(sweep),
        jobs=count_cores() if jobs is None else jobs,
    )


def _rows(shared: tuple[Sweep, str], start: int, stop: int) -> list[Row]:
    sweep, identity = shared
    return [sweep.row(index, identity=identity) for index in range(start, stop)]


def sweep(
    over: Mapping[str, object] | Iterable[str],
    *,
    workloads: Workload | Iterable[Workload],
    profiles: HardwareProfile | Iterable[HardwareProfile],
    jobs: int | None = 1,
    **wishes: Any,
) -> Iterator[Row]:
    """Yield the best plan at every point of a grid as it is found, as a dict by column (docs/sweep.md).

    ``over`` maps inputs to values, as ``{"T": "256:65536:x2", "batch": [30, 60]}``, or lists texts such as
    ``"T=256:65536:x2"``. ``wishes`` are ``strategies`` (None means 'closed'), ``objective``, ``model``,
    ``max_overhead``, ``local_bytes``, ``headroom``, ``remote_bytes`` and ``effort``, as in ``optimize``.
    ``jobs`` is the number of processes, None for all cores; with several, a script needs
    ``if __name__ == "__main__":``, as every script that starts processes does.

    Raises InputError before the first row for unknown inputs, wrong values, and a grid of more than 10 million
    rows.
    """
    prepared_sweep = make_sweep(over, workloads=workloads, profiles=profiles, **wishes)
    return (row for rows in iterate_rows(prepared_sweep, jobs=jobs) for row in rows)
