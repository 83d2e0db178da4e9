"""The basis of an estimate: one line that counts the assumed inputs, or every input with its origin."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from ckptplan.model.goal import Goal
from ckptplan.model.prediction import BasisEntry
from ckptplan.model.profile import HardwareProfile
from ckptplan.model.workload import Workload
from ckptplan.planning.basis import collect_basis, find_unsourced
from ckptplan.planning.request import list_budgets
from ckptplan.report.blocks import Block, Heading, Paragraph, Style, make_facts
from ckptplan.wording import Argument

#: The title of inputs without a source, and titles of kinds of inputs that differ from the kind's name.
_UNSOURCED, _KINDS = "yours, without a source", {"assumed": "assumed, not measured"}


def list_basis(workload: Workload, profile: HardwareProfile, goal: Goal) -> tuple[BasisEntry, ...]:
    """Return the inputs of a study of a job. The budgets are the profile's unless the goal has a local one."""
    budgeted = goal if goal.local_bytes is not None else goal.model_copy(update=list_budgets(profile))
    return collect_basis(workload, profile, budgeted)


def count_basis(entries: Sequence[BasisEntry]) -> Iterator[Block]:
    """Yield 'Estimate basis: 8 of 17 inputs are assumed; --basis lists all', or nothing without inputs."""
    if not entries:
        return
    assumed, yours = sum(entry.kind == "assumed" for entry in entries), len(find_unsourced(entries))
    counts = f"{assumed or 'none'} of {len(entries)} inputs {'is' if assumed == 1 else 'are'} assumed"
    counts += f", {yours} without a source" if yours else ""
    yield Paragraph(f"Estimate basis: {counts}; {Argument('basis', True)} lists all")


def explain_basis(entries: Sequence[BasisEntry]) -> Iterator[Block]:
    """Yield every input with its origin, by kind."""
    yours = find_unsourced(entries)
    groups: dict[str, dict[str, list[str]]] = {}
    for entry in (*(entry for entry in entries if entry not in yours), *yours):
        kind = _UNSOURCED if entry in yours else _KINDS.get(entry.kind, entry.kind)
        groups.setdefault(kind, {}).setdefault(entry.field, []).append(entry.text)
    for kind, origins in groups.items():
        style: Style = "caution" if kind in (_UNSOURCED, _KINDS["assumed"]) else ""
        yield Heading(f"Inputs: {kind}")
        yield make_facts({field: "; ".join(texts) for field, texts in origins.items()}, style)
