"""Makes figures of a given size, and writes PNG, SVG and PDF files."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from io import BytesIO
from typing import Any

from matplotlib.axes import Axes
from matplotlib.figure import Figure

from ckptplan.report.picture import PAGE, Size, picture_format
from ckptplan.report.plots import svg
from ckptplan.report.plots.style import LINE_WIDTH, use_style
from ckptplan.storage.files import write_bytes

#: Dots per inch of pictures in notebooks.
SCREEN_DOTS = 100


class ShownAxes(Axes):
    """Axes that a notebook shows as their figure."""

    def _repr_png_(self) -> bytes:
        return render(self.figure, "png", dots=SCREEN_DOTS)


class ShownFigure(Figure):
    """A figure that a notebook shows without pyplot."""

    def _repr_png_(self) -> bytes:
        return render(self, "png", dots=SCREEN_DOTS)


@dataclass(frozen=True, kw_only=True)
class Drawing:
    """The functions that draw a kind of result: on one pair of axes, or in a figure with several panels.

    Both functions take the result, the target, and options as keyword arguments.
    """

    on_axes: Callable[..., None] | None = None
    in_figure: Callable[..., None] | None = None
    #: Returns the height of the picture on a page, in inches.
    height: Callable[[Any, Size], float] = lambda result, size: 3.6  # noqa: ARG005


def make_figure(draw: Callable[[Figure], object], size: Size = PAGE, *, height: float = 3.6) -> Figure:
    """Make a figure and let ``draw`` fill it. ``height`` in inches is used if the size has no height."""
    scale = size.points / PAGE.points
    settings = {"font.size": size.points, "lines.linewidth": scale * LINE_WIDTH}
    with use_style(**settings):
        shape = (size.width, size.height or height * min(1.0, scale))
        figure = ShownFigure(figsize=shape, dpi=size.dots, layout="constrained")
        draw(figure)
    return figure


def save_figure(figure: Figure, path: str) -> None:
    """Write a figure atomically as PNG, SVG or PDF, as the suffix of the path says. Raises InputError."""
    write_bytes(path, render(figure, picture_format(path)))


def render(figure: Any, form: str, *, dots: float | None = None) -> bytes:
    """Return the bytes of a picture, reproducible for equal figures. ``dots`` are dots per inch of a PNG."""
    if form == "svg":
        return svg.render_svg(figure).encode()
    file = BytesIO()
    with use_style():
        metadata = {"CreationDate": None} if form == "pdf" else None
        figure.savefig(file, format=form, dpi=dots or "figure", metadata=metadata)
    return file.getvalue()
