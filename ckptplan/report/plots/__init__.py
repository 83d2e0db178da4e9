"""Pictures of results by matplotlib: a module for each kind draws on axes, or in a figure of several panels."""

from __future__ import annotations

from importlib import import_module
from typing import Any

from matplotlib.figure import Figure

from ckptplan.report.picture import PAGE, Size
from ckptplan.report.plots import figures, style
from ckptplan.report.views import find_memory
from ckptplan.units import sizes_like

#: The drawing for each type of result. A chart of another kind names its drawing.
_DRAWN = {
    "LargestValues": "largest",
    "MachineComparison": "machines",
    "OnlineFactors": "online",
    "ParetoFront": "front",
    "Plan": "schedule",
    "Sensitivity": "sensitivity",
    "SweepResult": "sweep",
}
#: The module of each drawing that has no module of its own. Modules are imported when a picture is drawn.
_MODULES = dict.fromkeys(("largest", "machines", "strategies"), "rows")


def plot_result(result: Any, target: Any = None) -> Any:
    """Draw a result on axes or in a figure of the caller, or in a new figure, and return what was drawn on."""
    drawing = _find_drawing(_DRAWN[type(result).__name__])
    draw: Any = drawing.on_axes or drawing.in_figure
    if target is None:
        figure = make_picture(result)
        return figure if drawing.on_axes is None else figure.axes[0]
    with sizes_like(find_memory(result)), style.use_style():
        draw(result, target)
    return target


def make_picture(result: Any, size: Size = PAGE, *, drawing: str = "", **options: Any) -> Figure:
    """Return the picture of a result in a size; ``drawing`` is by default that of its type."""
    drawn = _find_drawing(drawing or _DRAWN[type(result).__name__])

    def draw(figure: Figure) -> None:
        if drawn.in_figure is not None:
            drawn.in_figure(result, figure, **options)
        elif drawn.on_axes is not None:
            drawn.on_axes(result, figure.add_subplot(axes_class=figures.ShownAxes), **options)

    with sizes_like(find_memory(result)):
        return figures.make_figure(draw, size, height=drawn.height(result, size))


def _find_drawing(name: str) -> figures.Drawing:
    module = import_module(f"{__name__}.{_MODULES.get(name, name)}")
    drawing: figures.Drawing = module.DRAWINGS[name]
    return drawing
