"""The pages of results: which tables, charts and plans each has.

Plans that can be chosen on a page have their numbers, their schedule and their file with them, within bounds.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass

from ckptplan.calibration.validation import Validation
from ckptplan.cost.case import Case
from ckptplan.errors import Infeasible, InputError
from ckptplan.model.plan import Plan
from ckptplan.planning.playback import group_same_schedules
from ckptplan.report import style, vega
from ckptplan.report.basis import explain_basis
from ckptplan.report.blocks import Field, Paragraph, Table
from ckptplan.report.fields import FACTS, align_counts, name_job, tell_plan
from ckptplan.report.formats import View
from ckptplan.report.front import beside_resident, chart_front, mark_points, spread_places, view_front
from ckptplan.report.gantt import Detail, TooLongToDraw, chart_schedule, sketch_schedule
from ckptplan.report.html.page import Page, PlanPanel, Section, ShownPlan
from ckptplan.report.infeasible import format_infeasible
from ckptplan.report.machines import chart_machines, view_machines
from ckptplan.report.marks import Marks, layer_marks
from ckptplan.report.plan import Results, view_comparison, view_plan
from ckptplan.report.scale import Scale, scale_bytes, scale_shares
from ckptplan.report.sensitivity import chart_tornado, view_sensitivity
from ckptplan.report.sweep import Summary, SweepPicture, chart_sweep
from ckptplan.report.validation import view_validation
from ckptplan.report.vega import Chart, Spec
from ckptplan.schedule.simulator import IllegalAction
from ckptplan.storage.plans import plan_text
from ckptplan.studies.machines import MachineComparison
from ckptplan.studies.pareto import ParetoFront
from ckptplan.studies.sensitivity import Sensitivity
from ckptplan.units import format_bytes, format_count

#: More rows make a table that nobody reads.
_MOST_ROWS = 1_000
#: Points of a front whose schedules are on the page, besides those that have a name.
_POINTS = 24
#: What a page says of a plan beside its schedule.
_FACTS = (*FACTS, Field("recomputed_steps", "steps run again", form=align_counts))
#: Events that are read for all points together, and characters of all their files.
_EVENTS, _CHARACTERS = 200_000, 1_000_000
#: How finely a plan of its own is drawn, and one of many.
_WHOLE, _ONE_OF_MANY = Detail(), Detail(bars=500, intervals=120, events=50_000)


def make_plan_page(plan: Plan, compared: Results, *, unsearched: Sequence[str] = ()) -> Page:
    """Return the page of a plan: its answer, its schedule, and the strategies that it was chosen from."""
    view = view_plan(plan, lambda: compared, unsearched=unsearched)
    plans = [one for one in compared.values() if isinstance(one, Plan)]
    return Page.of(
        Section("plan", "The plan", view.blocks()),
        _section_of_schedules([_label_plan(plan)], title="Schedule and memory"),
        Section("strategies", "Strategies", _chart_plans(plans if len(plans) > 1 else [])),
        _section_of_basis(view),
        title=f"{plan.strategy}: {name_job(plan.workload, plan.profile)}",
        lede=_summarize(plan),
    )


def make_front_page(front: ParetoFront, *, every: bool = False) -> Page:
    """Return the page of a front, with the colours of ``every`` strategy if wanted."""
    return Page.of(
        *_sections_of_front(front, every=every),
        _section_of_basis(view_front(front)),
        title=f"Memory and time: {name_job(front.workload, front.profile)}",
        lede=f"Plans that no other plan beats in both; the budget is {format_bytes(front.budget_bytes)}.",
    )


def make_comparison_page(results: Results, case: Case, *, regret: bool = False) -> Page:
    """Return the page of strategies side by side; if none fits, it says why."""
    view = view_comparison(results, case, regret=regret)
    plans = {name: result for name, result in results.items() if isinstance(result, Plan)}
    best = next(iter(plans), None)
    labelled = [
        _Labelled(label=f"{name} (best)" if name == best else name, plan=plan) for name, plan in plans.items()
    ]
    return Page.of(
        *(() if plans else (_section_of_reasons(results.values()),)),
        _section_of_strategies(results, view),
        _section_of_schedules(labelled),
        _section_of_basis(view),
        title=f"Strategies: {name_job(case.workload, case.profile)}",
        lede="The best plan of each strategy." if plans else "No strategy fits.",
    )


def make_report_page(plan: Plan, compared: Results, *, front: ParetoFront, study: Sensitivity | None) -> Page:
    """Return all that is known about a plan: the front around it, its rivals, and what its inputs do to it."""
    view, case = view_plan(plan, lambda: compared), Case(workload=plan.workload, profile=plan.profile)
    studies = [study] if study else []
    return Page.of(
        Section("plan", "The plan", view.blocks()),
        *_sections_of_front(front, own=_label_plan(plan)),
        _section_of_strategies(compared, view_comparison(compared, case)),
        *map(_section_of_inputs, studies),
        _section_of_basis(view, *map(view_sensitivity, studies)),
        title=f"{plan.strategy}: {name_job(plan.workload, plan.profile)}",
        lede=_summarize(plan),
    )


def make_sensitivity_page(study: Sensitivity) -> Page:
    """Return the page of a sensitivity study."""
    return Page.of(
        _section_of_inputs(study),
        _section_of_basis(view_sensitivity(study)),
        title=f"Sensitivity: {name_job(study.workload, study.profile)}",
        lede="What each input does to the time of the best plan.",
    )


def make_machines_page(comparison: MachineComparison) -> Page:
    """Return the page of machines side by side."""
    view = view_machines(comparison)
    plans = [
        _Labelled(label=f"{machine.profile.name}: {machine.plan.strategy}", plan=machine.plan)
        for machine in comparison.machines
        if machine.plan is not None
    ]
    charts = [chart_machines(comparison)] if plans else []
    return Page.of(
        Section("machines", "Machines", [*charts, *view.blocks()]),
        _section_of_schedules(plans),
        _section_of_basis(view),
        title=f"Machines for {comparison.workload.name}, T = {format_count(comparison.workload.steps)}",
        lede="The best plan on each machine." if plans else "It fits on no machine.",
    )


def make_infeasible_page(error: Infeasible, *, title: str) -> Page:
    """Return a page that says why nothing fits, and what would."""
    return Page.of(_section_of_reasons([error]), title=f"Nothing fits: {title}", lede=error.subject)


def make_validation_page(plan: Plan, found: Validation) -> Page:
    """Return the page of a validation."""
    view = view_validation(plan, found)
    return Page.of(
        Section("numbers", "Predicted and measured", view.blocks()),
        _section_of_schedules([_label_plan(plan)], title="The schedule as it was predicted"),
        _section_of_basis(view),
        title=f"Predicted and measured: {name_job(plan.workload, plan.profile)}",
        lede=f"{plan.strategy} with {found.cell}, on {found.environment.machine}.",
    )


def make_sweep_page(picture: SweepPicture) -> Page:
    """Return the page of a sweep, all of whose rows were added: lines or heat maps, and a table."""
    summary = Summary(picture.sweep, most_rows=_MOST_ROWS)
    summary.add(picture.rows())
    what, job = picture.title()
    charts = chart_sweep(picture)
    return Page.of(
        Section("sweep", "The best plans", charts),
        Section("numbers", "Numbers", summary.blocks()),
        Section("basis", "Estimate basis", explain_basis(summary.list_basis())),
        title=f"Sweep: {job}",
        lede=f"{what}.",
    )


def _section_of_basis(*views: View) -> Section:
    """Return the inputs behind the numbers of views, each once, with its origin."""
    entries = tuple(dict.fromkeys(entry for view in views for entry in view.basis()))
    return Section("basis", "Estimate basis", explain_basis(entries))


def _section_of_reasons(results: Iterable[Plan | Infeasible]) -> Section:
    """Return why each strategy does not fit."""
    reasons = [format_infeasible(result) for result in results if isinstance(result, Infeasible)]
    return Section("reasons", "Why nothing fits", (Paragraph(text, style="warning") for text in reasons))


def _section_of_strategies(results: Results, view: View) -> Section:
    """Return the chart and the table of strategies side by side."""
    plans = [result for result in results.values() if isinstance(result, Plan)]
    # One of each schedule: strategies that have the same one would be the same bar.
    charts = _chart_plans([group[0] for group in group_same_schedules(plans)])
    return Section("strategies", "Strategies", [*charts, *view.blocks()])


def _chart_plans(plans: Sequence[Plan]) -> list[Chart]:
    return [chart_comparison(plans)] if plans else []


def _section_of_inputs(study: Sensitivity) -> Section:
    """Return the tornado and the table of a sensitivity study."""
    return Section("inputs", "What the inputs do", [chart_tornado(study), *view_sensitivity(study).blocks()])


def _sections_of_front(
    front: ParetoFront, *, own: _Labelled | None = None, every: bool = False
) -> Iterator[Section]:
    """Yield the chart of a front, the plans of its points, and its numbers; ``own`` is a plan besides."""
    places = _choose_places(front)
    plans = ([own] if own else []) + _label_places(front, places)
    ahead = len(plans) - len(places)
    if places:
        numbered = {place: ahead + index for index, place in enumerate(places)}
        chart = chart_front(front, plans=numbered, own=own.plan if own else None, every=every)
        yield Section("front", "Memory and time", [chart])
    best = front.place_within(front.budget_bytes)
    yield _section_of_schedules(plans, first=0 if own or best is None else places.index(best))
    yield Section("front-numbers", "The front in numbers", view_front(front).blocks())


def _section_of_schedules(
    plans: Sequence[_Labelled], *, title: str = "The chosen plan", first: int = 0
) -> Section:
    """Return the place where a plan of several is shown, of which one is the first."""
    panels = [PlanPanel(plans=_show_plans(plans), first=first)] if plans else []
    return Section("schedule", title, panels)


def _summarize(plan: Plan) -> str:
    facts = dict(_list_facts(plan))
    return (
        f"{facts['time']} a batch, {facts['over base']} over plain backpropagation, "
        f"with {facts['local memory']} of local memory."
    )


@dataclass(frozen=True, kw_only=True)
class _Labelled:
    """A plan and what it is called."""

    label: str
    plan: Plan
    detail: Detail = _ONE_OF_MANY


def _label_plan(plan: Plan) -> _Labelled:
    """Return a plan that is drawn as finely as a page of its own allows."""
    return _Labelled(label=f"{plan.strategy}, the plan of this report", plan=plan, detail=_WHOLE)


def _show_plans(plans: Iterable[_Labelled]) -> tuple[ShownPlan, ...]:
    """Return plans for a page; those whose schedules or files are too long for it say so."""
    events, characters = _EVENTS, _CHARACTERS
    shown = []
    for one in plans:
        most = one.detail.events if one.detail is _WHOLE else min(one.detail.events, events)
        chart, note, seen = _draw(one, most)
        content: str | None = plan_text(one.plan)
        if len(content or "") > characters:
            content = None
        characters -= len(content or "")
        events -= 0 if one.detail is _WHOLE else seen
        shown.append(
            ShownPlan(label=one.label, facts=_list_facts(one.plan), chart=chart, note=note, content=content)
        )
    return tuple(shown)


def _draw(one: _Labelled, most: int) -> tuple[Chart | None, str, int]:
    """Return the chart of a plan's schedule, or None and why; and the number of events that were read."""
    plan = one.plan
    detail = Detail(bars=one.detail.bars, intervals=one.detail.intervals, events=most)
    try:
        sketch = sketch_schedule(plan, detail=detail)
    except TooLongToDraw as error:
        read = f"its first {format_count(error.most)} actions were" if error.most else "nothing of it was"
        return None, f"The schedule is too long to be drawn here: {read} read.", error.most
    except IllegalAction as error:
        return None, f"The schedule breaks a law: {error}", 0
    except InputError as error:
        return None, f"There is no schedule: {error}", 0
    return chart_schedule(plan, sketch), "", sketch.actions


