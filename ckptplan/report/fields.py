"""What several reports say of a job and of a plan, each quantity once.

Fields of tables, how their numbers are written, cells of flat rows, members of documents, and phrases about
the budget and the parameters.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from functools import partial
from typing import Any

from ckptplan import units
from ckptplan.errors import Infeasible
from ckptplan.model.budget import find_memory
from ckptplan.model.plan import Plan
from ckptplan.model.profile import HardwareProfile
from ckptplan.model.workload import Workload
from ckptplan.planning.intervals import describe_interval
from ckptplan.planning.optimize import DETAIL_COLUMNS, INTERVAL, JOB_COLUMNS, cost_columns, make_cost_row
from ckptplan.report.blocks import Cell, Field, Paragraph
from ckptplan.storage.plans import plan_document
from ckptplan.strategies.protocol import Strategy
from ckptplan.strategies.registry import all_parameters
from ckptplan.wording import Argument

#: Numbers of a column have one unit if the largest is less than this many times the smallest.
_SIMILAR = 1000.0
#: No number has more digits before its point than this one.
_LARGE = 1e6


def align_percents(values: Sequence[float]) -> list[str]:
    """Format shares as signed percentages."""
    return _pad_units([units.format_percent(value) for value in values])


def align_counts(values: Sequence[float]) -> list[str]:
    """Format counts: '1,472'."""
    return [units.format_count(int(value)) for value in values]


def align_ratios(values: Sequence[float]) -> list[str]:
    """Format ratios with three decimals: '1.116'."""
    return [f"{value:.3f}" for value in values]


def _align(
    values: Sequence[float], *, form: Callable[[float], str], parse: Callable[[str], float]
) -> list[str]:
    """Return the numbers in the unit of the smallest if all are similar, else each in its own."""
    sizes = [abs(value) for value in values if value]
    unit = form(min(sizes, default=0.0)).rpartition(" ")[2]
    size = parse(f"1 {unit}")
    if not sizes or max(sizes) >= min(_SIMILAR * min(sizes), _LARGE * size):
        return _pad_units([form(value) for value in values])
    decimals = max(_count_decimals(value / size) for value in values)
    return [f"{value / size:,.{decimals}f} {unit}" for value in values]


#: Formats of times, '33.40 ms' below '32.34 ms', of sizes in binary units, and of rates in decimal ones.
align_seconds = partial(_align, form=units.format_seconds, parse=units.parse_seconds)
align_bytes = partial(_align, form=units.format_bytes, parse=units.parse_bytes)
align_rates = partial(_align, form=units.format_rate, parse=units.parse_rate)


def _count_decimals(value: float) -> int:
    """Return the decimals that four significant digits of a number need."""
    return len(f"{float(f'{value:.4g}'):f}".rstrip("0").partition(".")[2])


def _pad_units(texts: Sequence[str]) -> list[str]:
    """Return texts with short units padded, so that numbers flush right end at the same place."""
    units = [text.rpartition(" ")[2] if " " in text else "" for text in texts]
    widest = max(map(len, units), default=0)
    return [f"{text}{' ' * (widest - len(unit))}" for text, unit in zip(texts, units, strict=True)]


def format_field(field: str, value: object) -> str:
    """Return the value of a field with its unit, which the end of its name determines."""
    if value is None:
        return "unbounded" if field == "remote_bytes" else "none"
    if isinstance(value, bool):
        return "yes" if value else "no"
    if not isinstance(value, (int, float)):
        return str(value)
    show = next((show for ending, show in _UNITS.items() if field.endswith(ending)), "{:,}".format)
    return show(value)


_UNITS: dict[str, Callable[[float], str]] = {
    "headroom": units.format_share,
    "efficiency": units.format_share,
    "uncertainty": units.format_share,
    "bytes_per_second": units.format_rate,
    "flops_per_second": units.format_flop_rate,
    "bytes_per_step": units.format_bytes,
    "bytes_once": units.format_bytes,
    "bytes": units.format_bytes,
    "seconds": units.format_seconds,
    "flops": units.format_flops,
    "watts": "{:g} W".format,
}


#: Fields of a plan; ``ranked`` makes one that narrow tables leave out.
STRATEGY = Field("strategy")
PARAMETERS = Field("parameters", wraps="late")
TIME = Field("seconds", "time", form=align_seconds)
OVER_BASE = Field("overhead", "over base", "over\nbase", form=align_percents)
LOCAL = Field("local_peak_bytes", "local", form=align_bytes)
#: What pages say of a plan.
FACTS = (
    STRATEGY,
    PARAMETERS,
    TIME,
    OVER_BASE,
    Field("local_peak_bytes", "local memory", form=align_bytes),
    Field("remote_peak_bytes", "remote memory", form=align_bytes),
)

#: What a chart tells of a plan that is pointed at: the members of ``label_row`` and their titles.
TOLD: Mapping[str, str] = {one.name: one.heading for one in FACTS}

#: A gap below this share is rounding.
PROVED = 1e-9
#: A plan that uses more than this share of the machine's local memory fills it.
_FULL = 0.95
#: The bytes of a workload that stay in local memory, or are scratch.
_BESIDE_SCHEDULE = ("resident_bytes", "resident_bytes_per_step", "workspace_bytes")


def list_plan_columns() -> tuple[str, ...]:
    """Return the columns of a plan, the same for every plan."""
    return (*JOB_COLUMNS, *cost_columns(), *DETAIL_COLUMNS)


def make_plan_row(plan: Plan) -> dict[str, Any]:
    """Return the cells of a plan's columns; parameters that its strategy lacks are left out."""
    job = {"workload": plan.workload.name, "profile": plan.profile.name, "steps": plan.steps}
    return {**job, **make_cost_row(plan.strategy, plan, plan.predicted, plan.bound)}


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


