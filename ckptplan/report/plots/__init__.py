"""Draws results with matplotlib. A module for each kind of result draws on axes, or in a figure of panels."""

from __future__ import annotations

from functools import partial
from typing import Any

from matplotlib.figure import Figure

from ckptplan.model.display import DrawnOnAxes
from ckptplan.report.formats import find_drawing, find_memory
from ckptplan.report.picture import PAGE, Size
from ckptplan.report.plots import figures, style
from ckptplan.units import sizes_like


def plot_result(result: Any, target: Any = None) -> Any:
    """Draw a result on the caller's axes or figure, or in a new figure, and return what was drawn on."""
    if target is None:
        figure = make_picture(result)
        return figure.axes[0] if isinstance(result, DrawnOnAxes) else figure
    with sizes_like(find_memory(result)), style.use_style():
        find_drawing(result)(result, target)
    return target


def make_picture(result: Any, size: Size = PAGE, **options: Any) -> Figure:
    """Draw the picture of a result in a size. ``options`` are keyword arguments of the function that draws."""
    with sizes_like(find_memory(result)):
        return figures.make_figure(partial(find_drawing(result), result, **options), size)
