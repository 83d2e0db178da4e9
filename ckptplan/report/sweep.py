"""A sweep for people: its first rows as a table, lines over one axis, or a heat map over two.

Markers on lines and areas of a map name the best strategies. ``SweepPicture`` says what is drawn, in
pictures and on pages.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import product
from math import log
from typing import Any

import numpy as np

from ckptplan.errors import InputError
from ckptplan.model.prediction import BasisEntry
from ckptplan.report import fields, style
from ckptplan.report.basis import list_basis
from ckptplan.report.blocks import Block, Cell, Chart, Field, Paragraph, Section, Table
from ckptplan.report.charts import (
    LINEAR,
    TIMES,
    Marks,
    Plot,
    Scale,
    Spec,
    layer_plot,
    scale_bytes,
    scale_shares,
)
from ckptplan.report.formats import View
from ckptplan.report.infeasible import LIMITS
from ckptplan.report.picture import Picture
from ckptplan.report.style import PAGE, Size
from ckptplan.strategies.registry import all_strategies
from ckptplan.studies.sweep import Sweep
from ckptplan.units import format_count, format_share
from ckptplan.wording import Argument

#: Rows shown on a console, and on a page; the others are only counted.
MOST_ROWS, _MOST_IN_TABLE = 40, 1_000


class Summary:
    """Collects rows (``add``): keeps the first ones, counts all."""

    def __init__(self, sweep: Sweep, *, most_rows: int = MOST_ROWS) -> None:
        self.sweep = sweep
        self.most_rows = most_rows
        self.shown: list[Mapping[str, Any]] = []
        self.best: Counter[str] = Counter()
        self.count = 0

    def add(self, rows: Iterable[Mapping[str, Any]]) -> None:
        """Take some rows."""
        for row in rows:
            self.count += 1
            self.best[row["strategy"] or "nothing fits"] += 1
            if len(self.shown) < self.most_rows:
                self.shown.append(row)

    def blocks(self) -> Iterator[Block]:
        """Yield the rows kept, the number left out, and how often each strategy is best."""
        sweep = self.sweep
        # A single workload or profile is named in the title, several have a column.
        several = {name: len(getattr(sweep, f"{name}s")) > 1 for name in ("workload", "profile")}
        single = [getattr(sweep, f"{name}s")[0].name for name, column in several.items() if not column]
        if single:
            yield Paragraph("", head=" on ".join(single))
        jobs = [Field(name) for name, column in several.items() if column]
        axes = [
            Field(axis.column, axis.name, axis.name.replace("-", "\n"), right=True) for axis in sweep.grid.axes
        ]
        plan = (
            Field("strategy", "best"),
            fields.PARAMETERS.ranked(1),
            fields.TIME,
            fields.OVER_BASE.ranked(3),
            fields.LOCAL.ranked(2),
        )
        yield Table.of((*jobs, *axes, *plan), map(self._tell, self.shown))
        if self.count > len(self.shown):
            more = f"{format_count(self.count - len(self.shown))} more rows"
            yield Paragraph(f"{more}; {Argument('output', 'FILE.csv')} (or .jsonl, .parquet) writes all")
        shares = ", ".join(f"{name} {format_count(count)}" for name, count in self.best.most_common())
        yield Paragraph(f"best of {format_count(self.count)}: {shares}")
        yield from self._list_headrooms()

    def _list_headrooms(self) -> Iterator[Block]:
        """Yield what is taken off the local memories of an axis, which a command's option does not lose."""
        if any(axis.name == "local-bytes" for axis in self.sweep.grid.axes):
            for profile in self.sweep.profiles:
                if profile.headroom:
                    less = f"{format_share(profile.headroom)} headroom of {profile.name}"
                    yield Paragraph(f"local-bytes: plans leave {less} free", style="faint")

    def list_basis(self) -> tuple[BasisEntry, ...]:
        """Return the inputs of all jobs of the sweep, each once, as they are before the grid changes them."""
        jobs = product(self.sweep.workloads, self.sweep.profiles)
        found = (entry for job in jobs for entry in list_basis(*job, self.sweep.goal))
        return tuple({(entry.field, entry.text): entry for entry in found}.values())

    def _tell(self, row: Mapping[str, Any]) -> dict[str, Any]:
        """Return what the table says of a row."""
        axes = {axis.column: axis.kind.show(row[axis.column]) for axis in self.sweep.grid.axes}
        if row["fits"]:
            return {**row, **axes, "parameters": fields.make_parameters_cell(fields.format_cells(row))}
        words = LIMITS[row["binding"]]
        needs = f"{words.needs_in_cell} {words.short(row['need'])} of {words.short(row['have'])}"
        reason = Cell(_format_reason(row), short=needs, style="faint")
        return {**row, **axes, "strategy": Cell("none", style="faint"), "parameters": reason}


