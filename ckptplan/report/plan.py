"""Describes a plan, or strategies side by side: the plan to run, its cost, and the cost of the others."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any, TypeAlias

from ckptplan.cost.case import Case
from ckptplan.cost.roofline import belongs_elsewhere
from ckptplan.errors import Infeasible
from ckptplan.model.budget import find_memory
from ckptplan.model.goal import Goal
from ckptplan.model.plan import Plan, RegularPlan, find_given_memory
from ckptplan.model.prediction import Bound
from ckptplan.model.workload import was_resized
from ckptplan.planning.optimize import (
    DETAIL_COLUMNS,
    JOB_COLUMNS,
    REASON_COLUMNS,
    Compared,
    cost_columns,
)
from ckptplan.planning.playback import group_same_schedules, list_same_schedules
from ckptplan.planning.request import find_resolution
from ckptplan.report import blocks, fields
from ckptplan.report.formats import ShownPlan, View
from ckptplan.report.picture import Chart
from ckptplan.storage.plans import plan_document
from ckptplan.storage.tables import Rows
from ckptplan.strategies.registry import strategy_of
from ckptplan.units import (
    format_bytes,
    format_count,
    format_percent,
    format_seconds,
    format_share,
    format_things,
)

Results: TypeAlias = Mapping[str, Plan | Infeasible]

#: The smallest share that is shown. Smaller ones would be printed as 0 %.
_LEAST_SHOWN = 0.0001
_CORRECTED = (
    "equation (10), the messages of hierarchical, is corrected: as printed it gives -24 messages for 64 "
    "checkpoints of which 16 are local, so that hierarchical would be chosen where double is quicker "
    "(docs/equations.md, D1)"
)
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
        chart=lambda: chart_strategies(list_plans(compared())),
        plans=lambda: [ShownPlan(label=f"{plan.strategy}, the plan of this page", plan=plan, first=True)],
    )


def _describe_plan(plan: Plan, compared: Results, unsearched: Sequence[str]) -> Iterator[blocks.Block]:
    """Yield the facts of a plan, a table of the local memory, and the results of the other strategies."""
    results = {
        plan.strategy: plan,
        **{name: result for name, result in compared.items() if name != plan.strategy},
    }
    case = Case(workload=plan.workload, profile=plan.profile)
    yield blocks.make_facts(_list_facts(plan, list_plans(results)))
    budget = fields.find_budget(plan)
    yield from fields.list_memory(case, budget=budget, headroom=plan.goal.headroom, plan=plan)
    yield from fields.list_warnings(plan)
    yield from _compare_strategies(results)
    if unsearched:
        names = ", ".join(unsearched)
        gap = find_resolution(plan.workload) if plan.bound is None else plan.bound.gap
        by = f" by more than {format_share(max(gap, _LEAST_SHOWN))}" if gap > fields.PROVED else ""
        text = f"not searched, as none can be quicker{by}: {names} (ckptplan compare plans each of them)"
        yield blocks.Paragraph(text, style="faint")


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

    return View(
        kind="comparison",
        heading="Strategies",
        title=fields.name_job(case.workload, case.profile),
        memory=find_memory(budget, headroom, machine=case.profile.local_bytes),
        unmet="no strategy fits" if best is None else "",
        blocks=lambda: _describe_comparison(results, regret=regret),
        document=make_document,
        rows=lambda: Rows(
            columns=(*JOB_COLUMNS, *cost_columns(), *REASON_COLUMNS, *DETAIL_COLUMNS),
            rows=[
                {**job, "strategy": name, **fields.make_result_row(result)} for name, result in results.items()
            ],
        ),
        basis=lambda: () if best is None else best.estimate_basis,
        # Draw one plan of each schedule: strategies with the same schedule would have the same dots.
        chart=lambda: chart_strategies([group[0] for group in group_same_schedules(plans)]),
        plans=lambda: [ShownPlan(label=plan.strategy, plan=plan, first=plan is best) for plan in plans],
    )


def _describe_comparison(results: Compared, *, regret: bool) -> Iterator[blocks.Block]:
    """Yield a line for each schedule, and a table of the local memory that every schedule needs."""
    yield from _compare_strategies(results, regret=regret)
    best = list_plans(results)[:1]
    if regret:
        yield from (blocks.Paragraph(_explain_regret(plan)) for plan in best)
    budget, headroom = fields.find_limits(results.values(), results.case.profile)
    yield from fields.list_memory(results.case, budget=budget, headroom=headroom)
    for plan in best:
        yield from fields.list_warnings(plan)


def list_plans(results: Results) -> list[Plan]:
    """Return the plans among results, the best one first."""
    return [result for result in results.values() if isinstance(result, Plan)]


def _compare_strategies(results: Results, *, regret: bool = False) -> Iterator[blocks.Block]:
    """Yield a table with a line for each schedule; with ``regret`` also its time over the optimum.

    If several strategies have the same schedule, the line names the simplest one, and a note lists the others.
    """
    plans = list_plans(results)
    best = plans[0] if plans else None
    groups = [
        sorted(group, key=lambda plan: strategy_of(plan.strategy).simplicity)
        for group in group_same_schedules(plans)
    ]
    rows = [
        {**fields.make_plan_row(plan), **_find_regrets(plan), "over_best": _compare_with_best(plan, best)}
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
    if best is not None:
        if best.goal.objective == "balanced":
            yield blocks.Paragraph("best is the knee of time and memory", style="faint")
        alike = ", ".join(plan.strategy for plan in plans if fields.passed_over(plan, best))
        if alike:
            text = f"better than {best.strategy} by too little to tell: {alike}"
            yield blocks.Paragraph(text, style="faint")
        if best.goal.model == "paper":
            yield blocks.Paragraph(_CORRECTED, style="faint")


def _choose_style(row: Mapping[str, Any]) -> blocks.Style:
    """Return the style of the line of a strategy."""
    if "binding" in row:
        return "faint"
    return "best" if row["over_best"] == "best" else ""


def _compare_with_best(plan: Plan, best: Plan | None) -> float | str:
    """Return a plan's excess over the best plan: of memory if memory is the objective, else of time."""
    if best is None or plan is best:
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


