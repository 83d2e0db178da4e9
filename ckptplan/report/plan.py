"""A plan, and strategies side by side: what to run, its cost, and what the others would cost."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any, TypeAlias

from ckptplan.cost.case import Case
from ckptplan.cost.roofline import belongs_elsewhere
from ckptplan.errors import Infeasible
from ckptplan.model.plan import Plan
from ckptplan.model.prediction import Bound
from ckptplan.model.workload import was_resized
from ckptplan.planning.optimize import DETAIL_COLUMNS, JOB_COLUMNS, REASON_COLUMNS, cost_columns
from ckptplan.planning.playback import group_same_schedules, list_same_schedules
from ckptplan.report import blocks, fields
from ckptplan.report.formats import View
from ckptplan.report.infeasible import format_verdict, list_reasons
from ckptplan.storage.plans import plan_document
from ckptplan.storage.tables import Rows
from ckptplan.strategies.registry import strategy_of
from ckptplan.units import format_bytes, format_count, format_percent, format_seconds, format_things

Results: TypeAlias = Mapping[str, Plan | Infeasible]

_THAN_BEST = blocks.Field("than best", "", "than\nbest", wraps="late")
_REGRETS = (
    blocks.Field("time_over_least", "time / least", "time /\nleast", form=fields.align_ratios),
    blocks.Field("extra_over_least", "extra / least", "extra /\nleast", form=fields.align_ratios),
)


def view_plan(plan: Plan, compared: Callable[[], Results], *, unsearched: Sequence[str] = ()) -> View:
    """Return a plan; people see it among the results of other strategies.

    Strategies that were not searched, as none can be quicker, are named below the table.
    """

    def list_sections() -> Iterator[blocks.Section | blocks.Schedules]:
        yield blocks.Section("plan", "The plan", view.blocks())
        yield blocks.Schedules(title="Schedule and memory", own=plan)
        plans = [one for one in compared().values() if isinstance(one, Plan)]
        yield blocks.Section("strategies", "Strategies", [chart_comparison(plans)] if len(plans) > 1 else [])

    view = View(
        kind=None,
        blocks=lambda: _tell_plan(plan, compared(), unsearched),
        document=lambda: plan_document(plan),
        rows=lambda: Rows(columns=fields.list_plan_columns(), rows=[fields.make_plan_row(plan)]),
        basis=lambda: plan.estimate_basis,
        title=f"{plan.strategy}: {fields.name_job(plan.workload, plan.profile)}",
        lede=_summarize(plan),
        sections=list_sections,
    )
    return view


def _summarize(plan: Plan) -> str:
    told = fields.label_plan(plan)
    return (
        f"{told['seconds']} a batch, {told['overhead']} over plain backpropagation, "
        f"with {told['local_peak_bytes']} of local memory."
    )


def _tell_plan(plan: Plan, compared: Results, unsearched: Sequence[str]) -> Iterator[blocks.Block]:
    """Yield the plan and its runners-up."""
    # The others are compared with the plan to run.
    others = {name: result for name, result in compared.items() if name != plan.strategy}
    results = {plan.strategy: plan, **others}
    yield fields.make_title(plan.workload, plan.profile)
    yield blocks.make_facts({name: text for name, text in _list_facts(plan, results) if text})
    yield from fields.list_warnings(plan)
    yield make_strategies_table(results)
    if unsearched:
        names = ", ".join(unsearched)
        text = f"not searched, as none can be quicker: {names} (ckptplan compare plans each of them)"
        yield blocks.Paragraph(text, style="faint")


def view_comparison(results: Results, case: Case, *, regret: bool = False) -> View:
    """Return the best plan of each strategy, or why it has none.

    ``regret`` shows each time over the optimum.
    """
    best = find_best(results)
    plans = [result for result in results.values() if isinstance(result, Plan)]
    job = {"workload": case.workload.name, "profile": case.profile.name, "steps": case.workload.steps}

    def make_document() -> dict[str, Any]:
        same = list_same_schedules(plans)
        more = {
            one.strategy: {**_find_regrets(one), "same_schedule": list(same[one.strategy])} for one in plans
        }
        told = {name: fields.make_result_document(one, **more.get(name, {})) for name, one in results.items()}
        return {**fields.identify_job(case.workload, case.profile), "strategies": told}

    def list_sections() -> Iterator[blocks.Section | blocks.Schedules]:
        if best is None:
            yield list_reasons(results.values())
        # One of each schedule: strategies that have the same one would be the same bar.
        distinct = [group[0] for group in group_same_schedules(plans)]
        charts = [chart_comparison(distinct)] if plans else []
        yield blocks.Section("strategies", "Strategies", [*charts, *view.blocks()])
        yield blocks.Schedules(
            plans=[(f"{one.strategy}{' (best)' if one is best else ''}", one) for one in plans]
        )

    view = View(
        kind="comparison",
        unmet="no strategy fits" if best is None else "",
        blocks=lambda: _tell_comparison(results, case, best, regret=regret),
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


def _tell_comparison(
    results: Results, case: Case, best: Plan | None, *, regret: bool
) -> Iterator[blocks.Block]:
    """Yield a line for each schedule, and the limits that they keep."""
    yield fields.make_title(case.workload, case.profile)
    yield make_strategies_table(results, regret=regret)
    if best is not None:
        if regret:
            yield blocks.Paragraph(_explain_regret(best))
        yield from fields.list_limits(best)


def find_best(results: Results) -> Plan | None:
    """Return the first plan of some results, None if nothing fits."""
    return next((result for result in results.values() if isinstance(result, Plan)), None)


def make_strategies_table(results: Results, *, regret: bool = False) -> blocks.Table:
    """Return a table with a line for each schedule; with ``regret`` also its time over the optimum.

    Of several strategies with the same schedule, the simplest names the line, which lists the others.
    """
    best = find_best(results)
    records: list[blocks.Record] = []
    for group in group_same_schedules(one for one in results.values() if isinstance(one, Plan)):
        simplest, *others = sorted(group, key=lambda plan: strategy_of(plan.strategy).simplicity)
        reason = blocks.Cell("best") if best is None or simplest is best else _why_not(simplest, best)
        records.append(
            {
                **fields.tell_plan(simplest, also=[plan.strategy for plan in others]),
                **_find_regrets(simplest),
                "strategy": blocks.Cell(simplest.strategy, style="best" if simplest is best else ""),
                "than best": reason,
            }
        )
    for name, one in results.items():
        if isinstance(one, Infeasible):
            need = one.need if one.binding == "local_bytes" else None
            told = blocks.Cell(format_verdict(one), short="no fit" if one.binding == "local_bytes" else None)
            reasons = {"than best": told, "time_over_least": told}
            records.append(blocks.make_faint({"strategy": name, "local_peak_bytes": need, **reasons}))
    columns = (
        fields.STRATEGY,
        fields.PARAMETERS,
        fields.TIME,
        fields.OVER_BASE.ranked(2),
        fields.LOCAL.ranked(1),
    )
    return blocks.Table.of((*columns, *(_REGRETS if regret else (_THAN_BEST,))), records)


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


def _why_not(plan: Plan, best: Plan) -> blocks.Cell:
    """Return why a strategy that fits is not the best."""
    if plan.predicted == best.predicted:
        return blocks.Cell(f"the same as {best.strategy}")
    if plan.goal.objective == "balanced":
        return blocks.Cell("farther from the knee", short="farther")
    slower = plan.predicted.seconds / best.predicted.seconds - 1
    more = format_percent(slower)
    if fields.passed_over(plan, best):
        told = f"{more} time: too little" if slower < -fields.PROVED else "as quick, less memory"
        return blocks.Cell(told, short="alike")
    larger = plan.predicted.local_peak_bytes / best.predicted.local_peak_bytes - 1
    reasons = [
        (slower, blocks.Cell(f"{more} time", short=more)),
        (larger, blocks.Cell(f"{format_percent(larger)} memory")),
    ]
    if plan.goal.objective == "memory":
        reasons.reverse()
    return next((reason for share, reason in reasons if share > 0), blocks.Cell("as good"))


def _list_facts(plan: Plan, results: Results) -> Iterator[tuple[str, str | blocks.Cell]]:
    """Yield what a plan is and costs; nothing to say of a fact is an empty text."""
    predicted = plan.predicted
    yield "strategy", blocks.Cell(fields.name_plan(plan), style="best")
    # The bound is one of time: it says nothing about the least memory or the knee.
    if plan.bound is not None and plan.goal.objective == "time":
        within = f"{_describe_distance(plan.bound)} the least possible time"
        yield "proof", "no legal schedule is quicker" if plan.bound.gap < fields.PROVED else within
    yield from _list_rivals(plan, results)
    yield "chosen for", _describe_wish(plan)
    yield "local memory", _describe_local(plan)
    limit = "unbounded" if plan.goal.remote_bytes is None else f"of {format_bytes(plan.goal.remote_bytes)}"
    yield "remote memory", f"{format_bytes(predicted.remote_peak_bytes)} ({limit})"
    yield "time", _describe_time(plan)
    again = (
        f"{format_things(predicted.recomputed_steps, 'step')} run again "
        f"({predicted.recomputed_steps / plan.steps:.2f} for each of the sequence)"
    )
    yield "recompute", again if predicted.recomputed_steps else "none"
    moved = (
        f"{format_things(predicted.remote_writes, 'state')} out, {format_count(predicted.remote_reads)} back, "
        f"in {format_things(predicted.messages, 'message')}"
    )
    yield "transfers", moved if predicted.messages else "none"
    if (paper := predicted.paper) is not None:
        yield (
            "paper's equations",
            f"{format_seconds(paper.seconds)}, {format_percent(paper.overhead)} over base; "
            f"{format_bytes(paper.local_peak_bytes)} local",
        )


def _list_rivals(plan: Plan, results: Results) -> Iterator[tuple[str, str]]:
    """Yield what the best regular plan and the paper's best would cost, where they are not this one."""
    plans = [result for result in results.values() if isinstance(result, Plan)]
    regular = next((one for one in plans if one.regular), None)
    paper = next((one for one in plans if one.predicted.paper is not None), None)
    if not plan.regular:
        yield "schedule", "irregular: it needs a loop over its list of actions"
        if regular is not None:
            also = ", the best of the paper's" if paper is regular else ""
            yield "best regular", f"{_describe_price(regular, plan)}{also}"
    if plan.goal.objective == "balanced" or any(fields.passed_over(one, plan) for one in plans):
        yield "choice", fields.explain_choice(plan)
    if paper is not None and paper is not plan and (plan.regular or paper is not regular):
        yield "paper's best", _describe_price(paper, plan)


