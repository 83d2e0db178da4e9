"""Pictures of results by matplotlib: a module for each kind draws on axes, or in a figure of several panels."""

from __future__ import annotations

from importlib import import_module
from typing import Any

from matplotlib.figure import Figure

from ckptplan.report.picture import PAGE, Size
from ckptplan.report.plots import figures, style

#: The module that has the ``DRAWING`` of a type of results. It is imported when the first one is drawn.
_MODULES = {
    "LargestValues": "largest",
    "MachineComparison": "machines",
    "OnlineFactors": "online",
    "ParetoFront": "front",
    "Plan": "schedule",
    "Sensitivity": "sensitivity",
    "SweepResult": "sweep",
}


def plot_result(result: Any, target: Any = None) -> Any:
    """Draw a result on axes or in a figure of the caller, or in a new figure, and return what was drawn on."""
    drawing = _find_drawing(result)
    if target is None:
        figure = make_picture(result)
        return figure if drawing.on_axes is None else figure.axes[0]
    draw: Any = drawing.on_axes or drawing.in_figure
    with style.use_style():
        draw(result, target)
    return target


def make_picture(result: Any, size: Size = PAGE) -> Figure:
    """Return the picture of a result in a size."""
    drawing = _find_drawing(result)

    def draw(figure: Figure) -> None:
        if drawing.in_figure is not None:
            drawing.in_figure(result, figure)
        elif drawing.on_axes is not None:
            drawing.on_axes(result, figure.add_subplot(axes_class=figures.ShownAxes))

    return figures.make_figure(draw, size, height=drawing.height(result, size))


def _find_drawing(result: Any) -> figures.Drawing:
    drawing: figures.Drawing = import_module(f"{__name__}.{_MODULES[type(result).__name__]}").DRAWING
    return drawing
