"""One look for all charts: colours for all kinds of colour vision, sizes at which all text is legible."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from ckptplan.strategies.registry import all_strategies, strategy_of


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


COLUMN = Size(name="column", width=3.4, height=None, points=8, dots=300)
PAGE = Size(name="page", width=6.9, height=None, points=8, dots=170)
SLIDE = Size(name="slide", width=13.3, height=7.5, points=15, dots=110)
#: All sizes by name, the smallest first.
SIZES: Mapping[str, Size] = {size.name: size for size in (COLUMN, PAGE, SLIDE)}


#: Okabe and Ito's colours (jfly.uni-koeln.de/color), distinct for all common kinds of colour vision.
BLACK, ORANGE, SKY, GREEN, YELLOW, BLUE, VERMILION, PURPLE = (
    "#000000", "#E69F00", "#56B4E9", "#009E73", "#F0E442", "#0072B2", "#D55E00", "#CC79A7",
)  # fmt: skip
GREY, PALE = "#767676", "#E3E3E3"
#: The colour of each kind of event, in timelines and pages.
EVENT_COLOURS = {
    "forward": BLUE,
    "recompute": SKY,
    "record": GREEN,
    "backward": VERMILION,
    "write": PURPLE,
    "read": ORANGE,
    "wait": BLACK,
}


#: Shapes of points, the most different ones first: by name, or as paths about in a square from -1 to 1.
CIRCLE = "circle"
CROSS = "M-1,-0.6L-0.6,-1L0,-0.4L0.6,-1L1,-0.6L0.4,0L1,0.6L0.6,1L0,0.4L-0.6,1L-1,0.6L-0.4,0Z"
_STAR = "M0,-1.5L0.4,-0.5L1.4,-0.5L0.6,0.2L0.9,1.2L0,0.6L-0.9,1.2L-0.6,0.2L-1.4,-0.5L-0.4,-0.5Z"
_HEXAGON = "M0,-1L0.87,-0.5L0.87,0.5L0,1L-0.87,0.5L-0.87,-0.5Z"
SHAPES = (
    CIRCLE, "square", "triangle-up", "diamond", "triangle-down", "cross", CROSS, "triangle-left", _STAR,
    _HEXAGON,
)  # fmt: skip
#: Kinds of lines, from the plainest on.
DASHES: Sequence[Sequence[float]] = ((), (5, 1.5), (5, 1.5, 1, 1.5), (1, 1.2), (2.5, 1.2), (8, 2))


@dataclass(frozen=True, kw_only=True)
class Look:
    """How a curve is distinguished: by colour, marker and dashes, also in a grey print."""

    colour: str
    marker: str
    dashes: Sequence[float] = ()


#: The colours of strategies. Their number and that of shapes have no common factor, so that 70 looks differ.
_COLOURS = (BLACK, BLUE, VERMILION, ORANGE, GREEN, PURPLE, SKY)


def look_of(strategy: str) -> Look:
    """Return the look of a registered strategy by its place in the registry, the same in every chart.

    Raises InputError for an unknown strategy.
    """
    place = list(all_strategies()).index(strategy_of(strategy).name)
    return Look(
        colour=_COLOURS[place % len(_COLOURS)],
        marker=SHAPES[place % len(SHAPES)],
        dashes=DASHES[place % len(DASHES)],
    )
