"""One look for all pictures: colours for all kinds of colour vision, sizes at which all text is legible."""

from __future__ import annotations

import io
import textwrap
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from ckptplan.errors import InputError
from ckptplan.report.scale import drop_overlaps
from ckptplan.storage.files import write_bytes
from ckptplan.strategies.registry import all_strategies, strategy_of
from ckptplan.wording import escape_controls

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure


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


@dataclass(frozen=True, kw_only=True)
class Look:
    """How a curve is distinguished: by colour, marker and dashes, also in a grey print."""

    colour: str
    marker: str
    dashes: Any = "-"


#: The looks of strategies, in the registry's order. The lengths of the first two have no common factor, so that
#: 140 looks differ.
_COLOURS = (BLACK, BLUE, VERMILION, ORANGE, GREEN, PURPLE, SKY)
_MARKERS = "os^DvPX<*h>dp8H1234+"
#: Kinds of lines, from the plainest on.
DASHES: tuple[Any, ...] = (
    "-", (0, (5, 1.5)), (0, (5, 1.5, 1, 1.5)), (0, (1, 1.2)), (0, (2.5, 1.2)), (0, (8, 2))
)  # fmt: skip


def look_of(strategy: str) -> Look:
    """Return the look of a registered strategy, which is the same in every picture.

    Raises InputError for an unknown strategy.
    """
    place = list(all_strategies()).index(strategy_of(strategy).name)
    return Look(
        colour=_COLOURS[place % len(_COLOURS)],
        marker=_MARKERS[place % len(_MARKERS)],
        dashes=DASHES[place % len(DASHES)],
    )


#: File formats of pictures.
FORMATS = ("png", "svg", "pdf")

_STYLE: Mapping[str, Any] = {
    "font.family": "DejaVu Sans",
    "axes.titlelocation": "left",
    "axes.spines.top": False,
    "axes.spines.right": False,
    "axes.edgecolor": GREY,
    "xtick.color": GREY,
    "ytick.color": GREY,
    "xtick.labelcolor": BLACK,
    "ytick.labelcolor": BLACK,
    "legend.frameon": False,
    "svg.fonttype": "none",
    # So that the same picture gives the same file.
    "svg.hashsalt": "ckptplan",
}


def styled(size: Size = PAGE) -> Any:
    """Return a context in which to make and save figures of a size.

    matplotlib reads a file of settings from the current folder, which may be a stranger's: they do not count.
    Raises InputError if it cannot read them.
    """
    try:
        import matplotlib as mpl
    except (OSError, ValueError) as error:
        raise InputError(
            f"matplotlib cannot read its settings: {error}",
            field="matplotlibrc",
            accepted="a file that it can read",
        ) from None
    backend = ("backend", "backend_fallback")
    # A plain mapping, where the types spell out three hundred names.
    style: Any = {name: value for name, value in mpl.rcParamsDefault.items() if name not in backend}
    texts = ("font.size", "axes.titlesize", "axes.labelsize", "xtick.labelsize", "ytick.labelsize")
    style |= {**_STYLE, **dict.fromkeys((*texts, "legend.fontsize", "figure.titlesize"), size.points)}
    # Lines grow with text.
    style |= dict.fromkeys(("axes.linewidth", "xtick.major.width", "ytick.major.width"), 0.6 * size.scale)
    # Labels are placed at the resolution at which a PNG is saved: text is not quite as wide at others.
    return mpl.rc_context({**style, "figure.dpi": size.dots})


def start_figure(size: Size, height: float, *title: str) -> Figure:
    """Return an empty figure, ``height`` inches high on a page, with lines over it, broken to its width."""
    from matplotlib.figure import Figure
    from matplotlib.text import Text

    figure = Figure(figsize=size.inches(height), layout="constrained")
    edge = 0.04 * figure.dpi
    broken: list[str] = []
    for line in map(escape_controls, title):
        wide = Text(0, 0, line, figure=figure, parse_math=False).get_window_extent().width
        # Some characters are wider than others of the same line.
        fitting = int(0.95 * len(line) * (figure.bbox.width - 2 * edge) / wide)
        broken += textwrap.wrap(line, max(1, fitting), max_lines=3, placeholder="…", break_on_hyphens=False)
    figure.suptitle("\n".join(broken), x=edge / figure.bbox.width, ha="left", parse_math=False)
    return figure


def finish_figure(figure: Figure, handles: Sequence[Any], size: Size) -> Figure:
    """Put a legend below a figure, and leave out names of axes for which there is no room.

    The legend has as many columns as there is width for. A picture that takes the height that it needs grows.
    """
    for columns in range(min(5, len(handles)), 0, -1):
        legend = figure.legend(
            handles=list(handles), loc="outside lower left", ncols=columns, handlelength=2.4,
            columnspacing=1.2, borderaxespad=0.2,
        )  # fmt: skip
        extent = legend.get_window_extent()
        if columns == 1 or extent.width <= figure.bbox.width:
            if size.height is None:
                figure.set_figheight(figure.get_figheight() + extent.height / figure.dpi)
            break
        legend.remove()
    drop_overlaps(figure)
    return figure


def name_rows(axes: Axes, names: Sequence[str], values: Sequence[str], *, least: int = 1) -> None:
    """Name the rows of a picture, and write what belongs to each at their ends; ``least`` rows have room."""
    axes.set_yticks(range(len(names)), names)
    ends = axes.secondary_yaxis("right")
    ends.set_yticks(range(len(names)), values)
    ends.spines["right"].set_visible(False)
    for side in (axes, ends):
        side.tick_params(axis="y", length=0)
    axes.set_ylim(max(least, len(names)) - 0.4, -0.6)


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


def save_picture(figure: Figure, path: str) -> None:
    """Write a figure, whole or not at all. Raises InputError."""
    from PIL import Image  # what matplotlib writes PNG with

    chosen = picture_format(path)
    buffer = io.BytesIO()
    no_date: dict[str, Any] = {"svg": {"Date": None}, "pdf": {"CreationDate": None}}.get(chosen, {})
    figure.savefig(buffer, format=chosen, dpi="figure", metadata=no_date)
    if chosen == "png":
        # 256 colours are enough for lines and text, at a third of the size.
        plain = Image.open(buffer).convert("RGB").quantize(256, dither=Image.Dither.NONE)
        buffer = io.BytesIO()
        plain.save(buffer, "png", optimize=True)
    write_bytes(path, buffer.getvalue())
