"""Implements ``sweep``: the best plan at every point of a grid, as flat rows (docs/sweep.md)."""

from __future__ import annotations

import math
import time
from array import array
from collections import deque
from collections.abc import Iterable, Iterator, Mapping, Sequence
from concurrent.futures import Executor
from contextlib import nullcontext
from dataclasses import dataclass, field, replace
from functools import cached_property
from itertools import chain, islice, product
from typing import Any, TypeAlias, Unpack

from ckptplan.cost.case import Case
from ckptplan.errors import InputError
from ckptplan.model.checked import digest
from ckptplan.model.display import DrawnOnAxes
from ckptplan.model.goal import Goal
from ckptplan.model.profile import HardwareProfile
from ckptplan.model.workload import Workload
from ckptplan.planning.optimize import make_answer_row, plan_columns
from ckptplan.planning.request import (
    MEMORY_WISHES,
    AnyProfile,
    AnyWorkload,
    Wishes,
    ask_within_memory,
    list_left_out,
    make_goal,
    read_profile,
    read_workload,
    replace_memory,
)
from ckptplan.search.question import Question
from ckptplan.storage.tables import Columns, Row, Type
from ckptplan.strategies.registry import all_strategies
from ckptplan.studies.axes import MOST_POINTS, Grid, Value, make_grid
from ckptplan.studies.shards import Shard
from ckptplan.studies.workers import WorkerPool, count_cores, count_workers, map_in_order
from ckptplan.units import format_things
from ckptplan.version import __version__

#: Seconds of work in this process before it starts worker processes.
_ALONE_SECONDS = 0.25
#: Seconds of work in a block, and the most rows of a block.
_BLOCK_SECONDS, _MOST_ROWS = 1.0, 2048
#: How many values of each axis, and how many corners of the grid, are checked before a sweep begins.
_MOST_CHECKED, _MOST_CORNERS = 1000, 4096


#: A case without the changes of the grid, and the values of the axes for it.
Point: TypeAlias = tuple[Case, tuple[Value, ...]]


@dataclass(frozen=True, kw_only=True)
class Block:
    """Consecutive points of a sweep with all data to plan them, small enough to send to another process."""

    first: int
    points: tuple[Point, ...]
    identity: str
    columns: tuple[str, ...]
    #: Only the axes. The values are in ``points``.
    axes: Grid
    goal: Goal

    def __str__(self) -> str:
        """Return the name of the block in error messages."""
        return f"rows {self.first + 1:,} to {self.first + len(self.points):,}"

    def plan(self) -> tuple[list[Row], float]:
        """Plan all points. Return their rows, each with a plan or why nothing fits, and the seconds it took."""
        began = time.perf_counter()
        rows = [self._plan_point(*point) for point in self.points]
        return rows, time.perf_counter() - began

    def _plan_point(self, case: Case, values: tuple[Value, ...]) -> Row:
        question = _ask(self.axes, self.goal, case, values)
        head = {**_make_head(self.identity, self.axes, case, values), "steps": question.costs.steps}
        return {**dict.fromkeys(self.columns), **head, **make_answer_row(question)}


def _make_head(identity: str, grid: Grid, case: Case, values: tuple[Value, ...]) -> Row:
    """Return the first columns of a row, which do not depend on its plan."""
    axes = dict(zip((axis.column for axis in grid.axes), values, strict=True))
    return {"sweep": identity, **axes, "workload": case.workload.name, "profile": case.profile.name}


def _ask(grid: Grid, goal: Goal, case: Case, values: tuple[Value, ...]) -> Question:
    """Return the question of a point. Raises InputError that names the point."""
    try:
        return ask_within_memory(grid.put(case, values), goal)
    except InputError as error:
        where = f"{case.workload.name} on {case.profile.name}, {grid.describe(values)}"
        raise InputError(
            f"{error.message} (at {where})", field=error.field, value=error.value, accepted=error.accepted
        ) from None


