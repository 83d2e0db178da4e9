"""Measures a drawn picture: where its texts are, and what they touch."""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass
from itertools import combinations
from xml.etree import ElementTree as ET

from ckptplan.report.picture import Picture

#: The width of characters of Arial, and of fonts as wide, in thousandths of their size.
_WIDTHS = {
    222: "'ijl|", 278: " !,./:;I[]ft", 333: '"()-`r', 389: "*", 500: "^Jcksvxyz",
    556: "#$0123456789?L_abdeghnopqu", 584: "+<=>~", 611: "FTZ", 667: "&ABEKPSVXY", 722: "CDHNRUw",
    778: "GOQ", 833: "Mm", 889: "%", 944: "W",
}  # fmt: skip
_WIDTH_OF = {character: width for width, characters in _WIDTHS.items() for character in characters}
_PLACE = re.compile(r"translate\(([-.\de]+),\s*([-.\de]+)\)")


@dataclass(frozen=True)
class Text:
    """A line of text and its box, in points from the upper left corner."""

    words: str
    points: float
    left: float
    top: float
    right: float
    bottom: float


def draw(picture: Picture) -> ET.Element:
    """Return what is drawn."""
    return ET.fromstring(picture.draw())  # noqa: S314 - our own picture


def texts_of(picture: Picture) -> list[Text]:
    """Return every line of text that is seen."""
    return list(_walk(draw(picture), 0.0, 0.0))


def words_of(picture: Picture) -> list[str]:
    """Return every line of text that is seen, as text."""
    return [text.words for text in texts_of(picture)]


def _walk(element: ET.Element, x: float, y: float) -> Iterator[Text]:
    if element.get("opacity") == "0":
        return
    transform = element.get("transform", "")
    if found := _PLACE.search(transform):
        x, y = x + float(found[1]), y + float(found[2])
    if element.tag.endswith("}text"):
        yield from _measure(element, x, y, turned="rotate(-90)" in transform or "rotate(270)" in transform)
        return
    for child in element:
        yield from _walk(child, x, y)


def _measure(element: ET.Element, x: float, y: float, *, turned: bool) -> Iterator[Text]:
    points = float(element.get("font-size", "").removesuffix("px"))
    for line in list(element) or [element]:
        words = line.text or ""
        if line is not element:
            y += float(line.get("dy", 0))
        wide = points * sum(_WIDTH_OF.get(character, 1000) for character in words) / 1000
        start = -wide * {"end": 1.0, "middle": 0.5}.get(element.get("text-anchor", ""), 0.0)
        if words.strip() and turned:
            yield Text(words, points, x - 0.7 * points, y - start - wide, x + 0.2 * points, y - start)
        elif words.strip():
            yield Text(words, points, x + start, y - 0.7 * points, x + start + wide, y + 0.2 * points)


def assert_legible(picture: Picture) -> None:
    """No text is cut off, covers another one, or is smaller than others; the picture has its size."""
    root, size = draw(picture), picture.size
    wide, high = float(root.get("width", 0)), float(root.get("height", 0))
    assert abs(wide - 72 * size.width) < 3
    assert size.height is None or abs(high - 72 * size.height) < 3
    texts = list(_walk(root, 0.0, 0.0))
    assert not [
        one for one in texts if min(one.left, one.top) < -1 or one.right > wide + 1 or one.bottom > high + 1
    ]
    assert not [
        (one.words, other.words)
        for one, other in combinations(texts, 2)
        if min(one.right, other.right) - max(one.left, other.left) > 0.5
        and min(one.bottom, other.bottom) - max(one.top, other.top) > 0.5
    ]
    assert {text.points for text in texts} == {size.points}
