"""A sweep over one axis as lines, one for each workload on each machine; markers are the best strategies."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np

from ckptplan.report import style
from ckptplan.report.labels import Label, place_labels, set_legend, set_title, settle
from ckptplan.report.sizes import PAGE, Size
from ckptplan.report.sweep_axes import (
    format_quantity,
    is_wide,
    mark_values,
    place_values,
    quantity_ticks,
    symlog,
)

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

    from ckptplan.report.sweep_plot import Plane, SweepPicture

#: Dashes of the lines, the first six.
_DASHES: tuple[Any, ...] = (
    "-",
    (0, (5, 1.5)),
    (0, (1, 1.2)),
    (0, (5, 1.5, 1, 1.5)),
    (0, (2.5, 1.2)),
    (0, (8, 2)),
)
#: Markers on a line at most.
_MARKERS = 40


def draw(picture: SweepPicture, size: Size = PAGE) -> Figure:
    """Return the lines of a sweep over one axis."""
    from matplotlib.figure import Figure

    figure = Figure(figsize=size.inches(2.7 if size.width < PAGE.width else 3.6), layout="constrained")
    axes = figure.subplots()
    axis, values = picture.axis(0)
    places = np.array(place_values(values))
    planes = picture.planes()
    without = [plane.name for plane in planes if len(planes) > 1 and not np.isfinite(plane.added).any()]
    set_title(figure, *picture.title(), *([f"nothing fits: {', '.join(without)}"] if without else []))
    for number, plane in enumerate(planes):
        _draw_line(axes, picture, plane, places, number=number, size=size)
    _scale(axes, picture, planes, places)
    set_legend(figure, _handles(axes), handlelength=1.0)
    figure.draw_without_rendering()
    mark_values(axes, axis, values, places.tolist(), up=False)
    settle(figure)
    labels = [
        Label(text=plane.name, points=np.column_stack([places, plane.added]))
        for plane in planes
        if len(planes) > 1 and np.isfinite(plane.added).any()
    ]
    place_labels(axes, labels)
    return figure


def _draw_line(
    axes: Axes, picture: SweepPicture, plane: Plane, places: Any, *, number: int, size: Size
) -> None:
    order = np.argsort(places)
    x, y, best = places[order], plane.added[order], plane.best[order]
    axes.plot(x, y, color=style.GREY, linestyle=_DASHES[number], linewidth=size.scale, zorder=2)
    marked = np.unique(np.linspace(0, len(x) - 1, min(len(x), _MARKERS)).astype(int))
    # Where the best strategy changes, both are marked.
    changes = np.flatnonzero(np.diff(best))
    if len(changes) <= _MARKERS:
        marked = np.unique(np.concatenate([marked, changes, changes + 1]))
    for place in np.unique(best[marked]).tolist():
        chosen = marked[best[marked] == place]
        if place < 0:
            axes.plot(
                x[chosen], np.full(len(chosen), 0.02 + 0.03 * number), marker="x", linestyle="",
                color=style.BLACK, markersize=4 * size.scale, label="nothing fits",
                transform=axes.get_xaxis_transform(), zorder=3,
            )  # fmt: skip
            continue
        name = picture.names[place]
        look = style.look_of(name)
        axes.plot(
            x[chosen], y[chosen], marker=look.marker, linestyle="", color=look.colour, label=name,
            markersize=4 * size.scale, zorder=4, clip_on=False,
        )  # fmt: skip


def _handles(axes: Axes) -> list[Any]:
    """Return a sample of each strategy."""
    named = {str(line.get_label()): line for line in reversed(axes.lines)}
    return [line for name, line in reversed(named.items()) if not name.startswith("_")]


def _scale(axes: Axes, picture: SweepPicture, planes: list[Plane], places: Any) -> None:
    from matplotlib.ticker import NullLocator

    found = np.concatenate([plane.added[np.isfinite(plane.added)] for plane in planes])
    low, high = (float(found.min()), float(found.max())) if len(found) else (0.0, 0.0)
    room = 0.04 * (places.max() - places.min()) or 1.0
    axes.set_xlim(places.min() - room, places.max() + room)
    if picture.quantity == "overhead":
        low, high = min(0.0, low), max(high, 0.01)
        if is_wide(picture.quantity, high):
            axes.set_yscale("symlog", **symlog())
        axes.set_ylabel("time over base's")
        axes.set_ylim(low - 0.04 * (0.01 if is_wide(picture.quantity, high) else high), 1.1 * high)
    else:
        axes.set_ylabel("peak local memory")
        axes.set_ylim(0, max(1.0, 1.1 * high))
    ticks = quantity_ticks(picture.quantity, max(low, 0.0), 1.1 * high, most=6)
    write = format_quantity(picture.quantity)
    axes.set_yticks(ticks, [write(tick) for tick in ticks])
    axes.yaxis.set_minor_locator(NullLocator())
