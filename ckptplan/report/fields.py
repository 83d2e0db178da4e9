"""Parts of several reports: the job, its local budget in words, the parameters of a plan and its flat row."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from rich.console import Console
from rich.text import Text

from ckptplan.model.goal import Goal
from ckptplan.model.headroom import find_memory
from ckptplan.model.plan import Plan
from ckptplan.model.profile import HardwareProfile
from ckptplan.model.workload import Workload
from ckptplan.report.columns import Cell, wrap_lines
from ckptplan.storage.tables import Columns
from ckptplan.studies.rows import DETAIL_COLUMNS, JOB_COLUMNS, cost_columns
from ckptplan.units import format_bytes, format_count, format_share
from ckptplan.wording import Argument, Phrase, Wording, put_into_words

#: A plan that uses more than this share of the machine's local memory fills it.
_FULL = 0.95
#: The bytes of a workload that stay in local memory, or are scratch.
_BESIDE_SCHEDULE = ("resident_bytes", "resident_bytes_per_step", "workspace_bytes")


def format_headroom(memory: int, headroom: float) -> str:
    """Return '74.51 GiB less 10 % headroom'."""
    return f"{format_bytes(memory)} less {format_share(headroom)} headroom"


def describe_headroom(goal: Goal, profile: HardwareProfile) -> str:
    """Return what the local budget of a goal was taken from, '' if nothing is left free."""
    if not goal.headroom or goal.local_bytes is None:
        return ""
    return _format_rest(profile, budget=goal.local_bytes, headroom=goal.headroom)


def print_budget(console: Console, profile: HardwareProfile, *, budget: int | None, headroom: float) -> None:
    """Print the local budget if it has a headroom, where no other line of a table says so."""
    if headroom and budget is not None:
        where = " per unit" if profile.units > 1 else ""
        taken = _format_rest(profile, budget=budget, headroom=headroom)
        text = f"local budget: {format_bytes(budget)}{where}, {taken}"
        console.print(wrap_lines(text, width=console.width, style="dim"), soft_wrap=True)


def print_warning(console: Console, plan: Plan, *, wording: Wording = str) -> None:
    """Print a warning if a plan fills the memory of a machine, and all other bytes are taken to be none."""
    warning = warn_of_uncounted_bytes(plan, wording=wording)
    if warning:
        text = Text.assemble(("warning: ", "bold yellow"), warning)
        console.print(wrap_lines(text, width=console.width), soft_wrap=True)


def warn_of_uncounted_bytes(plan: Plan, *, wording: Wording = str) -> str:
    """Return the warning about weights, inputs and scratch memory that are not counted, '' if there is none."""
    share = plan.predicted.local_peak_bytes / plan.profile.local_bytes
    if share <= _FULL or any(getattr(plan.workload, field) for field in _BESIDE_SCHEDULE):
        return ""
    text = Phrase(
        f"the plan fills {format_share(share)} of local memory, but {', '.join(_BESIDE_SCHEDULE[:-1])} and "
        f"{_BESIDE_SCHEDULE[-1]} are 0: weights, inputs, gradients and optimizer are not counted; fill in "
        "these fields, let calibrate measure them, or leave room with ",
        Argument("headroom", "20%"),
    )
    return put_into_words(text, wording)


def _format_rest(profile: HardwareProfile, *, budget: int, headroom: float) -> str:
    return format_headroom(find_memory(budget, headroom, machine=profile.local_bytes), headroom)


def name_budget(budget: int, *, resident: int) -> str:
    """Return the name of a budget on an axis without what stays: what is left of it, '276 KiB of 512 KiB'."""
    if not resident:
        return f"budget {format_bytes(budget)}"
    return f"budget: {format_bytes(max(0, budget - resident))} of {format_bytes(budget)}"


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


#: A gap below this share is rounding.
PROVED = 1e-9


def print_title(console: Console, *, workload: Workload, profile: HardwareProfile) -> None:
    """Print the workload, the profile and the number of steps."""
    console.print(
        Text.assemble(
            (f"{workload.name} on {profile.name}", "bold"), f", T = {format_count(workload.steps)} time steps"
        )
    )
    console.print()


def format_parameters(plan: Plan) -> str:
    """Return 'chunk_size 16, remote_chunk_size 256', or the number of decisions of a solved schedule."""
    if plan.splits is not None:
        chunk = plan.parameters["chunk_size"]
        decisions = f"{len(plan.splits)} decision{'s' if len(plan.splits) > 1 else ''}"
        return f"chunk_size {chunk}, {decisions}" if chunk > 1 else decisions
    return ", ".join(
        f"{name} {value}" for name, value in plan.parameters.items() if not name.endswith("_units")
    )


def shorten_parameters(text: str) -> str:
    """Return 'chunk 16, remote_chunk 256' for narrow tables: names without the '_size' that most end in."""
    return text.replace("_size ", " ")


def make_names_cell(plan: Plan, also: Sequence[str]) -> Cell:
    """Return a plan's parameters, and below them the other strategies that have the same schedule."""
    text = "\n".join(filter(None, (format_parameters(plan), f"also: {', '.join(also)}" if also else "")))
    return Cell(value=text, short=shorten_parameters(text))


def make_parameters_cell(plan: Plan) -> Cell:
    """Return a plan's parameters."""
    return make_names_cell(plan, ())


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
