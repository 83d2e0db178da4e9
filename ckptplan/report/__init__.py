"""What people see of results: on a console, in files, on pages, in pictures, and in notebooks."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Callable

    from ckptplan.report.formats import View

#: The characters of a line in a notebook.
_WIDTH = 100


def show_as_html(result: Any) -> str | None:
    """Return a result as HTML, None if there is nothing to show; other people's text stays text."""
    from html import escape

    from ckptplan.report.console import draw_blocks

    view = _find_view(result)
    if view is None:
        return None
    lines = "\n".join(line.plain.rstrip() for line in draw_blocks(view.blocks(), width=_WIDTH))
    table = f'<pre style="line-height: normal; overflow-x: auto">{escape(lines)}</pre>'
    return table + _draw(result) if hasattr(result, "plot") else table


def _draw(result: Any) -> str:
    """Return the picture of a result as an image of a page, '' for a result that has nothing to draw."""
    from base64 import b64encode

    from ckptplan.errors import CkptplanError
    from ckptplan.report.plots import plot_result
    from ckptplan.report.plots.figures import SCREEN_DOTS, render

    try:
        drawn = plot_result(result)
    except CkptplanError:
        # The table says why nothing fits, or why the schedule is too long.
        return ""
    image = b64encode(render(drawn.get_figure(root=True), "png", dots=SCREEN_DOTS)).decode("ascii")
    return (
        f'<img alt="Picture of the result above" style="max-width: 100%" src="data:image/png;base64,{image}">'
    )


def _find_view(result: Any) -> View | None:
    """Return the view of a result, None for what has none."""
    from ckptplan.calibration.validation import Validation
    from ckptplan.model.plan import Plan
    from ckptplan.planning.optimize import Compared
    from ckptplan.report.front import view_front
    from ckptplan.report.largest import view_reaches
    from ckptplan.report.machines import view_machines
    from ckptplan.report.plan import view_comparison, view_plan
    from ckptplan.report.sensitivity import view_sensitivity
    from ckptplan.report.validation import view_validation
    from ckptplan.studies.largest import LargestValues
    from ckptplan.studies.machines import MachineComparison
    from ckptplan.studies.pareto import ParetoFront
    from ckptplan.studies.sensitivity import Sensitivity

    views: dict[type, Callable[[Any], View]] = {
        Compared: lambda compared: view_comparison(compared, compared.case),
        LargestValues: lambda values: view_reaches(values, values.case, values.quantity),
        MachineComparison: view_machines,
        ParetoFront: view_front,
        Plan: lambda plan: view_plan(plan, lambda: {plan.strategy: plan}),
        Sensitivity: view_sensitivity,
        Validation: view_validation,
    }
    return views[type(result)](result) if type(result) in views else None
