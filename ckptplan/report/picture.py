"""Defines pictures of results, their sizes and file formats. Importing this module loads no drawing code."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from importlib import import_module
from pathlib import Path
from typing import TYPE_CHECKING, Any

from ckptplan.errors import InputError

if TYPE_CHECKING:
    from matplotlib.figure import Figure

#: File formats of pictures.
FORMATS = ("png", "svg", "pdf")


@dataclass(frozen=True, kw_only=True)
class Size:
    """The size of a picture as it is printed or shown.

    ``width`` and ``height`` are in inches; if the height is None, each kind of picture chooses it. ``points``
    is the size of the text, and ``dots`` are the dots per inch of a PNG.
    """

    name: str
    width: float
    height: float | None
    points: float
    dots: int


COLUMN = Size(name="column", width=3.4, height=None, points=7, dots=300)
PAGE = Size(name="page", width=6.9, height=None, points=9, dots=170)
SLIDE = Size(name="slide", width=13.3, height=7.5, points=16, dots=110)
#: All sizes by name, the smallest first.
SIZES: Mapping[str, Size] = {size.name: size for size in (COLUMN, PAGE, SLIDE)}


def picture_format(path: str) -> str:
    """Return the picture format that a file's name implies. Raises InputError for an unknown one."""
    suffix = Path(path).suffix.removeprefix(".").lower()
    if suffix not in FORMATS:
        raise InputError(
            f"{path!r} does not say which kind of picture",
            value=path,
            accepted="a name that ends in " + ", ".join(f".{name}" for name in FORMATS),
        )
    return suffix


@dataclass(frozen=True, kw_only=True)
class Chart:
    """A picture of a result, with a caption on a page. Drawing it imports matplotlib.

    The function that draws the result takes the ``options``. A chart that ``has_dots`` also takes the plans
    whose schedules a page shows, and draws a dot for each.
    """

    result: Any
    caption: str
    options: Mapping[str, Any] = field(default_factory=dict)
    has_dots: bool = False

    def draw(self, size: Size = PAGE) -> Figure:
        """Draw the picture in a size."""
        # Import by name, since the drawing functions import the modules that describe results.
        plots = import_module("ckptplan.report.plots")
        figure: Figure = plots.make_picture(self.result, size, **self.options)
        return figure
