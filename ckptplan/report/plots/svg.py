"""Figures as SVG within a page: native tooltips, and lines and words in the colours of the page."""

from __future__ import annotations

import re
from xml.etree import ElementTree

from matplotlib.figure import Figure

from ckptplan.report.plots.figures import render_svg

#: Numbers of coordinates, of which a tenth of a point is enough, and commands of a path with their numbers.
_NUMBER, _COMMAND = re.compile(r"-?\d+\.\d+"), re.compile(r"([A-Za-z])([^A-Za-z]*)")
#: What names a part of the picture: ``url(#part)`` and ``href="#part"``.
_REFERENCE = re.compile(r"(?:(?<=url\()|(?<=href=\")|^)#([^)\"]+)")
#: The list of families in which matplotlib looks for a font.
_FONT = re.compile(r"'DejaVu Sans'[^;]*")
_LEFT_TO_PAGE = re.compile(r"(?:stroke-line(?:cap|join): \w+|text-anchor: start)(?:; )?|(?<=;) ")
#: A rotation by nothing, which matplotlib writes for level texts.
_LEVEL = re.compile(r"rotate\(-?0(?:\.0)? [^)]*\)")
#: The group of points with tooltips.
_TIPS = "tips"
#: Parts that say nothing within a page.
_LEFT_OUT = ("metadata", "style")
#: What takes a colour of the page, in ``style`` and other attributes.
_THEMED = (("stroke: #000000", "stroke: currentColor"), ("fill: #ffffff", "fill: Canvas"))


def make_page_svg(figure: Figure, name: str) -> str:
    """Return a figure as an SVG element for a page; ``name`` makes its identifiers unique there."""
    for ax in figure.axes:
        ax.patch.set_visible(False)
    figure.patch.set_visible(False)
    text = render_svg(figure)
    used = set(_REFERENCE.findall(text))
    root = ElementTree.fromstring(text)  # noqa: S314 - matplotlib wrote it just now
    for element in list(root.iter()):
        _adapt(element, name, used)
    _flatten(root)
    for attribute in ("width", "height", "version"):
        root.attrib.pop(attribute, None)
    root.attrib |= {"fill": "currentColor", "aria-hidden": "true", "focusable": "false"}
    return ElementTree.tostring(root, encoding="unicode")


def _flatten(element: ElementTree.Element) -> None:
    """Leave out parts that say nothing, and replace groups without attributes by what they hold."""
    children = list(element)
    for child in children:
        element.remove(child)
        _flatten(child)
        if child.tag == "g" and not child.attrib and child.find("title") is None:
            element.extend(child)
        elif child.tag not in _LEFT_OUT and (len(child) or child.tag != "defs"):
            element.append(child)


def _adapt(element: ElementTree.Element, name: str, used: set[str]) -> None:
    """Change one element in place: its names, its colours, its numbers, and its tooltip."""
    element.tag = str(element.tag).rpartition("}")[2]
    given = {key.rpartition("}")[2]: value for key, value in element.attrib.items()}
    own = given.pop("id", "")
    if own == _TIPS:
        given["class"] = _TIPS
    elif own in used:
        given["id"] = f"{name}-{own}"
    for key, value in given.items():
        given[key] = value if element.tag == "a" else _REFERENCE.sub(rf"#{name}-\1", value)
    if "style" in given:
        for plain, themed in _THEMED:
            given["style"] = given["style"].replace(plain, themed)
        # Joins and ends of lines are those of the style sheet of the page.
        given["style"] = _LEFT_TO_PAGE.sub("", _FONT.sub("sans-serif", given["style"])).replace(": ", ":")
    for key in ("x", "y", "transform"):
        if key in given:
            given[key] = _NUMBER.sub(lambda found: f"{float(found[0]):.1f}", given[key])
    given["transform"] = _LEVEL.sub("", given.get("transform", "")).strip()
    if "d" in given:
        given["d"] = _shorten_path(given["d"])
    element.attrib.clear()
    element.attrib.update({key: value for key, value in given.items() if value})
    element.tail = None
    if element.tag not in ("text", "tspan", "title"):
        element.text = None


def _shorten_path(path: str) -> str:
    """Return a path to a tenth of a point, with short commands for level and upright lines."""
    parts: list[str] = []
    x = y = ""
    for command, numbers in _COMMAND.findall(path):
        places = [f"{float(number):.1f}".removesuffix(".0") for number in numbers.split()]
        if command == "L" and places == [x, y]:
            continue
        if command == "L" and places[1] == y:
            parts.append(f"H{places[0]}")
        elif command == "L" and places[0] == x:
            parts.append(f"V{places[1]}")
        else:
            parts.append(command + " ".join(places))
        x, y = places[-2:] or ("", "")
    return "".join(parts)
