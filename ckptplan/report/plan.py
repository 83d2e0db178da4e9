"""Describes a plan, or strategies side by side: the plan to run, its cost, and the cost of the others."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any, TypeAlias

from ckptplan.cost.case import Case
from ckptplan.cost.roofline import belongs_elsewhere
from ckptplan.errors import Infeasible
from ckptplan.model.budget import find_memory
from ckptplan.model.plan import Plan, find_given_memory
from ckptplan.model.prediction import Bound
from ckptplan.model.workload import was_resized
from ckptplan.planning.optimize import DETAIL_COLUMNS, JOB_COLUMNS, REASON_COLUMNS, Compared, cost_columns
from ckptplan.planning.playback import group_same_schedules, list_same_schedules
from ckptplan.planning.request import find_resolution
from ckptplan.report import blocks, fields
from ckptplan.report.formats import ShownPlan, View
from ckptplan.report.picture import Chart
from ckptplan.storage.plans import plan_document
from ckptplan.storage.tables import Rows
from ckptplan.strategies.registry import strategy_of
from ckptplan.units import format_percent, format_seconds, format_share

Results: TypeAlias = Mapping[str, Plan | Infeasible]

#: The smallest share that is shown. Smaller ones would be printed as 0 %.
_LEAST_SHOWN = 0.0001
_REGRETS = (
    blocks.Field("time_over_least", "time / least"),
    blocks.Field("extra_over_least", "extra / least"),
)


def view_plan(plan: Plan, *, compared: Callable[[], Results] = dict, unsearched: Sequence[str] = ()) -> View:
    """Return the view of a plan. Tables and pages also show the results of other strategies from ``compared``.

    ``unsearched`` names the strategies that were not searched because none can be quicker.
    """
    return View(
        kind=None,
        heading="Plan",
        title=fields.name_job(plan.workload, plan.profile),
        memory=find_given_memory(plan),
        blocks=lambda: _describe_plan(plan, compared(), unsearched),
        document=lambda: plan_document(plan),
        rows=lambda: Rows(columns=fields.list_plan_columns(), rows=[fields.make_plan_row(plan)]),
        basis=lambda: plan.estimate_basis,
        chart=lambda: _chart_strategies(compared()),
        plans=lambda: [ShownPlan(label=f"{plan.strategy}, the plan of this page", plan=plan, first=True)],
    )


def _describe_plan(plan: Plan, compared: Results, unsearched: Sequence[str]) -> Iterator[blocks.Block]:
    """Yield the facts of a plan, a table of the local memory, and the results of the other strategies."""
    others = {name: result for name, result in compared.items() if name != plan.strategy}
    yield blocks.make_facts({**fields.describe_plan(plan), **_list_reasons(plan)})
    case, budget = Case(workload=plan.workload, profile=plan.profile), fields.find_budget(plan)
    yield fields.list_memory(case, budget=budget, headroom=plan.goal.headroom, plan=plan)
    yield from fields.list_warnings(plan)
    yield from _compare_strategies({plan.strategy: plan, **others})
    if unsearched:
        gap = find_resolution(plan.workload) if plan.bound is None else plan.bound.gap
        by = f" by more than {format_share(max(gap, _LEAST_SHOWN))}" if gap > fields.PROVED else ""
        names = ", ".join(unsearched)
        text = f"not searched, as none can be quicker{by}: {names} (ckptplan compare plans each of them)"
        yield blocks.Paragraph(text, style="faint")


def _list_reasons(plan: Plan) -> dict[str, str]:
    """Return facts about the choice of a plan by title. Facts that do not apply are empty."""
    goal, regular, paper = plan.goal, plan.regular, plan.predicted.paper
    wishes = {
        f"least {goal.objective}" if goal.objective == "memory" else "the knee": goal.objective != "time",
        f"at most {format_percent(goal.max_overhead or 0)} over base": goal.max_overhead is not None,
        "by the paper's equations": goal.model == "paper",
    }
    best_regular = ""
    if not plan.is_regular and regular is not None:
        seconds = plan.predicted.seconds
        slower = regular.predicted.seconds / seconds - 1 if seconds else 0.0
        cost = f"{format_seconds(regular.predicted.seconds)}, {format_percent(slower)} time"
        best_regular = f"{fields.name_plan(regular)}: {cost}"
    times = ""
    if belongs_elsewhere(plan.workload, plan.profile):
        times = f"carried over from {plan.workload.timed_on}, not rescaled"
    elif was_resized(plan.workload):
        times = "carried over, not rescaled"
    return {
        "step times": times,
        "cache": fields.describe_cache(plan),
        "proof": _describe_proof(plan),
        "schedule": "" if plan.is_regular else "irregular: a list of actions, not a loop",
        "best regular": best_regular,
        "chosen for": ", ".join(text for text, is_asked in wishes.items() if is_asked),
        "choice": fields.explain_choice(plan),
        "paper's equations": ""
        if paper is None
        else f"{format_seconds(paper.seconds)}, {format_percent(paper.overhead)} over base",
    }


def view_comparison(results: Compared, *, regret: bool = False) -> View:
    """Return the view of the best plan of each strategy, or the reason why it has none.

    ``regret`` adds columns with each time over the least possible time.
    """
    plans, case = list_plans(results), results.case
    budget, headroom = fields.find_limits(results.values(), case.profile)
    best = plans[0] if plans else None
    job = fields.make_job_row(case.workload, case.profile)

    def make_document() -> dict[str, Any]:
        same = list_same_schedules(plans)
        of_plans = {
            plan.strategy: {**_find_regrets(plan), "same_schedule": list(same[plan.strategy])} for plan in plans
        }
        by_strategy = {
            name: fields.make_result_document(result, **of_plans.get(name, {}))
            for name, result in results.items()
        }
        return {**fields.identify_job(case.workload, case.profile), "strategies": by_strategy}

    def describe() -> Iterator[blocks.Block]:
        yield from _compare_strategies(results, regret=regret)
        yield fields.list_memory(case, budget=budget, headroom=headroom)
        if best is not None:
            if choice := fields.explain_choice(best):
                yield blocks.Paragraph(choice, style="faint")
            yield from fields.list_warnings(best)

    return View(
        kind="comparison",
        heading="Strategies",
        title=fields.name_job(case.workload, case.profile),
        memory=find_memory(budget, headroom, machine=case.profile.local_bytes),
        unmet="no strategy fits" if best is None else "",
        blocks=describe,
        document=make_document,
        rows=lambda: Rows(
            columns=(*JOB_COLUMNS, *cost_columns(), *REASON_COLUMNS, *DETAIL_COLUMNS),
            rows=[
                {**job, "strategy": name, **fields.make_result_row(result)} for name, result in results.items()
            ],
        ),
        basis=lambda: () if best is None else best.estimate_basis,
        chart=lambda: _chart_strategies(results),
        plans=lambda: [ShownPlan(label=plan.strategy, plan=plan, first=plan is best) for plan in plans],
    )


def list_plans(results: Results) -> list[Plan]:
    """Return the plans among results, the best one first."""
    return [result for result in results.values() if isinstance(result, Plan)]


def _compare_strategies(results: Results, *, regret: bool = False) -> Iterator[blocks.Block]:
    """Yield a table with a line for each schedule; with ``regret`` also its time over the least possible time.

    If several strategies have the same schedule, the line names the simplest one, and a note lists the others.
    """
    plans = list_plans(results)
    best = plans[0] if plans else None
    groups = [
        sorted(group, key=lambda plan: strategy_of(plan.strategy).simplicity)
        for group in group_same_schedules(plans)
    ]
    rows = [
        {**fields.make_plan_row(plan), **_find_regrets(plan), "over_best": _compare_with_best(plan, plans[0])}
        for plan, *_ in groups
    ]
    rows += [
        {"strategy": name, **fields.make_result_row(result)}
        for name, result in results.items()
        if isinstance(result, Infeasible)
    ]
    by_memory = best is not None and best.goal.objective == "memory"
    over_best = blocks.Field("over_best", "memory over best" if by_memory else "over best", 4)
    columns = (*fields.PLAN, *(_REGRETS if regret else (over_best,)))
    yield blocks.Table.of(columns, rows, style=_choose_style)
    yield from fields.note_same_schedules([plan.strategy for plan in group] for group in groups)
    if best is not None and regret:
        least = "not known: name the strategy optimal, too" if best.bound is None else _describe_proof(best)
        yield blocks.Paragraph(f"least time: {least}; extra is time over base", style="faint")


def _choose_style(row: Mapping[str, Any]) -> blocks.Style:
    """Return the style of the line of a strategy."""
    if "binding" in row:
        return "faint"
    return "best" if row["over_best"] == "best" else ""


def _compare_with_best(plan: Plan, best: Plan) -> float | str:
    """Return a plan's excess over the best plan: of memory if memory is the objective, else of time."""
    if plan is best:
        return "best"
    name = "local_peak_bytes" if plan.goal.objective == "memory" else "seconds"
    return float(plan.predicted[name] / best.predicted[name] - 1)


