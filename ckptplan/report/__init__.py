"""What people see of results: on a console, in files, on pages, in pictures, and in notebooks."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
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
    return f'<pre style="line-height: normal; overflow-x: auto">{escape(lines)}</pre>'


def _find_view(result: Any) -> View | None:
    """Return the view of a result, None for what has none."""
    from ckptplan.calibration.validation import Validation
    from ckptplan.model.plan import Plan
    from ckptplan.planning.optimize import Compared
    from ckptplan.report.front import view_front
    from ckptplan.report.machines import view_machines
    from ckptplan.report.plan import view_comparison, view_plan
    from ckptplan.report.validation import view_validation
    from ckptplan.studies.machines import MachineComparison
    from ckptplan.studies.pareto import ParetoFront

    match result:
        case Plan():
            return view_plan(result, lambda: {result.strategy: result})
        case ParetoFront():
            return view_front(result)
        case MachineComparison():
            return view_machines(result)
        case Compared():
            return view_comparison(result, result.case)
        case Validation():
            return view_validation(result)
    return None