def make_parameters_cell(text: str) -> Cell:
    """Return 'chunk_size 16', and 'chunk 16' for narrow tables: without the '_size' that most names end in."""
    return Cell(value=text, short=text.replace("_size ", " "))


def tell_plan(plan: Plan, also: Sequence[str] = ()) -> dict[str, Any]:
    """Return a plan's row with its parameters as a text; below, others that have the same schedule."""
    parts = (format_parameters(plan), f"also: {', '.join(also)}" if also else "")
    return {**make_plan_row(plan), "parameters": make_parameters_cell("\n".join(filter(None, parts)))}


def label_row(row: Mapping[str, Any]) -> dict[str, str]:
    """Return what is told of a plan that is pointed at, given by the cells of its columns."""
    told = {"parameters": format_cells(row), **row}
    return {one.name: one.form([told[one.name]])[0] if one.form else told[one.name] for one in FACTS}


def label_plan(plan: Plan) -> dict[str, str]:
    """Return what is told of a plan that is pointed at."""
    return label_row({**make_plan_row(plan), "parameters": format_parameters(plan)})


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


def tell_interval(plan: Plan) -> str:
    """Return how far measured times may move a plan, and whether the choice depends on it; '' if unknown."""
    chosen = "; ".join(entry.text for entry in plan.estimate_basis if entry.field == INTERVAL)
    return chosen or describe_interval(plan)


def note_closed_forms(compared: Iterable[Strategy]) -> Iterator[str]:
    """Yield what was not tried, if all strategies that were compared are closed forms."""
    if all(one.is_closed_form for one in compared):
        more = Argument("strategies", "all")
        yield f"only closed forms are compared, which answer at once; {more} adds optimal and others, slowly"


def format_headroom(memory: int, headroom: float, *, like: float = 0) -> str:
    """Return '74.51 GiB less 10 % headroom'; ``like`` is as for ``format_bytes``."""
    return f"{units.format_bytes(memory, like=like)} less {units.format_share(headroom)} headroom"


def describe_headroom(profile: HardwareProfile, *, budget: int | None, headroom: float) -> str:
    """Return what a local budget was taken from, '' if nothing is left free."""
    if not headroom or budget is None:
        return ""
    return format_headroom(find_memory(budget, headroom, machine=profile.local_bytes), headroom)


def list_budget(profile: HardwareProfile, *, budget: int | None, headroom: float) -> Iterator[Paragraph]:
    """Yield the local budget if it has a headroom, where no other line of a table says so."""
    taken = describe_headroom(profile, budget=budget, headroom=headroom)
    if taken and budget is not None:
        where = " per unit" if profile.units > 1 else ""
        yield Paragraph(f"local budget: {units.format_bytes(budget)}{where}, {taken}", style="faint")


def list_limits(plan: Plan) -> Iterator[Paragraph]:
    """Yield the local budget that a plan was made for, and what ``list_warnings`` says of it."""
    yield from list_budget(plan.profile, budget=plan.goal.local_bytes, headroom=plan.goal.headroom)
    yield from list_warnings(plan)


def list_warnings(plan: Plan) -> Iterator[Paragraph]:
    """Yield how well a plan's time is known, if it was measured.

    Yield a warning if the plan fills the memory of a machine, and all other bytes are taken to be none.
    """
    if interval := tell_interval(plan):
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
