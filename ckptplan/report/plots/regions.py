"""Writes the names of strategies into the regions of a map where they are best."""

from __future__ import annotations

from math import ceil
from string import ascii_lowercase
from typing import Any

import matplotlib as mpl
import numpy as np
import numpy.typing as npt
from matplotlib.axes import Axes
from scipy.ndimage import distance_transform_edt, label, minimum_filter

from ckptplan.report.plots.ticks import count_dots
from ckptplan.report.sweep import Plane

#: Regions of a strategy that are named at most, the largest ones.
_MOST_REGIONS = 12


def name_regions(plane: Plane, ax: Axes, names: tuple[str, ...], letters: dict[str, str]) -> None:
    """Write the name of the best strategy into each region with room, and a letter if no region has room."""
    box, dots = ax.get_window_extent(), count_dots(ax)
    size = 0.9 * mpl.rcParams["font.size"]
    cell = np.array([box.height, box.width]) / dots / plane.best.shape
    for place in np.unique(plane.best[plane.best >= 0]).tolist():
        name, regions = names[place], label(plane.best == place)[0]
        counts = np.bincount(regions.ravel())[1:]
        largest = [regions == 1 + number for number in np.argsort(-counts)[:_MOST_REGIONS].tolist()]
        text = np.array([1.3 * size, (0.6 * len(name) + 0.4) * size])
        centres = [centre for region in largest if (centre := _find_room(region, text / cell)) is not None]
        if not centres:
            name = letters.setdefault(name, ascii_lowercase[len(letters) % 26])
            centres = [_find_room(largest[0], np.ones(2))]
        for y, x in centres:
            # Not quite black: pages in dark mode invert black words, and the cells stay light.
            ax.text(x, y, name, size=size, color="#101010", ha="center", va="center", clip_on=True)


def _find_room(region: npt.NDArray[np.bool_], text: npt.NDArray[np.float64]) -> Any:
    """Return the centre of the rectangle of a size in cells that lies deepest in a region, or None."""
    sides = tuple(max(1, ceil(side)) for side in text)
    inside = minimum_filter(region, size=sides, mode="constant", cval=False)
    if not inside.any():
        return None
    depth = np.where(inside, distance_transform_edt(np.pad(region, 1))[1:-1, 1:-1], 0)
    deepest = np.argwhere(depth == depth.max())
    middle = deepest[np.argmin(((deepest - deepest.mean(axis=0)) ** 2).sum(axis=1))]
    # The middle of an even number of cells lies before the place that the filter names.
    return middle - np.array([0 if side % 2 else 0.5 for side in sides])
