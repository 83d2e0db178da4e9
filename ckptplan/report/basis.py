"""The basis of an estimate: one line that counts what is assumed, or every input with its origin."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from rich.console import Console
from rich.text import Text

from ckptplan.model.goal import Goal
from ckptplan.model.prediction import BasisEntry
from ckptplan.model.profile import HardwareProfile
from ckptplan.model.workload import Workload
from ckptplan.planning.basis import collect_basis, find_unsourced
from ckptplan.report.columns import wrap_text
from ckptplan.wording import Argument, Wording


def list_basis(workload: Workload, profile: HardwareProfile, goal: Goal) -> tuple[BasisEntry, ...]:
    """Return the inputs of a study of a job, within the memory of its profile unless the goal names another."""
    memory = {
        "local_bytes": profile.local_budget_bytes,
        "headroom": profile.headroom,
        "remote_bytes": profile.remote_bytes,
    }
    named = goal if goal.local_bytes is not None else goal.model_copy(update=memory)
    return collect_basis(workload, profile, named)


def print_basis(
    console: Console, entries: Sequence[BasisEntry], *, whole: bool = False, wording: Wording = str
) -> None:
    """Print how many inputs are assumed; with ``whole`` every input, what it is and where it comes from."""
    if not entries:
        return
    console.print()
    if whole:
        _print_whole(console, entries)
        return
    for line in wrap_text(Text(_summarize(entries, wording=wording)), width=console.width):
        console.print(line, soft_wrap=True)


def _summarize(entries: Sequence[BasisEntry], *, wording: Wording) -> str:
    """Return 'Estimate basis: 8 of 17 inputs are assumed; --basis lists all'."""
    assumed = [entry for entry in entries if entry.kind == "assumed"]
    yours = find_unsourced(entries)
    found = [
        f"{len(assumed) or 'none'} of {len(entries)} inputs {'is' if len(assumed) == 1 else 'are'} assumed"
    ]
    found += [f"{len(yours)} without a source"] if yours else []
    return f"Estimate basis: {', '.join(found)}; {wording(Argument('basis', True))} lists all"


def _print_whole(console: Console, entries: Sequence[BasisEntry]) -> None:
    console.print(Text("Estimate basis", style="bold"))
    yours = find_unsourced(entries)
    kinds = dict.fromkeys(entry.kind for entry in entries)
    for kind in kinds:
        named = [entry for entry in entries if entry.kind == kind and entry not in yours]
        if named:
            _print_kind(console, _HEADINGS.get(kind, kind), named)
    if yours:
        _print_kind(console, "yours, without a source", yours)


def _print_kind(console: Console, heading: str, entries: Iterable[BasisEntry]) -> None:
    console.print(f"  {heading}:")
    style = "yellow" if heading.startswith(("assumed", "yours")) else ""
    for text, fields in _group(entries).items():
        line = Text.assemble((", ".join(fields), style), f": {text}")
        for part in wrap_text(line, width=console.width - 4):
            console.print(Text.assemble("    ", part), soft_wrap=True)


_HEADINGS = {"assumed": "assumed, not measured"}


def _group(entries: Iterable[BasisEntry]) -> dict[str, list[str]]:
    """Return the fields of each text, so that it is printed once."""
    grouped: dict[str, list[str]] = {}
    for entry in entries:
        grouped.setdefault(entry.text, []).append(entry.field)
    return grouped
