"""One plan: what to run, its cost, and the basis of the numbers."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from rich.text import Text

from ckptplan.model.plan import Plan
from ckptplan.report.columns import FittedTable, Sheet
from ckptplan.report.comparison import Results, make_strategies_table
from ckptplan.report.fields import (
    FACTS,
    PROVED,
    describe_headroom,
    explain_choice,
    format_parameters,
    list_plan_columns,
    make_plan_row,
    name_plan,
    passed_over,
    print_title,
    warn_of_uncounted_bytes,
)
from ckptplan.report.formats import View
from ckptplan.storage.plans import plan_document
from ckptplan.storage.tables import Rows
from ckptplan.units import format_bytes, format_count, format_percent, format_seconds
from ckptplan.wording import Wording, put_into_words

_BAR = 24


def view_plan(
    plan: Plan,
    compared: Callable[[], Results],
    *,
    unsearched: Sequence[str] = (),
    wording: Wording = str,
) -> View:
    """Return a plan for every format; only the table shows it among the results of other strategies.

    Strategies that were not searched, as none can be quicker, are named below the table.
    """
    return View(
        kind=None,
        table=lambda console: _print_plan(Sheet(console, wording), plan, compared(), unsearched),
        document=lambda: plan_document(plan),
        rows=lambda: Rows(columns=list_plan_columns(), rows=[make_plan_row(plan)]),
        basis=lambda: plan.estimate_basis,
    )


def _print_plan(sheet: Sheet, plan: Plan, results: Results, unsearched: Sequence[str]) -> None:
    """Print the plan and its runners-up."""
    # The others are compared with the plan to run.
    others = {name: result for name, result in results.items() if name != plan.strategy}
    results = {plan.strategy: plan, **others}
    print_title(sheet, plan.workload, plan.profile)
    sheet.show(_list_facts(sheet, plan, results))
    sheet.gap()
    sheet.show(make_strategies_table(results))
    if unsearched:
        names = ", ".join(unsearched)
        text = f"not searched, as none can be quicker: {names} (ckptplan compare plans each of them)"
        sheet.say(text, style="dim")


def _list_facts(sheet: Sheet, plan: Plan, results: Results) -> FittedTable:
    predicted = plan.predicted
    table = FittedTable(FACTS)
    table.add_row("strategy", Text.assemble((plan.strategy, "bold green"), f"  {format_parameters(plan)}"))
    # The bound is one of time: it says nothing about the least memory or the knee.
    if plan.bound is not None and plan.goal.objective == "time":
        table.add_row("proof", _proof(plan.bound.gap))
    for heading, text in _beside(plan, results).items():
        table.add_row(heading, text)
    if wish := _wish(plan):
        table.add_row("chosen for", wish)
    table.add_row("local memory", _local(plan, unicode=sheet.console.encoding.startswith("utf")))
    if warning := warn_of_uncounted_bytes(plan):
        table.add_row(Text("warning", style="bold yellow"), put_into_words(warning, sheet.wording))
    table.add_row("remote memory", _remote(plan))
    table.add_row("time", _time(plan))
    table.add_row(
        "recompute",
        f"{format_count(predicted.recomputed_steps)} steps run again "
        f"({predicted.recomputed_steps / plan.steps:.2f} for each of the sequence)"
        if predicted.recomputed_steps
        else "none",
    )
    table.add_row("transfers", _transfers(plan))
    if predicted.paper is not None:
        table.add_row(
            "paper's equations",
            f"{format_seconds(predicted.paper.seconds)}, {format_percent(predicted.paper.overhead)} over base; "
            f"{format_bytes(predicted.paper.local_peak_bytes)} local",
        )
    return table


def _proof(gap: float) -> str:
    if gap < PROVED:
        return "no legal schedule is quicker"
    return f"within {format_percent(gap)[1:]} of the least possible time"


def _beside(plan: Plan, results: Results) -> dict[str, str]:
    """Return what the best regular plan and the paper's best would cost, where they are not this one."""
    plans = [result for result in results.values() if isinstance(result, Plan)]
    regular = next((one for one in plans if one.regular), None)
    paper = next((one for one in plans if one.predicted.paper is not None), None)
    found: dict[str, str] = {}
    if not plan.regular:
        found["schedule"] = "irregular: it needs a loop over its list of actions"
        if regular is not None:
            found["best regular"] = _price(regular, plan)
    notes = explain_choice(plan)
    if notes and any(passed_over(one, plan) for one in plans):
        found["choice"] = notes
    if paper is not None and paper not in (plan, regular if not plan.regular else None):
        found["paper's best"] = _price(paper, plan)
    elif paper is not None and paper is regular and not plan.regular:
        found["best regular"] += ", the best of the paper's"
    return found


def _price(other: Plan, plan: Plan) -> str:
    slower = other.predicted.seconds / plan.predicted.seconds - 1 if plan.predicted.seconds else 0.0
    return f"{name_plan(other)}: {format_seconds(other.predicted.seconds)}, {format_percent(slower)} time"


def _wish(plan: Plan) -> str:
    """Return what was asked for, where it is not simply least time."""
    goal = plan.goal
    asked = {"time": "least time", "memory": "least local memory", "balanced": "the knee of time and memory"}
    parts = [asked[goal.objective]] if goal.objective != "time" else []
    if goal.max_overhead is not None:
        parts.append(f"at most {format_percent(goal.max_overhead)} over base")
    if goal.model == "paper":
        parts.append("by the paper's equations")
    return ", ".join(parts)


def _local(plan: Plan, *, unicode: bool) -> Text:
    used, budget = plan.predicted.local_peak_bytes, plan.goal.local_bytes or plan.profile.local_budget_bytes
    filled = min(_BAR, round(_BAR * used / budget))
    full, empty = ("█", "░") if unicode else ("#", ".")
    taken = describe_headroom(plan.profile, budget=plan.goal.local_bytes, headroom=plan.goal.headroom)
    where = "per unit" if plan.profile.units > 1 else "in all"
    return Text.assemble(
        (full * filled, "cyan"),
        (empty * (_BAR - filled), "dim"),
        f" {100 * used / budget:.1f} % of {format_bytes(budget)} {where}: {format_bytes(used)} "
        f"({'; '.join(part for part in (f'{format_bytes(budget - used)} free', taken) if part)})",
    )


def _remote(plan: Plan) -> str:
    used, budget = plan.predicted.remote_peak_bytes, plan.goal.remote_bytes
    limit = "unbounded" if budget is None else f"of {format_bytes(budget)}"
    return f"{format_bytes(used)} ({limit})"


def _time(plan: Plan) -> Text:
    predicted = plan.predicted
    base = predicted.seconds / (1 + predicted.overhead)
    return Text.assemble(
        f"{format_seconds(predicted.seconds)} a batch, ",
        (format_percent(predicted.overhead), "bold"),
        f" over base ({format_seconds(base)})",
        "; step times carried over, not rescaled" if _carried_over(plan) else "",
    )


def _carried_over(plan: Plan) -> bool:
    return any("carried over" in entry.text for entry in plan.estimate_basis if entry.kind == "assumed")


def _transfers(plan: Plan) -> str:
    predicted = plan.predicted
    if not predicted.messages:
        return "none"
    return (
        f"{format_count(predicted.remote_writes)} states out, {format_count(predicted.remote_reads)} back, "
        f"in {format_count(predicted.messages)} messages"
    )
