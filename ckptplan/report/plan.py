"""A plan, and strategies side by side: what to run, its cost, and what the others would cost."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any, TypeAlias

from ckptplan.cost.case import Case
from ckptplan.cost.roofline import belongs_elsewhere
from ckptplan.errors import Infeasible
from ckptplan.model.plan import Plan
from ckptplan.model.workload import was_resized
from ckptplan.planning.optimize import DETAIL_COLUMNS, JOB_COLUMNS, REASON_COLUMNS, cost_columns
from ckptplan.planning.playback import group_same_schedules, list_same_schedules
from ckptplan.report.blocks import Block, Cell, Field, Paragraph, Record, Table, make_facts, make_faint
from ckptplan.report.fields import (
    LOCAL,
    OVER_BASE,
    PARAMETERS,
    PROVED,
    STRATEGY,
    TIME,
    align_ratios,
    describe_headroom,
    explain_choice,
    identify_job,
    list_limits,
    list_plan_columns,
    list_warnings,
    make_plan_row,
    make_result_document,
    make_result_row,
    make_title,
    name_plan,
    passed_over,
    tell_plan,
)
from ckptplan.report.formats import View
from ckptplan.report.infeasible import format_verdict
from ckptplan.storage.plans import plan_document
from ckptplan.storage.tables import Rows
from ckptplan.strategies.registry import strategy_of
from ckptplan.units import format_bytes, format_count, format_percent, format_seconds

Results: TypeAlias = Mapping[str, Plan | Infeasible]

_THAN_BEST = Field("than best", "", "than\nbest", wraps="late")
_REGRETS = (
    Field("time_over_least", "time / least", "time /\nleast", form=align_ratios),
    Field("extra_over_least", "extra / least", "extra /\nleast", form=align_ratios),
)
#: What narrow tables say in place of longer reasons.
_SHORT_REASONS = {"does not fit": "no fit", "too little": "alike", "less memory": "alike", "knee": "farther"}


def view_plan(plan: Plan, compared: Callable[[], Results], *, unsearched: Sequence[str] = ()) -> View:
    """Return a plan; people see it among the results of other strategies.

    Strategies that were not searched, as none can be quicker, are named below the table.
    """
    return View(
        kind=None,
        blocks=lambda: _tell_plan(plan, compared(), unsearched),
        document=lambda: plan_document(plan),
        rows=lambda: Rows(columns=list_plan_columns(), rows=[make_plan_row(plan)]),
        basis=lambda: plan.estimate_basis,
    )


def _tell_plan(plan: Plan, compared: Results, unsearched: Sequence[str]) -> Iterator[Block]:
    """Yield the plan and its runners-up."""
    # The others are compared with the plan to run.
    others = {name: result for name, result in compared.items() if name != plan.strategy}
    results = {plan.strategy: plan, **others}
    yield make_title(plan.workload, plan.profile)
    yield make_facts({name: text for name, text in _list_facts(plan, results) if text})
    yield from list_warnings(plan)
    yield make_strategies_table(results)
    if unsearched:
        names = ", ".join(unsearched)
        text = f"not searched, as none can be quicker: {names} (ckptplan compare plans each of them)"
        yield Paragraph(text, style="faint")


def view_comparison(results: Results, case: Case, *, regret: bool = False) -> View:
    """Return the best plan of each strategy, or why it has none.

    ``regret`` shows each time over the optimum.
    """
    best = find_best(results)
    return View(
        kind="comparison",
        blocks=lambda: _tell_comparison(results, case, best, regret=regret),
        document=lambda: _make_document(results, case),
        rows=lambda: _list_rows(results, case),
        basis=lambda: () if best is None else best.estimate_basis,
    )


def _tell_comparison(results: Results, case: Case, best: Plan | None, *, regret: bool) -> Iterator[Block]:
    """Yield a line for each schedule, and the limits that they keep."""
    yield make_title(case.workload, case.profile)
    yield make_strategies_table(results, regret=regret)
    if best is not None:
        if regret:
            yield Paragraph(_explain_regret(best))
        yield from list_limits(best)


def _make_document(results: Results, case: Case) -> dict[str, Any]:
    """Return full plans, and reasons where there is none."""
    same = list_same_schedules(result for result in results.values() if isinstance(result, Plan))
    return {
        **identify_job(case.workload, case.profile),
        "strategies": {
            name: make_result_document(result, **_find_regrets(result), same_schedule=list(same[name]))
            if isinstance(result, Plan)
            else make_result_document(result)
            for name, result in results.items()
        },
    }


def _list_rows(results: Results, case: Case) -> Rows:
    """Return a row for each strategy, with the columns of a plan's row and the reasons."""
    job = {"workload": case.workload.name, "profile": case.profile.name, "steps": case.workload.steps}
    return Rows(
        columns=(*JOB_COLUMNS, *cost_columns(), *REASON_COLUMNS, *DETAIL_COLUMNS),
        rows=[{**job, "strategy": name, **make_result_row(result)} for name, result in results.items()],
    )


