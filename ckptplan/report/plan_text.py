"""Parts of several reports: the job, a plan's parameters, the basis of its numbers."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from rich.console import Console
from rich.padding import Padding
from rich.text import Text

from ckptplan.model.plan import Plan
from ckptplan.model.profile import HardwareProfile
from ckptplan.model.workload import Workload
from ckptplan.planning.basis import find_unsourced
from ckptplan.units import format_count
from ckptplan.wording import Argument, Wording

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


def print_basis(console: Console, plan: Plan, *, wording: Wording = str) -> None:
    """Print the inputs that are assumed or unsourced, and how to list the others."""
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


def _grouped(pairs: Iterable[tuple[str, str]]) -> dict[str, list[str]]:
    """Return the fields of each text, so that it is printed once."""
    grouped: dict[str, list[str]] = {}
    for field, text in pairs:
        grouped.setdefault(text, []).append(field)
    return grouped


def format_parameters(plan: Plan) -> str:
    """Return 'chunk_size 16, remote_chunk_size 256', or the number of decisions of a solved schedule."""
    if plan.splits is not None:
        chunk = plan.parameters["chunk_size"]
        decisions = f"{len(plan.splits)} decision{'s' if len(plan.splits) > 1 else ''}"
        return f"chunk_size {chunk}, {decisions}" if chunk > 1 else decisions
    return ", ".join(
        f"{name} {value}" for name, value in plan.parameters.items() if not name.endswith("_units")
    )


def format_names(plan: Plan, also: Sequence[str]) -> str:
    """Return a plan's parameters, and below them the other strategies that have the same schedule."""
    return "\n".join(filter(None, (format_parameters(plan), f"also: {', '.join(also)}" if also else "")))


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