def _format_reason(row: Mapping[str, Any]) -> str:
    """Return why nothing fits at a row: the limit that binds, what is needed, and what there is."""
    words = LIMITS[row["binding"]]
    return f"{words.name}: {words.needs_in_cell} {words.short(row['need'])}, has {words.short(row['have'])}"


#: An axis is logarithmic from this ratio of the largest value to the least.
_WIDE = 8
#: The scale of shares is wide from this one on.
_MUCH = 1.0
#: Borders between strategies, and where nothing fits, are drawn up to this many cells.
_BORDERS = 40_000


#: More workloads and profiles, or points, than a picture can show; on a page, more would take over 5 MB.
_MOST_JOBS, _MOST_POINTS, _MOST_ON_PAGE = 6, 1_000_000, 10_000


@dataclass(frozen=True, kw_only=True)
class Plane:
    """What a workload on a machine costs: arrays of the shape of the axes that vary.

    ``added`` is the time over base's, or the local memory in bytes, NaN where nothing fits; ``best`` is the
    place of the best strategy in ``names``, -1 where nothing fits.
    """

    name: str
    added: Any
    best: Any

    def middles(self) -> dict[int, tuple[int, int]]:
        """Return a cell, as column and row, of the region of each strategy, the nearest to its middle."""
        found = {}
        for place in np.unique(self.best).tolist():
            cells = np.argwhere(self.best == place)
            row, column = cells[np.argmin(((cells - cells.mean(axis=0)) ** 2).sum(axis=1))].tolist()
            found[place] = (column, row)
        return found

    def borders(self) -> list[tuple[tuple[float, float], tuple[float, float]]]:
        """Return the lines between the regions of strategies, none in a map of very many cells."""
        if self.best.size > _BORDERS:
            return []
        up = np.argwhere(np.diff(self.best, axis=1)).tolist()
        across = np.argwhere(np.diff(self.best, axis=0)).tolist()
        return [
            *(((column + 0.5, row - 0.5), (column + 0.5, row + 0.5)) for row, column in up),
            *(((column - 0.5, row + 0.5), (column + 0.5, row + 0.5)) for row, column in across),
        ]


def view_sweep(picture: SweepPicture) -> View:
    """Return the picture and the page of a sweep, all of whose rows were added: lines or maps, and a table."""
    what, job = picture.title()
    return View(
        kind="sweep",
        basis=picture.list_basis,
        title=f"Sweep: {job}",
        lede=f"{what}.",
        sections=lambda: (
            Section("sweep", "The best plans", chart_sweep(picture)),
            Section("numbers", "Numbers", picture.blocks()),
        ),
        draw=lambda size: draw_sweep(picture, size),
    )


