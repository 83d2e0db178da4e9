"""Parts of several reports: the job, and a plan's parameters."""

from __future__ import annotations

from collections.abc import Sequence

from rich.console import Console
from rich.text import Text

from ckptplan.model.plan import Plan
from ckptplan.model.profile import HardwareProfile
from ckptplan.model.workload import Workload
from ckptplan.report.columns import Cell
from ckptplan.units import format_count

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