@dataclass(frozen=True, kw_only=True)
class Sweep:
    """A grid and everything else that determines the rows of a sweep. With a ``shard``, it has a part of them.

    Rows are ordered by workload, then by profile, then by the grid. ``goal`` has no budgets, since the budgets
    are the memory sizes of the profiles, less their headroom.
    """

    workloads: tuple[Workload, ...]
    profiles: tuple[HardwareProfile, ...]
    grid: Grid
    goal: Goal
    shard: Shard | None = None
    #: The strategies that ``optimize`` compares and the sweep does not, each with the reason.
    left_out: Mapping[str, str] = field(default_factory=dict)

    @property
    def total(self) -> int:
        """The number of rows of the whole sweep, including the rows of other parts."""
        return len(self.workloads) * len(self.profiles) * len(self.grid)

    def __len__(self) -> int:
        return self.total if self.shard is None else len(self.shard)

    @cached_property
    def identity(self) -> str:
        """A short hash of everything that determines the rows, including the version of the program.

        The identity of a part also names the part.
        """
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
            for workload, profile in product(self.workloads, self.profiles)
            if (timed := Case(workload=workload, profile=profile).timed) is not workload
        ]
        if estimated:
            # The two hashes do not cover the inputs of estimated times.
            numbers["estimated"] = estimated
        identity = digest(numbers).removeprefix("sha256:")[:12]
        return identity if self.shard is None else self.shard.name(identity)

    @cached_property
    def columns(self) -> Columns:
        """The columns of every row, and their types."""
        axes: dict[str, Type] = {
            axis.column: "whole" if axis.kind.whole else "number" for axis in self.grid.axes
        }
        steps: dict[str, Type] = {} if "steps" in axes else {"steps": "whole"}
        return {"sweep": "text", **axes, "workload": "text", "profile": "text", **steps, **plan_columns()}

    def block(self, start: int, stop: int) -> Block:
        """Return the points start..stop-1 with all data to plan them."""
        return Block(
            first=start,
            points=tuple(map(self._find_point, range(start, stop))),
            identity=self.identity,
            columns=tuple(self.columns),
            axes=Grid(axes=self.grid.axes, values=()),
            goal=self.goal,
        )

    def _find_point(self, index: int) -> Point:
        return self._place(index if self.shard is None else self.shard.row(index))

    def _place(self, row: int) -> Point:
        """Return the point of a row of the whole sweep."""
        job, point = divmod(row, len(self.grid))
        workload, profile = divmod(job, len(self.profiles))
        case = Case(workload=self.workloads[workload], profile=self.profiles[profile])
        return case, self.grid.point(point)

    def head(self, index: int) -> Row:
        """Return the first columns of a row, which do not depend on its plan."""
        return _make_head(self.identity, self.grid, *self._find_point(index))

    def check(self) -> None:
        """Raise InputError if a value, or the combination at a corner of the grid, is not accepted."""
        ends = [_find_ends(values) for values in self.grid.values]
        for first in range(0, self.total, len(self.grid)):
            case, point = self._place(first)
            varied = (
                (*point[:place], value, *point[place + 1 :])
                for place, values in enumerate(self.grid.values)
                for value in values[:_MOST_CHECKED]
            )
            for values in chain(varied, islice(product(*ends), _MOST_CORNERS)):
                _ask(self.grid, self.goal, case, values)


def _find_ends(values: Sequence[Value]) -> list[Value]:
    """Return the least and the largest of the values that have a bound, or None if no value has one."""
    bounded = [value for value in values if value is not None]
    return [min(bounded), max(bounded)] if bounded else [None]


def make_sweep(
    over: Mapping[str, object] | Iterable[str],
    *,
    workloads: AnyWorkload | Iterable[AnyWorkload],
    profiles: AnyProfile | Iterable[AnyProfile],
    shard: tuple[int, int] | None = None,
    command: str = "",  # noqa: ARG001 - every use case takes it, and rows have no provenance
    **wishes: Unpack[Wishes],
) -> Sweep:
    """Make and check a sweep without planning rows. The arguments are as in ``sweep``. Raises InputError.

    ``shard`` is the number of a part, from 1, and how many parts there are.
    """
    grid = make_grid(over)
    _check_budgets(grid, wishes)
    goal = make_goal(unless_named="closed", **wishes)
    sweep = Sweep(
        goal=goal,
        left_out=list_left_out(wishes.get("strategies"), goal),
        workloads=list_several(workloads, Workload, "workloads"),
        profiles=tuple(
            replace_memory(profile, wishes) for profile in list_several(profiles, HardwareProfile, "profiles")
        ),
        grid=grid,
    )
    total = _count_rows(sweep, parts=shard[1] if shard else 1)
    if shard is not None:
        sweep = replace(sweep, shard=Shard(number=shard[0], count=shard[1], total=total))
    sweep.check()
    return sweep


