"""Charts: axes and marks, each described once, and the layers of Vega-Lite that draw them.

Pages and pictures draw the same layers. Colours hold in light, dark and print; a chart of a page can be zoomed.
"""

from __future__ import annotations

import json
import textwrap
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from math import ceil, floor, log2, log10
from typing import Any, Literal

from ckptplan.report import style
from ckptplan.units import format_bytes
from ckptplan.wording import escape_controls

#: The version of Vega-Lite that charts are written for.
VERSION = "6.1"
#: A Vega-Lite specification, or a part of one.
Spec = dict[str, Any]

#: Shares up to here are to scale on an axis that is 'symlog', those above are in powers of ten.
LINEAR = 0.01


@dataclass(frozen=True, kw_only=True)
class Scale:
    """An axis."""

    title: str
    low: float
    high: float
    #: Value -> name.
    ticks: Mapping[float, str]
    kind: Literal["linear", "log", "symlog"] = "linear"


def scale_shares(title: str, low: float, high: float, *, wide: bool = False) -> Scale:
    """Return an axis of shares. A wide one tells 1 % from 2 % as well as 100 % from 200 %."""
    values = _find_steps(low, high, most=7)
    if wide:
        factors = (1, 2, 5) if high < 10 else (1,)
        powers = range(round(log10(LINEAR)), ceil(log10(high)) + 1)
        values = [0.0, *(factor * 10.0**power for power in powers for factor in factors)]
    ticks = {value: f"{100 * value:+,.10g} %" if value else "0" for value in values if low <= value <= high}
    return Scale(title=title, low=low, high=high, ticks=ticks, kind="symlog" if wide else "linear")


def scale_bytes(title: str, low: float, high: float, *, log: bool = False, sign: str = "") -> Scale:
    """Return an axis of bytes with powers of two, or at equal steps of one."""
    values = [2.0**power for power in range(ceil(log2(low)), floor(log2(high)) + 1)] if log else []
    values = values[:: ceil(len(values) / 16) or 1]
    if len(values) < 2:
        values = _find_steps(low, high, most=4, binary=True)
    ticks = {value: f"{sign}{format_bytes(value)}" for value in values}
    return Scale(title=title, low=low, high=high, ticks=ticks, kind="log" if log else "linear")


def scale_counts(title: str, low: float, high: float, *, log: bool = False, whole: bool = False) -> Scale:
    """Return an axis of numbers, with powers of ten or at equal steps; ``whole`` names no other ones."""
    values = [10.0**power for power in range(ceil(log10(low)), ceil(log10(high)))] if log else []
    values = values if len(values) > 1 else _find_steps(low, high, most=12)
    ticks = {value: f"{value:,.10g}" for value in values if not whole or value.is_integer()}
    return Scale(title=title, low=low, high=high, ticks=ticks, kind="log" if log else "linear")


def _find_steps(low: float, high: float, *, most: int, binary: bool = False) -> list[float]:
    """Return values at equal steps of 1, 2 or 5 times a power of ten, or of a power of two."""
    least = (high - low) / most
    if binary:
        step = 2.0 ** max(0, ceil(log2(least)))
    else:
        power = 10.0 ** floor(log10(least))
        step = next(factor * power for factor in (1, 2, 5, 10) if factor * power >= least)
    return [step * number for number in range(ceil(low / step), floor(high / step) + 1)]


#: Text and lines take the colour of the page, which a reader's theme and a printer change.
INK = "currentColor"


def themed(colour: str) -> str:
    """Return a colour for both themes: black becomes that of the text."""
    return INK if colour == style.BLACK else colour


def dash(dashes: Sequence[float], unit: float) -> list[float]:
    """Return the dashes of a line in dots, ``unit`` for 1."""
    return [unit * part for part in dashes] or [1, 0]


def escape(data: Any) -> Any:
    """Return data whose texts show control characters instead of holding them."""
    if isinstance(data, str):
        return escape_controls(data)
    if isinstance(data, dict):
        return {key: escape(value) for key, value in data.items()}
    if isinstance(data, (list, tuple)):
        return [escape(value) for value in data]
    return data


def annotate(kind: str, places: Spec, **form: Any) -> Spec:
    """Return a layer that draws one mark which belongs to no data."""
    # Vega-Lite leaves out rows without the fields of the other layers, whether or not this one reads them.
    row = dict.fromkeys(("b", "memory", "over", "x", "y"), 1)
    return layer(kind, [row], {"tooltip": None, **places}, **form)


def layer(kind: str, rows: Sequence[Spec], encoding: Spec, **form: Any) -> Spec:
    """Return marks of a kind, one for each row."""
    mark = {"type": kind, "clip": True, **form}
    return {"data": {"values": list(rows)}, "mark": mark, "encoding": encoding}


