"""Makes the page of any result: its parts, the plans that can be chosen, and the inputs behind its numbers.

Plans that can be chosen on a page have their numbers, their schedule and their file with them, within bounds.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace

from ckptplan.cost.case import Case
from ckptplan.errors import InputError
from ckptplan.model.plan import Plan
from ckptplan.model.prediction import BasisEntry
from ckptplan.report.basis import explain_basis
from ckptplan.report.blocks import Field, Schedules, Section, Table
from ckptplan.report.fields import FACTS, align_counts, tell_plan
from ckptplan.report.formats import View
from ckptplan.report.front import list_sections
from ckptplan.report.gantt import Detail, TooLongToDraw, chart_schedule, sketch_schedule
from ckptplan.report.html.page import Page, PlanPanel, ShownPlan
from ckptplan.report.plan import Results, view_comparison, view_plan
from ckptplan.report.sensitivity import view_sensitivity
from ckptplan.schedule.simulator import IllegalAction
from ckptplan.storage.plans import plan_text
from ckptplan.studies.pareto import ParetoFront
from ckptplan.studies.sensitivity import Sensitivity
from ckptplan.units import format_count

#: What a page says of a plan beside its schedule.
_FACTS = (*FACTS, Field("recomputed_steps", "steps run again", form=align_counts))
#: Events that are read for all points together, and characters of all their files.
_EVENTS, _CHARACTERS = 200_000, 1_000_000
#: How finely a plan of its own is drawn, and one of many.
_WHOLE, _ONE_OF_MANY = Detail(), Detail(bars=500, intervals=120, events=50_000)


def make_page(view: View) -> Page:
    """Return the page of a result. A part without content is left out."""
    parts = (one if isinstance(one, Section) else _show_schedules(one) for one in view.sections())
    basis = explain_basis(tuple(dict.fromkeys(view.basis())))
    return Page.of(*parts, Section("basis", "Estimate basis", basis), title=view.title, lede=view.lede)


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
        characters -= len(shown[0].content or "")
    for label, plan in chosen.plans:
        detail = replace(_ONE_OF_MANY, events=min(_ONE_OF_MANY.events, events))
        one, seen = _show_plan(label, plan, detail, characters)
        shown.append(one)
        events -= seen
        characters -= len(one.content or "")
    panels = [PlanPanel(plans=tuple(shown), first=chosen.first)] if shown else []
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
    facts = ((name, text or "none") for name, text in zip(table.headings, table.texts[0], strict=True))
    content = plan_text(plan)
    kept = content if len(content) <= characters else None
    return ShownPlan(label=label, facts=tuple(facts), chart=chart, note=note, content=kept), seen
