"""One plan for people: what to run, what it costs, what that rests on."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from rich.console import Console
from rich.padding import Padding
from rich.table import Table
from rich.text import Text

from ckptplan.errors import Infeasible
from ckptplan.model.plan import Plan
from ckptplan.model.profile import HardwareProfile
from ckptplan.model.workload import Workload
from ckptplan.planning.basis import find_unsourced
from ckptplan.storage.tables import Columns, Rows
from ckptplan.studies.rows import DETAIL_COLUMNS, JOB_COLUMNS, cost_columns
from ckptplan.units import format_bytes, format_count, format_percent, format_seconds
from ckptplan.wording import Argument, Wording

_BAR = 24
#: A gap below this share is rounding.
PROVED = 1e-9


def plan_table(
    console: Console, plan: Plan, results: Mapping[str, Plan | Infeasible], *, wording: Wording = str
) -> None:
    """Print the plan, its runners-up and its basis."""
    from ckptplan.report.comparison import strategies_table

    # The plan to run need not be the first by prediction (Ranking.best), but is the one others are measured by.
    others = {name: result for name, result in results.items() if name != plan.strategy}
    results = {plan.strategy: plan, **others}
    print_title(console, workload=plan.workload, profile=plan.profile)
    console.print(_facts(plan, results, unicode=console.encoding.startswith("utf")))
    console.print()
    console.print(strategies_table(results))
    print_basis(console, plan, wording=wording)


def print_title(console: Console, *, workload: Workload, profile: HardwareProfile) -> None:
    """Print what was planned for what."""
    console.print(
        Text.assemble(
            (f"{workload.name} on {profile.name}", "bold"), f", T = {format_count(workload.steps)} time steps"
        )
    )
    console.print()


def print_basis(console: Console, plan: Plan, *, wording: Wording = str) -> None:
    """Print what the estimate assumes, and where the rest of its inputs are told."""
    assumed = [entry for entry in plan.estimate_basis if entry.kind == "assumed"]
    console.print()
    console.print(Text("Estimate basis", style="bold"))
    if assumed:
        console.print("  assumed, not measured:")
    for text, fields in _grouped((entry.field, entry.text) for entry in assumed).items():
        line = Text.assemble((", ".join(fields), "yellow"), f": {text}")
        console.print(Padding(line, (0, 0, 0, 4)))
    yours = find_unsourced(plan.estimate_basis)
    if yours:
        are = "numbers are" if len(yours) > 1 else "number is"
        console.print(f"  {len(yours)} {are} yours, without a source:")
        console.print(Padding(Text(", ".join(entry.field for entry in yours), style="yellow"), (0, 0, 0, 4)))
    others = len(plan.estimate_basis) - len(assumed) - len(yours)
    if not others and yours:
        return
    origin = f"each with its origin: {wording(Argument('format', 'json'))}"
    console.print(
        Padding(
            f"{others} more inputs are sourced, derived, measured or stated; {origin}"
            if assumed or yours
            else f"nothing is assumed: {others} inputs are sourced, derived, measured or stated; {origin}",
            (0, 0, 0, 2),
        )
    )


def _grouped(pairs: Any) -> dict[str, list[str]]:
    """Fields with the same text, told once."""
    grouped: dict[str, list[str]] = {}
    for field, text in pairs:
        grouped.setdefault(text, []).append(field)
    return grouped


def _facts(plan: Plan, results: Mapping[str, Plan | Infeasible], *, unicode: bool) -> Table:
    predicted = plan.predicted
    table = Table(box=None, show_header=False, pad_edge=False, padding=(0, 2, 0, 0))
    table.add_column(no_wrap=True)
    table.add_column()
    from ckptplan.report.comparison import parameters_text

    table.add_row("strategy", Text.assemble((plan.strategy, "bold green"), f"  {parameters_text(plan)}"))
    # What is proved is proved of times, which says nothing about the least memory or the knee.
    if plan.bound is not None and plan.goal.objective == "time":
        table.add_row("proof", _proof(plan.bound.gap))
    for heading, text in _beside(plan, results).items():
        table.add_row(heading, text)
    if wish := _wish(plan):
        table.add_row("chosen for", wish)
    table.add_row("local memory", _local(plan, unicode=unicode))
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


def _beside(plan: Plan, results: Mapping[str, Plan | Infeasible]) -> dict[str, str]:
    """Return what the best regular plan and the paper's best would cost, where they are not this one."""
    plans = [result for result in results.values() if isinstance(result, Plan)]
    regular = next((one for one in plans if one.regular), None)
    paper = next((one for one in plans if one.predicted.paper is not None), None)
    found: dict[str, str] = {}
    if not plan.regular:
        found["schedule"] = "irregular: it needs a loop over its list of actions"
        if regular is not None:
            found["best regular"] = _price(regular, plan)
    elif any(passed_over(one, plan) for one in plans):
        notes = [entry.text for entry in plan.estimate_basis if entry.field == "search"]
        found["schedule"] = f"regular: {'; '.join(notes)}"
    if paper is not None and paper not in (plan, regular if not plan.regular else None):
        found["paper's best"] = _price(paper, plan)
    elif paper is not None and paper is regular and not plan.regular:
        found["best regular"] += ", the best of the paper's"
    return found


