"""Shows results in notebooks: IPython asks an object for its HTML."""

from __future__ import annotations

#: As typing's, which would be loaded with the package.
TYPE_CHECKING = False

if TYPE_CHECKING:
    from collections.abc import Callable
    from typing import Any

#: What shows a result as HTML; the package fills it.
_DISPLAYS: list[Callable[[Any], str | None]] = []


class Displayed:
    """A result that notebooks show as a table.

    What prints it, and what that imports, is found when a notebook asks, not before.
    """

    __slots__ = ()

    def _repr_html_(self) -> str | None:
        return _DISPLAYS[-1](self)


def register_display(show_as_html: Callable[[Any], str | None]) -> None:
    """Take what shows a result as HTML; it returns None if there is nothing."""
    _DISPLAYS.append(show_as_html)
