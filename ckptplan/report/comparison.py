"""Strategies side by side, one line each, the best first."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any, TypeAlias

from ckptplan.cost.case import Case
from ckptplan.errors import Infeasible
from ckptplan.model.plan import Plan
from ckptplan.planning.playback import group_same_schedules, list_same_schedules
from ckptplan.report.columns import Cell, FittedTable, Sheet, TableColumn, align_ratios
from ckptplan.report.fields import (
    LOCAL,
    OVER_BASE,
    PARAMETERS,
    PROVED,
    STRATEGY,
    TIME,
    identify_job,
    make_names_cell,
    make_result_document,
    make_result_row,
    passed_over,
    print_limits,
    print_title,
)
from ckptplan.report.formats import View
from ckptplan.report.infeasible import format_verdict
from ckptplan.storage.tables import Rows
from ckptplan.strategies.registry import strategy_of
from ckptplan.studies.sweep import DETAIL_COLUMNS, JOB_COLUMNS, REASON_COLUMNS, cost_columns
from ckptplan.units import format_percent
from ckptplan.wording import Wording

Results: TypeAlias = Mapping[str, Plan | Infeasible]


def view_comparison(results: Results, case: Case, *, regret: bool = False, wording: Wording = str) -> View:
    """Return the best plan of each strategy, or why it has none, for every format.

    With ``regret`` the table has each plan's time over the optimum.
    """
    return View(
        kind="comparison",
        table=lambda console: _print_comparison(Sheet(console, wording), results, case, regret=regret),
        document=lambda: _make_document(results, case),
        rows=lambda: _list_rows(results, case),
        basis=lambda: () if (best := find_best(results)) is None else best.estimate_basis,
    )


def _print_comparison(sheet: Sheet, results: Results, case: Case, *, regret: bool) -> None:
    """Print the best plan of each strategy."""
    print_title(sheet, case.workload, case.profile)
    sheet.show(make_strategies_table(results, regret=regret))
    best = find_best(results)
    if best is not None and regret:
        sheet.gap()
        sheet.say(_above(best))
    if best is not None:
        print_limits(sheet, best)


def find_best(results: Results) -> Plan | None:
    """Return the first plan of some results, None if nothing fits."""
    return next((result for result in results.values() if isinstance(result, Plan)), None)


def make_strategies_table(results: Results, *, regret: bool = False) -> FittedTable:
    """Return a table with a line for each schedule; with ``regret`` also its time over the optimum.

    Of several strategies with the same schedule, the simplest names the line, which lists the others.
    """
    best = find_best(results)
    table = FittedTable((*_COLUMNS, *(_REGRETS if regret else (_VERDICT,))))
    for result, also in _merge_lines(results):
        if isinstance(result, Plan):
            table.add_row(
                Cell(value=result.strategy, style="bold green" if result is best else ""),
                make_names_cell(result, also),
                result.predicted.seconds,
                result.predicted.overhead,
                result.predicted.local_peak_bytes,
                *(
                    _regrets(result).values()
                    if regret
                    else [_shorten("best" if best is None or result is best else _why_not(result, best))]
                ),
            )
        else:
            local = result.need if result.binding == "local_bytes" else None
            table.add_row(*also, None, None, None, local, _shorten(format_verdict(result)), style="dim")
    return table


def _shorten(verdict: str) -> Cell:
    """Return a verdict, which narrow tables show without what their titles say."""
    short = next((short for ending, short in _SHORT_VERDICTS.items() if verdict.endswith(ending)), None)
    return Cell(value=verdict, short=verdict.removesuffix(" time") if short is None else short)


_SHORT_VERDICTS = {"does not fit": "no fit", "too little": "alike", "less memory": "alike", "knee": "farther"}


_COLUMNS = (STRATEGY, PARAMETERS, TIME, OVER_BASE.ranked(2), LOCAL.ranked(1))
_VERDICT = TableColumn(short="than\nbest", name="than best", wraps="late")
_REGRETS = tuple(
    TableColumn(title=f"{what} / least", short=f"{what} /\nleast", form=align_ratios, right=True)
    for what in ("time", "extra")
)


def _merge_lines(results: Results) -> Iterator[tuple[Plan | Infeasible, tuple[str, ...]]]:
    """Yield a plan for each schedule with the other strategies that have it, then each reason with its own."""
    for group in group_same_schedules(result for result in results.values() if isinstance(result, Plan)):
        simplest, *others = sorted(group, key=lambda plan: strategy_of(plan.strategy).simplicity)
        yield simplest, tuple(plan.strategy for plan in others)
    for name, result in results.items():
        if isinstance(result, Infeasible):
            yield result, (name,)


def _regrets(plan: Plan) -> dict[str, float | None]:
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


def _above(best: Plan) -> str:
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


def _make_document(results: Results, case: Case) -> dict[str, Any]:
    """Return the comparison as JSON data: full plans, and reasons where there is none."""
    same = list_same_schedules(result for result in results.values() if isinstance(result, Plan))
    return {
        **identify_job(case.workload, case.profile),
        "strategies": {
            name: make_result_document(result, **_regrets(result), same_schedule=list(same[name]))
            if isinstance(result, Plan)
            else make_result_document(result)
            for name, result in results.items()
        },
    }


def _list_rows(results: Results, case: Case) -> Rows:
    """Return a flat row for each strategy, with the columns of a plan's row and the reasons."""
    job = {"workload": case.workload.name, "profile": case.profile.name, "steps": case.workload.steps}
    return Rows(
        columns={**JOB_COLUMNS, **cost_columns(), **REASON_COLUMNS, **DETAIL_COLUMNS},
        rows=[{**job, "strategy": name, **make_result_row(result)} for name, result in results.items()],
    )