def _count_rows(sweep: Sweep, *, parts: int) -> int:
    """Return the number of rows of a sweep. Raises InputError if they are too many or too few for the parts."""
    axes = {axis.name: len(values) for axis, values in zip(sweep.grid.axes, sweep.grid.values, strict=True)}
    counts = {"workloads": len(sweep.workloads), "profiles": len(sweep.profiles), **axes}
    total = math.prod(counts.values())
    if total > MOST_POINTS * parts:
        product = " x ".join(f"{count:,} {name}" for name, count in counts.items() if count > 1)
        raise InputError(
            f"{product} = {total:,} rows are too many",
            field="over",
            value=total,
            accepted=f"up to {MOST_POINTS:,} in one file",
        )
    if parts > total:
        raise InputError(
            f"{parts:,} parts of {total:,} rows would be empty ones",
            field="shard",
            value=parts,
            accepted=f"up to {total:,} parts",
        )
    return total


def list_several(given: Any, kind: type[Any], field: str) -> tuple[Any, ...]:
    """Return one or more workloads or profiles as a tuple; their names must differ. Raises InputError."""
    read = read_workload if kind is Workload else read_profile
    is_several = isinstance(given, Iterable) and not isinstance(given, kind | str)
    several = tuple(read(value, name=field) for value in (given if is_several else (given,)))
    if not several:
        raise InputError("has none", field=field, accepted="one or more")
    for i, file in enumerate(several):
        if file.name in [other.name for other in several[:i]]:
            raise InputError(
                f"{file.name!r} is given twice", field=field, value=file.name, accepted="names once"
            )
    return several


def _check_budgets(grid: Grid, wishes: Wishes) -> None:
    for axis in grid.axes:
        for name in MEMORY_WISHES:
            if wishes.get(name) is not None and f"profile.{name}" in axis.sets:
                raise InputError(
                    "is both varied by the grid and set to one value",
                    field=name,
                    value=wishes.get(name),
                    accepted=f"either the axis {axis.name} or the budget",
                )


