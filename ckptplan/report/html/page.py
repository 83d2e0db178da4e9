"""Makes the page of any result: one file with its style, script, pictures and data.

For each plan that a reader can choose, the page includes its numbers, its schedule and its file, within limits.
"""

from __future__ import annotations

import base64
import hashlib
from collections.abc import Mapping, Sequence
from dataclasses import replace
from functools import cache
from importlib import resources
from typing import Any

from ckptplan.errors import InputError
from ckptplan.model.plan import Plan
from ckptplan.report.basis import explain_basis
from ckptplan.report.blocks import Field
from ckptplan.report.fields import FACTS, describe_plan
from ckptplan.report.formats import View
from ckptplan.report.picture import Chart
from ckptplan.report.sketch import TooLongToDraw, sketch_schedule
from ckptplan.schedule.simulator import IllegalAction
from ckptplan.storage.plans import plan_text
from ckptplan.units import format_count, format_seconds, sizes_like
from ckptplan.version import __version__
from ckptplan.wording import escape_controls

#: The facts of a plan that a page prints beside the schedule.
_FACTS = (*FACTS, Field("recomputed_steps", "steps run again"))
#: The most actions of the schedule that is shown at first, of another schedule, and of all others.
_FIRST, _OTHER, _OTHERS = 1_000_000, 50_000, 200_000
#: The most characters of the files of all plans of a page.
_CHARACTERS = 40_000


def render_page(*views: View, command: str = "") -> str:
    """Return results as one HTML page, titled after the first one. ``command`` is the command that made it."""
    script = _asset("page.js")
    with sizes_like(views[0].memory):
        title = f"{views[0].heading}: {views[0].title}"
        if basis := tuple(dict.fromkeys(entry for view in views for entry in view.basis())):
            views += (View(kind="basis", heading="Estimate basis", blocks=lambda: explain_basis(basis)),)
        return str(
            _template().render(
                title=title,
                views=views,
                command=command,
                version=__version__,
                style=_as_is(_asset("page.css")),
                script=_as_is(script),
                policy=_make_policy(script),
                draw_chart=_draw_chart,
                show_plans=_show_plans,
            )
        )


def _draw_chart(chart: Chart, plans: Sequence[Mapping[str, Any]]) -> Any:
    """Return a picture as SVG, with a dot for each plan if it has dots."""
    from ckptplan.report.plots.svg import make_page_svg

    if chart.has_dots:
        chart = replace(chart, options={**chart.options, "plans": [entry["plan"] for entry in plans]})
    return _as_is(make_page_svg(chart.draw(), chart.drawing))


def _make_policy(script: str) -> str:
    """Return the Content-Security-Policy: the page may run this script, and load nothing from anywhere."""
    digest = base64.b64encode(hashlib.sha256(script.encode()).digest()).decode("ascii")
    return f"default-src 'none'; script-src 'sha256-{digest}'; style-src 'unsafe-inline'; img-src data:"


@cache
def _asset(name: str) -> str:
    return resources.files(__package__).joinpath("assets", name).read_text(encoding="utf-8")


def _as_is(text: str) -> Any:
    from markupsafe import Markup

    return Markup(text)  # noqa: S704 - our own files, and SVG whose texts ElementTree escaped


@cache
def _template() -> Any:
    import jinja2

    environment = jinja2.Environment(
        autoescape=True,
        undefined=jinja2.StrictUndefined,
        keep_trailing_newline=True,
        trim_blocks=True,
        lstrip_blocks=True,
        # Names may come from untrusted files: escape control characters, and show markup as text.
        finalize=lambda value: (
            escape_controls(value) if isinstance(value, str) and not hasattr(value, "__html__") else value
        ),
    )
    return environment.from_string(_asset("page.html.j2"))


def _show_plans(plans: Sequence[tuple[str, Plan]]) -> list[dict[str, Any]]:
    """Return each plan with its facts, its schedule and its file. The first fact is the label.

    ``svg`` is '' if the schedule is left out; the caption then says why. ``link`` is '' if the file is left out
    because of its size.
    """
    actions, characters, entries = _OTHERS, _CHARACTERS, list[dict[str, Any]]()
    for place, (label, plan) in enumerate(plans):
        most = min(_OTHER, actions) if place else _FIRST
        svg, caption, read = _draw_schedule(plan, f"schedule-{place}", most)
        actions -= read if place else 0
        content, link = plan_text(plan), ""
        if len(content) <= characters:
            characters -= len(content)
            link = f"data:application/json;base64,{base64.b64encode(content.encode()).decode('ascii')}"
        facts = {"plan": label, **dict(describe_plan(plan, _FACTS))}
        texts = [text or "none" for text in facts.values()]
        about = {"plan": plan, "names": [*facts], "texts": texts}
        entries.append({**about, "svg": svg, "caption": caption, "link": link})
    return entries


def _draw_schedule(plan: Plan, name: str, most: int) -> tuple[str, str, int]:
    """Return the schedule of a plan as SVG ('' if it has none), its caption, and the number of read actions."""
    from ckptplan.report.plots import make_picture
    from ckptplan.report.plots.svg import make_page_svg

    try:
        sketch = sketch_schedule(plan, most=most)
    except TooLongToDraw as error:
        return "", f"The schedule is too long to be drawn here: {error.message}.", error.most
    except (IllegalAction, InputError) as error:
        return "", f"There is no schedule: {error}", 0
    svg = _as_is(make_page_svg(make_picture(plan, sketch=sketch), name))
    caption = (
        f"{format_count(sketch.actions)} actions in {format_seconds(sketch.seconds)}: a run goes down to the "
        "right, a backward up to the right. Below is what each memory tier holds."
    )
    return svg, caption, sketch.actions