def _find_regrets(plan: Plan) -> dict[str, float | None]:
    """Return a plan's time over the least possible time, and the same ratio for the time added to base's.

    A ratio is None if no bound is proved, or if the divisor is zero.
    """
    if plan.bound is None:
        return {"time_over_least": None, "extra_over_least": None}
    base = plan.predicted.seconds / (1 + plan.predicted.overhead)
    least = plan.bound.least_seconds
    extra, least_extra = plan.predicted.seconds - base, least - base
    return {
        "time_over_least": plan.predicted.seconds / least if least > 0 else None,
        "extra_over_least": extra / least_extra if least_extra > 1e-9 * base else None,
    }


def _describe_proof(plan: Plan) -> str:
    """Return how far above the least time the time of a plan is at most, '' if nothing is proved."""
    bound: Bound | None = plan.bound
    # The bound is a bound on time: it says nothing about the least memory or the knee.
    if bound is None or plan.goal.objective != "time":
        return ""
    if bound.gap < fields.PROVED:
        return "no legal schedule is quicker"
    if bound.gap >= 1:
        # The proved lower bound is negligible compared with the plan's time, or 0.
        return "at an unknown distance from the least possible time"
    return f"within {format_percent(bound.gap / (1 - bound.gap))[1:]} of the least possible time"


def _chart_strategies(results: Results) -> Chart | None:
    """Return the chart of the plans of several strategies in their order, None if there is no plan."""
    caption = "The best plan of each strategy; the plan to run comes first."
    return Chart(result=results, caption=caption) if list_plans(results) else None
