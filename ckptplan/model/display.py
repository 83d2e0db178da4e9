"""Shows results in notebooks: IPython asks an object for its HTML and its picture."""

from __future__ import annotations

#: As typing's, which would be loaded with the package.
TYPE_CHECKING = False

if TYPE_CHECKING:
    from collections.abc import Callable
    from typing import Any

#: 'html' or 'png' -> what shows a result so; the package fills it.
_DISPLAYS: dict[str, Callable[[Any], Any]] = {}


class Displayed:
    """A result that notebooks show as a table, and as a picture if it has one.

    What draws it, and what that imports, is found when a notebook asks, not before.
    """

    __slots__ = ()

    def _repr_html_(self) -> str | None:
        shown: str | None = _DISPLAYS["html"](self)
        return shown

    def _repr_png_(self) -> bytes | None:
        drawn: bytes | None = _DISPLAYS["png"](self)
        return drawn


def register_displays(*, html: Callable[[Any], str | None], png: Callable[[Any], bytes | None]) -> None:
    """Take what shows a result as HTML, and what draws it as PNG; either returns None if there is nothing."""
    _DISPLAYS.update(html=html, png=png)
