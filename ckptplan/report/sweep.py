"""A sweep for people: its first rows as a table, lines over one axis, or a heat map over two.

Markers on lines and areas of a map name the best strategies. ``SweepPicture`` says what is drawn, in
pictures and on pages.
"""

from __future__ import annotations

import textwrap
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import product
from math import log
from typing import TYPE_CHECKING, Any, Literal

import numpy as np

from ckptplan.errors import InputError
from ckptplan.model.prediction import BasisEntry
from ckptplan.report import style, vega
from ckptplan.report.basis import list_basis
from ckptplan.report.blocks import Block, Cell, Field, Paragraph, Table
from ckptplan.report.fields import LOCAL, OVER_BASE, PARAMETERS, TIME, format_cells, make_parameters_cell
from ckptplan.report.infeasible import LIMITS
from ckptplan.report.scale import LINEAR, Scale, scale_bytes, scale_shares
from ckptplan.report.style import PAGE, Size
from ckptplan.report.vega import Chart, Spec
from ckptplan.strategies.registry import all_strategies
from ckptplan.studies.sweep import Sweep
from ckptplan.units import format_count
from ckptplan.wording import Argument

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

#: Rows shown on a console; the others are only counted.
MOST_ROWS = 40


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
        plan = (Field("strategy", "best"), PARAMETERS.ranked(1), TIME, OVER_BASE.ranked(3), LOCAL.ranked(2))
        yield Table.of((*jobs, *axes, *plan), map(self._tell, self.shown))
        if self.count > len(self.shown):
            more = f"{format_count(self.count - len(self.shown))} more rows"
            yield Paragraph(f"{more}; {Argument('output', 'FILE.csv')} (or .jsonl, .parquet) writes all")
        shares = ", ".join(f"{name} {format_count(count)}" for name, count in self.best.most_common())
        yield Paragraph(f"best of {format_count(self.count)}: {shares}")

    def list_basis(self) -> tuple[BasisEntry, ...]:
        """Return the inputs of all jobs of the sweep, each once, as they are before the grid changes them."""
        jobs = product(self.sweep.workloads, self.sweep.profiles)
        found = (entry for job in jobs for entry in list_basis(*job, self.sweep.goal))
        return tuple({(entry.field, entry.text): entry for entry in found}.values())

    def _tell(self, row: Mapping[str, Any]) -> dict[str, Any]:
        """Return what the table says of a row."""
        axes = {axis.column: axis.kind.show(row[axis.column]) for axis in self.sweep.grid.axes}
        if row["fits"]:
            return {**row, **axes, "parameters": make_parameters_cell(format_cells(row))}
        words = LIMITS[row["binding"]]
        needs = f"{words.needs_in_cell} {words.short(row['need'])}"
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
    planes = picture.planes()
    without = [plane.name for plane in planes if len(planes) > 1 and not np.isfinite(plane.added).any()]
    title = [*picture.title(), *([f"nothing fits: {', '.join(without)}"] if without else [])]
    figure = style.start_figure(size, 2.2 if size.width < PAGE.width else 3.2, *title)
    axes = figure.subplots()
    picture.scale_input(0).set_x(axes)
    picture.scale_quantity().set_y(axes)
    for number, plane in enumerate(planes):
        _draw_line(axes, picture, plane, number=number, size=size)
    samples = {str(line.get_label()): line for line in axes.lines if not str(line.get_label()).startswith("_")}
    return style.finish_figure(figure, list(samples.values()), size)


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

    planes = picture.planes()
    columns = min(len(planes), 1 if size.width < PAGE.width else 2 if size.height is None else 3)
    rows = -(-len(planes) // columns)
    figure = style.start_figure(size, 0.6 + 2.2 * rows, *picture.title())
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
    return style.finish_figure(figure, list(samples.values()), size)


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


_LINE_HEIGHT = 380
#: The height of a row of a heat map, and of all of them.
_ROW, _LEAST, _MOST = 26, 150, 480
_SHAPES = ("circle", "square", "triangle-up", "diamond", "triangle-down", "cross", "triangle-right", "wedge")
#: The distance of crosses, one row for each workload on a machine, from the top and from each other.
_CROSS = 16


def chart_sweep(picture: SweepPicture) -> tuple[Chart, ...]:
    """Return the charts of a sweep, whose rows were collected for a page."""
    points = [_describe_row(picture, row) for row in picture.rows()]
    if len(picture.varied) == 1:
        return (_chart_lines(picture, points),)
    each = len(points) // len(picture.jobs)
    return tuple(
        _chart_map(picture, plane, points[place * each : (place + 1) * each], number=place)
        for place, plane in enumerate(picture.planes())
    )


def _describe_row(picture: SweepPicture, row: Mapping[str, Any]) -> Spec:
    """Return what is shown of a row when it is pointed at."""
    shown = {axis.column: axis.kind.show(row[axis.column]) for axis in picture.sweep.grid.axes}
    if len(picture.jobs) > 1:
        shown["job"] = picture.name_job(row["workload"], row["profile"])
    if not row["fits"]:
        return {**shown, "why": _format_reason(row)}
    return {**shown, "v": row[picture.quantity], **vega.label_row(row)}


def _tell(picture: SweepPicture, *, fits: bool) -> list[Spec]:
    names = {axis.column: axis.name for axis in picture.sweep.grid.axes}
    names |= {"job": "job"} if len(picture.jobs) > 1 else {}
    if not fits:
        return vega.tell(**names, why="nothing fits")
    return vega.tell(**names, **vega.PLAN)


def _chart_lines(picture: SweepPicture, points: list[Spec]) -> Chart:
    places, across = picture.places(), picture.scale_input(0)
    for number, point in enumerate(points):
        point["x"] = places[number % len(places)]
    fitting = [point for point in points if "v" in point]
    parts = [[point for point in points if point.get("job", job) == job] for job in picture.jobs]
    # Where nothing fits at all, the caption says so.
    parts = [part for part in parts if len(parts) == 1 or any("v" in point for point in part)]
    crosses = [part for part in parts if any("v" not in point for point in part)]
    above = _CROSS * len(crosses) / _LINE_HEIGHT
    layers = _layer_lines(picture, fitting, above=above) if fitting else []
    for number, part in enumerate(crosses):
        layers += _layer_crosses(picture, part, height=10 + _CROSS * number)
    layers[0]["params"] = [vega.zoom("x", "y") if fitting else vega.zoom("x")]
    return Chart.of(
        "sweep",
        picture.title()[0],
        _describe_lines(picture, points, across.title),
        zooms=True,
        height=_LINE_HEIGHT,
        layer=layers,
        encoding={"x": vega.at("x", across)},
    )


def _describe_lines(picture: SweepPicture, points: list[Spec], name: str) -> str:
    fitting = {point.get("job") for point in points if "v" in point}
    without = [job for job in picture.jobs if len(picture.jobs) > 1 and job not in fitting]
    return (
        f"Each marker is the best plan at its {name}"
        + (", each cross a point where nothing fits" if any("v" not in point for point in points) else "")
        + ". Point at one to see more."
        + (f" Nothing fits at any {name}: {', '.join(without)}." if without else "")
    )


def _layer_lines(picture: SweepPicture, points: list[Spec], *, above: float) -> list[Spec]:
    """Return the lines, and a marker for the best plan at each point."""
    up = vega.at("v", picture.scale_quantity(above=above))
    dashes = {"strokeDash": vega.nominal("job", legend=vega.LINES)} if len(picture.jobs) > 1 else {}
    form = {"color": vega.INK, "opacity": 0.6, "strokeWidth": 1.5}
    marks = {"y": vega.at("v"), "tooltip": _tell(picture, fits=True), **_look(points)}
    return [
        vega.layer("line", points, {"y": up, **dashes}, **form),
        vega.layer("point", points, marks, filled=True, size=70, opacity=1),
    ]


def _look(points: Sequence[Spec]) -> Spec:
    """Return the colour and the shape of the best strategy at each point."""
    names = list(dict.fromkeys(point["strategy"] for point in points))
    colours, _ = vega.strategy_scales(names)
    shapes = {"domain": names, "range": [_SHAPES[i % len(_SHAPES)] for i in range(len(names))]}
    return {"color": vega.nominal("strategy", scale=colours), "shape": vega.nominal("strategy", scale=shapes)}


def _layer_crosses(picture: SweepPicture, points: list[Spec], *, height: int) -> list[Spec]:
    """Return the crosses of a workload on a machine, and its name beside them if there is room."""
    points = sorted(points, key=lambda point: point["x"])
    without = [point for point in points if "v" not in point]
    place = {"y": {"value": height}}
    told = {**place, "tooltip": _tell(picture, fits=False)}
    layers = [vega.layer("text", without, told, fill=vega.INK, text="\N{MULTIPLICATION SIGN}", fontSize=18)]
    left, right = points[0] is not without[0], points[-1] is not without[-1]
    if len(picture.jobs) > 1 and (left or right):
        side = {"align": "right", "dx": -10} if left else {"align": "left", "dx": 10}
        named = {**place, "text": {"field": "job"}}
        layers.append(vega.layer("text", [without[0 if left else -1]], named, fill=vega.INK, **side))
    return layers


def _chart_map(picture: SweepPicture, plane: Plane, points: list[Spec], *, number: int) -> Chart:
    rows, columns = plane.added.shape
    for place, point in enumerate(points):
        point["j"], point["i"] = divmod(place, columns)
    fitting = [point for point in points if "v" in point]
    without = [point for point in points if "v" not in point]
    layers = [
        *_layer_cells(picture, fitting, {"color": _colours(picture)}, fits=True),
        *_layer_cells(picture, without, {}, fits=False, fill=style.GREY, fillOpacity=0.15),
    ]
    layers[0]["params"] = [vega.zoom("x", "y")]
    return Chart.of(
        f"sweep-{number + 1}",
        plane.name if len(picture.jobs) > 1 else picture.title()[0],
        "Each cell is the best plan at a point, or where nothing fits. Point at one to see more.",
        zooms=True,
        height=min(max(_LEAST, _ROW * rows), _MOST),
        layer=[*layers, *_layer_regions(picture, plane)],
        resolve={"scale": {"color": "independent", "shape": "independent"}},
    )


def _layer_cells(
    picture: SweepPicture, points: Sequence[Spec], colour: Spec, *, fits: bool, **form: Any
) -> list[Spec]:
    """Return cells of a heat map, none for no points."""
    if not points:
        return []
    across, up = picture.scale_input(1), picture.scale_input(0)
    encoding = {
        "x": vega.at("i0", across, grid=False),
        "x2": {"field": "i1"},
        "y": vega.at("j0", up, grid=False),
        "y2": {"field": "j1"},
        "tooltip": _tell(picture, fits=fits),
        **colour,
    }
    edges = [
        # A hair wider than a cell, to close the seams that rounding leaves.
        {"calculate": f"datum.{axis} + {aside}", "as": f"{axis}{end}"}
        for axis in ("i", "j")
        for end, aside in enumerate((-0.5, 0.52))
    ]
    return [{**vega.layer("rect", points, encoding, **form), "transform": edges}]


def _layer_regions(picture: SweepPicture, plane: Plane) -> list[Spec]:
    """Return the borders between the regions of strategies, and the marker of each in its region."""
    lines = [{"i0": x, "j0": y, "i1": x2, "j1": y2} for (x, y), (x2, y2) in plane.borders()]
    marks = [
        {"i0": column, "j0": row, "strategy": picture.names[place]}
        for place, (column, row) in plane.middles().items()
        if place >= 0
    ]
    at_cell = {"x": vega.at("i0"), "y": vega.at("j0")}
    span = {**at_cell, "x2": {"field": "i1"}, "y2": {"field": "j1"}}
    form = {"filled": True, "size": 110, "opacity": 1, "stroke": "white", "strokeWidth": 1.5}
    return [
        *([vega.layer("rule", lines, span, color=vega.INK, strokeWidth=1.5)] if lines else []),
        *([vega.layer("point", marks, {**at_cell, **_look(marks)}, **form)] if marks else []),
    ]


def _colours(picture: SweepPicture) -> Spec:
    """Return the scale of colours, which is the same in all maps of a page."""
    scale = picture.scale_quantity()
    return {
        "field": "v",
        "type": "quantitative",
        "title": scale.title,
        "scale": {**vega.scale_of(scale), "scheme": "cividis", "reverse": True},
        "legend": {"gradientLength": 260, **vega.label_ticks(scale)},
    }
