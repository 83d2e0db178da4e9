"""A sweep as a picture: lines over one axis, a heat map over two, one for each workload on each machine.

Markers on lines and areas of a map name the best strategies. ``SweepPicture`` says what is drawn, here and on
the page.
"""

from __future__ import annotations

import textwrap
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from math import log
from typing import TYPE_CHECKING, Any, Literal

import numpy as np

from ckptplan.errors import InputError
from ckptplan.report import style
from ckptplan.report.scale import LINEAR, Scale, drop_overlaps, scale_bytes, scale_shares
from ckptplan.report.style import PAGE, Size, set_legend, set_title
from ckptplan.strategies.registry import all_strategies
from ckptplan.studies.sweep import Sweep
from ckptplan.units import format_count

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

#: An axis is logarithmic from this ratio of the largest value to the least.
_WIDE = 8
#: The scale of shares is wide from this one on.
_MUCH = 1.0
#: Borders between strategies are drawn up to this many cells.
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


class SweepPicture:
    """Collects rows of a sweep (``add``), in their order, for a picture or for a page, which shows each row."""

    def __init__(self, sweep: Sweep, *, place: Literal["picture", "page"] = "picture") -> None:
        """Raise InputError for a sweep that no picture of two dimensions shows."""
        self.sweep = sweep
        self.names = tuple(all_strategies())
        self.varied = [i for i, values in enumerate(sweep.grid.values) if len(values) > 1]
        self.jobs = [self.name_job(one.name, other.name) for one in sweep.workloads for other in sweep.profiles]
        _check(len(self.varied), jobs=len(self.jobs), points=len(sweep), place=place)
        self.quantity = "local_peak_bytes" if sweep.goal.objective == "memory" else "overhead"
        self._added = np.full(len(sweep), np.nan)
        self._best = np.full(len(sweep), -1)
        self._seen = np.zeros(len(sweep), dtype=bool)
        self._place = place
        self._rows: dict[int, Mapping[str, Any]] = {}

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
            if self._place == "page":
                self._rows[index] = row
            if row["fits"]:
                self._added[index] = row[self.quantity]
                self._best[index] = self.names.index(row["strategy"])

    def rows(self) -> list[Mapping[str, Any]]:
        """Return the rows of a page, which must all have been added."""
        return [self._rows[number] for number in range(len(self.sweep))]

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
        is_map = len(self.varied) > 1
        places = [float(place) for place in range(len(values))] if is_map else self.places()
        room = 0.5 if is_map else 0.04 * (max(places) - min(places)) or 1.0
        ticks = dict(sorted(zip(places, map(axis.kind.show, values), strict=True)))
        return Scale(title=axis.name, low=min(places) - room, high=max(places) + room, ticks=ticks)

    def scale_quantity(self, *, above: float = 0.0) -> Scale:
        """Return the axis of lines, with a share of it left free ``above``; of maps, the scale of colours."""
        found = self._added[np.isfinite(self._added)]
        low, high = (float(found.min()), float(found.max())) if len(found) else (0.0, 0.0)
        shares, is_map = self.quantity == "overhead", len(self.varied) > 1
        if is_map:
            high = max(high, low + (0.001 if shares else 1.0))
        else:
            high = 1.1 * max(high, 0.01 if shares else 1.0) / (1 - above)
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


def _check(varied: int, *, jobs: int, points: int, place: str) -> None:
    field, most = ("html", _MOST_ON_PAGE) if place == "page" else ("plot", _MOST_POINTS)
    if not 1 <= varied <= 2:
        raise InputError(
            f"a {place} shows one axis or two, and {varied} vary",
            field=field,
            accepted="one input or two with several values",
        )
    if jobs > _MOST_JOBS:
        raise InputError(
            f"a {place} shows up to {_MOST_JOBS} workloads on profiles, and the sweep has {jobs}",
            field=field,
            accepted="fewer workloads or profiles",
        )
    if points > most:
        raise InputError(
            f"a {place} shows up to {most:,} points, and the sweep has {points:,}",
            field=field,
            accepted="a coarser grid",
        )


#: Dashes of the lines, the first six.
_DASHES: tuple[Any, ...] = (
    "-",
    (0, (5, 1.5)),
    (0, (1, 1.2)),
    (0, (5, 1.5, 1, 1.5)),
    (0, (2.5, 1.2)),
    (0, (8, 2)),
)
#: Markers on a line at most.
_MARKERS = 40


def draw_sweep(picture: SweepPicture, size: Size = PAGE) -> Figure:
    """Return the picture. Call it, and save the picture, within ``style.styled(size)``."""
    draw = _draw_lines if len(picture.varied) == 1 else _draw_maps
    return draw(picture, size)


def _draw_lines(picture: SweepPicture, size: Size) -> Figure:
    """Return the lines of a sweep over one axis."""
    from matplotlib.figure import Figure

    figure = Figure(figsize=size.inches(2.2 if size.width < PAGE.width else 3.2), layout="constrained")
    axes = figure.subplots()
    planes = picture.planes()
    without = [plane.name for plane in planes if len(planes) > 1 and not np.isfinite(plane.added).any()]
    set_title(figure, *picture.title(), *([f"nothing fits: {', '.join(without)}"] if without else []))
    picture.scale_input(0).set_x(axes)
    picture.scale_quantity().set_y(axes)
    for number, plane in enumerate(planes):
        _draw_line(axes, picture, plane, number=number, size=size)
    samples = {str(line.get_label()): line for line in axes.lines if not str(line.get_label()).startswith("_")}
    set_legend(figure, list(samples.values()), size)
    drop_overlaps(figure)
    return figure


