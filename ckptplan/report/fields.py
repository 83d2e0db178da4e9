"""What several reports say of a job and of a plan, each quantity once.

Columns of tables, cells of flat rows, members of documents, and phrases about the budget and the parameters.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from rich.text import Text

from ckptplan.errors import Infeasible
from ckptplan.model.budget import find_memory
from ckptplan.model.plan import Plan
from ckptplan.model.profile import HardwareProfile
from ckptplan.model.workload import Workload
from ckptplan.report.columns import Cell, Sheet, TableColumn, align_bytes, align_percents, align_seconds
from ckptplan.storage.plans import plan_document
from ckptplan.storage.tables import Columns
from ckptplan.strategies.registry import all_parameters
from ckptplan.studies.sweep import DETAIL_COLUMNS, JOB_COLUMNS, cost_columns
from ckptplan.units import format_bytes, format_count, format_share
from ckptplan.wording import Argument, Phrase, put_into_words

#: Columns of a plan in a table; ``ranked`` makes one that narrow tables leave out.
STRATEGY = TableColumn(title="strategy")
PARAMETERS = TableColumn(title="parameters", wraps="late")
TIME = TableColumn(title="time", form=align_seconds)
OVER_BASE = TableColumn(title="over base", short="over\nbase", form=align_percents)
LOCAL = TableColumn(title="local", form=align_bytes)
#: A table of headings and what belongs to each.
FACTS = (TableColumn(), TableColumn(wraps="early"))

#: A gap below this share is rounding.
PROVED = 1e-9
#: A plan that uses more than this share of the machine's local memory fills it.
_FULL = 0.95
#: The bytes of a workload that stay in local memory, or are scratch.
_BESIDE_SCHEDULE = ("resident_bytes", "resident_bytes_per_step", "workspace_bytes")


def list_plan_columns() -> Columns:
    """Return the columns of a plan, the same for every plan."""
    return {**JOB_COLUMNS, **cost_columns(), **DETAIL_COLUMNS}


def make_plan_row(plan: Plan) -> dict[str, Any]:
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


def make_result_row(result: Plan | Infeasible) -> dict[str, Any]:
    """Return the cells of a plan, or of the reason why there is none."""
    if isinstance(result, Plan):
        return {**make_plan_row(result), "fits": True}
    return {"fits": False, **_list_reason(result)}


def make_result_document(result: Plan | Infeasible, **of_plan: Any) -> dict[str, Any]:
    """Return JSON data: the whole plan, with what is said of plans alone, or the reason why there is none."""
    if isinstance(result, Plan):
        return {"fits": True, **of_plan, "plan": plan_document(result)}
    return {"fits": False, **_list_reason(result)}


def _list_reason(error: Infeasible) -> dict[str, Any]:
    return {"binding": error.binding, "need": error.need, "have": error.have}


def identify_job(workload: Workload, profile: HardwareProfile) -> dict[str, Any]:
    """Return which workload and which profile a document is about."""
    return {
        "workload": {"name": workload.name, "hash": workload.hash, "steps": workload.steps},
        "profile": {"name": profile.name, "hash": profile.hash},
    }


def identify_plan(plan: Plan) -> dict[str, Any]:
    """Return which plan a document is about."""
    return {
        "strategy": plan.strategy,
        "parameters": dict(plan.parameters),
        "steps": plan.steps,
        "workload": {"name": plan.workload.name, "hash": plan.workload.hash},
        "profile": {"name": plan.profile.name, "hash": plan.profile.hash},
    }


def print_title(sheet: Sheet, workload: Workload, profile: HardwareProfile) -> None:
    """Print the workload, the profile and the number of steps."""
    job = (f"{workload.name} on {profile.name}", "bold")
    sheet.console.print(Text.assemble(job, f", T = {format_count(workload.steps)} time steps"))
    sheet.gap()


def name_plan(plan: Plan) -> str:
    """Return 'standard  chunk_size 16': a strategy and its parameters."""
    return f"{plan.strategy}  {format_parameters(plan)}".rstrip()


def format_parameters(plan: Plan) -> str:
    """Return 'chunk_size 16, remote_chunk_size 256', or the number of decisions of a solved schedule."""
    if plan.splits is not None:
        chunk = plan.parameters["chunk_size"]
        decisions = f"{len(plan.splits)} decision{'s' if len(plan.splits) > 1 else ''}"
        return f"chunk_size {chunk}, {decisions}" if chunk > 1 else decisions
    return format_cells(plan.parameters)


def format_cells(row: Mapping[str, Any]) -> str:
    """Return the parameters in a row, as 'chunk_size 64'; those in units of a solved schedule say nothing."""
    given = (name for name in all_parameters() if row.get(name) is not None and not name.endswith("_units"))
    return ", ".join(f"{name} {row[name]}" for name in given)


def make_parameters_cell(text: str) -> Cell:
    """Return 'chunk_size 16', and 'chunk 16' for narrow tables: without the '_size' that most names end in."""
    return Cell(value=text, short=text.replace("_size ", " "))


def make_names_cell(plan: Plan, also: Sequence[str]) -> Cell:
    """Return a plan's parameters, and below them the other strategies that have the same schedule."""
    parts = (format_parameters(plan), f"also: {', '.join(also)}" if also else "")
    return make_parameters_cell("\n".join(filter(None, parts)))


