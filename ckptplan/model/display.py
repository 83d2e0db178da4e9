"""Shows results in notebooks and as pictures, through functions that upper layers register.

The layers of results may not import the layers that draw. So ``ckptplan/__init__.py`` registers the functions.
"""

from __future__ import annotations

#: In place of typing's, so that importing the package does not import typing.
TYPE_CHECKING = False

if TYPE_CHECKING:
    from collections.abc import Callable
    from typing import Any

    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

#: Functions of upper layers by name: ``show_as_html(result)``, ``plot(result, target)``.
_REGISTERED: dict[str, Callable[..., Any]] = {}


def register_display(**functions: Callable[..., Any]) -> None:
    """Register ``show_as_html``, which returns HTML or None, and ``plot``, which returns axes or a figure."""
    _REGISTERED.update(functions)


class Displayed:
    """A result that notebooks show as a table, and as a picture if it has one."""

    __slots__ = ()

    def _repr_html_(self) -> str | None:
        html: str | None = _REGISTERED["show_as_html"](self)
        return html


class DrawnOnAxes(Displayed):
    """A result whose picture is one pair of axes."""

    __slots__ = ()

    def plot(self, ax: Axes | None = None) -> Axes:
        """Draw the result with matplotlib and return the axes.

        Arguments:
            ax: axes to draw on, as a subplot of the caller's figure; None makes a figure.

        The style of ckptplan holds where the user's ``rcParams`` are matplotlib's defaults. pyplot is not used.
        """
        axes: Axes = _REGISTERED["plot"](self, ax)
        return axes


class DrawnOnFigure(Displayed):
    """A result whose picture has several panels."""

    __slots__ = ()

    def plot(self, figure: Figure | None = None) -> Figure:
        """Draw the result with matplotlib and return the figure.

        Arguments:
            figure: an empty figure or subfigure to draw in; None makes one.

        The style of ckptplan holds where the user's ``rcParams`` are matplotlib's defaults. pyplot is not used.
        """
        drawn: Figure = _REGISTERED["plot"](self, figure)
        return drawn
