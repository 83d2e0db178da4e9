"""Makes the page of any result, and writes it as one file with all that it needs.

Plans that can be chosen on a page have their numbers, their schedule and their file with them, within bounds.
"""

from __future__ import annotations

import base64
import hashlib
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from functools import cache
from importlib import resources
from typing import Any, ClassVar

from ckptplan.cost.case import Case
from ckptplan.errors import InputError
from ckptplan.model.plan import Plan
from ckptplan.model.prediction import BasisEntry
from ckptplan.report.basis import explain_basis
from ckptplan.report.blocks import Block, Chart, Field, Schedules, Section, Table
from ckptplan.report.fields import FACTS, make_plan_record
from ckptplan.report.formats import View
from ckptplan.report.front import list_sections
from ckptplan.report.plan import Results, view_comparison, view_plan
from ckptplan.report.sensitivity import view_sensitivity
from ckptplan.report.sketch import Detail, Sketch, TooLongToDraw, sketch_schedule
from ckptplan.schedule.simulator import IllegalAction
from ckptplan.storage.plans import plan_text
from ckptplan.studies.pareto import ParetoFront
from ckptplan.studies.sensitivity import Sensitivity
from ckptplan.units import format_count, format_seconds
from ckptplan.version import __version__
from ckptplan.wording import escape_controls


@dataclass(frozen=True, kw_only=True)
class ShownPlan:
    """A plan that can be chosen on a page: its facts, its schedule or why there is none, and its file."""

    kind: ClassVar[str] = "plan"
    label: str
    facts: Sequence[tuple[str, str]]
    #: The SVG of the schedule, '' if it is left out, and what it shows or why it is left out.
    svg: str
    caption: str
    #: The file as a link that needs no server, '' if it is left out for its size.
    link: str
    #: Whether it is shown at first.
    first: bool = False


@dataclass(frozen=True)
class ShownPlans:
    """The plans of a page, and a table to choose one of them."""

    kind: ClassVar[str] = "plans"
    plans: Sequence[ShownPlan]


def render_page(view: View, *, command: str = "") -> str:
    """Return a result as HTML; ``command`` is what made it."""
    script = _asset("page.js")
    parts = (one if isinstance(one, Section) else _show_schedules(one) for one in view.sections())
    basis = explain_basis(tuple(dict.fromkeys(view.basis())))
    sections = _drop_repeated([*parts, Section("basis", "Estimate basis", basis)])
    return str(
        _template().render(
            title=view.title,
            lede=view.lede,
            sections=sections,
            command=command,
            version=__version__,
            style=_as_is(_asset("page.css")),
            script=_as_is(script),
            policy=_make_policy(script),
            draw=_draw_chart,
        )
    )


def _draw_chart(chart: Chart) -> Any:
    from ckptplan.report.plots.svg import make_page_svg

    return _as_is(make_page_svg(chart.draw(), chart.name))


def _drop_repeated(sections: Sequence[Section]) -> list[Section]:
    """Return sections with every table and text once, where it comes last, and without empty ones."""
    later: set[Block] = set()
    kept = []
    for section in reversed(sections):
        blocks = tuple(one for one in section.blocks if not isinstance(one, Block) or one not in later)
        later |= {one for one in blocks if isinstance(one, Block)}
        if blocks:
            kept.append(replace(section, blocks=blocks))
    return kept[::-1]


def _make_policy(script: str) -> str:
    """Return what the page may do: run this script, and load nothing from anywhere."""
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
        # Names are other people's: what is no text is shown as an escape, and markup as text.
        finalize=lambda value: (
            escape_controls(value) if isinstance(value, str) and not hasattr(value, "__html__") else value
        ),
    )
    return environment.from_string(_asset("page.html.j2"))


#: What a page says of a plan beside its schedule.
_FACTS = (*FACTS, Field("recomputed_steps", "steps run again"))
#: Actions that are read for the schedules of all plans together, and characters of all their files.
_ACTIONS, _CHARACTERS = 200_000, 40_000
#: How finely the plan of a page is drawn, and each of the others.
_WHOLE, _ONE_OF_MANY = Detail(), Detail(bars=150, intervals=60, actions=50_000)


def view_report(plan: Plan, compared: Results, *, front: ParetoFront, study: Sensitivity | None) -> View:
    """Return all that is known about a plan: the front around it, its rivals, and what its inputs do to it."""
    about = view_plan(plan, lambda: compared)
    rivals = view_comparison(compared, Case(workload=plan.workload, profile=plan.profile))
    inputs = None if study is None else view_sensitivity(study)

    def list_parts() -> Iterator[Section | Schedules]:
        yield Section("plan", "The plan", about.blocks())
        yield from list_sections(front, own=plan)
        yield from (one for one in rivals.sections() if isinstance(one, Section))
        yield from () if inputs is None else inputs.sections()

    def list_basis() -> Sequence[BasisEntry]:
        return (*about.basis(), *(() if inputs is None else inputs.basis()))

    return replace(about, sections=list_parts, basis=list_basis)


def _show_schedules(chosen: Schedules) -> Section:
    """Return plans for a page; a plan whose schedule or file is too long for the page says so."""
    actions, characters = _ACTIONS, _CHARACTERS
    own = [] if chosen.own is None else [(f"{chosen.own.strategy}, the plan of this report", chosen.own)]
    shown: list[ShownPlan] = []
    for place, (label, plan) in enumerate((*own, *chosen.plans)):
        is_own = place < len(own)
        detail = _WHOLE if is_own else replace(_ONE_OF_MANY, actions=min(_ONE_OF_MANY.actions, actions))
        svg, caption, read = _draw_schedule(plan, f"schedule-{place}", detail)
        actions -= 0 if is_own else read
        table, content = Table.of(_FACTS, [make_plan_record(plan)]), plan_text(plan)
        link = ""
        if len(content) <= characters:
            characters -= len(content)
            link = f"data:application/json;base64,{base64.b64encode(content.encode()).decode('ascii')}"
        facts = [(name, text or "none") for name, text in zip(table.headings, table.texts[0], strict=True)]
        first = place == chosen.first
        shown.append(ShownPlan(label=label, facts=facts, svg=svg, caption=caption, link=link, first=first))
    return Section("schedule", chosen.title, [ShownPlans(shown)] if shown else [])


def _draw_schedule(plan: Plan, name: str, detail: Detail) -> tuple[str, str, int]:
    """Return the schedule of a plan as SVG, what it shows or why there is none, and the actions read for it."""
    from ckptplan.report.plots.schedule import draw_sketch
    from ckptplan.report.plots.svg import make_page_svg

    try:
        sketch = sketch_schedule(plan, detail=detail)
    except TooLongToDraw as error:
        read = (
            f"its first {format_count(error.most)} actions were" if error.most else "none of its actions were"
        )
        return "", f"The schedule is too long to be drawn here: {read} read.", error.most
    except IllegalAction as error:
        return "", f"The schedule breaks a law: {error}", 0
    except InputError as error:
        return "", f"There is no schedule: {error}", 0
    return _as_is(make_page_svg(draw_sketch(plan, sketch), name)), _describe_sketch(sketch), sketch.actions


def _describe_sketch(sketch: Sketch) -> str:
    text = (
        f"{format_count(sketch.actions)} actions in {format_seconds(sketch.seconds)}: a run goes down to the "
        "right, a backward up to the right. Below is what each memory tier holds."
    )
    if sketch.interval is not None:
        text += (
            f" Actions shorter than {format_seconds(sketch.interval)} are drawn together: one bar for each "
            "kind and interval, over the steps that they touch."
        )
    return text
