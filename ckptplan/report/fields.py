"""What several reports say of a job and of a plan, each quantity once.

Fields of tables, cells of flat rows, members of documents, and phrases about the budget and the parameters.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any

from ckptplan import units
from ckptplan.cost.case import Case
from ckptplan.errors import Infeasible
from ckptplan.model.budget import find_memory
from ckptplan.model.plan import Plan
from ckptplan.model.profile import HardwareProfile
from ckptplan.model.workload import Workload
from ckptplan.planning.intervals import describe_interval
from ckptplan.planning.optimize import DETAIL_COLUMNS, INTERVAL, JOB_COLUMNS, cost_columns, make_cost_row
from ckptplan.report.blocks import Block, Field, Heading, Paragraph, Record, Table
from ckptplan.storage.plans import plan_document
from ckptplan.strategies.protocol import Strategy
from ckptplan.strategies.registry import all_parameters
from ckptplan.wording import Argument

#: Fields of a plan.
STRATEGY = Field("strategy")
PARAMETERS = Field("parameters", priority=1, wraps=True)
TIME = Field("seconds", "time")
OVER_BASE = Field("overhead", "over base")
LOCAL = Field("local_peak_bytes", "local")
#: The columns of a table of plans.
PLAN = (STRATEGY, PARAMETERS, TIME, OVER_BASE.ranked(3), LOCAL.ranked(2))
#: What pages say of a plan.
FACTS = (
    STRATEGY,
    PARAMETERS,
    TIME,
    OVER_BASE,
    Field("local_peak_bytes", "local memory"),
    Field("remote_peak_bytes", "remote memory"),
)

#: A gap below this share is rounding.
PROVED = 1e-9
#: A plan that uses more than this share of the machine's local memory fills it.
_FULL = 0.95
#: The bytes of a workload that stay in local memory, or are scratch.
_BESIDE_SCHEDULE = ("resident_bytes", "resident_bytes_per_step", "workspace_bytes")
#: What fills the local memory: a part, its size, its share of the budget, and the share as a bar.
_MEMORY = (
    Field("part", title=""),
    Field("size", title="", right=True),
    Field("budget_share", title=""),
    Field("bar", title="", priority=1),
)
_BAR = 24


def list_plan_columns() -> tuple[str, ...]:
    """Return the columns of a plan, the same for every plan."""
    return (*JOB_COLUMNS, *cost_columns(), *DETAIL_COLUMNS)


def make_job_row(workload: Workload, profile: HardwareProfile) -> dict[str, Any]:
    """Return the cells of the columns that name a job."""
    return {"workload": workload.name, "profile": profile.name, "steps": workload.steps}


def make_plan_row(plan: Plan) -> dict[str, Any]:
    """Return the cells of a plan's columns; parameters that its strategy lacks are left out."""
    costs = make_cost_row(plan.strategy, plan, plan.predicted, plan.bound)
    return {**make_job_row(plan.workload, plan.profile), **costs}


def make_result_row(result: Plan | Infeasible) -> dict[str, Any]:
    """Return the cells of a plan, or of the reason why there is none."""
    if isinstance(result, Plan):
        return {**make_plan_row(result), "fits": True}
    return {"fits": False, **_list_reason(result)}


def make_result_document(result: Plan | Infeasible, **of_plan: Any) -> dict[str, Any]:
    """Return JSON data: the whole plan with members of plans alone, or the reason why there is none."""
    if isinstance(result, Plan):
        return {"fits": True, **of_plan, "plan": plan_document(result)}
    return {"fits": False, **_list_reason(result)}


def _list_reason(error: Infeasible) -> dict[str, Any]:
    return {"binding": error.binding, "need": error.need, "have": error.have}


def identify_job(workload: Workload, profile: HardwareProfile) -> dict[str, Any]:
    """Return which workload and which profile a document is about."""
    return {
        "workload": {**workload.identify(), "steps": workload.steps},
        "profile": profile.identify(),
    }


def name_job(workload: Workload, profile: HardwareProfile) -> str:
    """Return 'paper-snn on ipu-mk2, T = 4,096'."""
    return f"{workload.name} on {profile.name}, T = {units.format_count(workload.steps)}"


def make_title(workload: Workload, profile: HardwareProfile) -> Paragraph:
    """Return the workload, the profile and the number of steps."""
    steps = units.format_count(workload.steps)
    return Paragraph(f", T = {steps} time steps", head=f"{workload.name} on {profile.name}")


def name_plan(plan: Plan) -> str:
    """Return 'standard  chunk_size 16': a strategy and its parameters."""
    return f"{plan.strategy}  {format_parameters(plan)}".rstrip()


def format_parameters(plan: Plan) -> str:
    """Return 'chunk_size 16, remote_chunk_size 256', or the number of decisions of a solved schedule."""
    if plan.splits is not None:
        chunk = plan.parameters["chunk_size"]
        decisions = units.format_things(len(plan.splits), "decision")
        return f"chunk_size {chunk}, {decisions}" if chunk > 1 else decisions
    return format_cells(plan.parameters)


def format_cells(row: Mapping[str, Any]) -> str:
    """Return the parameters in a row, as 'chunk_size 64'; those in units of a solved schedule say nothing."""
    given = (name for name in all_parameters() if row.get(name) is not None and not name.endswith("_units"))
    return ", ".join(f"{name} {row[name]}" for name in given)


