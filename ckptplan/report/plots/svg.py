"""Renders figures as SVG with native tooltips, for files and for pages, whose colours they take."""

from __future__ import annotations

import re
from collections.abc import Sequence
from io import StringIO
from typing import Any
from xml.etree import ElementTree

from matplotlib.axes import Axes
from matplotlib.backends.backend_svg import FigureCanvasSVG

from ckptplan.report.plots.style import use_style

_SVG, _XLINK = "http://www.w3.org/2000/svg", "http://www.w3.org/1999/xlink"
#: Marks in the link of a point: the beginning of its tooltip, and line breaks, which a link may not contain.
_TEXT, _NEWLINE = "\N{SYMBOL FOR START OF TEXT}", "\N{SYMBOL FOR NEWLINE}"
#: The most points of a picture that have a tooltip.
MOST_TOOLTIPS = 400
#: The identifier of the group of points with tooltips.
_TIPS = "tips"
#: Coordinates, of which a page needs one decimal.
_COORDINATES, _FRACTION = re.compile(r' (?:d|x|y|transform)="[^"]*"'), re.compile(r"(\.\d)\d+")
#: Removes the date and the version from files, so that equal figures give equal files.
_NO_METADATA = dict.fromkeys(("Creator", "Date", "Format", "Type"))


def add_tooltips(
    ax: Axes, x: Sequence[float], y: Sequence[float], texts: Sequence[str], *, links: Sequence[str] = ()
) -> None:
    """Add a point with a tooltip for each text, shown in SVG files and pages.

    With ``links``, as ``#plan-3``, the points are dots with these links. Without, they are invisible.
    """
    lines = (text.replace("\n", _NEWLINE) for text in texts)
    urls = [f"{link}{_TEXT}{text}" for link, text in zip(links or [""] * len(texts), lines, strict=True)]
    look: dict[str, Any] = {"color": "none", "s": 60}
    if links:
        look = {"facecolor": "white", "edgecolor": "black", "s": 26}
    ax.autoscale(enable=False)
    ax.scatter(x, y, urls=urls, zorder=7, gid=_TIPS, **look)


def render_svg(figure: Any) -> str:
    """Return a picture as the text of an SVG file."""
    return ElementTree.tostring(_make_tree(figure), encoding="unicode", xml_declaration=True)


def make_page_svg(figure: Any, name: str) -> str:
    """Return a figure as an SVG element for a page; ``name`` makes its identifiers unique there."""
    for ax in figure.axes:
        ax.patch.set_visible(False)
    figure.patch.set_visible(False)
    # matplotlib names the parts that a picture refers to by hashes with this salt.
    root = _make_tree(figure, **{"svg.hashsalt": name})
    for group in root.iter(f"{{{_SVG}}}g"):
        # Nothing refers to groups, which have the same names in every picture.
        if group.attrib.pop("id", "") == _TIPS:
            group.set("class", _TIPS)
    for attribute in ("width", "height"):
        root.attrib.pop(attribute)
    root.attrib |= {"fill": "currentColor", "aria-hidden": "true", "focusable": "false"}
    text = ElementTree.tostring(root, encoding="unicode")
    return _COORDINATES.sub(lambda attribute: _FRACTION.sub(r"\1", attribute[0]), text)


def _make_tree(figure: Any, **settings: str) -> ElementTree.Element:
    """Return a picture as elements, with a title in each point that has a tooltip."""
    file, dots = StringIO(), figure.dpi
    with use_style(**settings):
        # ``savefig`` draws twice: once for the layout, and again for the file.
        FigureCanvasSVG(figure).print_svg(file, metadata=_NO_METADATA)  # type: ignore[no-untyped-call]
    figure.dpi = dots
    ElementTree.register_namespace("", _SVG)
    ElementTree.register_namespace("xlink", _XLINK)
    root = ElementTree.fromstring(file.getvalue())  # noqa: S314 - matplotlib wrote it just now
    for point in root.iter(f"{{{_SVG}}}a"):
        link, _, text = point.attrib.pop(f"{{{_XLINK}}}href").partition(_TEXT)
        point.attrib.clear()
        if link:
            point.set("href", link)
        else:
            point.tag = f"{{{_SVG}}}g"
        title = ElementTree.Element(f"{{{_SVG}}}title")
        title.text = text.replace(_NEWLINE, "\n")
        point.insert(0, title)
    return root
