"""The sizes of pictures: for a column of a paper, a page, a slide; text is legible at the printed size."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass


@dataclass(frozen=True, kw_only=True)
class Size:
    """The size of a picture as it is printed or shown.

    ``height`` is in inches, or None if each picture takes the height that it needs; lengths within a picture,
    as of markers and lines, grow with ``points``, the size of all text.
    """

    name: str
    width: float
    height: float | None
    points: float
    #: Dots per inch of a PNG.
    dots: int

    @property
    def scale(self) -> float:
        """How much larger text is than on a page."""
        return self.points / 8

    def inches(self, height: float) -> tuple[float, float]:
        """Return width and height of a picture that would be ``height`` inches high on a page."""
        return self.width, self.height or height


COLUMN = Size(name="column", width=3.4, height=None, points=8, dots=300)
PAGE = Size(name="page", width=6.9, height=None, points=8, dots=170)
SLIDE = Size(name="slide", width=13.3, height=7.5, points=15, dots=110)
#: All sizes by name, the smallest first.
SIZES: Mapping[str, Size] = {size.name: size for size in (COLUMN, PAGE, SLIDE)}
