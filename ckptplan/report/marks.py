"""Marks of charts, each described once, and the layers of Vega-Lite that draw them on pages and in pictures."""

from __future__ import annotations

import textwrap
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Literal

from ckptplan.report import style, vega
from ckptplan.report.scale import Scale
from ckptplan.report.vega import Spec


@dataclass(frozen=True, kw_only=True)
class Marks:
    """Marks that look the same: one for each row; a line and an area go through all rows.

    A row says where a mark is, ``x`` and ``y``, and where it ends, ``x2`` or ``y2``; what else it has can be
    told. Crosses have no ``y``, and texts a list of lines, ``text``. A rule has one place, and
    crosses the chart there; a band is the part of a chart from ``x`` to ``x2``. Areas of several shapes have
    the ``shape`` that a row belongs to; they and areas with ``x2`` go downwards.
    """

    kind: Literal["line", "area", "point", "span", "bar", "tick", "cross", "text", "rule", "band"]
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
    #: Layers below the marks, as the cells of a heat map.
    below: Sequence[Spec] = ()


@dataclass(frozen=True, kw_only=True)
class Pen:
    """How large marks of size 1 are, in dots: the width of lines, a unit of dashes, the area of points."""

    width: float = 1.5
    dash: float = 3.0
    area: float = 5.0
    text: float = 12.0
    #: The width that a legend has.
    room: float = 800.0

    def count_columns(self, labels: Sequence[str]) -> int:
        """Return how many samples of a legend stand side by side."""
        wide = self.text * (4 + 0.5 * max(map(len, labels)))
        return min(6, max(1, int(self.room / wide)))


PAGE_PEN = Pen()
#: In less room, the name of a rule is broken.
_NARROW = 250


def layer_plot(plot: Plot, *, zooms: Sequence[str] = (), pen: Pen = PAGE_PEN) -> Spec:
    """Return the layers and axes that draw a plot, and what moves it along some axes."""
    layers = [
        *plot.below,
        *(layer for one in plot.marks if one.rows for layer in _generate_layers(one, plot, pen)),
    ]
    if zooms:
        layers[0]["params"] = [vega.zoom(*zooms)]
    y = vega.at("y", plot.y) if isinstance(plot.y, Scale) else _name_rows(plot.y, pen)
    names = {} if plot.x.title else {"labels": False, "ticks": False}
    x = {**vega.at("x", plot.x, labelSeparation=12, **names), "stack": None}
    title = {"title": plot.title} if plot.title else {}
    return {**title, "layer": layers, "encoding": {"x": x, "y": y}}


def _name_rows(names: Sequence[str], pen: Pen) -> Spec:
    """Return the axis of names; what follows a colon stands below."""
    two = any(": " in name for name in names)
    lines = {"labelExpr": "split(datum.label, ': ')", "labelOffset": -pen.text / 2} if two else {}
    return vega.nominal("y", scale={"domain": list(names)}, axis=lines)


#: How Vega-Lite calls marks, where it has another name.
_TYPES = {"span": "rule", "cross": "text"}
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
    where: Spec = {axis: {"field": axis} if axis.endswith("2") else vega.at(axis) for axis in sorted(places)}
    where["tooltip"] = vega.tell(**one.told) if one.told else None
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
        form |= {"fill": vega.INK, "align": "left", "dx": pen.text / 2, "dy": up, "clip": False}
    elif one.kind in ("line", "span"):
        form |= {"strokeWidth": pen.width * one.size}
    elif one.kind == "area" and "x2" in one.rows[0]:
        form |= {"orient": "horizontal"}
        look["detail"] = {"field": "shape"}
    rows = [{**row, "name": one.label} for row in one.rows] if one.label else one.rows
    yield vega.layer(_TYPES.get(one.kind, one.kind), rows, {**where, **look}, **form)
    if one.kind == "line" and one.told:
        yield vega.layer("point", one.rows, where, opacity=0, size=120, filled=True)
    if one.words:
        beside = {"align": "center", "dy": (1.3 if one.under else -1.1) * pen.text}
        beside = {"align": "left", "dx": 4} if one.kind == "bar" else beside
        words = {**where, "text": {"field": one.words}}
        yield vega.layer("text", one.rows, words, **beside, fill=vega.INK, clip=False)


def _paint(one: Marks, marks: Sequence[Marks], pen: Pen) -> Spec:
    """Return how marks are told from others: by colour, dashes and shape, with a legend."""
    channel = _choose_channel(one)
    if not channel:
        return {}
    if not one.label:
        looks: Spec = {channel: {"value": vega.themed(one.colour)}}
        if one.kind in ("line", "span"):
            looks["strokeDash"] = {"value": vega.dash(one.dashes, pen.dash)}
        elif one.kind == "point":
            looks["shape"] = {"value": one.marker}
        return looks
    named = list({other.label: other for other in marks if other.rows and other.label}.values())
    alike = [other for other in named if other.kind == one.kind]
    painted = [other for other in named if _choose_channel(other) == channel]
    looks = {channel: _choose(painted, [vega.themed(other.colour) for other in painted], pen)}
    if one.kind in ("line", "span"):
        looks["strokeDash"] = _choose(alike, [vega.dash(other.dashes, pen.dash) for other in alike], pen)
        form = {**vega.LINES, "symbolOffset": 0.7 * pen.text, "labelOffset": pen.text}
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
    legend = {"columns": pen.count_columns(labels)}
    return vega.nominal("name", scale={"domain": labels, "range": list(values)}, legend=legend)


def _cross(one: Marks, plot: Plot, pen: Pen) -> Iterator[Spec]:
    """Yield a line through a chart, and its name beside it."""
    [(axis, value)] = one.rows[0].items()
    along, end = ("y", "height") if axis == "x" else ("x", "width")
    place = {axis: {"datum": value}}
    whole = {along: {"value": 0}, f"{along}2": {"value": end}}
    form = {"color": vega.themed(one.colour), "strokeDash": vega.dash(one.dashes, pen.dash)}
    yield vega.annotate("rule", {**place, **whole}, **form, strokeWidth=pen.width * one.size)
    words: Spec = {"align": "right", "baseline": "bottom", "dy": -2}
    if axis == "x":
        # On the side that has more room.
        low, high = plot.x.low, plot.x.high
        late = value > ((low * high) ** 0.5 if plot.x.kind == "log" else (low + high) / 2)
        words = {"align": "right" if late else "left", "baseline": "top", "dx": -4 if late else 4, "dy": 4}
    if one.label:
        lines = textwrap.wrap(one.label, 18) if pen.room < _NARROW else one.label
        start = {along: {"value": 0 if axis == "x" else end}, "text": {"value": lines}}
        yield vega.annotate("text", {**place, **start}, fill=vega.INK, **words)


def _cover(one: Marks) -> Iterator[Spec]:
    """Yield an area across a chart, and its name in it, upwards."""
    [row] = one.rows
    area = {"x": {"datum": row["x"]}, "x2": {"datum": row["x2"]}, "y": {"value": 0}, "y2": {"value": "height"}}
    end = {"x": {"datum": (row["x"] * row["x2"]) ** 0.5}, "y": {"value": "height"}}
    yield vega.annotate("rect", area, fill=vega.INK, fillOpacity=0.1)
    words = {**end, "text": {"value": one.label}}
    yield vega.annotate("text", words, angle=270, align="left", dx=4, fill=vega.INK)
