"""Figures and their files: new ones in a size, those of the caller, tooltips, and PNG, SVG and PDF."""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from io import BytesIO, StringIO
from typing import Any

from matplotlib.axes import Axes
from matplotlib.backends.backend_svg import FigureCanvasSVG
from matplotlib.figure import Figure

from ckptplan.report.picture import PAGE, Size, picture_format
from ckptplan.report.plots.style import LINE_WIDTH, use_style
from ckptplan.storage.files import write_bytes

#: Dots an inch of pictures in notebooks.
SCREEN_DOTS = 100
#: Points of a picture that have a tooltip.
MOST_TOOLTIPS = 400
#: In the link of a point: where its text begins, and ends of lines of the text, which a link may not hold.
_TEXT, _NEWLINE = "\N{SYMBOL FOR START OF TEXT}", "\N{SYMBOL FOR NEWLINE}"
_POINT = re.compile(f'<a xlink:href="([^"{_TEXT}]*){_TEXT}([^"]*)"[^>]*>(.*?)</a>', re.DOTALL)


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
    """How a kind of result is drawn: on one pair of axes, or in a figure where it has several panels."""

    on_axes: Callable[[Any, Axes], None] | None = None
    in_figure: Callable[[Any, Figure], None] | None = None
    #: Inches on a page.
    height: Callable[[Any, Size], float] = lambda result, size: 3.6  # noqa: ARG005


def make_figure(draw: Callable[[Figure], object], size: Size = PAGE, *, height: float = 3.6) -> Figure:
    """Return a figure that ``draw`` has filled; ``height`` in inches is for sizes without one of their own."""
    scale = size.points / PAGE.points
    own = {"font.size": size.points, "lines.linewidth": scale * LINE_WIDTH}
    with use_style(**own):
        shape = (size.width, size.height or height * min(1.0, scale))
        figure = ShownFigure(figsize=shape, dpi=size.dots, layout="constrained")
        draw(figure)
    return figure


def save_figure(figure: Figure, path: str) -> None:
    """Write a figure as PNG, SVG or PDF, as the name says, whole or not at all. Raises InputError."""
    write_bytes(path, render(figure, picture_format(path)))


def add_tooltips(
    ax: Axes, x: Sequence[float], y: Sequence[float], texts: Sequence[str], *, links: Sequence[str] = ()
) -> None:
    """Add a point for each text, which SVG files and pages show where the pointer is.

    With ``links``, as ``#plan-3``, the points are dots that lead there; without, they cannot be seen.
    """
    lines = (text.replace("\n", _NEWLINE) for text in texts)
    urls = [f"{link}{_TEXT}{text}" for link, text in zip(links or [""] * len(texts), lines, strict=True)]
    look: dict[str, Any] = {"color": "none", "s": 60}
    if links:
        look = {"facecolor": "white", "edgecolor": "black", "s": 26}
    ax.autoscale(enable=False)
    ax.scatter(x, y, urls=urls, zorder=7, gid="tips", **look)


def render(figure: Any, form: str, *, dots: float | None = None) -> bytes:
    """Return the bytes of a picture, the same ones for the same figure; ``dots`` an inch of a PNG."""
    if form == "svg":
        return render_svg(figure).encode()
    file = BytesIO()
    with use_style():
        metadata = {"CreationDate": None} if form == "pdf" else None
        figure.savefig(file, format=form, dpi=dots or "figure", metadata=metadata)
    return file.getvalue()


def render_svg(figure: Any) -> str:
    """Return a picture as SVG with native tooltips."""
    file, dots = StringIO(), figure.dpi
    with use_style():
        # ``savefig`` draws twice: once for the layout, and again for the file.
        FigureCanvasSVG(figure).print_svg(file, metadata={"Date": None})  # type: ignore[no-untyped-call]
    figure.dpi = dots
    return _POINT.sub(_write_tooltip, file.getvalue())


def _write_tooltip(found: re.Match[str]) -> str:
    """Return a point with a native tooltip, within a link if it has one."""
    link, text, point = found.groups()
    title = f"<title>{text.replace(_NEWLINE, chr(10))}</title>{point}"
    return f'<a xlink:href="{link}">{title}</a>' if link else f"<g>{title}</g>"