def tell(**titles: str) -> list[Spec]:
    """Return what is told of a row that is pointed at: fields and their titles."""
    return [{"field": field, "title": title, "type": "nominal"} for field, title in titles.items()]


def nominal(field: str, **more: Any) -> Spec:
    """Return a channel of names, without a title."""
    return {"field": field, "type": "nominal", "title": None, **more}


def at(field: str, scale: Scale | None = None, **axis: Any) -> Spec:
    """Return a channel of numbers, on an axis if one is given; other layers share it."""
    channel: Spec = {"field": field, "type": "quantitative"}
    if scale is None:
        return channel
    ticks = {**label_ticks(scale), "labelOverlap": "greedy", "labelSeparation": 2, **axis}
    return {**channel, "title": scale.title, "scale": scale_of(scale), "axis": ticks}


def scale_of(scale: Scale) -> Spec:
    """Return the range of an axis, or of colours."""
    forms: dict[str, Spec] = {"symlog": {"constant": LINEAR}, "linear": {"zero": False}, "log": {}}
    return {"type": scale.kind, "domain": [scale.low, scale.high], "nice": False, **forms[scale.kind]}


def label_ticks(scale: Scale) -> Spec:
    """Return the ticks of an axis, or of a legend, and their names."""
    values = [float(value) for value in scale.ticks]
    # Looked up by the place in the list: as a key, a number would have to be formatted as JavaScript does.
    names = f"{json.dumps(list(scale.ticks.values()))}[indexof({json.dumps(values)}, datum.value)]"
    return {"values": values, "labelExpr": names}


#: Lines in legends, twice as long as the dots of other marks.
LINES: Spec = {"symbolType": "M-2,0L2,0", "symbolFillColor": "transparent"}


def zoom(*encodings: str) -> Spec:
    """Return a parameter that moves a chart by dragging, and scales it by the wheel with Ctrl or Shift."""
    return {
        "name": "zoom",
        "select": {
            "type": "interval",
            "encodings": list(encodings),
            "zoom": "wheel![event.ctrlKey || event.shiftKey || event.metaKey]",
        },
        "bind": "scales",
    }


def configure(points: float, **more: Any) -> Spec:
    """Return the look of all that is no mark: text of one size in the colour of the page, and no frames."""
    words = {"labelColor": INK, "titleColor": INK, "labelFontSize": points, "titleFontSize": points}
    words |= {"titleFontWeight": "normal", "labelLimit": 20 * points}
    lines = dict.fromkeys(("tickColor", "domainColor", "gridColor"), INK)
    return {
        **more,
        "aria": False,
        "padding": points / 2,
        "view": {"stroke": None},
        "axis": {**words, **lines, "domainOpacity": 0.4, "tickOpacity": 0.4, "gridOpacity": 0.1},
        "legend": {
            **words,
            "symbolSize": 1.8 * points**2,
            "symbolStrokeWidth": 0.2 * points,
            "orient": "bottom",
            "offset": points,
            "direction": "horizontal",
            "layout": {"bottom": {"direction": "vertical", "anchor": "start"}},
        },
        "text": {"color": INK, "fontSize": points},
        "title": {
            "color": INK,
            "fontSize": points,
            "fontWeight": "normal",
            "lineHeight": 1.3 * points,
            "anchor": "start",
            "frame": "group",
            "offset": points / 3,
        },
    }


@dataclass(frozen=True, kw_only=True)
class Marks:
    """Marks that look the same: one for each row; a line and an area go through all rows.

    A row says where a mark is, ``x`` and ``y``, and where it ends, ``x2`` or ``y2``; what else it has can be
    told. Crosses have no ``y``, and texts a list of lines, ``text``. A rule has one place, and
    crosses the chart there; a band is the part of a chart from ``x`` to ``x2``. Areas of several shapes have
    the ``shape`` that a row belongs to; they and areas with ``x2`` go downwards. Cells have four sides.
    """

    kind: Literal["line", "area", "point", "span", "bar", "tick", "cross", "text", "rule", "band", "cell"]
    rows: Sequence[Spec]
    colour: str = style.BLACK
    #: What marks mean, for the legend; that of a rule or a band stands beside it.
    label: str = ""
    #: The lengths of dashes and gaps; a line without any is solid.
    dashes: Sequence[float] = ()
    #: The shape of points.
    marker: str = style.CIRCLE
    #: The width of lines, or that of points, in units of the width of a line.
    size: float = 1.0
    #: The colour within points, if it is another one.
    face: str = ""
    #: The scale of colours, if cells have the colour of their ``value``.
    shades: Scale | None = None
    opacity: float = 1.0
    #: How many lines of text crosses are above the lower end of the chart.
    above: int = 0
    #: Whether a line or an area keeps its height up to the next row.
    steps: bool = False
    #: What is told of a row that is pointed at: its members and their titles.
    told: Mapping[str, str] = field(default_factory=dict)
    #: The member of a row that is written at the end of a bar, above a point, or under it.
    words: str = ""
    under: bool = False


