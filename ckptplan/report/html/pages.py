"""The pages of results: which tables, charts and plans each has."""

from __future__ import annotations

from collections.abc import Callable, Mapping

from rich.console import Console

from ckptplan.calibration.validation import Validation
from ckptplan.cost.case import Case
from ckptplan.errors import Infeasible
from ckptplan.model.plan import Plan
from ckptplan.model.profile import HardwareProfile
from ckptplan.model.workload import Workload
from ckptplan.planning.playback import group_same_schedules
from ckptplan.report.basis import print_basis
from ckptplan.report.formats import View
from ckptplan.report.html.blocks import Paragraph, collect_blocks
from ckptplan.report.html.charts.comparison import chart_comparison, chart_machines, chart_tornado
from ckptplan.report.html.charts.front import chart_front
from ckptplan.report.html.page import ChartBlock, Page, PlanPanel, Section
from ckptplan.report.html.plans import (
    WHOLE,
    Labelled,
    choose_places,
    label_places,
    list_facts,
    offer_plan,
    show_plans,
)
from ckptplan.report.infeasible import format_infeasible
from ckptplan.studies.machines import MachineComparison
from ckptplan.studies.pareto import ParetoFront
from ckptplan.studies.sensitivity import Sensitivity
from ckptplan.units import format_bytes, format_count
from ckptplan.wording import Wording

Table = Callable[[Console], None]
Results = Mapping[str, Plan | Infeasible]


def name_job(workload: Workload, profile: HardwareProfile) -> str:
    """Return 'paper-snn on ipu-mk2, T = 4 096'."""
    return f"{workload.name} on {profile.name}, T = {format_count(workload.steps)}"


def section_of_table(table: Table, *, name: str = "numbers", title: str = "Numbers") -> Section:
    """Return what a result prints, as a section."""
    return Section(name=name, title=title, blocks=collect_blocks(table))


def section_of_basis(*views: View) -> Section:
    """Return the inputs behind the numbers of views, each once, with its origin."""
    entries = tuple(dict.fromkeys(entry for view in views for entry in view.basis()))
    blocks = collect_blocks(lambda console: print_basis(console, entries, whole=True))
    return Section(name="basis", title="Estimate basis", blocks=blocks[1:])


def sections_of_front(front: ParetoFront, view: View, *, own: Labelled | None = None) -> tuple[Section, ...]:
    """Return the chart of a front, the plans of its points, and its numbers; ``own`` is a plan besides."""
    numbers = section_of_table(view.table, name="front-numbers", title="The front in numbers")
    places = choose_places(front)
    plans = ([own] if own else []) + label_places(front, places)
    if not plans:
        return (numbers,)
    ahead = len(plans) - len(places)
    best = front.place_within(front.budget_bytes)
    first = 0 if own or best is None else places.index(best)
    panel = PlanPanel(plans=show_plans(plans), first=first)
    numbered = {place: ahead + index for index, place in enumerate(places)}
    chart = (
        (ChartBlock(chart=chart_front(front, plans=numbered, own=own.plan if own else None)),) if places else ()
    )
    return (
        *(Section(name="front", title="Memory and time", blocks=(one,)) for one in chart),
        Section(name="schedule", title="The chosen plan", blocks=(panel,)),
        numbers,
    )


def make_front_page(front: ParetoFront, view: View, *, command: str = "") -> Page:
    """Return the page of a front."""
    return Page(
        title=f"Memory and time: {name_job(front.workload, front.profile)}",
        lede=f"Plans that no other plan beats in both; the budget is {format_bytes(front.budget_bytes)}.",
        sections=(*sections_of_front(front, view), section_of_basis(view)),
        command=command,
    ).tidied()


def sections_of_comparison(results: Results, table: Table, *, name: str = "strategies") -> tuple[Section, ...]:
    """Return the chart and the table of strategies side by side."""
    plans = [result for result in results.values() if isinstance(result, Plan)]
    # One of each schedule: strategies that have the same one would be the same bar.
    plans = [group[0] for group in group_same_schedules(plans)]
    charts = (ChartBlock(chart=chart_comparison(plans)),) if plans else ()
    numbers = section_of_table(table, name=name, title="Strategies")
    return (Section(name=name, title=numbers.title, blocks=(*charts, *numbers.blocks)),)


def make_comparison_page(
    results: Results, case: Case, view: View, *, wording: Wording = str, command: str = ""
) -> Page:
    """Return the page of strategies side by side, or why none fits."""
    plans = [result for result in results.values() if isinstance(result, Plan)]
    sections = sections_of_comparison(results, view.table)
    if plans:
        panel = PlanPanel(plans=show_plans(_label_strategies(results)))
        sections += (Section(name="schedule", title="The chosen plan", blocks=(panel,)),)
    else:
        sections = (*sections_of_reasons(results, wording=wording), *sections)
    return Page(
        title=f"Strategies: {name_job(case.workload, case.profile)}",
        lede="The best plan of each strategy." if plans else "No strategy fits.",
        sections=(*sections, section_of_basis(view)),
        command=command,
    ).tidied()


def _label_strategies(results: Results) -> list[Labelled]:
    return [
        Labelled(label=f"{name}{' (best)' if index == 0 else ''}", plan=result)
        for index, (name, result) in enumerate(results.items())
        if isinstance(result, Plan)
    ]


