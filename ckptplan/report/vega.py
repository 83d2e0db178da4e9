"""Parts of charts of pages: colours that hold in light, dark and print, axes, and ways to zoom."""

from __future__ import annotations

import json
from collections.abc import Sequence
from typing import Any

from ckptplan.report import style
from ckptplan.report.scale import LINEAR, Scale

#: A Vega-Lite specification, or a part of one.
Spec = dict[str, Any]

#: Text and lines take the colour of the page, which a reader's theme and a printer change.
INK = "currentColor"


def themed(colour: str) -> str:
    """Return a colour for both themes: black becomes that of the text."""
    return INK if colour == style.BLACK else colour


def dash(dashes: Any) -> list[float]:
    """Return the dashes of a look."""
    return [1, 0] if dashes == "-" else [3 * part for part in dashes[1]]


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
    ticks = {**label_ticks(scale), "labelOverlap": "greedy", "labelSeparation": 12, **axis}
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


#: Lines in legends, not the dots of marks that have the same colours.
LINES: Spec = {"symbolType": "stroke", "symbolFillColor": "transparent"}


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
