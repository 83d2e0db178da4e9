"""One look for all charts: colours that hold in light, dark and print, axes, and ways to zoom."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar

from ckptplan.model.plan import Plan
from ckptplan.report import style
from ckptplan.report.fields import FACTS, format_cells, format_parameters, make_plan_row
from ckptplan.report.scale import LINEAR, Scale

#: A Vega-Lite specification, or a part of one.
Spec = dict[str, Any]

#: Text and lines take the colour of the page, which a reader's theme and a printer change.
INK = "currentColor"

_CONFIG: Spec = {
    "aria": False,
    "background": "transparent",
    "font": "system-ui, sans-serif",
    "view": {"stroke": None},
    "axis": {
        "labelColor": INK,
        "titleColor": INK,
        "tickColor": INK,
        "domainColor": INK,
        "domainOpacity": 0.4,
        "tickOpacity": 0.4,
        "gridColor": INK,
        "gridOpacity": 0.1,
        "labelFontSize": 12,
        "titleFontSize": 12,
        "titleFontWeight": "normal",
        "labelLimit": 220,
    },
    "legend": {
        "labelColor": INK,
        "titleColor": INK,
        "labelFontSize": 12,
        "titleFontSize": 12,
        "titleFontWeight": "normal",
        "orient": "bottom",
        "direction": "horizontal",
        "columns": 6,
        "symbolSize": 260,
        "symbolStrokeWidth": 2.5,
        "labelLimit": 220,
    },
    "text": {"color": INK, "fontSize": 12},
}


@dataclass(frozen=True, kw_only=True)
class Chart:
    """A chart of a page: its specification, and what it shows in words."""

    kind: ClassVar[str] = "chart"
    name: str
    title: str
    #: What is seen and what can be done, for the caption.
    caption: str
    spec: Spec
    #: Whether its time axis, or both axes, can be moved and scaled.
    zooms: bool = False

    @classmethod
    def of(cls, name: str, title: str, caption: str, *, zooms: bool = False, **spec: Any) -> Chart:
        """Return a chart in the common look."""
        return cls(name=name, title=title, caption=caption, spec={"config": _CONFIG, **spec}, zooms=zooms)


#: What is told of a plan that is pointed at: the members of ``label_row`` and their titles.
PLAN: Mapping[str, str] = {one.name: one.heading for one in FACTS}


def label_row(row: Mapping[str, Any]) -> Spec:
    """Return what is told of a plan, given by the cells of its columns."""
    told = {"parameters": format_cells(row), **row}
    return {one.name: one.form([told[one.name]])[0] if one.form else told[one.name] for one in FACTS}


def label_plan(plan: Plan) -> Spec:
    """Return what is told of a plan."""
    return label_row({**make_plan_row(plan), "parameters": format_parameters(plan)})


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