def mark_limit(axis: Literal["x", "y"], value: float | None, name: str) -> Marks:
    """Return a line through a chart at a limit, where there is one, with its name."""
    rows: list[Spec] = [] if value is None else [{axis: value}]
    return Marks(kind="rule", rows=rows, colour=style.VERMILION, dashes=(4, 2), label=name if rows else "")


@dataclass(frozen=True, kw_only=True)
class Plot:
    """Marks between two axes; that upwards may be names, a row for each, the first one on top."""

    x: Scale
    y: Scale | Sequence[str]
    marks: Sequence[Marks]
    title: str = ""


@dataclass(frozen=True, kw_only=True)
class Pen:
    """How large marks of size 1 are, in dots: the width of lines, a unit of dashes, the area of points."""

    width: float = 1.5
    dash: float = 3.0
    area: float = 5.0
    text: float = 12.0
    #: The width that a legend has.
    room: float = 800.0


PAGE_PEN = Pen()
#: In less room, the name of a rule is broken.
_NARROW = 250


def layer_plot(plot: Plot, *, zooms: Sequence[str] = (), pen: Pen = PAGE_PEN) -> Spec:
    """Return the layers and axes that draw a plot, and what moves it along some axes."""
    layers = [layer for one in plot.marks if one.rows for layer in _generate_layers(one, plot, pen)]
    if zooms:
        layers[0]["params"] = [zoom(*zooms)]
    y = at("y", plot.y) if isinstance(plot.y, Scale) else _name_rows(plot.y, pen)
    names = {} if plot.x.title else {"labels": False, "ticks": False}
    x = {**at("x", plot.x, labelSeparation=12, **names), "stack": None}
    title = {"title": plot.title} if plot.title else {}
    return {**title, "layer": layers, "encoding": {"x": x, "y": y}}


def _name_rows(names: Sequence[str], pen: Pen) -> Spec:
    """Return the axis of names; what follows a colon stands below."""
    two = any(": " in name for name in names)
    lines = {"labelExpr": "split(datum.label, ': ')", "labelOffset": -pen.text / 2} if two else {}
    return nominal("y", scale={"domain": list(names)}, axis=lines)


#: How Vega-Lite calls marks, where it has another name.
_TYPES = {"span": "rule", "cross": "text", "cell": "rect"}
#: What a cross is.
TIMES = "\N{MULTIPLICATION SIGN}"


def _generate_layers(one: Marks, plot: Plot, pen: Pen) -> Iterator[Spec]:
    if one.kind == "rule":
        yield from _cross(one, plot, pen)
    elif one.kind == "band":
        yield from _cover(one)
    else:
        yield from _draw(one, plot.marks, pen)


def _draw(one: Marks, marks: Sequence[Marks], pen: Pen) -> Iterator[Spec]:
    """Yield the layers of marks that have a place in each row."""
    places = {axis for axis in ("x", "x2", "y", "y2") if not isinstance(one.rows[0].get(axis, ""), str)}
    where: Spec = {axis: {"field": axis} if axis.endswith("2") else at(axis) for axis in sorted(places)}
    where["tooltip"] = tell(**one.told) if one.told else None
    form: Spec = {"opacity": one.opacity, **({"interpolate": "step-after"} if one.steps else {})}
    look = _paint(one, marks, pen)
    if one.kind == "point":
        own = {"filled": True, "stroke": "white", "strokeWidth": pen.width / 2}
        face = {"fill": one.face, "strokeWidth": pen.width} if one.face else own
        form |= {"size": pen.area * one.size**2, **face}
    elif one.kind == "cross":
        where["y"] = {"value": "height"}
        look = {"text": {"value": TIMES}}
        form |= {"dy": -pen.text * (0.7 + one.above)}
    elif one.kind == "text":
        look = {"text": {"field": "text"}}
        # In the middle of several lines, where one alone would be.
        up = {"expr": f"{-pen.text / 2} * (length(datum.text) - 1)"}
        form |= {"fill": INK, "align": "left", "dx": pen.text / 2, "dy": up, "clip": False}
    elif one.kind in ("line", "span"):
        form |= {"strokeWidth": pen.width * one.size}
    elif one.kind == "area" and "x2" in one.rows[0]:
        form |= {"orient": "horizontal"}
        look["detail"] = {"field": "shape"}
    elif one.shades is not None:
        shades = {**scale_of(one.shades), "scheme": "cividis", "reverse": True}
        legend = {"gradientLength": 160, **label_ticks(one.shades)}
        look = {"color": {**at("value"), "title": one.shades.title, "scale": shades, "legend": legend}}
    rows = [{**row, "name": one.label} for row in one.rows] if one.label else one.rows
    yield layer(_TYPES.get(one.kind, one.kind), rows, {**where, **look}, **form)
    if one.kind == "line" and one.told:
        yield layer("point", one.rows, where, opacity=0, size=120, filled=True)
    if one.words:
        beside = {"align": "center", "dy": (1.3 if one.under else -1.1) * pen.text}
        beside = {"align": "left", "dx": 4} if one.kind == "bar" else beside
        words = {**where, "text": {"field": one.words}}
        yield layer("text", one.rows, words, **beside, fill=INK, clip=False)


