"""A plan, and strategies side by side: what to run, its cost, and what the others would cost."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any, TypeAlias

from ckptplan.cost.case import Case
from ckptplan.cost.roofline import belongs_elsewhere
from ckptplan.errors import Infeasible
from ckptplan.model.goal import Goal
from ckptplan.model.plan import Plan
from ckptplan.model.prediction import Bound
from ckptplan.model.workload import was_resized
from ckptplan.planning.optimize import DETAIL_COLUMNS, JOB_COLUMNS, REASON_COLUMNS, cost_columns
from ckptplan.planning.playback import group_same_schedules, list_same_schedules
from ckptplan.planning.request import find_resolution
from ckptplan.report import blocks, fields
from ckptplan.report.formats import View
from ckptplan.report.infeasible import format_reason, list_reasons
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

if TYPE_CHECKING:
    from matplotlib.figure import Figure

Results: TypeAlias = Mapping[str, Plan | Infeasible]

_REGRETS = (
    blocks.Field("time_over_least", "time / least"),
    blocks.Field("extra_over_least", "extra / least"),
)


def view_plan(plan: Plan, compared: Callable[[], Results], *, unsearched: Sequence[str] = ()) -> View:
    """Return a plan; people see it among the results of other strategies.

    Strategies that were not searched, as none can be quicker, are named below the table.
    """

    def list_sections() -> Iterator[blocks.Section | blocks.Schedules]:
        yield blocks.Section("plan", "The plan", view.blocks())
        yield blocks.Schedules(title="Schedule and memory", own=plan)
        plans = [result for result in compared().values() if isinstance(result, Plan)]
        yield blocks.Section("strategies", "Strategies", [chart_comparison(plans)] if len(plans) > 1 else [])

    costs = dict(fields.describe_plan(plan))
    view = View(
        kind=None,
        blocks=lambda: _describe_plan(plan, compared(), unsearched),
        document=lambda: plan_document(plan),
        rows=lambda: Rows(columns=fields.list_plan_columns(), rows=[fields.make_plan_row(plan)]),
        basis=lambda: plan.estimate_basis,
        title=f"{plan.strategy}: {fields.name_job(plan.workload, plan.profile)}",
        lede=f"{costs['time']} a batch, {costs['over base']} over plain backpropagation, "
        f"with {costs['local memory']} of local memory.",
        sections=list_sections,
    )
    return view


def _describe_plan(plan: Plan, compared: Results, unsearched: Sequence[str]) -> Iterator[blocks.Block]:
    """Yield the plan, what fills the memory, and the results of the other strategies."""
    results = {
        plan.strategy: plan,
        **{name: result for name, result in compared.items() if name != plan.strategy},
    }
    case = Case(workload=plan.workload, profile=plan.profile)
    yield fields.make_title(plan.workload, plan.profile)
    yield blocks.make_facts(_list_facts(plan, results))
    budget = plan.goal.local_bytes or plan.profile.local_budget_bytes
    yield from fields.list_memory(case, budget=budget, headroom=plan.goal.headroom, plan=plan)
    yield from fields.list_warnings(plan)
    yield from _compare_strategies(results)
    if unsearched:
        names = ", ".join(unsearched)
        gap = find_resolution(plan.workload) if plan.bound is None else plan.bound.gap
        by = f" by more than {format_share(gap)}" if gap > fields.PROVED else ""
        text = f"not searched, as none can be quicker{by}: {names} (ckptplan compare plans each of them)"
        yield blocks.Paragraph(text, style="faint")


def view_comparison(results: Results, case: Case, *, regret: bool = False) -> View:
    """Return the best plan of each strategy, or why it has none.

    ``regret`` shows each time over the optimum.
    """
    best = find_best(results)
    plans = [result for result in results.values() if isinstance(result, Plan)]
    job = fields.make_job_row(case.workload, case.profile)

    def make_document() -> dict[str, Any]:
        same = list_same_schedules(plans)
        of_plans = {
            plan.strategy: {**_find_regrets(plan), "same_schedule": list(same[plan.strategy])} for plan in plans
        }
        each = {
            name: fields.make_result_document(result, **of_plans.get(name, {}))
            for name, result in results.items()
        }
        return {**fields.identify_job(case.workload, case.profile), "strategies": each}

    def list_sections() -> Iterator[blocks.Section | blocks.Schedules]:
        if best is None:
            yield list_reasons(results.values())
        # One of each schedule: strategies that have the same one would be the same bar.
        distinct = [group[0] for group in group_same_schedules(plans)]
        charts = [chart_comparison(distinct)] if plans else []
        yield blocks.Section("strategies", "Strategies", [*charts, *view.blocks()])
        yield blocks.Schedules(
            plans=[(f"{plan.strategy}{' (best)' if plan is best else ''}", plan) for plan in plans]
        )

    view = View(
        kind="comparison",
        unmet="no strategy fits" if best is None else "",
        blocks=lambda: _describe_comparison(results, case, best, regret=regret),
        document=make_document,
        rows=lambda: Rows(
            columns=(*JOB_COLUMNS, *cost_columns(), *REASON_COLUMNS, *DETAIL_COLUMNS),
            rows=[
                {**job, "strategy": name, **fields.make_result_row(result)} for name, result in results.items()
            ],
        ),
        basis=lambda: () if best is None else best.estimate_basis,
        title=f"Strategies: {fields.name_job(case.workload, case.profile)}",
        lede="No strategy fits." if best is None else "The best plan of each strategy.",
        sections=list_sections,
    )
    return view


def _describe_comparison(
    results: Results, case: Case, best: Plan | None, *, regret: bool
) -> Iterator[blocks.Block]:
    """Yield a line for each schedule, and what every schedule needs of the memory."""
    yield fields.make_title(case.workload, case.profile)
    yield from _compare_strategies(results, regret=regret)
    if best is None:
        budget, headroom = case.profile.local_budget_bytes, case.profile.headroom
    else:
        budget, headroom = best.goal.local_bytes or case.profile.local_budget_bytes, best.goal.headroom
        if regret:
            yield blocks.Paragraph(_explain_regret(best))
    yield from fields.list_memory(case, budget=budget, headroom=headroom)
    if best is not None:
        yield from fields.list_warnings(best)


def find_best(results: Results) -> Plan | None:
    """Return the first plan of some results, None if nothing fits."""
    return next((result for result in results.values() if isinstance(result, Plan)), None)


def _compare_strategies(results: Results, *, regret: bool = False) -> Iterator[blocks.Block]:
    """Yield a table with a line for each schedule; with ``regret`` also its time over the optimum.

    Of several strategies with the same schedule, the simplest has the line; a note below lists the others.
    """
    best = find_best(results)
    records: list[blocks.Record] = []
    same: list[list[str]] = []
    plans = [result for result in results.values() if isinstance(result, Plan)]
    for group in group_same_schedules(plans):
        ordered = sorted(group, key=lambda plan: strategy_of(plan.strategy).simplicity)
        same.append([plan.strategy for plan in ordered])
        simplest = ordered[0]
        records.append(
            {
                **fields.make_plan_record(simplest),
                **_find_regrets(simplest),
                "strategy": blocks.Cell(simplest.strategy, style="best" if simplest is best else ""),
                "over_best": _compare_with_best(simplest, best),
            }
        )
    for name, result in results.items():
        if isinstance(result, Infeasible):
            reason = format_reason(result.binding, result.need)
            records.append(blocks.make_faint({"strategy": name, "parameters": reason}))
    by_memory = best is not None and best.goal.objective == "memory"
    over_best = blocks.Field("over_best", "memory over best" if by_memory else "over best", 4)
    columns = (*fields.PLAN, *(_REGRETS if regret else (over_best,)))
    yield blocks.Table.of(columns, records)
    yield from fields.note_same_schedules(same)
    if best is not None:
        if best.goal.objective == "balanced":
            yield blocks.Paragraph("best is the knee of time and memory", style="faint")
        alike = ", ".join(plan.strategy for plan in plans if fields.passed_over(plan, best))
        if alike:
            text = f"better than {best.strategy} by too little to tell: {alike}"
            yield blocks.Paragraph(text, style="faint")


def _compare_with_best(plan: Plan, best: Plan | None) -> float | str:
    """Return what a plan needs beyond the best one: of memory if that is the objective, else of time."""
    if best is None or plan is best:
        return "best"
    name = "local_peak_bytes" if plan.goal.objective == "memory" else "seconds"
    return float(plan.predicted[name] / best.predicted[name] - 1)


def _find_regrets(plan: Plan) -> dict[str, float | None]:
    """Return a plan's time over the least possible, and the same ratio of what is added to base's time.

    None if no bound is proved, or if the least addition is zero.
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
        # The least that was proved is nothing beside the plan's time.
        return "at an unknown distance from"
    return f"within {format_percent(bound.gap / (1 - bound.gap))[1:]} of"


