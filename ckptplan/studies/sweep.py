"""Implements ``sweep``: the best plan at every point of a grid, as flat rows."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import product
from typing import Any

from ckptplan.cost.case import Case
from ckptplan.errors import InputError
from ckptplan.model.checked import digest
from ckptplan.model.goal import Goal
from ckptplan.model.plan import Provenance
from ckptplan.model.profile import HardwareProfile
from ckptplan.model.workload import Workload
from ckptplan.planning.provenance import make_provenance
from ckptplan.planning.request import Request, check_kind, make_goal, replace_memory
from ckptplan.search.question import Question
from ckptplan.storage.tables import Columns, Row, Type
from ckptplan.studies.axes import Value
from ckptplan.studies.grid import MOST_POINTS, Grid, make_grid, order_axes
from ckptplan.studies.rows import plan_columns, plan_row
from ckptplan.studies.workers import count_cores, map_in_order
from ckptplan.version import __version__
from ckptplan.wording import Phrase

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
