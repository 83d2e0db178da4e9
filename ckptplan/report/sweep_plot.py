"""A sweep as a picture: lines over one axis, a heat map over two, one for each workload on each machine.

Markers on lines and areas of a map name the best strategies.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from math import log
from typing import TYPE_CHECKING, Any

import numpy as np

from ckptplan.errors import InputError
from ckptplan.report import style
from ckptplan.report.labels import Label, place_labels, renderer_of, set_legend, set_title, settle, wrap
from ckptplan.report.style import PAGE, Size
from ckptplan.report.ticks import byte_steps, spaced
from ckptplan.strategies.registry import all_strategies
from ckptplan.studies.axes import Axis, Value
from ckptplan.studies.sweep import Sweep
from ckptplan.units import format_bytes, format_count

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure


def draw_sweep(picture: SweepPicture, size: Size = PAGE) -> Figure:
    """Return the picture. Call it, and save the picture, within ``style.styled(size)``."""
    draw = _draw_lines if len(picture.varied) == 1 else _draw_maps
    return draw(picture, size)


#: A logarithmic scale from this ratio of the largest value to the least.
_WIDE = 8
#: A scale of shares that is linear up to 1 % from this share on.
_MUCH = 1.0
_LINEAR = 0.01


def place_values(values: Sequence[Value]) -> list[float]:
    """Return where values stand on an axis: at their logarithms, themselves, or one beside the other."""
    numbers = [value for value in values if value is not None]
    if len(numbers) < len(values) or len(set(numbers)) < len(values):
        return [float(i) for i in range(len(values))]
    if min(numbers) > 0 and max(numbers) / min(numbers) >= _WIDE:
        return [log(number) for number in numbers]
    return [float(number) for number in numbers]


def mark_values(axes: Axes, axis: Axis, values: Sequence[Value], places: Sequence[float], *, up: bool) -> None:
    """Set ticks at values of an input, as many as have room, the first and the last among them."""
    from matplotlib.text import Text
    from matplotlib.ticker import NullLocator

    figure: Any = axes.get_figure(root=True)
    words = [axis.kind.show(value) for value in values]
    renderer = renderer_of(figure)

    def extent(word: str) -> float:
        box = Text(0, 0, word, figure=figure).get_window_extent(renderer)
        return float(box.height * 1.5 if up else box.width * 1.25)

    gap = max(extent(word) for word in sorted(words, key=len)[-3:])
    length = axes.bbox.height if up else axes.bbox.width
    low, high = axes.get_ylim() if up else axes.get_xlim()
    halves = _halve(len(values))
    chosen = spaced(
        [places[i] for i in halves], place=lambda value: length * (value - low) / (high - low), gap=gap
    )
    names = dict(zip(places, words, strict=True))
    (axes.set_yticks if up else axes.set_xticks)(chosen, [names[place] for place in chosen])
    (axes.yaxis if up else axes.xaxis).set_minor_locator(NullLocator())
    (axes.set_ylabel if up else axes.set_xlabel)(axis.name)


def _halve(count: int) -> list[int]:
    """Return places in the order in which ticks are chosen: the ends, the middle, the quarters, ..."""
    order = dict.fromkeys([0, count - 1])
    parts = 2
    while len(order) < count:
        order |= dict.fromkeys(round(i * (count - 1) / parts) for i in range(parts + 1))
        parts *= 2
    return list(order)


def format_quantity(quantity: str) -> Callable[[float], str]:
    """Return how a share or a size is written."""
    if quantity == "local_peak_bytes":
        return format_bytes
    return lambda share: f"{100 * share:+,.4g} %" if abs(share) > 1e-12 else "0"


def quantity_ticks(quantity: str, low: float, high: float, *, most: int) -> list[float]:
    """Return round values of a share or a size in a range, at most about ``most``."""
    if quantity == "local_peak_bytes":
        return [tick for tick in byte_steps(high, most=2 * most) if tick >= low]
    if is_wide(quantity, high):
        wanted = [0.0, *(factor * 10.0**power for power in range(-2, 7) for factor in (1, 2, 5))]
        ticks = [tick for tick in wanted if low <= tick <= high]
        return ticks[:: -(-len(ticks) // most)] if len(ticks) > most else ticks
    from matplotlib.ticker import MaxNLocator

    found = MaxNLocator(most, steps=[1, 2, 5, 10]).tick_values(low, high)
    return [float(tick) for tick in np.asarray(found) if low <= tick <= high]


def is_wide(quantity: str, high: float) -> bool:
    """Return whether shares span so much that small ones would vanish on a linear scale."""
    return quantity == "overhead" and high > _MUCH


def symlog() -> dict[str, float]:
    """Return the scale of shares that span much."""
    return {"linthresh": _LINEAR, "linscale": 0.5}


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
    field = "html" if place == "page" else "plot"
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


def _draw_lines(picture: SweepPicture, size: Size) -> Figure:
    """Return the lines of a sweep over one axis."""
    from matplotlib.figure import Figure

    figure = Figure(figsize=size.inches(2.7 if size.width < PAGE.width else 3.6), layout="constrained")
    axes = figure.subplots()
    axis, values = picture.axis(0)
    places = np.array(place_values(values))
    planes = picture.planes()
    without = [plane.name for plane in planes if len(planes) > 1 and not np.isfinite(plane.added).any()]
    set_title(figure, *picture.title(), *([f"nothing fits: {', '.join(without)}"] if without else []))
    for number, plane in enumerate(planes):
        _draw_line(axes, picture, plane, places, number=number, size=size)
    _scale(axes, picture, planes, places)
    set_legend(figure, _handles(axes), handlelength=1.0)
    figure.draw_without_rendering()
    mark_values(axes, axis, values, places.tolist(), up=False)
    settle(figure)
    labels = [
        Label(text=plane.name, points=np.column_stack([places, plane.added]))
        for plane in planes
        if len(planes) > 1 and np.isfinite(plane.added).any()
    ]
    place_labels(axes, labels)
    return figure


def _draw_line(
    axes: Axes, picture: SweepPicture, plane: Plane, places: Any, *, number: int, size: Size
) -> None:
    order = np.argsort(places)
    x, y, best = places[order], plane.added[order], plane.best[order]
    axes.plot(x, y, color=style.GREY, linestyle=_DASHES[number], linewidth=size.scale, zorder=2)
    marked = np.unique(np.linspace(0, len(x) - 1, min(len(x), _MARKERS)).astype(int))
    # Where the best strategy changes, both are marked.
    changes = np.flatnonzero(np.diff(best))
    if len(changes) <= _MARKERS:
        marked = np.unique(np.concatenate([marked, changes, changes + 1]))
    for place in np.unique(best[marked]).tolist():
        chosen = marked[best[marked] == place]
        if place < 0:
            axes.plot(
                x[chosen], np.full(len(chosen), 0.02 + 0.03 * number), marker="x", linestyle="",
                color=style.BLACK, markersize=4 * size.scale, label="nothing fits",
                transform=axes.get_xaxis_transform(), zorder=3,
            )  # fmt: skip
            continue
        name = picture.names[place]
        look = style.look_of(name)
        axes.plot(
            x[chosen], y[chosen], marker=look.marker, linestyle="", color=look.colour, label=name,
            markersize=4 * size.scale, zorder=4, clip_on=False,
        )  # fmt: skip


def _handles(axes: Axes) -> list[Any]:
    """Return a sample of each strategy."""
    named = {str(line.get_label()): line for line in reversed(axes.lines)}
    return [line for name, line in reversed(named.items()) if not name.startswith("_")]


def _scale(axes: Axes, picture: SweepPicture, planes: list[Plane], places: Any) -> None:
    from matplotlib.ticker import NullLocator

    found = np.concatenate([plane.added[np.isfinite(plane.added)] for plane in planes])
    low, high = (float(found.min()), float(found.max())) if len(found) else (0.0, 0.0)
    room = 0.04 * (places.max() - places.min()) or 1.0
    axes.set_xlim(places.min() - room, places.max() + room)
    if picture.quantity == "overhead":
        low, high = min(0.0, low), max(high, 0.01)
        if is_wide(picture.quantity, high):
            axes.set_yscale("symlog", **symlog())
        axes.set_ylabel("time over base's")
        axes.set_ylim(low - 0.04 * (0.01 if is_wide(picture.quantity, high) else high), 1.1 * high)
    else:
        axes.set_ylabel("peak local memory")
        axes.set_ylim(0, max(1.0, 1.1 * high))
    ticks = quantity_ticks(picture.quantity, max(low, 0.0), 1.1 * high, most=6)
    write = format_quantity(picture.quantity)
    axes.set_yticks(ticks, [write(tick) for tick in ticks])
    axes.yaxis.set_minor_locator(NullLocator())


#: Borders between strategies are drawn up to this many cells.
_BORDERS = 40_000


def _draw_maps(picture: SweepPicture, size: Size) -> Figure:
    """Return the heat maps of a sweep over two axes: the first upwards, the second across."""
    from matplotlib.figure import Figure

    planes = picture.planes()
    columns = min(len(planes), 1 if size.width < PAGE.width else 2 if size.height is None else 3)
    rows = -(-len(planes) // columns)
    figure = Figure(figsize=size.inches(1.0 + rows * (2.2 if columns == 1 else 2.4)), layout="constrained")
    set_title(figure, *picture.title())
    grid = figure.subplots(rows, columns, squeeze=False)
    norm = _norm(picture, planes)
    for axes, plane in zip(grid.flat, planes, strict=False):
        image = axes.imshow(
            np.ma.masked_invalid(plane.added), norm=norm, cmap="cividis_r", aspect="auto", origin="lower",
            interpolation="nearest",
        )  # fmt: skip
        axes.set_facecolor("white")
        _hatch(axes, plane)
        if len(planes) > 1:
            figure.draw_without_rendering()
            axes.set_title(
                wrap(figure, plane.name, width=axes.bbox.width, points=size.points), parse_math=False
            )
    for axes in grid.flat[len(planes) :]:
        axes.set_visible(False)
    _bar(figure, image, picture, grid)
    # Labels to the left leave less width for those below.
    for number, up in ((0, True), (1, False)):
        axis, values = picture.axis(number)
        figure.draw_without_rendering()
        for axes in grid.flat[: len(planes)]:
            mark_values(axes, axis, values, [float(i) for i in range(len(values))], up=up)
    settle(figure)
    for axes, plane in zip(grid.flat, planes, strict=False):
        _name(axes, picture, plane)
    return figure


def _norm(picture: SweepPicture, planes: list[Plane]) -> Any:
    from matplotlib.colors import Normalize, SymLogNorm

    found = np.concatenate([plane.added[np.isfinite(plane.added)] for plane in planes])
    if not len(found):
        return Normalize(0, 1)
    low, high = float(found.min()), float(found.max())
    if is_wide(picture.quantity, high):
        return SymLogNorm(symlog()["linthresh"], linscale=symlog()["linscale"], vmin=max(0.0, low), vmax=high)
    return Normalize(low, max(high, low + (0.001 if picture.quantity == "overhead" else 1)))


def _hatch(axes: Axes, plane: Plane) -> None:
    """Hatch where nothing fits, and draw borders between strategies."""
    from matplotlib.collections import LineCollection
    from matplotlib.patches import Rectangle

    height, width = plane.best.shape
    axes.add_patch(
        Rectangle(
            (-0.5, -0.5), width, height, facecolor=style.PALE, edgecolor=style.GREY, hatch="////",
            linewidth=0, zorder=-1,
        )
    )  # fmt: skip
    if plane.best.size > _BORDERS:
        return
    borders = [
        [(column + 0.5, row - 0.5), (column + 0.5, row + 0.5)]
        for row, column in np.argwhere(np.diff(plane.best, axis=1))
    ]
    borders += [
        [(column - 0.5, row + 0.5), (column + 0.5, row + 0.5)]
        for row, column in np.argwhere(np.diff(plane.best, axis=0))
    ]
    axes.add_collection(LineCollection(borders, color=style.BLACK, linewidth=1, zorder=3))


def _bar(figure: Figure, image: Any, picture: SweepPicture, grid: Any) -> None:
    bar = figure.colorbar(image, ax=grid.ravel().tolist(), aspect=30)
    low, high = image.norm.vmin, image.norm.vmax
    ticks = quantity_ticks(picture.quantity, low, high, most=6)
    write = format_quantity(picture.quantity)
    bar.set_ticks(ticks, labels=[write(tick) for tick in ticks])
    bar.minorticks_off()
    bar.set_label("time over base's" if picture.quantity == "overhead" else "peak local memory")


def _name(axes: Axes, picture: SweepPicture, plane: Plane) -> None:
    """Write the name of each strategy once into its largest part of a row."""
    labels = []
    for place in np.unique(plane.best).tolist():
        cells = np.argwhere(plane.best == place)[:, ::-1]
        # The cell nearest to the middle of all is within the region, whatever its shape.
        middle = cells[np.argmin(((cells - cells.mean(axis=0)) ** 2).sum(axis=1))]
        name = "nothing fits" if place < 0 else picture.names[place]
        labels.append(Label(text=name, points=[middle], centred=True))
    place_labels(axes, labels)
