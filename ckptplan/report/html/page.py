"""Makes the page of any result, and writes it as one file with all that it needs.

Plans that can be chosen on a page have their numbers, their schedule and their file with them, within bounds.
Charts are drawn by Vega, Vega-Lite and vega-embed in one script. Making it takes seconds, and it is the same
for every page, so it is kept in the user's folder for caches, in a file that only the user can write.
"""

from __future__ import annotations

import base64
import hashlib
import json
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from functools import cache
from importlib import resources
from importlib.metadata import version
from typing import Any, ClassVar, TypeAlias

from ckptplan.cost.case import Case
from ckptplan.errors import InputError
from ckptplan.model.plan import Plan
from ckptplan.model.prediction import BasisEntry
from ckptplan.report import charts
from ckptplan.report.basis import explain_basis
from ckptplan.report.blocks import Block, Chart, Field, Schedules, Section, Table
from ckptplan.report.fields import FACTS, align_counts, tell_plan
from ckptplan.report.formats import View
from ckptplan.report.front import list_sections
from ckptplan.report.gantt import Detail, TooLongToDraw, chart_schedule, sketch_schedule
from ckptplan.report.plan import Results, view_comparison, view_plan
from ckptplan.report.sensitivity import view_sensitivity
from ckptplan.schedule.simulator import IllegalAction
from ckptplan.storage.cache import keep, recall
from ckptplan.storage.plans import plan_text
from ckptplan.studies.pareto import ParetoFront
from ckptplan.studies.sensitivity import Sensitivity
from ckptplan.units import format_count
from ckptplan.version import __version__
from ckptplan.wording import escape_controls

#: The look of charts, at the size of text that pages have.
_LOOK = charts.configure(12, font="system-ui, sans-serif", background="transparent")
#: What pages call to draw a chart.
_ENTRY = "window.drawChart = vegaEmbed;"


@cache
def load_library() -> str:
    """Return the script, which is that of the installed release of vl-convert."""
    key = f"{version('vl-convert-python')} {charts.VERSION} {_ENTRY}"
    known = recall("charts", key)
    if known is not None:
        return known[0]
    import vl_convert

    script = str(vl_convert.javascript_bundle(_ENTRY, vl_version=charts.VERSION))
    keep("charts", key, script)
    return script


#: A plan that can be chosen on a page: its label, its facts as pairs of texts, its chart or a note why there is
#: none, and the content of its file, None if it is left out for its size.
ShownPlan: TypeAlias = dict[str, Any]


@dataclass(frozen=True, kw_only=True)
class PlanPanel:
    """The place where the chosen plan is shown, and a table to choose it without a pointer."""

    kind: ClassVar[str] = "plans"
    plans: Sequence[ShownPlan]
    #: The plan that is shown first.
    first: int = 0

    @property
    def link(self) -> str | None:
        """The file of that plan as a link that needs no server and no script."""
        content = self.plans[self.first]["content"]
        return content and f"data:application/json;base64,{base64.b64encode(content.encode()).decode('ascii')}"


def render_page(view: View, *, command: str = "") -> str:
    """Return a result as HTML; ``command`` is what made it."""
    script, style = _asset("page.js"), _asset("page.css")
    parts = (one if isinstance(one, Section) else _show_schedules(one) for one in view.sections())
    basis = explain_basis(tuple(dict.fromkeys(view.basis())))
    sections = _drop_repeated([*parts, Section("basis", "Estimate basis", basis)])
    blocks = [block for section in sections for block in section.blocks]
    specs = {one.name: one.spec for one in blocks if isinstance(one, Chart)}
    plans = [plan for one in blocks if isinstance(one, PlanPanel) for plan in one.plans]
    library = load_library() if specs or plans else ""
    return str(
        _template().render(
            title=view.title,
            lede=view.lede,
            sections=sections,
            command=command,
            version=__version__,
            style=_as_is(style),
            library=_as_is(library),
            script=_as_is(script),
            data=_as_is(encode_data({"charts": specs, "plans": plans, "look": _LOOK})),
            policy=_make_policy(library, script),
        )
    )


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


def encode_data(data: object) -> str:
    """Return data as JSON that a script element can hold: no text ends the element, or begins a comment."""
    text = json.dumps(charts.escape(data), separators=(",", ":"), allow_nan=False)
    return text.replace("<", "\\u003c").replace(">", "\\u003e").replace("&", "\\u0026")


def _make_policy(*scripts: str) -> str:
    """Return what the page may do: run these scripts, and load nothing from anywhere."""
    hashes = " ".join(
        f"'sha256-{base64.b64encode(hashlib.sha256(script.encode()).digest()).decode('ascii')}'"
        for script in scripts
        if script
    )
    return f"default-src 'none'; script-src {hashes}; style-src 'unsafe-inline'; img-src data:"


@cache
def _asset(name: str) -> str:
    return resources.files(__package__).joinpath("assets", name).read_text(encoding="utf-8")


def _as_is(text: str) -> Any:
    from markupsafe import Markup

    return Markup(text)  # noqa: S704 - our own files, and data that encode_data made harmless


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
_FACTS = (*FACTS, Field("recomputed_steps", "steps run again", form=align_counts))
#: Events that are read for all points together, and characters of all their files.
_EVENTS, _CHARACTERS = 200_000, 1_000_000
#: How finely a plan of its own is drawn, and one of many.
_WHOLE, _ONE_OF_MANY = Detail(), Detail(bars=500, intervals=120, events=50_000)


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
    """Return plans for a page; those whose schedules or files are too long for it say so."""
    events, characters = _EVENTS, _CHARACTERS
    shown = []
    if chosen.own is not None:
        label = f"{chosen.own.strategy}, the plan of this report"
        shown.append(_show_plan(label, chosen.own, _WHOLE, characters)[0])
        characters -= len(shown[0]["content"] or "")
    for label, plan in chosen.plans:
        detail = replace(_ONE_OF_MANY, events=min(_ONE_OF_MANY.events, events))
        one, seen = _show_plan(label, plan, detail, characters)
        shown.append(one)
        events -= seen
        characters -= len(one["content"] or "")
    panels = [PlanPanel(plans=shown, first=chosen.first)] if shown else []
    return Section("schedule", chosen.title, panels)


def _show_plan(label: str, plan: Plan, detail: Detail, characters: int) -> tuple[ShownPlan, int]:
    """Return a plan for a page, and the number of events that were read for its schedule."""
    chart, note, seen = None, "", 0
    try:
        sketch = sketch_schedule(plan, detail=detail)
        chart, seen = chart_schedule(plan, sketch), sketch.actions
    except TooLongToDraw as error:
        read = f"its first {format_count(error.most)} actions were" if error.most else "nothing of it was"
        note, seen = f"The schedule is too long to be drawn here: {read} read.", error.most
    except IllegalAction as error:
        note = f"The schedule breaks a law: {error}"
    except InputError as error:
        note = f"There is no schedule: {error}"
    table = Table.of(_FACTS, [tell_plan(plan)])
    facts = [(name, text or "none") for name, text in zip(table.headings, table.texts[0], strict=True)]
    content = plan_text(plan)
    kept = content if len(content) <= characters else None
    shown = {"label": label, "facts": facts, "chart": chart and vars(chart), "note": note, "content": kept}
    return shown, seen