def _describe_price(other: Plan, plan: Plan) -> str:
    slower = other.predicted.seconds / plan.predicted.seconds - 1 if plan.predicted.seconds else 0.0
    return (
        f"{fields.name_plan(other)}: {format_seconds(other.predicted.seconds)}, {format_percent(slower)} time"
    )


def _describe_wish(plan: Plan) -> str:
    """Return what was asked for, where it is not simply least time."""
    goal = plan.goal
    asked = {"memory": "least local memory", "balanced": "the knee of time and memory"}.get(goal.objective)
    limit = None if goal.max_overhead is None else f"at most {format_percent(goal.max_overhead)} over base"
    model = "by the paper's equations" if goal.model == "paper" else None
    return ", ".join(filter(None, (asked, limit, model)))


def _describe_local(plan: Plan) -> blocks.Cell:
    used, budget = plan.predicted.local_peak_bytes, plan.goal.local_bytes or plan.profile.local_budget_bytes
    taken = fields.describe_headroom(plan.profile, budget=plan.goal.local_bytes, headroom=plan.goal.headroom)
    where = "per unit" if plan.profile.units > 1 else "in all"
    rest = "; ".join(filter(None, (f"{format_bytes(budget - used)} free", taken)))
    share = f"{100 * used / budget:.1f} % of {format_bytes(budget)} {where}"
    return blocks.Cell(f"{share}: {format_bytes(used)} ({rest})", filled=used / budget)


