"""One look for all charts: colours that hold in light, dark and print, axes, and ways to zoom."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from ckptplan.report import style

#: A Vega-Lite specification, or a part of one.
Spec = dict[str, Any]

#: Text and lines take the colour of the page, which a reader's theme and a printer change.
INK = "currentColor"

CONFIG: Spec = {
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

    name: str
    title: str
    #: What is seen and what can be done, for the caption.
    caption: str
    spec: Spec
    #: Whether its time axis, or both axes, can be moved and scaled.
    zooms: bool = False


def themed(colour: str) -> str:
    """Return a colour for both themes: black becomes that of the text."""
    return INK if colour == style.BLACK else colour


def strategy_scales(names: Sequence[str]) -> tuple[Spec, Spec]:
    """Return the scales of colour and dashes for strategies: the same look as in every picture."""
    looks = [style.look_of(name) for name in names]
    dashes = [[1, 0] if look.dashes == "-" else [3 * part for part in look.dashes[1]] for look in looks]
    return (
        {"domain": list(names), "range": [themed(look.colour) for look in looks]},
        {"domain": list(names), "range": dashes},
    )


def annotate(mark: Spec, encoding: Spec) -> Spec:
    """Return a layer that draws one mark which belongs to no data."""
    # Vega-Lite leaves out rows without the fields of the other layers, whether or not this one reads them.
    row = dict.fromkeys(("b", "memory", "over", "x", "y"), 1)
    return {
        "data": {"values": [row]},
        "mark": {"clip": True, **mark},
        "encoding": {"tooltip": None, **encoding},
    }


def labelled_axis(labels: Mapping[float, str], **more: Any) -> Spec:
    """Return an axis with ticks at these values, and their labels."""
    values = [float(value) for value in labels]
    # Looked up by the place in the list: as a key, a number would have to be formatted as JavaScript does.
    expression = f"{json.dumps(list(labels.values()))}[indexof({json.dumps(values)}, datum.value)]"
    return {"values": values, "labelExpr": expression, **more}


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


def round_steps(least: float, most: float, *, binary: bool) -> list[float]:
    """Return round values between two, at most about twenty: 1, 2, 5 times powers of ten, or powers of two."""
    if binary:
        powers = np.arange(np.floor(np.log2(max(least, 1))), np.ceil(np.log2(max(most, 1))) + 1)
        every = max(1, len(powers) // 16)
        return [float(2.0**power) for power in powers[::every]]
    tens = np.arange(np.floor(np.log10(least)), np.ceil(np.log10(most)) + 1)
    digits = (1, 2, 5) if len(tens) < 6 else (1,)
    return [float(digit * 10.0**power) for power in tens for digit in digits]
