"""A sweep over two axes as a heat map, one for each workload on each machine, with the best strategies."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np

from ckptplan.report import style
from ckptplan.report.labels import Label, place_labels, set_title, settle, wrap
from ckptplan.report.sizes import PAGE, Size
from ckptplan.report.sweep_axes import format_quantity, is_wide, mark_values, quantity_ticks, symlog

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

    from ckptplan.report.sweep_plot import Plane, SweepPicture

#: Borders between strategies are drawn up to this many cells.
_BORDERS = 40_000


def draw(picture: SweepPicture, size: Size = PAGE) -> Figure:
    """Return the heat maps of a sweep over two axes: the first upwards, the second across."""
    from matplotlib.figure import Figure

    planes = picture.planes()
    columns = min(len(planes), 1 if size.width < PAGE.width else 2 if size.height is None else 3)
    rows = -(-len(planes) // columns)
    figure = Figure(figsize=size.inches(1.0 + rows * (2.2 if columns == 1 else 2.4)), layout="constrained")
    set_title(figure, *picture.title())
    grid = figure.subplots(rows, columns, squeeze=False)
    norm = _norm(picture, planes)
    for axes, plane in zip(grid.flat, planes, strict=False):
        image = axes.imshow(
            np.ma.masked_invalid(plane.added), norm=norm, cmap="cividis_r", aspect="auto", origin="lower",
            interpolation="nearest",
        )  # fmt: skip
        axes.set_facecolor("white")
        _hatch(axes, plane)
        if len(planes) > 1:
            figure.draw_without_rendering()
            axes.set_title(
                wrap(figure, plane.name, width=axes.bbox.width, points=size.points), parse_math=False
            )
    for axes in grid.flat[len(planes) :]:
        axes.set_visible(False)
    _bar(figure, image, picture, grid)
    # Labels to the left leave less width for those below.
    for number, up in ((0, True), (1, False)):
        axis, values = picture.axis(number)
        figure.draw_without_rendering()
        for axes in grid.flat[: len(planes)]:
            mark_values(axes, axis, values, [float(i) for i in range(len(values))], up=up)
    settle(figure)
    for axes, plane in zip(grid.flat, planes, strict=False):
        _name(axes, picture, plane)
    return figure


def _norm(picture: SweepPicture, planes: list[Plane]) -> Any:
    from matplotlib.colors import Normalize, SymLogNorm

    found = np.concatenate([plane.added[np.isfinite(plane.added)] for plane in planes])
    if not len(found):
        return Normalize(0, 1)
    low, high = float(found.min()), float(found.max())
    if is_wide(picture.quantity, high):
        return SymLogNorm(symlog()["linthresh"], linscale=symlog()["linscale"], vmin=max(0.0, low), vmax=high)
    return Normalize(low, max(high, low + (0.001 if picture.quantity == "overhead" else 1)))


def _hatch(axes: Axes, plane: Plane) -> None:
    """Hatch where nothing fits, and draw borders between strategies."""
    from matplotlib.collections import LineCollection
    from matplotlib.patches import Rectangle

    height, width = plane.best.shape
    axes.add_patch(
        Rectangle(
            (-0.5, -0.5), width, height, facecolor=style.PALE, edgecolor=style.GREY, hatch="////",
            linewidth=0, zorder=-1,
        )
    )  # fmt: skip
    if plane.best.size > _BORDERS:
        return
    borders = [
        [(column + 0.5, row - 0.5), (column + 0.5, row + 0.5)]
        for row, column in np.argwhere(np.diff(plane.best, axis=1))
    ]
    borders += [
        [(column - 0.5, row + 0.5), (column + 0.5, row + 0.5)]
        for row, column in np.argwhere(np.diff(plane.best, axis=0))
    ]
    axes.add_collection(LineCollection(borders, color=style.BLACK, linewidth=1, zorder=3))


def _bar(figure: Figure, image: Any, picture: SweepPicture, grid: Any) -> None:
    bar = figure.colorbar(image, ax=grid.ravel().tolist(), aspect=30)
    low, high = image.norm.vmin, image.norm.vmax
    ticks = quantity_ticks(picture.quantity, low, high, most=6)
    write = format_quantity(picture.quantity)
    bar.set_ticks(ticks, labels=[write(tick) for tick in ticks])
    bar.minorticks_off()
    bar.set_label("time over base's" if picture.quantity == "overhead" else "peak local memory")


def _name(axes: Axes, picture: SweepPicture, plane: Plane) -> None:
    """Write the name of each strategy once into its largest part of a row."""
    labels = []
    for place in np.unique(plane.best).tolist():
        cells = np.argwhere(plane.best == place)[:, ::-1]
        # The cell nearest to the middle of all is within the region, whatever its shape.
        middle = cells[np.argmin(((cells - cells.mean(axis=0)) ** 2).sum(axis=1))]
        name = "nothing fits" if place < 0 else picture.names[place]
        labels.append(Label(text=name, points=[middle], centred=True))
    place_labels(axes, labels)
