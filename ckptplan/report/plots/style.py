"""The look of all drawings: fonts, lines and a palette that is safe for common kinds of colour blindness.

A drawing is made within ``use_style``. The user's ``rcParams`` win where they differ from matplotlib's
defaults.
"""

from __future__ import annotations

import textwrap
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from functools import partial
from math import ceil, log2
from typing import Any

import matplotlib as mpl
import numpy as np
from cycler import cycler
from matplotlib.artist import Artist
from matplotlib.axes import Axes
from matplotlib.axis import Axis
from matplotlib.figure import Figure
from matplotlib.textpath import TextPath
from matplotlib.ticker import FuncFormatter, LogLocator, MaxNLocator, MultipleLocator, NullFormatter

from ckptplan.report.numbers import NO_BREAK, keep_numbers
from ckptplan.units import are_decimal, format_bytes

#: Okabe and Ito's colours (jfly.uni-koeln.de/color).
BLUE, ORANGE, GREEN, VERMILION, PURPLE, SKY, YELLOW = (
    "#0072B2", "#E69F00", "#009E73", "#D55E00", "#CC79A7", "#56B4E9", "#F0E442",
)  # fmt: skip
#: The paper's strategies, in the order of their colours.
PAPER = ("standard", "remote", "hierarchical", "double")
#: Lines in the background.
GREY = "#9a9a9a"
#: The line of a limit, as a budget or a deadline, and the area beyond it.
LIMIT: dict[str, Any] = {"color": "black", "linewidth": 1.0, "linestyle": (0, (4, 3))}
BEYOND: dict[str, Any] = {"facecolor": "black", "alpha": 0.05, "linewidth": 0, "zorder": 0}
#: The width of a line at the size of a page, in points.
LINE_WIDTH = 1.6
#: The area where nothing fits.
NOTHING: dict[str, Any] = {"facecolor": "none", "edgecolor": GREY, "hatch": "////", "linewidth": 0}

#: The most ticks that are tried. Those without room are dropped.
_MOST_TICKS = 500
#: Round times in seconds: powers of ten, and round numbers of minutes, hours and days.
ROUND_SECONDS = (
    *(10.0**power for power in range(-18, 1)),
    10.0, 60.0, 600.0, 3600.0, 36000.0, 345600.0,
    *(864000.0 * 10.0**power for power in range(8)),
)  # fmt: skip

_STYLE: dict[str, Any] = {
    "axes.axisbelow": True,
    "axes.grid": True,
    "axes.prop_cycle": cycler(color=[BLUE, ORANGE, GREEN, VERMILION, PURPLE, SKY, YELLOW]),
    "axes.spines.right": False,
    "axes.spines.top": False,
    "axes.titlelocation": "left",
    "axes.titlesize": "medium",
    "axes.titleweight": "bold",
    # Fix the height of titles. Otherwise matplotlib measures all ticks to place them.
    "axes.titley": 1.0,
    "grid.alpha": 0.12,
    "grid.color": "black",
    "legend.edgecolor": "none",
    "lines.linewidth": LINE_WIDTH,
    "pdf.fonttype": 42,
    "svg.fonttype": "none",
    "svg.hashsalt": "ckptplan",
}


@contextmanager
def use_style(**changes: Any) -> Iterator[None]:
    """Apply the style of the package with ``changes``, except for settings that the user has changed."""
    wanted = {**_STYLE, **changes}
    settings: Any = mpl.rcParams
    defaults: Any = mpl.rcParamsDefault
    applied = {name: value for name, value in wanted.items() if settings[name] == defaults[name]}
    # Names of workloads may contain a dollar sign, which must not begin a formula.
    applied["text.parse_math"] = False
    with mpl.rc_context(applied):  # type: ignore[arg-type]
        yield


def list_colours() -> list[str]:
    """Return the colours of series, of the style or as the user has set them."""
    return [str(colour) for colour in mpl.rcParams["axes.prop_cycle"].by_key().get("color", [BLUE])]


def find_figure(ax: Axes) -> Figure:
    """Return the whole figure of axes."""
    figure = ax.get_figure(root=True)
    assert figure is not None  # noqa: S101 - axes that are drawn on have one
    return figure


def lay_out(ax: Axes) -> None:
    """Place axes in their figure, so that texts can be measured against them."""
    figure = find_figure(ax)
    engine = figure.get_layout_engine()
    if engine is not None:
        engine.execute(figure)


def find_width(place: Any) -> float:
    """Return the width in inches of a figure or subfigure, or of the column in which axes stand."""
    figure = place.figure if isinstance(place, Axes) else place
    grid = place.get_subplotspec() if isinstance(place, Axes) else None
    return float(figure.bbox.width / figure.dpi / (1 if grid is None else grid.get_gridspec().ncols))


def wrap_lines(place: Any, *lines: str, letter: float = 0.7) -> str:
    """Break lines so that they fit the width of the figure, or of the column of the axes.

    ``letter`` is the mean width of a letter over the size of the font; the default is that of bold text.
    """
    size = mpl.rcParams["font.size"]
    fitting = max(10, int((72 * find_width(place) - 6 * size) / (letter * size)))
    wrapper = textwrap.TextWrapper(fitting, break_on_hyphens=False)
    parts = (part for line in lines for part in wrapper.wrap(keep_numbers(line)))
    return "\n".join(parts).replace(NO_BREAK, " ")


