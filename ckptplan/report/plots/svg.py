"""Renders figures as SVG with native tooltips, for files and for pages, whose colours they take."""

from __future__ import annotations

import re
from collections.abc import Sequence
from io import StringIO
from typing import Any
from xml.etree import ElementTree

import matplotlib as mpl
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
#: Coordinates, which are rounded to a tenth of a point, and the space around the commands of a path.
_NUMBER, _AROUND_COMMAND = re.compile(r"-?\d+\.\d+"), re.compile(r"\s*([A-Za-z])\s*")
#: Removes the date and the version from files, so that equal figures give equal files.
_NO_METADATA = dict.fromkeys(("Creator", "Date", "Format", "Type"))
#: Replacements in ``style`` attributes within a page, which has its own colours and font.
_THEMED = {"stroke: #000000": "stroke: currentColor", "fill: #ffffff": "fill: Canvas"}
_FONT = re.compile(r"'DejaVu Sans'[^;]*")


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
    ElementTree.register_namespace("", _SVG)
    ElementTree.register_namespace("xlink", _XLINK)
    return ElementTree.tostring(_make_tree(figure), encoding="unicode", xml_declaration=True)


def make_page_svg(figure: Any, name: str) -> str:
    """Return a figure as an SVG element for a page; ``name`` makes its identifiers unique there."""
    for ax in figure.axes:
        ax.patch.set_visible(False)
    figure.patch.set_visible(False)
    # matplotlib derives the identifiers of shared parts from the salt.
    with mpl.rc_context({"svg.hashsalt": name}):
        root = _make_tree(figure)
    for element in list(root.iter()):
        _adapt(element)
    for attribute in ("width", "height", "version"):
        root.attrib.pop(attribute, None)
    root.attrib |= {"fill": "currentColor", "aria-hidden": "true", "focusable": "false"}
    return ElementTree.tostring(root, encoding="unicode")


def _make_tree(figure: Any) -> ElementTree.Element:
    """Return a picture as elements, with a title in each point that has a tooltip."""
    file, dots = StringIO(), figure.dpi
    with use_style():
        # ``savefig`` draws twice: once for the layout, and again for the file.
        FigureCanvasSVG(figure).print_svg(file, metadata=_NO_METADATA)  # type: ignore[no-untyped-call]
    figure.dpi = dots
    root = ElementTree.fromstring(file.getvalue())  # noqa: S314 - matplotlib wrote it just now
    for point in root.iter(f"{{{_SVG}}}a"):
        link, _, text = point.attrib.pop(f"{{{_XLINK}}}href").partition(_TEXT)
        point.attrib.clear()
        if link:
            point.set(f"{{{_XLINK}}}href", link)
        else:
            point.tag = f"{{{_SVG}}}g"
        title = ElementTree.Element(f"{{{_SVG}}}title")
        title.text = text.replace(_NEWLINE, "\n")
        point.insert(0, title)
    return root


def _adapt(element: ElementTree.Element) -> None:
    """Adapt an element to a page: its identifier, its colours and its coordinates."""
    element.tag = str(element.tag).rpartition("}")[2]
    attributes = {key.rpartition("}")[2]: value for key, value in element.attrib.items()}
    # Nothing refers to a group, and the names of groups are the same in every picture.
    if element.tag == "g" and attributes.pop("id", "") == _TIPS:
        attributes["class"] = _TIPS
    if "style" in attributes:
        for plain, themed in _THEMED.items():
            attributes["style"] = attributes["style"].replace(plain, themed)
        attributes["style"] = _FONT.sub("sans-serif", attributes["style"]).replace("; ", ";").replace(": ", ":")
    for key, value in attributes.items():
        if key in ("x", "y", "transform", "d"):
            rounded = _NUMBER.sub(lambda number: f"{float(number[0]):.1f}".removesuffix(".0"), value)
            attributes[key] = _AROUND_COMMAND.sub(r"\1", rounded) if key == "d" else rounded
    element.attrib.clear()
    element.attrib.update(attributes)
    element.tail = None
    if element.tag not in ("text", "tspan", "title"):
        element.text = None