def find_best(results: Results) -> Plan | None:
    """Return the first plan of some results, None if nothing fits."""
    return next((result for result in results.values() if isinstance(result, Plan)), None)


def make_strategies_table(results: Results, *, regret: bool = False) -> Table:
    """Return a table with a line for each schedule; with ``regret`` also its time over the optimum.

    Of several strategies with the same schedule, the simplest names the line, which lists the others.
    """
    best = find_best(results)
    records: list[Record] = []
    for result, also in _merge_lines(results):
        if isinstance(result, Plan):
            reason = "best" if best is None or result is best else _why_not(result, best)
            records.append(
                {
                    **tell_plan(result, also=also),
                    **_find_regrets(result),
                    "strategy": Cell(result.strategy, style="best" if result is best else ""),
                    "than best": _make_reason_cell(reason),
                }
            )
        else:
            need = result.need if result.binding == "local_bytes" else None
            told = _make_reason_cell(format_verdict(result))
            reasons = {"than best": told, "time_over_least": told}
            records.append(make_faint({"strategy": also[0], "local_peak_bytes": need, **reasons}))
    columns = (STRATEGY, PARAMETERS, TIME, OVER_BASE.ranked(2), LOCAL.ranked(1))
    return Table.of((*columns, *(_REGRETS if regret else (_THAN_BEST,))), records)


def _make_reason_cell(reason: str) -> Cell:
    """Return a reason, which narrow tables show without what their titles say."""
    short = next((short for ending, short in _SHORT_REASONS.items() if reason.endswith(ending)), None)
    return Cell(reason, short=reason.removesuffix(" time") if short is None else short)


def _merge_lines(results: Results) -> Iterator[tuple[Plan | Infeasible, tuple[str, ...]]]:
    """Yield a plan for each schedule with the other strategies that have it, then each reason with its own."""
    for group in group_same_schedules(result for result in results.values() if isinstance(result, Plan)):
        simplest, *others = sorted(group, key=lambda plan: strategy_of(plan.strategy).simplicity)
        yield simplest, tuple(plan.strategy for plan in others)
    for name, result in results.items():
        if isinstance(result, Infeasible):
            yield result, (name,)


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
    if best.bound.gap < PROVED:
        return "The least is what an optimal schedule takes; extra is time over base."
    return (
        f"The least is a proven lower bound, the best plan within {format_percent(best.bound.gap)[1:]} of it; "
        "extra is time over base."
    )


