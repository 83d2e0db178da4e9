"""What notebooks show of a result: its table as HTML, and its picture."""

from __future__ import annotations

import io
from html import escape
from typing import TYPE_CHECKING, Any

from ckptplan.cost.case import Case
from ckptplan.errors import InputError
from ckptplan.model.plan import Plan
from ckptplan.report.formats import View
from ckptplan.studies.machines import MachineComparison
from ckptplan.studies.pareto import ParetoFront

if TYPE_CHECKING:
    from matplotlib.figure import Figure

#: The characters of a line in a notebook.
_WIDTH = 100
#: Dots an inch of a picture in a notebook.
_DOTS = 100


def show_as_html(result: Any) -> str | None:
    """Return the table of a result as HTML, None if there is none; other people's text stays text."""
    from ckptplan.report.columns import make_console

    view = _find_view(result)
    if view is None:
        return None
    printed = io.StringIO()
    view.table(make_console(printed, width=_WIDTH))
    lines = "\n".join(line.rstrip() for line in printed.getvalue().splitlines())
    return f'<pre style="line-height: normal; overflow-x: auto">{escape(lines)}</pre>'


def draw_as_png(result: Any) -> bytes | None:
    """Return the picture of a plan's schedule, or of a front; None if there is nothing to draw."""
    from ckptplan.report.style import reduce_palette, styled

    with styled():
        figure = _draw(result)
        if figure is None:
            return None
        buffer = io.BytesIO()
        figure.savefig(buffer, format="png", dpi=_DOTS)
        return reduce_palette(buffer)


def _find_view(result: Any) -> View | None:
    from ckptplan.calibration.validation import Validation
    from ckptplan.planning.optimize import Compared
    from ckptplan.report.comparison import view_comparison
    from ckptplan.report.front import view_front
    from ckptplan.report.machines import view_machines
    from ckptplan.report.plan import view_plan
    from ckptplan.report.validation import view_validation

    if isinstance(result, Plan):
        return view_plan(result, lambda: {result.strategy: result})
    if isinstance(result, ParetoFront):
        return view_front(result)
    if isinstance(result, MachineComparison):
        return view_machines(result)
    if isinstance(result, Compared):
        return view_comparison(result, result.case)
    if isinstance(result, Validation) and result.plan is not None:
        return view_validation(result.plan, result)
    return None


def _draw(result: Any) -> Figure | None:
    from ckptplan.planning.playback import simulate
    from ckptplan.report.front_plot import draw_front
    from ckptplan.report.gantt import Gantt

    if isinstance(result, ParetoFront):
        return draw_front(result) if len(result) else None
    if not isinstance(result, Plan):
        return None
    resident = Case(workload=result.workload, profile=result.profile).costs.resident_bytes
    picture = Gantt(result, resident_bytes=resident)
    try:
        simulate(result, sink=picture.add)
    except InputError as error:
        if error.field == "gantt":
            # Too many actions to draw.
            return None
        raise
    return picture.draw()