class SweepPicture(Summary):
    """Collects all rows of a sweep (``add``) for a picture, or for a page, which tells each."""

    def __init__(self, sweep: Sweep, *, page: bool = False) -> None:
        """Raise InputError for a sweep that no picture of two dimensions shows."""
        super().__init__(sweep, most_rows=_MOST_IN_TABLE)
        self.names = tuple(all_strategies())
        self.varied = [i for i, values in enumerate(sweep.grid.values) if len(values) > 1]
        self.jobs = [self.name_job(one.name, other.name) for one in sweep.workloads for other in sweep.profiles]
        _check(len(self.varied), jobs=len(self.jobs), points=len(sweep), page=page)
        self.quantity = "local_peak_bytes" if sweep.goal.objective == "memory" else "overhead"
        self._added = np.full(len(sweep), np.nan)
        self._best = np.full(len(sweep), -1)
        self.page = page
        self._rows: list[Mapping[str, Any]] = []

    def name_job(self, workload: str, profile: str) -> str:
        """Return the name of a workload on a machine: what differs, as the title names what all share."""
        names = ((workload, self.sweep.workloads), (profile, self.sweep.profiles))
        return " on ".join(name for name, several in names if len(several) > 1) or profile

    @property
    def is_map(self) -> bool:
        """Whether two inputs vary."""
        return len(self.varied) > 1

    def add(self, rows: Iterable[Mapping[str, Any]]) -> None:
        """Take the next rows."""
        rows = list(rows)
        for number, row in enumerate(rows, start=self.count):
            if row["fits"]:
                self._added[number] = row[self.quantity]
                self._best[number] = self.names.index(row["strategy"])
        if self.page:
            self._rows += rows
        super().add(rows)

    def describe(self, job: int, place: int) -> Spec:
        """Return what a page tells of a row of a workload on a machine; a picture tells nothing."""
        if not self.page:
            return {}
        row = self._rows[job * (len(self.sweep) // len(self.jobs)) + place]
        shown = {axis.column: axis.kind.show(row[axis.column]) for axis in self.sweep.grid.axes}
        if len(self.jobs) > 1:
            shown["job"] = self.jobs[job]
        if not row["fits"]:
            return {**shown, "why": _format_reason(row)}
        return {**shown, **fields.label_row(row)}

    def titles(self, *, fits: bool) -> Mapping[str, str]:
        """Return the titles of what a page tells of a row."""
        names = {axis.column: axis.name for axis in self.sweep.grid.axes}
        names |= {"job": "job"} if len(self.jobs) > 1 else {}
        return {**names, **(fields.TOLD if fits else {"why": "nothing fits"})}

    def list_without(self) -> list[str]:
        """Return the workloads on machines that nothing fits at all, of several."""
        planes = self.planes()
        return [one.name for one in planes if len(planes) > 1 and not np.isfinite(one.added).any()]

    def places(self) -> list[float]:
        """Return where the values of an input stand on the axis of lines.

        At their logarithms if they span much, at themselves, or, if some are no numbers, side by side.
        """
        values = self.sweep.grid.values[self.varied[0]]
        numbers = [value for value in values if value is not None]
        if len(set(numbers)) < len(values):
            return [float(place) for place in range(len(values))]
        wide = min(numbers) > 0 and max(numbers) / min(numbers) >= _WIDE
        return [log(number) if wide else float(number) for number in numbers]

    def scale_input(self, number: int) -> Scale:
        """Return the axis of an input that varies: of a map, where its values stand one beside the other."""
        axis, values = self.sweep.grid.axes[self.varied[number]], self.sweep.grid.values[self.varied[number]]
        places = [float(place) for place in range(len(values))] if self.is_map else self.places()
        room = 0.5 if self.is_map else 0.04 * (max(places) - min(places)) or 1.0
        ticks = dict(sorted(zip(places, map(axis.kind.show, values), strict=True)))
        return Scale(title=axis.name, low=min(places) - room, high=max(places) + room, ticks=ticks)

    def scale_quantity(self) -> Scale:
        """Return the axis of lines; of maps, the scale of colours."""
        found = self._added[np.isfinite(self._added)]
        low, high = (float(found.min()), float(found.max())) if len(found) else (0.0, 0.0)
        shares = self.quantity == "overhead"
        if self.is_map:
            high = max(high, low + (0.001 if shares else 1.0))
        else:
            high = 1.1 * max(high, 0.01 if shares else 1.0)
            low = min(0.0, low) - 0.03 * (LINEAR if shares and high > _MUCH else high)
        if not shares:
            return scale_bytes("peak local memory", low, high)
        return scale_shares("time over base's", low, high, wide=high > _MUCH)

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
        names = [self.sweep.grid.axes[place].name for place in self.varied]
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


def _check(varied: int, *, jobs: int, points: int, page: bool) -> None:
    place, field, most = ("page", "html", _MOST_ON_PAGE) if page else ("picture", "plot", _MOST_POINTS)
    for ok, what, has, accepted in (
        (1 <= varied <= 2, "one axis or two", f"{varied} vary", "one input or two with several values"),
        (
            jobs <= _MOST_JOBS,
            f"up to {_MOST_JOBS} workloads on profiles",
            f"the sweep has {jobs}",
            "fewer workloads or profiles",
        ),
        (points <= most, f"up to {most:,} points", f"the sweep has {points:,}", "a coarser grid"),
    ):
        if not ok:
            raise InputError(f"a {place} shows {what}, and {has}", field=field, accepted=accepted)


#: Markers on a line of a picture at most, and points that it goes through.
_MARKERS, _POINTS = 40, 5_000


def _make_plots(picture: SweepPicture) -> list[Plot]:
    """Return the lines of a sweep over one axis, or a map for each workload on each machine."""
    if not picture.is_map:
        return [Plot(x=picture.scale_input(0), y=picture.scale_quantity(), marks=_mark_lines(picture))]
    return [
        Plot(
            x=picture.scale_input(1),
            y=picture.scale_input(0),
            marks=[*_mark_cells(picture, plane, number=number), *_mark_regions(picture, plane)],
            title=plane.name if len(picture.jobs) > 1 else "",
        )
        for number, plane in enumerate(picture.planes())
    ]


def draw_sweep(picture: SweepPicture, size: Size = PAGE) -> Picture:
    """Return the picture: lines, or a map for each workload on each machine."""
    plots, title, narrow = _make_plots(picture), picture.title(), size.width < PAGE.width
    height = 1.7
    if not picture.is_map:
        height, without = 1.6 if narrow else 2.4, picture.list_without()
        title += [f"nothing fits: {', '.join(without)}"] if without else []
        title += [f"{TIMES} nothing fits"] if any(one.kind == "cross" for one in plots[0].marks) else []
    columns = 1 if narrow else 2 if size.height is None else 3
    rows = [plots[start : start + columns] for start in range(0, len(plots), columns)]
    return Picture(title=title, rows=rows, heights=[height] * len(rows), size=size)


def _mark_lines(picture: SweepPicture) -> list[Marks]:
    """Return the lines of a sweep over one axis, the best strategies on them, and where nothing fits."""
    places, without = np.array(picture.places()), picture.list_without()
    order = np.argsort(places)
    lines, crosses = [], []
    best: dict[int, list[Spec]] = defaultdict(list)
    for number, plane in enumerate(picture.planes()):
        line = order[np.unique(np.linspace(0, len(order) - 1, min(len(order), _POINTS)).astype(int))]
        added = zip(places[line].tolist(), plane.added[line].tolist(), strict=True)
        rows = [{"x": x, "y": y if np.isfinite(y) else None} for x, y in added]
        label = plane.name if len(picture.jobs) > 1 and plane.name not in without else ""
        lines.append(Marks(kind="line", rows=rows, colour=style.GREY, dashes=style.DASHES[number], label=label))
        nothing = []
        for place in order[_choose_marked(plane.best[order], every=picture.page)].tolist():
            point = {"x": float(places[place]), **picture.describe(number, place)}
            if plane.best[place] < 0:
                nothing.append(point)
            else:
                best[int(plane.best[place])].append({**point, "y": float(plane.added[place])})
        # In a row for each line. Where nothing fits at all, the title says so.
        if nothing and (plane.name not in without or len(picture.jobs) == 1):
            form: Any = {"label": "nothing fits", "told": picture.titles(fits=False)}
            crosses.append(Marks(kind="cross", rows=nothing, above=number, **form))
    marks = [_mark_best(picture, place, rows, told=picture.titles(fits=True)) for place, rows in best.items()]
    return [*lines, *crosses, *marks]


def _choose_marked(best: Any, *, every: bool) -> Any:
    """Return the places of points with a marker: all, as on a page, or some, and where best changes."""
    if every:
        return np.arange(len(best))
    marked = np.unique(np.linspace(0, len(best) - 1, min(len(best), _MARKERS)).astype(int))
    changes = np.flatnonzero(np.diff(best))
    if len(changes) > _MARKERS:
        return marked
    return np.unique(np.concatenate([marked, changes, changes + 1]))


def _mark_best(
    picture: SweepPicture,
    place: int,
    rows: Sequence[Spec],
    *,
    size: float = 4,
    told: Mapping[str, str] | None = None,
) -> Marks:
    """Return the marker of a strategy at points where it is best."""
    name = picture.names[place]
    look = style.look_of(name)
    form: Any = {"colour": look.colour, "marker": look.marker, "label": name, "told": told or {}}
    return Marks(kind="point", rows=rows, size=size, **form)


def _mark_cells(picture: SweepPicture, plane: Plane, *, number: int) -> list[Marks]:
    """Return the cells of a map, in the colours of what they cost; grey where nothing fits."""
    rows, columns = plane.added.shape
    down, right = -(-rows // _CELLS), -(-columns // _CELLS)
    points: list[Spec] = [
        {
            # A hair wider than a cell, to close the seams that rounding leaves.
            "x": column - 0.5,
            "x2": column + right - 0.48,
            "y": row - 0.5,
            "y2": row + down - 0.48,
            **picture.describe(number, row * columns + column),
            **({"value": float(added)} if np.isfinite(added := plane.added[row, column]) else {}),
        }
        for row in range(0, rows, down)
        for column in range(0, columns, right)
    ]
    fitting, without = ([point for point in points if ("value" in point) == fits] for fits in (True, False))
    # The scale is the same in all maps.
    form: Any = {"shades": picture.scale_quantity(), "told": picture.titles(fits=True)}
    grey: Any = {"colour": style.GREY, "opacity": 0.15, "told": picture.titles(fits=False)}
    return [Marks(kind="cell", rows=fitting, **form), Marks(kind="cell", rows=without, **grey)]


def _mark_regions(picture: SweepPicture, plane: Plane) -> list[Marks]:
    """Return the borders between the regions of strategies, and the marker of each in its region.

    Cells where nothing fits are hatched.
    """
    borders = [{"x": x, "y": y, "x2": x2, "y2": y2} for (x, y), (x2, y2) in plane.borders()]
    nothing = np.argwhere(plane.best < 0).tolist() if plane.best.size <= _BORDERS else []
    # Lines that leave the middle of a cell to the pointer.
    hatch = [
        {"x": i - 0.5 + aside, "y": j - aside, "x2": i + aside, "y2": j + 0.5 - aside}
        for j, i in nothing
        for aside in (0.0, 0.5)
    ]
    marks = [
        _mark_best(picture, place, [{"x": column, "y": row}], size=6)
        for place, (column, row) in plane.middles().items()
        if place >= 0
    ]
    without = Marks(kind="span", rows=hatch, colour=style.GREY, size=0.5, label="nothing fits")
    return [without, Marks(kind="span", rows=borders), *marks]


#: Cells of a map that are drawn in each direction: more cannot be told apart.
_CELLS = 250
_LINE_HEIGHT = 380
#: The height of a row of a heat map, and of all of them.
_ROW, _LEAST, _MOST = 26, 150, 480


def chart_sweep(picture: SweepPicture) -> Iterator[Chart]:
    """Yield the charts of a sweep, whose rows were collected for a page."""
    height: float = _LINE_HEIGHT
    about = "Each cell is the best plan at a point, or where nothing fits. Point at one to see more."
    if picture.is_map:
        height = min(max(_LEAST, _ROW * len(picture.sweep.grid.values[picture.varied[0]])), _MOST)
    for number, plot in enumerate(_make_plots(picture), start=1):
        if not picture.is_map:
            axis, without = plot.x.title, picture.list_without()
            crossed = any(one.kind == "cross" for one in plot.marks)
            crosses = ", each cross a point where nothing fits" if crossed else ""
            nowhere = f" Nothing fits at any {axis}: {', '.join(without)}." if without else ""
            about = f"Each marker is the best plan at its {axis}{crosses}. Point at one to see more.{nowhere}"
        spec = {**layer_plot(plot, zooms=("x", "y")), "height": height}
        title = spec.pop("title", picture.title()[0])
        name = f"sweep-{number}" if picture.is_map else "sweep"
        yield Chart(name, title, about, spec, zooms=True)