def _why_not(plan: Plan, best: Plan) -> str:
    """Return why a strategy that fits is not the best."""
    if plan.predicted == best.predicted:
        return f"the same as {best.strategy}"
    if plan.goal.objective == "balanced":
        return "farther from the knee"
    slower = plan.predicted.seconds / best.predicted.seconds - 1
    if passed_over(plan, best):
        return f"{format_percent(slower)} time: too little" if slower < -PROVED else "as quick, less memory"
    larger = plan.predicted.local_peak_bytes / best.predicted.local_peak_bytes - 1
    reasons = [(slower, f"{format_percent(slower)} time"), (larger, f"{format_percent(larger)} memory")]
    if plan.goal.objective == "memory":
        reasons.reverse()
    return next((text for share, text in reasons if share > 0), "as good")


def _list_facts(plan: Plan, results: Results) -> Iterator[tuple[str, str | Cell]]:
    """Yield what a plan is and costs; nothing to say of a fact is an empty text."""
    predicted = plan.predicted
    yield "strategy", Cell(name_plan(plan), style="best")
    # The bound is one of time: it says nothing about the least memory or the knee.
    if plan.bound is not None and plan.goal.objective == "time":
        gap = plan.bound.gap
        within = f"within {format_percent(gap)[1:]} of the least possible time"
        yield "proof", "no legal schedule is quicker" if gap < PROVED else within
    yield from _list_rivals(plan, results)
    yield "chosen for", _describe_wish(plan)
    yield "local memory", _describe_local(plan)
    limit = "unbounded" if plan.goal.remote_bytes is None else f"of {format_bytes(plan.goal.remote_bytes)}"
    yield "remote memory", f"{format_bytes(predicted.remote_peak_bytes)} ({limit})"
    yield "time", _describe_time(plan)
    again = (
        f"{format_count(predicted.recomputed_steps)} steps run again "
        f"({predicted.recomputed_steps / plan.steps:.2f} for each of the sequence)"
    )
    yield "recompute", again if predicted.recomputed_steps else "none"
    moved = (
        f"{format_count(predicted.remote_writes)} states out, {format_count(predicted.remote_reads)} back, "
        f"in {format_count(predicted.messages)} messages"
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
    if any(passed_over(one, plan) for one in plans):
        yield "choice", explain_choice(plan)
    if paper is not None and paper is not plan and (plan.regular or paper is not regular):
        yield "paper's best", _describe_price(paper, plan)


def _describe_price(other: Plan, plan: Plan) -> str:
    slower = other.predicted.seconds / plan.predicted.seconds - 1 if plan.predicted.seconds else 0.0
    return f"{name_plan(other)}: {format_seconds(other.predicted.seconds)}, {format_percent(slower)} time"


def _describe_wish(plan: Plan) -> str:
    """Return what was asked for, where it is not simply least time."""
    goal = plan.goal
    asked = {"memory": "least local memory", "balanced": "the knee of time and memory"}.get(goal.objective)
    limit = None if goal.max_overhead is None else f"at most {format_percent(goal.max_overhead)} over base"
    model = "by the paper's equations" if goal.model == "paper" else None
    return ", ".join(filter(None, (asked, limit, model)))


def _describe_local(plan: Plan) -> Cell:
    used, budget = plan.predicted.local_peak_bytes, plan.goal.local_bytes or plan.profile.local_budget_bytes
    taken = describe_headroom(plan.profile, budget=plan.goal.local_bytes, headroom=plan.goal.headroom)
    where = "per unit" if plan.profile.units > 1 else "in all"
    rest = "; ".join(filter(None, (f"{format_bytes(budget - used)} free", taken)))
    share = f"{100 * used / budget:.1f} % of {format_bytes(budget)} {where}"
    return Cell(f"{share}: {format_bytes(used)} ({rest})", filled=used / budget)


def _describe_time(plan: Plan) -> str:
    seconds, overhead = plan.predicted.seconds, plan.predicted.overhead
    base = format_seconds(seconds / (1 + overhead))
    carried = was_resized(plan.workload) or belongs_elsewhere(plan.workload, plan.profile)
    return (
        f"{format_seconds(seconds)} a batch, {format_percent(overhead)} over base ({base})"
        f"{'; step times carried over, not rescaled' if carried else ''}"
    )