def _draw_line(axes: Axes, picture: SweepPicture, plane: Plane, *, number: int, size: Size) -> None:
    places = np.array(picture.places())
    order = np.argsort(places)
    x, y, best = places[order], plane.added[order], plane.best[order]
    label = plane.name if len(picture.jobs) > 1 and np.isfinite(y).any() else "_"
    axes.plot(x, y, color=style.GREY, linestyle=_DASHES[number], linewidth=size.scale, label=label, zorder=2)
    marked = np.unique(np.linspace(0, len(x) - 1, min(len(x), _MARKERS)).astype(int))
    # Where the best strategy changes, both are marked.
    changes = np.flatnonzero(np.diff(best))
    if len(changes) <= _MARKERS:
        marked = np.unique(np.concatenate([marked, changes, changes + 1]))
    for place in np.unique(best[marked]).tolist():
        chosen = marked[best[marked] == place]
        if place < 0:
            # In a row for each line.
            axes.plot(
                x[chosen], np.full(len(chosen), 0.02 + 0.03 * number), marker="x", linestyle="",
                color=style.BLACK, markersize=4 * size.scale, label="nothing fits",
                transform=axes.get_xaxis_transform(), zorder=3,
            )  # fmt: skip
        else:
            _mark(axes, x[chosen], y[chosen], picture.names[place], size)


def _mark(axes: Axes, x: Any, y: Any, name: str, size: Size, *, points: float = 4, **more: Any) -> Any:
    """Draw the marker of a strategy at points."""
    look = style.look_of(name)
    [marks] = axes.plot(
        x, y, marker=look.marker, linestyle="", color=look.colour, label=name, markersize=points * size.scale,
        zorder=4, clip_on=False, **more,
    )  # fmt: skip
    return marks


def _draw_maps(picture: SweepPicture, size: Size) -> Figure:
    """Return the heat maps of a sweep over two axes: the first upwards, the second across."""
    from matplotlib.colors import Normalize, SymLogNorm
    from matplotlib.figure import Figure

    planes = picture.planes()
    columns = min(len(planes), 1 if size.width < PAGE.width else 2 if size.height is None else 3)
    rows = -(-len(planes) // columns)
    figure = Figure(figsize=size.inches(0.6 + 2.2 * rows), layout="constrained")
    set_title(figure, *picture.title())
    grid = figure.subplots(rows, columns, squeeze=False)
    scale = picture.scale_quantity()
    low, high = scale.low, scale.high
    wide = scale.kind == "symlog"
    norm = SymLogNorm(LINEAR, linscale=0.5, vmin=low, vmax=high) if wide else Normalize(low, high)
    samples: dict[str, Any] = {}
    for axes, plane in zip(grid.flat, planes, strict=False):
        image = axes.imshow(
            np.ma.masked_invalid(plane.added), norm=norm, cmap="cividis_r", aspect="auto", origin="lower",
            interpolation="nearest",
        )  # fmt: skip
        picture.scale_input(0).set_y(axes)
        picture.scale_input(1).set_x(axes)
        samples |= _name_regions(axes, picture, plane, size)
        if len(planes) > 1:
            axes.set_title("\n".join(textwrap.wrap(plane.name, 40)), parse_math=False)
    for axes in grid.flat[len(planes) :]:
        axes.set_visible(False)
    bar = figure.colorbar(image, ax=grid.ravel().tolist(), aspect=30)
    bar.set_ticks(list(scale.ticks), labels=list(scale.ticks.values()))
    bar.minorticks_off()
    bar.set_label(scale.title)
    set_legend(figure, list(samples.values()), size)
    drop_overlaps(figure)
    return figure


def _name_regions(axes: Axes, picture: SweepPicture, plane: Plane, size: Size) -> dict[str, Any]:
    """Mark each strategy's region, draw borders between regions, and hatch where nothing fits."""
    from matplotlib.collections import LineCollection
    from matplotlib.patheffects import withStroke

    axes.add_collection(LineCollection(plane.borders(), color=style.BLACK, linewidth=1, zorder=3))
    height, width = plane.best.shape
    span = ((-0.5, width - 0.5), -0.5, height - 0.5)
    hatched = axes.fill_between(
        *span, facecolor=style.PALE, edgecolor=style.GREY, hatch="////", linewidth=0, label="nothing fits",
        zorder=-1,
    )  # fmt: skip
    halo = [withStroke(linewidth=3 * size.scale, foreground="white")]
    samples: dict[str, Any] = {}
    for place, (column, row) in plane.middles().items():
        if place < 0:
            samples["nothing fits"] = hatched
        else:
            name = picture.names[place]
            samples[name] = _mark(axes, [column], [row], name, size, points=6, path_effects=halo)
    return samples
