"""Makes the page of any result: one file with its style, script, pictures and data.

For each plan that a reader can choose, the page includes its numbers, its schedule and its file, within limits.
"""

from __future__ import annotations

import base64
import hashlib
from collections.abc import Sequence
from dataclasses import replace
from functools import cache
from importlib import resources
from typing import Any

from ckptplan.errors import InputError
from ckptplan.model.plan import Plan
from ckptplan.report.blocks import Block
from ckptplan.report.fields import describe_plan, explain_basis
from ckptplan.report.formats import ShownPlan, View
from ckptplan.report.picture import Chart
from ckptplan.report.sketch import Detail, Sketch, TooLongToDraw, sketch_schedule
from ckptplan.schedule.simulator import IllegalAction
from ckptplan.storage.plans import plan_text
from ckptplan.units import format_count, format_seconds, sizes_like
from ckptplan.version import __version__
from ckptplan.wording import escape_controls

#: The most actions of the schedules of all plans on a page, and the most characters of their files.
_ACTIONS, _CHARACTERS = 200_000, 40_000
#: The detail of the schedule that is shown at first, and of each other schedule.
_WHOLE, _ONE_OF_MANY = Detail(), Detail(bars=150, intervals=60, actions=50_000)


def render_page(*views: View, command: str = "") -> str:
    """Return results as one HTML page, titled after the first one. ``command`` is the command that made it."""
    script, shown = _asset("page.js"), set[Block]()
    with sizes_like(views[0].memory):
        sections = [_make_section(view, shown) for view in views]
        basis = tuple(dict.fromkeys(entry for view in views for entry in view.basis()))
        origins = View(kind="basis", heading="Estimate basis", blocks=lambda: explain_basis(basis))
        return str(
            _template().render(
                title=f"{views[0].heading}: {views[0].title}",
                sections=[*sections, *([_make_section(origins, shown)] if basis else [])],
                command=command,
                version=__version__,
                style=_asset("page.css"),
                script=script,
                policy=_make_policy(script),
                draw=_draw_chart,
            )
        )


def _make_section(view: View, shown: set[Block]) -> dict[str, Any]:
    """Return a section: the picture of a result, the schedules of its plans, and the blocks that are new.

    The blocks of the section are added to ``shown``, those of earlier sections.
    """
    plans, chart = view.plans(), view.chart()
    blocks = [block for block in view.blocks() if block not in shown]
    shown.update(blocks)
    if chart is not None and chart.has_dots:
        chart = replace(chart, options={**chart.options, "plans": [shown_plan.plan for shown_plan in plans]})
    section = {"name": view.kind or "plan", "title": view.heading, "chart": chart}
    return {**section, "plans": _show_plans(plans), "blocks": blocks}


def _draw_chart(chart: Chart, name: str) -> str:
    from ckptplan.report.plots.svg import make_page_svg

    return make_page_svg(chart.draw(), name)


def _make_policy(script: str) -> str:
    """Return the Content-Security-Policy: the page may run this script, and load nothing from anywhere."""
    digest = base64.b64encode(hashlib.sha256(script.encode()).digest()).decode("ascii")
    return f"default-src 'none'; script-src 'sha256-{digest}'; style-src 'unsafe-inline'; img-src data:"


@cache
def _asset(name: str) -> str:
    return resources.files(__package__).joinpath("assets", name).read_text(encoding="utf-8")


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


def _show_plans(plans: Sequence[ShownPlan]) -> list[dict[str, Any]]:
    """Return the label, facts, schedule and file of each plan, and whether it is shown at first.

    ``svg`` is '' if the schedule is left out; the caption then says why. ``link`` is '' if the file is left out
    because of its size.
    """
    actions, characters, entries = _ACTIONS, _CHARACTERS, []
    for place, shown in enumerate(plans):
        detail = _WHOLE if shown.first else replace(_ONE_OF_MANY, actions=min(_ONE_OF_MANY.actions, actions))
        svg, caption, read = _draw_schedule(shown.plan, f"schedule-{place}", detail)
        actions -= 0 if shown.first else read
        content, link = plan_text(shown.plan), ""
        if len(content) <= characters:
            characters -= len(content)
            link = f"data:application/json;base64,{base64.b64encode(content.encode()).decode('ascii')}"
        facts = [(name, text or "none") for name, text in describe_plan(shown.plan).items()]
        about = {"label": shown.label, "facts": facts, "first": shown.first}
        entries.append({**about, "svg": svg, "caption": caption, "link": link})
    return entries


def _draw_schedule(plan: Plan, name: str, detail: Detail) -> tuple[str, str, int]:
    """Return the schedule of a plan as SVG ('' if it has none), its caption, and the number of read actions."""
    from ckptplan.report.plots import make_picture
    from ckptplan.report.plots.svg import make_page_svg

    try:
        sketch = sketch_schedule(plan, detail=detail)
    except TooLongToDraw as error:
        return "", f"The schedule is too long to be drawn here: {error.message}.", error.most
    except (IllegalAction, InputError) as error:
        return "", f"There is no schedule: {error}", 0
    svg = make_page_svg(make_picture(plan, sketch=sketch), name)
    return svg, _describe_sketch(sketch), sketch.actions


def _describe_sketch(sketch: Sketch) -> str:
    text = (
        f"{format_count(sketch.actions)} actions in {format_seconds(sketch.seconds)}: a run goes down to the "
        "right, a backward up to the right. Below is what each memory tier holds."
    )
    if sketch.interval is None:
        return text
    return (
        f"{text} Actions of a kind that are shorter than {format_seconds(sketch.interval)} are drawn together."
    )