def make_plan_record(plan: Plan) -> dict[str, Any]:
    """Return a plan's row with its parameters as a text."""
    return {**make_plan_row(plan), "parameters": format_parameters(plan)}


def describe_plan(plan: Plan) -> list[tuple[str, str]]:
    """Return the facts of a plan, each with its title, as pages show them where a plan is pointed at."""
    table = Table.of(FACTS, [make_plan_record(plan)])
    return list(zip(table.headings, table.texts[0], strict=True))


def note_same_schedules(groups: Iterable[Sequence[str]]) -> Iterator[Paragraph]:
    """Yield a line for each group of several strategies that have the same schedule."""
    for names in groups:
        if len(names) > 1:
            yield Paragraph(f"same schedule: {', '.join(names)}", style="faint")


def passed_over(other: Plan, plan: Plan) -> bool:
    """Return whether another plan is predicted to be better than the chosen plan, but within the error."""
    if plan.goal.objective == "balanced" or plan.goal.model != "exact":
        return False
    costs, other_costs = (
        (predicted.seconds, predicted.local_peak_bytes, predicted.remote_peak_bytes)
        for predicted in (plan.predicted, other.predicted)
    )
    if plan.goal.objective == "memory":
        return other_costs[1] == costs[1] and other_costs < costs
    return other_costs < costs


def explain_choice(plan: Plan) -> str:
    """Return what the search says about the plan that it chose, '' if nothing."""
    return "; ".join(entry.text for entry in plan.estimate_basis if entry.field == "search")


def note_closed_forms(compared: Iterable[Strategy]) -> Iterator[str]:
    """Yield that no solved strategy was searched, if all compared strategies are closed forms."""
    if all(strategy.is_closed_form for strategy in compared):
        more = Argument("strategies", "all")
        yield f"only closed forms are compared, which answer at once; {more} adds optimal and others, slowly"


def describe_headroom(profile: HardwareProfile, *, budget: int | None, headroom: float) -> str:
    """Return what a local budget was taken from, as '74.51 GiB less 10 % headroom'; '' without headroom."""
    if not headroom or budget is None:
        return ""
    memory = find_memory(budget, headroom, machine=profile.local_bytes)
    return f"{units.format_bytes(memory)} less {units.format_share(headroom)} headroom"


def list_budget(profile: HardwareProfile, *, budget: int | None, headroom: float) -> Iterator[Paragraph]:
    """Yield the local budget if it has a headroom, where no other line of a result says so."""
    if (taken := describe_headroom(profile, budget=budget, headroom=headroom)) and budget is not None:
        where = " per unit" if profile.units > 1 else ""
        yield Paragraph(f"local budget: {units.format_bytes(budget)}{where}, {taken}", style="faint")


def describe_resident(case: Case, budget: int) -> str:
    """Return what every schedule needs of the memory of one unit, its share of a budget, and its parts."""
    parts, resident = case.resident_parts, sum(case.resident_parts.values())
    share = f", {units.format_share(resident / budget)} of the budget" if budget else ""
    listed = "; ".join(f"{name} {units.format_bytes(size)}" for name, size in parts.items())
    return f"{units.format_bytes(resident)} that every schedule needs{share}: {listed}"


def list_memory(case: Case, *, budget: int, headroom: float, plan: Plan | None = None) -> Iterator[Block]:
    """Yield what fills the local memory of one unit: what every schedule needs, part by part, and the rest.

    With a plan, the last rows are what it needs and what stays free; without, what is left for a plan.
    """
    where = " of one unit" if case.profile.units > 1 else ""
    taken = describe_headroom(case.profile, budget=budget, headroom=headroom)
    yield Heading(f"Local memory{where}: {units.format_bytes(budget)}{f', {taken}' if taken else ''}")
    parts = case.resident_parts
    resident = sum(parts.values())
    if plan is not None:
        peak = plan.predicted.local_peak_bytes
        parts |= {"checkpoints and tapes of the plan": peak - resident, "free": budget - peak}
    elif resident <= budget:
        parts["left for checkpoints and tapes"] = budget - resident
    else:
        parts["missing"] = resident - budget
    yield Table.of(_MEMORY, (_make_memory_record(*part, budget) for part in parts.items()))


def _make_memory_record(part: str, size: int, budget: int) -> Record:
    share = size / budget
    bar = "\u2588" * min(_BAR, round(_BAR * share))
    return {"part": part, "size": units.format_bytes(size), "budget_share": share, "bar": bar}


def list_warnings(plan: Plan) -> Iterator[Paragraph]:
    """Yield how well a plan's time is known, if it was measured.

    Yield a warning if the plan fills the memory of a machine, and all other bytes are taken to be none.
    """
    chosen = "; ".join(entry.text for entry in plan.estimate_basis if entry.field == INTERVAL)
    if interval := chosen or describe_interval(plan):
        yield Paragraph(f"time of {name_plan(plan)}: {interval}")
    share = plan.predicted.local_peak_bytes / plan.profile.local_bytes
    if share > _FULL and not any(getattr(plan.workload, field) for field in _BESIDE_SCHEDULE):
        yield Paragraph(
            f"the plan fills {units.format_share(share)} of local memory, but "
            f"{', '.join(_BESIDE_SCHEDULE[:-1])} and {_BESIDE_SCHEDULE[-1]} are 0: weights, inputs, gradients "
            "and optimizer are not counted; fill in these fields, let calibrate measure them, or leave room "
            f"with {Argument('headroom', '20%')}",
            head="warning: ",
            style="warning",
        )