def _paint(one: Marks, marks: Sequence[Marks], pen: Pen) -> Spec:
    """Return how marks are told from others: by colour, dashes and shape, with a legend."""
    channel = _choose_channel(one)
    if not channel:
        return {}
    if not one.label:
        looks: Spec = {channel: {"value": themed(one.colour)}}
        if one.kind in ("line", "span"):
            looks["strokeDash"] = {"value": dash(one.dashes, pen.dash)}
        elif one.kind == "point":
            looks["shape"] = {"value": one.marker}
        return looks
    named = list({other.label: other for other in marks if other.rows and other.label}.values())
    alike = [other for other in named if other.kind == one.kind]
    painted = [other for other in named if _choose_channel(other) == channel]
    looks = {channel: _choose(painted, [themed(other.colour) for other in painted], pen)}
    if one.kind in ("line", "span"):
        looks["strokeDash"] = _choose(alike, [dash(other.dashes, pen.dash) for other in alike], pen)
        form = {**LINES, "symbolOffset": 0.7 * pen.text, "labelOffset": pen.text}
        looks = {name: {**look, "legend": {**look["legend"], **form}} for name, look in looks.items()}
    elif one.kind == "point":
        looks["shape"] = _choose(alike, [other.marker for other in alike], pen)
    else:
        looks[channel]["legend"]["symbolType"] = "square"
    return looks


def _choose_channel(one: Marks) -> str:
    """Return what has the colour of marks, "" for rules, bands, crosses and texts, which have no legend."""
    if one.kind in ("rule", "band", "cross", "text"):
        return ""
    return "stroke" if one.kind in ("line", "span") or one.face else "fill"


def _choose(marks: Sequence[Marks], values: Sequence[object], pen: Pen) -> Spec:
    """Return the channel that gives each of some marks a value."""
    labels = [one.label for one in marks]
    # As many samples side by side as there is room for, and no more than six.
    wide = pen.text * (4 + 0.5 * max(map(len, labels)))
    legend = {"columns": min(6, max(1, int(pen.room / wide)))}
    return nominal("name", scale={"domain": labels, "range": list(values)}, legend=legend)


def _cross(one: Marks, plot: Plot, pen: Pen) -> Iterator[Spec]:
    """Yield a line through a chart, and its name beside it."""
    [(axis, value)] = one.rows[0].items()
    along, end = ("y", "height") if axis == "x" else ("x", "width")
    place = {axis: {"datum": value}}
    whole = {along: {"value": 0}, f"{along}2": {"value": end}}
    form = {"color": themed(one.colour), "strokeDash": dash(one.dashes, pen.dash)}
    yield annotate("rule", {**place, **whole}, **form, strokeWidth=pen.width * one.size)
    words: Spec = {"align": "right", "baseline": "bottom", "dy": -2}
    if axis == "x":
        # On the side that has more room.
        low, high = plot.x.low, plot.x.high
        late = value > ((low * high) ** 0.5 if plot.x.kind == "log" else (low + high) / 2)
        words = {"align": "right" if late else "left", "baseline": "top", "dx": -4 if late else 4, "dy": 4}
    if one.label:
        lines = textwrap.wrap(one.label, 18) if pen.room < _NARROW else one.label
        start = {along: {"value": 0 if axis == "x" else end}, "text": {"value": lines}}
        yield annotate("text", {**place, **start}, fill=INK, **words)


def _cover(one: Marks) -> Iterator[Spec]:
    """Yield an area across a chart, and its name in it, upwards."""
    [row] = one.rows
    area = {"x": {"datum": row["x"]}, "x2": {"datum": row["x2"]}, "y": {"value": 0}, "y2": {"value": "height"}}
    end = {"x": {"datum": (row["x"] * row["x2"]) ** 0.5}, "y": {"value": "height"}}
    yield annotate("rect", area, fill=INK, fillOpacity=0.1)
    words = {**end, "text": {"value": one.label}}
    yield annotate("text", words, angle=270, align="left", dx=4, fill=INK)
