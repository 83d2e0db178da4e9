"""Pictures of results by matplotlib: one module a kind draws on axes, or in a figure of several panels."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

from matplotlib.axes import Axes
from matplotlib.figure import Figure

from ckptplan.model.plan import Plan
from ckptplan.report.picture import PAGE, Size
from ckptplan.report.plots import figures, style
from ckptplan.report.plots.front import draw_front
from ckptplan.report.plots.front_marks import add_plans
from ckptplan.report.plots.largest import draw_largest
from ckptplan.report.plots.machines import draw_machines
from ckptplan.report.plots.online import draw_online
from ckptplan.report.plots.schedule import draw_schedule
from ckptplan.report.plots.sensitivity import count_rows, draw_sensitivity
from ckptplan.report.plots.strategies import draw_strategies
from ckptplan.report.plots.sweep import arrange_maps, draw_panels, draw_sweep
from ckptplan.report.sketch import Sketch
from ckptplan.studies.largest import LargestValues
from ckptplan.studies.machines import MachineComparison
from ckptplan.studies.online import OnlineFactors
from ckptplan.studies.pareto import ParetoFront
from ckptplan.studies.sensitivity import Sensitivity
from ckptplan.studies.sweep import SweepResult


@dataclass(frozen=True, kw_only=True)
class _Kind:
    """How a kind of result is drawn: on one pair of axes, or in a figure where it has several panels."""

    on_axes: Callable[[Any, Axes], None] | None = None
    in_figure: Callable[[Any, Figure], None] | None = None
    #: Inches on a page.
    height: Callable[[Any, Size], float] = lambda result, size: 3.6  # noqa: ARG005


_KINDS: dict[type, _Kind] = {
    LargestValues: _Kind(on_axes=draw_largest, height=lambda result, _: 1.0 + 0.24 * len(result)),
    MachineComparison: _Kind(on_axes=draw_machines, height=lambda result, _: 1.1 + 0.45 * len(result.machines)),
    OnlineFactors: _Kind(on_axes=draw_online, height=lambda *_: 3.0),
    ParetoFront: _Kind(on_axes=draw_front),
    Plan: _Kind(in_figure=draw_schedule, height=lambda *_: 4.4),
    Sensitivity: _Kind(
        in_figure=draw_sensitivity, height=lambda result, size: 1.2 + 1.4 * count_rows(result, size)
    ),
    SweepResult: _Kind(
        on_axes=draw_sweep,
        in_figure=draw_panels,
        height=lambda result, size: 0.8 + 2.6 * arrange_maps(result.sweep, size.width)[0],
    ),
}


def plot_result(result: Any, target: Any = None) -> Any:
    """Draw a result on axes or in a figure of the caller, or in a new figure, and return what was drawn on."""
    kind = _KINDS[type(result)]
    if target is None:
        figure = make_picture(result)
        return figure if kind.on_axes is None else figure.axes[0]
    draw: Any = kind.on_axes or kind.in_figure
    with style.use_style():
        draw(result, target)
    return target


def make_front(
    front: ParetoFront, size: Size = PAGE, *, every: bool = False, plans: Sequence[Plan] = ()
) -> Figure:
    """Return the picture of a front; ``plans`` are dots of a page that lead to their schedules."""

    def draw(figure: Figure) -> None:
        ax = figure.add_subplot()
        draw_front(front, ax, every=every)
        add_plans(front, ax, plans)

    return figures.make_figure(draw, size)


def make_strategies(plans: Sequence[Plan], size: Size = PAGE) -> Figure:
    """Return the picture of the best plans of several strategies."""
    height = 0.8 + 0.22 * len(plans)
    return figures.make_figure(lambda figure: draw_strategies(plans, figure), size, height=height)


def draw_sketch(plan: Plan, sketch: Sketch, size: Size = PAGE, *, schedule: str | None = None) -> Figure:
    """Return the picture of a timeline of a plan, or of another ``schedule`` at the costs of the plan."""
    return figures.make_figure(
        lambda figure: draw_schedule(plan, figure, sketch=sketch, schedule=schedule), size, height=4.4
    )


def make_picture(result: Any, size: Size = PAGE) -> Figure:
    """Return the picture of a result in a size."""
    kind = _KINDS[type(result)]

    def draw(figure: Figure) -> None:
        if kind.in_figure is not None:
            kind.in_figure(result, figure)
        elif kind.on_axes is not None:
            kind.on_axes(result, figure.add_subplot(axes_class=figures.ShownAxes))

    return figures.make_figure(draw, size, height=kind.height(result, size))