def _explain_regret(best: Plan) -> str:
    if best.bound is None:
        return "No bound was proved: name the strategy optimal, too."
    if best.bound.gap < fields.PROVED:
        return "The least is what an optimal schedule takes; extra is time over base."
    within = _describe_distance(best.bound)
    return f"The least is a proven lower bound, the best plan {within} it; extra is time over base."


def _describe_distance(bound: Bound) -> str:
    """Return how far above the least time a plan is at most, as a share of the least time."""
    if bound.gap >= 1:
        # The proved lower bound is negligible compared with the plan's time, or 0.
        return "at an unknown distance from"
    return f"within {format_percent(bound.gap / (1 - bound.gap))[1:]} of"


def _list_facts(plan: Plan, plans: Sequence[Plan]) -> dict[str, blocks.Content]:
    """Return the facts of a plan by title, compared with other plans. Facts that do not apply are empty."""
    predicted, goal, paper = plan.predicted, plan.goal, plan.predicted.paper
    used, budget = predicted.local_peak_bytes, fields.find_budget(plan)
    limit = "unbounded" if goal.remote_bytes is None else f"of {format_bytes(goal.remote_bytes)}"
    return {
        "strategy": blocks.Cell(fields.name_plan(plan), style="best"),
        "proof": _describe_proof(plan),
        **_list_rivals(plan, plans),
        "chosen for": _describe_wish(plan.goal),
        "cache": fields.describe_cache(plan),
        "time": _describe_time(plan),
        "local memory": f"{format_bytes(used)} of {format_bytes(budget)}"
        f"{' per unit' if plan.profile.units > 1 else ''}, {format_share(used / budget)}",
        "remote memory": f"{format_bytes(predicted.remote_peak_bytes)} ({limit})",
        "recompute": f"{format_things(predicted.recomputed_steps, 'step')} run again "
        f"({predicted.recomputed_steps / plan.steps:.2f} for each of the sequence)"
        if predicted.recomputed_steps
        else "none",
        "transfers": f"{format_things(predicted.remote_writes, 'state')} out, "
        f"{format_count(predicted.remote_reads)} back, in {format_things(predicted.messages, 'message')}"
        if predicted.messages
        else "none",
        "paper's equations": ""
        if paper is None
        else f"{format_seconds(paper.seconds)}, {format_percent(paper.overhead)} over base; "
        f"{format_bytes(paper.local_peak_bytes)} local",
    }


