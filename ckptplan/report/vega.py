"""Parts of charts in Vega-Lite: colours that hold in light, dark and print, axes, and ways to zoom."""

from __future__ import annotations

import json
from collections.abc import Sequence
from typing import Any

from ckptplan.report import style
from ckptplan.report.scale import LINEAR, Scale
from ckptplan.wording import escape_controls

#: The version of Vega-Lite that charts are written for.
VERSION = "6.1"
#: A Vega-Lite specification, or a part of one.
Spec = dict[str, Any]

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
