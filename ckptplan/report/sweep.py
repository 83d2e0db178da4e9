"""Describes a sweep: its first rows as a table, and the data of its picture (``plots.sweep``)."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from itertools import product
from typing import Any

import numpy as np
import numpy.typing as npt

from ckptplan.errors import InputError
from ckptplan.model.prediction import BasisEntry
from ckptplan.report import fields
from ckptplan.report.blocks import Block, Field, Paragraph, Table
from ckptplan.report.formats import View
from ckptplan.report.picture import Chart
from ckptplan.studies.axes import Axis, Value
from ckptplan.studies.sweep import Sweep, SweepResult
from ckptplan.units import format_bytes, format_count, format_percent
from ckptplan.wording import Argument

#: The number of rows shown on a console, and with a picture or on a page. Other rows are only counted.
_MOST_ROWS, MOST_IN_TABLE = 40, 1_000


def _describe_rows(result: SweepResult, rows: Sequence[Mapping[str, Any]]) -> Iterator[Block]:
    """Yield the first rows, the number of other rows, and how often each strategy is best."""
    sweep, count = result.sweep, len(result.best)
    # The title names a single workload or profile. Several ones get a column.
    jobs = [Field(name) for name in ("workload", "profile") if len(getattr(sweep, f"{name}s")) > 1]
    axes = [
        Field(axis.column, axis.name, right=True, show=partial(_show_value, axis)) for axis in sweep.grid.axes
    ]
    yield Table.of((*jobs, *axes, *fields.PLAN), rows, style=lambda row: "" if row["fits"] else "faint")
    if count > len(rows):
        hidden = f"{format_count(count - len(rows))} more rows"
        yield Paragraph(f"{hidden}; {Argument('output', 'FILE.csv')} (or .jsonl, .parquet) writes all")
    best = Counter(result.names[place] if place >= 0 else "nothing fits" for place in result.best)
    shares = ", ".join(f"{name} {format_count(count)}" for name, count in best.most_common())
    yield Paragraph(f"best of {format_count(count)}: {shares}")
    if sweep.left_out:
        names, reasons = ", ".join(sweep.left_out), "; ".join(dict.fromkeys(sweep.left_out.values()))
        hidden = f"{Argument('strategies', 'all')} compares every strategy, slowly"
        yield Paragraph(f"closed forms are compared, without {names}: {reasons}; {hidden}", style="faint")


def _list_basis(sweep: Sweep) -> tuple[BasisEntry, ...]:
    """Return the inputs of all jobs of a sweep, each once, before the grid changes them."""
    jobs = product(sweep.workloads, sweep.profiles)
    entries = (entry for job in jobs for entry in fields.list_basis(*job, sweep.goal))
    return tuple({(entry.field, entry.text): entry for entry in entries}.values())


def _show_value(axis: Axis, row: Mapping[str, Any]) -> str:
    return axis.kind.show(row[axis.column])


#: The most jobs (workloads on profiles) and points that a picture can show.
_MOST_JOBS, _MOST_POINTS = 6, 1_000_000


def check_drawn(sweep: Sweep) -> None:
    """Raise InputError if a picture cannot show a sweep."""
    varied, jobs = len(list_varied(sweep)), len(sweep.workloads) * len(sweep.profiles)
    if not 1 <= varied <= 2:
        shown, accepted = f"one axis or two, and {varied} vary", "one input or two with several values"
    elif jobs > _MOST_JOBS:
        shown = f"up to {_MOST_JOBS} workloads on profiles, and the sweep has {jobs}"
        accepted = "fewer workloads or profiles"
    elif len(sweep) > _MOST_POINTS:
        shown, accepted = f"up to {_MOST_POINTS:,} points, and the sweep has {len(sweep):,}", "a coarser grid"
    else:
        return
    raise InputError(f"a picture shows {shown}", field="plot", accepted=accepted)


def list_varied(sweep: Sweep) -> list[tuple[Axis, tuple[Value, ...]]]:
    """Return the axes with several values, and their values."""
    axes = zip(sweep.grid.axes, sweep.grid.values, strict=True)
    return [(axis, tuple(values)) for axis, values in axes if len(values) > 1]


def place_values(values: tuple[Value, ...]) -> list[float]:
    """Return the positions of values on an axis: the values, or their indices if one is unbounded."""
    if None in values:
        return [float(place) for place in range(len(values))]
    return [float(value or 0) for value in values]


@dataclass(frozen=True, kw_only=True)
class Plane:
    """The results of a workload on a profile, as arrays of the shape of the axes that vary.

    ``best`` has indices of the result's ``names``. Where nothing fits, ``values`` are NaN and ``best`` is -1.
    """

    name: str
    values: npt.NDArray[np.float64]
    best: npt.NDArray[np.int16]

    @property
    def fits(self) -> bool:
        """Whether anything fits anywhere."""
        return bool((self.best >= 0).any())

    def list_changes(self, most: int) -> list[int]:
        """Return where stretches with one best strategy begin, for the ``most`` longest ones along an axis."""
        starts = np.concatenate(([0], np.flatnonzero(np.diff(self.best)) + 1))
        longest = np.argsort(-np.diff([*starts, len(self.best)]), kind="stable")
        kept = [int(starts[place]) for place in longest if self.best[starts[place]] >= 0]
        return sorted(kept[:most])


def list_planes(result: SweepResult) -> list[Plane]:
    """Return the results of each workload on each profile, named by the parts that differ. Needs all rows."""
    sweep = result.sweep
    jobs = list(product(sweep.workloads, sweep.profiles))
    shape = (len(jobs), *(len(values) for _, values in list_varied(sweep)))
    values, best = (np.array(column).reshape(shape) for column in (result.values, result.best))
    several = len(sweep.workloads) > 1, len(sweep.profiles) > 1
    names = [[part.name for part, differs in zip(job, several, strict=True) if differs] for job in jobs]
    return [
        Plane(name=" on ".join(name), values=values[place], best=best[place])
        for place, name in enumerate(names)
    ]


def describe_point(result: SweepResult, plane: Plane, place: Sequence[int]) -> str:
    """Return a text with the inputs of a point of a plane, and the best strategy there with its value."""
    varied = zip(list_varied(result.sweep), place, strict=True)
    inputs = [f"{axis.name}: {axis.kind.show(values[index])}" for (axis, values), index in varied]
    best, show = plane.best[tuple(place)], format_percent if result.quantity == "overhead" else format_bytes
    best_text = (
        f"{result.names[best]}: {show(float(plane.values[tuple(place)]))}" if best >= 0 else "nothing fits"
    )
    return "\n".join([*filter(None, [plane.name]), *inputs, best_text])


def find_limits(result: SweepResult) -> tuple[float, float, bool]:
    """Return the least value, the largest one that is drawn, and whether values above +100 % are cut off."""
    values = np.array(result.values)[np.array(result.best) >= 0]
    if not len(values):
        return 0.0, 0.0, False
    low, high = float(values.min()), float(values.max())
    is_cut = result.quantity == "overhead" and low < 1 < high
    return low, 1.0 if is_cut else high, is_cut


def title_sweep(sweep: Sweep) -> tuple[str, str]:
    """Return two lines of a title: quantity and axes, then workloads, profiles and fixed inputs."""
    quantity = "Least local memory" if sweep.goal.objective == "memory" else "Time of the best plan"
    names = " and ".join(axis.name for axis, _ in list_varied(sweep))
    axes = list(zip(sweep.grid.axes, sweep.grid.values, strict=True))
    fixed = [f"{axis.name} = {axis.kind.show(values[0])}" for axis, values in axes if len(values) == 1]
    if all(axis.name != "T" for axis, _ in axes):
        lengths = dict.fromkeys(format_count(workload.steps) for workload in sweep.workloads)
        fixed.insert(0, f"T = {' and '.join(lengths)}")
    workloads, profiles = (
        ", ".join(dict.fromkeys(part.name for part in several)) for several in (sweep.workloads, sweep.profiles)
    )
    return f"{quantity} by {names}", ", ".join([f"{workloads} on {profiles}", *fixed])


def view_sweep(result: SweepResult, rows: Sequence[Mapping[str, Any]], *, is_drawn: bool) -> View:
    """Return the view of a sweep: a table of its first rows, and a picture of all if it ``is_drawn``."""
    title, job = title_sweep(result.sweep)
    caption = "Where nothing fits, the picture is hatched; names are those of the best strategies."
    return View(
        kind="sweep",
        heading="Sweep",
        title=job,
        memory=result.sweep.profiles[0].local_bytes,
        blocks=lambda: _describe_rows(result, rows[: MOST_IN_TABLE if is_drawn else _MOST_ROWS]),
        basis=lambda: _list_basis(result.sweep),
        chart=lambda: Chart(result=result, caption=f"{title}. {caption}") if is_drawn else None,
    )