def sections_of_reasons(results: Results, *, wording: Wording = str) -> tuple[Section, ...]:
    """Return why each strategy does not fit."""
    reasons = [
        Paragraph(text=format_infeasible(result, wording=wording), role="warning")
        for result in results.values()
        if isinstance(result, Infeasible)
    ]
    return (Section(name="reasons", title="Why nothing fits", blocks=tuple(reasons)),)


def make_plan_page(plan: Plan, view: View, results: Results, *, command: str = "") -> Page:
    """Return the page of a plan: its answer, its schedule, and the strategies that it was chosen from."""
    panel = PlanPanel(plans=show_plans([label_plan(plan)]))
    compared = [one for one in results.values() if isinstance(one, Plan)]
    charts = (
        Section(name="strategies", title="Strategies", blocks=(ChartBlock(chart=chart_comparison(compared)),)),
    )
    return Page(
        title=f"{plan.strategy}: {name_job(plan.workload, plan.profile)}",
        lede=_summarize(plan),
        sections=(
            section_of_plan(view, plan),
            Section(name="schedule", title="Schedule and memory", blocks=(panel,)),
            *(charts if len(compared) > 1 else ()),
            section_of_basis(view),
        ),
        command=command,
    ).tidied()


def section_of_plan(view: View, plan: Plan) -> Section:
    """Return what a plan prints, and its file."""
    return Section(name="plan", title="The plan", blocks=(*offer_plan(plan), *collect_blocks(view.table)))


def label_plan(plan: Plan) -> Labelled:
    """Return a plan that is drawn as finely as a page of its own allows."""
    return Labelled(label=f"{plan.strategy}, the plan of this report", plan=plan, detail=WHOLE)


def _summarize(plan: Plan) -> str:
    facts = dict(list_facts(plan))
    return (
        f"{facts['time']} a batch, {facts['over base']} over plain backpropagation, "
        f"with {facts['local memory']} of local memory."
    )


def make_report_page(
    plan: Plan,
    *,
    view: View,
    front: ParetoFront,
    front_view: View,
    results: Results,
    comparison: View,
    study: Sensitivity | Infeasible,
    sensitivity: View | None,
    command: str = "",
) -> Page:
    """Return all that is known about a plan: the front around it, its rivals, and what its inputs do to it."""
    varied = (
        sections_of_sensitivity(study, sensitivity.table)
        if isinstance(study, Sensitivity) and sensitivity is not None
        else ()
    )
    return Page(
        title=f"{plan.strategy}: {name_job(plan.workload, plan.profile)}",
        lede=_summarize(plan),
        sections=(
            section_of_plan(view, plan),
            *sections_of_front(front, front_view, own=label_plan(plan)),
            *sections_of_comparison(results, comparison.table),
            *varied,
            section_of_basis(view, *([sensitivity] if sensitivity else [])),
        ),
        command=command,
    ).tidied()


def sections_of_sensitivity(study: Sensitivity, table: Table) -> tuple[Section, ...]:
    """Return the tornado and the table of a sensitivity study."""
    chart = ChartBlock(chart=chart_tornado(study))
    numbers = collect_blocks(table)
    return (Section(name="inputs", title="What the inputs do", blocks=(chart, *numbers)),)


def make_sensitivity_page(study: Sensitivity, view: View, *, command: str = "") -> Page:
    """Return the page of a sensitivity study."""
    return Page(
        title=f"Sensitivity: {name_job(study.workload, study.profile)}",
        lede="What each input does to the time of the best plan.",
        sections=(*sections_of_sensitivity(study, view.table), section_of_basis(view)),
        command=command,
    ).tidied()


def make_machines_page(comparison: MachineComparison, view: View, *, command: str = "") -> Page:
    """Return the page of machines side by side."""
    workload = comparison.workload
    plans = [
        Labelled(label=f"{machine.profile.name}: {machine.plan.strategy}", plan=machine.plan)
        for machine in comparison.machines
        if machine.plan is not None
    ]
    panel = (PlanPanel(plans=show_plans(plans)),) if plans else ()
    charts = (ChartBlock(chart=chart_machines(comparison)),) if plans else ()
    return Page(
        title=f"Machines for {workload.name}, T = {format_count(workload.steps)}",
        lede="The best plan on each machine." if plans else "It fits on no machine.",
        sections=(
            Section(name="machines", title="Machines", blocks=(*charts, *collect_blocks(view.table))),
            Section(name="schedule", title="The chosen plan", blocks=panel),
            section_of_basis(view),
        ),
        command=command,
    ).tidied()


def make_infeasible_page(
    error: Infeasible, *, title: str, wording: Wording = str, command: str = "", more: tuple[Section, ...] = ()
) -> Page:
    """Return a page that says why nothing fits, and what would."""
    return Page(
        title=f"Nothing fits: {title}",
        lede=error.subject,
        sections=(*sections_of_reasons({"": error}, wording=wording), *more),
        command=command,
    ).tidied()


def make_validation_page(plan: Plan, found: Validation, view: View, *, command: str = "") -> Page:
    """Return the page of a validation."""
    panel = PlanPanel(plans=show_plans([label_plan(plan)]))
    return Page(
        title=f"Predicted and measured: {name_job(plan.workload, plan.profile)}",
        lede=f"{plan.strategy} with {found.cell}, on {found.machine}.",
        sections=(
            Section(
                name="numbers",
                title="Predicted and measured",
                blocks=(*collect_blocks(view.table), *offer_plan(plan)),
            ),
            Section(name="schedule", title="The schedule as it was predicted", blocks=(panel,)),
            section_of_basis(view),
        ),
        command=command,
    ).tidied()
