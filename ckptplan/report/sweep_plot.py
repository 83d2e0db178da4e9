"""Collects what a picture of a sweep shows: times or memory, and which strategy is best where."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np

from ckptplan.errors import InputError
from ckptplan.strategies.registry import all_strategies
from ckptplan.studies.axes import Axis, Value
from ckptplan.studies.sweep import Sweep
from ckptplan.units import format_count

#: More workloads and profiles, or points, than a picture can show.
_MOST_JOBS, MOST_POINTS = 6, 1_000_000


@dataclass(frozen=True, kw_only=True)
class Plane:
    """What a workload on a machine costs: arrays of the shape of the axes that vary.

    ``added`` is the time over base's, or the local memory in bytes, NaN where nothing fits; ``best`` is the
    place of the best strategy in ``names``, -1 where nothing fits.
    """

    name: str
    added: Any
    best: Any


class SweepPicture:
    """Collects rows of a sweep (``add``), in their order, for ``draw_sweep``."""

    def __init__(self, sweep: Sweep, *, most_points: int = MOST_POINTS, place: str = "picture") -> None:
        """Raise InputError for a sweep that no picture of two dimensions shows.

        ``place`` is what the message calls it.
        """
        self.sweep = sweep
        self.names = tuple(all_strategies())
        self.varied = [i for i, values in enumerate(sweep.grid.values) if len(values) > 1]
        self.jobs = [self.name_job(one.name, other.name) for one in sweep.workloads for other in sweep.profiles]
        _check(len(self.varied), jobs=len(self.jobs), points=len(sweep), most=most_points, place=place)
        self.quantity = "local_peak_bytes" if sweep.goal.objective == "memory" else "overhead"
        self._added = np.full(len(sweep), np.nan)
        self._best = np.full(len(sweep), -1)
        self._seen = np.zeros(len(sweep), dtype=bool)

    def name_job(self, workload: str, profile: str) -> str:
        """Return the name of a workload on a machine: what differs, as the title names what all share."""
        workloads, profiles = len(self.sweep.workloads), len(self.sweep.profiles)
        if workloads > 1 and profiles > 1:
            return f"{workload} on {profile}"
        return workload if workloads > 1 else profile

    @property
    def missing(self) -> int:
        """How many rows were not added."""
        return int((~self._seen).sum())

    def add(self, rows: Iterable[Mapping[str, Any]], *, start: int) -> None:
        """Take some rows, of which the first has the number ``start``."""
        for index, row in enumerate(rows, start):
            self._seen[index] = True
            if row["fits"]:
                self._added[index] = row[self.quantity]
                self._best[index] = self.names.index(row["strategy"])

    def axis(self, number: int) -> tuple[Axis, tuple[Value, ...]]:
        """Return an axis that varies and its values."""
        place = self.varied[number]
        return self.sweep.grid.axes[place], self.sweep.grid.values[place]

    def planes(self) -> list[Plane]:
        """Return what was collected, a plane for each workload on each profile."""
        shape = (len(self.jobs), *(len(self.sweep.grid.values[place]) for place in self.varied))
        added, best = self._added.reshape(shape), self._best.reshape(shape)
        return [Plane(name=name, added=added[i], best=best[i]) for i, name in enumerate(self.jobs)]

    def title(self) -> list[str]:
        """Return what is drawn, of which workload on which machine, at which T."""
        what = (
            "Least local memory" if self.quantity == "local_peak_bytes" else "Time of the best plan over base's"
        )
        names = [axis.name for axis, _ in (self.axis(i) for i in range(len(self.varied)))]
        fixed = [
            f"{axis.name} = {axis.kind.show(values[0])}"
            for axis, values in zip(self.sweep.grid.axes, self.sweep.grid.values, strict=True)
            if len(values) == 1
        ]
        if all(axis.name != "T" for axis in self.sweep.grid.axes):
            lengths = dict.fromkeys(format_count(one.steps) for one in self.sweep.workloads)
            fixed.insert(0, f"T = {' and '.join(lengths)}")
        workloads, profiles = (
            ", ".join(dict.fromkeys(one.name for one in some))
            for some in (self.sweep.workloads, self.sweep.profiles)
        )
        return [f"{what}, by {' and '.join(names)}", ", ".join([f"{workloads} on {profiles}", *fixed])]


def _check(varied: int, *, jobs: int, points: int, most: int, place: str) -> None:
    if not 1 <= varied <= 2:
        raise InputError(
            f"a {place} shows one axis or two, and {varied} vary",
            field="plot",
            accepted="one input or two with several values",
        )
    if jobs > _MOST_JOBS:
        raise InputError(
            f"a {place} shows up to {_MOST_JOBS} workloads on profiles, and the sweep has {jobs}",
            field="plot",
            accepted="fewer workloads or profiles",
        )
    if points > most:
        raise InputError(
            f"a {place} shows up to {most:,} points, and the sweep has {points:,}",
            field="plot",
            accepted="a coarser grid",
        )