def iterate_rows(
    sweep: Sweep, *, start: int = 0, jobs: int | None = 1, executor: Executor | None = None
) -> Iterator[list[Row]]:
    """Yield lists of rows in grid order, from row ``start``.

    The executor plans the rows. Without one, ``jobs`` processes of this machine do, None for one on each core.
    They start after a quarter of a second of work in this process, since they do not pay for less. With one
    job, this process plans all rows. Raises CkptplanError if a block fails three times.
    """
    cores = count_cores() if jobs is None else jobs
    done, began = start, time.perf_counter()
    # The seconds that a row took when last measured; None before that.
    per_row: float | None = None
    while (
        executor is None and done < len(sweep) and (cores < 2 or time.perf_counter() - began < _ALONE_SECONDS)
    ):
        yield sweep.block(done, done + 1).plan()[0]
        done += 1
        per_row = (time.perf_counter() - began) / (done - start)
    if done == len(sweep):
        return
    with nullcontext(executor) if executor is not None else WorkerPool(cores) as pool:
        workers = count_workers(pool)

        def cut() -> Iterator[Block]:
            """Yield blocks of about a second. The last ones are smaller, so that all workers end together."""
            start = done
            while (left := len(sweep) - start) > 0:
                most = 1 if per_row is None else min(_MOST_ROWS, int(_BLOCK_SECONDS / max(per_row, 1e-9)))
                stop = start + max(1, min(most, left // (2 * workers)))
                yield sweep.block(start, stop)
                start = stop

        for rows, seconds in map_in_order(Block.plan, cut(), executor=pool):
            per_row = seconds / len(rows)
            yield rows


class SweepResult(DrawnOnAxes, Iterator[Row]):
    """The rows of a sweep, an iterator that plans each row when it is asked for.

    ``plot`` plans the rows that are still missing, and iteration yields them afterwards. Each row is yielded
    once. After that, the result keeps only the numbers of the row that a picture needs.

    Arguments:
        sweep: the grid, and everything else that determines the rows.
        planned: lists of rows in grid order. Without it, only ``add`` adds rows.
    """

    def __init__(self, sweep: Sweep, planned: Iterator[list[Row]] | None = None) -> None:
        self.sweep = sweep
        #: The names of strategies, to which ``best`` refers.
        self.names = tuple(all_strategies())
        #: For each planned row: overhead, or local bytes if memory is the objective; NaN if nothing fits.
        self.values = array("d")
        #: For each planned row: the index of the best strategy in ``names``, -1 if nothing fits.
        self.best = array("h")
        self._planned = iter(()) if planned is None else planned
        self._waiting: deque[Row] = deque()

    def __repr__(self) -> str:
        """Return the number of rows, the axes and the number of planned rows in one line."""
        rows = format_things(self.sweep.total, "row")
        names = ", ".join(axis.name for axis in self.sweep.grid.axes)
        return f"<SweepResult of {rows} over {names}, {len(self.values):,} of them planned>"

    @property
    def quantity(self) -> str:
        """The column that ``values`` holds."""
        return "local_peak_bytes" if self.sweep.goal.objective == "memory" else "overhead"

    def __next__(self) -> Row:
        while not self._waiting:
            self._waiting.extend(self.add(next(self._planned)))
        return self._waiting.popleft()

    def add(self, rows: Iterable[Row]) -> Iterable[Row]:
        """Collect the numbers of the next rows, and return the rows."""
        for row in rows:
            self.values.append(row[self.quantity] if row["fits"] else math.nan)
            self.best.append(self.names.index(row["strategy"]) if row["fits"] else -1)
        return rows

    def finish(self) -> None:
        """Plan all rows that are still missing."""
        for rows in self._planned:
            self._waiting.extend(self.add(rows))


def sweep(
    over: Mapping[str, object] | Iterable[str],
    *,
    workloads: AnyWorkload | Iterable[AnyWorkload],
    profiles: AnyProfile | Iterable[AnyProfile],
    strategies: Iterable[str] | str | None = None,
    objective: str = "time",
    model: str = "exact",
    max_overhead: float | str | None = None,
    local_bytes: int | str | None = None,
    headroom: float | str | None = None,
    remote_bytes: int | str | None = None,
    cache: str | None = None,
    effort: str = "quick",
    jobs: int | None = 1,
    executor: Executor | None = None,
) -> SweepResult:
    """Return the best plan at every point of a grid: an iterator over dicts by column (docs/sweep.md).

    Each row is planned when it is requested. ``plot`` draws lines over one axis, or a heat map over two.

    ``over`` maps inputs to values, as ``{"T": "256:65536:x2", "batch": [30, 60]}``, or lists texts such as
    ``"T=256:65536:x2"``. ``workloads`` and ``profiles`` are one or several, or their names, or paths of their
    files. ``strategies`` (None means 'closed'), ``objective``, ``model``, ``max_overhead``, ``local_bytes``,
    ``headroom``, ``remote_bytes`` and ``effort`` are as in ``optimize``.

    ``jobs`` is the number of processes, None for all cores; with several, a script needs
    ``if __name__ == "__main__":``, as every script that starts processes does. ``executor`` plans the rows in
    place of these: any of ``concurrent.futures``, Dask's, mpi4py's or loky's; it is not shut down.

    Raises InputError before the first row for unknown inputs, wrong values, and a grid of more than 10 million
    rows; and CkptplanError, which names the rows, if their worker ends three times.
    """
    prepared = make_sweep(
        over,
        workloads=workloads,
        profiles=profiles,
        strategies=strategies,
        objective=objective,
        model=model,
        max_overhead=max_overhead,
        local_bytes=local_bytes,
        headroom=headroom,
        remote_bytes=remote_bytes,
        cache=cache,
        effort=effort,
    )
    return SweepResult(prepared, iterate_rows(prepared, jobs=jobs, executor=executor))
