"""Draws results with matplotlib. A module for each kind of result draws on axes, or in a figure of panels."""

from __future__ import annotations

from importlib import import_module
from typing import Any

from matplotlib.figure import Figure

from ckptplan.report.formats import find_memory
from ckptplan.report.picture import PAGE, Size
from ckptplan.report.plots import figures, style
from ckptplan.units import sizes_like

#: The default drawing for each type of result.
_DRAWN = {
    "LargestValues": "largest",
    "MachineComparison": "machines",
    "OnlineFactors": "online",
    "ParetoFront": "front",
    "Plan": "schedule",
    "Sensitivity": "sensitivity",
    "SweepResult": "sweep",
}
#: The modules of drawings that share one with others. Modules are imported when a picture is drawn.
_MODULES = dict.fromkeys(("largest", "machines", "strategies"), "rows")


def plot_result(result: Any, target: Any = None) -> Any:
    """Draw a result on the caller's axes or figure, or in a new figure, and return what was drawn on."""
    drawing = _find_drawing(_DRAWN[type(result).__name__])
    draw: Any = drawing.on_axes or drawing.in_figure
    if target is None:
        figure = make_picture(result)
        return figure if drawing.on_axes is None else figure.axes[0]
    with sizes_like(find_memory(result)), style.use_style():
        draw(result, target)
    return target


def make_picture(result: Any, size: Size = PAGE, *, drawing: str = "", **options: Any) -> Figure:
    """Draw the picture of a result in a size. ``drawing`` is by default the drawing for its type."""
    functions = _find_drawing(drawing or _DRAWN[type(result).__name__])

    def draw(figure: Figure) -> None:
        if functions.in_figure is not None:
            functions.in_figure(result, figure, **options)
        elif functions.on_axes is not None:
            functions.on_axes(result, figure.add_subplot(axes_class=figures.ShownAxes), **options)

    with sizes_like(find_memory(result)):
        return figures.make_figure(draw, size, height=functions.height(result, size))


def _find_drawing(name: str) -> figures.Drawing:
    module = import_module(f"{__name__}.{_MODULES.get(name, name)}")
    drawing: figures.Drawing = module.DRAWINGS[name]
    return drawing
