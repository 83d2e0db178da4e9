"""The basis of an estimate: one line that counts the assumed inputs, or every input with its origin."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from ckptplan.model.goal import Goal
from ckptplan.model.prediction import BasisEntry
from ckptplan.model.profile import HardwareProfile
from ckptplan.model.workload import Workload
from ckptplan.planning.basis import collect_basis, find_unsourced
from ckptplan.planning.request import list_budgets
from ckptplan.report.blocks import Block, Paragraph, make_facts
from ckptplan.wording import Argument

#: The kind of inputs without a source.
_UNSOURCED = "yours, without a source"


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
