"""A sweep: lines over one axis, heat maps over two; each point tells its best plan, or why nothing fits."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from ckptplan.report import style
from ckptplan.report.fields import format_cells
from ckptplan.report.html.charts.look import (
    CONFIG,
    INK,
    LINES,
    Chart,
    Spec,
    at,
    label_ticks,
    layer,
    nominal,
    scale_of,
    strategy_scales,
    tell,
    zoom,
)
from ckptplan.report.sweep import format_reason
from ckptplan.report.sweep_plot import Plane, SweepPicture
from ckptplan.units import format_bytes, format_percent, format_seconds

_LINE_HEIGHT = 380
#: The height of a row of a heat map, and of all of them.
_ROW, _LEAST, _MOST = 26, 150, 480
_SHAPES = ("circle", "square", "triangle-up", "diamond", "triangle-down", "cross", "triangle-right", "wedge")
#: The distance of crosses, one row for each workload on a machine, from the top and from each other.
_CROSS = 16


def chart_sweep(picture: SweepPicture) -> tuple[Chart, ...]:
    """Return the charts of a sweep, whose rows were collected for a page."""
    points = [_describe(picture, row) for row in picture.rows()]
    if len(picture.varied) == 1:
        return (_chart_lines(picture, points),)
    each = len(points) // len(picture.jobs)
    return tuple(
        _chart_map(picture, plane, points[place * each : (place + 1) * each], number=place)
        for place, plane in enumerate(picture.planes())
    )


def _describe(picture: SweepPicture, row: Mapping[str, Any]) -> Spec:
    """Return what is shown of a row when it is pointed at."""
    shown = {axis.column: axis.kind.show(row[axis.column]) for axis in picture.sweep.grid.axes}
    if len(picture.jobs) > 1:
        shown["job"] = picture.name_job(row["workload"], row["profile"])
    if not row["fits"]:
        return {**shown, "why": format_reason(row)}
    return {
        **shown,
        "v": row[picture.quantity],
        "best": row["strategy"],
        "parameters": format_cells(row),
        "time": format_seconds(row["seconds"]),
        "over": format_percent(row["overhead"]),
        "local": format_bytes(row["local_peak_bytes"]),
    }


def _tell(picture: SweepPicture, *, fits: bool) -> list[Spec]:
    names = {axis.column: axis.name for axis in picture.sweep.grid.axes}
    names |= {"job": "job"} if len(picture.jobs) > 1 else {}
    if not fits:
        return tell(**names, why="nothing fits")
    titles = {"best": "strategy", "parameters": "parameters", "time": "time", "over": "over base"}
    return tell(**names, **titles, local="local memory")


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
    layers = _draw_lines(picture, fitting, above=above) if fitting else []
    for number, part in enumerate(crosses):
        layers += _draw_crosses(picture, part, height=10 + _CROSS * number)
    layers[0]["params"] = [zoom("x", "y") if fitting else zoom("x")]
    return Chart(
        name="sweep",
        title=picture.title()[0],
        caption=_describe_lines(picture, points, across.title),
        spec={
            "config": CONFIG,
            "width": "container",
            "height": _LINE_HEIGHT,
            "layer": layers,
            "encoding": {"x": at("x", across)},
        },
        zooms=True,
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


def _draw_lines(picture: SweepPicture, points: list[Spec], *, above: float) -> list[Spec]:
    """Return the lines, and a marker for the best plan at each point."""
    up = at("v", picture.scale_quantity(above=above))
    dashes = {"strokeDash": nominal("job", legend=LINES)} if len(picture.jobs) > 1 else {}
    form = {"color": INK, "opacity": 0.6, "strokeWidth": 1.5}
    marks = {"y": at("v"), "tooltip": _tell(picture, fits=True), **_look(points)}
    return [
        layer("line", points, {"y": up, **dashes}, **form),
        layer("point", points, marks, filled=True, size=70, opacity=1),
    ]


def _look(points: Sequence[Spec]) -> Spec:
    """Return the colour and the shape of the best strategy at each point."""
    names = list(dict.fromkeys(point["best"] for point in points))
    colours, _ = strategy_scales(names)
    shapes = {"domain": names, "range": [_SHAPES[i % len(_SHAPES)] for i in range(len(names))]}
    return {"color": nominal("best", scale=colours), "shape": nominal("best", scale=shapes)}


def _draw_crosses(picture: SweepPicture, points: list[Spec], *, height: int) -> list[Spec]:
    """Return the crosses of a workload on a machine, and its name beside them if there is room."""
    points = sorted(points, key=lambda point: point["x"])
    without = [point for point in points if "v" not in point]
    place = {"y": {"value": height}}
    told = {**place, "tooltip": _tell(picture, fits=False)}
    layers = [layer("text", without, told, fill=INK, text="\N{MULTIPLICATION SIGN}", fontSize=18)]
    left, right = points[0] is not without[0], points[-1] is not without[-1]
    if len(picture.jobs) > 1 and (left or right):
        side = {"align": "right", "dx": -10} if left else {"align": "left", "dx": 10}
        named = {**place, "text": {"field": "job"}}
        layers.append(layer("text", [without[0 if left else -1]], named, fill=INK, **side))
    return layers


def _chart_map(picture: SweepPicture, plane: Plane, points: list[Spec], *, number: int) -> Chart:
    rows, columns = plane.added.shape
    for place, point in enumerate(points):
        point["j"], point["i"] = divmod(place, columns)
    fitting = [point for point in points if "v" in point]
    without = [point for point in points if "v" not in point]
    layers = [
        *_draw_cells(picture, fitting, {"color": _colours(picture)}, fits=True),
        *_draw_cells(picture, without, {}, fits=False, fill=style.GREY, fillOpacity=0.15),
    ]
    layers[0]["params"] = [zoom("x", "y")]
    return Chart(
        name=f"sweep-{number + 1}",
        title=plane.name if len(picture.jobs) > 1 else picture.title()[0],
        caption="Each cell is the best plan at a point, or where nothing fits. Point at one to see more.",
        spec={
            "config": CONFIG,
            "width": "container",
            "height": min(max(_LEAST, _ROW * rows), _MOST),
            "layer": [*layers, *_draw_regions(picture, plane)],
            "resolve": {"scale": {"color": "independent", "shape": "independent"}},
        },
        zooms=True,
    )


def _draw_cells(
    picture: SweepPicture, points: Sequence[Spec], colour: Spec, *, fits: bool, **form: Any
) -> list[Spec]:
    """Return cells of a heat map, none for no points."""
    if not points:
        return []
    across, up = picture.scale_input(1), picture.scale_input(0)
    encoding = {
        "x": at("i0", across, grid=False),
        "x2": {"field": "i1"},
        "y": at("j0", up, grid=False),
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
    return [{**layer("rect", points, encoding, **form), "transform": edges}]


def _draw_regions(picture: SweepPicture, plane: Plane) -> list[Spec]:
    """Return the borders between the regions of strategies, and the marker of each in its region."""
    lines = [{"i0": x, "j0": y, "i1": x2, "j1": y2} for (x, y), (x2, y2) in plane.borders()]
    marks = [
        {"i0": column, "j0": row, "best": picture.names[place]}
        for place, (column, row) in plane.middles().items()
        if place >= 0
    ]
    at_cell = {"x": at("i0"), "y": at("j0")}
    span = {**at_cell, "x2": {"field": "i1"}, "y2": {"field": "j1"}}
    form = {"filled": True, "size": 110, "opacity": 1, "stroke": "white", "strokeWidth": 1.5}
    return [
        *([layer("rule", lines, span, color=INK, strokeWidth=1.5)] if lines else []),
        *([layer("point", marks, {**at_cell, **_look(marks)}, **form)] if marks else []),
    ]


def _colours(picture: SweepPicture) -> Spec:
    """Return the scale of colours, which is the same in all maps of a page."""
    scale = picture.scale_quantity()
    return {
        "field": "v",
        "type": "quantitative",
        "title": scale.title,
        "scale": {**scale_of(scale), "scheme": "cividis", "reverse": True},
        "legend": {"gradientLength": 260, **label_ticks(scale)},
    }
