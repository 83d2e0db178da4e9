"""A sweep: lines over one axis, heat maps over two; each point tells its best plan, or why nothing fits."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from ckptplan.report import style
from ckptplan.report.fields import format_cells
from ckptplan.report.html.charts.look import (
    CONFIG,
    INK,
    LINES,
    Chart,
    Spec,
    labelled_axis,
    strategy_scales,
    zoom,
)
from ckptplan.report.sweep import format_reason
from ckptplan.report.sweep_plot import Plane, SweepPicture, is_wide, place_values, quantity_ticks
from ckptplan.units import format_bytes, format_percent, format_seconds

_LINE_HEIGHT = 380
#: The height of a row of a heat map, and of all of them.
_ROW, _LEAST, _MOST = 26, 150, 480
#: The width of a page's charts, and that of a character, about.
_WIDTH, _CHARACTER = 850, 7.5
_SHAPES = ("circle", "square", "triangle-up", "diamond", "triangle-down", "cross", "triangle-right", "wedge")
#: Overheads up to here are drawn to scale, those above in powers of ten.
_LINEAR = 0.01
#: The distance of crosses, one row for each workload on a machine, from the top and from each other.
_CROSS = 16


def chart_sweep(picture: SweepPicture, rows: Sequence[Mapping[str, Any]]) -> tuple[Chart, ...]:
    """Return the charts of a sweep whose rows, all of them, are given in their order."""
    points = [_describe(picture, row) for row in rows]
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


def _tooltip(picture: SweepPicture, *, fits: bool) -> list[Spec]:
    names = {axis.column: axis.name for axis in picture.sweep.grid.axes}
    if len(picture.jobs) > 1:
        names["job"] = "job"
    names |= (
        {
            "best": "strategy",
            "parameters": "parameters",
            "time": "time",
            "over": "over base",
            "local": "local memory",
        }
        if fits
        else {"why": "nothing fits"}
    )
    return [{"field": field, "title": title, "type": "nominal"} for field, title in names.items()]


def _chart_lines(picture: SweepPicture, points: list[Spec]) -> Chart:
    axis, values = picture.axis(0)
    places = place_values(values)
    for number, point in enumerate(points):
        point["x"] = places[number % len(places)]
    across: Spec = {
        "field": "x",
        "type": "quantitative",
        "title": axis.name,
        "scale": {"domain": _widen(min(places), max(places)), "nice": False, "zero": False},
        "axis": labelled_axis(
            dict(zip(places, map(axis.kind.show, values), strict=True)),
            labelOverlap="greedy",
            labelSeparation=12,
        ),
    }
    fitting = [point for point in points if "v" in point]
    parts = [[point for point in points if point.get("job", job) == job] for job in picture.jobs]
    # Where nothing fits at all, the caption says so.
    parts = [part for part in parts if len(parts) == 1 or any("v" in point for point in part)]
    crosses = [part for part in parts if any("v" not in point for point in part)]
    layers = (
        [_draw_lines(picture, fitting, crosses=len(crosses)), _draw_markers(picture, fitting)]
        if fitting
        else []
    )
    for number, part in enumerate(crosses):
        layers += _draw_crosses(picture, part, height=10 + _CROSS * number)
    for layer in layers:
        layer["encoding"]["x"] = across
    layers[0]["params"] = [zoom("x", "y") if fitting else zoom("x")]
    return Chart(
        name="sweep",
        title=picture.title()[0],
        caption=_describe_lines(picture, points, axis.name),
        spec={"config": CONFIG, "width": "container", "height": _LINE_HEIGHT, "layer": layers},
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


def _draw_lines(picture: SweepPicture, points: list[Spec], *, crosses: int) -> Spec:
    dashes: Spec = {"field": "job", "type": "nominal", "title": None, "legend": LINES}
    return {
        "data": {"values": points},
        "mark": {"type": "line", "color": INK, "opacity": 0.6, "strokeWidth": 1.5, "clip": True},
        "encoding": {
            "y": _quantity_axis(picture, [point["v"] for point in points], crosses=crosses),
            **({"strokeDash": dashes} if len(picture.jobs) > 1 else {}),
        },
    }


def _draw_markers(picture: SweepPicture, points: list[Spec]) -> Spec:
    names = list(dict.fromkeys(point["best"] for point in points))
    colours, _ = strategy_scales(names)
    shapes = {"domain": names, "range": [_SHAPES[i % len(_SHAPES)] for i in range(len(names))]}
    named: Spec = {"field": "best", "type": "nominal", "title": None}
    return {
        "data": {"values": points},
        "mark": {"type": "point", "filled": True, "size": 70, "opacity": 1, "clip": True},
        "encoding": {
            "y": {"field": "v", "type": "quantitative"},
            "color": {**named, "scale": colours},
            "shape": {**named, "scale": shapes},
            "tooltip": _tooltip(picture, fits=True),
        },
    }


def _draw_crosses(picture: SweepPicture, points: list[Spec], *, height: int) -> list[Spec]:
    """Return the crosses of a workload on a machine, and its name beside them if there is room."""
    points = sorted(points, key=lambda point: point["x"])
    without = [point for point in points if "v" not in point]
    text: Spec = {"type": "text", "fill": INK, "clip": True}
    layers: list[Spec] = [
        {
            "data": {"values": without},
            "mark": {**text, "text": "\N{MULTIPLICATION SIGN}", "fontSize": 18},
            "encoding": {"y": {"value": height}, "tooltip": _tooltip(picture, fits=False)},
        }
    ]
    left, right = points[0] is not without[0], points[-1] is not without[-1]
    if len(picture.jobs) > 1 and (left or right):
        side = {"align": "right", "dx": -10} if left else {"align": "left", "dx": 10}
        layers.append({
            "data": {"values": [without[0 if left else -1]]},
            "mark": {**text, **side},
            "encoding": {"y": {"value": height}, "text": {"field": "job"}},
        })  # fmt: skip
    return layers


def _chart_map(picture: SweepPicture, plane: Plane, points: list[Spec], *, number: int) -> Chart:
    rows, columns = plane.added.shape
    for place, point in enumerate(points):
        point["j"], point["i"] = divmod(place, columns)
    fitting = [point for point in points if "v" in point]
    without = [point for point in points if "v" not in point]
    cells: Spec = {"type": "rect", "clip": True}
    layers: list[Spec] = [
        {
            "data": {"values": fitting},
            "mark": cells,
            "encoding": {"color": _colours(picture), "tooltip": _tooltip(picture, fits=True)},
        },
        {
            "data": {"values": without},
            "mark": {**cells, "fill": style.GREY, "fillOpacity": 0.15},
            "encoding": {"tooltip": _tooltip(picture, fits=False)},
        },
    ]
    layers = [layer for layer in layers if layer["data"]["values"]]
    across, up = _map_axis(picture, 1, "i"), _map_axis(picture, 0, "j")
    edges = [
        # A hair wider than a cell, to close the seams that rounding leaves.
        {"calculate": f"datum.{axis} + {aside}", "as": f"{axis}{end}"}
        for axis in ("i", "j")
        for end, aside in enumerate((-0.5, 0.52))
    ]
    for layer in layers:
        layer["transform"] = edges
        layer["encoding"] |= {"x": across, "x2": {"field": "i1"}, "y": up, "y2": {"field": "j1"}}
    layers[0]["params"] = [zoom("x", "y")]
    layers += _draw_borders(plane)
    layers += _draw_names(picture, plane)
    return Chart(
        name=f"sweep-{number + 1}",
        title=plane.name if len(picture.jobs) > 1 else picture.title()[0],
        caption="Each cell is the best plan at a point, or where nothing fits. Point at one to see more.",
        spec={
            "config": CONFIG,
            "width": "container",
            "height": min(max(_LEAST, _ROW * rows), _MOST),
            "layer": layers,
        },
        zooms=True,
    )


def _map_axis(picture: SweepPicture, number: int, name: str) -> Spec:
    axis, values = picture.axis(number)
    return {
        "field": f"{name}0",
        "type": "quantitative",
        "title": axis.name,
        "scale": {"domain": [-0.5, len(values) - 0.5], "nice": False, "zero": False},
        "axis": labelled_axis(
            {float(place): axis.kind.show(value) for place, value in enumerate(values)},
            labelOverlap="greedy",
            labelSeparation=8,
            grid=False,
        ),
    }


def _draw_borders(plane: Plane) -> list[Spec]:
    """Return the borders between the regions of strategies."""
    up = [
        {"i0": column + 0.5, "i1": column + 0.5, "j0": row - 0.5, "j1": row + 0.5}
        for row, column in np.argwhere(np.diff(plane.best, axis=1)).tolist()
    ]
    across = [
        {"i0": column - 0.5, "i1": column + 0.5, "j0": row + 0.5, "j1": row + 0.5}
        for row, column in np.argwhere(np.diff(plane.best, axis=0)).tolist()
    ]
    if not up + across:
        return []
    ends = {
        "x": {"field": "i0", "type": "quantitative"},
        "x2": {"field": "i1"},
        "y": {"field": "j0", "type": "quantitative"},
        "y2": {"field": "j1"},
    }
    mark = {"type": "rule", "color": INK, "strokeWidth": 1.5, "clip": True}
    return [{"data": {"values": up + across}, "mark": mark, "encoding": ends}]


def _draw_names(picture: SweepPicture, plane: Plane) -> list[Spec]:
    """Return the name of each strategy, once, in a region that has room for it."""
    found = []
    for place in np.unique(plane.best).tolist():
        cells = np.argwhere(plane.best == place)
        # The cell nearest to the middle of all is within the region, whatever its shape.
        row, column = cells[np.argmin(((cells - cells.mean(axis=0)) ** 2).sum(axis=1))].tolist()
        name = "nothing fits" if place < 0 else picture.names[place]
        low = high = column
        while low > 0 and plane.best[row, low - 1] == place:
            low -= 1
        while high + 1 < plane.best.shape[1] and plane.best[row, high + 1] == place:
            high += 1
        if (high - low + 1) * _WIDTH / plane.best.shape[1] > _CHARACTER * len(name):
            found.append({"i0": (low + high) / 2, "j0": row, "name": name})
    if not found:
        return []
    encoding = {
        "x": {"field": "i0", "type": "quantitative"},
        "y": {"field": "j0", "type": "quantitative"},
        "text": {"field": "name"},
    }
    halo = {"type": "text", "clip": True, "fill": "white", "stroke": "white", "strokeWidth": 3}
    ink = {"type": "text", "clip": True, "fill": "black"}
    return [{"data": {"values": found}, "mark": mark, "encoding": encoding} for mark in (halo, ink)]


def _colours(picture: SweepPicture) -> Spec:
    """Return the scale of colours, which is the same in all maps of a page."""
    found = np.concatenate([plane.added[np.isfinite(plane.added)] for plane in picture.planes()])
    low = float(found.min())
    high = max(float(found.max()), low + (0.001 if picture.quantity == "overhead" else 1.0))
    wide = is_wide(picture.quantity, high)
    scale: Spec = {"scheme": "cividis", "reverse": True, "domain": [low, high]}
    if wide:
        scale |= {"type": "symlog", "constant": _LINEAR}
    return {
        "field": "v",
        "type": "quantitative",
        "title": _name_quantity(picture),
        "scale": scale,
        "legend": {"gradientLength": 260, **_ticks(picture, low, high)},
    }


def _quantity_axis(picture: SweepPicture, values: Sequence[float], *, crosses: int) -> Spec:
    high = max(0.01 if picture.quantity == "overhead" else 1.0, *values)
    low = min(0.0, *values)
    most = 1.1 * high / (1 - _CROSS * crosses / _LINE_HEIGHT)
    wide = is_wide(picture.quantity, high)
    scale = {"type": "symlog", "constant": _LINEAR} if wide else {"type": "linear"}
    return {
        "field": "v",
        "type": "quantitative",
        "title": _name_quantity(picture),
        "scale": {**scale, "domain": [low, most], "nice": False},
        "axis": {"labelOverlap": "greedy", **_ticks(picture, low, most)},
    }


def _ticks(picture: SweepPicture, low: float, high: float) -> Spec:
    """Return ticks of a share or a size, and how they are written."""
    if picture.quantity == "overhead":
        shares: Spec = {"labelExpr": "datum.value ? format(100 * datum.value, '+~r') + ' %' : '0'"}
        wide = is_wide(picture.quantity, high)
        return shares | ({"values": quantity_ticks(picture.quantity, low, high, most=9)} if wide else {})
    ticks = quantity_ticks(picture.quantity, low, high, most=6)
    return labelled_axis({tick: format_bytes(tick) for tick in ticks}) if len(ticks) > 1 else {}


def _name_quantity(picture: SweepPicture) -> str:
    return "time over base's" if picture.quantity == "overhead" else "peak local memory"


def _widen(low: float, high: float) -> list[float]:
    room = 0.03 * (high - low) or 1.0
    return [low - room, high + room]