def _list_facts(plan: Plan, results: Results) -> dict[str, str | blocks.Cell]:
    """Return what a plan is and costs; a fact without anything to say has an empty text."""
    predicted, goal, paper = plan.predicted, plan.goal, plan.predicted.paper
    used, budget = predicted.local_peak_bytes, goal.local_bytes or plan.profile.local_budget_bytes
    limit = "unbounded" if goal.remote_bytes is None else f"of {format_bytes(goal.remote_bytes)}"
    return {
        "strategy": blocks.Cell(fields.name_plan(plan), style="best"),
        "proof": _describe_proof(plan),
        **_list_rivals(plan, results),
        "chosen for": _describe_wish(plan.goal),
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
    # The bound is one of time: it says nothing about the least memory or the knee.
    if plan.bound is None or plan.goal.objective != "time":
        return ""
    if plan.bound.gap < fields.PROVED:
        return "no legal schedule is quicker"
    return f"{_describe_distance(plan.bound)} the least possible time"


def _describe_wish(goal: Goal) -> str:
    """Return what the plan was asked for, '' if that is simply least time."""
    wishes = {
        "least local memory": goal.objective == "memory",
        "the knee of time and memory": goal.objective == "balanced",
        f"at most {format_percent(goal.max_overhead or 0)} over base": goal.max_overhead is not None,
        "by the paper's equations, (10) corrected": goal.model == "paper",
    }
    return ", ".join(text for text, is_asked in wishes.items() if is_asked)


def _list_rivals(plan: Plan, results: Results) -> dict[str, str]:
    """Return what the best regular plan and the paper's best would cost, where they are not this one."""
    plans = [result for result in results.values() if isinstance(result, Plan)]
    regular = next((other for other in plans if other.regular), None)
    paper = next((other for other in plans if other.predicted.paper is not None), None)
    rivals = {}
    if not plan.regular:
        rivals["schedule"] = "irregular: it needs a loop over its list of actions"
        if regular is not None:
            also = ", the best of the paper's" if paper is regular else ""
            rivals["best regular"] = f"{_describe_price(regular, plan)}{also}"
    if plan.goal.objective == "balanced" or any(fields.passed_over(other, plan) for other in plans):
        rivals["choice"] = fields.explain_choice(plan)
    if paper is not None and paper is not plan and (plan.regular or paper is not regular):
        rivals["paper's best"] = _describe_price(paper, plan)
    return rivals


def _describe_price(other: Plan, plan: Plan) -> str:
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


def chart_comparison(plans: Sequence[Plan]) -> blocks.Chart:
    """Return the chart of the plans that fit, in their order."""

    def draw() -> Figure:
        from ckptplan.report.plots.strategies import make_strategies

        return make_strategies(plans)

    caption = "The best plan of each strategy; the plan to run comes first."
    return blocks.Chart("comparison", "Strategies", caption, draw)