def passed_over(other: Plan, plan: Plan) -> bool:
    """Return whether another plan is predicted to be better, and only lacks the regularity of this one."""
    if (plan.goal.objective, plan.goal.model) != ("time", "exact"):
        return False
    mine, others = (
        (one.predicted.seconds, one.predicted.local_peak_bytes, one.predicted.remote_peak_bytes)
        for one in (plan, other)
    )
    return others < mine


def _price(other: Plan, plan: Plan) -> str:
    from ckptplan.report.comparison import parameters_text

    slower = other.predicted.seconds / plan.predicted.seconds - 1 if plan.predicted.seconds else 0.0
    return (
        f"{f'{other.strategy}  {parameters_text(other)}'.strip()}: {format_seconds(other.predicted.seconds)}, "
        f"{format_percent(slower)} time"
    )


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
    used, budget = plan.predicted.local_peak_bytes, plan.goal.local_bytes or plan.profile.local_bytes
    filled = min(_BAR, round(_BAR * used / budget))
    full, empty = ("█", "░") if unicode else ("#", ".")
    where = "per unit" if plan.profile.units > 1 else "in all"
    return Text.assemble(
        (full * filled, "cyan"),
        (empty * (_BAR - filled), "dim"),
        f" {100 * used / budget:.1f} % of {format_bytes(budget)} {where}: {format_bytes(used)} "
        f"({format_bytes(budget - used)} free)",
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


def plan_rows(plan: Plan) -> Rows:
    """Return a plan as one flat row, with the same columns for every plan."""
    return Rows(columns=plan_columns(), rows=[plan_row(plan)])


def plan_columns() -> Columns:
    """Return the columns of a plan, the same for every plan."""
    return {**JOB_COLUMNS, **cost_columns(), **DETAIL_COLUMNS}


def plan_row(plan: Plan) -> dict[str, Any]:
    """Return the cells of a plan's columns; parameters that its strategy lacks are left out."""
    paper: Mapping[str, Any] = dict(plan.predicted.paper or {})
    return {
        "workload": plan.workload.name,
        "profile": plan.profile.name,
        "steps": plan.steps,
        "strategy": plan.strategy,
        **plan.parameters,
        **{key: plan.predicted[key] for key in plan.predicted if key != "paper"},
        "regular": plan.regular,
        "least_seconds": None if plan.bound is None else plan.bound.least_seconds,
        "gap": None if plan.bound is None else plan.bound.gap,
        **{f"paper_{key}": paper.get(key) for key in ("seconds", "overhead", "local_peak_bytes")},
    }
