"""Shows results to people: on a console, in files, on pages, in pictures, and in notebooks."""

from __future__ import annotations

from typing import Any

#: The characters of a line in a notebook.
_WIDTH = 100


def show_as_html(result: Any) -> str | None:
    """Return a result as HTML for a notebook, None if it has no view. Text from files is escaped."""
    from html import escape

    from ckptplan.report.console import write_blocks
    from ckptplan.report.formats import has_view, make_view
    from ckptplan.units import sizes_like

    if not has_view(result):
        return None
    view = make_view(result)
    with sizes_like(view.memory):
        lines = write_blocks(view.list_blocks(), width=_WIDTH).rstrip("\n")
    table = f'<pre style="line-height: normal; overflow-x: auto">{escape(lines)}</pre>'
    return table + _draw(result) if hasattr(result, "plot") else table


def _draw(result: Any) -> str:
    """Return the picture of a result as an HTML image, '' if it cannot be drawn."""
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
