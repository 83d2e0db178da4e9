"""Strategies side by side: a line for each, the best first."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from typing import Any, TypeAlias

from rich.console import Console
from rich.table import Table
from rich.text import Text

from ckptplan.errors import Infeasible
from ckptplan.model.plan import Plan, Predicted
from ckptplan.model.profile import HardwareProfile
from ckptplan.model.workload import Workload
from ckptplan.report.infeasible import verdict
from ckptplan.report.plan_table import PARAMETERS, plan_row, print_basis, print_title
from ckptplan.storage.plans import plan_document
from ckptplan.units import format_bytes, format_percent, format_seconds

Results: TypeAlias = Mapping[str, Plan | Infeasible]
_PREDICTED = tuple(field.name for field in dataclasses.fields(Predicted) if field.name != "paper")


def comparison_table(
    console: Console, results: Results, *, workload: Workload, profile: HardwareProfile
) -> None:
    """Print each strategy at its best, and what the numbers rest on."""
    print_title(console, workload=workload, profile=profile)
    console.print(strategies_table(results))
    plans = [result for result in results.values() if isinstance(result, Plan)]
    if plans:
        print_basis(console, plans[0])


def strategies_table(results: Results) -> Table:
    """Return a table with a line for each strategy."""
    best = next((result for result in results.values() if isinstance(result, Plan)), None)
    table = Table(box=None, pad_edge=False, header_style="bold", padding=(0, 2, 0, 0))
    table.add_column("strategy", no_wrap=True)
    table.add_column("parameters", overflow="fold")
    for heading in ("time", "over base", "local"):
        table.add_column(heading, justify="right", no_wrap=True)
    table.add_column("")
    for name, result in results.items():
        if isinstance(result, Plan):
            table.add_row(
                Text(name, style="bold green" if result is best else ""),
                parameters_text(result),
                format_seconds(result.predicted.seconds),
                format_percent(result.predicted.overhead),
                format_bytes(result.predicted.local_peak_bytes),
                "best" if best is None or result is best else _why_not(result, best),
            )
        else:
            local = format_bytes(result.need) if result.binding == "local_bytes" else ""
            table.add_row(*(Text(text, style="dim") for text in (name, "", "", "", local, verdict(result))))
    return table


def parameters_text(plan: Plan) -> str:
    """Return 'chunk_size 16, remote_chunk_size 256'."""
    return ", ".join(f"{name} {value}" for name, value in plan.parameters.items())


def _why_not(plan: Plan, best: Plan) -> str:
    """Why another strategy that fits was not chosen."""
    if plan.predicted == best.predicted:
        return f"the same as {best.strategy}"
    if plan.goal.objective == "balanced":
        return "farther from the knee"
    slower = plan.predicted.seconds / best.predicted.seconds - 1
    larger = plan.predicted.local_peak_bytes / best.predicted.local_peak_bytes - 1
    reasons = [(slower, f"{format_percent(slower)} time"), (larger, f"{format_percent(larger)} memory")]
    if plan.goal.objective == "memory":
        reasons.reverse()
    return next((text for share, text in reasons if share > 0), "as good")


def comparison_document(results: Results, *, workload: Workload, profile: HardwareProfile) -> dict[str, Any]:
    """Return the comparison as JSON data: full plans, and reasons where there is none."""
    return {
        "workload": {"name": workload.name, "hash": workload.hash, "steps": workload.steps},
        "profile": {"name": profile.name, "hash": profile.hash},
        "strategies": {
            name: {"fits": True, "plan": plan_document(result)}
            if isinstance(result, Plan)
            else {"fits": False, **_reason(result)}
            for name, result in results.items()
        },
    }


def comparison_rows(results: Results, *, workload: Workload, profile: HardwareProfile) -> list[dict[str, Any]]:
    """Return a flat row for each strategy, with the columns of a plan's row and the reasons."""
    job = {"workload": workload.name, "profile": profile.name, "steps": workload.steps}
    columns = dict.fromkeys((*job, "strategy", *PARAMETERS, *_PREDICTED, "fits", "binding", "need", "have"), "")
    rows = []
    for name, result in results.items():
        if isinstance(result, Plan):
            rows.append({**columns, **plan_row(result), "fits": True})
        else:
            rows.append({**columns, **job, "strategy": name, "fits": False, **_reason(result)})
    return rows


def _reason(error: Infeasible) -> dict[str, Any]:
    return {"binding": error.binding, "need": error.need, "have": error.have}
