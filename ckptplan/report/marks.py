"""Marks of charts, each described once: matplotlib draws them in pictures, Vega-Lite on pages."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Literal

from ckptplan.report import style, vega
from ckptplan.report.scale import Scale
from ckptplan.report.style import Size
from ckptplan.report.vega import Spec

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure


@dataclass(frozen=True, kw_only=True)
class Marks:
    """Marks that look the same: one for each row; a line and an area go through all rows.

    A row says where a mark is, ``x`` and ``y``, and where it ends, ``x2`` or ``y2``; what else it has can be
    told. Crosses have a ``height`` instead. A rule has one place, and crosses the chart there; a band is the
    part of a chart from ``x`` to ``x2``.
    """

    kind: Literal["line", "area", "point", "span", "bar", "tick", "cross", "rule", "band"]
    rows: Sequence[Spec]
    colour: str = style.BLACK
    #: What marks mean, for the legend; that of a rule or a band stands beside it where there is room.
    label: str = ""
    dashes: Any = "-"
    marker: str = ""
    #: The width of lines, or that of points, in units of the width of a line.
    size: float = 1.0
    #: The colour within points, if it is another one.
    face: str = ""
    opacity: float = 1.0
    #: Where crosses are, as a share of the height of the chart.
    height: float = 0.0
    #: Whether a line or an area keeps its height up to the next row.
    steps: bool = False
    #: What is told of a row that is pointed at: its members and their titles.
    told: Mapping[str, str] = field(default_factory=dict)
    #: The member of a row that a page writes beside a point or a bar.
    words: str = ""


def mark_limit(axis: Literal["x", "y"], value: float | None, name: str) -> Marks:
    """Return a line through a chart at a limit, where there is one, with its name."""
    rows: list[Spec] = [] if value is None else [{axis: value}]
    return Marks(kind="rule", rows=rows, colour=style.VERMILION, dashes=(0, (4, 2)), label=name if rows else "")


@dataclass(frozen=True, kw_only=True)
class Plot:
    """Marks between two axes; that upwards may be names, a row for each, the first one on top."""

    x: Scale
    y: Scale | Sequence[str]
    marks: Sequence[Marks]
    title: str = ""


def draw_plot(axes: Axes, plot: Plot, size: Size) -> dict[str, Any]:
    """Draw a plot in a picture; return a sample of each label."""
    plot.x.set_on(axes, "x")
    axes.set_title(plot.title)
    if isinstance(plot.y, Scale):
        plot.y.set_on(axes, "y")
        return draw_marks(axes, plot.marks, size)
    return draw_marks(axes, plot.marks, size, plot.y)


def draw_alone(plot: Plot, size: Size, height: float, *title: str) -> Figure:
    """Return the picture of one plot, ``height`` inches high on a page, with lines over it."""
    figure = style.start_figure(size, height, *title)
    samples = draw_plot(figure.subplots(), plot, size)
    return style.finish_figure(figure, list(samples.values()), size)


def layer_plot(plot: Plot, *, zooms: Sequence[str] = ()) -> Spec:
    """Return the layers and axes that draw a plot on a page, and what moves it along some axes."""
    layers = layer_marks(plot.marks)
    if zooms:
        layers[0]["params"] = [vega.zoom(*zooms)]
    y = vega.at("y", plot.y) if isinstance(plot.y, Scale) else vega.nominal("y", scale={"domain": list(plot.y)})
    x = {**vega.at("x", plot.x), "stack": None}
    title = {"title": plot.title} if plot.title else {}
    return {**title, "layer": layers, "encoding": {"x": x, "y": y}}


def draw_marks(axes: Axes, marks: Sequence[Marks], size: Size, names: Sequence[str] = ()) -> dict[str, Any]:
    """Draw marks in a picture, later ones above others; return a sample of each label.

    If rows of the picture have ``names``, marks are at these.
    """
    samples: dict[str, Any] = {}
    for order, one in enumerate(marks):
        if one.rows:
            form = {"color": one.colour, "label": one.label, "alpha": one.opacity, "zorder": 1 + order / 100}
            sample = _draw(axes, one, size.scale, names, form)
            if one.kind == "line":
                # Staggered between lines, so that lines that coincide all show.
                sample.set_markevery((0.02 * order, 0.18))
            if one.label and one.kind != "band":
                samples.setdefault(one.label, sample)
    return samples


def _draw(axes: Axes, one: Marks, unit: float, names: Sequence[str], form: Mapping[str, Any]) -> Any:
    from matplotlib.collections import LineCollection
    from matplotlib.patheffects import withStroke

    places: list[Any] = [[row.get(name) for row in one.rows] for name in ("x", "y", "x2", "y2")]
    x, y, x2, y2 = places
    sample: Any
    y = [names.index(name) for name in y] if names and one.kind != "rule" else y
    width: Any = {"linewidth": unit * one.size}
    match one.kind:
        case "line":
            dots: Any = {"marker": one.marker, "markersize": 4 * unit, "markeredgewidth": 0.8 * unit}
            step: Any = {"drawstyle": "steps-post"} if one.steps else {}
            [sample] = axes.plot(x, y, linestyle=one.dashes, **width, **dots, **step, **form)
        case "point":
            edge: Any = {"markerfacecolor": one.face or one.colour, "markeredgewidth": unit, "clip_on": False}
            marker: Any = {"marker": one.marker or "o", "markersize": unit * one.size, "linestyle": ""}
            halo = [] if one.face else [withStroke(linewidth=3 * unit, foreground="white")]
            [sample] = axes.plot(x, y, path_effects=halo, **marker, **edge, **form)
        case "cross":
            place: Any = {"marker": "x", "linestyle": "", "transform": axes.get_xaxis_transform()}
            [sample] = axes.plot(x, [one.height] * len(x), markersize=4 * unit, **place, **form)
        case "area":
            sample = axes.fill_between(x, y, y2, step="post" if one.steps else None, linewidth=0, **form)
        case "span":
            starts, ends = zip(x, y, strict=True), zip(x2, y if y2[0] is None else y2, strict=True)
            # Snapped to dots, lines closer than those would vanish or merge at random.
            lines = LineCollection(
                list(zip(starts, ends, strict=True)), linestyle=one.dashes, snap=False, **width, **form
            )
            sample = axes.add_collection(lines)
        case "bar":
            sample = axes.barh(y, x, height=0.62, edgecolor=style.BLACK, linewidth=0.4, **form)
        case "tick":
            sample = axes.vlines(x, [row - 0.31 for row in y], [row + 0.31 for row in y], **width, **form)
        case "rule":
            cross: Any = axes.axhline if x == [None] else axes.axvline
            sample = cross(*(y if x == [None] else x), linestyle=one.dashes, **width, **form)
        case "band":
            sample = axes.axvspan(*x, *x2, linewidth=0, **form)
            axes.annotate(
                one.label, ((x[0] * x2[0]) ** 0.5, 0.5), xycoords=axes.get_xaxis_transform(), rotation=90,
                ha="center", va="center",
            )  # fmt: skip
    return sample


_SHAPES = ("circle", "square", "triangle-up", "diamond", "triangle-down", "cross", "triangle-right", "wedge")
#: How Vega-Lite calls marks, where it has another name, and how large it takes their units to be.
_TYPES = {"span": "rule"}
_WIDTH, _AREA = 1.5, 5.0


def layer_marks(marks: Sequence[Marks]) -> list[Spec]:
    """Return the layers that draw marks on a page, later ones above others."""
    return [layer for one in marks for layer in _generate_layers(one, marks)]


def _generate_layers(one: Marks, marks: Sequence[Marks]) -> Iterator[Spec]:
    if not one.rows:
        return
    if one.kind == "rule":
        yield from _cross(one)
    elif one.kind == "band":
        yield from _cover(one)
    elif one.kind == "cross":
        where = {"x": vega.at("x"), "y": {"value": {"expr": f"height * {1 - one.height}"}}}
        form = {"text": "\N{MULTIPLICATION SIGN}", "fontSize": 18, "fill": vega.INK}
        yield vega.layer("text", one.rows, {**where, "tooltip": vega.tell(**one.told)}, **form)
    else:
        places = {axis for axis in ("x", "x2", "y", "y2") if not isinstance(one.rows[0].get(axis, ""), str)}
        where = {axis: {"field": axis} if axis.endswith("2") else vega.at(axis) for axis in sorted(places)}
        told = {"tooltip": vega.tell(**one.told) if one.told else None}
        form = {"opacity": one.opacity, **({"interpolate": "step-after"} if one.steps else {})}
        if one.kind == "point":
            form |= {
                "size": _AREA * one.size**2,
                **({"fill": one.face} if one.face else {"filled": True, "stroke": "white"}),
            }
        elif one.kind in ("line", "span"):
            form |= {"strokeWidth": _WIDTH * one.size}
        rows = [{**row, "name": one.label} for row in one.rows] if one.label else one.rows
        kind = _TYPES.get(one.kind, one.kind)
        yield vega.layer(kind, rows, {**where, **_paint(one, marks), **told}, **form)
        if one.kind == "line" and one.told:
            yield vega.layer("point", one.rows, {**where, **told}, opacity=0, size=120, filled=True)
        if one.words:
            beside = {"align": "left", "dx": 4} if one.kind == "bar" else {"align": "center", "dy": -11}
            words = {**where, "text": {"field": one.words}}
            yield vega.layer("text", one.rows, words, **beside, fill=vega.INK, clip=False)


def _paint(one: Marks, marks: Sequence[Marks]) -> Spec:
    """Return how marks are told from others: by colour, dashes and shape, with a legend."""
    if not one.label:
        dashes = {"strokeDash": {"value": vega.dash(one.dashes)}} if one.kind == "line" else {}
        return {_choose_channel(one): {"value": vega.themed(one.colour)}, **dashes}
    named = list({other.label: other for other in marks if other.label}.values())
    alike = [other for other in named if other.kind == one.kind]
    painted = [other for other in named if _choose_channel(other) == _choose_channel(one)]
    looks = {_choose_channel(one): _choose(painted, [vega.themed(other.colour) for other in painted])}
    if one.kind == "line":
        looks["strokeDash"] = _choose(alike, [vega.dash(other.dashes) for other in alike])
        looks = {channel: {**look, "legend": vega.LINES} for channel, look in looks.items()}
    elif one.kind == "point":
        looks["shape"] = _choose(alike, [_SHAPES[place % len(_SHAPES)] for place in range(len(alike))])
    return looks


def _choose_channel(one: Marks) -> str:
    """Return what has the colour of marks, "" for rules, bands and crosses, which have no legend."""
    if one.kind in ("rule", "band", "cross"):
        return ""
    return "stroke" if one.kind in ("line", "span") or one.face else "fill"


def _choose(marks: Sequence[Marks], values: Sequence[Any]) -> Spec:
    """Return the channel that gives each of some marks a value."""
    return vega.nominal("name", scale={"domain": [one.label for one in marks], "range": list(values)})


def _cross(one: Marks) -> Iterator[Spec]:
    """Yield a line through a chart, and its name beside it."""
    [(axis, value)] = one.rows[0].items()
    along, end = ("y", "height") if axis == "x" else ("x", "width")
    place = {axis: {"datum": value}}
    whole = {along: {"value": 0}, f"{along}2": {"value": end}}
    form = {"color": vega.themed(one.colour), "strokeDash": vega.dash(one.dashes), "strokeWidth": _WIDTH}
    yield vega.annotate("rule", {**place, **whole}, **form)
    words: Spec = {"align": "left", "baseline": "top", "dx": 4, "dy": 4}
    if axis == "y":
        words = {"align": "right", "baseline": "bottom", "dy": -2}
    if one.label:
        start = {along: {"value": 0 if axis == "x" else end}, "text": {"value": one.label}}
        yield vega.annotate("text", {**place, **start}, fill=vega.INK, **words)


def _cover(one: Marks) -> Iterator[Spec]:
    """Yield an area across a chart, and its name in it, upwards."""
    [row] = one.rows
    area = {"x": {"datum": row["x"]}, "x2": {"datum": row["x2"]}, "y": {"value": 0}, "y2": {"value": "height"}}
    middle = {"x": {"datum": (row["x"] * row["x2"]) ** 0.5}, "y": {"value": {"expr": "height / 2"}}}
    yield vega.annotate("rect", area, fill=vega.INK, fillOpacity=0.1)
    yield vega.annotate("text", {**middle, "text": {"value": one.label}}, angle=270, fill=vega.INK)
