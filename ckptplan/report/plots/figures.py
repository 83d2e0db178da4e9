"""Makes figures of a given size, and writes PNG, SVG and PDF files."""

from __future__ import annotations

from collections.abc import Callable
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
    """A figure in a size of a picture, which a notebook shows without pyplot."""

    def __init__(self, size: Size) -> None:
        super().__init__(figsize=(size.width, size.height or size.width), dpi=size.dots, layout="constrained")
        self.size = size

    def _repr_png_(self) -> bytes:
        return render(self, "png", dots=SCREEN_DOTS)


def make_figure(draw: Callable[[Figure], object], size: Size = PAGE) -> Figure:
    """Make a figure in a size and let ``draw`` fill it. ``draw`` also sets the height (``set_height``)."""
    settings = {"font.size": size.points, "lines.linewidth": size.points / PAGE.points * LINE_WIDTH}
    with use_style(**settings):
        figure = ShownFigure(size)
        draw(figure)
    return figure


def set_height(place: Any, height: float) -> None:
    """Set the height in inches of a figure of this package, unless its size has one."""
    if isinstance(place, ShownFigure) and place.size.height is None:
        place.set_figheight(height * min(1.0, place.size.points / PAGE.points))


def take_axes(place: Any, *, height: float = 3.6) -> Axes:
    """Return the axes of the caller, or new axes in a figure, which gets a height in inches."""
    if isinstance(place, Axes):
        return place
    set_height(place, height)
    axes: Axes = place.add_subplot(axes_class=ShownAxes)
    return axes


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