def set_title(place: Any, *lines: str, letter: float = 0.7, **look: Any) -> None:
    """Set the title of axes or of a figure of panels, with lines broken to fit."""
    text = wrap_lines(place, *lines, letter=letter)
    if isinstance(place, Axes):
        place.set_title(text, **look)
    else:
        place.suptitle(text, x=0.01, ha="left", size="medium", weight="bold", **look)


def add_legend(place: Any, handles: Sequence[Artist], title: str = "") -> None:
    """Put a legend below the panels of a figure, or into axes where it covers the least."""
    # The width of each label with its sample and gaps, and the room, in units of the size of the font.
    widths = [TextPath((0, 0), str(handle.get_label()), size=1).get_extents().width + 5 for handle in handles]
    room = 72 * find_width(place) / mpl.rcParams["font.size"]
    # For one row, two rows and so on: the columns into which matplotlib splits the entries.
    layouts = (np.array_split(widths, ceil(len(widths) / (1 + rows))) for rows in range(len(widths)))
    columns = next((len(parts) for parts in layouts if sum(map(max, parts)) < room), 1)
    location = "best" if isinstance(place, Axes) else "outside lower left"
    place.legend(handles=handles, loc=location, ncols=columns, title=title, alignment="left")


def draw_limit(ax: Axes, limit: float, text: str, side: str = "center") -> None:
    """Draw a limit as a line under a text, and shade what lies beyond it up to the end of the axis.

    Set the title first, since it is moved above the text. ``side`` is the part of the text that is at the line.
    """
    ax.axvline(limit, **LIMIT)
    # Fix the ends of the axis, which the shaded area would move.
    ax.set_xlim(ax.get_xlim())
    ax.axvspan(limit, ax.get_xlim()[1], **BEYOND)
    above: dict[str, Any] = {"xycoords": ("data", "axes fraction"), "textcoords": "offset points"}
    ax.annotate(text, (limit, 1), (0, 3), ha=side, va="bottom", annotation_clip=False, **above)
    ax.set_title(ax.get_title(loc="left"), pad=1.9 * mpl.rcParams["font.size"])


def format_axis(axis: Axis, form: Callable[[float], str]) -> None:
    """Label the major ticks of an axis by a function of their value."""
    percent = r"\%" if mpl.rcParams["text.usetex"] else "%"
    axis.set_major_formatter(FuncFormatter(lambda value, _: form(value).replace("%", percent)))
    axis.set_minor_formatter(NullFormatter())


def set_bytes_axis(axis: Axis, *, most: int = 6) -> None:
    """Label an axis of bytes at powers of two or their multiples, or in decimal units at round numbers.

    Set the limits of the axis first.
    """
    low, high = sorted(axis.get_view_interval())
    is_log = axis.get_scale() == "log" and high > 4 * low
    if are_decimal():
        parts = (1, 2, 5) if high < 100 * low else (1,)
        axis.set_major_locator(LogLocator(subs=parts, numticks=most) if is_log else MaxNLocator(most))
    elif is_log:
        axis.set_major_locator(LogLocator(base=2.0 ** max(1, ceil(log2(high / low) / most))))
    else:
        axis.set_major_locator(MultipleLocator(2.0 ** max(0, ceil(log2((high - low) / most)))))
    # Labels are formatted when the figure is saved, so fix the kind of units now.
    format_axis(axis, partial(format_bytes, like=1000 if are_decimal() else 0))


def set_share_axis(axis: Axis) -> None:
    """Label an axis of shares as '+20 %'."""
    format_axis(axis, lambda share: f"{100 * share:+.6g} %" if abs(share) > 1e-12 else "0 %")


def set_ticks(axis: Axis, values: Sequence[float], show: Callable[[Any], str]) -> None:
    """Set ticks at the values within the limits of an axis, or at every n-th if the texts would overlap.

    ``show`` returns the text of a value. Set the limits and the scale of the axis first.
    """
    ends = sorted(axis.get_view_interval())
    within = [value for value in values if ends[0] <= value <= ends[1]]
    chosen = within[:: 1 + len(within) // _MOST_TICKS]
    labels = [show(value) for value in chosen]
    box, across = axis.axes.get_window_extent(), axis is axis.axes.xaxis
    length, text = (
        (box.width if across else box.height),
        float(axis.label.get_fontsize()) * count_dots(axis.axes),
    )
    low, high = axis.get_transform().transform(np.array(axis.get_view_interval(), dtype=float))
    places = axis.get_transform().transform(np.array(chosen, dtype=float)) * length / abs(high - low)
    needed = np.array([(0.62 * len(name) + 0.8 if across else 1.3) * text for name in labels])
    step = 1
    while (np.abs(np.diff(places[::step])) < (needed[::step][1:] + needed[::step][:-1]) / 2).any():
        step += 1
    axis.set_ticks(chosen[::step], labels[::step])
    axis.set_ticks([], minor=True)


def count_dots(ax: Any) -> float:
    """Return the dots per point (1/72 inch) in the figure of axes."""
    return float(ax.get_figure(root=True).dpi) / 72