def _describe_time(plan: Plan) -> str:
    seconds, overhead = plan.predicted.seconds, plan.predicted.overhead
    base = format_seconds(seconds / (1 + overhead))
    told = f"{format_seconds(seconds)} a batch, {format_percent(overhead)} over base ({base})"
    if belongs_elsewhere(plan.workload, plan.profile):
        return f"{told}; step times carried over from {plan.workload.timed_on}, not rescaled"
    return f"{told}; step times carried over, not rescaled" if was_resized(plan.workload) else told


def chart_comparison(plans: Sequence[Plan]) -> blocks.Chart:
    """Return the chart of the plans that fit, in their order."""
    from ckptplan.report import style
    from ckptplan.report.charts import Marks, Plot, layer_plot, scale_bytes, scale_shares

    rows = [{**fields.label_plan(plan), "y": plan.strategy} for plan in plans]
    times = [plan.predicted.overhead for plan in plans]
    sizes = [plan.predicted.local_peak_bytes for plan in plans]
    # Far off, the budget would squeeze the bars.
    budget = plans[0].goal.local_bytes
    near = [budget] if budget is not None and budget <= 4 * max(sizes) else []
    parts = []
    for field, values, scale, colour, lines in (
        ("overhead", times, scale_shares("time over base", 0, 1.1 * max(0.01, *times)), style.BLUE, []),
        (
            "local_peak_bytes",
            sizes,
            scale_bytes("local memory", 0, 1.1 * max(*sizes, *near)),
            style.ORANGE,
            near,
        ),
    ):
        ends = [{**row, "x": value} for row, value in zip(rows, values, strict=True)]
        bars = Marks(kind="bar", rows=ends, colour=colour, opacity=0.9, told=fields.TOLD, words=field)
        budgets = [Marks(kind="rule", rows=[{"x": one}], dashes=(2, 1.3)) for one in lines]
        plot = Plot(x=scale, y=[plan.strategy for plan in plans], marks=[bars, *budgets])
        parts.append({"width": "container", "height": {"step": 24}, **layer_plot(plot)})
    words = "".join(f"; the dashed line is the budget, {format_bytes(one)}" for one in near)
    about = f"The best plan of each strategy, the one to run first{words}."
    return blocks.Chart("comparison", "Strategies", about, {"spacing": 24, "vconcat": parts})