def passed_over(other: Plan, plan: Plan) -> bool:
    """Return whether another plan is predicted to be better than the chosen one, by too little to tell."""
    if plan.goal.objective == "balanced" or plan.goal.model != "exact":
        return False
    mine, others = (
        (one.predicted.seconds, one.predicted.local_peak_bytes, one.predicted.remote_peak_bytes)
        for one in (plan, other)
    )
    if plan.goal.objective == "memory":
        return others[1] == mine[1] and others < mine
    return others < mine


def explain_choice(plan: Plan) -> str:
    """Return what the search says about the plan that it chose, '' if nothing."""
    return "; ".join(entry.text for entry in plan.estimate_basis if entry.field == "search")


def format_headroom(memory: int, headroom: float) -> str:
    """Return '74.51 GiB less 10 % headroom'."""
    return f"{format_bytes(memory)} less {format_share(headroom)} headroom"


def describe_headroom(profile: HardwareProfile, *, budget: int | None, headroom: float) -> str:
    """Return what a local budget was taken from, '' if nothing is left free."""
    if not headroom or budget is None:
        return ""
    return format_headroom(find_memory(budget, headroom, machine=profile.local_bytes), headroom)


def print_budget(sheet: Sheet, profile: HardwareProfile, *, budget: int | None, headroom: float) -> None:
    """Print the local budget if it has a headroom, where no other line of a table says so."""
    taken = describe_headroom(profile, budget=budget, headroom=headroom)
    if taken and budget is not None:
        where = " per unit" if profile.units > 1 else ""
        sheet.say(f"local budget: {format_bytes(budget)}{where}, {taken}", style="dim")


def print_limits(sheet: Sheet, plan: Plan) -> None:
    """Print the local budget that a plan was made for, and a warning if the plan fills the machine."""
    print_budget(sheet, plan.profile, budget=plan.goal.local_bytes, headroom=plan.goal.headroom)
    print_warning(sheet, plan)


def print_warning(sheet: Sheet, plan: Plan) -> None:
    """Print a warning if a plan fills the memory of a machine, and all other bytes are taken to be none."""
    if warning := warn_of_uncounted_bytes(plan):
        words = put_into_words(warning, sheet.wording)
        sheet.say(Text.assemble(("warning: ", "bold yellow"), words))


def warn_of_uncounted_bytes(plan: Plan) -> str:
    """Return the warning about weights, inputs and scratch memory that are not counted, '' if there is none."""
    share = plan.predicted.local_peak_bytes / plan.profile.local_bytes
    if share <= _FULL or any(getattr(plan.workload, field) for field in _BESIDE_SCHEDULE):
        return ""
    return Phrase(
        f"the plan fills {format_share(share)} of local memory, but {', '.join(_BESIDE_SCHEDULE[:-1])} and "
        f"{_BESIDE_SCHEDULE[-1]} are 0: weights, inputs, gradients and optimizer are not counted; fill in "
        "these fields, let calibrate measure them, or leave room with ",
        Argument("headroom", "20%"),
    )


def name_budget(budget: int, *, resident: int) -> str:
    """Return the name of a budget on an axis without what stays: what is left of it, '276 KiB of 512 KiB'."""
    if not resident:
        return f"budget {format_bytes(budget)}"
    return f"budget: {format_bytes(max(0, budget - resident))} of {format_bytes(budget)}"