def _list_facts(plan: Plan) -> tuple[tuple[str, str], ...]:
    """Return the numbers of a plan, the same for every plan."""
    table = Table.of(_FACTS, [tell_plan(plan)])
    return tuple((name, text or "none") for name, text in zip(table.headings, table.texts[0], strict=True))


def _choose_places(front: ParetoFront) -> list[int]:
    """Return the places of a front whose plans are shown: its ends, the best, the knee, and some between."""
    if not len(front):
        return []
    between = spread_places(beside_resident(front), _POINTS).tolist()
    return sorted({0, len(front) - 1, *mark_points(front), *between})


def _label_places(front: ParetoFront, places: Sequence[int]) -> list[_Labelled]:
    """Return the plans of places of a front, with what distinguishes them."""
    marks = mark_points(front)
    found = []
    for place in places:
        text = f"{front.strategies[place]} in {format_bytes(int(front.local_peak_bytes[place]))}"
        found.append(_Labelled(label=f"{text} ({marks[place]})" if place in marks else text, plan=front[place]))
    return found


def chart_comparison(plans: Sequence[Plan]) -> Chart:
    """Return the chart of the plans that fit, in their order."""
    times = [plan.predicted.overhead for plan in plans]
    sizes = [plan.predicted.local_peak_bytes for plan in plans]
    # Far off, the budget would squeeze the bars.
    budget = plans[0].goal.local_bytes
    near = [budget] if budget is not None and budget <= 4 * max(sizes) else []
    scales = (
        scale_shares("time over base", 0, 1.1 * max(0.01, *times)),
        scale_bytes("local memory", 0, 1.1 * max(*sizes, *near)),
    )
    line = Marks(kind="rule", rows=[{"x": one} for one in near], dashes=(0, (2, 1.3)))
    words = "".join(f"; the dashed line is the budget, {format_bytes(one)}" for one in near)
    return Chart.of(
        "comparison",
        "Strategies",
        f"The best plan of each strategy, the one to run first{words}.",
        spacing=24,
        vconcat=[
            _chart_bars(plans, times, scales[0], "overhead", style.BLUE),
            _chart_bars(plans, sizes, scales[1], "local_peak_bytes", style.ORANGE, line),
        ],
    )


def _chart_bars(
    plans: Sequence[Plan], values: Sequence[float], scale: Scale, label: str, colour: str, *more: Marks
) -> Spec:
    rows = [
        {**vega.label_plan(plan), "y": plan.strategy, "x": value}
        for plan, value in zip(plans, values, strict=True)
    ]
    bars = Marks(kind="bar", rows=rows, colour=colour, opacity=0.9, told=vega.PLAN)
    text = {"text": {"field": label}}
    return {
        "width": "container",
        "height": {"step": 24},
        "encoding": {"y": vega.nominal("y", sort=None), "x": vega.at("x", scale)},
        "layer": [
            *layer_marks([bars, *more]),
            vega.layer("text", rows, text, align="left", dx=4, fill=vega.INK, clip=False),
        ],
    }