def _describe_proof(plan: Plan) -> str:
    # The bound is a bound on time: it says nothing about the least memory or the knee.
    if plan.bound is None or plan.goal.objective != "time":
        return ""
    if plan.bound.gap < fields.PROVED:
        return "no legal schedule is quicker"
    return f"{_describe_distance(plan.bound)} the least possible time"


def _describe_wish(goal: Goal) -> str:
    """Return the goal of a plan in words, '' if the goal is simply the least time."""
    wishes = {
        "least local memory": goal.objective == "memory",
        "the knee of time and memory": goal.objective == "balanced",
        f"at most {format_percent(goal.max_overhead or 0)} over base": goal.max_overhead is not None,
        "by the paper's equations, (10) corrected": goal.model == "paper",
    }
    return ", ".join(text for text, is_asked in wishes.items() if is_asked)


def _list_rivals(plan: Plan, plans: Sequence[Plan]) -> dict[str, str]:
    """Return the cost of the best regular plan and of the paper's best plan, if they are other plans."""
    regular = plan.regular
    paper = next((other for other in plans if other.predicted.paper is not None), None)
    rivals = {}
    if not plan.is_regular:
        rivals["schedule"] = "irregular: it needs a loop over its list of actions"
        if regular is not None:
            also = ", the best of the paper's" if _is_same(paper, regular) else ""
            rivals["best regular"] = f"{_describe_price(regular, plan)}{also}"
    if plan.goal.objective == "balanced" or any(fields.passed_over(other, plan) for other in plans):
        rivals["choice"] = fields.explain_choice(plan)
    if paper is not None and paper is not plan and (plan.is_regular or not _is_same(paper, regular)):
        rivals["paper's best"] = _describe_price(paper, plan)
    return rivals


def _is_same(plan: Plan | None, other: RegularPlan | None) -> bool:
    if plan is None or other is None:
        return False
    return (plan.strategy, plan.parameters) == (other.strategy, other.parameters)


def _describe_price(other: Plan | RegularPlan, plan: Plan) -> str:
    slower = other.predicted.seconds / plan.predicted.seconds - 1 if plan.predicted.seconds else 0.0
    return (
        f"{fields.name_plan(other)}: {format_seconds(other.predicted.seconds)}, {format_percent(slower)} time"
    )


def _describe_time(plan: Plan) -> str:
    seconds, overhead = plan.predicted.seconds, plan.predicted.overhead
    base = format_seconds(seconds / (1 + overhead))
    cost = f"{format_seconds(seconds)} a batch, {format_percent(overhead)} over base ({base})"
    if belongs_elsewhere(plan.workload, plan.profile):
        return f"{cost}; step times carried over from {plan.workload.timed_on}, not rescaled"
    return f"{cost}; step times carried over, not rescaled" if was_resized(plan.workload) else cost


def chart_strategies(plans: Sequence[Plan]) -> Chart | None:
    """Return the chart of plans of several strategies in their order, None if there is no plan."""
    caption = "The best plan of each strategy; the plan to run comes first."
    if not plans:
        return None
    return Chart(drawing="strategies", result=plans, title="Strategies side by side", caption=caption)
