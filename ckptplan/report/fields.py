"""The parts that several reports have in common, for jobs and plans.

These are fields of tables, cells of flat rows, members of documents, the table of the local memory, and the
inputs of an estimate.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any

from ckptplan import units
from ckptplan.cost.case import Case
from ckptplan.errors import Infeasible
from ckptplan.model.budget import find_memory
from ckptplan.model.goal import Goal
from ckptplan.model.plan import Plan, RegularPlan
from ckptplan.model.prediction import BasisEntry
from ckptplan.model.profile import HardwareProfile
from ckptplan.model.workload import Workload
from ckptplan.planning.basis import collect_basis, find_unsourced
from ckptplan.planning.intervals import describe_interval
from ckptplan.planning.optimize import DETAIL_COLUMNS, INTERVAL, JOB_COLUMNS, cost_columns, make_cost_row
from ckptplan.planning.request import list_budgets
from ckptplan.recursion.tree import OFFLOADED_STEPS
from ckptplan.report.blocks import Block, Field, Paragraph, Table, make_facts
from ckptplan.report.infeasible import format_reason
from ckptplan.storage.plans import plan_document
from ckptplan.strategies.protocol import CACHED_STEPS, Strategy
from ckptplan.strategies.registry import all_parameters
from ckptplan.wording import Argument


def _show_parameters(row: Mapping[str, Any]) -> str:
    """Return the parameters in a row, or why nothing fits."""
    if row.get("binding") is not None:
        return format_reason(row["binding"], row["need"])
    return str(row["parameters"]) if "parameters" in row else format_cells(row)


#: Fields of a plan.
STRATEGY = Field("strategy")
PARAMETERS = Field("parameters", priority=1, wraps=True, show=_show_parameters)
TIME = Field("seconds", "time")
OVER_BASE = Field("overhead", "over base")
LOCAL = Field("local_peak_bytes", "local")
#: The columns of a table of plans.
PLAN = (STRATEGY, PARAMETERS, TIME, OVER_BASE.ranked(3), LOCAL.ranked(2))
#: The facts of a plan.
FACTS = (
    STRATEGY,
    PARAMETERS,
    TIME,
    OVER_BASE,
    Field("local_peak_bytes", "local memory"),
    Field("remote_peak_bytes", "remote memory"),
    Field("recomputed_steps", "steps run again"),
    Field("messages"),
)

#: A smaller gap is a rounding error: the plan is proved to be optimal.
PROVED = 1e-9
#: A plan that uses more than this share of the machine's local memory is warned about.
_FULL = 0.95
#: The length of a bar that stands for the whole budget, in characters.
_BAR = 24
#: The fields of a workload for bytes outside checkpoints and tapes: resident bytes and workspace.
_BESIDE_SCHEDULE = ("resident_bytes", "resident_bytes_per_step", "workspace_bytes")
#: The kind of inputs without a source.
_UNSOURCED = "yours, without a source"


def list_plan_columns() -> tuple[str, ...]:
    """Return the columns of rows of plans. They are the same for every plan."""
    return (*JOB_COLUMNS, *cost_columns(), *DETAIL_COLUMNS)


def make_job_row(workload: Workload, profile: HardwareProfile) -> dict[str, Any]:
    """Return the cells of the columns that name a job."""
    return {"workload": workload.name, "profile": profile.name, "steps": workload.steps}


def make_plan_row(plan: Plan) -> dict[str, Any]:
    """Return the cells of a plan's columns, and its parameters as a text.

    Parameters that its strategy lacks are left out.
    """
    costs = make_cost_row(plan.strategy, plan, plan.predicted, plan.bound)
    return {**make_job_row(plan.workload, plan.profile), **costs, "parameters": format_parameters(plan)}


def make_result_row(result: Plan | Infeasible) -> dict[str, Any]:
    """Return the cells of a plan, or of the reason why there is none."""
    if isinstance(result, Plan):
        return {**make_plan_row(result), "fits": True}
    return {"fits": False, **_list_reason(result)}


def make_result_document(result: Plan | Infeasible, **of_plan: Any) -> dict[str, Any]:
    """Return JSON data: the plan and the members ``of_plan``, or the reason why there is no plan."""
    if isinstance(result, Plan):
        return {"fits": True, **of_plan, "plan": plan_document(result)}
    return {"fits": False, **_list_reason(result)}


def _list_reason(error: Infeasible) -> dict[str, Any]:
    return {"binding": error.binding, "need": error.need, "have": error.have}


def identify_job(workload: Workload, profile: HardwareProfile) -> dict[str, Any]:
    """Return the members of a document that identify its workload and profile."""
    return {
        "workload": {**workload.identify(), "steps": workload.steps},
        "profile": profile.identify(),
    }


def name_job(workload: Workload, profile: HardwareProfile) -> str:
    """Return 'paper-snn on ipu-mk2, T = 4,096 time steps'."""
    return f"{workload.name} on {profile.name}, T = {units.format_count(workload.steps)} time steps"


def find_budget(plan: Plan) -> int:
    """Return the local budget of a plan in bytes."""
    return plan.goal.local_bytes or plan.profile.local_budget_bytes


def find_limits(results: Iterable[Plan | Infeasible | None], profile: HardwareProfile) -> tuple[int, float]:
    """Return the local budget of results in bytes, and the headroom that was subtracted for it."""
    for result in results:
        if isinstance(result, Plan):
            return find_budget(result), result.goal.headroom
        if result is not None and result.binding == "local_bytes":
            return int(result.have), result.headroom
    return profile.local_budget_bytes, profile.headroom


def name_plan(plan: Plan | RegularPlan) -> str:
    """Return 'standard  chunk_size 16': a strategy and its parameters."""
    return f"{plan.strategy}  {format_parameters(plan)}".rstrip()


def format_parameters(plan: Plan | RegularPlan) -> str:
    """Return 'chunk_size 16, remote_chunk_size 256', or the number of decisions of a solved schedule."""
    if isinstance(plan, Plan) and plan.splits is not None:
        block = plan.parameters["block_size"]
        decisions = units.format_things(len(plan.splits), "decision")
        return f"block_size {block}, {decisions}" if block > 1 else decisions
    return format_cells(plan.parameters)


def format_cells(row: Mapping[str, Any]) -> str:
    """Return the parameters in a row, as 'chunk_size 64', without sizes in units of a solved schedule."""
    given = (name for name in all_parameters() if row.get(name) is not None and not name.endswith("_units"))
    return ", ".join(f"{name} {row[name]}" for name in given)


def describe_plan(plan: Plan) -> dict[str, str]:
    """Return the facts of a plan by title, for consoles, pages and tooltips."""
    table = Table.of(FACTS, [make_plan_row(plan)])
    return dict(zip(table.headings, table.texts[0], strict=True))


def note_same_schedules(groups: Iterable[Sequence[str]]) -> Iterator[Paragraph]:
    """Yield a line for each group of several strategies that have the same schedule."""
    for names in groups:
        if len(names) > 1:
            yield Paragraph(f"same schedule: {', '.join(names)}", style="faint")


def explain_choice(plan: Plan) -> str:
    """Return the notes of the search about its choice of a plan, '' if there are none."""
    return "; ".join(entry.text for entry in plan.estimate_basis if entry.field == "search")


def note_closed_forms(compared: Iterable[Strategy]) -> Iterator[Paragraph]:
    """Yield a note if all compared strategies are closed forms, so that no solved strategy was searched."""
    if all(strategy.is_closed_form for strategy in compared):
        option = Argument("strategies", "all")
        yield Paragraph(f"closed forms alone are compared; {option} adds optimal and others, slowly", "faint")


def describe_cache(plan: Plan) -> str:
    """Return which steps keep their caches, and the cost of the other steps; '' if steps have no caches."""
    workload, full = plan.workload, plan.predicted.recomputed_without_cache
    if not workload.cache_bytes:
        return ""
    noun = "spikes" if workload.network is not None and workload.network.activity else "caches"
    if plan.cache == "all":
        return f"the {noun} of all steps stay until the steps are reversed"
    if plan.cache == "offloaded":
        moved = plan.parameters[OFFLOADED_STEPS]
        return (
            f"the {noun} of the first {units.format_things(moved, 'step')} move to remote memory and back; "
            f"those of the last {units.format_count(workload.steps - moved)} stay"
        )
    cached = plan.parameters.get(CACHED_STEPS)
    kept = "" if cached is None else f"{noun} of the last {units.format_count(cached)} steps stay; "
    full_time, replay_time = map(units.format_seconds, (workload.forward_seconds, workload.recompute_seconds))
    runs = f"{units.format_things(full, 'step')} {'is' if full == 1 else 'are'} recomputed in full"
    return f"{kept}{runs} ({full_time} instead of {replay_time} each)"


def describe_resident(case: Case, budget: int) -> str:
    """Return the local bytes that every schedule needs, their share of a budget, and their parts."""
    parts, resident = case.resident_parts, sum(case.resident_parts.values())
    share = f", {units.format_share(resident / budget)} of the budget" if budget else ""
    listed = "; ".join(f"{name} {units.format_bytes(size)}" for name, size in parts.items())
    return f"{units.format_bytes(resident)} that every schedule needs{share}: {listed}"


def list_memory(case: Case, *, budget: int, headroom: float, plan: Plan | None = None) -> Table:
    """Return a table of the local memory of one unit: bytes that every schedule needs, and the remaining bytes.

    With a plan, the last rows are the bytes of the plan and the free bytes. Without, it is the room for a plan.
    """
    title = f"Local memory{' of one unit' if case.profile.units > 1 else ''}: {units.format_bytes(budget)}"
    if headroom:
        memory = find_memory(budget, headroom, machine=case.profile.local_bytes)
        title += f", {units.format_bytes(memory)} less {units.format_share(headroom)} headroom"
    parts = case.resident_parts
    resident = sum(parts.values())
    scheduled = "checkpoints, tapes and caches" if case.costs.cache_bytes else "checkpoints and tapes"
    if plan is not None:
        peak = plan.predicted.local_peak_bytes
        parts |= {f"{scheduled} of the plan": peak - resident, "free": budget - peak}
    elif resident <= budget:
        parts[f"left for {scheduled}"] = budget - resident
    else:
        parts["missing"] = resident - budget
    fields = (
        Field("part", "", wraps=True, show=lambda part: part[0]),
        Field("size", "", right=True, show=lambda part: units.format_bytes(part[1])),
        Field("budget_share", "", show=lambda part: part[1] / budget),
        Field("bar", "", priority=1, show=lambda part: "\u2588" * min(_BAR, round(_BAR * part[1] / budget))),
    )
    return Table.of(fields, parts.items(), title=title)


def list_warnings(plan: Plan) -> Iterator[Block]:
    """Yield the interval of a plan's time, if it was measured, and warnings.

    One warning says that steps wait for their inputs or outputs, another one that the plan fills local memory
    while the workload lists no weights and other bytes.
    """
    chosen = "; ".join(entry.text for entry in plan.estimate_basis if entry.field == INTERVAL)
    if interval := chosen or describe_interval(plan):
        yield Paragraph(f"time of {name_plan(plan)}: {interval}")
    workload, profile = plan.workload, plan.profile
    # A recomputed step needs its inputs again, so the quicker of both runs counts.
    step = min(workload.forward_seconds, workload.recompute_seconds)
    rates = (profile.read_bytes_per_second, profile.write_bytes_per_second)
    streamed = (0, 0) if workload.network is None else workload.network.streamed_bytes
    for name, size, rate in zip(("inputs", "outputs"), streamed, rates, strict=True):
        if size > rate * step:
            yield Paragraph(
                f"warning: the {name} of a step take {units.format_seconds(size / rate)} to or from remote "
                f"memory, and a step {units.format_seconds(step)}: times of plans do not count the wait",
                style="warning",
            )
    share = plan.predicted.local_peak_bytes / profile.local_bytes
    if share > _FULL and not any(getattr(workload, field) for field in _BESIDE_SCHEDULE):
        yield Paragraph(
            f"warning: the plan fills {units.format_share(share)} of local memory, but "
            f"{', '.join(_BESIDE_SCHEDULE[:-1])} and {_BESIDE_SCHEDULE[-1]} are 0: fill in these fields, let "
            f"calibrate measure them, or leave room with {Argument('headroom', '20%')}",
            style="warning",
        )


def list_basis(workload: Workload, profile: HardwareProfile, goal: Goal) -> tuple[BasisEntry, ...]:
    """Return the inputs of a study of a job. The budgets are the profile's unless the goal has a local one."""
    budgeted = goal if goal.local_bytes is not None else goal.model_copy(update=list_budgets(profile))
    return collect_basis(workload, profile, budgeted)


def count_basis(entries: Sequence[BasisEntry]) -> Iterator[Block]:
    """Yield 'Estimate basis: 8 of 17 inputs assumed; --basis lists all', or nothing without inputs."""
    if entries:
        assumed, yours = sum(entry.kind == "assumed" for entry in entries), len(find_unsourced(entries))
        counts = f"{assumed} of {len(entries)} inputs assumed{f', {yours} without a source' if yours else ''}"
        yield Paragraph(f"Estimate basis: {counts}; {Argument('basis', True)} lists all")


def explain_basis(entries: Sequence[BasisEntry]) -> Iterator[Block]:
    """Yield a table of the inputs of each kind with their origins."""
    yours = find_unsourced(entries)
    groups: dict[str, dict[str, list[str]]] = {}
    for entry in (*(entry for entry in entries if entry not in yours), *yours):
        kind = _UNSOURCED if entry in yours else entry.kind
        groups.setdefault(kind, {}).setdefault(entry.field, []).append(entry.text)
    for kind, origins in groups.items():
        facts = {field: "; ".join(texts) for field, texts in origins.items()}
        yield make_facts(facts, "caution" if kind in (_UNSOURCED, "assumed") else "", title=f"Inputs: {kind}")
